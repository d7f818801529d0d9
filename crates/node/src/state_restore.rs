//! Putting back a snapshot of the embedded cluster state. It is older than the state of OSDs, so the counters
//! whose newer value OSDs follow are raised beyond all values that can have been given since.

use std::fs;
use std::path::{Path, PathBuf};

use atoll_cluster::{ClusterClient, ConnectOptions, EmbeddedServer, keys, verify_snapshot};
use atoll_coordinator::unix_ms;
use atoll_files::{create_directories, sync_directory_of};
use atoll_keys::random_bytes;
use atoll_types::records::ClusterRecord;
use serde::Serialize;

use crate::data_dir::{ClusterFile, DataDir};
use crate::error::NodeError;
use crate::processes::ProcessesFile;
use crate::raised_counters::raise;
use crate::state_access::check_identity;

/// Most revisions of cluster state in a millisecond; other counters are slower.
const REVISIONS_PER_MS: u64 = 1_000;

/// The restored state.
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
    let raised = raise_counters(directory, cluster, &new).await;
    let (pgs, images) = match raised {
        Ok(counts) => counts,
        Err(error) => {
            fs::remove_dir_all(&new).map_err(NodeError::file(&new))?;
            return Err(error);
        }
    };
    let state = directory.state();
    let before = directory.has_state().then(|| directory.root().join(format!("state.before-{}", unix_ms())));
    if let Some(before) = &before {
        atoll_files::rename(&state, before).map_err(NodeError::file(&state))?;
    } else if state.exists() {
        // Without its file it is nobody's: a reserve of space at most.
        fs::remove_dir_all(&state).map_err(NodeError::file(&state))?;
    }
    atoll_files::rename(&new, &state).map_err(NodeError::file(&new))?;
    Ok(RestoredState { pgs, images, before })
}

fn check(directory: &DataDir, cluster: &ClusterFile, replaces: bool) -> Result<(), NodeError> {
    let invalid = |detail: String| Err(NodeError::Invalid(detail));
    if cluster.state_listen.is_none() {
        return invalid(
            "the cluster state of this cluster is on another host, or an etcd of its own: restore it there (an etcd with \
             'etcdutl snapshot restore', and then 'atoll state raise')"
                .into(),
        );
    }
    if ProcessesFile::running(directory).is_some() {
        return invalid(format!(
            "the cluster in {} is running; stop it first on all hosts ('atoll down')",
            directory.root().display()
        ));
    }
    if directory.has_state() && !replaces {
        return invalid(format!(
            "there is cluster state in {}: changes that the snapshot lacks would be lost. Use it as it is \
             ('atoll up'), or go back to the snapshot with --replace, which keeps it under another name",
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
    create_directories(new).map_err(NodeError::file(new))?;
    let path = new.join("state.redb");
    let write = || {
        fs::copy(from, &path)?;
        let file = fs::OpenOptions::new().write(true).open(&path)?;
        file.set_len(state_bytes)?;
        file.sync_all()?;
        sync_directory_of(&path)
    };
    write().map_err(NodeError::file(&path))
}

/// Serves the state for itself alone, checks its cluster, and raises the numbers that must be unique. Gives the
/// numbers of PGs and images.
async fn raise_counters(
    host: &DataDir,
    cluster: &ClusterFile,
    directory: &Path,
) -> Result<(usize, usize), NodeError> {
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
        let ConnectOptions { guard, proposer, .. } = host.connect_options(cluster);
        let options =
            ConnectOptions { guard, proposer, ..ConnectOptions::new([endpoint]).with_user("restore", password) };
        let client = ClusterClient::connect(&options).await?;
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
