//! What breaks inside: a recogniser that panics or fails ends its own stream and nobody else's.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use http_body_util::Full;
use hyper::StatusCode;
use voce_server::ServerError;
use voce_server::ears::{
    AudioIn, EarInfo, EventSource, HearRequest, HungUp, ListenEvent, Recogniser, Report, Stream,
};

use crate::counter::Counter;
use crate::listening::wav;
use crate::server::{Part, Running, Setup};

/// Goes wrong in a different way each time, and then works.
#[derive(Default)]
struct Faulty(AtomicUsize);

struct Deaf;
struct Broken {
    panics: bool,
}

impl AudioIn for Deaf {
    fn try_push(&mut self, samples: &[f32]) -> Result<usize, HungUp> {
        Ok(samples.len())
    }
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), HungUp>> {
        Poll::Ready(Ok(()))
    }
    fn report(&mut self, _: Report) {}
    fn finish(self: Box<Self>) {}
}

impl EventSource for Broken {
    fn poll_event(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<ListenEvent, ServerError>>> {
        assert!(!self.panics, "a planted panic");
        Poll::Ready(Some(Err(ServerError::Internal)))
    }
}

impl Recogniser for Faulty {
    fn info(&self) -> EarInfo {
        EarInfo::default()
    }

    fn open(&self, request: &HearRequest) -> Result<Stream, ServerError> {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            0 => panic!("a planted panic"),
            1 => Ok((Box::new(Deaf), Box::new(Broken { panics: true }))),
            2 => Ok((Box::new(Deaf), Box::new(Broken { panics: false }))),
            3 => Err(ServerError::NotReady),
            _ => Counter::default().open(request),
        }
    }
}

async fn start() -> Running {
    Setup { speak: false, hear: Some(Arc::new(Faulty::default())), hear_slots: 1, ..Default::default() }
        .start()
        .await
}

#[tokio::test]
async fn requests_survive_each_other() {
    let server = start().await;
    let file = wav("#", 16_000);
    let send =
        async || server.form("/v1/audio/transcriptions", &[("file", Part::File("a.wav", &file))]).await;
    for (status, code) in [(500, "internal"), (500, "internal"), (500, "internal"), (503, "not_ready")] {
        let reply = send().await;
        assert_eq!((reply.status.as_u16(), reply.error().as_str()), (status, code));
        assert!(!reply.text().contains("planted"), "{}", reply.text());
        // The only slot is free again each time.
        server.until("voce_streams_active{kind=\"recognition\"}", 0.0).await;
    }
    assert_eq!(send().await.json()["text"], "w1");
}

#[tokio::test]
async fn sockets_survive_each_other() {
    let server = start().await;
    for _ in 0..4 {
        let mut socket = server.socket("/api/asr-streaming").await;
        let audio = serde_json::json!({"type": "Audio", "pcm": [0.0, 0.0]});
        socket.binary(rmp_serde::to_vec_named(&audio).unwrap()).await;
        // It ends somehow, and soon.
        use futures_util::StreamExt as _;
        while let Some(Ok(_)) = socket.0.next().await {}
        server.until("voce_streams_active{kind=\"recognition\"}", 0.0).await;
    }
    let mut socket = server.socket("/api/asr-streaming").await;
    assert_eq!(&socket.next_binary().await[..], b"\x81\xa4type\xa5Ready");
}

#[tokio::test]
async fn a_compressed_body_is_not_unpacked() {
    let server =
        Setup { speak: false, hear: Some(Arc::new(Counter::default())), ..Default::default() }.start().await;
    let gzip = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xab, 0xae, 5, 0, 0x43, 0xbf, 0xa6, 0xa3, 2, 0, 0, 0];
    let request = server.request("POST", "/v2/decode/batch/x").header("content-encoding", "gzip");
    let reply = server.send(request.body(Full::new(gzip.to_vec().into())).unwrap()).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
}
