//! Keeps a client's cluster map current, from a thread of its own.

use std::sync::mpsc;
use std::time::Duration;

use atoll_cluster::{ClusterClient, ConnectOptions, MapChange, MapWatch};
use atoll_metrics::traces;
use atoll_reactor::Wake;

const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Starts the thread; changes come through the receiver, each followed by a wake-up.
pub(crate) fn start(options: ConnectOptions, wake: Wake) -> std::io::Result<mpsc::Receiver<Vec<MapChange>>> {
    let (sender, receiver) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("cluster-map".into()).spawn(move || {
        runtime.block_on(async {
            let mut watch = connect(&options).await;
            let mut changes = Some(watch.map().clone().into_changes());
            while let Some(batch) = changes {
                for change in &batch {
                    if let MapChange::Settings(settings) = change {
                        traces::configure(&settings.trace_endpoint, settings.trace_one_in, settings.trace_slow);
                    }
                }
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
