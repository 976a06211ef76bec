//! The published Pocket TTS models: their shapes and the commits of their files.

use super::catalogue::{Entry, Family};
use super::pocket_shape::{CodecSide, HeadType, PocketShape};
use super::pocket_text::{
    ENGLISH_2026_01_TEXT, ENGLISH_TEXT, FRENCH_TEXT, GERMAN_TEXT, QUOTES_TEXT, SMALL_TEXT, SPANISH_TEXT,
};

const BIG_CODEC: CodecSide = CodecSide {
    dimension: 512,
    n_filters: 64,
    kernel_size: 7,
    d_model: 512,
    num_heads: 8,
    num_layers: 2,
    context: 250,
    dim_feedforward: 2048,
};
const SMALL_DECODER: CodecSide = CodecSide {
    dimension: 128,
    n_filters: 32,
    kernel_size: 3,
    d_model: 128,
    num_heads: 4,
    num_layers: 12,
    context: 50,
    dim_feedforward: 384,
};

const BIG: PocketShape = PocketShape {
    d_model: 1024,
    attn_dim: None,
    num_heads: 16,
    num_kv_heads: None,
    num_layers: 6,
    hidden_scale: 4,
    dim_feedforward: None,
    flow_depth: 6,
    flow_dim: 512,
    flow_type: HeadType::Lsd,
    z_dim: None,
    n_bins: 4000,
    rank: None,
    insert_bos_before_voice: true,
    inner_dim: 32,
    outer_dim: 512,
    encoder: BIG_CODEC,
    decoder: None,
};
const BIG_24L: PocketShape = PocketShape { num_layers: 24, ..BIG };
const BIG_DRIFTING: PocketShape = PocketShape { flow_type: HeadType::Drifting, ..BIG };
const BIG_2026_01: PocketShape = PocketShape { insert_bos_before_voice: false, inner_dim: 512, ..BIG };
const M18: PocketShape = PocketShape {
    d_model: 512,
    num_heads: 8,
    num_layers: 8,
    hidden_scale: 1,
    flow_depth: 4,
    flow_dim: 192,
    flow_type: HeadType::Drifting,
    z_dim: Some(64),
    outer_dim: 128,
    decoder: Some(SMALL_DECODER),
    ..BIG
};
const M7: PocketShape =
    PocketShape { d_model: 224, attn_dim: Some(512), num_kv_heads: Some(2), rank: Some(64), ..M18 };
const M2: PocketShape = PocketShape {
    d_model: 112,
    attn_dim: Some(192),
    num_heads: 3,
    num_kv_heads: Some(1),
    dim_feedforward: Some(96),
    flow_dim: 64,
    flow_type: HeadType::Pointwise,
    rank: Some(32),
    decoder: Some(CodecSide { n_filters: 24, num_layers: 4, ..SMALL_DECODER }),
    ..M18
};

/// What English entries share; the files are filled in by each.
const ENGLISH: Entry = Entry {
    alias: "",
    also: &[],
    family: Family::Pocket,
    config: "",
    language: "english",
    default_voice: "alba",
    cloning_revision: "",
    plain_revision: "",
    tokenizer: "",
    tokenizer_revision: "",
    eos_threshold: -4.0,
    text: ENGLISH_TEXT,
    shape: BIG,
};

pub(super) const POCKET: &[Entry] = &[
    Entry {
        alias: "pocket-english",
        also: &["pocket"],
        config: "english",
        cloning_revision: "db04f0e653473e5c7333c69686ac92b7460b0c1d",
        plain_revision: "a7056f505a4a8ca72d8b5fb1440071d6f1a35739",
        tokenizer: "languages/english/tokenizer.json",
        tokenizer_revision: "00eac05ed3d16bdc3f6b5d598874019c34a89214",
        ..ENGLISH
    },
    Entry {
        alias: "pocket-english-18m-2026-10",
        also: &["pocket-18m"],
        config: "english_18m_2026-10",
        cloning_revision: "db04f0e653473e5c7333c69686ac92b7460b0c1d",
        plain_revision: "a7056f505a4a8ca72d8b5fb1440071d6f1a35739",
        tokenizer: "languages/english_18m_2026-10/tokenizer.model",
        tokenizer_revision: "08ffc58775e62aad9409511b9591c9af626270f3",
        eos_threshold: -1.0,
        text: SMALL_TEXT,
        shape: M18,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-english-18m-refl-2026-10",
        also: &["pocket-18m-refl"],
        config: "english_18m_refl_2026-10",
        cloning_revision: "db04f0e653473e5c7333c69686ac92b7460b0c1d",
        plain_revision: "a7056f505a4a8ca72d8b5fb1440071d6f1a35739",
        tokenizer: "languages/english_18m_refl_2026-10/tokenizer.model",
        tokenizer_revision: "08ffc58775e62aad9409511b9591c9af626270f3",
        eos_threshold: -1.0,
        text: SMALL_TEXT,
        shape: M18,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-english-2026-01",
        config: "english_2026-01",
        cloning_revision: "39592ff23c9ef80098bb74895d104c26275fe2c9",
        plain_revision: "d29db7978e464fb90cb3359ee0c69a273b9142cc",
        tokenizer: "tokenizer.json",
        tokenizer_revision: "00eac05ed3d16bdc3f6b5d598874019c34a89214",
        text: ENGLISH_2026_01_TEXT,
        shape: BIG_2026_01,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-english-2026-04",
        config: "english_2026-04",
        cloning_revision: "19f95fe2df36e79fbd9f10008595cc4c977a0fcc",
        plain_revision: "d29db7978e464fb90cb3359ee0c69a273b9142cc",
        tokenizer: "languages/english_2026-04/tokenizer.json",
        tokenizer_revision: "00eac05ed3d16bdc3f6b5d598874019c34a89214",
        ..ENGLISH
    },
    Entry {
        alias: "pocket-english-2026-04-24l",
        config: "english_2026-04_24l",
        cloning_revision: "492522650173a0653b7575cdc25ae09810e5d741",
        plain_revision: "e81d79e8194ad4c7ce879c87a4258ef20cbf2487",
        tokenizer: "languages/english_2026-04_24l/tokenizer.json",
        tokenizer_revision: "00eac05ed3d16bdc3f6b5d598874019c34a89214",
        shape: BIG_24L,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-english-2026-09",
        config: "english_2026-09",
        cloning_revision: "983151f13aaeab1b13c1e5e3c2c383d49a9edf3f",
        plain_revision: "e7205b6ee50e654a5ea19f0e9df2b0813b05e921",
        tokenizer: "languages/english_2026-09/tokenizer.json",
        tokenizer_revision: "00eac05ed3d16bdc3f6b5d598874019c34a89214",
        ..ENGLISH
    },
    Entry {
        alias: "pocket-english-2026-09-2",
        config: "english_2026-09_2",
        cloning_revision: "7f364c05d1be3faf2b234cdbe4cbb68a026d4218",
        plain_revision: "575d14372df89a4534bcb989870a34e77544b09f",
        tokenizer: "languages/english_2026-09/tokenizer.json",
        tokenizer_revision: "00eac05ed3d16bdc3f6b5d598874019c34a89214",
        ..ENGLISH
    },
    Entry {
        alias: "pocket-english-2026-09-24l",
        also: &["pocket-24l", "pocket-english-24l"],
        config: "english_2026-09_24l",
        cloning_revision: "983151f13aaeab1b13c1e5e3c2c383d49a9edf3f",
        plain_revision: "e7205b6ee50e654a5ea19f0e9df2b0813b05e921",
        tokenizer: "languages/english_2026-09_24l/tokenizer.json",
        tokenizer_revision: "00eac05ed3d16bdc3f6b5d598874019c34a89214",
        shape: BIG_24L,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-english-2026-10",
        config: "english_2026-10",
        cloning_revision: "db04f0e653473e5c7333c69686ac92b7460b0c1d",
        plain_revision: "a7056f505a4a8ca72d8b5fb1440071d6f1a35739",
        tokenizer: "languages/english_2026-09/tokenizer.json",
        tokenizer_revision: "00eac05ed3d16bdc3f6b5d598874019c34a89214",
        ..ENGLISH
    },
    Entry {
        alias: "pocket-english-2m-2026-10",
        also: &["pocket-2m"],
        config: "english_2m_2026-10",
        cloning_revision: "db04f0e653473e5c7333c69686ac92b7460b0c1d",
        plain_revision: "a7056f505a4a8ca72d8b5fb1440071d6f1a35739",
        tokenizer: "languages/english_2m_2026-10/tokenizer.model",
        tokenizer_revision: "08ffc58775e62aad9409511b9591c9af626270f3",
        eos_threshold: -1.0,
        text: SMALL_TEXT,
        shape: M2,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-english-2m-refl-2026-10",
        also: &["pocket-2m-refl"],
        config: "english_2m_refl_2026-10",
        cloning_revision: "db04f0e653473e5c7333c69686ac92b7460b0c1d",
        plain_revision: "a7056f505a4a8ca72d8b5fb1440071d6f1a35739",
        tokenizer: "languages/english_2m_refl_2026-10/tokenizer.model",
        tokenizer_revision: "08ffc58775e62aad9409511b9591c9af626270f3",
        eos_threshold: -1.0,
        text: SMALL_TEXT,
        shape: M2,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-english-7m-2026-10",
        also: &["pocket-7m"],
        config: "english_7m_2026-10",
        cloning_revision: "db04f0e653473e5c7333c69686ac92b7460b0c1d",
        plain_revision: "a7056f505a4a8ca72d8b5fb1440071d6f1a35739",
        tokenizer: "languages/english_7m_2026-10/tokenizer.model",
        tokenizer_revision: "08ffc58775e62aad9409511b9591c9af626270f3",
        eos_threshold: -1.0,
        text: SMALL_TEXT,
        shape: M7,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-english-7m-refl-2026-10",
        also: &["pocket-7m-refl"],
        config: "english_7m_refl_2026-10",
        cloning_revision: "db04f0e653473e5c7333c69686ac92b7460b0c1d",
        plain_revision: "a7056f505a4a8ca72d8b5fb1440071d6f1a35739",
        tokenizer: "languages/english_7m_refl_2026-10/tokenizer.model",
        tokenizer_revision: "08ffc58775e62aad9409511b9591c9af626270f3",
        eos_threshold: -1.0,
        text: SMALL_TEXT,
        shape: M7,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-english-drifting-26-09",
        also: &["pocket-drifting"],
        config: "english_drifting_26-09",
        cloning_revision: "75cfe24e3142233bb81887fed3482e9652bb4a6e",
        plain_revision: "a5ce31f3eba7a3b0cb9c24ba2015b098f278eaae",
        tokenizer: "languages/english_2026-09/tokenizer.json",
        tokenizer_revision: "00eac05ed3d16bdc3f6b5d598874019c34a89214",
        shape: BIG_DRIFTING,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-dutch",
        config: "dutch",
        language: "dutch",
        default_voice: "daan",
        cloning_revision: "3e82814a68665eec246ff649b14c71331f955c06",
        plain_revision: "1e08e6a23401048648a9fdcfde2f89348215c2a7",
        tokenizer: "languages/dutch/tokenizer.json",
        tokenizer_revision: "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
        text: QUOTES_TEXT,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-dutch-24l",
        config: "dutch_24l",
        language: "dutch",
        default_voice: "daan",
        cloning_revision: "2dd944b099d06bb9edbd221fef138685711d9bf0",
        plain_revision: "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
        tokenizer: "languages/dutch_24l/tokenizer.json",
        tokenizer_revision: "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
        text: QUOTES_TEXT,
        shape: BIG_24L,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-french",
        config: "french",
        language: "french",
        default_voice: "estelle",
        cloning_revision: "3e82814a68665eec246ff649b14c71331f955c06",
        plain_revision: "1e08e6a23401048648a9fdcfde2f89348215c2a7",
        tokenizer: "languages/french/tokenizer.json",
        tokenizer_revision: "8843db76457a91db32077edf8dfcd1c0e3e755fd",
        text: FRENCH_TEXT,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-french-24l",
        config: "french_24l",
        language: "french",
        default_voice: "estelle",
        cloning_revision: "3e82814a68665eec246ff649b14c71331f955c06",
        plain_revision: "1e08e6a23401048648a9fdcfde2f89348215c2a7",
        tokenizer: "languages/french_24l/tokenizer.json",
        tokenizer_revision: "8843db76457a91db32077edf8dfcd1c0e3e755fd",
        text: FRENCH_TEXT,
        shape: BIG_24L,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-german",
        config: "german",
        language: "german",
        default_voice: "juergen",
        cloning_revision: "3e82814a68665eec246ff649b14c71331f955c06",
        plain_revision: "1e08e6a23401048648a9fdcfde2f89348215c2a7",
        tokenizer: "languages/german/tokenizer.json",
        tokenizer_revision: "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
        text: GERMAN_TEXT,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-german-24l",
        config: "german_24l",
        language: "german",
        default_voice: "juergen",
        cloning_revision: "2dd944b099d06bb9edbd221fef138685711d9bf0",
        plain_revision: "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
        tokenizer: "languages/german_24l/tokenizer.json",
        tokenizer_revision: "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
        text: GERMAN_TEXT,
        shape: BIG_24L,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-italian",
        config: "italian",
        language: "italian",
        default_voice: "giovanni",
        cloning_revision: "3e82814a68665eec246ff649b14c71331f955c06",
        plain_revision: "1e08e6a23401048648a9fdcfde2f89348215c2a7",
        tokenizer: "languages/italian/tokenizer.json",
        tokenizer_revision: "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
        text: QUOTES_TEXT,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-italian-24l",
        config: "italian_24l",
        language: "italian",
        default_voice: "giovanni",
        cloning_revision: "3e82814a68665eec246ff649b14c71331f955c06",
        plain_revision: "1e08e6a23401048648a9fdcfde2f89348215c2a7",
        tokenizer: "languages/italian_24l/tokenizer.json",
        tokenizer_revision: "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
        text: QUOTES_TEXT,
        shape: BIG_24L,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-portuguese",
        config: "portuguese",
        language: "portuguese",
        default_voice: "rafael",
        cloning_revision: "3e82814a68665eec246ff649b14c71331f955c06",
        plain_revision: "1e08e6a23401048648a9fdcfde2f89348215c2a7",
        tokenizer: "languages/portuguese/tokenizer.json",
        tokenizer_revision: "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
        text: QUOTES_TEXT,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-portuguese-24l",
        config: "portuguese_24l",
        language: "portuguese",
        default_voice: "rafael",
        cloning_revision: "2dd944b099d06bb9edbd221fef138685711d9bf0",
        plain_revision: "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
        tokenizer: "languages/portuguese_24l/tokenizer.json",
        tokenizer_revision: "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
        text: QUOTES_TEXT,
        shape: BIG_24L,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-spanish",
        config: "spanish",
        language: "spanish",
        default_voice: "lola",
        cloning_revision: "3e82814a68665eec246ff649b14c71331f955c06",
        plain_revision: "1e08e6a23401048648a9fdcfde2f89348215c2a7",
        tokenizer: "languages/spanish/tokenizer.json",
        tokenizer_revision: "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
        text: SPANISH_TEXT,
        ..ENGLISH
    },
    Entry {
        alias: "pocket-spanish-24l",
        config: "spanish_24l",
        language: "spanish",
        default_voice: "lola",
        cloning_revision: "2dd944b099d06bb9edbd221fef138685711d9bf0",
        plain_revision: "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
        tokenizer: "languages/spanish_24l/tokenizer.json",
        tokenizer_revision: "4e1e0a3e611c51c0b4ed8174fc10f32a54644303",
        text: SPANISH_TEXT,
        shape: BIG_24L,
        ..ENGLISH
    },
];
