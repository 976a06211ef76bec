//! What a server writes down: that requests came and how they ended, and nothing of what callers said, heard or know.

use std::fs::File;

use serde_json::{Value, json};

use crate::patience::output;
use crate::sandbox::{Sandbox, arg, model, stderr};
use crate::serve::{ask, ask_bytes, start_logged};

/// Words that stand nowhere else.
const KEY: &str = "canarykeyzebra";
const WRONG_KEY: &str = "canarywrongkeyzebra";
const TEXT: &str = "canarytextzebra";
const FIELD: &str = "canaryfieldzebra";

#[test]
fn keys_texts_and_transcripts_stay_out_of_the_log() {
    let sandbox = Sandbox::new();
    let (voice, ear) = (model("drifting"), model("..").join("fastconformer/ctc"));
    let path = sandbox.out("server.log");
    let log = File::create(&path).unwrap().into();
    let args = ["--speak", arg(&voice), "--hear", arg(&ear), "--api-key", KEY, "--log", "info"];
    let server = start_logged(&sandbox, &args, log);
    let key = format!("Authorization: Bearer {KEY}\r\n");
    let speech =
        |body: Value, head: &str| ask(&server.addr, "POST", "/v1/audio/speech", head, &body.to_string());
    // Answered, refused for each of its parts, and broken.
    assert_eq!(speech(json!({"input": TEXT, "response_format": "wav"}), &key).0, 200);
    let wrong = format!("Authorization: Bearer {WRONG_KEY}\r\n");
    assert_eq!(speech(json!({"input": TEXT}), &wrong).0, 401);
    assert_eq!(ask(&server.addr, "GET", &format!("/v1/models?api_key={WRONG_KEY}"), "", "").0, 401);
    assert_eq!(ask(&server.addr, "GET", &format!("/v1/models?api_key={KEY}"), "", "").0, 200);
    for field in ["voice", "model", "response_format", "instructions"] {
        let (status, _) = speech(json!({"input": TEXT, field: FIELD}), &key);
        assert!((200..500).contains(&status), "{field}: {status}");
    }
    let broken = format!("{{\"input\": \"{TEXT}\", {FIELD}");
    assert_eq!(ask(&server.addr, "POST", "/v1/audio/speech", &key, &broken).0, 400);
    let clip = model("..").join("fastconformer/audio/a.wav");
    let head = format!("{key}Content-Type: audio/wav\r\n");
    let (status, heard) = ask_bytes(&server.addr, "POST", "/v1/listen", &head, &std::fs::read(clip).unwrap());
    assert_eq!(status, 200);
    let heard: Value = serde_json::from_slice(&heard).unwrap();
    let said = heard["results"]["channels"][0]["alternatives"][0]["transcript"].as_str().unwrap().to_owned();
    assert!(said.len() > 10, "{heard}");
    let (status, _) =
        ask_bytes(&server.addr, "POST", &format!("/v1/listen?keywords={FIELD}"), &head, FIELD.as_bytes());
    assert!((400..500).contains(&status), "{status}");
    drop(server);

    let log = std::fs::read_to_string(&path).unwrap();
    // The log is not empty, or this test would show nothing.
    assert!(log.contains("/v1/audio/speech") && log.contains("/v1/listen"), "{log}");
    for secret in [KEY, WRONG_KEY, TEXT, FIELD, &said[..10]] {
        assert!(!log.contains(secret), "{secret:?} is in the log:\n{log}");
    }
}

#[test]
fn a_filter_that_is_none_is_told_of_and_another_is_taken() {
    let sandbox = Sandbox::new();
    let said = |filter: &str| {
        let run = output(sandbox.command(&["list"]).env("VOCE_LOG", filter));
        assert!(run.status.success(), "{run:?}");
        stderr(&run)
    };
    assert!(said("voce_engine=loud").contains("VOCE_LOG is no filter"));
    for filter in ["", "debug", "warn,voce_engine=debug"] {
        assert!(!said(filter).contains("VOCE_LOG"), "{filter}");
    }
}
