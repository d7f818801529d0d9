//! Another static key for a process of this host.

use std::fs;

use atoll_admin::peer_keys::host_key;
use atoll_cluster::{ClusterClient, ClusterError};
use atoll_types::records::{AuthorizedKeyRecord, PeerRole};
use atoll_wire::KeyPair;

use crate::data_dir::{ClusterFile, DataDir};
use crate::error::NodeError;
use crate::json_files::write_secret;
use crate::managed::ask_to_end;
use crate::processes::ProcessesFile;
use crate::secrets::{holders, place_of, renew};

/// A process of this host has another static key.
#[derive(Debug)]
pub enum RotatedKey {
    /// A gateway, or the other clients of the host. Both keys are valid: processes that run have the old one.
    Beside {
        /// Their name in cluster state.
        name: String,
        /// The old public key, in hexadecimal. It is revoked when no process has it any more.
        old: String,
    },
    /// An OSD. The old key is void, and the process was asked to restart if it ran.
    Replaced {
        /// Its name in cluster state.
        name: String,
        /// True if it ran.
        did_run: bool,
    },
}

/// Gives `client`, `gateway` or an OSD of this host another static key. A call that was cut short is finished by the next.
pub async fn rotate_static_key(
    directory: &DataDir,
    cluster: &ClusterFile,
    state: &ClusterClient,
    holder: &str,
) -> Result<RotatedKey, NodeError> {
    let known = holders(directory, cluster);
    if !known.iter().any(|name| name == holder) {
        return Err(NodeError::Invalid(format!(
            "'{holder}' has no key here: choose one of '{}'",
            known.join("', '")
        )));
    }
    // One that is lost is another matter, and says so.
    let old = directory.static_key(holder)?;
    if holder.starts_with("osd.") {
        renew(directory, cluster, state, holder).await.map_err(|error| match error {
            NodeError::Cluster(ClusterError::Forbidden { .. }) => NodeError::Invalid(format!(
                "this host may not change the key in the record of {holder}; the host that made the cluster may"
            )),
            error => error,
        })?;
        let running = ProcessesFile::running(directory).into_iter().flat_map(|file| file.children);
        let pid = running.into_iter().find(|child| child.name == holder).and_then(|child| child.pid);
        pid.into_iter().for_each(ask_to_end);
        return Ok(RotatedKey::Replaced { name: holder.to_owned(), did_run: pid.is_some() });
    }
    let role = if holder == "gateway" { PeerRole::Gateway } else { PeerRole::Client };
    let record = host_key(role, &cluster.host_name());
    let next = format!("{holder}.next");
    let mut key = directory.make_static_key(&next)?;
    if key.public() == old.public() {
        // The last call ended between the two files.
        remove(directory, &next)?;
        key = directory.make_static_key(&next)?;
    }
    authorize(state, &key, &record).await?;
    let path = directory.static_key_file(&next);
    let bytes = fs::read(&path).map_err(NodeError::file(&path))?;
    write_secret(&directory.static_key_file(holder), &bytes)?;
    remove(directory, &next)?;
    Ok(RotatedKey::Beside { name: record.name, old: hex::encode(old.public()) })
}

fn remove(directory: &DataDir, holder: &str) -> Result<(), NodeError> {
    let path = directory.static_key_file(holder);
    fs::remove_file(&path).map_err(NodeError::file(path))
}

async fn authorize(state: &ClusterClient, key: &KeyPair, record: &AuthorizedKeyRecord) -> Result<(), NodeError> {
    let place = place_of(key);
    if state.get::<AuthorizedKeyRecord>(&place).await?.is_some() {
        return Ok(());
    }
    match state.create(&place, record).await {
        Ok(_) | Err(ClusterError::AlreadyExists { .. }) => Ok(()),
        Err(ClusterError::Forbidden { .. }) => Err(NodeError::Invalid(format!(
            "this host may not authorize keys. On the host that made the cluster: 'atoll cluster key add {} --public-key \
             {}'. Then repeat the command here",
            record.name,
            hex::encode(key.public())
        ))),
        Err(error) => Err(error.into()),
    }
}
