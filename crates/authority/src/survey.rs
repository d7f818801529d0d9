//! Signed and unsigned records of a cluster.

use std::collections::BTreeSet;

use atoll_cluster::roles::may_read;
use atoll_cluster::{ClusterClient, ClusterError, GuardFault, RecordGuard, Stored, keys, kinds};
use atoll_types::authority::ManifestRecord;
use atoll_types::record_json::read_record;

use crate::Authority;
use crate::envelope::{self, Signature};

/// How a record that should be signed is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// A key of the cluster has signed it, in its place.
    Signed,
    /// It is signed, and the manifest does not name it yet: a release that did not have it named has written it. Its
    /// removal by hand would not be noticed.
    Unnamed,
    /// A key of the cluster has signed it so that only holders verify it, and others obey it, too. `cluster sign` signs it
    /// for these.
    SignedForHolders,
    /// It has no signature, and the cluster accepts that still.
    Unsigned,
    /// It is refused, for this reason.
    Refused(String),
}

/// A record that should be signed, or should be there.
#[derive(Clone, Debug)]
pub struct Finding {
    /// As it is stored.
    pub stored: Stored,
    /// The key of its signature, as it claims.
    pub key_id: Option<String>,
    /// How it is.
    pub state: RecordState,
}

impl Finding {
    /// Returns whether a key of the cluster has signed it.
    pub fn is_signed(&self) -> bool {
        matches!(self.state, RecordState::Signed | RecordState::Unnamed | RecordState::SignedForHolders)
    }

    /// Returns whether it is refused.
    pub fn is_refused(&self) -> bool {
        matches!(self.state, RecordState::Refused(_))
    }

    fn removed(key: &str, cause: &str) -> Finding {
        let stored =
            Stored { key: key.into(), value: Vec::new(), mod_revision: 0, version: 0, create_revision: 0 };
        Finding { stored, key_id: None, state: RecordState::Refused(cause.into()) }
    }
}

/// Looks at all records that should be signed, and at those that should be there.
pub async fn survey(client: &ClusterClient, authority: &Authority) -> Result<Vec<Finding>, ClusterError> {
    authority.refresh(client).await?;
    // A host looks at what it may read; another one looks at the rest.
    let roles = client.own_roles().await?.unwrap_or_default();
    let mut findings = Vec::new();
    for prefix in kinds::signed_prefixes().filter(|prefix| may_read(&roles, prefix)) {
        // A right to one key is none to the range that begins with it.
        let all = match prefix.ends_with('/') {
            true => client.list_stored(prefix).await?.0,
            false => client.read_stored(&[prefix]).await?.0.into_iter().flatten().collect(),
        };
        let is_record = |stored: &Stored| kinds::is_signed(&stored.key) && !stored.is_reserved();
        for stored in all.into_iter().filter(is_record) {
            findings.push(look(client, authority, stored).await?);
        }
    }
    match manifest(client, authority).await? {
        Manifest::None => {}
        Manifest::Gone => {
            let cause = "it was removed by hand, and without it other removals cannot be found";
            findings.push(Finding::removed(keys::MANIFEST, cause));
        }
        Manifest::Names(named) => {
            findings.extend(removed(client, authority, &roles, &named).await?);
            let is_unnamed = |finding: &&mut Finding| {
                let key = &finding.stored.key;
                finding.state == RecordState::Signed && kinds::is_named(key) && !named.contains(key)
            };
            findings.iter_mut().filter(is_unnamed).for_each(|finding| finding.state = RecordState::Unnamed);
        }
    }
    Ok(findings)
}

/// The manifest of a cluster.
enum Manifest {
    /// It is not signed, or by an earlier release.
    None,
    Gone,
    /// Nothing if it is refused, which is a finding of its own.
    Names(BTreeSet<String>),
}

async fn manifest(client: &ClusterClient, authority: &Authority) -> Result<Manifest, ClusterError> {
    if authority.has_manifest() != Ok(true) {
        return Ok(Manifest::None);
    }
    let (all, _) = client.read_stored(&[keys::MANIFEST]).await?;
    let stored = all.into_iter().flatten().find(|stored| !stored.is_reserved());
    Ok(stored.map_or(Manifest::Gone, |stored| Manifest::Names(names(authority, &stored))))
}

/// Finds records that were removed by hand.
async fn removed(
    client: &ClusterClient,
    authority: &Authority,
    roles: &[String],
    named: &BTreeSet<String>,
) -> Result<Vec<Finding>, ClusterError> {
    let mut findings = Vec::new();
    let is_read =
        |name: &str| kinds::named_prefixes().any(|prefix| name.starts_with(prefix) && may_read(roles, prefix));
    for name in named.iter().filter(|name| is_read(name)) {
        let (found, _) = client.read_stored(&[name, keys::MANIFEST]).await?;
        let is_there = |stored: &&Stored| stored.key == *name && !stored.is_reserved();
        let is_missing = !found.iter().flatten().any(|stored| is_there(&stored));
        // Somebody may have removed it rightly since.
        let manifest = found.iter().flatten().find(|stored| stored.key == keys::MANIFEST);
        if is_missing && manifest.is_some_and(|stored| names(authority, stored).contains(name)) {
            findings.push(Finding::removed(name, "it was removed by hand"));
        }
    }
    Ok(findings)
}

/// Returns a manifest's names; nothing if it is refused, which is a finding of its own.
fn names(authority: &Authority, stored: &Stored) -> BTreeSet<String> {
    let record = authority.open(&stored.place(), &stored.value).ok();
    let read = record.and_then(|record| read_record::<ManifestRecord>(&record).ok());
    read.map_or_else(BTreeSet::new, |record| record.names)
}

async fn look(client: &ClusterClient, authority: &Authority, stored: Stored) -> Result<Finding, ClusterError> {
    let mut opened = authority.open(&stored.place(), &stored.value);
    if opened == Err(GuardFault::Stale) {
        authority.refresh(client).await?;
        opened = authority.open(&stored.place(), &stored.value);
    }
    let signature = envelope::split(&stored.value).map(|(_, signature)| signature);
    let is_for_all = signature.as_ref().is_some_and(Signature::is_for_all);
    let key_id = signature.map(|signature| signature.key_id.to_owned());
    let state = match opened {
        Ok(_) if key_id.is_some() && kinds::is_for_all(&stored.key) && !is_for_all => {
            RecordState::SignedForHolders
        }
        Ok(_) if key_id.is_some() => RecordState::Signed,
        Ok(_) => RecordState::Unsigned,
        Err(GuardFault::Refused(cause)) => RecordState::Refused(cause),
        Err(GuardFault::Stale) => {
            RecordState::Refused("it is signed by a key that the cluster does not have".into())
        }
    };
    Ok(Finding { stored, key_id, state })
}
