//! Records that must be there: the manifest names those whose absence would loosen something. One that it names and that is
//! not there was removed by hand, and is refused as an altered one is.

use std::collections::BTreeSet;

use super::error::ClusterError;
use super::guard::{GuardFault, RecordGuard, Stored};
use super::signed_writes::{is_stale, names_of};
use super::transaction::Transaction;
use super::{Answer, ClusterClient};
use crate::{keys, kinds};

/// Times that the guard reads its keys for one question.
const REFRESHES_MAX: usize = 2;

impl ClusterClient {
    /// Makes sure that a record which was not found was not removed by hand.
    pub(super) async fn check_absence(&self, key: &str) -> Result<(), ClusterError> {
        let Some(guard) = self.guard.as_deref().filter(|_| kinds::is_named(key)) else { return Ok(()) };
        match self.is_missing(guard, key).await? {
            true => Err(ClusterError::Untrusted { key: key.to_owned(), cause: guard.note_removed(key) }),
            false => Ok(()),
        }
    }

    /// Returns whether the manifest names a record that is not there.
    async fn is_missing(&self, guard: &dyn RecordGuard, key: &str) -> Result<bool, ClusterError> {
        for _ in 0..REFRESHES_MAX {
            match guard.has_manifest() {
                Ok(false) => return Ok(false),
                Ok(true) => break,
                Err(GuardFault::Stale) => guard.refresh(self).await?,
                Err(GuardFault::Refused(cause)) => {
                    return Err(ClusterError::Untrusted { key: keys::AUTHORITY.into(), cause });
                }
            }
        }
        // At one revision: it may have been created since it was not found.
        let (found, _) = self.read_stored(&[key, keys::MANIFEST]).await?;
        let [record, manifest] = [0, 1].map(|index| found.get(index).and_then(Option::as_ref));
        let is_there = record.is_some_and(|stored| !stored.is_reserved());
        Ok(!is_there && self.names(guard, manifest).await?.contains(key))
    }

    /// Reads the names in the manifest, with the current keys.
    async fn names(
        &self,
        guard: &dyn RecordGuard,
        manifest: Option<&Stored>,
    ) -> Result<BTreeSet<String>, ClusterError> {
        if manifest.is_some_and(|stored| is_stale(guard, stored)) {
            guard.refresh(self).await?;
        }
        names_of(guard, manifest)
    }

    /// Returns the keys in a range that the manifest names, and that are neither listed nor there.
    pub(super) async fn missing_in(&self, range: &str, listed: &[Stored]) -> Result<Vec<String>, ClusterError> {
        let touches = |prefix: &str| prefix.starts_with(range) || range.starts_with(prefix);
        let is_listed = |name: &str| listed.iter().any(|stored| stored.key == name && !stored.is_reserved());
        // A record that exists needs no manifest. A prefix does not name the records that are missing below it.
        let may_lack = |prefix: &str| touches(prefix) && (prefix.ends_with('/') || !is_listed(prefix));
        let is_asked = kinds::named_prefixes().any(may_lack);
        let Some(guard) = self.guard.as_deref().filter(|_| is_asked) else { return Ok(Vec::new()) };
        match guard.has_manifest() {
            Ok(true) => {}
            Ok(false) => return Ok(Vec::new()),
            Err(_) => {
                guard.refresh(self).await?;
                if guard.has_manifest() == Ok(false) {
                    return Ok(Vec::new());
                }
            }
        }
        let (found, _) = self.read_stored(&[keys::MANIFEST]).await?;
        let named = self.names(guard, found.first().and_then(Option::as_ref)).await?;
        let mut missing = Vec::new();
        for name in named.into_iter().filter(|name| name.starts_with(range) && !is_listed(name.as_str())) {
            if self.is_missing(guard, &name).await? {
                missing.push(name);
            }
        }
        Ok(missing)
    }

    /// Returns why a record that the manifest names, and that is not there, is refused.
    pub(super) fn removed_by_hand(&self, key: &str) -> String {
        self.guard.as_ref().map_or_else(String::new, |guard| guard.note_removed(key))
    }

    /// Deletes a record that the manifest names, also from there, and says whether either had it.
    pub(super) fn delete_named<'a>(&'a self, key: &'a str) -> Answer<'a, bool> {
        Box::pin(async move {
            let (found, _) = self.read_stored(&[key]).await?;
            let is_there = found.iter().flatten().any(|stored| !stored.is_reserved());
            let was_removed = match self.sealer() {
                Some(guard) if !is_there => self.is_missing(guard, key).await?,
                _ => false,
            };
            // Without the keys nothing is removed, and cluster state says why.
            if !is_there && !was_removed && self.verifies_records() {
                return Ok(false);
            }
            self.transact(&Transaction::new().delete(key)).await?;
            Ok(is_there || was_removed)
        })
    }
}
