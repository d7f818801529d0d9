//! Keeps the cluster maps of a process's clients current, from a thread of its own.

use std::sync::mpsc;
use std::time::Duration;

use atoll_cluster::{ClusterClient, ConnectOptions, MapChange, MapWatch};
use atoll_metrics::traces;
use atoll_reactor::Wake;

const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// A client whose map is kept current: each change is followed by a wake-up.
pub(crate) struct Follower {
    pub changes: mpsc::Sender<Vec<MapChange>>,
    pub wake: Wake,
}

/// Starts the thread. It ends when no follower is left.
pub(crate) fn start(options: ConnectOptions, followers: Vec<Follower>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new()
        .name("cluster-map".into())
        .spawn(move || runtime.block_on(feed(&options, followers)))?;
    Ok(())
}

async fn feed(options: &ConnectOptions, mut followers: Vec<Follower>) {
    let mut watch = connect(options).await;
    let mut changes = Some(watch.map().clone().into_changes());
    while let Some(batch) = changes {
        for change in &batch {
            if let MapChange::Settings(settings) = change {
                traces::configure(&settings.trace_endpoint, settings.trace_one_in, settings.trace_slow);
                atoll_outgoing::configure(&settings.outgoing_networks, &settings.outgoing_networks_of_accounts);
            }
        }
        followers.retain(|follower| follower.changes.send(batch.clone()).is_ok());
        if followers.is_empty() {
            return;
        }
        followers.iter().for_each(|follower| follower.wake.wake());
        changes = watch.next().await;
    }
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
