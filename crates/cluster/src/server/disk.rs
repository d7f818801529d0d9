//! The state on disk: one redb file with a table of keys, one of leases and one of numbers. A
//! commit has reached the disk when it returns.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};

use super::change::Finished;
use super::state::{Entry, Key, LeaseState, State};

const KEYS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("keys");
const LEASES: TableDefinition<i64, i64> = TableDefinition::new("leases");
const NUMBERS: TableDefinition<&str, i64> = TableDefinition::new("numbers");

/// Raised when the layout of these tables changes.
const FORMAT: i64 = 1;
/// Four numbers precede the value of a key: create revision, mod revision, version, lease.
const ENTRY_HEADER_BYTES: usize = 32;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// Files and directories.
    #[error("{path}: {source}")]
    Io {
        /// What was touched.
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
    /// The database's own complaint.
    #[error("{path}: {source}; if the file is damaged, restore it from a copy")]
    Database {
        /// The file.
        path: PathBuf,
        /// What redb says.
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
    /// A row that this code cannot have written.
    #[error("{path} holds a key whose record is cut short: restore it from a copy")]
    Row {
        /// The file.
        path: PathBuf,
    },
}

/// Drawn once, when the file is made; every answer's header carries both.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    pub cluster: u64,
    pub member: u64,
}

/// The open file.
pub struct Disk {
    database: Database,
    path: PathBuf,
}

/// The effects of several requests, for one commit. Later ones replace earlier ones.
#[derive(Default)]
pub struct Batch {
    keys: BTreeMap<Key, Option<Arc<Entry>>>,
    leases: BTreeMap<i64, Option<i64>>,
    compacted: bool,
}

impl Batch {
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.leases.is_empty() && !self.compacted
    }

    pub fn add(&mut self, finished: &Finished) {
        for event in &finished.events {
            self.keys.insert(event.key.clone(), event.now.clone());
        }
        self.leases.extend(finished.leases.iter().copied());
        self.compacted |= finished.compacted;
    }
}

fn make_database(directory: &Path, path: &Path) -> Result<(), DiskError> {
    let unfinished = directory.join("state.redb.new");
    let io_error = |source| DiskError::Io { path: unfinished.clone(), source };
    if unfinished.exists() {
        std::fs::remove_file(&unfinished).map_err(io_error)?;
    }
    let made = Database::create(&unfinished);
    drop(made.map_err(|error| DiskError::Database { path: unfinished.clone(), source: Box::new(error.into()) })?);
    std::fs::rename(&unfinished, path).map_err(io_error)?;
    std::fs::File::open(directory).and_then(|file| file.sync_all()).map_err(io_error)
}

impl Disk {
    /// Opens or makes the file and reads it whole.
    pub fn open(directory: &Path) -> Result<(Disk, State, Identity), DiskError> {
        std::fs::create_dir_all(directory)
            .map_err(|source| DiskError::Io { path: directory.to_path_buf(), source })?;
        let path = directory.join("state.redb");
        if !path.exists() {
            // The file gets its name only when it is whole: a first start that is cut short must not
            // leave a file that no later start can open.
            make_database(directory, &path)?;
        }
        let database = Database::create(&path).map_err(|error| match error {
            redb::DatabaseError::DatabaseAlreadyOpen => DiskError::InUse { path: path.clone() },
            other => DiskError::Database { path: path.clone(), source: Box::new(other.into()) },
        })?;
        let disk = Disk { database, path };
        let identity = disk.prepare()?;
        let state = disk.read()?;
        Ok((disk, state, identity))
    }

    /// Writes a state to a new file, which can be opened as this one can.
    pub fn copy_to(path: &Path, state: &State, identity: Identity) -> Result<(), DiskError> {
        let failure = |error: redb::Error| DiskError::Database { path: path.into(), source: Box::new(error) };
        let database = Database::create(path).map_err(|error| failure(error.into()))?;
        let copy = Disk { database, path: path.into() };
        copy.numbers(identity.cluster as i64, identity.member as i64).map_err(failure)?;
        let batch = Batch {
            keys: state.keys.iter().map(|(key, entry)| (key.clone(), Some(entry.clone()))).collect(),
            leases: state.leases.iter().map(|(id, lease)| (*id, Some(lease.granted_seconds))).collect(),
            compacted: false,
        };
        copy.commit(&batch, state)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the batch durable, together with the numbers of the state it leads to.
    pub fn commit(&self, batch: &Batch, state: &State) -> Result<(), DiskError> {
        self.try_commit(batch, state).map_err(|error| self.failure(error))
    }

    fn try_commit(&self, batch: &Batch, state: &State) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut keys = transaction.open_table(KEYS)?;
            for (key, entry) in &batch.keys {
                match entry {
                    Some(entry) => keys.insert(key.as_ref(), encode(entry).as_slice())?,
                    None => keys.remove(key.as_ref())?,
                };
            }
            let mut leases = transaction.open_table(LEASES)?;
            for (id, seconds) in &batch.leases {
                match seconds {
                    Some(seconds) => leases.insert(id, seconds)?,
                    None => leases.remove(id)?,
                };
            }
            let mut numbers = transaction.open_table(NUMBERS)?;
            numbers.insert("revision", state.revision)?;
            numbers.insert("compacted", state.compacted)?;
        }
        transaction.commit()?;
        Ok(())
    }

    fn prepare(&self) -> Result<Identity, DiskError> {
        let mut bytes = [0; 16];
        std::fs::File::open("/dev/urandom")
            .and_then(|mut random| random.read_exact(&mut bytes))
            .map_err(|source| DiskError::Io { path: "/dev/urandom".into(), source })?;
        let (cluster, member) = bytes.split_at(8);
        let number = |bytes: &[u8]| bytes.iter().fold(0i64, |sum, byte| (sum << 8) | i64::from(*byte));
        let numbers = self.numbers(number(cluster), number(member)).map_err(|error| self.failure(error))?;
        match numbers {
            (FORMAT, cluster, member) => Ok(Identity { cluster: cluster as u64, member: member as u64 }),
            (found, ..) => Err(DiskError::Format { path: self.path.clone(), found }),
        }
    }

    /// Format, cluster and member; these are written if the file is new.
    fn numbers(&self, cluster: i64, member: i64) -> Result<(i64, i64, i64), redb::Error> {
        let transaction = self.database.begin_write()?;
        transaction.open_table(KEYS)?;
        transaction.open_table(LEASES)?;
        let mut known = [FORMAT, cluster, member];
        {
            let mut numbers = transaction.open_table(NUMBERS)?;
            for (name, number) in ["format", "cluster", "member"].into_iter().zip(&mut known) {
                let found = numbers.get(name)?.map(|found| found.value());
                match found {
                    Some(found) => *number = found,
                    None => {
                        numbers.insert(name, *number)?;
                    }
                }
            }
        }
        transaction.commit()?;
        let [format, cluster, member] = known;
        Ok((format, cluster, member))
    }

    fn read(&self) -> Result<State, DiskError> {
        let state = self.try_read().map_err(|error| self.failure(error))?;
        state.ok_or_else(|| DiskError::Row { path: self.path.clone() })
    }

    /// Nothing, if a row is cut short.
    fn try_read(&self) -> Result<Option<State>, redb::Error> {
        let mut state = State::new();
        let transaction = self.database.begin_read()?;
        let numbers = transaction.open_table(NUMBERS)?;
        if let Some(revision) = numbers.get("revision")? {
            state.revision = revision.value();
        }
        if let Some(compacted) = numbers.get("compacted")? {
            state.compacted = compacted.value();
        }
        for row in transaction.open_table(LEASES)?.iter()? {
            let (id, seconds) = row?;
            let lease = LeaseState { granted_seconds: seconds.value(), keys: Default::default() };
            state.leases.insert(id.value(), lease);
        }
        for row in transaction.open_table(KEYS)?.iter()? {
            let (key, bytes) = row?;
            let key: Key = Arc::from(key.value());
            let Some(entry) = decode(bytes.value()) else { return Ok(None) };
            if let Some(lease) = state.leases.get_mut(&entry.lease) {
                lease.keys.insert(key.clone());
            }
            state.stored_bytes += (key.len() + entry.value.len()) as u64;
            state.keys.insert(key, Arc::new(entry));
        }
        Ok(Some(state))
    }

    fn failure(&self, error: redb::Error) -> DiskError {
        DiskError::Database { path: self.path.clone(), source: Box::new(error) }
    }
}

fn encode(entry: &Entry) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(ENTRY_HEADER_BYTES + entry.value.len());
    for number in [entry.create_revision, entry.mod_revision, entry.version, entry.lease] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&entry.value);
    bytes
}

fn decode(bytes: &[u8]) -> Option<Entry> {
    let (header, value) = bytes.split_at_checked(ENTRY_HEADER_BYTES)?;
    let mut numbers = header.chunks_exact(8).map(|chunk| chunk.try_into().map(i64::from_le_bytes));
    let mut next = || numbers.next()?.ok();
    Some(Entry {
        create_revision: next()?,
        mod_revision: next()?,
        version: next()?,
        lease: next()?,
        value: value.to_vec(),
    })
}
