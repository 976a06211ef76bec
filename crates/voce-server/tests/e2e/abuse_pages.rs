//! Pages of other sites, and answers that would say what nobody knows.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::StatusCode;
use serde_json::{Value, json};
use voce_server::ServerOptions;
use voce_server::ears::NullEars;

use crate::counter::Counter;
use crate::listening::wav;
use crate::server::{Body, Part, Setup};

fn everywhere(keys: &[&str]) -> ServerOptions {
    ServerOptions {
        addr: SocketAddr::from(([0, 0, 0, 0], 0)),
        keys: keys.iter().map(|k| (*k).to_owned()).collect(),
        hosts: vec!["speech.lan".into()],
        ..Default::default()
    }
}

#[tokio::test]
async fn a_name_that_anybody_points_here_is_not_the_servers_own() {
    let server = Setup { options: everywhere(&[]), ..Default::default() }.start().await;
    let page = async |host: &str| {
        let request = hyper::Request::builder()
            .uri("/v1/models")
            .header("host", host)
            .header("origin", format!("http://{host}"))
            .header("authorization", "Bearer k1");
        server.send(request.body(Body::default()).unwrap()).await.status
    };
    assert_eq!(page("evil.example:8080").await, StatusCode::FORBIDDEN);
    for host in ["192.168.0.7:8080", "[fd00::1]:8080", "localhost:8080", "speech.lan:8080", "SPEECH.lan"] {
        assert_eq!(page(host).await, StatusCode::OK, "{host}");
    }
    // Programs name no origin, and may use any name.
    let program = hyper::Request::builder().uri("/v1/models").header("host", "voce:8080");
    assert_eq!(server.send(program.body(Body::default()).unwrap()).await.status, StatusCode::OK);
    // Where keys are needed, a page without one gets nothing, whatever its name.
    let server = Setup { options: everywhere(&["k1"]), ..Default::default() }.start().await;
    let page = async |key: &str| {
        let request = hyper::Request::builder()
            .uri("/v1/models")
            .header("host", "voice.example")
            .header("origin", "http://voice.example")
            .header("authorization", format!("Bearer {key}"));
        server.send(request.body(Body::default()).unwrap()).await.status
    };
    assert_eq!((page("k1").await, page("").await), (StatusCode::OK, StatusCode::UNAUTHORIZED));
}

#[tokio::test]
async fn a_language_that_nobody_knows_is_not_told() {
    let file = wav("#", 16_000);
    let fields = |language: &'static str| {
        let mut fields =
            vec![("response_format", Part::Text("verbose_json")), ("file", Part::File("a.wav", &file[..]))];
        fields.extend((!language.is_empty()).then_some(("language", Part::Text(language))));
        fields
    };
    let setup = Setup { speak: false, hear: Some(Arc::new(NullEars)), ..Default::default() };
    let server = setup.start().await;
    for language in ["", "fr"] {
        let reply = server.form("/v1/audio/transcriptions", &fields(language)).await;
        assert_eq!(reply.json()["language"], Value::Null, "{language}");
    }
    // A model of one language hears that one.
    let setup = Setup { speak: false, hear: Some(Arc::new(Counter::default())), ..Default::default() };
    let server = setup.start().await;
    for language in ["", "EN", "en-US"] {
        let reply = server.form("/v1/audio/transcriptions", &fields(language)).await;
        assert_eq!(reply.json()["language"], "en", "{language}");
    }
    let reply = server.form("/v1/audio/transcriptions", &fields("fr")).await;
    assert_eq!(
        (reply.status, &reply.json()["error"]["param"]),
        (StatusCode::BAD_REQUEST, &json!("language"))
    );
}
