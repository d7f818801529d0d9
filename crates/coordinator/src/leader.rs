//! Electing the coordinator: the OSD that could make the coordinator's key, for as long as its lease holds.

use std::time::Duration;

use atoll_cluster::roles::Role;
use atoll_cluster::{ClusterClient, ClusterError, Lease, MapWatch, keys};
use atoll_types::OsdId;
use atoll_types::coordination::CoordinatorRecord;
use atoll_types::records::RECORD_FORMAT;

use crate::round::Rounds;
use crate::unix_ms;

const LEASE_TERM: Duration = Duration::from_secs(10);
const ROUND_PAUSE: Duration = Duration::from_secs(2);
const ELECTION_PAUSE: Duration = Duration::from_secs(3);
/// Rights are given to a host now and then.
const RIGHTS_PAUSE: Duration = Duration::from_secs(10);

/// Takes part in coordinating the cluster, in the process of an OSD, for ever.
pub async fn run(client: ClusterClient, osd: OsdId) {
    // Not all at the same moment.
    tokio::time::sleep(Duration::from_millis(u64::from(osd.0 % 32) * 50)).await;
    while !may_coordinate(&client).await {
        tokio::time::sleep(RIGHTS_PAUSE).await;
    }
    loop {
        match elect(&client, osd).await {
            Ok(Some(lease)) => {
                tracing::info!("{osd} is the coordinator");
                if let Err(error) = lead(&client, &lease).await {
                    tracing::warn!("the coordinator stops for a moment: {error}");
                }
                // Another OSD may reach cluster state.
                let _ = lease.revoke().await;
            }
            Ok(None) => {}
            Err(error) => tracing::debug!("cannot become the coordinator: {error}"),
        }
        tokio::time::sleep(ELECTION_PAUSE).await;
    }
}

/// Returns true if this host may coordinate: one with OSDs only may not. Asked for first, so that nothing is
/// refused to it.
async fn may_coordinate(client: &ClusterClient) -> bool {
    match client.own_roles().await {
        Ok(Some(roles)) => {
            let has = |role: Role| roles.iter().any(|name| name == role.name());
            has(Role::Coordinator) || !has(Role::Osd)
        }
        Ok(None) => true,
        Err(error) => {
            tracing::debug!("cannot read the roles of this host: {error}");
            false
        }
    }
}

/// Tries to become the coordinator.
async fn elect(client: &ClusterClient, osd: OsdId) -> Result<Option<Lease>, ClusterError> {
    if client.get::<CoordinatorRecord>(keys::COORDINATOR).await?.is_some() {
        return Ok(None);
    }
    let lease = client.grant_lease(LEASE_TERM).await?;
    let record = CoordinatorRecord { format: RECORD_FORMAT, osd, since_unix_ms: unix_ms() };
    match client.create_with_lease(keys::COORDINATOR, &record, &lease).await {
        Ok(_) => Ok(Some(lease)),
        Err(error) => {
            // If the key is there after all, it goes with the lease.
            lease.revoke().await?;
            match error {
                ClusterError::AlreadyExists { .. } => Ok(None),
                other => Err(other),
            }
        }
    }
}

/// Coordinates until the lease is lost or cluster state fails.
async fn lead(client: &ClusterClient, lease: &Lease) -> Result<(), ClusterError> {
    let mut watch = MapWatch::start(client).await?;
    let mut rounds = Rounds::new(client.clone());
    let mut ticks = tokio::time::interval(ROUND_PAUSE);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = lease.lost() => return Ok(()),
            changes = watch.next() => match changes {
                Some(changes) => rounds.note_refused(changes),
                None => return Ok(()),
            },
            _ = ticks.tick() => match rounds.round(watch.map()).await {
                Ok(()) => {}
                // Another process was faster; the next round sees what it did.
                Err(ClusterError::Conflict { key, .. } | ClusterError::AlreadyExists { key }) => {
                    tracing::debug!("{key} was changed by another process meanwhile");
                }
                Err(error) => return Err(error),
            },
        }
    }
}
