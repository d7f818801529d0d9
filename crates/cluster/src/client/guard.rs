//! Signed records: where they enter a process they are verified, and where they leave it they are signed. A client
//! does both by itself, so no reader and no writer can forget it.

use std::fmt;

use etcd_client::{KeyValue, Txn, TxnOp, TxnOpResponse};

use super::error::ClusterError;
use super::{Answer, ClusterClient, ConnectOptions, Proposer, Repeat};
use crate::{keys, kinds};

/// Value of a key whose signed record is about to be created. It means the same as no key, whatever its
/// writer: the record that follows is signed for the revision at which the key was made.
pub const RESERVED: &[u8] = br#"{"reserved":true}"#;

/// A record's place in the history of cluster state, which a mere writer of cluster state cannot give to another
/// record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// Its key.
    pub key: &'a str,
    /// How often it was written since it was created; 1 is its creation, at which no record is signed.
    pub version: i64,
    /// The revision at which it was created.
    pub create_revision: i64,
}

/// Why a guard does not open or seal a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuardFault {
    /// It has to read its keys first.
    Stale,
    /// The record was not written in this place by a holder of the keys.
    Refused(String),
}

/// Signs and verifies records of the kinds in [`kinds`].
pub trait RecordGuard: fmt::Debug + Send + Sync {
    /// Returns a stored record without its signature.
    fn open(&self, place: &Place<'_>, stored: &[u8]) -> Result<Vec<u8>, GuardFault>;
    /// Returns a record as it is to be stored.
    fn seal(&self, place: &Place<'_>, record: &[u8]) -> Result<Vec<u8>, GuardFault>;
    /// Returns true if it has the keys that seal: the key service is here.
    fn can_seal(&self) -> bool {
        true
    }
    /// Returns the revision of [`keys::AUTHORITY`] with which it seals; 0 if there is none.
    fn authority_revision(&self) -> i64;
    /// Returns whether the cluster has a manifest of records that must be there.
    fn has_manifest(&self) -> Result<bool, GuardFault>;
    /// Notes that a record which the manifest names was removed by hand, and returns that in words.
    fn note_removed(&self, key: &str) -> String;
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
    /// Takes over an entry of a response; `Err` with the key if its name is not UTF-8.
    pub(super) fn from_entry(entry: KeyValue) -> Result<Stored, String> {
        let (mod_revision, version) = (entry.mod_revision(), entry.version());
        let create_revision = entry.create_revision();
        let (key, value) = entry.into_key_value();
        let key =
            String::from_utf8(key).map_err(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())?;
        Ok(Stored { key, value, mod_revision, version, create_revision })
    }

    /// Returns whether there is no record yet: its key is reserved for one.
    pub fn is_reserved(&self) -> bool {
        self.value == RESERVED && (kinds::is_signed(&self.key) || self.key == keys::AUTHORITY)
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

    /// The same connection, signing changes of PGs with another key.
    pub fn with_proposer(&self, proposer: Proposer) -> ClusterClient {
        let options = ConnectOptions { proposer: Some(proposer), ..(*self.options).clone() };
        ClusterClient { options: std::sync::Arc::new(options), ..self.clone() }
    }

    /// Returns whether all signed records are verified: the key service is here.
    pub fn verifies_records(&self) -> bool {
        self.sealer().is_some()
    }

    /// The guard, if it can seal.
    pub(super) fn sealer(&self) -> Option<&dyn RecordGuard> {
        self.guard.as_deref().filter(|guard| guard.can_seal())
    }

    /// Has the guard read its keys now, if there is one: then records can be verified.
    pub fn read_authority(&self) -> Answer<'_, ()> {
        match &self.guard {
            Some(guard) => guard.refresh(self),
            None => Box::pin(async { Ok(()) }),
        }
    }

    /// Verifies a read record; returns the reason if it is refused.
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
