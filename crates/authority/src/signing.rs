//! Making a cluster's keys, signing its records, and replacing the keys.

use std::sync::Arc;

use atoll_cluster::{CREATION_WINDOW, ClusterClient, ClusterError, Place, RecordGuard, Transaction, keys};
use atoll_keys::{KeyError, KeyService, SecretKey, random_u64};
use atoll_types::authority::{AuthorityKey, AuthorityRecord};
use atoll_types::record_json::read_record;
use atoll_types::records::RECORD_FORMAT;

use crate::authority::key_context;
use crate::envelope::{self, MacKey, without_signature};
use crate::{Authority, Finding, RecordState, survey};

/// How often a record is read again because somebody else has changed it.
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
    let (found, _) = client.read_stored(&[keys::AUTHORITY]).await?;
    if found.iter().flatten().next().is_some() {
        return Ok(());
    }
    let keys = vec![new_key(service, now_unix_ms).await?];
    let record = AuthorityRecord { format: RECORD_FORMAT, keys, accepts_unsigned };
    match write_keys(client, service, &record, 0).await {
        // Another process was faster.
        Err(SigningError::Cluster(ClusterError::Conflict { .. })) => Ok(()),
        other => other,
    }
}

/// Writes the record of keys in place of the one of a revision, signed by its newest.
async fn write_keys(
    client: &ClusterClient,
    service: &dyn KeyService,
    record: &AuthorityRecord,
    mut expected: i64,
) -> Result<(), SigningError> {
    let newest = record.keys.last().expect("an authority has a key");
    let secret = service.unwrap(&key_context(&newest.id), &newest.wrapped_key).await?;
    let key = MacKey::new(&newest.id, &secret);
    let json = serde_json::to_vec(record)
        .map_err(|source| ClusterError::Encode { key: keys::AUTHORITY.into(), source })?;
    for _ in 0..ATTEMPTS_MAX {
        let (mut found, revision) = client.read_stored(&[keys::AUTHORITY]).await?;
        let found = found.pop().flatten();
        let place = match &found {
            Some(stored) => Place { version: stored.version + 1, ..stored.place() },
            None => Place { key: keys::AUTHORITY, version: 1, create_revision: revision },
        };
        let sealed = envelope::seal(&key, &place, &json).expect("a record of keys is a JSON object");
        let transaction = Transaction::new().check(keys::AUTHORITY, expected).put_bytes(keys::AUTHORITY, sealed);
        let at = client.transact(&transaction).await?;
        if found.is_some() || at <= revision + CREATION_WINDOW {
            return Ok(());
        }
        // It was created too late for its signature to hold.
        expected = at;
    }
    Err(SigningError::Busy(keys::AUTHORITY.into()))
}

async fn read_keys(client: &ClusterClient) -> Result<(AuthorityRecord, i64), SigningError> {
    let (mut found, _) = client.read_stored(&[keys::AUTHORITY]).await?;
    let stored = found.pop().flatten().ok_or_else(|| SigningError::NoSuchRecord(keys::AUTHORITY.into()))?;
    let record = read_record(&without_signature(&stored.value))
        .map_err(|error| ClusterError::Decode { key: keys::AUTHORITY.into(), cause: error.to_string() })?;
    Ok((record, stored.mod_revision))
}

/// Signs a cluster of an earlier release: all records as they are, after which nothing is accepted without a signature.
/// Gives their number. It may be repeated, and with `refused` signs what is refused, too.
pub async fn sign_all(
    client: &ClusterClient,
    service: Arc<dyn KeyService>,
    refused: bool,
    now_unix_ms: u64,
    progress: &dyn Fn(u64),
) -> Result<u64, SigningError> {
    make_keys(client, &*service, true, now_unix_ms).await?;
    let authority = Arc::new(Authority::of_service(service.clone(), false));
    let findings = survey(client, &authority).await?;
    let signer = client.with_guard(authority.clone());
    let mut signed = 0;
    let is_wanted = |finding: &&Finding| match finding.state {
        RecordState::Signed => false,
        RecordState::Unsigned => true,
        RecordState::Refused(_) => refused,
    };
    for finding in findings.iter().filter(is_wanted) {
        sign(&signer, &authority, &finding.stored.key, refused).await?;
        signed += 1;
        progress(signed);
    }
    let (record, revision) = read_keys(client).await?;
    if record.accepts_unsigned {
        let record = AuthorityRecord { accepts_unsigned: false, ..record };
        write_keys(client, &*service, &record, revision).await?;
    }
    Ok(signed)
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

/// Wraps the keys of the authority with the newest version of the key service's key. Gives how many were wrapped anew and
/// how many were so already.
pub async fn rewrap(client: &ClusterClient, service: &dyn KeyService) -> Result<(u64, u64), SigningError> {
    let (found, _) = client.read_stored(&[keys::AUTHORITY]).await?;
    if found.iter().all(Option::is_none) {
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
        write_keys(client, service, &record, revision).await?;
    }
    Ok((rewrapped, unchanged))
}

/// The wrapped keys of the authority.
pub async fn wrapped_keys(client: &ClusterClient) -> Result<Vec<String>, SigningError> {
    let (found, _) = client.read_stored(&[keys::AUTHORITY]).await?;
    if found.iter().all(Option::is_none) {
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
        let (mut found, _) = signer.read_stored(&[name]).await?;
        let Some(stored) = found.pop().flatten() else { return Ok(false) };
        if !any && authority.open(&stored.place(), &stored.value).is_err() {
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
    record.keys.push(new_key(&*service, now_unix_ms).await?);
    write_keys(client, &*service, &record, revision).await?;
    // From here on nobody signs with an older key: every transaction depends on the record of keys.
    let findings = survey(client, &authority).await?;
    let signer = client.with_guard(authority.clone());
    let newest = authority.newest_key_id();
    let mut signed = 0;
    for finding in &findings {
        if finding.state == RecordState::Signed && finding.key_id != newest {
            sign(&signer, &authority, &finding.stored.key, false).await?;
            signed += 1;
        }
    }
    let (mut record, revision) = read_keys(client).await?;
    record.keys.drain(..record.keys.len() - 1);
    write_keys(client, &*service, &record, revision).await?;
    let refused = findings.into_iter().filter(|finding| matches!(finding.state, RecordState::Refused(_)));
    Ok((signed, refused.collect()))
}
