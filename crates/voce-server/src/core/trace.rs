//! Spans of a request and of its streams: one for the request, one for each stream, and below them one for each stage with
//! the time it was at work. Stages are tallied while they run and told at the end, so that a frame costs a few additions.

use std::future::Future;
use std::hash::{BuildHasher as _, Hasher as _};
use std::pin::Pin;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::HeaderMap;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use voce_engine::StageTime;

use super::otlp::{Exporter, Field, Span};

/// What the server itself does for a request, beside the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Bytes to samples.
    Decode,
    /// Samples to bytes.
    EncodeOut,
    /// Bytes to the socket: waiting for a reader included.
    SocketWrite,
}

const STAGES: [(Stage, &str); 3] =
    [(Stage::Decode, "decode"), (Stage::EncodeOut, "encode_out"), (Stage::SocketWrite, "socket_write")];

tokio::task_local! {
    /// The request that this task works for; none where it is not to be traced.
    static CURRENT: Option<Arc<RequestTrace>>;
}

/// The trace of the request that this task works for.
pub(crate) fn current() -> Option<Arc<RequestTrace>> {
    CURRENT.try_with(Clone::clone).ok().flatten()
}

/// Runs a task for a request. No async function, which would keep `task` twice.
pub(crate) fn within<F: Future>(
    trace: Option<Arc<RequestTrace>>,
    task: F,
) -> impl Future<Output = F::Output> {
    CURRENT.scope(trace, task)
}

/// Times a stage of the request that this task works for; does nothing where none is traced.
#[derive(Clone)]
pub(crate) struct Meter(Option<Arc<RequestTrace>>, Stage);

impl Meter {
    pub(crate) fn new(stage: Stage) -> Self {
        Self(current(), stage)
    }

    pub(crate) fn begin(&self) -> Option<Instant> {
        self.0.as_ref().map(|_| Instant::now())
    }

    pub(crate) fn end(&self, begun: Option<Instant>) {
        if let (Some(trace), Some(begun)) = (&self.0, begun) {
            trace.add(self.1, begun);
        }
    }
}

/// Where spans go, if anywhere.
#[derive(Clone, Default)]
pub(crate) struct Tracing(pub(crate) Option<Arc<Exporter>>);

impl Tracing {
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Begins the trace of a request, below the client's own span where it names one. None where nothing is traced, or
    /// where the client has decided that this is not to be.
    pub(crate) fn request(
        &self,
        method: &str,
        route: &str,
        headers: &HeaderMap,
    ) -> Option<Arc<RequestTrace>> {
        let parent = headers.get("traceparent").and_then(|v| v.to_str().ok()).and_then(parent);
        if parent.is_some_and(|p| !p.sampled) {
            return None;
        }
        let trace = self.begin(format!("{method} {route}"), parent)?;
        let fields = [("http.request.method", method.to_owned()), ("http.route", route.to_owned())]
            .map(|(k, v)| (k, Field::Text(v)));
        lock(&trace.fields).extend(fields);
        Some(trace)
    }

    fn begin(&self, name: String, parent: Option<Parent>) -> Option<Arc<RequestTrace>> {
        let exporter = self.0.clone()?;
        let trace = parent.map_or_else(|| u128::from(random()) << 64 | u128::from(random()), |p| p.trace);
        Some(Arc::new(RequestTrace {
            exporter,
            trace,
            id: random(),
            parent: parent.map(|p| p.span),
            name,
            clock: Clock::now(),
            status: AtomicU16::new(0),
            stages: Mutex::default(),
            fields: Mutex::default(),
            error: Mutex::default(),
        }))
    }

    /// Begins the trace of a stream, below its request; one that has none, such as Wyoming's, is a trace of its own.
    pub(crate) fn stream(&self, name: &'static str, model: &str) -> Option<StreamTrace> {
        self.0.as_ref()?;
        let request = match CURRENT.try_with(Clone::clone) {
            Ok(request) => request?,
            Err(_) => self.begin("socket".into(), None)?,
        };
        Some(StreamTrace { request, id: random(), name, model: model.to_owned(), begun: Instant::now() })
    }
}

/// A moment of both clocks.
#[derive(Clone, Copy)]
struct Clock {
    instant: Instant,
    unix: u64,
}

impl Clock {
    fn now() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { instant: Instant::now(), unix: unix.as_nanos() as u64 }
    }

    /// Nanoseconds of the Unix clock at another moment.
    fn at(&self, moment: Instant) -> u64 {
        match moment.checked_duration_since(self.instant) {
            Some(later) => self.unix.saturating_add(later.as_nanos() as u64),
            None => self.unix.saturating_sub((self.instant - moment).as_nanos() as u64),
        }
    }
}

/// The trace of one request, told when the last one who holds it lets go.
pub(crate) struct RequestTrace {
    exporter: Arc<Exporter>,
    trace: u128,
    id: u64,
    parent: Option<u64>,
    name: String,
    clock: Clock,
    status: AtomicU16,
    stages: Mutex<[StageTime; 3]>,
    fields: Mutex<Vec<(&'static str, Field)>>,
    error: Mutex<Option<&'static str>>,
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl RequestTrace {
    /// The trace's number as others write it.
    pub(crate) fn hex(&self) -> String {
        format!("{:032x}", self.trace)
    }

    /// Counts work of a stage that began at a moment and ends now.
    pub(crate) fn add(&self, stage: Stage, begun: Instant) {
        let took = begun.elapsed();
        let end = self.clock.instant.elapsed();
        lock(&self.stages)[stage as usize].add(end, took, took);
    }

    /// Notes the head of the answer.
    pub(crate) fn answered(&self, status: u16, error: Option<&'static str>) {
        self.status.store(status, Ordering::Relaxed);
        self.fail(error);
    }

    fn fail(&self, error: Option<&'static str>) {
        let mut known = lock(&self.error);
        *known = known.or(error);
    }

    /// The answer's body, whose way to the client belongs to the request.
    pub(crate) fn follow(self: Arc<Self>, body: Body) -> Body {
        Body::new(Followed { body, trace: self, handed: None })
    }

    fn span(&self, parent: u64, name: &str, begin: Instant, stage: &StageTime) {
        self.exporter.send(Span {
            trace: self.trace,
            id: random(),
            parent: Some(parent),
            name: name.to_owned(),
            is_server: false,
            start: self.clock.at(begin + stage.first),
            end: self.clock.at(begin + stage.last),
            fields: vec![
                ("voce.busy_seconds", Field::Float(stage.busy.as_secs_f64())),
                ("voce.count", Field::Int(stage.count as i64)),
            ],
            error: None,
        });
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        for (stage, name) in STAGES {
            let time = lock(&self.stages)[stage as usize];
            if time.count > 0 {
                self.span(self.id, name, self.clock.instant, &time);
            }
        }
        let mut fields = std::mem::take(&mut *lock(&self.fields));
        let status = self.status.load(Ordering::Relaxed);
        if status > 0 {
            fields.push(("http.response.status_code", Field::Int(i64::from(status))));
        }
        self.exporter.send(Span {
            trace: self.trace,
            id: self.id,
            parent: self.parent,
            name: std::mem::take(&mut self.name),
            is_server: true,
            start: self.clock.unix,
            end: self.clock.at(Instant::now()),
            fields,
            error: lock(&self.error).take(),
        });
    }
}

/// The trace of one stream of a model.
pub(crate) struct StreamTrace {
    request: Arc<RequestTrace>,
    id: u64,
    name: &'static str,
    model: String,
    begun: Instant,
}

/// What a stream came to.
#[derive(Default)]
pub(crate) struct StreamEnd<'a> {
    /// Time in line before it began.
    pub(crate) waited: Duration,
    /// Stages, in time from the stream's begin.
    pub(crate) stages: &'a [(&'static str, StageTime)],
    pub(crate) fields: Vec<(&'static str, Field)>,
    pub(crate) error: Option<&'static str>,
}

impl StreamTrace {
    /// Tells the stream and its stages.
    pub(crate) fn end(self, end: StreamEnd<'_>) {
        let StreamEnd { waited, stages, mut fields, error } = end;
        let request = &self.request;
        let begun = self.begun.checked_sub(waited).unwrap_or(self.begun);
        for (name, time) in stages.iter().filter(|(_, time)| time.count > 0) {
            let mut time = *time;
            let from = if *name == "queue" {
                // The line before the model's door, and the one behind it.
                time.last += waited;
                time.busy += waited;
                begun
            } else {
                self.begun
            };
            request.span(self.id, name, from, &time);
        }
        fields.push(("voce.model", Field::Text(self.model)));
        request.fail(error);
        request.exporter.send(Span {
            trace: request.trace,
            id: self.id,
            parent: Some(request.id),
            name: self.name.to_owned(),
            is_server: false,
            start: request.clock.at(begun),
            end: request.clock.at(Instant::now()),
            fields,
            error,
        });
    }
}

/// A body whose way to the client is timed: from handing a piece over until the next one is asked for.
struct Followed {
    body: Body,
    trace: Arc<RequestTrace>,
    handed: Option<Instant>,
}

impl hyper::body::Body for Followed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if let Some(handed) = self.handed.take() {
            self.trace.add(Stage::SocketWrite, handed);
        }
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        match &polled {
            Poll::Ready(Some(Ok(_))) => self.handed = Some(Instant::now()),
            Poll::Ready(Some(Err(_))) => self.trace.fail(Some("broken_off")),
            _ => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Followed {
    fn drop(&mut self) {
        if let Some(handed) = self.handed.take() {
            self.trace.add(Stage::SocketWrite, handed);
        }
    }
}

/// A number that is not zero and that nobody else has.
pub(crate) fn random() -> u64 {
    std::collections::hash_map::RandomState::new().build_hasher().finish().max(1)
}

/// The span of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parent {
    trace: u128,
    span: u64,
    sampled: bool,
}

/// Reads W3C's `traceparent`: `version-trace-span-flags` in hexadecimal.
fn parent(text: &str) -> Option<Parent> {
    let mut parts = text.trim().split('-');
    let hex = |part: Option<&str>, digits: usize| {
        let part = part.filter(|p| p.len() == digits)?;
        let is_lower_hex = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        if part.bytes().all(is_lower_hex) { u128::from_str_radix(part, 16).ok() } else { None }
    };
    let version = hex(parts.next(), 2)?;
    let (trace, span, flags) = (hex(parts.next(), 32)?, hex(parts.next(), 16)?, hex(parts.next(), 2)?);
    // Later versions may have more; this one has not.
    let is_known = version != 0xff && (version > 0 || parts.next().is_none());
    let parent = Parent { trace, span: span as u64, sampled: flags & 1 == 1 };
    (is_known && trace != 0 && span != 0).then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_span_is_read() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let read = parent(good).unwrap();
        assert_eq!(
            (read.trace, read.span, read.sampled),
            (0x4bf92f3577b34da6a3ce929d0e0e4736, 0x00f067aa0ba902b7, true)
        );
        assert!(!parent(&good.replace("-01", "-00")).unwrap().sampled);
        assert!(parent(&format!("{}-more", good.replacen("00", "01", 1))).is_some());
        for bad in [
            "",
            "00",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-+0f067aa0ba902b7-01",
        ] {
            assert_eq!(parent(bad), None, "{bad}");
        }
    }
}
