//! The directory in cluster state, with a copy that watches keep current.
//!
//! As long as cluster state answers, every call that waits goes there. When it does not, reads are answered
//! from the copy: losing cluster state stops no I/O, only changes of buckets and identities.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use atoll_cluster::{ClusterClient, ClusterError, Contention, PrefixWatch, Transaction, WatchEvent, keys};
use atoll_iam::operations::Answer;
use atoll_iam::{Identities, RecordName};
use atoll_identities::{IdentityError, IdentityStore, key_of, name_of, read_entry_or_close};
use atoll_s3::{BucketDirectory, ChangeError, DirectoryError, IdentityOperation};
use atoll_types::coordination::{CLOCK_DIFFERENCE_MS_MAX, ClockRecord};
use atoll_types::identities::{AccessKeyRecord, AccountRecord, IdentitiesRevision, LastUsedRecord};
use atoll_types::record_json::read_record;
use atoll_types::records::{BucketRecord, PoolRecord};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long a read waits for cluster state before the copy has to do.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long after cluster state has not answered it is asked again, beside the requests.
const PAUSE: Duration = Duration::from_millis(500);
/// Interval at which cluster state confirms this gateway's copy of identities.
const CONFIRM_PAUSE: Duration = Duration::from_secs(2);
/// How long a change of identities waits until this gateway has heard of it, too.
const HEAR_TIMEOUT: Duration = Duration::from_secs(5);

/// Buckets and identities as records in cluster state.
pub struct EtcdDirectory {
    cluster: ClusterClient,
    store: IdentityStore,
    copy: Arc<Mutex<Copy>>,
    heard: watch::Receiver<Heard>,
    followers: Vec<JoinHandle<()>>,
}

/// The revisions of the last events of identities that were taken into the copy.
#[derive(Clone, Copy, Debug, Default)]
struct Heard {
    identities: i64,
    access_keys: i64,
}

impl Heard {
    fn take(&mut self, prefix: &str, revision: i64) {
        match prefix {
            keys::IDENTITIES => self.identities = revision,
            keys::ACCESS_KEYS => self.access_keys = revision,
            _ => {}
        }
    }
}

/// Copy of cluster state.
#[derive(Default)]
struct Copy {
    /// By key.
    records: BTreeMap<String, Vec<u8>>,
    identities: Arc<Identities>,
    /// True while cluster state does not answer. It is being asked until it does.
    is_silent: bool,
    /// When cluster state was asked last of those times when it knew no more of identities than this copy.
    confirmed: Option<Instant>,
    clock: Option<HeardTime>,
}

/// The cluster's time.
#[derive(Clone, Copy, Debug)]
struct HeardTime {
    unix_ms: u64,
    /// The revision that says so.
    revision: i64,
    /// When this process has first seen it. That was a moment later.
    heard: Instant,
}

impl HeardTime {
    fn now_unix_ms(&self) -> u64 {
        self.unix_ms + self.heard.elapsed().as_millis() as u64
    }
}

/// By how much the clock of this process is ahead of the cluster's, in milliseconds, as of the last look.
static CLOCK_AHEAD_MS: AtomicU64 = AtomicU64::new(0);

/// By how much the clock of this gateway is ahead of the cluster's, in milliseconds, as of the last look; 0 if it is not.
pub fn clock_ahead_ms() -> u64 {
    CLOCK_AHEAD_MS.load(Ordering::Relaxed)
}

impl EtcdDirectory {
    /// A directory over an open connection.
    pub async fn start(cluster: ClusterClient) -> Result<Self, ClusterError> {
        let copy = Arc::new(Mutex::new(Copy::default()));
        let (mut watches, mut listed) = (Vec::new(), Heard::default());
        let begun = Instant::now();
        for prefix in [keys::BUCKETS, keys::IDENTITIES, keys::ACCESS_KEYS] {
            let listing = cluster.list_raw(prefix).await?;
            lock(&copy).records.extend(listing.entries.into_iter().map(|(key, value, _)| (key, value)));
            listed.take(prefix, listing.revision);
            watches.push((prefix, cluster.watch_prefix(prefix, listing.revision + 1)));
        }
        lock(&copy).read_identities();
        lock(&copy).confirmed = Some(begun);
        hear_time(&cluster, &Arc::downgrade(&copy)).await;
        let (told, heard) = watch::channel(listed);
        let told = Arc::new(told);
        let followers = watches
            .into_iter()
            .map(|(prefix, watch)| tokio::spawn(follow(prefix, watch, copy.clone(), told.clone())));
        let confirming = tokio::spawn(confirm_for_ever(cluster.clone(), Arc::downgrade(&copy), heard.clone()));
        let followers = followers.chain([confirming]).collect();
        Ok(EtcdDirectory { store: IdentityStore::new(cluster.clone()), cluster, copy, heard, followers })
    }

    /// Waits until the copy has the events of a revision, or `limit` is over: watches arrive on their own.
    async fn hear(&self, revision: i64, has_access_keys: bool, limit: Duration) {
        let mut heard = self.heard.clone();
        let is_heard =
            |heard: &Heard| heard.identities >= revision && (!has_access_keys || heard.access_keys >= revision);
        if tokio::time::timeout(limit, heard.wait_for(is_heard)).await.is_err() {
            tracing::warn!("a change of identities was made, but this gateway has not heard of it yet");
        }
    }

    /// The answer of cluster state, or nothing if it has none to give now.
    async fn ask<T>(
        &self,
        question: impl Future<Output = Result<T, ClusterError>>,
    ) -> Result<Option<T>, ClusterError> {
        if lock(&self.copy).is_silent {
            return Ok(None);
        }
        match tokio::time::timeout(PATIENCE, question).await {
            // A record that cannot be read is an answer; anything else may be better later.
            Ok(Err(error @ (ClusterError::Decode { .. } | ClusterError::Untrusted { .. }))) => Err(error),
            Ok(Err(_)) | Err(_) => {
                self.fell_silent();
                Ok(None)
            }
            Ok(Ok(answer)) => Ok(Some(answer)),
        }
    }

    /// From now on reads do without cluster state, until it answers again.
    fn fell_silent(&self) {
        if !std::mem::replace(&mut lock(&self.copy).is_silent, true) {
            tracing::warn!("cluster state does not answer; buckets and users are those last seen");
            tokio::spawn(await_answer(self.cluster.clone(), Arc::downgrade(&self.copy)));
        }
    }

    /// The answer of cluster state for a change, which would wait long for one otherwise.
    async fn ask_for_change<T>(
        &self,
        question: impl Future<Output = Result<T, ClusterError>>,
    ) -> Result<T, DirectoryError> {
        let answer = self.ask(question).await.map_err(error)?;
        answer.ok_or_else(|| DirectoryError::Unavailable("it does not answer; retry later".into()))
    }

    /// A transaction that is done only while the pools and the account of a new bucket are there. Both are removed only
    /// while no bucket needs them, but a request may have seen them before.
    async fn while_there_is_what_it_needs(&self, record: &BucketRecord) -> Result<Transaction, DirectoryError> {
        let mut change = Transaction::new();
        let pools = self.cluster.list_usable::<PoolRecord>(keys::POOLS).await.map_err(error)?.entries;
        let mut wanted = vec![record.pool, record.data_pool()];
        wanted.dedup();
        for pool in wanted {
            let found = pools.iter().find(|(_, found, _)| found.id == pool);
            let Some((key, _, revision)) = found else { return Err(DirectoryError::Gone(format!("pool {pool}"))) };
            change = change.check(key, *revision);
        }
        let identities = self.store.current().await.map_err(error)?;
        let Some(account) = identities.account_by_canonical_id(&record.owner) else {
            return Err(DirectoryError::Gone("the account of the bucket's owner".into()));
        };
        let key = key_of(&RecordName::Account(account.id.clone()));
        let found = self.cluster.get::<AccountRecord>(&key).await.map_err(error)?;
        // The first account may have no record yet.
        Ok(change.check(&key, found.map_or(0, |(_, revision)| revision)))
    }

    fn is_unheard(&self, key: &str) -> bool {
        let copy = lock(&self.copy);
        !copy.is_silent && !copy.records.contains_key(key)
    }

    async fn record<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, DirectoryError> {
        if let Some(found) = self.ask(self.cluster.get::<T>(key)).await.map_err(error)? {
            return Ok(found.map(|(record, _)| record));
        }
        match lock(&self.copy).records.get(key) {
            Some(value) => parse(key, value).map(Some),
            // It may have been made since.
            None => Err(not_seen_before(key)),
        }
    }
}

fn not_seen_before(key: &str) -> DirectoryError {
    DirectoryError::Unavailable(format!("it does not answer, and {key} was not seen before"))
}

/// Whatever it says, it answers.
async fn any_answer(cluster: &ClusterClient) -> Result<(), ClusterError> {
    match cluster.get::<IdentitiesRevision>(keys::IDENTITIES_REVISION).await {
        Ok(_) | Err(ClusterError::Decode { .. } | ClusterError::Untrusted { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Asks cluster state until it answers.
async fn await_answer(cluster: ClusterClient, copy: Weak<Mutex<Copy>>) {
    loop {
        tokio::time::sleep(PAUSE).await;
        let is_answered = matches!(tokio::time::timeout(PATIENCE, any_answer(&cluster)).await, Ok(Ok(())));
        // Without the directory nobody waits for it.
        let Some(copy) = copy.upgrade() else { return };
        if is_answered {
            lock(&copy).is_silent = false;
            tracing::info!("cluster state answers again");
            return;
        }
    }
}

/// Asks cluster state now and then whether identities were changed since this copy has heard of them. A watch
/// alone does not suffice: it brings nothing if nothing has changed, and if the connection is cut.
async fn confirm_for_ever(cluster: ClusterClient, copy: Weak<Mutex<Copy>>, heard: watch::Receiver<Heard>) {
    loop {
        tokio::time::sleep(CONFIRM_PAUSE).await;
        hear_time(&cluster, &copy).await;
        let begun = Instant::now();
        let asked = cluster.get::<IdentitiesRevision>(keys::IDENTITIES_REVISION);
        let changed = match tokio::time::timeout(PATIENCE, asked).await {
            Ok(Ok(found)) => found.map_or(0, |(_, revision)| revision),
            Ok(Err(_)) | Err(_) => continue,
        };
        let Some(copy) = copy.upgrade() else { return };
        if heard.borrow().identities >= changed {
            lock(&copy).confirmed = Some(begun);
        }
    }
}

/// Reads the cluster's time.
async fn hear_time(cluster: &ClusterClient, copy: &Weak<Mutex<Copy>>) {
    let asked = cluster.get::<ClockRecord>(keys::CLOCK);
    // What was heard before goes on.
    let Ok(Ok(found)) = tokio::time::timeout(PATIENCE, asked).await else { return };
    let Some(copy) = copy.upgrade() else { return };
    let mut copy = lock(&copy);
    if let Some((clock, revision)) = found
        && copy.clock.is_none_or(|known| known.revision != revision)
    {
        copy.clock = Some(HeardTime { unix_ms: clock.unix_ms, revision, heard: Instant::now() });
    }
    let own = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let ahead_ms = copy.clock.map_or(0, |clock| own.saturating_sub(clock.now_unix_ms()));
    let was_far = CLOCK_AHEAD_MS.swap(ahead_ms, Ordering::Relaxed) > CLOCK_DIFFERENCE_MS_MAX;
    if ahead_ms > CLOCK_DIFFERENCE_MS_MAX && !was_far {
        tracing::error!(
            "the clock of this host is {} s ahead of the cluster's: retention of objects lapses by the cluster's",
            ahead_ms / 1_000
        );
    }
}

impl Drop for EtcdDirectory {
    fn drop(&mut self) {
        self.followers.iter().for_each(JoinHandle::abort);
    }
}

/// A map is whole between any two changes, so a panic elsewhere does not spoil it.
fn lock(copy: &Mutex<Copy>) -> MutexGuard<'_, Copy> {
    copy.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Copy {
    /// Reads all identities again.
    fn read_identities(&mut self) {
        let entries = self.records.iter().filter(|(key, _)| !key.starts_with(keys::BUCKETS));
        let records = entries.filter_map(|(key, value)| read_entry_or_close(key, value));
        self.identities = Arc::new(Identities::from_records(records));
    }

    /// Takes over one record of identities.
    fn apply(&mut self, key: &str, value: Option<&[u8]>) {
        if let Some(name) = name_of(key) {
            let record = value.and_then(|value| read_entry_or_close(key, value));
            Arc::make_mut(&mut self.identities).apply(&name, record);
        }
    }
}

async fn follow(
    prefix: &'static str,
    mut watch: PrefixWatch,
    copy: Arc<Mutex<Copy>>,
    told: Arc<watch::Sender<Heard>>,
) {
    while let Some(event) = watch.next().await {
        let heard = {
            let copy = &mut *lock(&copy);
            match event {
                WatchEvent::Put { key, value, mod_revision } => {
                    copy.apply(&key, Some(&value));
                    copy.records.insert(key, value);
                    mod_revision
                }
                WatchEvent::Delete { key, mod_revision } => {
                    copy.apply(&key, None);
                    copy.records.remove(&key);
                    mod_revision
                }
                WatchEvent::Resync { entries, revision } => {
                    copy.records.retain(|key, _| !key.starts_with(prefix));
                    copy.records.extend(entries.into_iter().map(|(key, value, _)| (key, value)));
                    if prefix != keys::BUCKETS {
                        copy.read_identities();
                    }
                    revision
                }
            }
        };
        told.send_modify(|told| told.take(prefix, heard));
    }
}

fn parse<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, DirectoryError> {
    if value.is_empty() {
        return Err(DirectoryError::Refused { name: key.into(), cause: "this cluster has not signed it".into() });
    }
    read_record(value).map_err(|error| DirectoryError::Malformed { name: key.into(), detail: error.to_string() })
}

fn error(error: ClusterError) -> DirectoryError {
    match error {
        ClusterError::Decode { key, .. } => {
            DirectoryError::Malformed { name: key, detail: "it is not the JSON of such a record".into() }
        }
        ClusterError::Untrusted { key, cause } => DirectoryError::Refused { name: key, cause },
        other => DirectoryError::Unavailable(other.to_string()),
    }
}

#[async_trait]
impl BucketDirectory for EtcdDirectory {
    async fn bucket(&self, name: &str) -> Result<Option<BucketRecord>, DirectoryError> {
        self.record(&keys::bucket(name)).await
    }

    fn is_unheard_bucket(&self, name: &str) -> bool {
        self.is_unheard(&keys::bucket(name))
    }

    fn is_unheard_access_key(&self, access_key: &str) -> bool {
        self.is_unheard(&keys::access_key(access_key))
    }

    async fn buckets(&self) -> Result<Vec<BucketRecord>, DirectoryError> {
        if let Some(listing) =
            self.ask(self.cluster.list_usable::<BucketRecord>(keys::BUCKETS)).await.map_err(error)?
        {
            return Ok(listing.entries.into_iter().map(|(_, record, _)| record).collect());
        }
        let copy = lock(&self.copy);
        let buckets = copy.records.iter().filter(|(key, _)| key.starts_with(keys::BUCKETS));
        // One that cannot be used does not hide the others.
        Ok(buckets.filter_map(|(key, value)| parse(key, value).ok()).collect())
    }

    async fn create_bucket(&self, record: &BucketRecord) -> Result<Option<BucketRecord>, DirectoryError> {
        self.ask_for_change(any_answer(&self.cluster)).await?;
        let mut contention = Contention::default();
        loop {
            let needed = self.while_there_is_what_it_needs(record).await?;
            let change = needed.check(&keys::bucket(&record.name), 0).put(&keys::bucket(&record.name), record);
            let unclear = match self.cluster.transact(&change.map_err(error)?).await {
                Ok(_) => return Ok(None),
                Err(conflict @ ClusterError::Conflict { .. }) => match self.bucket(&record.name).await? {
                    Some(found) => return Ok(Some(found)),
                    // A pool or the account has changed.
                    None if contention.pause().await => continue,
                    None => conflict,
                },
                // Whether the record was written is not known: look.
                Err(unclear @ ClusterError::Unclear { .. }) => match self.bucket(&record.name).await? {
                    Some(found) if found == *record => return Ok(None),
                    Some(found) => return Ok(Some(found)),
                    None => unclear,
                },
                Err(other) => other,
            };
            return Err(error(unclear));
        }
    }

    async fn update_bucket(&self, old: &BucketRecord, new: &BucketRecord) -> Result<bool, DirectoryError> {
        let key = keys::bucket(&old.name);
        let found = self.ask_for_change(self.cluster.get::<BucketRecord>(&key)).await?;
        let Some((_, revision)) = found.filter(|(found, _)| found == old) else { return Ok(false) };
        match self.cluster.compare_and_swap(&key, revision, new).await {
            Ok(_) => Ok(true),
            // The caller looks at the record again, and finds what it wanted or tries anew.
            Err(ClusterError::Conflict { .. } | ClusterError::Unclear { .. }) => Ok(false),
            Err(other) => Err(error(other)),
        }
    }

    async fn delete_bucket(&self, record: &BucketRecord) -> Result<bool, DirectoryError> {
        let key = keys::bucket(&record.name);
        let found = self.ask_for_change(self.cluster.get::<BucketRecord>(&key)).await?;
        let Some((_, revision)) = found.filter(|(found, _)| found == record) else { return Ok(false) };
        match self.cluster.delete_if(&key, revision).await {
            Ok(_) => Ok(true),
            Err(ClusterError::Conflict { .. }) => Ok(false),
            Err(other) => Err(error(other)),
        }
    }

    async fn pool(&self, name: &str) -> Result<Option<PoolRecord>, DirectoryError> {
        // Only the making of a bucket asks, which needs cluster state anyway: there is no copy.
        let listing = self.ask_for_change(self.cluster.list_usable::<PoolRecord>(keys::POOLS)).await?;
        Ok(listing.entries.into_iter().map(|(_, pool, _)| pool).find(|pool| pool.name == name))
    }

    fn identities(&self) -> Arc<Identities> {
        lock(&self.copy).identities.clone()
    }

    fn cluster_unix_ms(&self) -> Option<u64> {
        lock(&self.copy).clock.map(|clock| clock.now_unix_ms())
    }

    fn unconfirmed_for(&self) -> Duration {
        lock(&self.copy).confirmed.map_or(Duration::MAX, |confirmed| confirmed.elapsed())
    }

    async fn identities_with(&self, access_key: &str) -> Result<Option<Arc<Identities>>, DirectoryError> {
        let key = keys::access_key(access_key);
        let found = self.ask(self.cluster.get::<AccessKeyRecord>(&key)).await.map_err(error)?;
        match found {
            Some(Some((_, revision))) => self.hear(revision, true, PATIENCE).await,
            Some(None) => return Ok(None),
            // It may have been made since.
            None => return Err(not_seen_before(&key)),
        }
        Ok(Some(self.identities()).filter(|identities| identities.access_key(access_key).is_some()))
    }

    async fn current_identities(&self) -> Result<Arc<Identities>, DirectoryError> {
        let found = self.ask(self.store.current()).await.map_err(error)?;
        Ok(found.map_or_else(|| self.identities(), Arc::new))
    }

    async fn change_identities(&self, operation: &IdentityOperation<'_>) -> Result<Answer, ChangeError> {
        self.ask_for_change(any_answer(&self.cluster)).await?;
        let changed = self.store.change(operation).await.map_err(|failure| match failure {
            IdentityError::Refused(refused) => ChangeError::Refused(refused),
            IdentityError::Cluster(cluster) => error(cluster).into(),
            IdentityError::Unreadable(name) => {
                DirectoryError::Malformed { name, detail: "it cannot be read".into() }.into()
            }
            IdentityError::Untrusted(name) => {
                DirectoryError::Refused { name, cause: "this cluster has not signed it".into() }.into()
            }
            IdentityError::Busy => DirectoryError::Unavailable(failure.to_string()).into(),
        })?;
        if let Some(revision) = changed.revision {
            self.hear(revision, changed.has_access_keys, HEAR_TIMEOUT).await;
        }
        Ok(changed.answer)
    }

    async fn last_used(&self, access_key: &str) -> Result<Option<LastUsedRecord>, DirectoryError> {
        let key = keys::last_used(access_key);
        let found = self.ask(self.cluster.get::<LastUsedRecord>(&key)).await.map_err(error)?;
        Ok(found.flatten().map(|(record, _)| record))
    }

    async fn note_last_use(&self, access_key: &str, record: &LastUsedRecord) -> Result<(), DirectoryError> {
        self.cluster.put(&keys::last_used(access_key), record).await.map(drop).map_err(error)
    }
}

#[cfg(test)]
mod tests;
