//! Deepgram's `/v1/listen`.

use serde_json::{Value, json};
use voce_audio::wav::put_s16le;

use crate::listening::{audio, start, wav};
use crate::server::Body;
use crate::socket::Socket;

fn pcm(pattern: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_s16le(&audio(pattern, 16_000), &mut bytes);
    bytes
}

async fn results(socket: &mut Socket) -> Vec<Value> {
    let mut all = Vec::new();
    loop {
        let event = socket.next_json().await;
        let last = event["type"] == "Metadata";
        all.push(event);
        if last {
            return all;
        }
    }
}

#[tokio::test]
async fn interim_and_final_results() {
    let server = start().await;
    let query = "encoding=linear16&sample_rate=16000&channels=1&interim_results=true&endpointing=500&utterance_end_ms=1000&vad_events=true&model=nova-3";
    let mut socket = server.socket(&format!("/v1/listen?{query}")).await;
    socket.json(json!({"type": "KeepAlive"})).await;
    for part in pcm("##.#").chunks(999) {
        socket.binary(part.to_vec()).await;
    }
    socket.json(json!({"type": "CloseStream"})).await;
    let all = results(&mut socket).await;
    let kinds: Vec<&str> = all.iter().map(|e| e["type"].as_str().unwrap()).collect();
    let expected = [
        "SpeechStarted",
        "Results",
        "Results",
        "Results",
        "UtteranceEnd",
        "SpeechStarted",
        "Results",
        "Results",
        "Metadata",
    ];
    assert_eq!(kinds, expected);
    let finals: Vec<&Value> = all.iter().filter(|e| e["is_final"] == true).collect();
    let text = |e: &Value| e["channel"]["alternatives"][0]["transcript"].as_str().unwrap().to_owned();
    assert_eq!(finals.iter().map(|e| text(e)).collect::<Vec<_>>(), ["w1 w2", "w3"]);
    assert_eq!(finals[0]["speech_final"], true);
    let word = &finals[0]["channel"]["alternatives"][0]["words"][1];
    assert_eq!(
        (&word["word"], &word["start"], &word["punctuated_word"]),
        (&json!("w2"), &json!(0.5), &json!("w2"))
    );
    assert_eq!(all.last().unwrap()["duration"], 2.0);
    assert_eq!(socket.closed().await.0, 1000);
}

#[tokio::test]
async fn finalize_says_where_it_comes_from() {
    let server = start().await;
    let mut socket = server.socket("/v1/listen?encoding=linear16&sample_rate=16000&endpointing=false").await;
    socket.binary(pcm("#")).await;
    socket.json(json!({"type": "Finalize"})).await;
    let result = socket.next_json().await;
    assert_eq!(
        (&result["is_final"], &result["from_finalize"], &result["speech_final"]),
        (&json!(true), &json!(true), &json!(false))
    );
    assert_eq!(result["channel"]["alternatives"][0]["transcript"], "w1");
    socket.binary(Vec::new()).await;
    assert_eq!(socket.next_json().await["type"], "Metadata");
}

#[tokio::test]
async fn what_is_refused() {
    let server = start().await;
    for query in [
        "encoding=amr-wb",
        "encoding=linear16&sample_rate=1",
        "encoding=linear16&channels=99",
        "encoding=linear16&sample_rate=x",
    ] {
        match server.try_socket(&format!("/v1/listen?{query}"), &[]).await {
            Err(_) => {}
            Ok(mut socket) => assert_eq!(socket.closed().await.0, 1008, "{query}"),
        }
    }
    let mut socket = server.socket("/v1/listen?encoding=linear16").await;
    socket.text("{\"type\": \"Nothing\"}").await;
    assert_eq!(socket.closed().await.0, 1008);
}

#[tokio::test]
async fn a_file_by_post() {
    let server = start().await;
    let post = async |query: &str, kind: &str, body: Vec<u8>| {
        let request = server.request("POST", &format!("/v1/listen?{query}")).header("content-type", kind);
        server.send(request.body(Body::new(body.into())).unwrap()).await
    };
    let reply = post("model=nova-3&smart_format=true", "audio/wav", wav("##", 16_000)).await;
    assert_eq!(reply.json()["results"]["channels"][0]["alternatives"][0]["transcript"], "w1 w2");
    let reply = post("encoding=linear16&sample_rate=16000", "audio/raw", pcm("#")).await;
    assert_eq!(reply.json()["results"]["channels"][0]["alternatives"][0]["transcript"], "w1");
    // No URL is ever fetched.
    let reply = post("", "application/json", b"{\"url\": \"http://127.0.0.1/\"}".to_vec()).await;
    assert!(reply.text().contains("not fetched"));
}
