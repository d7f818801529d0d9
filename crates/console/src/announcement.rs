//! This admin server's announcement for others: a record in cluster state. It stays for a while when the host is
//! gone, so that Prometheus still scrapes it and reports the loss.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_cluster::{ClusterClient, keys};
use atoll_coordinator::unix_ms;
use atoll_types::monitoring::AdminServerRecord;
use atoll_types::records::RECORD_FORMAT;

use crate::hosts::{is_remembered, own_key_sha256};
use crate::shared::Shared;

/// How often to look whether there are other processes.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// How often the record is written although nothing has changed.
const REFRESH_PAUSE: Duration = Duration::from_secs(10 * 60);
/// Announces the server for as long as the process lives.
pub(crate) async fn keep(shared: Arc<Shared>, address: SocketAddr) {
    let mut said: Option<(Instant, AdminServerRecord)> = None;
    loop {
        let record = AdminServerRecord {
            format: RECORD_FORMAT,
            host: shared.cluster.host_name(),
            address: address.to_string(),
            processes: shared.processes(),
            public_key_sha256: own_key_sha256(&shared.directory).unwrap_or_default(),
            // Not compared: it would be another each time.
            seen_unix_ms: 0,
        };
        let is_said = said.as_ref().is_some_and(|(at, said)| *said == record && at.elapsed() < REFRESH_PAUSE);
        if !is_said {
            match announce(&shared, &record).await {
                Ok(()) => said = Some((Instant::now(), record)),
                Err(error) => tracing::debug!("the admin server cannot be announced: {error}"),
            }
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

async fn announce(shared: &Shared, record: &AdminServerRecord) -> Result<(), String> {
    let client = shared.state.client().await?;
    let record = AdminServerRecord { seen_unix_ms: unix_ms(), ..record.clone() };
    let put = client.put(&keys::admin_server(&record.host), &record).await;
    put.map_err(|error| error.to_string())?;
    forget_gone(&client).await;
    Ok(())
}

/// Removes the records of hosts that have been gone for long.
async fn forget_gone(client: &ClusterClient) {
    let Ok(listing) = client.list::<AdminServerRecord>(keys::ADMIN_SERVERS).await else { return };
    for (key, _, revision) in listing.entries.iter().filter(|(_, record, _)| !is_remembered(record)) {
        // Another admin server may do the same.
        let _ = client.delete_if(key, *revision).await;
    }
}
