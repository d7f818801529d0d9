//! The guard of a process that has the key service: it knows the cluster's keys, signs with the newest of them and
//! verifies with all.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use atoll_cluster::{Answer, ClusterClient, ClusterError, GuardFault, Place, RecordGuard, Stored, keys, kinds};
use atoll_keys::{KeyRing, KeyService};
use atoll_security_log::SecurityEvent;
use atoll_types::authority::{AuthorityKey, AuthorityRecord};
use atoll_types::record_json::read_record;

use crate::envelope::{self, PublicKey, SigningKey};

/// Pause after which a process that has seen no signed cluster looks again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
const KEYS_ARE_GONE: &str = "the cluster's keys (/atoll/authority) are gone";

/// Where the key service is.
enum Source {
    File(PathBuf),
    Service(Arc<dyn KeyService>),
}

/// Signs and verifies the records of a cluster.
pub struct Authority {
    source: Source,
    /// This host knows that the cluster is signed.
    is_pinned: bool,
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    read_at: Option<Instant>,
    /// None while the cluster is not signed. It is never none again.
    signed: Option<Arc<Signed>>,
}

/// The keys, as of a revision of the record that has them.
struct Signed {
    revision: i64,
    keys: Vec<SigningKey>,
    accepts_unsigned: bool,
    has_manifest: bool,
    /// The newest key is published.
    has_public: bool,
    signs_for_all: bool,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("is_pinned", &self.is_pinned).finish_non_exhaustive()
    }
}

/// Returns the context of a wrapped key of the authority.
pub(crate) fn key_context(id: &str) -> String {
    format!("signed records {id}")
}

fn untrusted(cause: impl Into<String>) -> ClusterError {
    ClusterError::Untrusted { key: keys::AUTHORITY.into(), cause: cause.into() }
}

impl Authority {
    /// With the key service of a file, which is opened when it is needed. `is_pinned` says that the cluster is known
    /// to be signed, so that nothing unsigned is taken, whatever cluster state says.
    pub fn of_file(path: &Path, is_pinned: bool) -> Authority {
        Authority { source: Source::File(path.to_owned()), is_pinned, known: RwLock::default() }
    }

    /// With an open key service.
    pub fn of_service(service: Arc<dyn KeyService>, is_pinned: bool) -> Authority {
        Authority { source: Source::Service(service), is_pinned, known: RwLock::default() }
    }

    /// Returns whether the cluster is signed, as of the last look; records without a signature may still be accepted.
    pub fn is_signed(&self) -> bool {
        self.known().signed.is_some()
    }

    /// Returns whether it takes records without a signature.
    pub fn accepts_unsigned(&self) -> bool {
        !self.is_pinned && self.known().signed.as_ref().is_none_or(|signed| signed.accepts_unsigned)
    }

    /// Returns the public half of the key that signs, as hosts remember it, once all that they verify is signed by it.
    pub fn public_key(&self) -> Option<String> {
        let signed = self.known().signed.clone().filter(|signed| signed.signs_for_all)?;
        let newest = signed.keys.last()?;
        PublicKey::of(&newest.public(None)).map(|key| key.to_text())
    }

    /// Returns true if processes without the key service can verify the records that they obey.
    pub fn signs_for_all(&self) -> bool {
        self.known().signed.as_ref().is_some_and(|signed| signed.signs_for_all)
    }

    /// Returns the id of the key that signs.
    pub(crate) fn newest_key_id(&self) -> Option<String> {
        let signed = self.known().signed.clone()?;
        signed.keys.last().map(|key| key.id.clone())
    }

    fn known(&self) -> std::sync::RwLockReadGuard<'_, Known> {
        // It is replaced whole, so a panic elsewhere does not spoil it.
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the keys, and whether cluster state was asked for them lately.
    fn now_known(&self) -> (Option<Arc<Signed>>, bool) {
        let known = self.known();
        (known.signed.clone(), known.read_at.is_some_and(|at| at.elapsed() < LOOK_AGAIN))
    }

    fn learn(&self, signed: Option<Arc<Signed>>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.read_at = Some(Instant::now());
        if let Some(signed) = signed {
            known.signed = Some(signed);
        }
    }

    async fn unwrap(&self, all: &[AuthorityKey]) -> Result<Vec<SigningKey>, ClusterError> {
        let unavailable = |error: atoll_keys::KeyError| ClusterError::KeyService { cause: error.to_string() };
        let service: Arc<dyn KeyService> = match &self.source {
            Source::File(path) => Arc::new(KeyRing::open(path).map_err(unavailable)?),
            Source::Service(service) => service.clone(),
        };
        let mut opened = Vec::with_capacity(all.len());
        for key in all {
            let secret = service.unwrap(&key_context(&key.id), &key.wrapped_key).await.map_err(unavailable)?;
            opened.push(SigningKey::new(&key.id, &secret));
        }
        Ok(opened)
    }

    async fn read_keys(&self, stored: &Stored) -> Result<Signed, ClusterError> {
        let (record, signature) =
            envelope::split(&stored.value).ok_or_else(|| untrusted("it has no signature of its own"))?;
        let read: AuthorityRecord = read_record(&record).map_err(|error| untrusted(error.to_string()))?;
        let keys = self.unwrap(&read.keys).await?;
        let newest = keys.last().filter(|key| key.id == signature.key_id);
        let newest = newest.ok_or_else(|| untrusted("it is not signed by its newest key"))?;
        envelope::verify(newest, &stored.place(), &record, &signature).map_err(untrusted)?;
        let has_public = read.public_keys.last().is_some_and(|public| public.id == newest.id);
        let AuthorityRecord { accepts_unsigned, has_manifest, signs_for_all, .. } = read;
        let revision = stored.mod_revision;
        Ok(Signed { revision, keys, accepts_unsigned, has_manifest, has_public, signs_for_all })
    }

    async fn read_again(&self, client: &ClusterClient) -> Result<(), ClusterError> {
        let (mut found, _) = client.read_stored(&[keys::AUTHORITY]).await?;
        let Some(stored) = found.pop().flatten().filter(|stored| !stored.is_reserved()) else {
            self.learn(None);
            return Ok(());
        };
        if self.known().signed.as_ref().is_some_and(|signed| signed.revision == stored.mod_revision) {
            self.learn(None);
            return Ok(());
        }
        let signed = self.read_keys(&stored).await?;
        self.learn(Some(Arc::new(signed)));
        Ok(())
    }

    fn refused(place: &Place<'_>, cause: &str) -> GuardFault {
        atoll_security_log::note(SecurityEvent::RefusedRecord, place.key, cause);
        GuardFault::Refused(cause.to_owned())
    }

    fn open_unsigned(
        &self,
        place: &Place<'_>,
        stored: &[u8],
        signed: Option<&Signed>,
        is_fresh: bool,
    ) -> Result<Vec<u8>, GuardFault> {
        let is_none_yet = |signed: &Signed| !signed.signs_for_all && kinds::is_signed_for_all_only(place.key);
        match signed {
            Some(signed) if is_none_yet(signed) && is_fresh => Ok(stored.to_vec()),
            Some(signed) if is_none_yet(signed) => Err(GuardFault::Stale),
            Some(signed) if !signed.accepts_unsigned => Err(Self::refused(place, "it has no signature")),
            _ if !is_fresh => Err(GuardFault::Stale),
            None if self.is_pinned => Err(Self::refused(
                place,
                "it has no signature, and the cluster's keys (/atoll/authority) are gone",
            )),
            Some(_) if self.is_pinned => Err(Self::refused(place, "it has no signature")),
            _ => Ok(stored.to_vec()),
        }
    }
}

/// Notes that a record which the manifest names is missing. Returns the cause.
pub(crate) fn note_removed(key: &str) -> String {
    let cause = "it was removed by hand: this cluster's manifest names it";
    atoll_security_log::note(SecurityEvent::RefusedRecord, key, cause);
    cause.into()
}

impl RecordGuard for Authority {
    fn open(&self, place: &Place<'_>, stored: &[u8]) -> Result<Vec<u8>, GuardFault> {
        let (signed, is_fresh) = self.now_known();
        let Some((record, signature)) = envelope::split(stored) else {
            return self.open_unsigned(place, stored, signed.as_deref(), is_fresh);
        };
        let keys = signed.as_deref().map_or(&[][..], |signed| &signed.keys);
        let key = keys.iter().find(|key| key.id == signature.key_id);
        // The keys may have changed since they were read.
        let key = key.ok_or(GuardFault::Stale)?;
        if signed.as_ref().is_some_and(|signed| signed.signs_for_all && kinds::is_for_all(place.key))
            && !signature.is_for_all()
        {
            return Err(Self::refused(place, "its signature is one for holders of the keys only"));
        }
        envelope::verify(key, place, &record, &signature).map_err(|cause| Self::refused(place, cause))?;
        Ok(record)
    }

    fn seal(&self, place: &Place<'_>, record: &[u8]) -> Result<Vec<u8>, GuardFault> {
        let known = self.known();
        match &known.signed {
            _ if known.read_at.is_none() => Err(GuardFault::Stale),
            Some(signed) => {
                let key = signed.keys.last().expect("the newest key has signed the record of the keys");
                let sealed = envelope::seal(key, place, record, signed.has_public);
                sealed.ok_or_else(|| GuardFault::Refused("it is no JSON object".into()))
            }
            None if self.is_pinned => Err(GuardFault::Refused(KEYS_ARE_GONE.into())),
            None => Ok(record.to_vec()),
        }
    }

    fn authority_revision(&self) -> i64 {
        self.known().signed.as_ref().map_or(0, |signed| signed.revision)
    }

    fn has_manifest(&self) -> Result<bool, GuardFault> {
        let (signed, is_fresh) = self.now_known();
        match signed {
            Some(signed) if signed.has_manifest => Ok(true),
            _ if !is_fresh => Err(GuardFault::Stale),
            None if self.is_pinned => Err(GuardFault::Refused(KEYS_ARE_GONE.into())),
            _ => Ok(false),
        }
    }

    fn note_removed(&self, key: &str) -> String {
        note_removed(key)
    }

    fn refresh<'a>(&'a self, client: &'a ClusterClient) -> Answer<'a, ()> {
        Box::pin(self.read_again(client))
    }
}
