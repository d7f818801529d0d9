//! Signed and unsigned records of a cluster.

use std::collections::BTreeSet;

use atoll_cluster::roles::may_read;
use atoll_cluster::{ClusterClient, ClusterError, GuardFault, RecordGuard, Stored, keys, kinds};
use atoll_types::authority::ManifestRecord;
use atoll_types::record_json::read_record;

use crate::Authority;
use crate::envelope;

/// How a record that should be signed is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// A key of the cluster has signed it, in its place.
    Signed,
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
    findings.extend(removed(client, authority, &roles).await?);
    Ok(findings)
}

/// Finds records that were removed by hand.
async fn removed(
    client: &ClusterClient,
    authority: &Authority,
    roles: &[String],
) -> Result<Vec<Finding>, ClusterError> {
    if authority.has_manifest() != Ok(true) {
        return Ok(Vec::new());
    }
    let (all, _) = client.read_stored(&[keys::MANIFEST]).await?;
    let Some(stored) = all.into_iter().flatten().find(|stored| !stored.is_reserved()) else {
        let cause = "it was removed by hand, and without it other removals cannot be found";
        return Ok(vec![Finding::removed(keys::MANIFEST, cause)]);
    };
    let mut findings = Vec::new();
    let is_read =
        |name: &String| kinds::named_prefixes().any(|prefix| name.starts_with(prefix) && may_read(roles, prefix));
    for name in names(authority, &stored).into_iter().filter(is_read) {
        let (found, _) = client.read_stored(&[&name, keys::MANIFEST]).await?;
        let is_there = |stored: &&Stored| stored.key == name && !stored.is_reserved();
        let is_missing = !found.iter().flatten().any(|stored| is_there(&stored));
        // Somebody may have removed it rightly since.
        let manifest = found.iter().flatten().find(|stored| stored.key == keys::MANIFEST);
        if is_missing && manifest.is_some_and(|stored| names(authority, stored).contains(&name)) {
            findings.push(Finding::removed(&name, "it was removed by hand"));
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
    let key_id = envelope::split(&stored.value).map(|(_, signature)| signature.key_id.to_owned());
    let state = match opened {
        Ok(_) if key_id.is_some() => RecordState::Signed,
        Ok(_) => RecordState::Unsigned,
        Err(GuardFault::Refused(cause)) => RecordState::Refused(cause),
        Err(GuardFault::Stale) => {
            RecordState::Refused("it is signed by a key that the cluster does not have".into())
        }
    };
    Ok(Finding { stored, key_id, state })
}
