//! The presence of this admin server in cluster state, by which the others know what there is on its host.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use atoll_cluster::{Lease, keys};
use atoll_node::ProcessesFile;
use atoll_types::monitoring::AdminServerRecord;
use atoll_types::records::RECORD_FORMAT;

use crate::server::Shared;

/// The name of the admin server's own process.
pub(crate) const ADMIN_PROCESS: &str = "admin";

const LEASE_TERM: Duration = Duration::from_secs(10);
/// How often to look whether there are other processes.
const LOOK_PAUSE: Duration = Duration::from_secs(1);

impl Shared {
    /// The processes of this host, those included that are down at the moment: their scrapes are to fail.
    pub fn processes(&self) -> Vec<String> {
        let file = ProcessesFile::read(&self.directory).unwrap_or_default();
        let mut names: Vec<String> = file.children.into_iter().map(|child| child.name).collect();
        if !names.iter().any(|name| name == ADMIN_PROCESS) {
            // It was not the supervisor that started it.
            names.push(ADMIN_PROCESS.into());
        }
        names.sort();
        names
    }
}

/// Announces the server for as long as the process lives.
pub(crate) async fn keep(shared: Arc<Shared>, address: SocketAddr) {
    loop {
        match announce_while_leased(&shared, address).await {
            Ok(()) => tracing::warn!("lost the lease in cluster state; announcing the admin server anew"),
            Err(error) => tracing::debug!("the admin server cannot be announced: {error}"),
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}

async fn announce_while_leased(shared: &Shared, address: SocketAddr) -> Result<(), String> {
    let client = shared.state.client().await?;
    let lease: Lease = client.grant_lease(LEASE_TERM).await.map_err(|error| error.to_string())?;
    let host = shared.cluster.host_name();
    let mut said: Option<AdminServerRecord> = None;
    loop {
        let record = AdminServerRecord {
            format: RECORD_FORMAT,
            host: host.clone(),
            address: address.to_string(),
            processes: shared.processes(),
        };
        if said.as_ref() != Some(&record) {
            let put = client.put_with_lease(&keys::admin_server(&host), &record, &lease).await;
            put.map_err(|error| error.to_string())?;
            said = Some(record);
        }
        tokio::select! {
            () = lease.lost() => return Ok(()),
            () = tokio::time::sleep(LOOK_PAUSE) => {}
        }
    }
}
