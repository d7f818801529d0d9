//! The thread that writes lines, each with its place in a chain, and the number of refusals that have none.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::chain::{Chain, ChainKey};
use crate::sampling::{Sampling, Unlisted};
use crate::{REGISTERED, Sink, line_of};

/// Lines that are written together.
const BATCH_MAX: usize = 1_024;
/// How often lines are signed.
const HEAD_PAUSE: Duration = Duration::from_secs(60);

pub(crate) struct Line {
    pub text: String,
    pub is_of_stranger: bool,
}

/// Where lines go, in a chain of their own.
pub(crate) struct Chained {
    sink: Box<dyn Sink>,
    chain: Chain,
    /// Lines that are to be written together, and their number.
    batch: (String, u64),
}

pub(crate) struct Writer {
    pub source: &'static str,
    pub identified: Chained,
    /// For lines about strangers; `None`: to the same place.
    pub strangers: Option<Chained>,
    pub waiting: Receiver<Line>,
    pub sampling: Arc<Mutex<Sampling>>,
    pub strangers_waiting: Arc<AtomicUsize>,
    pub signed_at: Instant,
}

/// The line about refusals that have none of their own.
#[derive(Serialize)]
struct UnlistedRecord {
    source: &'static str,
    time_unix_ms: u64,
    operation: &'static str,
    #[serde(flatten)]
    unlisted: Unlisted,
}

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

impl Chained {
    /// Begins a chain with what is written next.
    pub fn begin(sink: Box<dyn Sink>, key: &Arc<ChainKey>, source: &'static str) -> std::io::Result<Self> {
        let (chain, first) = Chain::begin(key, source, unix_ms())?;
        Ok(Chained { sink, chain, batch: (first, 1) })
    }

    fn push(&mut self, line: &str) {
        self.batch.0.push_str(&self.chain.link(line));
        self.batch.1 += 1;
        if self.chain.is_head_due() {
            self.sign();
        }
    }

    fn sign(&mut self) {
        if let Some(head) = self.chain.head(unix_ms()) {
            self.batch.0.push_str(&head);
            self.batch.1 += 1;
        }
    }

    fn write(&mut self) {
        let (lines, count) = std::mem::take(&mut self.batch);
        if count == 0 {
            return;
        }
        match self.sink.write(&lines) {
            Ok(()) => drop(REGISTERED.written.inc_by(count)),
            Err(error) => {
                REGISTERED.lost.inc_by(count);
                tracing::error!("{count} lines of the audit log are lost: {error}");
            }
        }
    }
}

impl Writer {
    /// Writes lines until the log is dropped.
    pub fn run(&mut self) {
        loop {
            let ends_at = self.sampling.lock().unwrap_or_else(PoisonError::into_inner).ends_at();
            match self.waiting.recv_timeout(ends_at.saturating_duration_since(Instant::now())) {
                Ok(line) => self.collect(&line),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.end_interval();
                    return self.sign_and_write();
                }
            }
            if Instant::now() >= ends_at {
                self.end_interval();
            }
            match self.signed_at.elapsed() >= HEAD_PAUSE {
                true => self.sign_and_write(),
                false => self.write(),
            }
        }
    }

    fn of(&mut self, is_of_stranger: bool) -> &mut Chained {
        match (&mut self.strangers, is_of_stranger) {
            (Some(strangers), true) => strangers,
            _ => &mut self.identified,
        }
    }

    fn collect(&mut self, first: &Line) {
        let mut strangers = 0;
        let mut take = |writer: &mut Writer, line: &Line| {
            strangers += usize::from(line.is_of_stranger);
            writer.of(line.is_of_stranger).push(&line.text);
        };
        take(self, first);
        for _ in 1..BATCH_MAX {
            let Ok(line) = self.waiting.try_recv() else { break };
            take(self, &line);
        }
        self.strangers_waiting.fetch_sub(strangers, Ordering::Relaxed);
    }

    fn write(&mut self) {
        self.identified.write();
        self.strangers.iter_mut().for_each(Chained::write);
    }

    fn sign_and_write(&mut self) {
        self.identified.sign();
        self.strangers.iter_mut().for_each(Chained::sign);
        self.signed_at = Instant::now();
        self.write();
    }

    fn end_interval(&mut self) {
        let ended = self.sampling.lock().unwrap_or_else(PoisonError::into_inner).end_interval(Instant::now());
        let Some(unlisted) = ended else { return };
        let record = UnlistedRecord {
            source: self.source,
            time_unix_ms: unix_ms(),
            operation: "UnlistedRefusals",
            unlisted,
        };
        self.of(true).push(&line_of(&record));
    }
}
