//! Lines on disk that wait until a collector takes them: numbered files, which are sent and removed oldest first,
//! and a file with the position of sending. The next process sends the lines that one leaves.
//!
//! A line may be sent twice, when a process was killed after the collector had taken it. It has the same place in its chain.

mod sender;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use atoll_files::Access;

use crate::Sink;
use crate::file::append_whole;
pub(crate) use sender::Sender;

const POSITION: &str = "position";
const LOCK: &str = "lock";
/// A file with lines is at most as large, if it is not one line.
const FILE_BYTES_MAX: u64 = 8 << 20;
const FILE_BYTES_MIN: u64 = 64 << 10;

/// A place in the numbered files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    file: u64,
    offset: u64,
}

/// Action of the sender when there are no more lines to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Lines come.
    None,
    /// It ends when it has sent all, or cannot.
    Soon,
    /// It ends when it has sent all.
    WhenEmpty,
}

struct Waiting {
    /// From where lines are sent.
    next: Position,
    /// Where the next line is written.
    end: Position,
    bytes: u64,
    ending: Ending,
}

/// Shared state of the writer and the sender of a spool.
pub(crate) struct Shared {
    directory: PathBuf,
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// No other process writes or sends while it is held.
    _lock: File,
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Numbers are changed together, in no call that can panic.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn file(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:016}.jsonl"))
    }

    pub fn bytes(&self) -> u64 {
        self.waiting().bytes
    }

    pub fn end(&self, ending: Ending) {
        self.waiting().ending = ending;
        self.changed.notify_all();
    }
}

/// The spool of a process, as its writer has it.
pub(crate) struct Spool {
    shared: Arc<Shared>,
    file: File,
    file_bytes: u64,
    bytes_max: u64,
    /// It was full, and still is so far that there is no use in filling the rest.
    is_full: bool,
}

fn busy(directory: &Path) -> io::Error {
    let text = format!("another process has its spool in {}", directory.display());
    io::Error::new(io::ErrorKind::ResourceBusy, text)
}

fn parse_position(text: &str) -> Option<Position> {
    let (file, offset) = text.trim().split_once(' ')?;
    Some(Position { file: file.parse().ok()?, offset: offset.parse().ok()? })
}

/// The files with lines, by their numbers, and their sizes.
fn files(directory: &Path) -> io::Result<BTreeMap<u64, u64>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_suffix(".jsonl")?.parse::<u64>().ok());
        if let Some(number) = number {
            found.insert(number, entry.metadata()?.len());
        }
    }
    Ok(found)
}

/// Takes a spool, with the lines of an earlier process. New lines come to a new file: the last one may end in a
/// part of a line.
fn take(directory: &Path) -> io::Result<Shared> {
    atoll_files::create_directories(directory)?;
    let lock = atoll_files::open_or_make(&directory.join(LOCK), Access::Owner)?;
    lock.try_lock().map_err(|_| busy(directory))?;
    let files = files(directory)?;
    let first = files.keys().next().copied().unwrap_or(1);
    let said = std::fs::read_to_string(directory.join(POSITION)).ok().and_then(|text| parse_position(&text));
    // A position that cannot be read makes lines be sent again, and loses none.
    let fits = |said: &Position| files.get(&said.file).is_some_and(|size| said.offset <= *size);
    let next = said.filter(fits).unwrap_or(Position { file: first, offset: 0 });
    let mut bytes = 0;
    for (number, size) in &files {
        match *number < next.file {
            true => std::fs::remove_file(directory.join(format!("{number:016}.jsonl")))?,
            false => bytes += size,
        }
    }
    let end = Position { file: files.keys().last().map_or(1, |last| last + 1), offset: 0 };
    let waiting = Waiting { next, end, bytes: bytes.saturating_sub(next.offset), ending: Ending::None };
    Ok(Shared {
        directory: directory.to_owned(),
        waiting: Mutex::new(waiting),
        changed: Condvar::new(),
        _lock: lock,
    })
}

impl Spool {
    /// Opens the spool in a directory; an error of kind `ResourceBusy` if another process has it.
    pub fn open(directory: &Path, bytes_max: u64) -> io::Result<Self> {
        let shared = take(directory)?;
        let file = atoll_files::append(&shared.file(shared.waiting().end.file), Access::Owner)?;
        Ok(Spool { shared: Arc::new(shared), file, file_bytes: 0, bytes_max, is_full: false })
    }

    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    fn file_bytes_max(&self) -> u64 {
        (self.bytes_max / 8).clamp(FILE_BYTES_MIN, FILE_BYTES_MAX)
    }

    fn try_write(&mut self, lines: &str) -> io::Result<()> {
        if self.file_bytes > 0 && self.file_bytes + lines.len() as u64 > self.file_bytes_max() {
            self.file.sync_data()?;
            let number = self.shared.waiting().end.file + 1;
            self.file = atoll_files::append(&self.shared.file(number), Access::Owner)?;
            self.file_bytes = 0;
            self.shared.waiting().end = Position { file: number, offset: 0 };
        }
        append_whole(&mut self.file, &mut self.file_bytes, lines)?;
        let mut waiting = self.shared.waiting();
        waiting.end.offset += lines.len() as u64;
        waiting.bytes += lines.len() as u64;
        self.shared.changed.notify_all();
        Ok(())
    }
}

/// Takes the spools that ended processes have left, with names of one kind, except one.
pub(crate) fn take_left(directories: impl Iterator<Item = PathBuf>, ending: Ending) -> Vec<Arc<Shared>> {
    let is_left = |directory: &PathBuf| directory.is_dir();
    let taken = directories.filter(is_left).filter_map(|directory| take(&directory).ok());
    let left = taken.filter(|shared| shared.waiting().bytes > 0);
    left.inspect(|shared| shared.waiting().ending = ending).map(Arc::new).collect()
}

impl Sink for Spool {
    fn write(&mut self, lines: &str) -> Result<(), String> {
        let waiting_bytes = self.shared.bytes();
        // What is larger than the whole spool finds room in an empty one.
        let has_room = waiting_bytes + lines.len() as u64 <= self.bytes_max || waiting_bytes == 0;
        self.is_full = !has_room || self.is_full && waiting_bytes > self.bytes_max / 8 * 7;
        if self.is_full {
            return Err(format!(
                "the spool {} is full: {waiting_bytes} bytes wait for the collector",
                self.shared.directory.display()
            ));
        }
        self.try_write(lines).map_err(|error| format!("{}: {error}", self.shared.directory.display()))
    }

    fn sync(&mut self) -> Result<(), String> {
        self.file.sync_data().map_err(|error| format!("{}: {error}", self.shared.directory.display()))
    }

    fn is_spool(&self) -> bool {
        true
    }

    fn waiting_bytes(&self) -> (u64, u64) {
        (self.shared.bytes(), self.bytes_max)
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        self.shared.end(Ending::Soon);
    }
}

#[cfg(test)]
mod tests;
