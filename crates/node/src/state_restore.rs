//! Putting back a snapshot of the embedded cluster state. What it says is older than what OSDs know, so counters from
//! which OSDs take what is newer are raised beyond all that can have been given since.

use std::fs;
use std::path::{Path, PathBuf};

use atoll_cluster::{ClusterClient, ConnectOptions, EmbeddedServer, Transaction, keys, verify_snapshot};
use atoll_keys::random_bytes;
use atoll_types::coordination::NextPoolRecord;
use atoll_types::records::{ClusterRecord, ImageRecord, PgRecord, PoolRecord, RECORD_FORMAT, RemovedImageRecord};
use atoll_types::{Epoch, PoolId};
use serde::Serialize;

use crate::bootstrap::unix_ms;
use crate::data_dir::{ClusterFile, DataDir};
use crate::error::NodeError;
use crate::processes::ProcessesFile;
use crate::state_access::check_identity;

/// So much a counter is raised at least, should the clock of the host have gone back.
const RAISED_MIN: u64 = 1 << 20;
/// The same of pools.
const POOLS_RAISED_MIN: u32 = 1_000;
/// Numbers of pools are short, so that seconds count for them, since the beginning of 2026 as Unix time.
const POOL_SECONDS_START: u64 = 1_767_225_600;
/// Revisions of cluster state come faster than others: so many in a millisecond.
const REVISIONS_PER_MS: u64 = 1_000;
/// Changes of one transaction; etcd takes 128.
const CHANGES_MAX: usize = 100;

/// A value beyond all that can have been given since the snapshot, also after earlier restores of the same one: the time
/// in milliseconds, since no counter goes up more often.
fn raised(counter: u64) -> u64 {
    counter.saturating_add(RAISED_MIN).max(unix_ms())
}

/// What was put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RestoredState {
    /// PGs that it knows.
    pub pgs: usize,
    /// Images that it knows, removed ones included.
    pub images: usize,
    /// Where the state is that was there before.
    pub before: Option<PathBuf>,
}

/// Makes a snapshot the cluster state of a data directory whose cluster is stopped. State that is there is refused, or
/// with `replaces` kept beside it.
pub async fn restore_state(
    directory: &DataDir,
    cluster: &ClusterFile,
    from: &Path,
    replaces: bool,
) -> Result<RestoredState, NodeError> {
    check(directory, cluster, replaces)?;
    let Some(state_bytes) = verify_snapshot(from).map_err(NodeError::file(from))? else {
        let detail = "it is no snapshot of cluster state, or not all of one: its digest is wrong".into();
        return Err(NodeError::Malformed { path: from.into(), detail });
    };
    let new = directory.root().join("state.restored");
    unpack(from, state_bytes, &new)?;
    let raised = raise_counters(cluster, &new).await;
    let (pgs, images) = match raised {
        Ok(counts) => counts,
        Err(error) => {
            fs::remove_dir_all(&new).map_err(NodeError::file(&new))?;
            return Err(error);
        }
    };
    let state = directory.state();
    let before =
        directory.state_file().exists().then(|| directory.root().join(format!("state.before-{}", unix_ms())));
    if let Some(before) = &before {
        fs::rename(&state, before).map_err(NodeError::file(&state))?;
    } else if state.exists() {
        // Without its file it is nobody's: a reserve of space at most.
        fs::remove_dir_all(&state).map_err(NodeError::file(&state))?;
    }
    fs::rename(&new, &state).map_err(NodeError::file(&new))?;
    let synced = fs::File::open(directory.root()).and_then(|root| root.sync_all());
    synced.map_err(NodeError::file(directory.root()))?;
    Ok(RestoredState { pgs, images, before })
}

fn check(directory: &DataDir, cluster: &ClusterFile, replaces: bool) -> Result<(), NodeError> {
    let invalid = |detail: String| Err(NodeError::Invalid(detail));
    if cluster.state_listen.is_none() {
        return invalid(
            "the cluster state of this cluster is on another host, or an etcd of its own: restore it there (an etcd with \
             'etcdutl snapshot restore')"
                .into(),
        );
    }
    if ProcessesFile::running(directory).is_some() {
        return invalid(format!(
            "the cluster in {} is running; stop it first on all hosts ('atoll down')",
            directory.root().display()
        ));
    }
    if directory.state_file().exists() && !replaces {
        return invalid(format!(
            "there is cluster state in {}: what it has and the snapshot lacks would be lost. Use it as it is ('atoll \
             up'), or go back to the snapshot with --replace, which keeps it under another name",
            directory.state().display()
        ));
    }
    Ok(())
}

/// Writes the state's file into a new directory.
fn unpack(from: &Path, state_bytes: u64, new: &Path) -> Result<(), NodeError> {
    if new.exists() {
        // A restore that was cut short has left it.
        fs::remove_dir_all(new).map_err(NodeError::file(new))?;
    }
    fs::create_dir(new).map_err(NodeError::file(new))?;
    let path = new.join("state.redb");
    let write = || {
        fs::copy(from, &path)?;
        let file = fs::OpenOptions::new().write(true).open(&path)?;
        file.set_len(state_bytes)?;
        file.sync_all()
    };
    write().map_err(NodeError::file(&path))
}

/// Serves the state for itself alone, checks whose it is, and raises what must not be given twice. Gives the numbers of
/// PGs and images.
async fn raise_counters(cluster: &ClusterFile, directory: &Path) -> Result<(usize, usize), NodeError> {
    let password = hex::encode(random_bytes::<16>());
    let credentials = Some(("restore".to_owned(), password.clone()));
    let malformed = |error: String| NodeError::Malformed { path: directory.into(), detail: error };
    let revision = unix_ms().saturating_mul(REVISIONS_PER_MS);
    EmbeddedServer::pass_over_revisions(directory, i64::try_from(revision).unwrap_or(i64::MAX))
        .map_err(|error| malformed(error.to_string()))?;
    let loopback = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
    let server = EmbeddedServer::start(loopback, directory, credentials)
        .await
        .map_err(|error| malformed(error.to_string()))?;
    let endpoint = format!("http://{}", server.local_addr());
    let raised = async {
        let client =
            ClusterClient::connect(&ConnectOptions::new([endpoint]).with_user("restore", password)).await?;
        if client.get::<ClusterRecord>(keys::CLUSTER).await?.is_none() {
            return Err(NodeError::Invalid("the snapshot is of cluster state in which no cluster is".into()));
        }
        check_identity(cluster, &client).await?;
        raise(&client).await
    };
    let raised = raised.await;
    server.shutdown().await;
    raised
}

async fn raise(client: &ClusterClient) -> Result<(usize, usize), NodeError> {
    let mut changes = Changes { client, transaction: Transaction::new(), count: 0 };
    let pgs = client.list::<PgRecord>(keys::PGS).await?.entries;
    let pg_count = pgs.len();
    for (key, mut record, _) in pgs {
        record.epoch = Epoch(raised(record.epoch.0));
        changes.put(&key, &record).await?;
    }
    let images = client.list::<ImageRecord>(keys::IMAGES).await?.entries;
    let removed = client.list::<RemovedImageRecord>(keys::REMOVED_IMAGES).await?.entries;
    let image_count = images.len() + removed.len();
    for (key, mut record, _) in images {
        raise_image(&mut record);
        changes.put(&key, &record).await?;
    }
    for (key, mut record, _) in removed {
        raise_image(&mut record.image);
        changes.put(&key, &record).await?;
    }
    changes.put(keys::NEXT_POOL, &raised_next_pool(client).await?).await?;
    changes.send().await?;
    Ok((pg_count, image_count))
}

/// OSDs may have PGs of pools that the snapshot does not know.
async fn raised_next_pool(client: &ClusterClient) -> Result<NextPoolRecord, NodeError> {
    let counter = client.get::<NextPoolRecord>(keys::NEXT_POOL).await?.map_or(0, |(counter, _)| counter.next.0);
    let pools = client.list::<PoolRecord>(keys::POOLS).await?.entries;
    let beyond_all = pools.iter().map(|(_, pool, _)| pool.id.0.saturating_add(1)).fold(counter, u32::max);
    let seconds = (unix_ms() / 1_000).saturating_sub(POOL_SECONDS_START);
    let next = beyond_all.saturating_add(POOLS_RAISED_MIN).max(u32::try_from(seconds).unwrap_or(u32::MAX));
    Ok(NextPoolRecord { format: RECORD_FORMAT, next: PoolId(next) })
}

/// Fences that its writers have set since are lower than the next ones', and kept states of snapshots that the record
/// does not know are no state of the next ones.
fn raise_image(image: &mut ImageRecord) {
    image.writer_generation = raised(image.writer_generation);
    if let Some(states) = &mut image.states {
        states.newest = raised(states.newest);
    }
}

/// Changes that are sent some at a time. Nobody else changes anything.
struct Changes<'a> {
    client: &'a ClusterClient,
    transaction: Transaction,
    count: usize,
}

impl Changes<'_> {
    async fn put(&mut self, key: &str, record: &impl Serialize) -> Result<(), NodeError> {
        self.transaction = std::mem::take(&mut self.transaction).put(key, record)?;
        self.count += 1;
        if self.count == CHANGES_MAX { self.send().await } else { Ok(()) }
    }

    async fn send(&mut self) -> Result<(), NodeError> {
        if std::mem::take(&mut self.count) > 0 {
            self.client.transact(&std::mem::take(&mut self.transaction)).await?;
        }
        Ok(())
    }
}
