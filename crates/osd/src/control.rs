//! The control thread: presence in cluster state, the cluster map, and proposals. The data path
//! never waits for it.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use atoll_cluster::{
    ClusterClient, ClusterError, ConnectOptions, MapChange, MapWatch, Proposer, Transaction, keys,
};
use atoll_reactor::Wake;
use atoll_types::records::{OsdStoreRecord, OsdUpRecord, OsdUsageRecord, PgRecord, PgScrubRecord, PgTargetRecord};
use atoll_types::{OsdId, PgId};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc as channel, watch};

use crate::proposals::Proposals;

const LEASE_TERM: Duration = Duration::from_secs(10);
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// Time after which unchanged figures are written again, in case they were removed.
const USAGE_REPEATED: Duration = Duration::from_secs(60);

/// Events of the control thread for the loop.
pub(crate) enum ControlEvent {
    Changes(Vec<MapChange>),
    /// The process was asked to end.
    Stop,
}

/// A PG that is split off: its first record is written together with a change of another PG's
/// record.
pub(crate) struct SplitOff {
    pub pg: PgId,
    pub record: PgRecord,
    /// The revision that stands in the place of the record; 0 if there is none, as it should be.
    pub replaced: i64,
    /// Where it is to be: where the other one is. A split moves nothing.
    pub target: PgTargetRecord,
}

/// Requests of the loop to the control thread.
pub(crate) enum ControlRequest {
    Propose {
        pg: PgId,
        expected_revision: i64,
        record: Box<PgRecord>,
        split_off: Option<Box<SplitOff>>,
    },
    Usage(OsdUsageRecord),
    Store(OsdStoreRecord),
    /// Result of a scrub, and the request that asked for it.
    Scrubbed {
        pg: PgId,
        record: PgScrubRecord,
        request_revision: Option<i64>,
    },
}

/// The loop's end of the control thread.
pub(crate) struct Control {
    pub events: mpsc::Receiver<ControlEvent>,
    pub requests: channel::UnboundedSender<ControlRequest>,
    /// Announcement of the OSD in cluster state.
    pub up: watch::Sender<OsdUpRecord>,
}

#[derive(Clone)]
struct Events {
    sender: mpsc::Sender<ControlEvent>,
    wake: Wake,
}

impl Events {
    fn send(&self, event: ControlEvent) {
        // The loop is gone when the process is about to end; then the event is of no use.
        let _ = self.sender.send(event);
        self.wake.wake();
    }
}

/// Starts the control thread.
pub(crate) fn start(
    options: ConnectOptions,
    proposer: Proposer,
    up: OsdUpRecord,
    wake: Wake,
) -> std::io::Result<Control> {
    let (event_sender, events) = mpsc::channel();
    let (requests, request_receiver) = channel::unbounded_channel();
    let (up, announced) = watch::channel(up);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let events_out = Events { sender: event_sender, wake };
    let signals = {
        let _runtime = runtime.enter();
        [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?]
    };
    for mut asked in signals {
        let events = events_out.clone();
        runtime.spawn(async move {
            asked.recv().await;
            events.send(ControlEvent::Stop);
        });
    }
    std::thread::Builder::new()
        .name("control".into())
        .spawn(move || runtime.block_on(run(options, proposer, announced, events_out, request_receiver)))?;
    Ok(Control { events, requests, up })
}

async fn run(
    options: ConnectOptions,
    proposer: Proposer,
    up: watch::Receiver<OsdUpRecord>,
    events: Events,
    mut requests: channel::UnboundedReceiver<ControlRequest>,
) {
    // A coordinator decides for the cluster, by the key of its host.
    let of_host = loop {
        match ClusterClient::connect(&options).await {
            Ok(client) => break client,
            Err(error) => tracing::warn!("cluster state is not reachable yet: {error}"),
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    };
    let client = of_host.with_proposer(proposer);
    tokio::spawn(follow_map(client.clone(), events));
    let id = up.borrow().id;
    tokio::spawn(keep_presence(client.clone(), up));
    tokio::spawn(atoll_coordinator::run(of_host, id));
    let (usage, reported) = watch::channel(None);
    tokio::spawn(report_usage(client.clone(), id, reported));
    let proposals = Proposals::default();
    while let Some(request) = requests.recv().await {
        tokio::spawn(serve(client.clone(), id, usage.clone(), request, proposals.clone()));
    }
}

/// Writes figures to cluster state when they are others than before, and now and then although they are not: each write
/// is a revision, which an etcd keeps.
async fn report_usage(client: ClusterClient, osd: OsdId, mut usage: watch::Receiver<Option<OsdUsageRecord>>) {
    let mut written = WrittenUsage::default();
    // Without a sender the process is about to end.
    while usage.changed().await.is_ok() {
        let Some(record) = usage.borrow_and_update().clone() else { continue };
        if !written.is_due(&record, Instant::now()) {
            continue;
        }
        written = match client.put(&keys::osd_usage(osd), &record).await {
            Ok(_) => WrittenUsage(Some((record, Instant::now()))),
            Err(error) => {
                tracing::debug!("cannot report usage: {error}");
                WrittenUsage::default()
            }
        };
    }
}

/// The figures that are in cluster state, as far as is known, and since when.
#[derive(Default)]
struct WrittenUsage(Option<(OsdUsageRecord, Instant)>);

impl WrittenUsage {
    fn is_due(&self, record: &OsdUsageRecord, now: Instant) -> bool {
        let is_same = |(before, at): &(_, Instant)| before == record && now.duration_since(*at) < USAGE_REPEATED;
        !self.0.as_ref().is_some_and(is_same)
    }
}

async fn follow_map(client: ClusterClient, events: Events) {
    let mut watch = loop {
        match MapWatch::start(&client).await {
            Ok(watch) => break watch,
            Err(error) => tracing::warn!("cannot read the cluster map: {error}"),
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    };
    events.send(ControlEvent::Changes(watch.map().clone().into_changes()));
    while let Some(changes) = watch.next().await {
        events.send(ControlEvent::Changes(changes));
    }
}

/// Holds a lease with the OSD's presence for as long as the process lives.
async fn keep_presence(client: ClusterClient, mut up: watch::Receiver<OsdUpRecord>) {
    let id = up.borrow().id;
    loop {
        match announce(&client, &mut up).await {
            Ok(()) => tracing::warn!("lost the lease in cluster state; announcing {id} again"),
            Err(error) => tracing::warn!("cannot announce {id} in cluster state: {error}"),
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Announces the OSD, again when that changes, until its lease is lost.
async fn announce(client: &ClusterClient, up: &mut watch::Receiver<OsdUpRecord>) -> Result<(), ClusterError> {
    let lease = client.grant_lease(LEASE_TERM).await?;
    loop {
        let record = up.borrow_and_update().clone();
        client.put_with_lease(&keys::osd_up(record.id), &record, &lease).await?;
        tokio::select! {
            () = lease.lost() => return Ok(()),
            // Without a sender the process is about to end.
            Ok(()) = up.changed() => {}
        }
    }
}

async fn propose(
    client: &ClusterClient,
    pg: PgId,
    expected_revision: i64,
    record: &PgRecord,
    split_off: Option<&SplitOff>,
) -> Result<(), ClusterError> {
    let mut transaction = Transaction::new().check(&keys::pg(pg), expected_revision).put(&keys::pg(pg), record)?;
    if let Some(new) = split_off {
        transaction = transaction
            .check(&keys::pg(new.pg), new.replaced)
            .put(&keys::pg(new.pg), &new.record)?
            .put(&keys::pg_target(new.pg), &new.target)?;
    }
    client.transact(&transaction).await.map(drop)
}

async fn serve(
    client: ClusterClient,
    osd: OsdId,
    usage: watch::Sender<Option<OsdUsageRecord>>,
    request: ControlRequest,
    proposals: Proposals,
) {
    match request {
        ControlRequest::Propose { pg, expected_revision, record, split_off } => {
            // Its PG repeats it until it sees an answer.
            let Some(_under_way) = proposals.begin((pg, expected_revision)) else { return };
            // The new record, ours or another process's, comes back through the watch.
            match propose(&client, pg, expected_revision, &record, split_off.as_deref()).await {
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!("pg {pg}: cluster state did not take epoch {}: {error}", record.epoch)
                }
            }
        }
        ControlRequest::Scrubbed { pg, record, request_revision } => {
            if let Err(error) = client.put(&keys::pg_scrub(pg), &record).await {
                // Then the scrub is still due, and is repeated.
                return tracing::warn!("pg {pg}: cannot report its scrub in cluster state: {error}");
            }
            // A newer request for the same PG stays.
            if let Some(revision) = request_revision
                && let Err(error) = client.delete_if(&keys::scrub_request(pg), revision).await
            {
                tracing::debug!("pg {pg}: the request for its scrub was not removed: {error}");
            }
        }
        ControlRequest::Store(store) => {
            if let Err(error) = client.put(&keys::osd_store(osd), &store).await {
                tracing::warn!("cluster state does not learn how old this device is: {error}");
            }
        }
        // In place of those before, if they are not written yet.
        ControlRequest::Usage(record) => drop(usage.send_replace(Some(record))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_that_stay_the_same_are_not_written_again() {
        let record = |used_bytes| OsdUsageRecord { used_bytes, ..OsdUsageRecord::default() };
        let begun = Instant::now();
        assert!(WrittenUsage::default().is_due(&record(1), begun));
        let written = WrittenUsage(Some((record(1), begun)));
        assert!(!written.is_due(&record(1), begun + USAGE_REPEATED / 2));
        assert!(written.is_due(&record(2), begun));
        assert!(written.is_due(&record(1), begun + USAGE_REPEATED));
    }
}
