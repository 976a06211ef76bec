//! What the clients saw, as a table or as JSON.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use super::args::BenchServeArgs;
use super::client::Heard;
use super::process::Served;
use crate::console::{self, Console, round};
use crate::failure::Outcome;

/// Seconds of audio in a frame of a model.
const FRAME: f64 = 0.08;

/// The steady run.
pub(super) struct Steady {
    pub(super) opened: Duration,
    pub(super) window: Duration,
    pub(super) cpu: Option<Duration>,
    pub(super) idle_rss: Option<u64>,
    pub(super) rss: Option<u64>,
    pub(super) heard: Heard,
    pub(super) open: usize,
    pub(super) failed: usize,
    pub(super) first_failure: Option<String>,
}

/// Refusals and freed slots.
pub(super) struct Churn {
    pub(super) refused: Histogram<u64>,
    pub(super) freed: Histogram<u64>,
    pub(super) wrongly_taken: usize,
}

/// Milliseconds of a histogram of microseconds.
#[derive(Serialize)]
struct Spread {
    p50: f64,
    p99: f64,
    p999: f64,
    max: f64,
    count: u64,
}

impl Spread {
    fn new(h: &Histogram<u64>) -> Self {
        let at = |q: f64| round(h.value_at_quantile(q) as f64 / 1e3, 3);
        Self {
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: round(h.max() as f64 / 1e3, 3),
            count: h.len(),
        }
    }

    fn cells(&self, name: &str) -> Vec<String> {
        let ms = |x: f64| format!("{x:.2}");
        vec![name.into(), ms(self.p50), ms(self.p99), ms(self.p999), ms(self.max), self.count.to_string()]
    }
}

/// The whole result.
#[derive(Serialize)]
pub(super) struct ServeReport {
    streams: usize,
    seconds: f64,
    opened: usize,
    failed: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_failure: Option<String>,
    connect_seconds: f64,
    frames_sent: u64,
    /// Frames that were sent over those of real time.
    pace: f64,
    answer_ms: Spread,
    late_ms: Spread,
    unanswered: u64,
    /// Server CPU per 80 ms of one stream, in microseconds.
    cpu_us_per_frame: Option<f64>,
    server_cores: Option<f64>,
    rss_mb: Option<f64>,
    rss_kib_per_stream: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refused_ms: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    freed_ms: Option<Spread>,
    wrongly_taken: usize,
    model: String,
    cpu: String,
}

impl ServeReport {
    pub(super) fn new(args: &BenchServeArgs, served: &Served, steady: Steady, churn: Option<Churn>) -> Self {
        let streams = steady.open.max(1) as f64;
        let window = steady.window.as_secs_f64();
        let cpu = steady.cpu.map(|c| c.as_secs_f64());
        let grown = steady.rss.zip(steady.idle_rss).map(|(a, b)| a.saturating_sub(b) as f64);
        Self {
            streams: args.streams,
            seconds: args.seconds,
            opened: steady.open,
            failed: steady.failed,
            first_failure: steady.first_failure,
            connect_seconds: round(steady.opened.as_secs_f64(), 3),
            frames_sent: steady.heard.frames,
            pace: round(
                steady.heard.frames as f64 * args.frame_ms as f64 / 1e3 / (args.seconds * streams),
                3,
            ),
            answer_ms: Spread::new(&steady.heard.answers),
            late_ms: Spread::new(&steady.heard.late),
            unanswered: steady.heard.unanswered,
            cpu_us_per_frame: cpu.map(|c| round(c * 1e6 * FRAME / (window * streams), 2)),
            server_cores: cpu.map(|c| round(c / window, 3)),
            rss_mb: steady.rss.map(|r| round(r as f64 / 1e6, 1)),
            rss_kib_per_stream: grown.map(|g| round(g / 1024.0 / streams, 1)),
            refused_ms: churn.as_ref().map(|c| Spread::new(&c.refused)),
            freed_ms: churn.as_ref().map(|c| Spread::new(&c.freed)),
            wrongly_taken: churn.map_or(0, |c| c.wrongly_taken),
            model: match (&args.url, &args.model) {
                (Some(url), _) => url.clone(),
                (_, Some(model)) => model.clone(),
                _ => format!("null model, {} slots", served.capacity.unwrap_or(0)),
            },
            cpu: crate::machine::cpu_name(),
        }
    }

    pub(super) fn print(&self, console: Console) -> Outcome {
        if console.json {
            return console.json(self);
        }
        let number = |x: Option<f64>| x.map_or("-".into(), |x| x.to_string());
        let mut rows =
            vec![["milliseconds", "p50", "p99", "p99.9", "max", "count"].map(String::from).to_vec()];
        rows.push(self.answer_ms.cells("answer"));
        rows.push(self.late_ms.cells("late"));
        rows.extend(self.refused_ms.as_ref().map(|s| s.cells("refused")));
        rows.extend(self.freed_ms.as_ref().map(|s| s.cells("freed")));
        let text = format!(
            "{} of {} streams, {} s, {}\n{}\nserver: {} us of CPU per 80 ms and stream ({} cores), {} MB, {} KiB per stream\npace {}, {} unanswered, {} failed",
            self.opened,
            self.streams,
            self.seconds,
            self.model,
            console::table(&rows, &[1, 2, 3, 4, 5]),
            number(self.cpu_us_per_frame),
            number(self.server_cores),
            number(self.rss_mb),
            number(self.rss_kib_per_stream),
            self.pace,
            self.unanswered,
            self.failed,
        );
        console.result(&text)
    }
}
