//! What is told of streams: series, spans, and what is kept of them.

use std::sync::Arc;

use super::journal::Journal;
use super::metrics::Metrics;
use super::otlp::Exporter;
use super::server::ServerOptions;
use super::trace::Tracing;

/// Shared by all who serve streams.
#[derive(Clone)]
pub(crate) struct Telemetry {
    pub(crate) metrics: Metrics,
    pub(crate) tracing: Tracing,
    pub(crate) journal: Option<Arc<Journal>>,
}

impl Telemetry {
    /// Starts what the options ask for. What cannot be started is done without: it is no reason not to serve.
    pub(crate) fn new(options: &ServerOptions) -> Self {
        let metrics = Metrics::new();
        let exporter = options.otlp.clone().and_then(|otlp| {
            let started = Exporter::start(otlp, metrics.clone());
            started.inspect_err(|error| tracing::error!(%error, "spans cannot be sent")).ok()
        });
        let journal = Journal::start(&options.journal, &metrics)
            .inspect_err(|error| tracing::error!(%error, "streams cannot be kept"))
            .unwrap_or_default();
        Self { metrics, tracing: Tracing(exporter), journal }
    }

    /// Waits a little for what is on its way out, on a thread that nobody has to wait for.
    pub(crate) async fn flush(&self) {
        let (this, (sender, done)) = (self.clone(), tokio::sync::oneshot::channel());
        let flush = move || {
            if let Some(journal) = &this.journal {
                journal.flush();
            }
            if let Some(exporter) = &this.tracing.0 {
                exporter.flush();
            }
            let _ = sender.send(());
        };
        if std::thread::Builder::new().name("voce-flush".into()).spawn(flush).is_ok() {
            let _ = done.await;
        }
    }
}
