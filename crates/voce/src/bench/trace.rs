//! A recording of the stages as a Chrome trace (`chrome://tracing`, Perfetto).

use std::path::Path;

use serde_json::{Value, json};
use voce_engine::speaker::Trace;

use crate::failure::Outcome;
use crate::whole_file;

/// Writes the trace as JSON.
pub(super) fn write(path: &Path, trace: &Trace) -> Outcome {
    let events = trace.events();
    let mut threads: Vec<&str> = events.iter().map(|e| e.thread).collect();
    threads.sort_unstable();
    threads.dedup();
    let number = |thread: &str| threads.iter().position(|t| *t == thread).unwrap_or(0);
    let names = threads
        .iter()
        .map(|t| json!({"name": "thread_name", "ph": "M", "pid": 1, "tid": number(t), "args": {"name": t}}));
    let spans = events.iter().map(|e| {
        json!({
            "name": e.name, "cat": "voce", "ph": "X", "pid": 1, "tid": number(e.thread),
            "ts": e.start.as_secs_f64() * 1e6, "dur": e.duration.as_secs_f64() * 1e6, "args": {"rows": e.rows},
        })
    });
    let all: Vec<Value> = names.chain(spans).collect();
    whole_file::write(path, json!({"displayTimeUnit": "ms", "traceEvents": all}).to_string().as_bytes())
}
