//! The small models of Qwen3-TTS and what the published package computes from them.
#![allow(dead_code, unreachable_pub)] // each test file uses a part

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use voce_models::decoder::{FramePrompt, FrameState};
use voce_models::qwen::{Ask, GenerationConfig, Layout, QwenConfig, Talker, Variant, Voice, Who};
use voce_models::speech::TextMode;
use voce_nn::weights::{SafetensorsFile, ShardedSafetensors};
use voce_nn::{Formats, Loader, Precision, Weights};
use voce_runtime::cuda::Device;
use voce_runtime::{Exec, Isa};
use voce_text::Tokenizer;

/// Every case of the reference.
pub const CASES: [&str; 5] = ["base_1b7", "base_0b6", "custom_0b6", "custom_1b7", "design_1b7"];

pub fn folder(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen").join(case)
}

fn text(case: &str, name: &str) -> String {
    std::fs::read_to_string(folder(case).join(name)).unwrap()
}

/// Where a model runs.
pub struct Place {
    pub exec: Exec,
    pub device: Option<Arc<Device>>,
}

impl Place {
    pub fn cpu() -> Self {
        Self { exec: Exec::new(2).unwrap(), device: None }
    }

    /// The emulated device, or the GPU where `VOCE_TEST_DEVICE` says `cuda`.
    pub fn device() -> Self {
        let gpu = std::env::var("VOCE_TEST_DEVICE").is_ok_and(|d| d == "cuda");
        let device = if gpu { Device::open(0) } else { Device::emulated() }.unwrap();
        Self { exec: Exec::on(&device).unwrap(), device: Some(device) }
    }

    pub fn formats(&self, precision: Precision) -> Formats {
        match self.device {
            Some(_) => Formats::on_device(precision),
            None => Formats::new(precision, Isa::from_env().unwrap()),
        }
    }

    pub fn loader(&self, source: Arc<dyn Weights>) -> Loader {
        let loader = Loader::new(source);
        match &self.device {
            Some(device) => loader.on(device.clone()),
            None => loader,
        }
    }
}

/// One of the reference's models, loaded.
pub struct Model {
    pub case: &'static str,
    pub config: QwenConfig,
    pub generation: GenerationConfig,
    pub tokenizer: Tokenizer,
    pub talker: Talker,
    pub dump: Dump,
}

impl Model {
    pub fn load(place: &mut Place, case: &'static str, precision: Precision) -> Self {
        let config = QwenConfig::from_json(&text(case, "config.json")).unwrap();
        let formats = place.formats(precision);
        let loader = place.loader(weights(case));
        Self {
            case,
            talker: Talker::load(&mut place.exec, &loader, &config, formats).unwrap(),
            generation: GenerationConfig::from_json(&text(case, "generation_config.json")).unwrap(),
            tokenizer: Tokenizer::from_folder(folder(case)).unwrap(),
            dump: Dump::open(case),
            config,
        }
    }

    /// Tokens that begin the message whose text is spoken.
    pub fn role(&self) -> Vec<u32> {
        self.tokenizer.encode("<|im_start|>assistant\n")
    }
}

/// The weights of a case.
pub fn weights(case: &str) -> Arc<dyn Weights> {
    let index = folder(case).join("model.safetensors.index.json");
    match index.is_file() {
        true => Arc::new(ShardedSafetensors::open(&index).unwrap()),
        false => Arc::new(SafetensorsFile::open(&folder(case).join("model.safetensors")).unwrap()),
    }
}

/// A run of the reference.
#[derive(Clone, Debug)]
pub struct Run {
    pub name: String,
    pub text: String,
    pub language: Option<String>,
    pub speaker: Option<String>,
    pub instruct: Option<String>,
    pub mode: TextMode,
    pub ref_text: Option<String>,
    pub cloned: bool,
    pub frames: usize,
    pub ended: bool,
    pub margin: f64,
}

/// `dump.json` and `dump.safetensors`.
pub struct Dump {
    file: SafetensorsFile,
    header: BTreeMap<String, Value>,
    bytes: Vec<u8>,
    pub notes: Value,
}

impl Dump {
    pub fn open(case: &str) -> Self {
        Self::of(&folder(case).join("dump.safetensors"), &folder(case).join("dump.json"))
    }

    pub fn of(path: &Path, notes: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let size = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        Self {
            file: SafetensorsFile::open(path).unwrap(),
            header: serde_json::from_slice(&bytes[8..8 + size]).unwrap(),
            bytes: bytes[8 + size..].to_vec(),
            notes: serde_json::from_str(&std::fs::read_to_string(notes).unwrap()).unwrap(),
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.header.contains_key(name)
    }

    pub fn floats(&self, name: &str) -> Vec<f32> {
        self.file.get(name, &[]).unwrap().unwrap_or_else(|| panic!("no '{name}'")).values
    }

    /// Integers of 32 bits.
    pub fn ids(&self, name: &str) -> Vec<u32> {
        let at = &self.header.get(name).unwrap_or_else(|| panic!("no '{name}'"));
        assert_eq!(at["dtype"], "I32", "{name}");
        let range: Vec<usize> = serde_json::from_value(at["data_offsets"].clone()).unwrap();
        let words = self.bytes[range[0]..range[1]].chunks_exact(4);
        words.map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
    }

    /// Codes `[groups, frames]` as frames.
    pub fn frames(&self, name: &str, groups: usize) -> Vec<Vec<u32>> {
        let codes = self.ids(name);
        let frames = codes.len() / groups;
        (0..frames).map(|f| (0..groups).map(|g| codes[g * frames + f]).collect()).collect()
    }

    pub fn runs(&self) -> Vec<Run> {
        let runs = self.notes["runs"].as_object().unwrap();
        let run = |(name, r): (&String, &Value)| {
            let text = |key: &str| r[key].as_str().map(str::to_owned);
            let margin = |key: &str| r["margins"][key].as_f64().unwrap();
            Run {
                name: name.clone(),
                text: text("text").unwrap(),
                language: text("language"),
                speaker: text("speaker"),
                instruct: text("instruct"),
                mode: match r["non_streaming_mode"].as_bool() {
                    Some(true) => TextMode::Whole,
                    _ => TextMode::Streaming,
                },
                ref_text: text("ref_text"),
                cloned: r.get("clone").is_some(),
                frames: r["frames"].as_u64().unwrap() as usize,
                ended: r["ended"].as_bool().unwrap(),
                margin: margin("code0").min(margin("others")),
            }
        };
        runs.iter().map(run).collect()
    }
}

impl Model {
    /// The voice of a run, from the package's own embedding and codes.
    pub fn voice(&self, run: &Run) -> Option<Voice> {
        if let Some(name) = &run.speaker {
            return Some(Voice::speaker(&self.config, name).unwrap());
        }
        if !run.cloned {
            return None;
        }
        let groups = self.config.talker_config.num_code_groups;
        let clip = run
            .ref_text
            .as_ref()
            .map(|text| (self.tokenizer.encode(text), self.dump.frames("enc/codes", groups).concat()));
        Some(Voice::cloned(&self.config, self.dump.floats("speaker/embedding"), clip).unwrap())
    }
}

/// The prompt of a run.
pub fn layout(model: &Model, run: &Run, voice: Option<&Voice>) -> Layout {
    let config = &model.config;
    let language = run.language.as_ref().map(|l| l.to_lowercase()).filter(|l| l != "auto");
    let language = match voice {
        Some(voice) => voice.language(config, language.as_deref()),
        None => language.map(|name| config.talker_config.codec_language_id[&name]),
    };
    let instruct = run.instruct.as_ref().filter(|text| !text.is_empty() && config.takes_instructions());
    let message = |text: &String| model.tokenizer.encode(&format!("<|im_start|>user\n{text}<|im_end|>\n"));
    let (tokens, instruct) = (model.tokenizer.encode(&run.text), instruct.map_or_else(Vec::new, message));
    let ids = model.dump.ids(&format!("{}/input_ids", run.name));
    assert_eq!(tokens, ids[3..ids.len() - 5], "text of {}", run.name);
    assert_eq!(model.role(), ids[..3], "role of {}", run.name);
    if model.dump.has(&format!("{}/instruct_ids", run.name)) {
        assert_eq!(instruct, model.dump.ids(&format!("{}/instruct_ids", run.name)));
    } else {
        assert!(instruct.is_empty(), "{}", run.name);
    }
    if let Some(text) = &run.ref_text {
        let ids = model.dump.ids(&format!("{}/ref_ids", run.name));
        assert_eq!(model.tokenizer.encode(text), ids[3..ids.len() - 2]);
    }
    let ask = Ask {
        text: &tokens,
        open: false,
        instruct: &instruct,
        role: &model.role(),
        language,
        who: voice.map_or(Who::Nobody, Voice::who),
        mode: run.mode,
    };
    ask.layout(config)
}

/// Gives a slot the prompt of a run.
pub fn begin(place: &mut Place, model: &Model, state: &mut FrameState, run: &Run, slot: usize) -> Layout {
    let voice = model.voice(run);
    let layout = layout(model, run, voice.as_ref());
    let vector = layout.speaker.zip(voice.as_ref().and_then(Voice::embedding));
    let prompt = FramePrompt { slot, rows: &layout.rows, vector };
    model.talker.frames().begin(&mut place.exec, state, &[prompt]);
    layout
}

/// Whether a variant has speakers of its own.
pub fn has_speakers(config: &QwenConfig) -> bool {
    config.variant() == Variant::CustomVoice
}

/// Nobody.
pub const NOBODY: Who<'static> = Who::Nobody;
