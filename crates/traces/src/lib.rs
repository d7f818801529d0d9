//! Exports operations of this process as traces to a collector of OpenTelemetry, from a thread of its own: an
//! operation is a span, and its waits are spans below it.
//!
//! This crate knows OTLP and HTTP. It does not know the operations: [`atoll_metrics::traces`] selects and queues
//! them.

mod collector;
mod otlp;

use std::sync::mpsc::Receiver;
use std::time::Duration;

use atoll_metrics::traces::{TracedOperation, endpoint, open_queue, were_exported};

use collector::Collector;
pub use otlp::Source;

/// Operations that are sent together.
const BATCH_MAX: usize = 512;
/// How long one waits for others to go with it.
const GATHER_PAUSE: Duration = Duration::from_secs(1);

/// Starts the thread, which waits until the settings of the cluster say that something is to be exported.
pub fn start(source: Source) -> std::io::Result<()> {
    let waiting = open_queue();
    std::thread::Builder::new().name("traces".into()).spawn(move || export_all(&source, &waiting))?;
    Ok(())
}

fn export_all(source: &Source, waiting: &Receiver<TracedOperation>) {
    let mut collector = Collector::default();
    let mut is_failing = false;
    while let Ok(first) = waiting.recv() {
        std::thread::sleep(GATHER_PAUSE);
        let batch: Vec<_> = std::iter::once(first).chain(waiting.try_iter().take(BATCH_MAX - 1)).collect();
        let endpoint = endpoint();
        if endpoint.is_empty() {
            // It was taken back while these waited.
            were_exported(batch.len(), false);
            continue;
        }
        let sent = collector.send(&endpoint, &otlp::request(source, &batch));
        were_exported(batch.len(), sent.is_ok());
        // A collector that is away is told of once, however long it stays away.
        match &sent {
            Ok(()) if is_failing => tracing::info!("the collector takes traces again"),
            Err(error) if !is_failing => {
                tracing::warn!("traces are lost: the collector does not take them: {error}")
            }
            _ => {}
        }
        is_failing = sent.is_err();
    }
}
