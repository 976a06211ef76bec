//! Spans to an OpenTelemetry collector: OTLP over HTTP as JSON, from a thread of its own. What does not fit into its queue,
//! or cannot be sent, is dropped and counted; nobody waits for it.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use voce_engine::breaker::{Breaker, BreakerRule, jittered};

use super::metrics::Metrics;

/// Spans that wait to be sent.
const QUEUE: usize = 4096;
/// Spans of one request to the collector.
const BATCH: usize = 512;
/// How long a request to the collector may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a connection to it may take.
const CONNECT: Duration = Duration::from_secs(2);
/// Tries of one batch, and the wait before the second; it doubles.
const TRIES: u32 = 3;
const FIRST_WAIT: Duration = Duration::from_millis(200);
/// How long the end of the server waits for spans.
const FLUSH: Duration = Duration::from_secs(2);
/// A collector that has failed so often is left alone for a while.
const RULE: BreakerRule = BreakerRule { failures: 6, rest: Duration::from_secs(10) };
/// Where a collector takes spans.
const PATH: &str = "/v1/traces";

/// Where spans go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpOptions {
    url: String,
    service: String,
    headers: Vec<(String, String)>,
    delay: Duration,
}

impl OtlpOptions {
    /// A collector by its address, such as `http://127.0.0.1:4318`; its path for spans is added where it is not there.
    pub fn new(address: &str) -> Result<Self, String> {
        let address = address.trim().trim_end_matches('/');
        if !(address.starts_with("http://") || address.starts_with("https://")) {
            return Err(format!("'{address}' is no collector: use an address such as http://127.0.0.1:4318"));
        }
        if address.parse::<ureq::http::Uri>().is_err() {
            return Err(format!("'{address}' is no address"));
        }
        let url = if address.ends_with(PATH) { address.to_owned() } else { format!("{address}{PATH}") };
        let (service, headers, delay) = ("voce".to_owned(), Vec::new(), Duration::from_secs(1));
        Ok(Self { url, service, headers, delay })
    }

    /// Names the service in the spans.
    pub fn service(mut self, name: impl Into<String>) -> Self {
        self.service = name.into();
        self
    }

    /// Sends further headers, such as a key: `name=value` pairs with commas between, as OpenTelemetry writes them.
    pub fn headers(mut self, list: &str) -> Result<Self, String> {
        for pair in list.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let Some((name, value)) = pair.split_once('=') else {
                return Err(format!("a header for the collector is NAME=VALUE, not '{pair}'"));
            };
            self.headers.push((name.trim().to_owned(), value.trim().to_owned()));
        }
        Ok(self)
    }

    /// How long spans wait for others to go with.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }
}

/// A value of a span's attribute.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Field {
    Text(String),
    Int(i64),
    Float(f64),
}

/// One span, done.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub(crate) trace: u128,
    pub(crate) id: u64,
    pub(crate) parent: Option<u64>,
    pub(crate) name: String,
    /// A request of a client, as opposed to work inside.
    pub(crate) is_server: bool,
    /// Nanoseconds of the Unix clock.
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) fields: Vec<(&'static str, Field)>,
    pub(crate) error: Option<&'static str>,
}

enum Message {
    Span(Box<Span>),
    Flush(SyncSender<()>),
}

/// The way to the collector.
pub(crate) struct Exporter {
    queue: SyncSender<Message>,
    breaker: Arc<Breaker>,
    metrics: Metrics,
}

impl Exporter {
    pub(crate) fn start(options: OtlpOptions, metrics: Metrics) -> std::io::Result<Arc<Self>> {
        let (queue, waiting) = sync_channel(QUEUE);
        let breaker = Arc::new(Breaker::new("otlp", RULE));
        let sender = Sender::new(options, breaker.clone(), metrics.clone());
        std::thread::Builder::new().name("voce-otlp".into()).spawn(move || sender.run(&waiting))?;
        Ok(Arc::new(Self { queue, breaker, metrics }))
    }

    pub(crate) fn breaker(&self) -> &Breaker {
        &self.breaker
    }

    /// Takes a span, or drops it where too many wait.
    pub(crate) fn send(&self, span: Span) {
        if self.queue.try_send(Message::Span(Box::new(span))).is_err() {
            self.metrics.spans("dropped", 1);
        }
    }

    /// Waits a little for what is on its way. Blocks.
    pub(crate) fn flush(&self) {
        let (done, wait) = sync_channel(1);
        if self.queue.try_send(Message::Flush(done)).is_ok() {
            let _ = wait.recv_timeout(FLUSH);
        }
    }
}

struct Sender {
    options: OtlpOptions,
    agent: ureq::Agent,
    breaker: Arc<Breaker>,
    metrics: Metrics,
}

impl Sender {
    fn new(options: OtlpOptions, breaker: Arc<Breaker>, metrics: Metrics) -> Self {
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("voce/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(TIMEOUT));
        let host = options.url.parse::<ureq::http::Uri>().ok().and_then(|u| u.host().map(str::to_owned));
        if host.is_some_and(|h| ["localhost", "127.0.0.1", "[::1]"].contains(&h.as_str())) {
            config = config.proxy(None);
        }
        Self { options, agent: config.build().new_agent(), breaker, metrics }
    }

    /// Sends what comes in batches until nobody can send any more.
    fn run(self, waiting: &Receiver<Message>) {
        let mut batch: Vec<Span> = Vec::new();
        let mut due: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let wait = due.map_or(Duration::from_secs(3600), |due| due.saturating_duration_since(now));
            match waiting.recv_timeout(wait) {
                Ok(Message::Span(span)) => {
                    batch.push(*span);
                    due.get_or_insert(now + self.options.delay);
                    if batch.len() < BATCH {
                        continue;
                    }
                }
                Ok(Message::Flush(done)) => {
                    self.post(&mut batch);
                    let _ = done.try_send(());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.post(&mut batch),
            }
            self.post(&mut batch);
            due = None;
        }
    }

    fn post(&self, batch: &mut Vec<Span>) {
        if batch.is_empty() {
            return;
        }
        let outcome = if self.try_post(&body(&self.options.service, batch)) { "sent" } else { "dropped" };
        self.metrics.spans(outcome, batch.len() as u64);
        batch.clear();
    }

    fn try_post(&self, body: &str) -> bool {
        for attempt in 0..TRIES {
            let Ok(pass) = self.breaker.enter() else { return false };
            let mut request = self.agent.post(&self.options.url).header("content-type", "application/json");
            for (name, value) in &self.options.headers {
                request = request.header(name, value);
            }
            let status = request.send(body).map(|response| response.status().as_u16());
            match status {
                Ok(200..=299) => {
                    pass.succeeded();
                    return true;
                }
                // The collector is there and does not want this.
                Ok(status) if ![429, 502, 503, 504].contains(&status) => {
                    pass.succeeded();
                    tracing::warn!(status, "the collector refused spans");
                    return false;
                }
                other => {
                    pass.failed();
                    tracing::debug!(?other, attempt, "spans could not be sent");
                    if attempt + 1 < TRIES {
                        std::thread::sleep(jittered(FIRST_WAIT * (1 << attempt)));
                    }
                }
            }
        }
        false
    }
}

/// A batch as OTLP's JSON has it.
fn body(service: &str, spans: &[Span]) -> String {
    let text = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let version = env!("CARGO_PKG_VERSION");
    let spans: Vec<Value> = spans.iter().map(span).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": [text("service.name", service), text("service.version", version)]},
        "scopeSpans": [{"scope": {"name": "voce", "version": version}, "spans": spans}],
    }]})
    .to_string()
}

fn span(span: &Span) -> Value {
    let field = |(key, value): &(&'static str, Field)| {
        let value = match value {
            Field::Text(text) => json!({"stringValue": text}),
            Field::Int(n) => json!({"intValue": n.to_string()}),
            Field::Float(n) => json!({"doubleValue": n}),
        };
        json!({"key": key, "value": value})
    };
    let mut value = json!({
        "traceId": format!("{:032x}", span.trace), "spanId": format!("{:016x}", span.id),
        "name": span.name, "kind": if span.is_server { 2 } else { 1 },
        "startTimeUnixNano": span.start.to_string(), "endTimeUnixNano": span.end.max(span.start).to_string(),
        "attributes": span.fields.iter().map(field).collect::<Vec<_>>(),
    });
    if let Some(parent) = span.parent {
        value["parentSpanId"] = format!("{parent:016x}").into();
    }
    if let Some(error) = span.error {
        value["status"] = json!({"code": 2, "message": error});
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let url = |text: &str| OtlpOptions::new(text).map(|o| o.url);
        assert_eq!(url("http://c:4318").unwrap(), "http://c:4318/v1/traces");
        assert_eq!(url("https://c/x/").unwrap(), "https://c/x/v1/traces");
        assert_eq!(url("http://c:1/v1/traces").unwrap(), "http://c:1/v1/traces");
        for bad in ["", "c:4318", "grpc://c", "http://"] {
            assert!(url(bad).is_err(), "{bad}");
        }
        let options = OtlpOptions::new("http://c").unwrap();
        assert_eq!(options.clone().headers("a=b, c=d=e").unwrap().headers.len(), 2);
        assert!(options.headers("a").is_err());
    }

    #[test]
    fn ids_are_hexadecimal_and_numbers_are_strings() {
        let one = Span {
            trace: 0xab,
            id: 0xcd,
            parent: Some(1),
            name: "x".into(),
            is_server: true,
            start: 5,
            end: 4,
            fields: vec![("n", Field::Int(3)), ("f", Field::Float(0.5))],
            error: Some("busy"),
        };
        let value: Value = serde_json::from_str(&body("s", &[one])).unwrap();
        let resource = &value["resourceSpans"][0];
        assert_eq!(resource["resource"]["attributes"][0]["value"]["stringValue"], "s");
        let span = &resource["scopeSpans"][0]["spans"][0];
        assert_eq!(span["traceId"], "000000000000000000000000000000ab");
        assert_eq!(
            (&span["spanId"], &span["parentSpanId"]),
            (&json!("00000000000000cd"), &json!("0000000000000001"))
        );
        assert_eq!((&span["startTimeUnixNano"], &span["endTimeUnixNano"]), (&json!("5"), &json!("5")));
        assert_eq!(span["attributes"][0]["value"]["intValue"], "3");
        assert_eq!(span["status"], json!({"code": 2, "message": "busy"}));
    }
}
