//! A moshi-server configuration with small models: every module answers at its path, as its files say.

use std::net::TcpStream;
use std::path::Path;

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::{Message, client, client::IntoClientRequest as _};

use crate::sandbox::{Sandbox, arg};
use crate::serve::{ask, ask_bytes, start};
use crate::talk::kyutai;

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
    // A file has as many words as the published package heard in it.
    let wav = std::fs::read(kyutai("stt_heads").join("audio.wav")).unwrap();
    assert_eq!(ask_bytes(&server.addr, "POST", "/api/my-asr", "", &wav).0, 401);
    let (status, body) = ask_bytes(&server.addr, "POST", "/api/my-asr", KEY, &wav);
    let got: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(status, 200, "{got}");
    let expected = std::fs::read_to_string(kyutai("stt_heads").join("messages.json")).unwrap();
    let expected: Value = serde_json::from_str(&expected).unwrap();
    let words =
        |messages: &Value| messages.as_array().unwrap().iter().filter(|m| m["type"] == "Word").count();
    assert_eq!(words(&got), words(&expected["messages"]), "{got}");
    assert_eq!(got[0]["start_time"], 0.0);
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

/// A socket of a server.
fn socket(addr: &str, path: &str) -> tokio_tungstenite::tungstenite::WebSocket<TcpStream> {
    let request = format!("ws://{addr}{path}").into_client_request().unwrap();
    client(request, TcpStream::connect(addr).unwrap()).unwrap().0
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
