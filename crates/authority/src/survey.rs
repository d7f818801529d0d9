//! What of a cluster's records is signed.

use atoll_cluster::{ClusterClient, ClusterError, GuardFault, RecordGuard, Stored, kinds};

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

/// A record that should be signed.
#[derive(Clone, Debug)]
pub struct Finding {
    /// As it is stored.
    pub stored: Stored,
    /// The key by which it says it is signed.
    pub key_id: Option<String>,
    /// How it is.
    pub state: RecordState,
}

/// Looks at all records that should be signed.
pub async fn survey(client: &ClusterClient, authority: &Authority) -> Result<Vec<Finding>, ClusterError> {
    authority.refresh(client).await?;
    let mut findings = Vec::new();
    for prefix in kinds::signed_prefixes() {
        let (all, _) = client.list_stored(prefix).await?;
        for stored in all.into_iter().filter(|stored| kinds::is_signed(&stored.key)) {
            findings.push(look(client, authority, stored).await?);
        }
    }
    Ok(findings)
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
