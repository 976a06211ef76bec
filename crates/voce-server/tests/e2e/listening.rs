//! `POST /v1/audio/transcriptions`: formats, streams, and files that are none.

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::Value;
use voce_audio::wav::{WavSample, put_s16le, wav_header};

use crate::counter::Counter;
use crate::server::{Part, Reply, Running, Setup};

/// Loud and quiet halves of a second at a rate: `#` is loud.
pub(crate) fn audio(pattern: &str, rate: usize) -> Vec<f32> {
    let half =
        |c: char| (0..rate / 2).map(move |i| if c == '#' { (i as f32 * 0.3).sin() * 0.4 } else { 0.0 });
    pattern.chars().flat_map(half).collect()
}

pub(crate) fn wav(pattern: &str, rate: usize) -> Vec<u8> {
    let samples = audio(pattern, rate);
    let mut bytes = wav_header(rate as u32, WavSample::S16, Some(samples.len() as u32));
    put_s16le(&samples, &mut bytes);
    bytes
}

pub(crate) async fn start() -> Running {
    Setup { speak: false, hear: Some(Arc::new(Counter::default())), ..Default::default() }.start().await
}

async fn transcribe(server: &Running, file: &[u8], fields: &[(&str, &str)]) -> Reply {
    let mut form = vec![("model", Part::Text("whisper-1")), ("file", Part::File("talk.wav", file))];
    form.extend(fields.iter().map(|(name, value)| (*name, Part::Text(value))));
    server.form("/v1/audio/transcriptions", &form).await
}

#[tokio::test]
async fn every_format() {
    let server = start().await;
    let file = wav("##.#", 16_000);
    let json = transcribe(&server, &file, &[]).await;
    assert_eq!(
        (json.status, json.json()["text"].as_str()),
        (StatusCode::OK, Some("w1 w2 w3")),
        "{}",
        json.text()
    );
    assert_eq!(json.json()["usage"]["seconds"], 2);
    assert_eq!(transcribe(&server, &file, &[("response_format", "text")]).await.text(), "w1 w2 w3\n");
    let srt = transcribe(&server, &file, &[("response_format", "srt")]).await;
    assert!(srt.text().starts_with("1\n00:00:00,000 --> 00:00:02,000\nw1 w2 w3\n"), "{}", srt.text());
    let vtt = transcribe(&server, &file, &[("response_format", "vtt")]).await;
    assert!(vtt.text().starts_with("WEBVTT\n\n00:00:00.000 --> "), "{}", vtt.text());
    let verbose =
        transcribe(&server, &file, &[("response_format", "verbose_json"), ("language", "en")]).await.json();
    assert_eq!((verbose["duration"].as_f64(), verbose["language"].as_str()), (Some(2.0), Some("en")));
    assert_eq!(verbose["segments"][0]["text"], "w1 w2 w3");
    assert!(verbose.get("words").is_none());
    let fields = [("response_format", "verbose_json"), ("timestamp_granularities[]", "word")];
    let words = transcribe(&server, &file, &fields).await.json();
    assert!(words.get("segments").is_none());
    assert_eq!(words["words"][2], serde_json::json!({"word": "w3", "start": 1.5, "end": 2.0}));
}

#[tokio::test]
async fn other_rates_and_channels_are_heard_alike() {
    let server = start().await;
    for rate in [8_000, 24_000, 48_000] {
        let reply = transcribe(&server, &wav("##", rate), &[]).await;
        assert_eq!(reply.json()["text"], "w1 w2", "{rate}");
    }
}

#[tokio::test]
async fn events_come_word_by_word() {
    let server = start().await;
    let reply = transcribe(&server, &wav("#.##", 16_000), &[("stream", "true")]).await;
    assert_eq!(reply.header("content-type"), "text/event-stream");
    let events: Vec<Value> = reply
        .text()
        .split("\n\n")
        .filter(|e| !e.is_empty())
        .map(|e| serde_json::from_str(e.strip_prefix("data: ").unwrap()).unwrap())
        .collect();
    let deltas: Vec<&str> = events.iter().filter_map(|e| e["delta"].as_str()).collect();
    assert_eq!(deltas, ["w1", " w2", " w3"]);
    let last = events.last().unwrap();
    assert_eq!(
        (last["type"].as_str(), last["text"].as_str()),
        (Some("transcript.text.done"), Some("w1 w2 w3"))
    );
}

#[tokio::test]
async fn keywords_reach_the_recogniser() {
    let server = start().await;
    let fields = [("keywords[]", "Voce"), ("keywords[]", "Kyutai")];
    assert_eq!(transcribe(&server, &wav("#", 16_000), &fields).await.json()["text"], "Voce");
    let many: Vec<(&str, &str)> = (0..257).map(|_| ("keywords[]", "x")).collect();
    assert_eq!(transcribe(&server, &wav("#", 16_000), &many).await.error(), "bad_request");
    assert_eq!(transcribe(&server, &wav("#", 16_000), &many[1..]).await.status, StatusCode::OK);
}

#[tokio::test]
async fn silence_and_nothing_give_no_text() {
    let server = start().await;
    for file in [wav("....", 16_000), wav("", 16_000)] {
        let reply = transcribe(&server, &file, &[]).await;
        assert_eq!(
            (reply.status, reply.json()["text"].as_str()),
            (StatusCode::OK, Some("")),
            "{}",
            reply.text()
        );
    }
    let one = {
        let mut bytes = wav_header(16_000, WavSample::F32, Some(2));
        bytes.extend(f32::NAN.to_le_bytes());
        bytes.extend(f32::INFINITY.to_le_bytes());
        bytes
    };
    assert_eq!(transcribe(&server, &one, &[]).await.json()["text"], "");
    // The next one does not hear the one before.
    assert_eq!(transcribe(&server, &wav("#", 16_000), &[]).await.json()["text"], "w1");
    assert_eq!(transcribe(&server, &wav(".", 16_000), &[]).await.json()["text"], "");
}

#[tokio::test]
async fn files_that_are_none() {
    let server = start().await;
    // The header of a FLAC file that claims 655,350 Hz and eight channels.
    let mut flac = b"fLaC\x80\x00\x00\x22".to_vec();
    flac.extend([0x10, 0, 0x10, 0, 0, 0, 0, 0, 0, 0]);
    flac.extend([0x9f, 0xff, 0x6f, 0xf0, 0xff, 0xff, 0xff, 0xff]);
    flac.extend([0; 16]);
    let id3 = b"ID3\x04\x00\x00\x00\x00\x00\x17TIT2\x00\x00\x00\x0d\x00\x00\x03aaaaaaaaaa".to_vec();
    let hour = {
        // A header that promises an hour, and one sample.
        let mut bytes = wav_header(16_000, WavSample::S16, Some(16_000 * 3_600));
        bytes.extend([0, 0]);
        bytes
    };
    for (file, status) in [
        (Vec::new(), 400),
        (b"not audio".to_vec(), 400),
        (b"RIFF".to_vec(), 400),
        (b"OggS".to_vec(), 400),
        (flac, 400),
        (id3, 400),
        (vec![0xff; 4096], 400),
        (hour, 200),
        (wav_header(0, WavSample::S16, Some(1)), 400),
        (wav_header(192_001, WavSample::S16, Some(1)), 400),
    ] {
        let reply = transcribe(&server, &file, &[]).await;
        assert_eq!(reply.status.as_u16(), status, "{:?}: {}", &file[..file.len().min(16)], reply.text());
    }
    assert_eq!(transcribe(&server, &wav("#", 16_000), &[]).await.json()["text"], "w1");
    server.until("voce_streams_active{kind=\"recognition\"}", 0.0).await;
}

#[tokio::test]
async fn a_bomb_is_stopped_by_its_samples() {
    let server = start().await;
    // 601 s of silence in FLAC is small; the limit is 600.
    let seconds = |n: usize| {
        let mut bytes = Vec::new();
        let pipe = voce_audio::output::Pipe::new(&mut bytes);
        let mut sink = voce_audio::encode::FlacWriter::new(pipe, 8_000).unwrap();
        use voce_audio::AudioSink as _;
        sink.write(&vec![0.0; n * 8_000]).unwrap();
        sink.finish().unwrap();
        drop(sink);
        bytes
    };
    let bomb = seconds(601);
    assert!(bomb.len() < 200_000, "{}", bomb.len());
    assert_eq!(transcribe(&server, &bomb, &[]).await.error(), "too_long");
    assert_eq!(transcribe(&server, &seconds(600), &[]).await.status, StatusCode::OK);
}

#[tokio::test]
async fn fields_that_are_none() {
    let server = start().await;
    let file = wav("#", 16_000);
    for (name, value) in
        [("response_format", "diarized_json"), ("timestamp_granularities[]", "letter"), ("stream", "perhaps")]
    {
        assert_eq!(transcribe(&server, &file, &[(name, value)]).await.error(), "bad_request", "{name}");
    }
    let reply = server.form("/v1/audio/transcriptions", &[("model", Part::Text("whisper-1"))]).await;
    assert!(reply.text().contains("no field 'file'"));
    let form = [("model", Part::Text("other")), ("file", Part::File("a.wav", &file))];
    assert_eq!(server.form("/v1/audio/transcriptions", &form).await.error(), "model_not_found");
}

#[tokio::test]
async fn without_a_recogniser() {
    let server = Setup { speak: false, ..Default::default() }.start().await;
    let reply = transcribe(&server, &wav("#", 16_000), &[]).await;
    assert_eq!((reply.status, reply.error().as_str()), (StatusCode::SERVICE_UNAVAILABLE, "no_model"));
    for path in
        ["/v1/realtime?intent=transcription", "/api/asr-streaming", "/v1/listen", "/v2/decode/stream/x"]
    {
        let upgrade = server
            .request("GET", path)
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
        let reply = server.send(upgrade.body(crate::server::Body::default()).unwrap()).await;
        assert_eq!(reply.error(), "no_model", "{path}");
    }
}
