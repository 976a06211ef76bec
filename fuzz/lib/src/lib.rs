//! What the fuzzers feed: one function a target, each of which must return whatever it is given. The fuzzers of
//! `fuzz_targets/` call them under libFuzzer; `tests/short.rs` gives each a short run on stable Rust.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::io::{Cursor, Write as _};
use std::path::Path;
use std::sync::{Arc, Once, OnceLock};

use voce_audio::{AudioError, DecodeLimits, Decoder, MonoStream, Source, decode_bytes};
use voce_engine::listener::{Word, subtitles};
use voce_engine::store::{Reference, Settings, Store};
use voce_models::fastconformer::FastConformerConfig;
use voce_models::pocket::PocketConfig;
use voce_nn::weights::{GgufFile, RandomWeights, SafetensorsFile, TarFile, TorchFile};
use voce_nn::{Linear, Loader, PackedCache, Weights};
use voce_runtime::Format;
use voce_text::{PromptRules, SentenceStream, Tokenizer, Utf8Stream};

/// A target: its name, what it feeds, and where other seeds than its own corpus are, from the repository's root.
pub type Target = (&'static str, fn(&[u8]), &'static [&'static str]);

const AUDIO: &[&str] = &["crates/voce-audio/tests/fixtures"];
const CONFIGS: &[&str] = &[
    "crates/voce-models/tests/fixtures/fastconformer/stream",
    "crates/voce-models/tests/fixtures/fastconformer/tdt",
    "crates/voce-models/tests/fixtures/pocket/lsd",
];
const TOKENIZERS: &[&str] = &["crates/voce-text/tests/fixtures"];

/// Every target.
pub const TARGETS: &[Target] = &[
    ("audio", audio, AUDIO),
    ("ogg_opus", ogg_opus, AUDIO),
    ("wav", wav, AUDIO),
    ("audio_stream", audio_stream, AUDIO),
    ("inlet", voce_server::fuzz::inlet, &[]),
    ("form", voce_server::fuzz::form, &[]),
    ("realtime", voce_server::fuzz::realtime, &[]),
    ("msgpack", voce_server::fuzz::msgpack, &[]),
    ("deepgram", voce_server::fuzz::deepgram, &[]),
    ("wyoming", voce_server::fuzz::wyoming, &[]),
    ("query", voce_server::fuzz::query, &[]),
    ("json", voce_server::fuzz::json, &[]),
    ("safetensors", safetensors, &["crates/voce-models/tests/fixtures/fastconformer/ctc"]),
    ("gguf", gguf, &[]),
    ("torch", torch, &["crates/voce-nn/tests/fixtures/torch"]),
    ("tar", tar, &[]),
    ("packed", packed, &[]),
    ("model_config", model_config, CONFIGS),
    ("reference", reference, &[]),
    ("nemo_yaml", nemo_yaml, &[]),
    ("hf_json", hf_json, &[]),
    ("pocket_yaml", pocket_yaml, &["models/nano-voice"]),
    ("tokenizer", tokenizer, TOKENIZERS),
    ("encode", encode, &[]),
    ("text", text, &[]),
    ("subtitles", subtitles, &[]),
];

/// Feeds the target of a name.
pub fn run(name: &str, data: &[u8]) {
    if let Some((_, target, _)) = TARGETS.iter().find(|t| t.0 == name) {
        target(data);
    }
}

/// Less than uploads get, so that a run tries many.
fn limits() -> DecodeLimits {
    DecodeLimits { max_seconds: 30, max_pcm_bytes: 16 << 20, ..DecodeLimits::default() }
}

/// Panics of others' decoders that are known, by file and what is asserted there; they are caught, and an error to the caller.
const KNOWN_FAULTS: [(&str, &str); 1] = [
    // symphonia-format-ogg 0.6.1: a power of a codebook's dimensions overflows in `lookup1_values`.
    ("mappings/vorbis.rs", "u32::from(dimensions)"),
];

thread_local! {
    /// Where and why this thread last panicked.
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Has panics noted before they are told.
fn note_panics() {
    static NOTING: Once = Once::new();
    NOTING.call_once(|| {
        let tell = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            LAST_PANIC.with_borrow_mut(|last| *last = panic.to_string());
            tell(panic);
        }));
    });
}

/// Any container, as an upload without a name. A panic of a decoder is caught there, and found here unless it is known.
pub fn audio(data: &[u8]) {
    note_panics();
    match decode_bytes(data, None, &limits()) {
        Ok(audio) => assert!(audio.seconds() <= 30.0 + 1e-3),
        Err(AudioError::DecoderFault) => {
            let last = LAST_PANIC.with_borrow(String::clone);
            let is_known = KNOWN_FAULTS.iter().any(|(file, what)| last.contains(file) && last.contains(what));
            assert!(is_known, "a decoder panicked: {last}");
        }
        Err(_) => {}
    }
}

/// Ogg Opus, with checksums that hold, so that what is broken is looked at.
pub fn ogg_opus(data: &[u8]) {
    let mut data = data.to_vec();
    mend_pages(&mut data);
    audio(&data);
}

/// New checksums for the Ogg pages at the start of a file.
fn mend_pages(file: &mut [u8]) {
    let mut at = 0;
    while file.get(at..at + 27).is_some_and(|head| head.starts_with(b"OggS")) {
        let lacing = file.get(at + 27..at + 27 + usize::from(file[at + 26])).unwrap_or_default();
        let end = at + 27 + lacing.len() + lacing.iter().map(|&n| usize::from(n)).sum::<usize>();
        let Some(page) = file.get_mut(at..end) else { return };
        page[22..26].fill(0);
        let crc = page.iter().fold(0u32, |crc, &byte| {
            (0..8).fold(crc ^ u32::from(byte) << 24, |crc, _| {
                if crc & 0x8000_0000 != 0 { crc << 1 ^ 0x04c1_1db7 } else { crc << 1 }
            })
        });
        page[22..26].copy_from_slice(&crc.to_le_bytes());
        at = end;
    }
}

/// WAV.
pub fn wav(data: &[u8]) {
    let _ = decode_bytes(data, Some("wav"), &limits());
}

/// A container that comes as a stream, to the recogniser's rate.
pub fn audio_stream(data: &[u8]) {
    let source = Source::reader(Cursor::new(data.to_vec()));
    let Ok(decoder) = Decoder::open(source, Some("ogg"), &limits()) else { return };
    let mut stream = MonoStream::new(decoder, 16_000);
    while let Ok(Some(block)) = stream.next_block() {
        assert!(block.iter().all(|s| s.is_finite()));
    }
}

/// Gives `read` a file with these bytes.
fn with_file(data: &[u8], read: impl FnOnce(&Path)) {
    let Ok(mut file) = tempfile::NamedTempFile::new() else { return };
    if file.write_all(data).is_ok() {
        read(file.path());
    }
}

/// Weights; every tensor is read.
pub fn safetensors(data: &[u8]) {
    with_file(data, |path| {
        let Ok(file) = SafetensorsFile::open(path) else { return };
        let tensors: Vec<(String, Vec<usize>)> =
            file.tensors().map(|(n, s)| (n.to_owned(), s.to_vec())).collect();
        for (name, shape) in tensors {
            let _ = file.get(&name, &shape);
            let _ = file.integers(&name);
        }
    });
}

/// GGUF, its table and the values that it names.
pub fn gguf(data: &[u8]) {
    with_file(data, |path| {
        let Ok(file) = GgufFile::open(path) else { return };
        let tensors: Vec<(String, Vec<usize>)> =
            file.tensors().map(|(n, s)| (n.to_owned(), s.to_vec())).collect();
        for (name, shape) in tensors {
            let _ = file.get(&name, &shape);
        }
    });
}

/// PyTorch's own files, which no code of theirs may run.
pub fn torch(data: &[u8]) {
    with_file(data, |path| {
        let Ok(file) = TorchFile::open(path) else { return };
        let tensors: Vec<(String, Vec<usize>)> =
            file.tensors().map(|(n, s)| (n.to_owned(), s.to_vec())).collect();
        for (name, shape) in tensors {
            let _ = file.get(&name, &shape);
        }
    });
}

/// `.nemo` archives.
pub fn tar(data: &[u8]) {
    with_file(data, |path| {
        let Ok(file) = TarFile::open(path) else { return };
        let names: Vec<String> = file.names().map(str::to_owned).collect();
        for name in names {
            let _ = file.member(&name).map(|span| span.bytes(1 << 20));
        }
    });
}

/// Formats of the matrices that [`packed`] asks for.
const PACKED: [Format; 3] = [Format::F32, Format::Int8, Format::Int4];

/// Packed weights that were kept: whatever the file says, the weights are those that were packed.
pub fn packed(data: &[u8]) {
    static EXPECTED: OnceLock<Vec<Vec<f32>>> = OnceLock::new();
    let load = |path: &Path| {
        let cache = Arc::new(PackedCache::new(path.to_owned(), "fuzz".into()));
        let loader = Loader::new(Arc::new(RandomWeights::new(1, |_| false))).with_cache(cache);
        let load = |format: Format| Linear::load(&loader.sub(format.name()), 16, 64, format);
        PACKED.map(|format| load(format).expect("random weights fit").matrix().unpack()).to_vec()
    };
    let expected = EXPECTED.get_or_init(|| load(Path::new("/nowhere/at/all")));
    with_file(data, |path| assert!(load(path) == *expected, "a wrong weight"));
}

/// The configuration of a model's folder: what it is taken for, and what it says.
pub fn model_config(data: &[u8]) {
    let Ok(folder) = tempfile::tempdir() else { return };
    let home = folder.path().to_owned();
    let Ok(settings) = Settings::from_vars(|name| (name == "HOME").then(|| home.clone().into())) else {
        return;
    };
    let name = if data.starts_with(b"{") { "config.json" } else { "config.yaml" };
    let weights = b"\x02\0\0\0\0\0\0\0{}";
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes);
    if write(name, data).is_err() || write("model.safetensors", weights).is_err() {
        return;
    }
    let (store, path) = (Store::new(settings), folder.path().to_string_lossy());
    let known = store.identify(&path);
    if let Err(e) = &known {
        assert!(e.to_string().len() < 1000 + path.len());
    }
    let _ = voce_engine::describe(&store, &path);
}

/// References to models: what is read is written as it was.
pub fn reference(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(once) = Reference::parse(text)
        && let Ok(again) = Reference::parse(&once.to_string())
    {
        assert_eq!(again.to_string(), once.to_string());
    }
}

/// `model_config.yaml` of a `.nemo` archive.
pub fn nemo_yaml(data: &[u8]) {
    let _ = FastConformerConfig::from_nemo_yaml(&String::from_utf8_lossy(data));
}

/// `config.json` of a recogniser, and after bytes of 0 those of its processors.
pub fn hf_json(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut files = text.split('\0');
    let config = files.next().unwrap_or_default();
    let _ = FastConformerConfig::from_hf_json(config, &files.collect::<Vec<_>>());
}

/// `config.yaml` of a voice.
pub fn pocket_yaml(data: &[u8]) {
    let _ = PocketConfig::from_yaml(&String::from_utf8_lossy(data));
}

const TEXTS: [&str; 4] =
    ["Hello there, 27 of you.", "", "\u{1f642}\u{0301}漢字 \u{202e}x", " \n\t<unk> <s> a"];

/// Tokenisers of every format, and what they make of texts.
pub fn tokenizer(data: &[u8]) {
    let Ok(tokenizer) = Tokenizer::from_bytes(data) else { return };
    for text in TEXTS {
        let ids = tokenizer.encode(text);
        let _ = tokenizer.decode(&ids);
    }
    let _ = tokenizer.decode(&[0, 1, u32::MAX]);
}

/// Any text through a published tokeniser, and back.
pub fn encode(data: &[u8]) {
    static TOKENIZERS: OnceLock<Vec<Tokenizer>> = OnceLock::new();
    let tokenizers = TOKENIZERS.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/voce-text/tests/fixtures");
        let names = ["pocket.json", "bpe_merges.json", "unigram_nfkc.model", "bpe_rules.model"];
        names.iter().filter_map(|n| Tokenizer::from_file(root.join(n)).ok()).collect()
    });
    let text = String::from_utf8_lossy(data);
    for tokenizer in tokenizers {
        let ids = tokenizer.encode(&text);
        let mut pieces = tokenizer.detokenizer();
        let mut said: String = ids.iter().map(|id| pieces.push(*id)).collect();
        said.push_str(&pieces.finish());
        assert!(ids.iter().all(|id| (*id as usize) < tokenizer.vocab_size()));
    }
}

/// Text on its way to a voice: bytes, pauses, numbers, sentences.
pub fn text(data: &[u8]) {
    let mut bytes = Utf8Stream::new();
    for part in data.chunks(3) {
        if bytes.push(part).is_err() {
            break;
        }
    }
    let text = String::from_utf8_lossy(data);
    let _ = voce_text::normalize_english(&text);
    let _ = voce_text::parse_pauses(&text);
    let _ = voce_text::prepare(&PromptRules::default(), &text);
    let mut stream = SentenceStream::new();
    let mut said = 0;
    for letter in text.chars().take(2_000) {
        said += stream.push(letter.encode_utf8(&mut [0; 4])).iter().map(String::len).sum::<usize>();
    }
    said += stream.finish().iter().map(String::len).sum::<usize>();
    assert!(said <= 2 * text.len() + 16);
    let marked: String = text.chars().take(2_000).collect();
    let (mut markup, mut plain) = (voce_text::MarkupStream::new(), String::new());
    for letter in marked.chars() {
        plain += &markup.push(letter.encode_utf8(&mut [0; 4]));
        assert!(markup.pending_bytes() <= voce_text::markup::MAX_HOLD + 4);
    }
    plain += &markup.finish();
    assert_eq!(plain, voce_text::strip_markup(&marked), "pieces do not matter");
    let _ = voce_text::strip_markup(&text);
    let _ = voce_text::normalize::read_addresses(&text, voce_text::normalize::Signs::ENGLISH);
}

/// Arbitrary words as subtitles.
pub fn subtitles(data: &[u8]) {
    let words: Vec<Word> = data
        .chunks(24)
        .map(|part| {
            let (times, text) = part.split_at(part.len().min(16));
            let time = |at: usize| {
                let bytes = times.get(at..at + 8).and_then(|b| b.try_into().ok());
                bytes.map_or(0.0, f64::from_le_bytes)
            };
            let text = String::from_utf8_lossy(text).into_owned();
            Word { text, start: time(0), end: time(8), confidence: 0.5 }
        })
        .collect();
    let cues = subtitles::cues(&words);
    let _ = (subtitles::srt(&cues), subtitles::vtt(&cues));
}
