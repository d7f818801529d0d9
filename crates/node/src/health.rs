//! Waiting until the cluster serves.

use std::time::Duration;

use atoll_admin::pools::{POOL_DATA, POOL_IMAGES, POOL_OBJECTS};
use atoll_client::{ClientConfig, LocalClient};
use atoll_cluster::{ClusterClient, keys};
use atoll_reactor::{ListenAddress, LocalRuntime};
use atoll_types::OsdId;
use atoll_types::records::OsdUpRecord;

use crate::data_dir::{ClusterFile, DataDir};

/// Waits until every PG serves and the gateway, the NBD server and the NVMe target accept connections. Blocks;
/// returns the missing parts when the time is over.
pub fn wait_until_healthy(directory: &DataDir, cluster: &ClusterFile, limit: Duration) -> Result<(), String> {
    let runtime = LocalRuntime::new().map_err(|error| error.to_string())?;
    let config = ClientConfig {
        key: directory.static_key("client").map_err(|error| error.to_string())?,
        cluster: directory.connect_options(cluster),
        timeout_ms: limit.as_millis() as u64,
    };
    let client = LocalClient::start(&runtime, config).map_err(|error| error.to_string())?;
    let check = async {
        for name in [POOL_IMAGES, POOL_OBJECTS] {
            let pool = client.pool_by_name(name).await?;
            client.wait_until_active(pool.id).await.map_err(|error| error.to_string())?;
        }
        // Not every cluster has one.
        if let Ok(pool) = client.pool_by_name(POOL_DATA).await {
            client.wait_until_active(pool.id).await.map_err(|error| error.to_string())?;
        }
        wait_for_listeners(&runtime, cluster, limit).await
    };
    runtime.block_on(check).map_err(|error| error.to_string())?
}

/// Waits until the OSDs of this host are up, which is all that a host without clients can see.
pub(crate) async fn wait_for_osds(cluster: &ClusterFile, limit: Duration) -> Result<(), String> {
    let begun = tokio::time::Instant::now();
    loop {
        let look = async {
            let state = ClusterClient::connect(&cluster.connect_options()).await?;
            state.list::<OsdUpRecord>(keys::OSD_UP).await
        };
        let problem = match look.await {
            Ok(up) => {
                let is_down = |id: &&OsdId| !up.entries.iter().any(|(_, record, _)| record.id == **id);
                match cluster.osd_ids.iter().find(is_down) {
                    Some(id) => format!("{id} is not up"),
                    None => return Ok(()),
                }
            }
            Err(error) => error.to_string(),
        };
        if begun.elapsed() > limit {
            return Err(problem);
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

async fn wait_for_listeners(runtime: &LocalRuntime, cluster: &ClusterFile, limit: Duration) -> Result<(), String> {
    let deadline_ms = runtime.now_ms() + limit.as_millis() as u64;
    let s3 = cluster.s3_listeners().map(|(_, address)| address);
    let of_images = cluster.nbd_listen.iter().chain(&cluster.nvme_listen).filter(|_| cluster.role.is_admin());
    for text in of_images.map(String::as_str).chain(s3) {
        let address: ListenAddress = text.parse()?;
        loop {
            let is_there = match &address {
                ListenAddress::Tcp(address) => runtime.connect(*address).await.is_ok(),
                ListenAddress::Unix(path) => std::os::unix::net::UnixStream::connect(path).is_ok(),
            };
            if is_there {
                break;
            }
            if runtime.now_ms() > deadline_ms {
                return Err(format!("nothing accepts connections at {text}"));
            }
            runtime.sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(())
}
