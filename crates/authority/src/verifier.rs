//! The guard of a process without the key service. It verifies records that all processes obey, with the public key that
//! its host has pinned, and signs nothing.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use atoll_cluster::{Answer, ClusterClient, ClusterError, GuardFault, Place, RecordGuard, keys, kinds};
use atoll_security_log::SecurityEvent;
use atoll_types::authority::AuthorityRecord;
use atoll_types::record_json::read_record;

use crate::authority::note_removed;
use crate::envelope::{self, PublicKey, without_signature};

/// Pause after which a process whose host has pinned no key looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// Keeps a public key, as text, for the next start of any process of this host.
pub type Pin = Arc<dyn Fn(&str) + Send + Sync>;

/// Verifies the records that all processes obey.
pub struct Verifier {
    pin: Pin,
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    read_at: Option<Instant>,
    /// Keys that sign, newest last; none until the cluster signs for all. They are never none again.
    trusted: Vec<PublicKey>,
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier").field("trusted", &self.known().trusted).finish_non_exhaustive()
    }
}

impl Verifier {
    /// Trusts the key that the host has pinned, and its successors. Without one it trusts the first that it sees, and has
    /// it pinned.
    pub fn new(pinned: Option<&str>, pin: Pin) -> Verifier {
        let trusted = pinned.map(|text| {
            PublicKey::parse(text).unwrap_or_else(|| {
                tracing::error!(
                    "the key of signed records that this host has pinned cannot be read: nothing is accepted"
                );
                PublicKey::nobodys()
            })
        });
        let trusted = trusted.into_iter().collect();
        Verifier { pin, known: RwLock::new(Known { read_at: None, trusted }) }
    }

    /// Returns whether the host has pinned a key, so that nothing else is accepted.
    pub fn is_strict(&self) -> bool {
        !self.known().trusted.is_empty()
    }

    fn known(&self) -> std::sync::RwLockReadGuard<'_, Known> {
        // Keys are replaced as a whole.
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn learn(&self, record: Option<&AuthorityRecord>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.read_at = Some(Instant::now());
        let Some(trusted) = record.and_then(|record| successors(&known.trusted, record)) else { return };
        if trusted == known.trusted {
            return;
        }
        known.trusted = trusted;
        if let Some(newest) = known.trusted.last() {
            (self.pin)(&newest.to_text());
        }
    }

    async fn read_again(&self, client: &ClusterClient) -> Result<(), ClusterError> {
        let (mut found, _) = client.read_stored(&[keys::AUTHORITY]).await?;
        let stored = found.pop().flatten().filter(|stored| !stored.is_reserved());
        // Nobody can vouch for the record itself: what it says counts as far as trusted keys have signed it.
        let record = stored.and_then(|stored| read_record(&without_signature(&stored.value)).ok());
        self.learn(record.as_ref());
        Ok(())
    }

    fn refused(place: &Place<'_>, cause: &str) -> GuardFault {
        atoll_security_log::note(SecurityEvent::RefusedRecord, place.key, cause);
        GuardFault::Refused(cause.to_owned())
    }
}

/// Returns the keys that are trusted from now on; `None` if nothing new is known. While a key is being replaced two are.
pub(crate) fn successors(trusted: &[PublicKey], record: &AuthorityRecord) -> Option<Vec<PublicKey>> {
    if trusted.is_empty() {
        let first = record.public_keys.last().filter(|_| record.signs_for_all)?;
        return Some(vec![PublicKey::of(first)?]);
    }
    let mut found: Vec<PublicKey> = Vec::new();
    for public in &record.public_keys {
        let Some(key) = PublicKey::of(public) else { break };
        match found.last() {
            None if trusted.contains(&key) => found.push(key),
            Some(before) if before.endorses(public) => found.push(key),
            None => {}
            Some(_) => break,
        }
    }
    let is_replaced = record.keys.len() == 1;
    let kept = if is_replaced { 1 } else { 2 };
    let obsolete = found.len().saturating_sub(kept);
    found.drain(..obsolete);
    (!found.is_empty()).then_some(found)
}

impl RecordGuard for Verifier {
    fn open(&self, place: &Place<'_>, stored: &[u8]) -> Result<Vec<u8>, GuardFault> {
        if !kinds::is_for_all(place.key) {
            return Ok(without_signature(stored));
        }
        let known = self.known();
        if known.trusted.is_empty() {
            let is_fresh = known.read_at.is_some_and(|at| at.elapsed() < LOOK_AGAIN);
            return if is_fresh { Ok(without_signature(stored)) } else { Err(GuardFault::Stale) };
        }
        let Some((record, signature)) = envelope::split(stored) else {
            return Err(Self::refused(place, "it has no signature"));
        };
        let key = known.trusted.iter().find(|key| key.id == signature.key_id).ok_or(GuardFault::Stale)?;
        key.verify(place, &record, &signature).map_err(|cause| Self::refused(place, cause))?;
        Ok(record)
    }

    fn seal(&self, _: &Place<'_>, _: &[u8]) -> Result<Vec<u8>, GuardFault> {
        Err(GuardFault::Refused("the key service is not here".into()))
    }

    fn can_seal(&self) -> bool {
        false
    }

    fn authority_revision(&self) -> i64 {
        0
    }

    fn has_manifest(&self) -> Result<bool, GuardFault> {
        let known = self.known();
        match (known.trusted.is_empty(), known.read_at.is_some_and(|at| at.elapsed() < LOOK_AGAIN)) {
            (false, _) => Ok(true),
            (true, true) => Ok(false),
            (true, false) => Err(GuardFault::Stale),
        }
    }

    fn note_removed(&self, key: &str) -> String {
        note_removed(key)
    }

    fn refresh<'a>(&'a self, client: &'a ClusterClient) -> Answer<'a, ()> {
        Box::pin(self.read_again(client))
    }
}
