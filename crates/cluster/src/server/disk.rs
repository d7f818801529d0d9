//! The state on disk, twice: each commit is in both files when it is answered. Data that one file has lost, to a
//! flipped bit or a device that forgets, is in the other.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::auth::Auth;
use super::change::Finished;
use super::snapshot::newest_snapshot;
use super::state::{Entry, Granted, Key, State};
use super::state_file::{Content, FORMAT, StateFile};

const FIRST: &str = "state.redb";
const SECOND: &str = "state.copy.redb";
/// Pause before the second file, which could not be written, is made again.
const SECOND_PAUSE: Duration = Duration::from_secs(60);

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// Files and directories.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// Some process has it open.
    #[error("{path} is in use by another process: stop that one first, or choose another directory")]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The content of the file differs from the written one.
    #[error("{path} is damaged: {detail}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The reason.
        detail: String,
    },
    /// Both files are damaged.
    #[error("{first}; and so is its copy: {second}. {remedy}")]
    BothDamaged {
        /// The one.
        first: Box<DiskError>,
        /// The other.
        second: Box<DiskError>,
        /// The remedy.
        remedy: String,
    },
    /// The database's own complaint.
    #[error("{path}: {source}")]
    Database {
        /// The file.
        path: PathBuf,
        /// Error of redb.
        source: Box<redb::Error>,
    },
    /// Written by a later release.
    #[error("{path} has format {found}, this release knows {FORMAT}: use the release that wrote it")]
    Format {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: i64,
    },
}

impl DiskError {
    pub(super) fn of(path: &Path, error: redb::Error) -> Self {
        use redb::Error::{Io, LockPoisoned, PreviousIo};
        let is_of_the_system = match &error {
            Io(source) => !is_of_content(source.kind()),
            PreviousIo | LockPoisoned(_) => true,
            // Tables that are not there, another version: nothing that was written.
            _ => false,
        };
        match is_of_the_system {
            true => DiskError::Database { path: path.into(), source: Box::new(error) },
            false => DiskError::Damaged { path: path.into(), detail: error.to_string() },
        }
    }

    /// Returns true if a repetition cannot help: another file does, or another release.
    pub fn is_lasting(&self) -> bool {
        self.is_damage() || matches!(self, DiskError::Format { .. })
    }

    fn is_damage(&self) -> bool {
        matches!(self, DiskError::Damaged { .. } | DiskError::BothDamaged { .. })
    }

    fn is_absence(&self) -> bool {
        matches!(self, DiskError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    }
}

/// Returns true for redb's errors about bytes that are not its own.
fn is_of_content(kind: std::io::ErrorKind) -> bool {
    matches!(kind, std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof)
}

/// Drawn once, when the file is made; every answer's header carries both.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    pub cluster: u64,
    pub member: u64,
}

impl Identity {
    pub(super) fn random() -> Result<Self, DiskError> {
        let mut bytes = [0; 16];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut bytes))
            .map_err(|source| DiskError::Io { path: "/dev/urandom".into(), source })?;
        let (cluster, member) = bytes.split_at(8);
        let number = |bytes: &[u8]| bytes.iter().fold(0u64, |sum, byte| (sum << 8) | u64::from(*byte));
        Ok(Identity { cluster: number(cluster), member: number(member) })
    }
}

/// The effects of several requests, for one commit. Later ones replace earlier ones.
#[derive(Default)]
pub struct Batch {
    pub(super) keys: BTreeMap<Key, Option<Arc<Entry>>>,
    pub(super) leases: BTreeMap<i64, Option<Granted>>,
    pub(super) auth: Option<Arc<Auth>>,
    compacted: bool,
}

impl Batch {
    /// All of a state.
    pub(super) fn of(state: &State) -> Self {
        Batch {
            keys: state.keys.iter().map(|(key, entry)| (key.clone(), Some(entry.clone()))).collect(),
            leases: state.leases.iter().map(|(id, lease)| (*id, Some(lease.granted()))).collect(),
            auth: Some(state.auth.clone()),
            compacted: false,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.leases.is_empty() && self.auth.is_none() && !self.compacted
    }

    pub fn add(&mut self, finished: &Finished) {
        for event in &finished.events {
            self.keys.insert(event.key.clone(), event.now.clone());
        }
        self.leases.extend(finished.leases.iter().cloned());
        if finished.has_new_auth {
            self.auth = Some(finished.state.auth.clone());
        }
        self.compacted |= finished.compacted;
    }
}

/// Both files, open.
pub struct Disk {
    first: StateFile,
    /// Absent while it cannot be written. It is then not there at all: it must never be taken for the newest state.
    second: Option<StateFile>,
    second_failed: Option<Instant>,
    identity: Identity,
    commits: i64,
    directory: PathBuf,
}

type Opened = Result<(StateFile, Content), DiskError>;

impl Disk {
    /// Opens or makes the files and reads them whole.
    pub fn open(directory: &Path) -> Result<(Disk, State, Identity), DiskError> {
        atoll_files::create_directories(directory)
            .map_err(|source| DiskError::Io { path: directory.to_path_buf(), source })?;
        let (first_path, second_path) = (directory.join(FIRST), directory.join(SECOND));
        if !first_path.exists() && !second_path.exists() {
            let content = Content { state: State::new(), identity: Identity::random()?, commits: 0 };
            StateFile::make(&first_path, &content)?;
        }
        let (first, second) = (StateFile::open(&first_path), StateFile::open(&second_path));
        let (first, content) = Self::first_of(directory, first, &second)?;
        // What is wrong with the second one is mended by making it anew; another process may have it.
        let second = match second {
            Ok((file, copied)) if copied.age() == content.age() => Some(file),
            Err(error @ DiskError::InUse { .. }) => return Err(error),
            other => {
                drop(other);
                None
            }
        };
        let Content { state, identity, commits } = content;
        let directory = directory.to_path_buf();
        let mut disk = Disk { first, second, second_failed: None, identity, commits, directory };
        disk.make_second(&state)?;
        Ok((disk, state, identity))
    }

    /// Opens the first file, or makes it again from the second if that has more.
    fn first_of(directory: &Path, first: Opened, second: &Opened) -> Opened {
        let (error, copied) = match (first, second) {
            (Ok((file, content)), Ok((_, copied))) if copied.age() > content.age() => {
                drop(file);
                let detail = format!("it ends at revision {}", content.state.revision);
                (DiskError::Damaged { path: directory.join(FIRST), detail }, copied)
            }
            (Ok(opened), _) => return Ok(opened),
            (Err(error), Ok((_, copied))) if error.is_damage() || error.is_absence() => (error, copied),
            (Err(first), Err(second)) if first.is_damage() && second.is_damage() => {
                return Err(Self::both_damaged(directory, first, second));
            }
            (Err(error), _) => return Err(error),
        };
        let (path, aside) = (directory.join(FIRST), directory.join("state.redb.damaged"));
        tracing::error!(
            "{error}; it is restored from {SECOND}, which is complete, and the old file is {}",
            aside.display()
        );
        if path.exists() {
            let io_error = |source| DiskError::Io { path: aside.clone(), source };
            if aside.exists() {
                std::fs::remove_file(&aside).map_err(io_error)?;
            }
            // The file keeps its name until the new one has it.
            std::fs::hard_link(&path, &aside).map_err(io_error)?;
        }
        StateFile::make(&path, copied)?;
        StateFile::open(&path)
    }

    fn both_damaged(directory: &Path, first: DiskError, second: &DiskError) -> DiskError {
        let remedy = match newest_snapshot(directory) {
            Some(path) => format!(
                "Go back to the newest snapshot with 'atoll state restore --replace {}': later changes are lost",
                path.display()
            ),
            None => "Put back a snapshot with 'atoll state restore --replace FILE'".into(),
        };
        let second = Box::new(DiskError::Damaged { path: directory.join(SECOND), detail: second.to_string() });
        DiskError::BothDamaged { first: Box::new(first), second, remedy }
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes the batch durable, together with the numbers of the state it leads to, in both files. Without the
    /// second one it continues: that is no worse than a single file.
    pub fn commit(&mut self, batch: &Batch, state: &State) -> Result<(), DiskError> {
        self.commits += 1;
        self.first.commit(batch, state, self.commits)?;
        let Some(second) = &self.second else {
            if self.second_failed.is_none_or(|failed| failed.elapsed() > SECOND_PAUSE) {
                self.make_second(state)?;
            }
            return Ok(());
        };
        match second.commit(batch, state, self.commits) {
            Ok(()) => Ok(()),
            Err(error) => self.give_up_second(&error),
        }
    }

    /// Makes the second file, unless it is there.
    fn make_second(&mut self, state: &State) -> Result<(), DiskError> {
        if self.second.is_some() {
            return Ok(());
        }
        let path = self.directory.join(SECOND);
        let content = Content { state: state.clone(), identity: self.identity, commits: self.commits };
        match StateFile::make(&path, &content).and_then(|()| StateFile::open(&path)) {
            Ok((file, _)) => self.second = Some(file),
            Err(error) => self.give_up_second(&error)?,
        }
        Ok(())
    }

    fn give_up_second(&mut self, error: &DiskError) -> Result<(), DiskError> {
        tracing::warn!("cluster state has no copy for now: {error}");
        (self.second, self.second_failed) = (None, Some(Instant::now()));
        let path = self.directory.join(SECOND);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(DiskError::Io { path, source }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
