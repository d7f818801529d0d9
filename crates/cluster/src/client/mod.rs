//! The client: typed JSON records over `etcd-client`. It talks to etcd and to the embedded server
//! in the same way, limits the time of every request and repeats it where that can do no harm.

mod contention;
mod error;
mod guard;
mod history;
mod join_login;
mod lease;
mod login;
mod manifest;
pub(crate) mod proposals;
mod signed_writes;
mod snapshot;
mod tls;
mod transaction;
mod upkeep;
mod users;
mod watch;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use atoll_types::record_json::read_record;
use etcd_client::{GetOptions, KvClient, PutOptions};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::kinds::{is_named, is_signed};

pub use contention::{Contention, retried};
pub use error::ClusterError;
use error::{Fate, fate};
pub use guard::{GuardFault, Place, RESERVED, RecordGuard, Stored};
pub use lease::{Lease, LeaseStatus, TermEnd};
pub use login::LoginSource;
use login::Session;
pub use proposals::{Proposer, StaticKey};
pub use snapshot::{SnapshotError, verify_snapshot};
pub use tls::TlsFiles;
pub use transaction::Transaction;
pub use upkeep::StateSize;
pub use watch::{PrefixWatch, WatchEvent};

/// Lists may be longer than the 4 MiB that the etcd client accepts by default.
const RESPONSE_BYTES: usize = 64 << 20;
/// Records that were left out of lists and are remembered.
const LEFT_OUT_MAX: usize = 1_000;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// etcd cuts off clients that ping more often than every five seconds.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);

/// Address of cluster state, and the caller's credentials.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// `http://HOST:PORT` or `https://HOST:PORT` of each etcd member or of the embedded server.
    pub endpoints: Vec<String>,
    /// Where the server demands one.
    pub user: Option<String>,
    /// The user's password.
    pub password: Option<String>,
    /// Where to look for another user and password when these are refused.
    pub login: Option<LoginSource>,
    /// For https endpoints.
    pub tls: TlsFiles,
    /// Limit of one attempt; a request that may be repeated takes at most three times as long.
    pub request_timeout: Duration,
    /// Signs and verifies records; none where the key service is not.
    pub guard: Option<Arc<dyn RecordGuard>>,
    /// Signs changes of PGs.
    pub proposer: Option<Proposer>,
}

impl ConnectOptions {
    /// Without a user, with the usual time limit of five seconds.
    pub fn new<S: Into<String>>(endpoints: impl IntoIterator<Item = S>) -> ConnectOptions {
        ConnectOptions {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            user: None,
            password: None,
            login: None,
            tls: TlsFiles::default(),
            request_timeout: Duration::from_secs(5),
            guard: None,
            proposer: None,
        }
    }

    /// With a user and a password.
    pub fn with_user(mut self, user: impl Into<String>, password: impl Into<String>) -> ConnectOptions {
        self.user = Some(user.into());
        self.password = Some(password.into());
        self
    }

    /// With a place to look for another user and password.
    pub fn with_login_source(mut self, source: LoginSource) -> ConnectOptions {
        self.login = Some(source);
        self
    }

    /// With certificates, for https endpoints.
    pub fn with_tls(mut self, tls: TlsFiles) -> ConnectOptions {
        self.tls = tls;
        self
    }
}

/// All records under a prefix, at one revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing<T> {
    /// The revision it was read at; a watch from the next one misses nothing.
    pub revision: i64,
    /// Key, record and modification revision, in the order of the keys.
    pub entries: Vec<(String, T, i64)>,
}

/// Future answer of a request. Boxed, so that the layers below (gRPC, HTTP/2, TLS) are compiled here, once, and
/// not again in each crate that asks.
pub type Answer<'a, R> = Pin<Box<dyn Future<Output = Result<R, ClusterError>> + Send + 'a>>;

/// When a request may be sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// Doing it twice is the same as once.
    Freely,
    /// Only if it cannot have arrived.
    IfNotSent,
}

/// A connection to cluster state. Copies share it.
#[derive(Clone)]
pub struct ClusterClient {
    session: Arc<Session>,
    options: Arc<ConnectOptions>,
    guard: Option<Arc<dyn RecordGuard>>,
    has_changed: Arc<AtomicBool>,
    left_out: Arc<Mutex<BTreeMap<String, String>>>,
}

impl std::fmt::Debug for ClusterClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterClient").field("endpoints", &self.options.endpoints).finish_non_exhaustive()
    }
}

impl ClusterClient {
    /// Connects, and checks that a server answers.
    pub fn connect(options: &ConnectOptions) -> Answer<'_, ClusterClient> {
        Box::pin(Self::connect_to(options))
    }

    async fn connect_to(options: &ConnectOptions) -> Result<ClusterClient, ClusterError> {
        let options = Arc::new(options.clone());
        let session = Arc::new(Session::begin(&options).await?);
        let guard = options.guard.clone();
        let client =
            ClusterClient { session, options, guard, has_changed: Arc::default(), left_out: Arc::default() };
        // Connections are made when first used, so use it.
        let only_count = GetOptions::new().with_count_only();
        client
            .call("connect", Repeat::Freely, |mut kv| {
                let options = only_count.clone();
                async move { kv.get(crate::keys::CLUSTER, Some(options)).await }
            })
            .await?;
        Ok(client)
    }

    /// Returns true if this client, or a copy of it, has changed a lasting record: keys with a lease do not count.
    pub fn has_changed_records(&self) -> bool {
        self.has_changed.load(Ordering::Relaxed)
    }

    fn note_change(&self) {
        self.has_changed.store(true, Ordering::Relaxed);
    }

    /// A record and its modification revision.
    pub async fn get<T: DeserializeOwned>(&self, key: &str) -> Result<Option<(T, i64)>, ClusterError> {
        match self.get_raw(key).await? {
            Some((value, mod_revision)) => Ok(Some((decode(key, &value)?, mod_revision))),
            None => Ok(None),
        }
    }

    fn get_raw<'a>(&'a self, key: &'a str) -> Answer<'a, Option<(Vec<u8>, i64)>> {
        Box::pin(async move {
            let mut response = self
                .call(&format!("read {key}"), Repeat::Freely, |mut kv| async move { kv.get(key, None).await })
                .await?;
            let stored = response.take_kvs().into_iter().next().map(Stored::from_entry);
            let stored = stored.transpose().map_err(not_utf8)?.filter(|stored| !stored.is_reserved());
            let Some(stored) = stored else { return self.check_absence(key).await.map(|()| None) };
            match self.opened(&stored).await? {
                Ok(value) => Ok(Some((value, stored.mod_revision))),
                Err(cause) => Err(ClusterError::Untrusted { key: stored.key, cause }),
            }
        })
    }

    /// All records under a prefix.
    pub async fn list<T: DeserializeOwned>(&self, prefix: &str) -> Result<Listing<T>, ClusterError> {
        let raw = self.list_verified(prefix).await?;
        let mut entries = Vec::with_capacity(raw.entries.len());
        for (key, value, revision) in raw.entries {
            let value = value.map_err(|cause| ClusterError::Untrusted { key: key.clone(), cause })?;
            let record = decode(&key, &value)?;
            entries.push((key, record, revision));
        }
        Ok(Listing { revision: raw.revision, entries })
    }

    /// The records under a prefix that can be used. The others are in the log, and in [`Self::left_out`]. This is
    /// for commands that show or serve them one by one: decisions by missing records need [`Self::list`].
    pub async fn list_usable<T: DeserializeOwned>(&self, prefix: &str) -> Result<Listing<T>, ClusterError> {
        let raw = self.list_verified(prefix).await?;
        let mut entries = Vec::with_capacity(raw.entries.len());
        for (key, value, revision) in raw.entries {
            let value = value.map_err(|cause| ClusterError::Untrusted { key: key.clone(), cause });
            match value.and_then(|value| decode(&key, &value)) {
                Ok(record) => entries.push((key, record, revision)),
                Err(error) => self.leave_out(key, &error),
            }
        }
        Ok(Listing { revision: raw.revision, entries })
    }

    fn leave_out(&self, key: String, error: &ClusterError) {
        // A map is whole between any two changes.
        let mut left_out = self.left_out.lock().unwrap_or_else(PoisonError::into_inner);
        if left_out.len() < LEFT_OUT_MAX && !left_out.contains_key(&key) {
            tracing::warn!("left out: {error}");
            left_out.insert(key, error.to_string());
        }
    }

    /// Returns why records were left out of lists, by this client or a copy of it.
    pub fn left_out(&self) -> Vec<String> {
        self.left_out.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// All values under a prefix as they are stored. One that is refused is empty, which is no record. Without the
    /// manifest the missing ones are unknown: a range in which it names records is not listed then.
    pub fn list_raw<'a>(&'a self, prefix: &'a str) -> Answer<'a, Listing<Vec<u8>>> {
        Box::pin(async move {
            let Listing { revision, entries } = self.list_verified(prefix).await?;
            let mut usable = Vec::with_capacity(entries.len());
            for (key, value, at) in entries {
                match value {
                    Err(cause) if key == crate::keys::MANIFEST && prefix != key => {
                        return Err(ClusterError::Untrusted { key, cause });
                    }
                    value => usable.push((key, value.unwrap_or_default(), at)),
                }
            }
            Ok(Listing { revision, entries: usable })
        })
    }

    /// All values under a prefix, or why they are refused.
    pub fn list_verified<'a>(&'a self, prefix: &'a str) -> Answer<'a, Listing<Result<Vec<u8>, String>>> {
        Box::pin(self.list_now(prefix))
    }

    async fn list_now(&self, prefix: &str) -> Result<Listing<Result<Vec<u8>, String>>, ClusterError> {
        let (stored, revision) = self.list_stored(prefix).await?;
        let missing = match self.missing_in(prefix, &stored).await {
            Ok(missing) => missing.into_iter().map(|key| (key.clone(), self.removed_by_hand(&key))).collect(),
            // Without the manifest nobody knows what is missing.
            Err(ClusterError::Untrusted { key, cause }) => vec![(key, cause)],
            Err(error) => return Err(error),
        };
        let mut entries = Vec::with_capacity(stored.len());
        for one in stored.into_iter().filter(|one| !one.is_reserved()) {
            let value = self.opened(&one).await?;
            entries.push((one.key, value, one.mod_revision));
        }
        entries.extend(missing.into_iter().map(|(key, cause)| (key, Err(cause), 0)));
        Ok(Listing { revision, entries })
    }

    /// All values under a prefix as they are stored, with their places, and the revision of the list.
    pub fn list_stored<'a>(&'a self, prefix: &'a str) -> Answer<'a, (Vec<Stored>, i64)> {
        Box::pin(async move {
            let mut response = self
                .call(&format!("list {prefix}"), Repeat::Freely, |mut kv| async move {
                    kv.get(prefix, Some(GetOptions::new().with_range(crate::keys::range_end(prefix)))).await
                })
                .await?;
            let revision = response.header().map_or(0, |header| header.revision());
            let stored = response.take_kvs().into_iter().map(Stored::from_entry);
            Ok((stored.collect::<Result<_, _>>().map_err(not_utf8)?, revision))
        })
    }

    /// Writes a record whatever is there, and returns its modification revision. After a broken
    /// connection it is written again, so watchers may see it twice.
    pub async fn put<T: Serialize>(&self, key: &str, value: &T) -> Result<i64, ClusterError> {
        self.put_leased(key, value, 0).await
    }

    /// As [`Self::put`]; the key goes when the lease goes.
    pub async fn put_with_lease<T: Serialize>(
        &self,
        key: &str,
        value: &T,
        lease: &Lease,
    ) -> Result<i64, ClusterError> {
        self.put_leased(key, value, lease.id()).await
    }

    /// Writes a record only if the key is absent, else [`ClusterError::AlreadyExists`].
    pub async fn create<T: Serialize>(&self, key: &str, value: &T) -> Result<i64, ClusterError> {
        self.create_leased(key, value, 0).await
    }

    /// As [`Self::create`]; the key goes when the lease goes.
    pub async fn create_with_lease<T: Serialize>(
        &self,
        key: &str,
        value: &T,
        lease: &Lease,
    ) -> Result<i64, ClusterError> {
        self.create_leased(key, value, lease.id()).await
    }

    /// Writes a record only if it was last changed at this revision, else [`ClusterError::Conflict`].
    pub async fn compare_and_swap<T: Serialize>(
        &self,
        key: &str,
        expected_mod_revision: i64,
        value: &T,
    ) -> Result<i64, ClusterError> {
        self.transact(&Transaction::new().check(key, expected_mod_revision).put(key, value)?).await
    }

    /// Deletes a key and says whether it was there. After a broken connection it is tried again,
    /// so a key that was there may be reported as absent.
    pub fn delete<'a>(&'a self, key: &'a str) -> Answer<'a, bool> {
        if is_named(key) {
            return self.delete_named(key);
        }
        Box::pin(async move {
            let response = self
                .call(&format!("delete {key}"), Repeat::Freely, |mut kv| async move { kv.delete(key, None).await })
                .await?;
            let was_there = response.deleted() > 0;
            if was_there {
                self.note_change();
            }
            Ok(was_there)
        })
    }

    /// Deletes a key only if it was last changed at this revision, else [`ClusterError::Conflict`].
    pub async fn delete_if(&self, key: &str, mod_revision: i64) -> Result<i64, ClusterError> {
        self.transact(&Transaction::new().check(key, mod_revision).delete(key)).await
    }

    async fn put_leased<T: Serialize>(&self, key: &str, value: &T, lease: i64) -> Result<i64, ClusterError> {
        self.put_raw(key, encode(key, value)?, lease).await
    }

    fn put_raw<'a>(&'a self, key: &'a str, value: Vec<u8>, lease: i64) -> Answer<'a, i64> {
        Box::pin(async move {
            if lease == 0 && is_signed(key) {
                return self.put_signed(key, value).await;
            }
            let response = self
                .call(&format!("write {key}"), Repeat::Freely, |mut kv| {
                    let value = value.clone();
                    async move { kv.put(key, value, Some(PutOptions::new().with_lease(lease))).await }
                })
                .await?;
            if lease == 0 {
                self.note_change();
            }
            Ok(response.header().map_or(0, |header| header.revision()))
        })
    }

    async fn put_signed(&self, key: &str, value: Vec<u8>) -> Result<i64, ClusterError> {
        let transaction = Transaction::new().put_bytes(key, value);
        match self.transact(&transaction).await {
            Err(ClusterError::Unclear { .. }) => self.transact(&transaction).await,
            done => done,
        }
    }

    async fn create_leased<T: Serialize>(&self, key: &str, value: &T, lease: i64) -> Result<i64, ClusterError> {
        let transaction = Transaction::new().check(key, 0).put_with_lease(key, value, lease)?;
        self.transact(&transaction).await.map_err(|error| match error {
            ClusterError::Conflict { key, .. } => ClusterError::AlreadyExists { key },
            other => other,
        })
    }

    /// Sends a request about keys.
    async fn call<R, F: Future<Output = Result<R, etcd_client::Error>>>(
        &self,
        operation: &str,
        may: Repeat,
        attempt: impl Fn(KvClient) -> F,
    ) -> Result<R, ClusterError> {
        self.asked(operation, may, |etcd| attempt(etcd.kv_client().max_decoding_message_size(RESPONSE_BYTES)))
            .await
    }

    /// Sends a request, and once more if it was refused to a user in whose place there is another one now.
    async fn asked<R, F: Future<Output = Result<R, etcd_client::Error>>>(
        &self,
        operation: &str,
        may: Repeat,
        attempt: impl Fn(&etcd_client::Client) -> F,
    ) -> Result<R, ClusterError> {
        let etcd = self.session.etcd();
        match repeat(&self.options, operation, may, || attempt(&etcd)).await {
            Err(ClusterError::Authentication { .. }) if self.session.log_in_anew(&self.options).await => {
                let etcd = self.session.etcd();
                repeat(&self.options, operation, may, || attempt(&etcd)).await
            }
            asked => asked,
        }
    }

    fn endpoints(&self) -> String {
        self.options.endpoints.join(", ")
    }
}

/// Returns the options of the etcd client.
fn etcd_options(options: &ConnectOptions) -> Result<etcd_client::ConnectOptions, ClusterError> {
    let mut etcd_options = etcd_client::ConnectOptions::new()
        .with_connect_timeout(options.request_timeout)
        .with_keep_alive(PING_INTERVAL, PING_TIMEOUT)
        .with_keep_alive_while_idle(true)
        .with_require_leader(true)
        .with_auto_token_refresh(true);
    if let Some(user) = &options.user {
        etcd_options = etcd_options.with_user(user, options.password.clone().unwrap_or_default());
    }
    if let Some(tls) = tls::options(options)? {
        etcd_options = etcd_options.with_tls(tls);
    }
    Ok(etcd_options)
}

/// Makes attempts until one is answered, the pauses between them growing, until three times the
/// limit of one attempt have gone by.
async fn repeat<R, F: Future<Output = Result<R, etcd_client::Error>>>(
    options: &ConnectOptions,
    operation: &str,
    may: Repeat,
    attempt: impl Fn() -> F,
) -> Result<R, ClusterError> {
    let begun = tokio::time::Instant::now();
    let mut pause = FIRST_PAUSE;
    let (mut distrusted, mut advised) = (0, None);
    loop {
        let (fate, cause) = match tokio::time::timeout(options.request_timeout, attempt()).await {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(error)) => (fate(&error), describe(&error)),
            Err(_) => (Fate::Unknown, format!("no answer within {:?}", options.request_timeout)),
        };
        let endpoints = options.endpoints.join(", ");
        let operation = operation.to_owned();
        if let Some(advice) = tls::advice(&cause, &options.endpoints).filter(|_| fate != Fate::Refused) {
            // Another endpoint may be set up rightly; if none is, waiting does not help.
            (distrusted, advised) = (distrusted + 1, Some(advice));
            if distrusted > 2 * options.endpoints.len() {
                return Err(ClusterError::Tls { endpoints, cause, advice });
            }
        }
        match fate {
            // Whoever joins is told why.
            Fate::Refused if operation == "join" => {
                return Err(ClusterError::Refused { endpoints, operation, cause });
            }
            Fate::Refused => {
                return Err(if operation == "connect" {
                    ClusterError::Options { endpoints, cause }
                } else {
                    ClusterError::Refused { endpoints, operation, cause }
                });
            }
            Fate::Unauthenticated => {
                return Err(ClusterError::Authentication { endpoints, user: options.user.clone(), cause });
            }
            Fate::Forbidden => {
                return Err(ClusterError::Forbidden { endpoints, operation, user: options.user.clone() });
            }
            Fate::Unknown if may == Repeat::IfNotSent => {
                return Err(ClusterError::Unclear { endpoints, operation, cause });
            }
            Fate::Unknown | Fate::NotSent => {}
        }
        if begun.elapsed() + pause > options.request_timeout * 3 {
            // A server's alert is now and then lost with the connection, so one that came says more.
            return Err(match advised.or_else(|| tls::advice_after_all(&cause, &options.endpoints)) {
                Some(advice) => ClusterError::Tls { endpoints, cause, advice },
                None => ClusterError::Unreachable { endpoints, operation, cause },
            });
        }
        tokio::time::sleep(pause).await;
        pause = next_pause(pause);
    }
}

fn next_pause(pause: Duration) -> Duration {
    (pause * 2).min(LONGEST_PAUSE)
}

/// The layers below hide the cause in their sources.
fn describe(error: &etcd_client::Error) -> String {
    let etcd_client::Error::GRpcStatus(status) = error else { return error.to_string() };
    let mut text = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        let cause = error.to_string();
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
        source = error.source();
    }
    text
}

fn not_utf8(key: String) -> ClusterError {
    ClusterError::Decode { key, cause: "its name is not UTF-8".into() }
}

fn encode<T: Serialize>(key: &str, value: &T) -> Result<Vec<u8>, ClusterError> {
    serde_json::to_vec(value).map_err(|source| ClusterError::Encode { key: key.to_owned(), source })
}

fn decode<T: DeserializeOwned>(key: &str, value: &[u8]) -> Result<T, ClusterError> {
    read_record(value).map_err(|error| ClusterError::Decode { key: key.to_owned(), cause: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that wants another certificate answers with an alert or, as often, only hangs up.
    #[tokio::test]
    async fn an_alert_is_not_forgotten_when_later_attempts_are_only_cut_off() {
        let mut options = ConnectOptions::new(["https://127.0.0.1:1"]);
        options.request_timeout = Duration::from_millis(50);
        for alert_first in [true, false] {
            let attempts = std::sync::atomic::AtomicUsize::new(0);
            let result = repeat(&options, "connect", Repeat::Freely, || {
                let is_first = attempts.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
                let cause = if is_first == alert_first { "fatal alert: BadCertificate" } else { "broken pipe" };
                async move { Err::<(), _>(etcd_client::Error::from(tonic::Status::unavailable(cause))) }
            });
            let error = result.await.unwrap_err().to_string();
            assert!(error.contains("--etcd-cert"), "{error}");
        }
    }
}
