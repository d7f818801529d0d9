//! Signed records: where they enter a process they are verified, and where they leave it they are signed. A client
//! does both by itself, so no reader and no writer can forget it.

use std::fmt;

use etcd_client::{KeyValue, Txn, TxnOp, TxnOpResponse};

use super::error::ClusterError;
use super::transaction::Transaction;
use super::{Answer, ClusterClient, Repeat};
use crate::{keys, kinds};

/// How often a signed record is written again because others changed it, or the keys, at the same moment.
const ATTEMPTS_MAX: usize = 16;
/// Revisions within which a record must be created after the one that its signature names.
pub const CREATION_WINDOW: i64 = 1_000;

/// A record's place in the history of cluster state, which nobody who only writes there can give to another record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// Its key.
    pub key: &'a str,
    /// How often it was written since it was created; 1 is its creation.
    pub version: i64,
    /// The revision at which it was created; for a record that is about to be created, the revision before that.
    pub create_revision: i64,
}

/// Why a guard does not open or seal a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardFault {
    /// It has to read its keys first.
    Stale,
    /// The record is not what a holder of the keys has written in this place.
    Refused(String),
}

/// Signs and verifies records of the kinds in [`kinds`].
pub trait RecordGuard: fmt::Debug + Send + Sync {
    /// Returns a stored record without its signature.
    fn open(&self, place: &Place<'_>, stored: &[u8]) -> Result<Vec<u8>, GuardFault>;
    /// Returns a record as it is to be stored.
    fn seal(&self, place: &Place<'_>, record: &[u8]) -> Result<Vec<u8>, GuardFault>;
    /// Returns the revision of [`keys::AUTHORITY`] by which it seals; 0 if there is none.
    fn authority_revision(&self) -> i64;
    /// Reads the keys.
    fn refresh<'a>(&'a self, client: &'a ClusterClient) -> Answer<'a, ()>;
}

/// A value as it is stored, with its place.
#[derive(Clone, Debug)]
pub struct Stored {
    /// Its key.
    pub key: String,
    /// The value.
    pub value: Vec<u8>,
    /// The revision at which it was last written.
    pub mod_revision: i64,
    /// [`Place::version`].
    pub version: i64,
    /// [`Place::create_revision`].
    pub create_revision: i64,
}

impl Stored {
    /// Takes over what a response has; `Err` with the key if its name is not UTF-8.
    pub(super) fn from_entry(entry: KeyValue) -> Result<Stored, String> {
        let (mod_revision, version) = (entry.mod_revision(), entry.version());
        let create_revision = entry.create_revision();
        let (key, value) = entry.into_key_value();
        let key =
            String::from_utf8(key).map_err(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())?;
        Ok(Stored { key, value, mod_revision, version, create_revision })
    }

    /// Returns its place.
    pub fn place(&self) -> Place<'_> {
        Place { key: &self.key, version: self.version, create_revision: self.create_revision }
    }
}

impl ClusterClient {
    /// The same connection, reading records as they are stored.
    pub fn without_guard(&self) -> ClusterClient {
        ClusterClient { guard: None, ..self.clone() }
    }

    /// The same connection, with another guard.
    pub fn with_guard(&self, guard: std::sync::Arc<dyn RecordGuard>) -> ClusterClient {
        ClusterClient { guard: Some(guard), ..self.clone() }
    }

    /// Verifies what was read; why it is refused, if it is.
    pub(super) async fn opened(&self, stored: &Stored) -> Result<Result<Vec<u8>, String>, ClusterError> {
        let Some(guard) = self.guard.as_ref().filter(|_| kinds::is_signed(&stored.key)) else {
            return Ok(Ok(stored.value.clone()));
        };
        let mut opened = guard.open(&stored.place(), &stored.value);
        if opened == Err(GuardFault::Stale) {
            guard.refresh(self).await?;
            opened = guard.open(&stored.place(), &stored.value);
        }
        Ok(opened.map_err(|fault| match fault {
            GuardFault::Refused(cause) => cause,
            GuardFault::Stale => "it is signed by a key that the cluster does not have".into(),
        }))
    }

    /// Performs a transaction that writes signed records.
    pub(super) async fn transact_signed(&self, transaction: &Transaction) -> Result<i64, ClusterError> {
        let signed = transaction.signed_keys();
        let Some(guard) = &self.guard else {
            return self.transact_unsigned(transaction, &signed).await;
        };
        for _ in 0..ATTEMPTS_MAX {
            let (found, revision) = self.read_stored(&signed).await?;
            let mut sealed = transaction.clone();
            match seal(&**guard, &mut sealed, &found, revision) {
                Ok(()) => {}
                Err((_, GuardFault::Stale)) => {
                    guard.refresh(self).await?;
                    continue;
                }
                Err((key, GuardFault::Refused(cause))) => return Err(ClusterError::Untrusted { key, cause }),
            }
            match self.send(&sealed.check(keys::AUTHORITY, guard.authority_revision())).await {
                Err(ClusterError::Conflict { key, .. }) if key == keys::AUTHORITY => guard.refresh(self).await?,
                Err(ClusterError::Conflict { key, .. }) if !transaction.has_check(&key) => {}
                Ok(at) if at > revision + CREATION_WINDOW && guard.authority_revision() != 0 => {
                    return self.sign_again(&**guard, transaction, at).await;
                }
                done => return done,
            }
        }
        let key = signed.first().map_or_else(String::new, |key| (*key).to_owned());
        Err(ClusterError::Conflict { key, expected: 0, found: 0 })
    }

    /// Without the key service records can be written as long as the cluster has no signed ones.
    async fn transact_unsigned(&self, transaction: &Transaction, signed: &[&str]) -> Result<i64, ClusterError> {
        self.send(&transaction.clone().check(keys::AUTHORITY, 0)).await.map_err(|error| match error {
            ClusterError::Conflict { key, .. } if key == keys::AUTHORITY => {
                ClusterError::NoAuthority { key: signed.first().map_or_else(String::new, |key| (*key).to_owned()) }
            }
            other => other,
        })
    }

    /// Signs what was created so late that its signature does not hold, and whatever was written with it, so that all
    /// has one revision.
    async fn sign_again(
        &self,
        guard: &dyn RecordGuard,
        transaction: &Transaction,
        at: i64,
    ) -> Result<i64, ClusterError> {
        let mut again = transaction.written_at(at);
        let (found, revision) = self.read_stored(&transaction.signed_keys()).await?;
        seal(guard, &mut again, &found, revision).map_err(|(key, fault)| ClusterError::Untrusted {
            key,
            cause: format!("it cannot be signed: {fault:?}"),
        })?;
        self.send(&again).await
    }

    /// Reads records as they are stored, each if it is there, and the revision of cluster state.
    pub async fn read_stored(&self, keys: &[&str]) -> Result<(Vec<Option<Stored>>, i64), ClusterError> {
        let looks: Vec<_> = keys.iter().map(|key| TxnOp::get(*key, None)).collect();
        let response = self
            .call("look for signed records", Repeat::Freely, |mut kv| {
                let request = Txn::new().and_then(looks.clone());
                async move { kv.txn(request).await }
            })
            .await?;
        let revision = response.header().map_or(0, |header| header.revision());
        let entry = |found: TxnOpResponse| match found {
            TxnOpResponse::Get(mut found) => found.take_kvs().into_iter().next(),
            _ => None,
        };
        let found = response.op_responses().into_iter().map(entry);
        Ok((found.map(|entry| Stored::from_entry(entry?).ok()).collect(), revision))
    }
}

/// Signs the records of a transaction for their next places, and makes it depend on these.
fn seal(
    guard: &dyn RecordGuard,
    transaction: &mut Transaction,
    found: &[Option<Stored>],
    revision: i64,
) -> Result<(), (String, GuardFault)> {
    let mut checks = Vec::new();
    for ((key, value), found) in transaction.signed_puts().zip(found) {
        let place = match found {
            Some(found) => Place { key, version: found.version + 1, create_revision: found.create_revision },
            None => Place { key, version: 1, create_revision: revision },
        };
        *value = guard.seal(&place, value).map_err(|fault| (key.to_owned(), fault))?;
        checks.push((key.to_owned(), found.as_ref().map_or(0, |found| found.mod_revision)));
    }
    for (key, revision) in checks {
        // A check of the caller's own says more, and fails if it is of another revision.
        if !transaction.has_check(&key) {
            *transaction = std::mem::take(transaction).check(&key, revision);
        }
    }
    Ok(())
}
