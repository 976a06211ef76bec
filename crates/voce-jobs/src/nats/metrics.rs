//! A worker's figures, in the text that Prometheus reads, on a port of their own.

use super::Boxed;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Bytes of a request that are read.
const MAX_REQUEST: usize = 8 << 10;
/// How long a request may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Requests at once; further ones wait.
const AT_ONCE: usize = 16;

/// What a worker counts.
#[derive(Debug, Default)]
pub struct Figures {
    /// Slots.
    pub slots: AtomicU64,
    /// Jobs at hand.
    pub running: AtomicU64,
    /// Jobs done.
    pub done: AtomicU64,
    /// Jobs whose result was there already.
    pub found: AtomicU64,
    /// Jobs that went to the dead letters.
    pub dead: AtomicU64,
    /// Jobs that were given back.
    pub returned: AtomicU64,
    /// Jobs that were dropped because they were cancelled.
    pub cancelled: AtomicU64,
    /// Milliseconds of audio done.
    pub audio_ms: AtomicU64,
    /// Checkpoints kept.
    pub checkpoints: AtomicU64,
    /// Jobs that went on from a checkpoint.
    pub resumed: AtomicU64,
    /// Jobs for this kind of worker that wait in the queue.
    pub waiting: AtomicU64,
}

impl Figures {
    /// As text.
    pub fn text(&self) -> String {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let mut text = String::new();
        let mut one = |name: &str, kind: &str, help: &str, value: f64| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        };
        let (running, slots) = (of(&self.running) as f64, of(&self.slots) as f64);
        one("voce_work_slots", "gauge", "Jobs that can be done side by side.", slots);
        one("voce_work_running", "gauge", "Jobs at hand.", running);
        one(
            "voce_work_waiting",
            "gauge",
            "Jobs of this kind that wait in the queue.",
            of(&self.waiting) as f64,
        );
        one("voce_load_ratio", "gauge", "Jobs at hand over slots.", running / slots.max(1.0));
        one("voce_work_audio_seconds_total", "counter", "Audio done.", of(&self.audio_ms) as f64 / 1e3);
        one("voce_work_checkpoints_total", "counter", "Checkpoints kept.", of(&self.checkpoints) as f64);
        one(
            "voce_work_resumed_total",
            "counter",
            "Jobs that went on from a checkpoint.",
            of(&self.resumed) as f64,
        );
        let name = "voce_work_jobs_total";
        let _ = writeln!(text, "# HELP {name} Jobs by outcome.\n# TYPE {name} counter");
        for (outcome, count) in [
            ("done", &self.done),
            ("found", &self.found),
            ("dead", &self.dead),
            ("returned", &self.returned),
            ("cancelled", &self.cancelled),
        ] {
            let _ = writeln!(text, "{name}{{outcome=\"{outcome}\"}} {}", of(count));
        }
        text
    }
}

/// Answers requests for the figures until dropped: `/metrics`, and `/healthz` with 200.
pub fn serve_metrics(listener: TcpListener, figures: std::sync::Arc<Figures>) -> Boxed<'static, ()> {
    Box::pin(async move {
        let room = std::sync::Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
        loop {
            let Ok(permit) = room.clone().acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let figures = figures.clone();
            tokio::spawn(async move {
                let _ = tokio::time::timeout(PATIENCE, answer(stream, &figures)).await;
                drop(permit);
            });
        }
    })
}

async fn answer(mut stream: TcpStream, figures: &Figures) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        let read = stream.read(&mut piece).await?;
        if read == 0 || request.len() + read > MAX_REQUEST {
            return Ok(());
        }
        request.extend_from_slice(&piece[..read]);
    }
    let target = request.split(|b| *b == b' ').nth(1).unwrap_or_default();
    let (status, body) = match target {
        b"/metrics" => ("200 OK", figures.text()),
        b"/healthz" | b"/livez" | b"/readyz" => ("200 OK", "ok\n".into()),
        _ => ("404 Not Found", "use /metrics or /healthz\n".into()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}
