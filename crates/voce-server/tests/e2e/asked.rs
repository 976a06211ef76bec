//! What clients ask of a recogniser, at every door: it is done, or refused by name before anything is heard.

use std::net::SocketAddr;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use serde_json::{Value, json};
use voce_audio::wav::{WavSample, put_s16le, wav_header};
use voce_engine::listener::{ListenEvent, ListenRequest, Listener, ListenerOptions};
use voce_server::ears::{EarOptions, Hears};
use voce_server::{JobsOptions, JobsPlace, ServerOptions};

use crate::doorways::{self, speech};
use crate::server::{Body, Part, Reply, Running, Setup};
use crate::socket::Socket;

/// Waits for what has to come; no test waits for ever.
async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(Duration::from_secs(120), future).await;
    done.unwrap_or_else(|_| panic!("{what} did not come"))
}

/// A server with the small recogniser.
async fn start() -> Running {
    soon("the server", doorways::start(ServerOptions::default(), 4)).await
}

fn pcm(samples: &[f32]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_s16le(samples, &mut bytes);
    bytes
}

fn wav(samples: &[f32]) -> Vec<u8> {
    let mut bytes = wav_header(16_000, WavSample::S16, Some(samples.len() as u32));
    put_s16le(samples, &mut bytes);
    bytes
}

/// Words of a query as they are written there.
fn escaped(text: &str) -> String {
    text.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'=' | b'&' | b'_' | b'-' | b'.' => {
                char::from(b).to_string()
            }
            b => format!("%{b:02X}"),
        })
        .collect()
}

/// The text that a live connection to Deepgram's door hears.
async fn live(server: &Running, query: &str, samples: &[f32]) -> String {
    let path = format!("/v1/listen?encoding=linear16&sample_rate=16000&endpointing=false&{}", escaped(query));
    let mut socket = soon(query, server.socket(&path)).await;
    for piece in pcm(samples).chunks(4_096) {
        socket.binary(piece.to_vec()).await;
    }
    socket.json(json!({"type": "CloseStream"})).await;
    let mut text = String::new();
    loop {
        let event = soon(query, socket.next_json()).await;
        match event["type"].as_str() {
            Some("Metadata") => return text.trim().to_owned(),
            Some("Results") => {
                text.push_str(event["channel"]["alternatives"][0]["transcript"].as_str().unwrap());
                text.push(' ');
            }
            _ => panic!("{event}"),
        }
    }
}

/// What a door answers that refuses to open a socket.
async fn refused(server: &Running, path: &str) -> (StatusCode, Value) {
    let (at, query) = path.split_once('?').unwrap_or((path, ""));
    let upgrade = server
        .request("GET", &format!("{at}?{}", escaped(query)))
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-version", "13")
        .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    let request = upgrade.body(Body::default()).unwrap();
    let answer = soon(path, server.open(request)).await;
    assert_ne!(answer.status(), StatusCode::SWITCHING_PROTOCOLS, "{path}");
    let (status, body) =
        (answer.status(), soon(path, answer.into_body().collect()).await.unwrap().to_bytes());
    (status, serde_json::from_slice(&body).unwrap_or_default())
}

fn message(value: &Value) -> &str {
    value["error"]["message"].as_str().unwrap_or_default()
}

async fn transcribe(server: &Running, file: &[u8], fields: &[(&str, &str)]) -> Reply {
    let mut form = vec![("file", Part::File("talk.wav", file))];
    form.extend(fields.iter().map(|(name, value)| (*name, Part::Text(value))));
    soon("a transcription", server.form("/v1/audio/transcriptions", &form)).await
}

async fn update(socket: &mut Socket, transcription: Value) -> Value {
    let input = json!({"transcription": transcription, "turn_detection": null});
    let session = json!({"type": "transcription", "audio": {"input": input}});
    socket.json(json!({"type": "session.update", "session": session, "event_id": "mine"})).await;
    soon("an answer to the update", socket.next_json()).await
}

/// Says something and commits it: the text.
async fn committed(socket: &mut Socket, samples: &[f32]) -> String {
    for piece in voce_audio::resample(samples, 16_000, 24_000).chunks(24_000) {
        socket.json(json!({"type": "input_audio_buffer.append", "audio": BASE64.encode(pcm(piece))})).await;
    }
    socket.json(json!({"type": "input_audio_buffer.commit"})).await;
    let completed = socket.until("conversation.item.input_audio_transcription.completed");
    soon("the text", completed).await["transcript"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keyterms_are_respelled_or_refused_before_anything_is_heard() {
    let (server, samples) = (start().await, speech(0, 1));
    let plain = live(&server, "", &samples).await;
    assert!(!plain.is_empty());
    // Another spelling of the same words is the same request.
    let lower = live(&server, "keyterm=brownie beaver&keyterm=cafe", &samples).await;
    assert_eq!(live(&server, "keyterm=Brownie Beaver&keyterm=Café", &samples).await, lower);
    let older = live(&server, "keywords=BROWNIE BEAVER:2&keywords=café:1", &samples).await;
    assert_eq!(older, lower);
    let (status, said) = refused(&server, "/v1/listen?encoding=linear16&keyterm=rain&keyterm=你").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(message(&said).contains("'你'"), "{said}");

    let file = wav(&samples);
    let heard = transcribe(&server, &file, &[("keywords[]", "Rosville"), ("keywords[]", "Café")]).await;
    assert_eq!(heard.status, StatusCode::OK, "{}", heard.text());
    let bad = transcribe(&server, &file, &[("keywords[]", "你")]).await;
    assert_eq!((bad.status, bad.error().as_str()), (StatusCode::BAD_REQUEST, "bad_request"));
    assert!(bad.text().contains("'你'"), "{}", bad.text());

    let mut socket = soon("a session", server.socket("/v1/realtime?intent=transcription")).await;
    soon("its greeting", socket.until("session.created")).await;
    let told = update(&mut socket, json!({"keywords": ["Brownie Beaver", "Café"]})).await;
    assert_eq!(told["type"], "session.updated", "{told}");
    for keywords in [json!(["rain", "你"]), json!(["rain", 7])] {
        let told = update(&mut socket, json!({"keywords": keywords})).await;
        assert_eq!((&told["type"], &told["error"]["event_id"]), (&json!("error"), &json!("mine")), "{told}");
        assert!(message(&told).contains("你") || message(&told).contains("keywords"), "{told}");
    }
    // The session goes on with what it had before.
    assert!(!committed(&mut socket, &samples).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn languages_are_found_in_any_spelling_and_unknown_ones_are_refused_at_every_door() {
    let dir = tempfile::tempdir().unwrap();
    let jobs = JobsOptions::new(JobsPlace::Folder(dir.path().to_owned()));
    let wyoming = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let options = ServerOptions { jobs: Some(jobs), wyoming, ..Default::default() };
    let (server, samples) = (soon("the server", doorways::start(options, 4)).await, speech(0, 1));
    let file = wav(&samples);
    let models = soon("the models", server.get("/v1/models")).await.json();
    assert_eq!(models["data"][0]["languages"], json!(["en"]), "{models}");

    let plain = live(&server, "", &samples).await;
    for language in ["en", "EN", "en-US", "en_gb"] {
        assert_eq!(live(&server, &format!("language={language}"), &samples).await, plain, "{language}");
        let fields = [("response_format", "verbose_json"), ("language", language)];
        assert_eq!(transcribe(&server, &file, &fields).await.json()["language"], "en", "{language}");
    }
    for language in ["de", "zz", "ja-JP"] {
        let (status, said) =
            refused(&server, &format!("/v1/listen?encoding=linear16&language={language}")).await;
        assert_eq!(
            (status, &said["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!("language")),
            "{said}"
        );
        assert!(message(&said).contains(&format!("'{language}'")) && message(&said).contains("en"), "{said}");
        for field in ["language", "languages[]"] {
            let bad = transcribe(&server, &file, &[(field, language)]).await;
            assert_eq!(bad.status, StatusCode::BAD_REQUEST, "{}", bad.text());
        }
        let form = [("file", Part::File("talk.wav", &file[..])), ("language", Part::Text(language))];
        let job = soon("an answer to the job", server.form("/v1/audio/jobs", &form)).await;
        assert_eq!(job.status, StatusCode::BAD_REQUEST, "{}", job.text());
    }
    let (status, _) = refused(&server, "/v1/listen?encoding=linear16&language=multi").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);

    let mut socket = soon("a session", server.socket("/v1/realtime?intent=transcription")).await;
    soon("its greeting", socket.until("session.created")).await;
    let language = |told: &Value| told["session"]["audio"]["input"]["transcription"]["language"].clone();
    assert_eq!(language(&update(&mut socket, json!({"language": "en-US"})).await), "en-US");
    for wrong in [json!({"language": "de"}), json!({"languages": ["de"]}), json!({"languages": ["en", "de"]})]
    {
        let told = update(&mut socket, wrong).await;
        assert_eq!(told["type"], "error", "{told}");
    }
    assert_eq!(language(&update(&mut socket, json!({"languages": ["en"]})).await), "en");
    assert!(!committed(&mut socket, &samples).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wyoming_tells_of_the_language_that_was_heard() {
    let wyoming = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let heard_in = async |server: &Running, language: &str| {
        let mut client = crate::wyoming::connect(server).await;
        let format = json!({"rate": 16_000, "width": 2, "channels": 1});
        client.send("transcribe", json!({"language": language}), &[]).await;
        client.send("audio-start", format.clone(), &[]).await;
        let (kind, data, _) = soon("an answer", client.next()).await.unwrap();
        if kind == "error" {
            return Err(data["text"].as_str().unwrap().to_owned());
        }
        client.send("audio-stop", json!({}), &[]).await;
        loop {
            let (kind, data, _) = soon("a transcript", client.next()).await.unwrap();
            if kind == "transcript" {
                return Ok(data["language"].clone());
            }
        }
    };
    let server = soon("a server", doorways::start(ServerOptions { wyoming, ..Default::default() }, 2)).await;
    assert_eq!(heard_in(&server, "en-US").await, Ok(json!("en")));
    assert!(heard_in(&server, "de").await.unwrap_err().contains("'de'"));
    // A model that does not say what it hears is listed with a language that may be left out or sent, and is not told.
    let options = ListenerOptions::default().with_threads(1).with_slots(3);
    let open = move || Listener::random("nano-ear", 3, &options);
    let setup = Setup {
        options: ServerOptions { wyoming, ..Default::default() },
        speak: false,
        listen: vec![Box::new(open)],
        hear_slots: 1,
        ..Default::default()
    };
    let server = soon("a server", setup.start()).await;
    assert_eq!(heard_in(&server, "en").await, Ok(Value::Null));
    assert!(heard_in(&server, "de").await.unwrap_err().contains("config.json"));
}

#[tokio::test]
async fn what_would_change_the_answer_is_done_or_refused_by_name() {
    let server = soon("the server", crate::listening::start()).await;
    let file = crate::listening::wav("##", 16_000);
    for asked in [
        "redact=pci",
        "diarize=true",
        "multichannel=true",
        "callback=http://127.0.0.1:9/",
        "profanity_filter=true",
    ] {
        let name = asked.split('=').next().unwrap();
        let (status, said) = refused(&server, &format!("/v1/listen?encoding=linear16&{asked}")).await;
        assert_eq!((status, &said["error"]["param"]), (StatusCode::BAD_REQUEST, &json!(name)), "{said}");
        let post = server.request("POST", &format!("/v1/listen?{asked}")).header("content-type", "audio/wav");
        let reply = soon(asked, server.send(post.body(Body::from(file.clone())).unwrap())).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{asked}: {}", reply.text());
        assert!(reply.text().contains(name), "{}", reply.text());
    }
    for asked in ["interim_results=maybe", "vad_events=7", "some_new_thing=true", "detect_language=true"] {
        let (status, said) = refused(&server, &format!("/v1/listen?encoding=linear16&{asked}")).await;
        let name = asked.split('=').next().unwrap();
        assert!(status == StatusCode::BAD_REQUEST && message(&said).contains(name), "{said}");
    }
    // What is off asks for nothing.
    let off = "redact=false&diarize=false&multichannel=false&profanity_filter=False&detect_language=false&punctuate=true";
    assert_eq!(live(&server, off, &crate::listening::audio("##", 16_000)).await, "w1 w2");

    for (name, value) in [
        ("temperature", "abc"),
        ("temperature", "1.5"),
        ("temperature", "-1"),
        ("chunking_strategy", "junk"),
        ("include[]", "logprobs"),
        ("known_speaker_names[]", "Ann"),
        ("task", "translate"),
        ("timestamp_granularities[]", "word"),
    ] {
        let bad = transcribe(&server, &file, &[(name, value)]).await;
        let plain = name.trim_end_matches("[]");
        assert_eq!(
            (bad.status, &bad.json()["error"]["param"]),
            (StatusCode::BAD_REQUEST, &json!(plain)),
            "{name}"
        );
    }
    let streamed = [("stream", "true"), ("response_format", "srt")];
    assert_eq!(transcribe(&server, &file, &streamed).await.status, StatusCode::BAD_REQUEST);
    for (name, value) in [
        ("temperature", "0.2"),
        ("chunking_strategy", "auto"),
        ("chunking_strategy", r#"{"type": "server_vad", "threshold": 0.5}"#),
        ("prompt", "A talk."),
    ] {
        assert_eq!(transcribe(&server, &file, &[(name, value)]).await.json()["text"], "w1 w2", "{name}");
    }
}

/// What the engine hears by itself of the samples that a client sends as 16 bits.
fn alone(listener: &Listener, request: &ListenRequest, samples: &[f32]) -> String {
    let sent: Vec<f32> =
        pcm(samples).as_chunks::<2>().0.iter().map(|b| f32::from(i16::from_le_bytes(*b)) / 32768.0).collect();
    let (mut sender, events) = listener.listen(request).unwrap();
    let pushed = std::thread::spawn(move || {
        sender.push(&sent).unwrap();
        sender.finish();
    });
    let finals = events.filter_map(|event| match event.unwrap() {
        ListenEvent::Final(segment) => Some(segment.text),
        _ => None,
    });
    let text = finals.collect::<Vec<_>>().join(" ");
    pushed.join().unwrap();
    text.trim().to_owned()
}

/// The texts of a recording by chunk and beam, by the engine alone.
fn texts(samples: &[f32]) -> [String; 3] {
    let listener = doorways::ear(1);
    let plain = ListenRequest::default();
    let of = |request| alone(&listener, &request, samples);
    [of(plain.clone()), of(plain.clone().with_chunk_ms(Some(80))), of(plain.with_beam(4))]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_and_beams_are_those_that_a_client_asks_for() {
    let (server, samples) = (start().await, speech(0, 2));
    let file = wav(&samples);
    let for_engine = samples.clone();
    let heard = tokio::task::spawn_blocking(move || texts(&for_engine)).await.unwrap();
    let [plain, short, beam] = &heard;
    assert!(plain != short && plain != beam && short != beam, "a clip that tells them apart: {heard:?}");
    for (asked, text) in
        [("", plain), ("chunk_ms=80", short), ("beam=4", beam), ("beam=1&chunk_ms=560", plain)]
    {
        assert_eq!(&live(&server, asked, &samples).await, text, "{asked}");
        let fields: Vec<(&str, &str)> = asked.split('&').filter_map(|field| field.split_once('=')).collect();
        assert_eq!(transcribe(&server, &file, &fields).await.json()["text"], **text, "{asked}");
        let post = server.request("POST", &format!("/api/asr-streaming?{asked}"));
        let reply = soon(asked, server.send(post.body(Body::from(file.clone())).unwrap())).await;
        let words = reply.json();
        let words = words.as_array().unwrap().iter().filter_map(|word| word["text"].as_str());
        assert_eq!(words.collect::<Vec<_>>().join(" "), **text, "{asked}");
    }
    let models = soon("the models", server.get("/v1/models")).await.json();
    assert_eq!(models["data"][0]["chunks_ms"], json!([560, 1120, 160, 80]), "{models}");

    for (asked, says) in [
        ("chunk_ms=100", "560, 1120, 160, 80"),
        ("chunk_ms=x", "chunk_ms"),
        ("beam=33", "1 to 32"),
        ("beam=0", "1 to 32"),
        ("beam=wide", "beam"),
    ] {
        for path in [format!("/v1/listen?encoding=linear16&{asked}"), format!("/api/asr-streaming?{asked}")] {
            let (status, said) = refused(&server, &path).await;
            assert!(status == StatusCode::BAD_REQUEST && message(&said).contains(says), "{path}: {said}");
        }
        let bad = transcribe(&server, &file, &[asked.split_once('=').unwrap()]).await;
        assert!(bad.status == StatusCode::BAD_REQUEST && bad.text().contains(says), "{}", bad.text());
    }
}

/// Sends a third of a second to moshi's door and waits for the model to have heard of it: a longer chunk hears nothing yet.
async fn steps_after_a_third_of_a_second(server: &Running, path: &str) {
    let mut socket = soon(path, server.socket(path)).await;
    let next = |bytes: bytes::Bytes| rmp_serde::from_slice::<Value>(&bytes).unwrap();
    assert_eq!(next(soon("a greeting", socket.next_binary()).await)["type"], "Ready");
    for _ in 0..4 {
        let audio = json!({"type": "Audio", "pcm": vec![0.0; 1920]});
        socket.binary(rmp_serde::to_vec_named(&audio).unwrap()).await;
    }
    for index in 0..2 {
        let step = next(soon("a step of 80 ms", socket.next_binary()).await);
        assert_eq!((&step["type"], &step["step_idx"]), (&json!("Step"), &json!(index)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_has_a_chunk_and_a_beam_for_those_who_name_none() {
    let samples = speech(0, 2);
    let for_engine = samples.clone();
    let [plain, short, beam] = tokio::task::spawn_blocking(move || texts(&for_engine)).await.unwrap();
    let ear = |id: &str, chunk_ms, beam| EarOptions {
        chunk_ms,
        beam,
        ..EarOptions::new(id, 2, Hears::Engine(vec![Box::new(|| Ok(doorways::ear(4)))]))
    };
    let others = vec![ear("short", Some(80), None), ear("wide", None, Some(4))];
    let server = soon("a server", Setup { speak: false, others, ..Default::default() }.start()).await;
    steps_after_a_third_of_a_second(&server, "/api/asr-streaming").await;
    for (asked, text) in [
        ("model=short", &short),
        ("model=wide", &beam),
        ("model=short&chunk_ms=560", &plain),
        ("model=wide&beam=1", &plain),
    ] {
        assert_eq!(&live(&server, asked, &samples).await, text, "{asked}");
    }
    drop(server);
    // And without a default, for the one who asks.
    steps_after_a_third_of_a_second(&start().await, "/api/asr-streaming?chunk_ms=80").await;
}
