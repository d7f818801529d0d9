//! The thread that sends a spool, the oldest lines first.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use atoll_files::Access;

use super::{Ending, POSITION, Position, Shared, Waiting};
use crate::REGISTERED;
use crate::collector::Collector;
use crate::status::{CollectorAway, SharedStatus};
use crate::writer::unix_ms;

/// Bytes of lines that are sent together.
const BATCH_BYTES: u64 = 256 << 10;
/// Pauses before failed deliveries are repeated. The last one repeats.
const PAUSES: [Duration; 5] = [
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
];
/// Interval of notes about sent lines. After a process was killed, lines of this interval are sent again.
const NOTE_PAUSE: Duration = Duration::from_secs(1);

/// Sends the lines of a spool.
pub(crate) struct Sender {
    shared: Arc<Shared>,
    collector: Collector,
    status: Arc<SharedStatus>,
    batch_bytes: u64,
    noted_at: Instant,
    is_noted: bool,
}

/// Lines that are sent together, and the place behind them.
struct Batch {
    lines: String,
    next: Position,
    bytes: u64,
}

impl Sender {
    pub fn new(shared: Arc<Shared>, collector: Collector, status: Arc<SharedStatus>) -> Self {
        Sender { shared, collector, status, batch_bytes: BATCH_BYTES, noted_at: Instant::now(), is_noted: true }
    }

    /// Sends lines until the spool is at its end.
    pub fn run(&mut self) {
        while let Some((next, end)) = self.wait_for_lines() {
            match self.read(next, end) {
                Ok(Some(batch)) => {
                    if !self.deliver(&batch) {
                        return self.note();
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::error!("{}: {error}", self.shared.directory.display());
                    self.pause(PAUSES[PAUSES.len() - 1]);
                }
            }
        }
        self.note();
    }

    /// From where and to where lines are to be sent; `None`: there are none, and will be none.
    fn wait_for_lines(&mut self) -> Option<(Position, Position)> {
        loop {
            let is_idle = |waiting: &mut Waiting| waiting.bytes == 0 && waiting.ending == Ending::None;
            let limit = if self.is_noted { Duration::MAX } else { NOTE_PAUSE };
            let woken = self.shared.changed.wait_timeout_while(self.shared.waiting(), limit, is_idle);
            let (waiting, _) = woken.unwrap_or_else(PoisonError::into_inner);
            let Waiting { next, end, bytes, ending } = *waiting;
            drop(waiting);
            match bytes {
                0 if ending != Ending::None => return None,
                0 => self.note(),
                _ => return Some((next, end)),
            }
        }
    }

    /// Reads the next whole lines. Continues with the next file behind the end of one.
    fn read(&mut self, next: Position, end: Position) -> io::Result<Option<Batch>> {
        let mut room = self.batch_bytes;
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let mut file = match File::open(self.shared.file(next.file)) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound && next.file < end.file => {
                    self.go_on_to_next_file(next, 0);
                    return Ok(None);
                }
                Err(error) => return Err(error),
            };
            file.seek(SeekFrom::Start(next.offset))?;
            let room_here = if next.file == end.file { room.min(end.offset - next.offset) } else { room };
            file.take(room_here).read_to_end(&mut bytes)?;
            if let Some(last) = bytes.iter().rposition(|byte| *byte == b'\n') {
                bytes.truncate(last + 1);
                break;
            }
            if (bytes.len() as u64) < room {
                // A process that was cut off has left a part of a line, or nothing.
                self.go_on_to_next_file(next, bytes.len() as u64);
                return Ok(None);
            }
            room *= 2;
        }
        let length = bytes.len() as u64;
        let next = Position { offset: next.offset + length, ..next };
        Ok(Some(Batch { lines: String::from_utf8_lossy(&bytes).into_owned(), next, bytes: length }))
    }

    fn go_on_to_next_file(&mut self, behind: Position, torn_bytes: u64) {
        if torn_bytes > 0 {
            REGISTERED.lost.inc();
            tracing::error!("a line of the audit log is torn: its process was cut off while it wrote it");
        }
        let mut waiting = self.shared.waiting();
        waiting.bytes -= torn_bytes.min(waiting.bytes);
        if behind.file >= waiting.end.file {
            // Somebody has taken lines out of the file.
            waiting.bytes = 0;
            return;
        }
        waiting.next = Position { file: behind.file + 1, offset: 0 };
        drop(waiting);
        self.note();
        self.remove(behind.file);
    }

    fn remove(&self, file: u64) {
        if let Err(error) = std::fs::remove_file(self.shared.file(file)) {
            tracing::debug!("{}: {error}", self.shared.file(file).display());
        }
    }

    /// Sends lines until they are taken. `false`: they stay in the spool, because the process ends.
    fn deliver(&mut self, batch: &Batch) -> bool {
        let mut pauses = PAUSES.iter().chain(std::iter::repeat(&PAUSES[PAUSES.len() - 1]));
        loop {
            match self.collector.send(&batch.lines) {
                Ok(()) => break,
                Err(not_taken) if not_taken.is_too_much && batch.lines.lines().nth(1).is_some() => {
                    self.batch_bytes = (batch.bytes / 2).max(1);
                    return true;
                }
                Err(not_taken) => self.say_away(not_taken.reason),
            }
            if self.shared.waiting().ending == Ending::Soon {
                return false;
            }
            if let Some(pause) = pauses.next() {
                self.pause(*pause);
            }
        }
        self.batch_bytes = (self.batch_bytes * 2).min(BATCH_BYTES);
        self.status.change(|status| status.collector_away = None);
        let mut waiting = self.shared.waiting();
        waiting.next = batch.next;
        waiting.bytes -= batch.bytes.min(waiting.bytes);
        drop(waiting);
        self.is_noted = false;
        if self.noted_at.elapsed() >= NOTE_PAUSE {
            self.note();
        }
        true
    }

    fn say_away(&self, reason: String) {
        tracing::warn!("the collector of the audit log does not take lines: {reason}; trying again");
        self.status.change(|status| {
            let since_unix_ms = status.collector_away.as_ref().map_or_else(unix_ms, |away| away.since_unix_ms);
            status.collector_away = Some(CollectorAway { since_unix_ms, reason });
        });
    }

    /// Waits, unless the process ends.
    fn pause(&self, pause: Duration) {
        let waiting = self.shared.waiting();
        let goes_on = |waiting: &mut Waiting| waiting.ending != Ending::Soon;
        drop(self.shared.changed.wait_timeout_while(waiting, pause, goes_on));
    }

    /// Notes how far it is.
    fn note(&mut self) {
        let Position { file, offset } = self.shared.waiting().next;
        let path = self.shared.directory.join(POSITION);
        if let Err(error) = atoll_files::replace(&path, format!("{file} {offset}\n").as_bytes(), Access::Owner) {
            tracing::warn!("{}: {error}; lines may be sent twice", path.display());
        }
        (self.noted_at, self.is_noted) = (Instant::now(), true);
    }
}
