//! Identities in cluster state: read as a whole, changed by one transaction for each operation ([`IdentityStore`]).
//!
//! This crate joins atoll-iam, which is pure, with cluster state. It may not know requests, secrets or S3.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;
use atoll_cluster::{ClusterClient, ClusterError, Contention, Transaction, keys};
use atoll_iam::operations::{Answer, Change, IamError, Outcome};
use atoll_iam::{Identities, Record, RecordName};
use atoll_types::identities::IdentitiesRevision;
use atoll_types::records::RECORD_FORMAT;
use serde_json::Value;
use tokio::sync::Mutex;

/// Why identities were not read or changed.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Cluster state.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The operation does not fit the present identities.
    #[error(transparent)]
    Refused(#[from] IamError),
    /// The record to change cannot be read, and may be of a later release.
    #[error("record '{0}' in cluster state cannot be read, so it is not changed")]
    Unreadable(String),
    /// The record to be changed was not written by a holder of the cluster's keys.
    #[error("record '{0}' in cluster state is refused, so it is not changed; 'atoll cluster sign' shows it")]
    Untrusted(String),
    /// There is no end of conflicts.
    #[error("others change identities all the time; try again")]
    Busy,
}

/// Result of an operation.
#[derive(Debug)]
pub struct Changed {
    /// Answer for the caller.
    pub answer: Answer,
    /// The revision of cluster state at which it was done; `None` if nothing was to be changed.
    pub revision: Option<i64>,
    /// True if access keys were changed.
    pub has_access_keys: bool,
}

/// The key of a record of identities.
pub fn key_of(name: &RecordName) -> String {
    match name {
        RecordName::AccessKey(access_key) => keys::access_key(access_key),
        other => format!("{}{}", keys::IDENTITIES, other.path()),
    }
}

/// The record of identities that a key names.
pub fn name_of(key: &str) -> Option<RecordName> {
    match key.strip_prefix(keys::ACCESS_KEYS) {
        Some(access_key) => Some(RecordName::AccessKey(access_key.into())),
        None => key.strip_prefix(keys::IDENTITIES).and_then(RecordName::parse),
    }
}

/// Reads a record of identities. An unreadable one is logged, and left out: the others count.
pub fn read_entry(key: &str, value: &[u8]) -> Option<Record> {
    let name = name_of(key)?;
    match Record::read(&name, value) {
        Ok(record) if record.name() == name => Some(record),
        Ok(_) => {
            tracing::warn!("record '{key}' in cluster state is another's, so it is left out");
            None
        }
        Err(error) => {
            tracing::warn!("record '{key}' in cluster state cannot be read, so it is left out: {error}");
            None
        }
    }
}

/// As [`read_entry`], for decisions: an unreadable record closes everything that would be open without it.
pub fn read_entry_or_close(key: &str, value: &[u8]) -> Option<Record> {
    read_entry(key, value).or_else(|| Record::closed(&name_of(key)?))
}

/// Condition of a change of identities.
#[async_trait]
pub trait ChangeCondition: Send + Sync {
    /// Looks at cluster state. Returns the checks with which the transaction that changes these identities begins.
    async fn check(&self, state: &ClusterClient, identities: &Identities) -> Result<Transaction, IdentityError>;
}

/// No condition.
struct Unconditional;

#[async_trait]
impl ChangeCondition for Unconditional {
    async fn check(&self, _: &ClusterClient, _: &Identities) -> Result<Transaction, IdentityError> {
        Ok(Transaction::new())
    }
}

/// All identities, with the revisions of their records.
#[derive(Default)]
struct Loaded {
    identities: Identities,
    revisions: BTreeMap<String, i64>,
    unreadable: BTreeSet<String>,
    refused: BTreeSet<String>,
}

impl Loaded {
    fn revision(&self, key: &str) -> i64 {
        self.revisions.get(key).copied().unwrap_or(0)
    }
}

/// Reads and changes identities. Read records are kept until a record has changed.
pub struct IdentityStore {
    cluster: ClusterClient,
    loaded: Mutex<Option<Loaded>>,
}

impl IdentityStore {
    /// Over an open connection. Nothing is read yet.
    pub fn new(cluster: ClusterClient) -> Self {
        IdentityStore { cluster, loaded: Mutex::new(None) }
    }

    /// All identities with every change that was made before the call.
    pub async fn current(&self) -> Result<Identities, ClusterError> {
        let mut loaded = self.loaded.lock().await;
        Ok(self.refreshed(&mut loaded).await?.identities.clone())
    }

    /// Does an operation: all its changes or none.
    pub async fn change(
        &self,
        operation: &(dyn Fn(&Identities) -> Result<Outcome, IamError> + Send + Sync),
    ) -> Result<Changed, IdentityError> {
        self.change_if(&Unconditional, operation).await
    }

    /// The same, only if something holds when it is done.
    pub async fn change_if(
        &self,
        condition: &dyn ChangeCondition,
        operation: &(dyn Fn(&Identities) -> Result<Outcome, IamError> + Send + Sync),
    ) -> Result<Changed, IdentityError> {
        let mut contention = Contention::default();
        loop {
            let mut guard = self.loaded.lock().await;
            let loaded = self.refreshed(&mut guard).await?;
            let Outcome { mut changes, answer } = operation(&loaded.identities)?;
            let has_access_keys = changes.iter().any(|change| matches!(name(change), RecordName::AccessKey(_)));
            if changes.is_empty() {
                return Ok(Changed { answer, revision: None, has_access_keys });
            }
            let changes_before = loaded.identities.changes();
            let revision = IdentitiesRevision { format: RECORD_FORMAT, changes: changes_before + 1 };
            changes.push(Change::Put(Record::Revision(revision)));
            let conditions = condition.check(&self.cluster, &loaded.identities).await?;
            let written = self.cluster.transact(&transaction(conditions, loaded, &changes)?).await;
            match written {
                Ok(revision) => {
                    take_over(loaded, changes, revision);
                    return Ok(Changed { answer, revision: Some(revision), has_access_keys });
                }
                Err(ClusterError::Conflict { .. }) => *guard = None,
                Err(error @ ClusterError::Unclear { .. }) => {
                    *guard = None;
                    let is_made = self.are_made(&changes).await?;
                    let loaded = self.refreshed(&mut guard).await?;
                    if is_made {
                        let revision = Some(loaded.revision(keys::IDENTITIES_REVISION));
                        return Ok(Changed { answer, revision, has_access_keys });
                    }
                    // What came after it may have undone it.
                    if loaded.identities.changes() != changes_before {
                        return Err(error.into());
                    }
                }
                Err(error) => {
                    *guard = None;
                    return Err(error.into());
                }
            }
            drop(guard);
            if !contention.pause().await {
                return Err(IdentityError::Busy);
            }
        }
    }

    /// Returns true if records are in the state that the changes would make. A new record has a random id, so
    /// another's is not mistaken for it.
    async fn are_made(&self, changes: &[Change]) -> Result<bool, ClusterError> {
        for change in changes {
            let found = self.cluster.get::<Value>(&key_of(&name(change))).await?.map(|(record, _)| record);
            let is_made = match change {
                Change::Put(Record::Revision(_)) => true,
                Change::Put(record) => found.is_some() && found == serde_json::to_value(record).ok(),
                Change::Delete(_) => found.is_none(),
            };
            if !is_made {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the records read before, if none has changed since; every change raises one record.
    async fn refreshed<'a>(&self, loaded: &'a mut Option<Loaded>) -> Result<&'a mut Loaded, ClusterError> {
        let found = self.cluster.get::<IdentitiesRevision>(keys::IDENTITIES_REVISION).await?;
        let revision = found.map_or(0, |(_, revision)| revision);
        let kept = loaded.take().filter(|known| known.revision(keys::IDENTITIES_REVISION) == revision);
        let current = match kept {
            Some(known) => known,
            None => self.load().await?,
        };
        Ok(loaded.insert(current))
    }

    async fn load(&self) -> Result<Loaded, ClusterError> {
        let mut entries = self.cluster.list_raw(keys::IDENTITIES).await?.entries;
        // Later, so that it has what the number of changes among those speaks of.
        entries.extend(self.cluster.list_raw(keys::ACCESS_KEYS).await?.entries);
        let mut loaded = Loaded::default();
        let mut records = Vec::with_capacity(entries.len());
        for (key, value, revision) in entries {
            match read_entry(&key, &value) {
                Some(record) => records.push(record),
                None if value.is_empty() => drop(loaded.refused.insert(key.clone())),
                None => drop(loaded.unreadable.insert(key.clone())),
            }
            loaded.revisions.insert(key, revision);
        }
        loaded.identities = Identities::from_records(records);
        Ok(loaded)
    }
}

fn name(change: &Change) -> RecordName {
    match change {
        Change::Put(record) => record.name(),
        Change::Delete(name) => name.clone(),
    }
}

fn transaction(
    mut transaction: Transaction,
    loaded: &Loaded,
    changes: &[Change],
) -> Result<Transaction, IdentityError> {
    for change in changes {
        let name = name(change);
        let key = key_of(&name);
        if loaded.unreadable.contains(&key) {
            return Err(IdentityError::Unreadable(key));
        }
        if loaded.refused.contains(&key) {
            return Err(IdentityError::Untrusted(key));
        }
        transaction = transaction.check(&key, loaded.revision(&key));
        transaction = match change {
            Change::Put(record) => transaction.put(&key, record)?,
            Change::Delete(_) => transaction.delete(&key),
        };
        if let (Change::Delete(_), RecordName::AccessKey(access_key)) = (change, &name) {
            transaction = transaction.delete(&keys::last_used(access_key));
        }
    }
    Ok(transaction)
}

fn take_over(loaded: &mut Loaded, changes: Vec<Change>, revision: i64) {
    for change in changes {
        let name = name(&change);
        let key = key_of(&name);
        match change {
            Change::Put(record) => {
                loaded.identities.apply(&name, Some(record));
                loaded.revisions.insert(key, revision);
            }
            Change::Delete(_) => {
                loaded.identities.apply(&name, None);
                loaded.revisions.remove(&key);
            }
        }
    }
}
