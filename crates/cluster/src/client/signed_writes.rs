//! Writing signed records. Each is signed for its place, so the place is there first: a key that is not there is reserved,
//! and the record follows as its second version, signed for the revision at which the key was made. So no signature is
//! ever good for a creation, and a record that was removed cannot be put back.

use std::collections::{BTreeMap, BTreeSet};

use atoll_types::authority::ManifestRecord;
use atoll_types::records::RECORD_FORMAT;

use super::error::ClusterError;
use super::guard::{GuardFault, Place, RESERVED, RecordGuard, Stored};
use super::transaction::Transaction;
use super::{Answer, ClusterClient, decode};
use crate::{keys, kinds};

/// How often a signed record is written again because others changed it, or the keys, at the same moment.
const ATTEMPTS_MAX: usize = 16;

/// Result of an attempt.
enum Attempt {
    /// It was done at this revision.
    Done(i64),
    /// The guard has to read its keys.
    Stale,
    /// Cluster state is another now.
    Again,
}

/// Found records, by key.
type Found = BTreeMap<String, Stored>;

fn untrusted(key: &str, cause: String) -> ClusterError {
    ClusterError::Untrusted { key: key.to_owned(), cause }
}

impl ClusterClient {
    /// Performs a transaction that writes signed records, or removes some that the manifest names.
    pub(super) async fn transact_signed(&self, transaction: &Transaction) -> Result<i64, ClusterError> {
        let Some(guard) = self.sealer() else { return self.transact_unsigned(transaction).await };
        for _ in 0..ATTEMPTS_MAX {
            match self.attempt(guard, transaction).await? {
                Attempt::Done(at) => return Ok(at),
                Attempt::Stale => guard.refresh(self).await?,
                Attempt::Again => {}
            }
        }
        let key = transaction.guarded_keys().first().map_or_else(String::new, |key| (*key).to_owned());
        Err(ClusterError::Conflict { key, expected: 0, found: 0 })
    }

    /// Performs a transaction whose records are signed already, or are none that are.
    pub fn transact_sealed<'a>(&'a self, transaction: &'a Transaction) -> Answer<'a, i64> {
        Box::pin(self.send(transaction))
    }

    /// Without the key service records can be written as long as the cluster has no signed ones.
    async fn transact_unsigned(&self, transaction: &Transaction) -> Result<i64, ClusterError> {
        let is_proposal = transaction.named_keys() == (Vec::new(), Vec::new())
            && transaction.signed_keys().into_iter().all(kinds::is_proposed);
        if is_proposal {
            return self.send(transaction).await;
        }
        let key = || transaction.guarded_keys().first().map_or_else(String::new, |key| (*key).to_owned());
        self.send(&transaction.clone().check(keys::AUTHORITY, 0)).await.map_err(|error| match error {
            ClusterError::Conflict { key: changed, .. } if changed == keys::AUTHORITY => {
                ClusterError::NoAuthority { key: key() }
            }
            other => other,
        })
    }

    async fn attempt(&self, guard: &dyn RecordGuard, wanted: &Transaction) -> Result<Attempt, ClusterError> {
        let has_manifest = match guard.has_manifest() {
            Ok(has_manifest) => has_manifest,
            Err(GuardFault::Stale) => return Ok(Attempt::Stale),
            Err(GuardFault::Refused(cause)) => return Err(untrusted(keys::AUTHORITY, cause)),
        };
        // The guard may read its keys at any moment; then the check of their revision fails.
        let authority = guard.authority_revision();
        let guarded = wanted.guarded_keys();
        let is_about_named = wanted.named_keys() != (Vec::new(), Vec::new());
        let manifest = (has_manifest && is_about_named).then_some(keys::MANIFEST);
        let (found, _) = self.read_stored(&guarded.iter().copied().chain(manifest).collect::<Vec<_>>()).await?;
        let found: Found = found.into_iter().flatten().map(|stored| (stored.key.clone(), stored)).collect();
        if manifest.is_some_and(|key| found.get(key).is_some_and(|stored| is_stale(guard, stored))) {
            return Ok(Attempt::Stale);
        }
        let mut sealed = wanted.with_reserved(&found);
        if manifest.is_some()
            && let Some(names) = names_after(guard, wanted, &found)?
        {
            let record = ManifestRecord { format: RECORD_FORMAT, names };
            sealed = sealed.put(keys::MANIFEST, &record)?;
        }
        let missing: Vec<&str> =
            wanted.signed_keys().into_iter().filter(|key| !found.contains_key(*key)).collect();
        if authority != 0 && !missing.is_empty() {
            return self.reserve(authority, &sealed.only_checks(), &missing).await;
        }
        match seal(guard, &mut sealed, &found) {
            Ok(()) => {}
            Err((_, GuardFault::Stale)) => return Ok(Attempt::Stale),
            Err((key, GuardFault::Refused(cause))) => return Err(ClusterError::Untrusted { key, cause }),
        }
        let done = self.send(&sealed.check(keys::AUTHORITY, authority)).await;
        outcome(done, wanted)
    }

    /// Makes the places of records that are not there. The caller's checks hold, so nothing is reserved in vain but when
    /// others are faster after that.
    async fn reserve(
        &self,
        authority: i64,
        checks: &Transaction,
        missing: &[&str],
    ) -> Result<Attempt, ClusterError> {
        let mut reservation = checks.clone().check(keys::AUTHORITY, authority);
        for key in missing {
            if !checks.has_check(key) {
                reservation = reservation.check(key, 0);
            }
            reservation = reservation.put_bytes(key, RESERVED.to_vec());
        }
        match self.send(&reservation).await {
            // What has come of it will be seen.
            Err(ClusterError::Unclear { .. }) => Ok(Attempt::Again),
            reserved => Ok(match outcome(reserved, checks)? {
                Attempt::Done(_) => Attempt::Again,
                other => other,
            }),
        }
    }
}

/// Returns the outcome by an answer: a conflict about keys that the caller has not checked is not the caller's.
fn outcome(done: Result<i64, ClusterError>, wanted: &Transaction) -> Result<Attempt, ClusterError> {
    match done {
        Ok(at) => Ok(Attempt::Done(at)),
        Err(ClusterError::Conflict { key, .. }) if key == keys::AUTHORITY => Ok(Attempt::Stale),
        Err(ClusterError::Conflict { key, .. }) if !wanted.has_check(&key) => Ok(Attempt::Again),
        Err(error) => Err(error),
    }
}

/// Returns the manifest's names after a transaction, if they change.
fn names_after(
    guard: &dyn RecordGuard,
    wanted: &Transaction,
    found: &Found,
) -> Result<Option<BTreeSet<String>>, ClusterError> {
    let (written, deleted) = wanted.named_keys();
    let before = names_of(guard, found.get(keys::MANIFEST))?;
    let is_there = |key: &str| found.get(key).is_some_and(|stored| !stored.is_reserved());
    if let Some(removed) = written.iter().find(|key| before.contains(**key) && !is_there(key)) {
        return Err(untrusted(removed, guard.note_removed(removed)));
    }
    let mut after = before.clone();
    after.extend(written.into_iter().map(str::to_owned));
    after.retain(|key| !deleted.contains(&key.as_str()));
    Ok((after != before).then_some(after))
}

/// Returns whether a guard has to read its keys to open a record.
pub(super) fn is_stale(guard: &dyn RecordGuard, stored: &Stored) -> bool {
    !stored.is_reserved() && guard.open(&stored.place(), &stored.value) == Err(GuardFault::Stale)
}

/// Reads the names in the manifest. One that is not there was removed by hand.
pub(super) fn names_of(
    guard: &dyn RecordGuard,
    manifest: Option<&Stored>,
) -> Result<BTreeSet<String>, ClusterError> {
    let manifest = manifest.filter(|stored| !stored.is_reserved());
    let manifest = manifest.ok_or_else(|| untrusted(keys::MANIFEST, guard.note_removed(keys::MANIFEST)))?;
    let record = guard.open(&manifest.place(), &manifest.value).map_err(|fault| {
        untrusted(
            keys::MANIFEST,
            match fault {
                GuardFault::Refused(cause) => cause,
                GuardFault::Stale => "it is signed by a key that the cluster does not have".into(),
            },
        )
    })?;
    Ok(decode::<ManifestRecord>(keys::MANIFEST, &record)?.names)
}

/// Signs the records of a transaction for their next places, and makes it depend on these.
fn seal(
    guard: &dyn RecordGuard,
    transaction: &mut Transaction,
    found: &Found,
) -> Result<(), (String, GuardFault)> {
    let mut checks = Vec::new();
    for (key, value) in transaction.signed_puts() {
        let found = found.get(key);
        let place = match found {
            Some(found) => Place { key, version: found.version + 1, create_revision: found.create_revision },
            // Nothing is signed yet in this cluster.
            None => Place { key, version: 1, create_revision: 0 },
        };
        *value = guard.seal(&place, value).map_err(|fault| (key.to_owned(), fault))?;
        checks.push((key.to_owned(), found.map_or(0, |found| found.mod_revision)));
    }
    for (key, revision) in checks {
        // A check of the caller's own says more, and fails if it is of another revision.
        if !transaction.has_check(&key) {
            *transaction = std::mem::take(transaction).check(&key, revision);
        }
    }
    Ok(())
}
