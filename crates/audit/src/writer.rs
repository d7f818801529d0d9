//! The thread that writes lines, each with its place in a chain, and the number of refusals that have none.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::chain::{Chain, ChainKey, Head, Place};
use crate::queue::{GATHERED_BYTES, Lines, Queue};
use crate::rooms::{Room, Rooms};
use crate::sampling::{Sampling, Unlisted};
use crate::status::SharedStatus;
use crate::{OnFailure, REGISTERED, Sink, line_of};

/// Lines that are written together.
const BATCH_MAX: usize = 1_024;
/// How often lines are signed.
const HEAD_PAUSE: Duration = Duration::from_secs(60);
/// Time after which there is a signature with or without new lines.
const WANTED_PAUSE: Duration = Duration::from_secs(1_800);
/// Interval at which written lines are made durable.
const SYNC_PAUSE: Duration = Duration::from_millis(100);
/// How often lines that cannot be written are tried again.
const AGAIN_PAUSE: Duration = Duration::from_millis(200);

/// Lines that are to be written together.
struct Batch {
    text: String,
    /// Lines in it, and those of them that are records.
    lines: u64,
    records: u64,
    /// Where the chain was before them.
    before: Place,
    /// As many lost lines it speaks of.
    told_lost: u64,
}

/// Where lines go, in a chain of their own.
pub(crate) struct Chained {
    sink: Box<dyn Sink>,
    /// Name of the log in its heads.
    log: String,
    chain: Chain,
    source: &'static str,
    batch: Option<Batch>,
    /// Memory for the text of the next batch.
    spare: String,
    /// Lines that were lost, and that no line speaks of.
    untold_lost: u64,
    is_durable: bool,
    /// The latest signature, which is not durable.
    head: Option<Head>,
}

pub(crate) type Heads = Arc<Mutex<BTreeMap<String, Head>>>;

pub(crate) struct Writer {
    pub source: &'static str,
    pub rooms: Rooms<Chained>,
    pub queue: Arc<Queue<Room>>,
    pub sampling: Arc<Mutex<Sampling>>,
    pub signed_at: Instant,
    /// When there was a signature whether or not there were lines.
    pub wanted_at: Instant,
    pub synced_at: Instant,
    pub on_failure: OnFailure,
    pub status: Arc<SharedStatus>,
    pub heads: Heads,
    /// True if no more lines are added.
    pub is_over: Arc<AtomicBool>,
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

/// The line about lines that were lost before it.
#[derive(Serialize)]
struct LostRecord {
    source: &'static str,
    time_unix_ms: u64,
    operation: &'static str,
    lines: u64,
}

pub(crate) fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

/// Calls when it goes out of scope.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl Chained {
    /// Begins a chain with the next written lines.
    pub fn begin(sink: Box<dyn Sink>, key: &Arc<ChainKey>, source: &'static str) -> std::io::Result<Self> {
        let (chain, log) = (Chain::new(key, source)?, sink.name().unwrap_or_else(|| source.to_owned()));
        let mut chained = Chained {
            sink,
            log,
            chain,
            source,
            batch: None,
            spare: String::new(),
            untold_lost: 0,
            is_durable: true,
            head: None,
        };
        chained.batch();
        Ok(chained)
    }

    /// Returns the lines to be written, begun with the lines that the chain must have before them.
    fn batch(&mut self) -> &mut Batch {
        self.batch.get_or_insert_with(|| {
            let before = self.chain.place();
            let text = std::mem::take(&mut self.spare);
            let mut batch = Batch { text, lines: 0, records: 0, before, told_lost: 0 };
            if let Some(line) = self.chain.beginning(unix_ms()) {
                batch.text.push_str(&line);
                batch.lines += 1;
            }
            if self.untold_lost > 0 {
                let lost = LostRecord {
                    source: self.source,
                    time_unix_ms: unix_ms(),
                    operation: "LostLines",
                    lines: self.untold_lost,
                };
                self.chain.link_into(&line_of(&lost), &mut batch.text);
                batch.lines += 1;
                batch.told_lost = self.untold_lost;
            }
            batch
        })
    }

    fn batch_bytes(&self) -> usize {
        self.batch.as_ref().map_or(0, |batch| batch.text.len())
    }

    /// Lines that were lost are spoken of soon, whether others come or not.
    fn batch_if_needed(&mut self) {
        if self.untold_lost > 0 {
            self.batch();
        }
    }

    fn push(&mut self, line: &str) {
        self.batch();
        let batch = self.batch.as_mut().expect("it was made just now");
        self.chain.link_into(line, &mut batch.text);
        batch.lines += 1;
        batch.records += 1;
        if self.chain.is_head_due() {
            self.sign(false);
        }
    }

    fn sign(&mut self, is_wanted: bool) {
        self.batch();
        if let Some(head) = self.chain.head(unix_ms(), is_wanted) {
            self.head = self.chain.signed_head(&self.log);
            let batch = self.batch();
            batch.text.push_str(&head);
            batch.lines += 1;
        }
    }

    /// Writes the waiting lines, if there are any. After an error it still waits.
    fn try_write(&mut self) -> Result<bool, String> {
        self.batch_if_needed();
        let Some(batch) = self.batch.as_ref().filter(|batch| !batch.text.is_empty()) else {
            self.batch = None;
            return Ok(false);
        };
        self.sink.write(&batch.text)?;
        REGISTERED.written.inc_by(batch.lines);
        self.untold_lost -= batch.told_lost.min(self.untold_lost);
        self.is_durable = false;
        if let Some(written) = self.batch.take() {
            self.spare = written.text;
            self.spare.clear();
            self.spare.shrink_to(2 * GATHERED_BYTES);
        }
        Ok(true)
    }

    /// Drops the waiting lines; returns their number. The chain continues without them.
    fn lose(&mut self) -> u64 {
        let Some(batch) = self.batch.take() else { return 0 };
        self.chain.go_back(batch.before);
        self.head = None;
        self.untold_lost += batch.records;
        REGISTERED.lost.inc_by(batch.records);
        batch.records
    }

    /// Returns true if lines are to be made durable. Those of a file are so with a signature; more often would
    /// cost the disk much.
    fn needs_sync(&self) -> bool {
        !self.is_durable && (self.sink.is_spool() || self.head.is_some())
    }

    /// Makes lines durable. Returns a signature that is durable now.
    fn sync(&mut self) -> Result<Option<Head>, String> {
        if !self.needs_sync() {
            return Ok(None);
        }
        self.sink.sync()?;
        self.is_durable = true;
        // What waits is not even written.
        Ok(if self.batch.is_none() { self.head.take() } else { None })
    }
}

impl Writer {
    /// Writes lines until the log is dropped.
    pub fn run(&mut self) {
        let queue = Arc::clone(&self.queue);
        // Also after a panic: whoever adds a line must not wait for ever.
        let _left = OnDrop(|| queue.leave());
        let mut lines = Lines::default();
        self.write();
        loop {
            let ends_at = self.sampling.lock().unwrap_or_else(PoisonError::into_inner).ends_at();
            let wakes_at = if self.needs_sync() { ends_at.min(self.synced_at + SYNC_PAUSE) } else { ends_at };
            if !queue.take(wakes_at, &mut lines) {
                self.end_interval();
                self.sign();
                self.write();
                return self.sync();
            }
            self.collect(&lines);
            if Instant::now() >= ends_at {
                self.end_interval();
            }
            if self.signed_at.elapsed() >= HEAD_PAUSE {
                self.sign();
            }
            self.write();
            if self.synced_at.elapsed() >= SYNC_PAUSE {
                self.sync();
            }
        }
    }

    fn needs_sync(&self) -> bool {
        self.rooms.all().any(Chained::needs_sync)
    }

    /// Links lines, and writes them as long as there are more than are written together.
    fn collect(&mut self, lines: &Lines<Room>) {
        let mut count = 0;
        for (line, room) in lines.iter() {
            if count == BATCH_MAX || self.rooms.all().any(|chained| chained.batch_bytes() > GATHERED_BYTES) {
                self.write();
                count = 0;
            }
            self.rooms.of(room).push(line);
            count += 1;
        }
    }

    /// Writes the waiting lines. Lines that cannot be written are lost, or wait until they can be: then requests
    /// are refused.
    fn write(&mut self) {
        loop {
            let (has_written, failure) = self.try_write();
            self.say_waiting();
            let Some(reason) = failure else {
                if has_written {
                    self.status.change(|status| (status.failure, status.is_refusing) = (None, false));
                }
                break;
            };
            let is_refusing = self.on_failure == OnFailure::Refuse && !self.is_over.load(Ordering::Relaxed);
            self.say_failure(&reason, is_refusing);
            if !is_refusing {
                let lost = self.rooms.known().map(Chained::lose).sum();
                self.say_lost(lost, &reason);
                break;
            }
            std::thread::sleep(AGAIN_PAUSE);
        }
        self.write_strangers();
    }

    /// Writes the batches of authenticated callers. One room without space takes nothing from another.
    fn try_write(&mut self) -> (bool, Option<String>) {
        let (mut has_written, mut failure) = (false, None);
        for chained in self.rooms.known() {
            match chained.try_write() {
                Ok(one) => has_written |= one,
                Err(reason) => failure = Some(reason),
            }
        }
        (has_written, failure)
    }

    fn say_waiting(&self) {
        let add = |(bytes, bytes_max), chained: &Chained| {
            let (more, more_max) = chained.sink.waiting_bytes();
            (bytes + more, bytes_max + more_max)
        };
        let bytes = self.rooms.all().fold((0, 0), add);
        self.status.change(|status| (status.waiting_bytes, status.waiting_bytes_max) = bytes);
    }

    /// Lines of strangers never hold up requests.
    fn write_strangers(&mut self) {
        let Some(strangers) = self.rooms.strangers() else { return };
        if let Err(reason) = strangers.try_write() {
            let lost = strangers.lose();
            self.say_lost(lost, &reason);
        }
    }

    fn say_failure(&self, reason: &str, is_refusing: bool) {
        self.status.change(|status| {
            if status.failure.is_none() {
                let what = if is_refusing { "requests are refused until they can" } else { "they are lost" };
                tracing::error!("lines of the audit log cannot be written, and {what}: {reason}");
            }
            (status.failure, status.is_refusing) = (Some(reason.to_owned()), is_refusing);
        });
    }

    fn say_lost(&self, lost: u64, reason: &str) {
        if lost == 0 {
            return;
        }
        tracing::error!("{lost} lines of the audit log are lost: {reason}");
        self.status.change(|status| {
            status.lost_lines += lost;
            status.lost_unix_ms = Some(unix_ms());
        });
    }

    fn sign(&mut self) {
        // Who looks from elsewhere sees that the process writes.
        let is_wanted = self.wanted_at.elapsed() >= WANTED_PAUSE;
        if is_wanted {
            self.wanted_at = Instant::now();
        }
        self.rooms.all_mut().for_each(|chained| chained.sign(is_wanted));
        self.signed_at = Instant::now();
    }

    fn sync(&mut self) {
        self.synced_at = Instant::now();
        for chained in self.rooms.all_mut() {
            match chained.sync() {
                Ok(Some(head)) => {
                    let mut heads = self.heads.lock().unwrap_or_else(PoisonError::into_inner);
                    heads.insert(head.run.clone(), head);
                }
                Ok(None) => {}
                Err(reason) => tracing::error!("lines of the audit log are not durable: {reason}"),
            }
        }
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
        self.rooms.of(Room::Strangers).push(&line_of(&record));
    }
}
