//! Making a cluster's keys, signing its records, and replacing the keys.

use std::collections::BTreeSet;
use std::sync::Arc;

use atoll_cluster::{
    ClusterClient, ClusterError, GuardFault, Place, RESERVED, RecordGuard, Stored, Transaction, keys, kinds,
};
use atoll_keys::{KeyError, KeyService, SecretKey, random_u64};
use atoll_types::authority::{AuthorityKey, AuthorityRecord, ManifestRecord};
use atoll_types::record_json::read_record;
use atoll_types::records::RECORD_FORMAT;

use crate::authority::key_context;
use crate::envelope::{self, SigningKey, without_signature};
use crate::{Authority, Finding, RecordState, survey};

/// Attempts to read a record again because another process has changed it.
const ATTEMPTS_MAX: usize = 16;

/// Why records were not signed.
#[derive(Debug, thiserror::Error)]
pub enum SigningError {
    /// Cluster state.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// The key service.
    #[error(transparent)]
    Keys(#[from] KeyError),
    /// The record is not there.
    #[error(
        "there is no record {0} in cluster state that could be signed; 'atoll cluster sign' lists those there are"
    )]
    NoSuchRecord(String),
    /// There is no end of conflicts.
    #[error("others change {0} all the time; try again")]
    Busy(String),
}

async fn new_key(service: &dyn KeyService, now_unix_ms: u64) -> Result<AuthorityKey, KeyError> {
    let id = format!("{:016x}", random_u64());
    let wrapped_key = service.wrap(&key_context(&id), &SecretKey::random()).await?;
    Ok(AuthorityKey { id, wrapped_key, created_unix_ms: now_unix_ms })
}

async fn opened(service: &dyn KeyService, key: &AuthorityKey) -> Result<SigningKey, KeyError> {
    let secret = service.unwrap(&key_context(&key.id), &key.wrapped_key).await?;
    Ok(SigningKey::new(&key.id, &secret))
}

/// Makes the keys of a new cluster, in which nothing is accepted without a signature, unless it has keys.
pub async fn found(
    client: &ClusterClient,
    service: &dyn KeyService,
    now_unix_ms: u64,
) -> Result<(), SigningError> {
    make_keys(client, service, false, now_unix_ms).await
}

async fn make_keys(
    client: &ClusterClient,
    service: &dyn KeyService,
    accepts_unsigned: bool,
    now_unix_ms: u64,
) -> Result<(), SigningError> {
    if found_one(client, keys::AUTHORITY).await?.is_some() {
        return Ok(());
    }
    let key = new_key(service, now_unix_ms).await?;
    let public_keys = vec![opened(service, &key).await?.public(None)];
    let mut record = AuthorityRecord {
        format: RECORD_FORMAT,
        keys: vec![key],
        accepts_unsigned,
        has_manifest: false,
        public_keys,
        signs_for_all: !accepts_unsigned,
    };
    for _ in 0..ATTEMPTS_MAX {
        // What is accepted without a signature cannot be missed.
        let manifest = if accepts_unsigned { None } else { Some(Manifest::of_what_is_there(client).await?) };
        record.has_manifest = manifest.is_some();
        match write_keys(client, service, &record, 0, manifest).await {
            // Another process was faster.
            Err(SigningError::Cluster(ClusterError::Conflict { key, .. })) if key == keys::AUTHORITY => {
                return Ok(());
            }
            Err(SigningError::Cluster(ClusterError::Conflict { .. })) => {}
            written => return written,
        }
    }
    Err(SigningError::Busy(keys::MANIFEST.into()))
}

/// A manifest to be written, and its dependencies.
struct Manifest {
    names: BTreeSet<String>,
    /// Prefixes, and the revisions at which they were listed.
    listed: Vec<(&'static str, i64)>,
}

impl Manifest {
    /// Names all records that are there now.
    async fn of_what_is_there(client: &ClusterClient) -> Result<Manifest, ClusterError> {
        let (mut names, mut listed) = (BTreeSet::new(), Vec::new());
        for prefix in kinds::named_prefixes() {
            let (all, revision) = client.list_stored(prefix).await?;
            let is_there = |stored: &Stored| kinds::is_named(&stored.key) && !stored.is_reserved();
            names.extend(all.into_iter().filter(is_there).map(|stored| stored.key));
            listed.push((prefix, revision));
        }
        Ok(Manifest { names, listed })
    }

    /// Adds the names of an older one, by any signer: missing records stay missed.
    async fn with_older(mut self, client: &ClusterClient) -> Result<Manifest, ClusterError> {
        let older = found_one(client, keys::MANIFEST).await?;
        let read = older.and_then(|stored| read_record::<ManifestRecord>(&without_signature(&stored.value)).ok());
        self.names.extend(read.into_iter().flat_map(|record| record.names));
        Ok(self)
    }
}

/// Reads a record as it is stored.
async fn found_one(client: &ClusterClient, key: &str) -> Result<Option<Stored>, ClusterError> {
    let (mut found, _) = client.read_stored(&[key]).await?;
    Ok(found.pop().flatten().filter(|stored| !stored.is_reserved()))
}

/// Writes the record of keys in place of the one of a revision, signed by its newest, and the manifest.
async fn write_keys(
    client: &ClusterClient,
    service: &dyn KeyService,
    record: &AuthorityRecord,
    expected: i64,
    manifest: Option<Manifest>,
) -> Result<(), SigningError> {
    let newest = record.keys.last().expect("an authority has a key");
    let key = opened(service, newest).await?;
    let has_public = record.public_keys.last().is_some_and(|public| public.id == newest.id);
    let mut records = vec![(keys::AUTHORITY, encode(keys::AUTHORITY, record)?)];
    let mut wanted = Transaction::new();
    if let Some(Manifest { names, listed }) = manifest {
        records.push((keys::MANIFEST, encode(keys::MANIFEST, &ManifestRecord { format: RECORD_FORMAT, names })?));
        wanted = listed.into_iter().fold(wanted, |wanted, (prefix, at)| wanted.check_prefix(prefix, at));
    }
    let names: Vec<&str> = records.iter().map(|(name, _)| *name).collect();
    for _ in 0..ATTEMPTS_MAX {
        let (found, _) = client.read_stored(&names).await?;
        if found.iter().any(Option::is_none) {
            reserve(client, &names, &found).await?;
            continue;
        }
        let mut transaction = wanted.clone();
        for ((name, json), stored) in records.iter().zip(found.iter().flatten()) {
            let place = Place { version: stored.version + 1, ..stored.place() };
            let is_expected = *name != keys::AUTHORITY || stored.is_reserved() && expected == 0;
            let sealed = envelope::seal(&key, &place, json, has_public).expect("a record is a JSON object");
            transaction = transaction
                .check(name, if is_expected { stored.mod_revision } else { expected })
                .put_bytes(name, sealed);
        }
        match client.transact_sealed(&transaction).await {
            Err(ClusterError::Conflict { key, .. }) if key == keys::MANIFEST => {}
            done => return Ok(done.map(drop)?),
        }
    }
    Err(SigningError::Busy(keys::AUTHORITY.into()))
}

/// Makes the places of records that are not there.
async fn reserve(client: &ClusterClient, names: &[&str], found: &[Option<Stored>]) -> Result<(), ClusterError> {
    let missing = names.iter().zip(found).filter(|(_, found)| found.is_none());
    let reservation = missing.fold(Transaction::new(), |transaction, (name, _)| {
        transaction.check(name, 0).put_bytes(name, RESERVED.to_vec())
    });
    match client.transact_sealed(&reservation).await {
        // It is there now.
        Ok(_) | Err(ClusterError::Conflict { .. } | ClusterError::Unclear { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

fn encode<T: serde::Serialize>(key: &str, record: &T) -> Result<Vec<u8>, ClusterError> {
    serde_json::to_vec(record).map_err(|source| ClusterError::Encode { key: key.into(), source })
}

async fn read_keys(client: &ClusterClient) -> Result<(AuthorityRecord, i64), SigningError> {
    let stored = found_one(client, keys::AUTHORITY).await?;
    let stored = stored.ok_or_else(|| SigningError::NoSuchRecord(keys::AUTHORITY.into()))?;
    let record = read_record(&without_signature(&stored.value))
        .map_err(|error| ClusterError::Decode { key: keys::AUTHORITY.into(), cause: error.to_string() })?;
    Ok((record, stored.mod_revision))
}

/// Signs a cluster of an earlier release: all records as they are, after which nothing is accepted without a
/// signature. Gives their number, with those that only had to be named. It may be repeated, and with `refused` signs
/// refused records, too.
pub async fn sign_all(
    client: &ClusterClient,
    service: Arc<dyn KeyService>,
    refused: bool,
    now_unix_ms: u64,
    progress: &dyn Fn(u64),
) -> Result<u64, SigningError> {
    make_keys(client, &*service, true, now_unix_ms).await?;
    publish(client, &*service).await?;
    let authority = Arc::new(Authority::of_service(service.clone(), false));
    let findings = survey(client, &authority).await?;
    let signer = client.with_guard(authority.clone());
    let mut signed = 0;
    let is_wanted = |finding: &&Finding| match finding.state {
        RecordState::Signed | RecordState::Unnamed => false,
        RecordState::Unsigned | RecordState::SignedForHolders => true,
        RecordState::Refused(_) => refused,
    };
    for finding in findings.iter().filter(is_wanted) {
        if sign(&signer, &authority, &finding.stored.key, refused).await? {
            signed += 1;
            progress(signed);
        }
    }
    let is_lost = |finding: &Finding| finding.stored.key == keys::MANIFEST && finding.is_refused();
    let unnamed = findings.iter().filter(|finding| finding.state == RecordState::Unnamed).count() as u64;
    let wants_manifest = refused && findings.iter().any(is_lost) || unnamed > 0;
    for _ in 0..ATTEMPTS_MAX {
        let (record, revision) = read_keys(client).await?;
        if !record.accepts_unsigned && record.has_manifest && record.signs_for_all && !wants_manifest {
            return Ok(signed);
        }
        let manifest = Manifest::of_what_is_there(client).await?;
        let manifest = if refused { manifest } else { manifest.with_older(client).await? };
        let record =
            AuthorityRecord { accepts_unsigned: false, has_manifest: true, signs_for_all: true, ..record };
        match write_keys(client, &*service, &record, revision, Some(manifest)).await {
            Err(SigningError::Cluster(ClusterError::Conflict { .. })) => {}
            written => return written.map(|()| signed + unnamed),
        }
    }
    Err(SigningError::Busy(keys::MANIFEST.into()))
}

/// Publishes the newest key, if an earlier release has made it.
async fn publish(client: &ClusterClient, service: &dyn KeyService) -> Result<(), SigningError> {
    for _ in 0..ATTEMPTS_MAX {
        let (mut record, revision) = read_keys(client).await?;
        let newest = record.keys.last().expect("an authority has a key");
        if record.public_keys.last().is_some_and(|public| public.id == newest.id) {
            return Ok(());
        }
        record.public_keys.push(opened(service, newest).await?.public(None));
        match write_keys(client, service, &record, revision, None).await {
            Err(SigningError::Cluster(ClusterError::Conflict { .. })) => {}
            written => return written,
        }
    }
    Err(SigningError::Busy(keys::AUTHORITY.into()))
}

/// Makes other keys for a cluster whose key service was lost, and signs all records as they are. Nothing happens in a
/// cluster that is not signed.
pub async fn sign_anew(
    client: &ClusterClient,
    service: Arc<dyn KeyService>,
    now_unix_ms: u64,
) -> Result<(), SigningError> {
    if !client.delete(keys::AUTHORITY).await? {
        return Ok(());
    }
    make_keys(client, &*service, false, now_unix_ms).await?;
    let authority = Arc::new(Authority::of_service(service, false));
    let signer = client.with_guard(authority.clone());
    for finding in survey(client, &authority).await? {
        sign(&signer, &authority, &finding.stored.key, true).await?;
    }
    Ok(())
}

/// Wraps the keys of the authority with the newest version of the key service's key. Returns the number of
/// rewrapped keys, and of those that were up to date.
pub async fn rewrap(client: &ClusterClient, service: &dyn KeyService) -> Result<(u64, u64), SigningError> {
    if found_one(client, keys::AUTHORITY).await?.is_none() {
        return Ok((0, 0));
    }
    let (mut record, revision) = read_keys(client).await?;
    let (mut rewrapped, mut unchanged) = (0, 0);
    for key in &mut record.keys {
        match service.rewrap(&key_context(&key.id), &key.wrapped_key).await? {
            Some(anew) => {
                key.wrapped_key = anew;
                rewrapped += 1;
            }
            None => unchanged += 1,
        }
    }
    if rewrapped > 0 {
        write_keys(client, service, &record, revision, None).await?;
    }
    Ok((rewrapped, unchanged))
}

/// The wrapped keys of the authority.
pub async fn wrapped_keys(client: &ClusterClient) -> Result<Vec<String>, SigningError> {
    if found_one(client, keys::AUTHORITY).await?.is_none() {
        return Ok(Vec::new());
    }
    Ok(read_keys(client).await?.0.keys.into_iter().map(|key| key.wrapped_key).collect())
}

/// Signs single records as they are, whatever their signatures say.
pub async fn sign_records(
    client: &ClusterClient,
    service: Arc<dyn KeyService>,
    names: &[String],
) -> Result<(), SigningError> {
    let authority = Arc::new(Authority::of_service(service, false));
    authority.refresh(client).await?;
    let signer = client.with_guard(authority.clone());
    for name in names {
        if !atoll_cluster::kinds::is_signed(name) || !sign(&signer, &authority, name, true).await? {
            return Err(SigningError::NoSuchRecord(name.clone()));
        }
    }
    Ok(())
}

/// Signs a record with the newest key; with `any` also one that does not verify. Says whether there is one.
async fn sign(signer: &ClusterClient, authority: &Authority, name: &str, any: bool) -> Result<bool, SigningError> {
    for _ in 0..ATTEMPTS_MAX {
        let Some(stored) = found_one(signer, name).await? else { return Ok(false) };
        if !any && !is_accepted(signer, authority, &stored).await? {
            return Ok(true);
        }
        let record = without_signature(&stored.value);
        let transaction = Transaction::new().check(name, stored.mod_revision).put_bytes(name, record);
        match signer.transact(&transaction).await {
            Ok(_) => return Ok(true),
            Err(ClusterError::Conflict { .. } | ClusterError::Unclear { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(SigningError::Busy(name.into()))
}

/// Returns true if a record verifies, or may still be without a signature. Signing many takes longer than the knowledge of
/// the authority holds.
async fn is_accepted(
    client: &ClusterClient,
    authority: &Authority,
    stored: &Stored,
) -> Result<bool, ClusterError> {
    let mut opened = authority.open(&stored.place(), &stored.value);
    if opened == Err(GuardFault::Stale) {
        authority.refresh(client).await?;
        opened = authority.open(&stored.place(), &stored.value);
    }
    Ok(opened.is_ok())
}

/// Gives the cluster a new key, signs with it whatever older ones have signed, and forgets these. Gives the number of
/// records, and those that are refused and stay so. Nothing happens in a cluster that is not signed.
pub async fn rotate(
    client: &ClusterClient,
    service: Arc<dyn KeyService>,
    now_unix_ms: u64,
) -> Result<(u64, Vec<Finding>), SigningError> {
    let authority = Arc::new(Authority::of_service(service.clone(), false));
    authority.refresh(client).await?;
    if !authority.is_signed() {
        return Ok((0, Vec::new()));
    }
    let (mut record, revision) = read_keys(client).await?;
    let key = new_key(&*service, now_unix_ms).await?;
    let before = record.keys.last().expect("an authority has a key");
    if record.public_keys.last().is_some_and(|public| public.id == before.id) {
        let before = opened(&*service, before).await?;
        record.public_keys.push(opened(&*service, &key).await?.public(Some(&before)));
    }
    record.keys.push(key);
    write_keys(client, &*service, &record, revision, None).await?;
    // From here on nobody signs with an older key: every transaction depends on the record of keys.
    let findings = survey(client, &authority).await?;
    let signer = client.with_guard(authority.clone());
    let newest = authority.newest_key_id();
    let mut signed = 0;
    for finding in &findings {
        if finding.is_signed() && finding.key_id != newest {
            sign(&signer, &authority, &finding.stored.key, false).await?;
            signed += 1;
        }
    }
    let (mut record, revision) = read_keys(client).await?;
    record.keys.drain(..record.keys.len() - 1);
    write_keys(client, &*service, &record, revision, None).await?;
    let refused = findings.into_iter().filter(|finding| matches!(finding.state, RecordState::Refused(_)));
    Ok((signed, refused.collect()))
}
