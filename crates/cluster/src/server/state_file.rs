//! One file with the state: redb with a table of keys, two of leases, one of numbers, and one of users and roles. A commit has reached the disk
//! when it returns.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use atoll_files::Access;
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, TableError, WriteTransaction};

use super::auth::Auth;
use super::batch::Batch;
use super::disk_error::{DiskError, FORMAT, Identity};
use super::state::{Entry, Key, LeaseState, State};

const KEYS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("keys");
const LEASES: TableDefinition<i64, i64> = TableDefinition::new("leases");
/// Owners of leases that have one. Files of earlier releases lack the table, and earlier releases overlook it.
const LEASE_OWNERS: TableDefinition<i64, &str> = TableDefinition::new("lease owners");
const NUMBERS: TableDefinition<&str, i64> = TableDefinition::new("numbers");
/// One row, as JSON. Files of earlier releases lack the table, and earlier releases overlook it.
const AUTH: TableDefinition<&str, &[u8]> = TableDefinition::new("auth");
const AUTH_ROW: &str = "users and roles";

/// Four numbers precede the value of a key: create revision, mod revision, version, lease.
const ENTRY_HEADER_BYTES: usize = 32;

/// An open file.
pub struct StateFile {
    database: Database,
    path: PathBuf,
}

/// Content of a file.
pub struct Content {
    pub state: State,
    pub identity: Identity,
    /// How many commits it has had.
    pub commits: i64,
}

impl Content {
    /// Which of two files has more. A release that did not count commits has raised the revision.
    pub fn age(&self) -> (i64, i64) {
        (self.state.revision, self.commits)
    }
}

/// Opens a file, or makes it. Only its owner may read it.
fn create(path: &Path) -> Result<Database, redb::DatabaseError> {
    let file = atoll_files::open_or_make(path, Access::Owner).map_err(redb::StorageError::from)?;
    Database::builder().create_file(file)
}

impl StateFile {
    /// Opens a file that is there, compares all of it with its checksums, and reads it.
    pub fn open(path: &Path) -> Result<(StateFile, Content), DiskError> {
        // Bytes of a damaged file can make redb panic, which is another way to say that it is damaged.
        let opened = catch_unwind(AssertUnwindSafe(|| Self::open_checked(path)));
        opened.unwrap_or_else(|_| {
            Err(DiskError::Damaged {
                path: path.into(),
                detail: "it cannot be read; the panic above says where".into(),
            })
        })
    }

    fn open_checked(path: &Path) -> Result<(StateFile, Content), DiskError> {
        let io_error = |source| DiskError::Io { path: path.into(), source };
        // An empty one would be made.
        std::fs::metadata(path).map_err(io_error)?;
        let mut database = create(path).map_err(|error| match error {
            redb::DatabaseError::DatabaseAlreadyOpen => DiskError::InUse { path: path.into() },
            other => DiskError::of(path, other.into()),
        })?;
        // Otherwise only what a crash has left would be checked. Whether the newest commit has been given up, the
        // count of commits says.
        database.check_integrity().map_err(|error| DiskError::of(path, error.into()))?;
        let file = StateFile { database, path: path.into() };
        let content = file.prepare_and_read()?;
        Ok((file, content))
    }

    /// Makes a file with this content, under its name only when it is whole.
    pub fn make(path: &Path, content: &Content) -> Result<(), DiskError> {
        let unfinished = path.with_added_extension("new");
        let io_error = |source| DiskError::Io { path: unfinished.clone(), source };
        match std::fs::remove_file(&unfinished) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(io_error(error)),
            _ => {}
        }
        if let Err(error) = Self::write_new(&unfinished, content) {
            // The next one begins with removing it, too; until then it would take room.
            let _ = std::fs::remove_file(&unfinished);
            return Err(error);
        }
        atoll_files::rename(&unfinished, path).map_err(io_error)
    }

    /// Writes a file that is not taken for the state until it is whole.
    pub fn write_new(path: &Path, content: &Content) -> Result<(), DiskError> {
        let failure = |error: redb::Error| DiskError::of(path, error);
        let database = create(path).map_err(|error| failure(error.into()))?;
        let file = StateFile { database, path: path.into() };
        let Content { state, identity, commits } = content;
        file.numbers(*identity).map_err(failure)?;
        file.commit(&Batch::of(state), state, *commits)
    }

    /// Makes the batch durable, together with the numbers of the state it leads to.
    pub fn commit(&self, batch: &Batch, state: &State, commits: i64) -> Result<(), DiskError> {
        self.try_commit(batch, state, commits).map_err(|error| DiskError::of(&self.path, error))
    }

    fn try_commit(&self, batch: &Batch, state: &State, commits: i64) -> Result<(), redb::Error> {
        let transaction = self.database.begin_write()?;
        {
            let mut keys = transaction.open_table(KEYS)?;
            for (key, entry) in &batch.keys {
                match entry {
                    Some(entry) => keys.insert(key.as_ref(), encode(entry).as_slice())?,
                    None => keys.remove(key.as_ref())?,
                };
            }
            write_leases(&transaction, batch)?;
            if let Some(auth) = &batch.auth {
                let json = serde_json::to_vec(&**auth).expect("users and roles are plain JSON");
                transaction.open_table(AUTH)?.insert(AUTH_ROW, json.as_slice())?;
            }
            let mut numbers = transaction.open_table(NUMBERS)?;
            numbers.insert("revision", state.revision)?;
            numbers.insert("compacted", state.compacted)?;
            numbers.insert("commits", commits)?;
        }
        transaction.commit()?;
        Ok(())
    }

    fn prepare_and_read(&self) -> Result<Content, DiskError> {
        let failure = |error: redb::Error| DiskError::of(&self.path, error);
        let (format, identity) = self.numbers(Identity::random()?).map_err(failure)?;
        if format != FORMAT {
            return Err(DiskError::Format { path: self.path.clone(), found: format });
        }
        let damaged = |detail: String| DiskError::Damaged { path: self.path.clone(), detail };
        let (mut state, commits) = self
            .try_read()
            .map_err(failure)?
            .ok_or_else(|| damaged("it holds a key whose record is cut short".into()))?;
        if let Some(json) = self.read_auth().map_err(failure)? {
            let auth: Auth =
                serde_json::from_slice(&json).map_err(|error| damaged(format!("users and roles: {error}")))?;
            state.auth = Arc::new(auth);
        }
        Ok(Content { state, identity, commits })
    }

    /// Format and identity; they are written if the file is new.
    fn numbers(&self, identity: Identity) -> Result<(i64, Identity), redb::Error> {
        let transaction = self.database.begin_write()?;
        transaction.open_table(KEYS)?;
        transaction.open_table(LEASES)?;
        let mut known = [FORMAT, identity.cluster as i64, identity.member as i64];
        let mut is_new = false;
        {
            let mut numbers = transaction.open_table(NUMBERS)?;
            for (name, number) in ["format", "cluster", "member"].into_iter().zip(&mut known) {
                let found = numbers.get(name)?.map(|found| found.value());
                match found {
                    Some(found) => *number = found,
                    None => {
                        is_new = true;
                        numbers.insert(name, *number)?;
                    }
                }
            }
        }
        if is_new {
            transaction.commit()?
        } else {
            transaction.abort()?
        }
        let [format, cluster, member] = known;
        Ok((format, Identity { cluster: cluster as u64, member: member as u64 }))
    }

    /// Nothing in a file of an earlier release.
    fn read_auth(&self) -> Result<Option<Vec<u8>>, redb::Error> {
        match self.database.begin_read()?.open_table(AUTH) {
            Ok(table) => Ok(table.get(AUTH_ROW)?.map(|row| row.value().to_vec())),
            Err(TableError::TableDoesNotExist(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Nothing, if a row is cut short.
    fn try_read(&self) -> Result<Option<(State, i64)>, redb::Error> {
        let mut state = State::new();
        let transaction = self.database.begin_read()?;
        let numbers = transaction.open_table(NUMBERS)?;
        let commits = numbers.get("commits")?.map_or(0, |commits| commits.value());
        if let Some(revision) = numbers.get("revision")? {
            state.revision = revision.value();
        }
        if let Some(compacted) = numbers.get("compacted")? {
            state.compacted = compacted.value();
        }
        for row in transaction.open_table(LEASES)?.iter()? {
            let (id, seconds) = row?;
            let lease = LeaseState { granted_seconds: seconds.value(), ..LeaseState::default() };
            state.leases.insert(id.value(), lease);
        }
        match transaction.open_table(LEASE_OWNERS) {
            Ok(table) => {
                for row in table.iter()? {
                    let (id, owner) = row?;
                    if let Some(lease) = state.leases.get_mut(&id.value()) {
                        lease.owner = Some(Arc::from(owner.value()));
                    }
                }
            }
            Err(TableError::TableDoesNotExist(_)) => {}
            Err(error) => return Err(error.into()),
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
        Ok(Some((state, commits)))
    }
}

fn write_leases(transaction: &WriteTransaction, batch: &Batch) -> Result<(), redb::Error> {
    let mut leases = transaction.open_table(LEASES)?;
    if batch.leases.is_empty() {
        return Ok(());
    }
    let mut owners = transaction.open_table(LEASE_OWNERS)?;
    for (id, granted) in &batch.leases {
        match granted {
            Some((seconds, _)) => leases.insert(id, seconds)?,
            None => leases.remove(id)?,
        };
        match granted.as_ref().and_then(|(_, owner)| owner.as_deref()) {
            Some(owner) => drop(owners.insert(id, owner)?),
            None => drop(owners.remove(id)?),
        }
    }
    Ok(())
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
