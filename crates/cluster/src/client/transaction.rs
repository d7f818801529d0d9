//! A small transaction: all checks hold and all changes are made at one revision, or nothing is.

use std::collections::BTreeMap;

use etcd_client::{Compare, CompareOp, GetOptions, GetResponse, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse};
use serde::Serialize;

use super::error::ClusterError;
use super::guard::Stored;
use super::proposals::{Proposer, is_proposed};
use super::{Answer, ClusterClient, Repeat, encode};
use crate::keys::PG_TARGETS;
use crate::kinds::{is_named, is_signed};

/// Checks and changes of a transaction.
#[derive(Clone, Debug, Default)]
pub struct Transaction {
    checks: Vec<Check>,
    changes: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Check {
    Key { key: String, revision: i64 },
    Prefix { prefix: String, revision: i64 },
}

#[derive(Clone, Debug)]
enum Change {
    Put { key: String, value: Vec<u8>, lease: i64 },
    Delete { key: String },
}

impl Transaction {
    /// Nothing yet.
    pub fn new() -> Transaction {
        Transaction::default()
    }

    /// Only if the key was last changed at this revision; 0 means only if it is absent.
    pub fn check(mut self, key: &str, mod_revision: i64) -> Transaction {
        self.checks.push(Check::Key { key: key.to_owned(), revision: mod_revision });
        self
    }

    /// Only if no key with this prefix was written after this revision: that of a [`Listing`](super::Listing) of them.
    /// Keys may have been deleted. A signed record that the transaction itself creates counts as written before.
    pub fn check_prefix(mut self, prefix: &str, revision: i64) -> Transaction {
        self.checks.push(Check::Prefix { prefix: prefix.to_owned(), revision });
        self
    }

    /// Writes a value.
    pub fn put<T: Serialize>(self, key: &str, value: &T) -> Result<Transaction, ClusterError> {
        self.put_with_lease(key, value, 0)
    }

    /// Writes a value that goes when the lease goes; lease 0 is none.
    pub fn put_with_lease<T: Serialize>(
        mut self,
        key: &str,
        value: &T,
        lease: i64,
    ) -> Result<Transaction, ClusterError> {
        self.changes.push(Change::Put { key: key.to_owned(), value: encode(key, value)?, lease });
        Ok(self)
    }

    /// Writes a value as it is.
    pub fn put_bytes(mut self, key: &str, value: Vec<u8>) -> Transaction {
        self.changes.push(Change::Put { key: key.to_owned(), value, lease: 0 });
        self
    }

    /// Returns the keys of the signed records that it writes.
    pub(super) fn signed_keys(&self) -> Vec<&str> {
        self.written().filter(|key| is_signed(key)).collect()
    }

    fn written(&self) -> impl Iterator<Item = &str> {
        self.changes.iter().filter_map(|change| match change {
            Change::Put { key, .. } => Some(key.as_str()),
            Change::Delete { .. } => None,
        })
    }

    /// Returns the keys that the manifest names or is to name: of records that it writes, and that it deletes.
    pub(super) fn named_keys(&self) -> (Vec<&str>, Vec<&str>) {
        let deleted = self.changes.iter().filter_map(|change| match change {
            Change::Delete { key } => Some(key.as_str()),
            Change::Put { .. } => None,
        });
        (self.written().filter(|key| is_named(key)).collect(), deleted.filter(|key| is_named(key)).collect())
    }

    /// Returns the keys of signed records that it writes, or that must be absent.
    pub(super) fn guarded_keys(&self) -> Vec<&str> {
        let absent = self.checks.iter().filter_map(|check| match check {
            Check::Key { key, revision: 0 } if is_signed(key) => Some(key.as_str()),
            _ => None,
        });
        let mut all: Vec<&str> = self.signed_keys();
        all.extend(self.named_keys().1);
        all.extend(absent);
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Returns the same, with a reserved key in place of one that must be absent.
    pub(super) fn with_reserved(&self, found: &BTreeMap<String, Stored>) -> Transaction {
        let mut reserved = self.clone();
        for check in &mut reserved.checks {
            if let Check::Key { key, revision } = check
                && *revision == 0
                && let Some(stored) = found.get(key.as_str()).filter(|stored| stored.is_reserved())
            {
                *revision = stored.mod_revision;
            }
        }
        reserved
    }

    /// Returns its checks, without its changes.
    pub(super) fn only_checks(&self) -> Transaction {
        Transaction { checks: self.checks.clone(), changes: Vec::new() }
    }

    /// Returns the signed records that it writes.
    pub(super) fn signed_puts(&mut self) -> impl Iterator<Item = (&str, &mut Vec<u8>)> {
        let written = self.changes.iter_mut().filter_map(|change| match change {
            Change::Put { key, value, .. } => Some((key.as_str(), value)),
            Change::Delete { .. } => None,
        });
        written.filter(|(key, _)| is_signed(key))
    }

    /// Returns the same, with the changes of PGs signed: of their records for the revisions that they replace.
    pub(super) fn proposed_by(&self, proposer: &Proposer) -> Transaction {
        let mut signed = self.clone();
        for change in &mut signed.changes {
            let Change::Put { key, value, .. } = change else { continue };
            let replaced = self.checks.iter().find_map(|check| match check {
                Check::Key { key: checked, revision } if *checked == *key => Some(*revision),
                _ => None,
            });
            // A target replaces whatever is there.
            let replaced = if key.starts_with(PG_TARGETS) { Some(0) } else { replaced };
            if let Some(replaced) = replaced.filter(|_| is_proposed(key)) {
                *value = proposer.sign(key, replaced, std::mem::take(value));
            }
        }
        signed
    }

    fn is_proposal(&self) -> bool {
        self.written().any(is_proposed)
    }

    /// Returns whether it depends on the revision of a key.
    pub(super) fn has_check(&self, key: &str) -> bool {
        self.checks.iter().any(|check| match check {
            Check::Key { key: checked, .. } => checked == key,
            Check::Prefix { prefix, .. } => prefix == key,
        })
    }

    /// Deletes a key if it is there.
    pub fn delete(mut self, key: &str) -> Transaction {
        self.changes.push(Change::Delete { key: key.to_owned() });
        self
    }

    fn to_etcd(&self) -> Txn {
        let compares: Vec<_> = self.checks.iter().map(Check::to_compare).collect();
        let changes: Vec<_> = self
            .changes
            .iter()
            .map(|change| match change {
                Change::Put { key, value, lease } => {
                    let options = PutOptions::new().with_lease(*lease);
                    TxnOp::put(key.as_str(), value.clone(), Some(options))
                }
                Change::Delete { key } => TxnOp::delete(key.as_str(), None),
            })
            .collect();
        // On failure, see which check it was.
        let looks: Vec<_> = self.checks.iter().map(Check::to_look).collect();
        Txn::new().when(compares).and_then(changes).or_else(looks)
    }
}

impl Check {
    fn to_compare(&self) -> Compare {
        match self {
            Check::Key { key, revision } => Compare::mod_revision(key.as_str(), CompareOp::Equal, *revision),
            // It holds for every key there is, or for none.
            Check::Prefix { prefix, revision } => {
                Compare::mod_revision(prefix.as_str(), CompareOp::Less, revision.saturating_add(1)).with_prefix()
            }
        }
    }

    fn to_look(&self) -> TxnOp {
        let options = GetOptions::new().with_keys_only();
        match self {
            Check::Key { key, .. } => TxnOp::get(key.as_str(), Some(options)),
            Check::Prefix { prefix, .. } => TxnOp::get(prefix.as_str(), Some(options.with_prefix())),
        }
    }

    /// Returns its conflict with the records found on failure.
    fn conflict(&self, found: &GetResponse) -> Option<ClusterError> {
        let mod_revision = |entry: &KeyValue| entry.mod_revision();
        let (key, expected, found) = match self {
            Check::Key { key, revision } => {
                let found = found.kvs().first().map_or(0, mod_revision);
                (key.clone(), *revision, (found != *revision).then_some(found)?)
            }
            Check::Prefix { prefix, revision } => {
                let newest = found.kvs().iter().map(mod_revision).max().unwrap_or(0);
                (prefix.clone(), *revision, (newest > *revision).then_some(newest)?)
            }
        };
        Some(ClusterError::Conflict { key, expected, found })
    }
}

impl ClusterClient {
    /// Performs a transaction and returns its revision, which is the modification revision of
    /// every key it put. [`ClusterError::Conflict`] names the first check that failed.
    ///
    /// It is repeated only while it certainly has not reached the server: after a broken
    /// connection the outcome is [`ClusterError::Unclear`].
    pub fn transact<'a>(&'a self, transaction: &'a Transaction) -> Answer<'a, i64> {
        Box::pin(async move {
            let writes = !transaction.signed_keys().is_empty() || !transaction.named_keys().1.is_empty();
            let is_guarded = writes || self.sealer().is_some() && !transaction.guarded_keys().is_empty();
            match is_guarded {
                true => self.transact_signed(transaction).await,
                false => self.send(transaction).await,
            }
        })
    }

    fn lasts(transaction: &Transaction) -> bool {
        transaction.changes.iter().any(|change| !matches!(change, Change::Put { lease, .. } if *lease != 0))
    }

    /// Sends a transaction as it is.
    pub(super) async fn send(&self, transaction: &Transaction) -> Result<i64, ClusterError> {
        let proposer = self.options.proposer.as_ref().filter(|_| transaction.is_proposal());
        let signed = proposer.map(|proposer| transaction.proposed_by(proposer));
        let transaction = signed.as_ref().unwrap_or(transaction);
        let operation = match transaction.changes.first() {
            Some(Change::Put { key, .. }) => format!("write {key}"),
            Some(Change::Delete { key }) => format!("delete {key}"),
            None => "check".to_owned(),
        };
        let response = self
            .call(&operation, Repeat::IfNotSent, |mut kv| {
                let request = transaction.to_etcd();
                async move { kv.txn(request).await }
            })
            .await?;
        if response.succeeded() {
            if Self::lasts(transaction) {
                self.note_change();
            }
            return Ok(response.header().map_or(0, |header| header.revision()));
        }
        let found = response.op_responses();
        let conflict = transaction.checks.iter().zip(&found).find_map(|(check, found)| match found {
            TxnOpResponse::Get(found) => check.conflict(found),
            _ => None,
        });
        Err(conflict.unwrap_or_else(|| ClusterError::Refused {
            endpoints: self.endpoints(),
            operation,
            cause: "the server says that a check failed and that none did".into(),
        }))
    }
}
