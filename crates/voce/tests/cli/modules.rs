//! A moshi-server configuration with small models: every module answers at its path, as its files say.

use std::net::TcpStream;
use std::path::Path;

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{Message, client, client::IntoClientRequest as _};
use voce_nn::Weights as _;
use voce_nn::weights::SafetensorsFile;

use crate::patience::connect;
use crate::sandbox::{Sandbox, arg};
use crate::serve::{ask, ask_bytes, start};
use crate::talk::kyutai;

/// What is spoken.
const TEXT: &str = "hello there, this is a tiny test";

/// A transformer's table.
fn transformer(config: &Value, context: usize) -> String {
    let of = |key: &str| config[key].clone();
    format!(
        "{{ d_model = {}, num_heads = {}, num_layers = {}, dim_feedforward = {}, causal = true, norm_first = true, \
         bias_ff = false, bias_attn = false, context = {context}, max_period = {}, use_conv_block = false, \
         use_conv_bias = true, gating = \"silu\", norm = \"RmsNorm\", positional_embedding = \"Rope\", conv_layout = false, \
         conv_kernel_size = 3, kv_repeat = 1, max_seq_len = 4096 }}",
        of("dim"),
        of("num_heads"),
        of("num_layers"),
        4 * config["dim"].as_u64().unwrap(),
        config["max_period"].as_f64().unwrap(),
    )
}

fn config(folder: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder.join("config.json")).unwrap()).unwrap()
}

/// A configuration over the small models.
fn write(sandbox: &Sandbox) -> std::path::PathBuf {
    let (stt, talk) = (kyutai("stt_heads"), kyutai("talk"));
    let (s, t) = (config(&stt), config(&talk));
    let context = |c: &Value| c["context"].as_u64().unwrap() as usize;
    let (stt_path, talk_path) = (stt.display(), talk.display());
    let depformer = format!(
        "{{ num_slices = {}, transformer = {} }}",
        t["dep_q"],
        transformer(&t, 8)
            .replace(&format!("d_model = {}", t["dim"]), &format!("d_model = {}", t["depformer_dim"]))
            .replace(&format!("dim_feedforward = {}", 4 * t["dim"].as_u64().unwrap()), "dim_feedforward = 64")
            .replace("\"Rope\"", "\"None\"")
    );
    let text = format!(
        r#"
static_dir = "{static_dir}"
log_dir = "{logs}"
instance_name = "test"
authorized_ids = ["public_token"]

[modules.asr]
type = "BatchedAsr"
path = "/api/my-asr"
batch_size = 3
lm_model_file = "{stt_path}/model.safetensors"
text_tokenizer_file = "{stt_path}/tokenizer_small_48.model"
audio_tokenizer_file = "{stt_path}/mimi-small@1.safetensors"
asr_delay_in_tokens = 6
dtype_override = "f32"
log_frequency_s = 1.0
model = {{ audio_vocab_size = {card}, text_in_vocab_size = 49, text_out_vocab_size = 48, audio_codebooks = 8, extra_heads = {{ num_heads = 4, dim = 6 }}, transformer = {stt_transformer} }}

[modules.lm]
type = "Lm"
path = "/api/lm"
lm_model_file = "{talk_path}/model.safetensors"
text_tokenizer_file = "{talk_path}/tokenizer.model"
audio_tokenizer_file = "{talk_path}/mimi.safetensors"
dtype_override = "f32"
gen = {{ generated_audio_codebooks = 3, input_audio_codebooks = 3, audio_vocab_size = {card}, acoustic_delay = 1, text_pad_token = 3, text_eop_token = 0, text_start_token = 80 }}
model = {{ audio_vocab_size = {card}, text_in_vocab_size = 81, text_out_vocab_size = 80, audio_codebooks = 6, transformer = {talk_transformer}, depformer = {depformer} }}

[modules.mimi]
type = "Mimi"
send_path = "/api/send"
recv_path = "/api/listen"
audio_tokenizer_file = "{talk_path}/mimi.safetensors"
auth_recv = false
rooms = ["one"]
default_room = "one"
"#,
        static_dir = sandbox.out("static").display(),
        logs = sandbox.out("logs").display(),
        card = s["card"].as_u64().unwrap() + 1,
        stt_transformer = transformer(&s, context(&s)),
        talk_transformer = transformer(&t, context(&t)),
    );
    std::fs::create_dir(sandbox.out("static")).unwrap();
    std::fs::write(sandbox.out("static").join("index.html"), "the web client").unwrap();
    let path = sandbox.out("config.toml");
    std::fs::write(&path, text).unwrap();
    path
}

const KEY: &str = "kyutai-api-key: public_token\r\n";

#[test]
fn every_module_answers_at_its_path() {
    let sandbox = Sandbox::new();
    let path = write(&sandbox);
    let server = start(&sandbox, &["--config", arg(&path), "--addr", "127.0.0.1", "--cpu"]);
    // What the published package heard in a file is heard here, at the same times.
    let wav = std::fs::read(kyutai("stt_heads").join("audio.wav")).unwrap();
    assert_eq!(ask_bytes(&server.addr, "POST", "/api/my-asr", "", &wav).0, 401);
    let (status, body) = ask_bytes(&server.addr, "POST", "/api/my-asr", KEY, &wav);
    let got: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(status, 200, "{got}");
    let expected = std::fs::read_to_string(kyutai("stt_heads").join("messages.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    // The tokens of a small model make several words where the package tells one; the ends that it tells are there.
    let ends = |messages: &Value| -> Vec<f64> {
        let ends = messages.as_array().unwrap().iter().filter(|m| m["type"] == "EndWord");
        ends.map(|m| m["stop_time"].as_f64().unwrap()).collect()
    };
    let (got, expected) = (ends(&got), ends(&expected["messages"]));
    assert!(!expected.is_empty());
    for end in expected {
        assert!(got.iter().any(|at| (at - end).abs() < 1e-5), "{end}: {got:?}");
    }
    // What there is, in moshi-server's words.
    let (_, body) = ask(&server.addr, "GET", "/api/modules_info", KEY, "");
    let modules: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(modules.as_array().unwrap().len(), 1, "{modules}");
    assert_eq!((&modules[0]["type"], &modules[0]["path"]), (&json!("batched_asr"), &json!("/api/my-asr")));
    assert_eq!((&modules[0]["total_slots"], &modules[0]["used_slots"]), (&json!("3"), &json!("0")));
    // The configuration's own page, without a key; and nothing beside it.
    let (status, page) = ask(&server.addr, "GET", "/", "", "");
    assert_eq!((status, &page[..]), (200, &b"the web client"[..]));
    assert_eq!(ask(&server.addr, "GET", "/../config.toml", "", "").0, 404);
    // Tokens are kept where the configuration says so.
    assert!(sandbox.out("logs").is_dir());
}

#[test]
fn what_ran_python_runs_without_it() {
    let sandbox = Sandbox::new();
    let (say, stt) = (kyutai("say"), kyutai("stt_heads"));
    let (say, stt) = (say.display(), stt.display());
    let text = format!(
        r#"
static_dir = "$NOWHERE/static"
log_dir = "/tmp"
instance_name = "test"
authorized_ids = ["public_token"]

[modules.tts_py]
type = "Py"
path = "/api/tts_streaming"
batch_size = 2
text_tokenizer_file = "{say}/tokenizer.model"
text_bos_token = 1

[modules.tts_py.py]
moshi_weight = "{say}/model.safetensors"
mimi_weight = "{say}/mimi.safetensors"
config_path = "{say}/config.json"
voice_folder = "{say}/voices"
default_voice = "ben.wav"
temp = 0.0
n_q = 24

[modules.asr_py]
type = "PyBatchedAsr"
path = "/api/asr"
batch_size = 2
text_tokenizer_file = "{stt}/tokenizer_small_48.model"
asr_delay_in_tokens = 6
py = {{ moshi_weight = "{stt}/model.safetensors", mimi_weight = "{stt}/mimi-small@1.safetensors", config_path = "{stt}/config.json" }}
"#
    );
    let path = sandbox.out("py.toml");
    std::fs::write(&path, text).unwrap();
    let server = start(&sandbox, &["--config", arg(&path), "--addr", "127.0.0.1", "--cpu"]);
    let say = |voice: &str| {
        let body = json!({"text": TEXT, "voice": voice, "seed": 1}).to_string();
        let head = format!("{KEY}Content-Type: application/json\r\n");
        let (status, wav) = ask(&server.addr, "POST", "/api/tts_streaming", &head, &body);
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&wav));
        assert!(wav.windows(4).any(|w| w == b"RIFF"));
        wav
    };
    let (ben, anna) = (say("ben.wav"), say("anna.wav"));
    assert_ne!(ben, anna);
    assert_eq!(say("somebody/else.wav"), ben, "a voice that is not there is the default one");
    // A file's voice stands in the places of two speakers, as moshi-server's script has it; one that is sent stands once.
    let alone = spoken(&sandbox, "anna.wav");
    let twice = spoken(&sandbox, "anna.wav+anna.wav");
    assert!(!is_same(&alone, &twice));
    assert!(is_same(&heard(&server.addr, "anna.wav", None), &twice));
    let file = SafetensorsFile::open(&kyutai("say").join("voices/anna.wav.abcd@7.safetensors")).unwrap();
    let rows = file.get("speaker_wavs", &[]).unwrap().unwrap();
    assert!(is_same(&heard(&server.addr, "ben.wav", Some(voice(&rows.values, &rows.shape))), &alone));
    let wav = std::fs::read(kyutai("stt_heads").join("audio.wav")).unwrap();
    let (status, body) = ask_bytes(&server.addr, "POST", "/api/asr", KEY, &wav);
    let words: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(status, 200, "{words}");
    assert!(words.as_array().unwrap().iter().any(|m| m["type"] == "Word"), "{words}");
    let (_, body) = ask(&server.addr, "GET", "/api/modules_info", KEY, "");
    let modules: Value = serde_json::from_slice(&body).unwrap();
    let kinds: Vec<&str> = modules.as_array().unwrap().iter().map(|m| m["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["py_batched_asr", "py"], "{modules}");
}

/// A socket of a server.
pub(crate) fn socket(addr: &str, path: &str) -> tokio_tungstenite::tungstenite::WebSocket<TcpStream> {
    let request = format!("ws://{addr}{path}").into_client_request().unwrap();
    client(request, connect(addr).unwrap()).unwrap().0
}

fn binary(socket: &mut tokio_tungstenite::tungstenite::WebSocket<TcpStream>) -> Vec<u8> {
    loop {
        match socket.read().unwrap() {
            Message::Binary(bytes) => return bytes.to_vec(),
            Message::Ping(_) | Message::Pong(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// What the command line makes of the text, with the settings of the module.
fn spoken(sandbox: &Sandbox, voice: &str) -> Vec<f32> {
    let (model, out) = (kyutai("say"), sandbox.out("spoken.wav"));
    let settings = ["--temperature", "0", "--cfg", "2.0", "--seed", "1", "--format", "wav-f32"];
    let run = ["say", "-q", "--model", arg(&model), "--voice", voice, "-o", arg(&out), TEXT];
    let output = sandbox.run(&[&run[..], &settings].concat());
    assert!(output.status.success(), "{output:?}");
    voce_audio::decode_file(&out, &voce_audio::DecodeLimits::default()).unwrap().samples
}

/// What the module says over a socket, with a voice that is sent where there is one.
fn heard(addr: &str, voice: &str, sent: Option<Vec<u8>>) -> Vec<f32> {
    let path = format!("/api/tts_streaming?auth_id=public_token&format=Pcm&seed=1&voice={voice}");
    let mut socket = socket(addr, &path);
    if let Some(message) = sent {
        socket.send(Message::binary(message)).unwrap();
    }
    socket.send(Message::text(TEXT)).unwrap();
    socket.send(Message::binary(vec![0])).unwrap();
    let mut samples = Vec::new();
    loop {
        match socket.read().unwrap() {
            Message::Binary(bytes) => {
                samples.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())));
            }
            Message::Close(frame) => {
                assert_eq!(frame.map(|f| u16::from(f.code)), Some(1000));
                return samples;
            }
            _ => {}
        }
    }
}

/// Whether two are the same speech, but for the silence that fills the last message.
fn is_same(a: &[f32], b: &[f32]) -> bool {
    let frames = |samples: &[f32]| samples.len().div_ceil(1920);
    frames(a) == frames(b) && a.iter().zip(b).all(|(x, y)| (x - y).abs() < 1e-5)
}

/// A voice as clients send it: a map of `type`, `embeddings` and `shape`, in MessagePack.
fn voice(values: &[f32], shape: &[usize]) -> Vec<u8> {
    let text = |text: &str| [&[0xa0 | text.len() as u8], text.as_bytes()].concat();
    let mut out = vec![0x83];
    out.extend([text("type"), text("Voice"), text("embeddings"), vec![0xdc]].concat());
    out.extend((values.len() as u16).to_be_bytes());
    out.extend(values.iter().flat_map(|v| [&[0xca][..], &v.to_be_bytes()].concat()));
    out.extend(text("shape"));
    out.push(0x90 | shape.len() as u8);
    out.extend(shape.iter().map(|&n| n as u8));
    out
}

#[test]
fn a_dialogue_and_a_room_are_heard() {
    let sandbox = Sandbox::new();
    let path = write(&sandbox);
    let server = start(&sandbox, &["--config", arg(&path), "--addr", "127.0.0.1", "--cpu"]);
    // A dialogue needs no key, as there.
    let mut talk = socket(&server.addr, "/api/lm");
    assert_eq!(binary(&mut talk), [0; 9]);
    assert!(binary(&mut talk).starts_with(b"\x01OggS"));
    let said: Vec<f32> = (0..24_000 * 4).map(|i| (i as f32 * 0.03).sin() * 0.3).collect();
    let mut opus = Vec::new();
    let pipe = voce_audio::output::Pipe::new(&mut opus);
    let mut writer = voce_audio::encode::OpusWriter::new(pipe, 24_000, Default::default()).unwrap();
    voce_audio::AudioSink::write(&mut writer, &said).unwrap();
    voce_audio::AudioSink::finish(&mut writer).unwrap();
    drop(writer);
    for part in opus.chunks(1000) {
        talk.send(Message::binary([&[1], part].concat())).unwrap();
    }
    let (mut audio, mut text) = (0, 0);
    while audio < 20 {
        match binary(&mut talk)[0] {
            1 => audio += 1,
            2 => text += 1,
            other => panic!("{other}"),
        }
    }
    assert!(text <= 4 * 13, "{text}");
    // Codes of one are sound for all.
    let mut ear = socket(&server.addr, "/api/listen");
    assert_eq!(binary(&mut ear), [0; 9]);
    let head = binary(&mut ear);
    assert!(head.starts_with(b"\x01OggS"));
    let mut producer = socket(&server.addr, "/api/send?auth_id=public_token");
    for i in 0..6u32 {
        let codes = (0..8).flat_map(|k| ((i + k) % 24).to_le_bytes());
        producer.send(Message::binary(std::iter::once(9).chain(codes).collect::<Vec<u8>>())).unwrap();
    }
    loop {
        match binary(&mut ear)[0] {
            1 => break,
            6 => {}
            other => panic!("{other}"),
        }
    }
}

#[test]
fn worker_and_validate_are_moshi_servers() {
    let sandbox = Sandbox::new();
    let path = write(&sandbox);
    let output = sandbox.run(&["validate", arg(&path)]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("loaded successfully"), "{output:?}");
    let (code, text) = sandbox.fails(&["worker", "--cpu"]);
    assert!(code == 2 && text.contains("--config"), "{text}");
    let (code, text) = sandbox.fails(&["configs", "tts.py"]);
    assert!(code == 2 && text.contains("without Python"), "{text}");
    let text = std::fs::read_to_string(&path).unwrap();
    for (from, to, says) in [
        ("model.safetensors", "nothing.safetensors", "no such file"),
        ("/api/my-asr", "/metrics", "taken"),
        ("/api/listen", "/api/send", "two modules"),
        ("audio_codebooks = 6", "audio_codebooks = 7", "gen has 6 codebooks"),
        ("default_room = \"one\"", "default_room = \"two\"", "not among the rooms"),
    ] {
        let bad = sandbox.out("bad.toml");
        std::fs::write(&bad, text.replacen(from, to, 1)).unwrap();
        let (code, told) =
            sandbox.fails(&["worker", "--config", arg(&bad), "--addr", "127.0.0.1", "--silent", "-q"]);
        assert!(code != 0 && told.contains(says), "{says}: {told}");
    }
}
