//! Keeps a client's cluster map current, from a thread of its own.

use std::sync::mpsc;
use std::time::Duration;

use atoll_cluster::{ClusterClient, ClusterMap, ConnectOptions, MapChange, MapWatch};
use atoll_reactor::Wake;

const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Starts the thread; changes come through the receiver, each followed by a wake-up.
pub(crate) fn start(options: ConnectOptions, wake: Wake) -> std::io::Result<mpsc::Receiver<Vec<MapChange>>> {
    let (sender, receiver) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("cluster-map".into()).spawn(move || {
        runtime.block_on(async {
            let mut watch = connect(&options).await;
            let mut changes = Some(all(watch.map().clone()));
            while let Some(batch) = changes {
                if sender.send(batch).is_err() {
                    return;
                }
                wake.wake();
                changes = watch.next().await;
            }
        });
    })?;
    Ok(receiver)
}

async fn connect(options: &ConnectOptions) -> MapWatch {
    loop {
        let started = match ClusterClient::connect(options).await {
            Ok(client) => MapWatch::start(&client).await,
            Err(error) => Err(error),
        };
        match started {
            Ok(watch) => return watch,
            Err(error) => tracing::warn!("cannot read the cluster map: {error}"),
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

fn all(map: ClusterMap) -> Vec<MapChange> {
    let mut changes: Vec<MapChange> = Vec::new();
    changes.extend(map.osds.into_iter().map(|(id, record)| MapChange::Osd(id, Some(record))));
    changes.extend(map.pools.into_iter().map(|(id, record)| MapChange::Pool(id, Some(record))));
    changes.extend(map.up.into_iter().map(|(id, record)| MapChange::Up(id, Some(record))));
    changes.extend(map.pgs.into_iter().map(|(id, entry)| MapChange::Pg(id, Some(entry))));
    changes
}
