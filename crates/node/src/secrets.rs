//! Secrets of this host that exist once. None is recreated because it is missing: the cluster, or the data, would
//! not accept the new one.

use std::collections::BTreeMap;
use std::sync::Arc;

use atoll_admin::osds;
use atoll_admin::peer_keys::host_key;
use atoll_admin::wrapped_secrets::{KeyUses, UsesByVersion};
use atoll_cluster::{ClusterClient, Transaction, keys};
use atoll_coordinator::unix_ms;
use atoll_keys::{KeyFile, KeyRing, random_bytes};
use atoll_types::OsdId;
use atoll_types::records::{AuthorizedKeyRecord, OsdRecord, PeerRole};
use atoll_wire::KeyPair;

use crate::at_rest::UnlockWith;
use crate::choices::Choices;
use crate::data_dir::{ClusterFile, DataDir};
use crate::error::NodeError;
use crate::first_records::write_user;

/// Stands for the key service's file in `--new-key`.
const KEY_FILE: &str = "kms";

/// Without the private key of its certificate the embedded server would speak without TLS, and no client would
/// understand it.
pub(crate) fn check_state_identity(directory: &DataDir, cluster: &ClusterFile) -> Result<(), NodeError> {
    let path = directory.state_key_file();
    let is_embedded_with_tls = cluster.state_listen.is_some() && cluster.state_tls.ca.is_some();
    if !is_embedded_with_tls || path.exists() {
        return Ok(());
    }
    let what = "it is the private key of cluster state, which identifies it to the hosts of the cluster".into();
    Err(NodeError::Lost { path, what, remedy: String::new() })
}

/// The embedded server would begin with an empty state.
pub(crate) fn check_state_is_there(directory: &DataDir, cluster: &ClusterFile) -> Result<(), NodeError> {
    let path = directory.state_file();
    if cluster.state_listen.is_none() || !cluster.is_founded || directory.has_state() {
        return Ok(());
    }
    Err(NodeError::LostState { path })
}

/// Checks that all secrets of this host exist, and recreates the requested ones. Returns notes about that.
pub(crate) async fn check_secrets(
    directory: &DataDir,
    cluster: &ClusterFile,
    choices: &Choices,
    state: &ClusterClient,
) -> Result<Vec<String>, NodeError> {
    let mut said = Vec::new();
    let known = |name: &String| name == KEY_FILE || holders(directory, cluster).contains(name);
    if let Some(unknown) = choices.new_keys.iter().find(|name| !known(name)) {
        let names = holders(directory, cluster).join("', '");
        return Err(NodeError::Invalid(format!("--new-key {unknown}: choose one of 'kms', '{names}'")));
    }
    if needs_key_file(directory, cluster)? {
        said.extend(check_key_file(directory, cluster, choices, state).await?);
    }
    if !cluster.is_founded {
        return Ok(said);
    }
    for holder in holders(directory, cluster) {
        if choices.new_keys.contains(&holder) && !directory.has_static_key(&holder) {
            renew(directory, cluster, state, &holder).await?;
            said.push(format!("made a new key for {holder}; the lost one opens nothing any more"));
        }
        directory.static_key(&holder)?;
    }
    Ok(said)
}

/// Returns the holders of this host's static keys.
pub(crate) fn holders(directory: &DataDir, cluster: &ClusterFile) -> Vec<String> {
    let gateway = cluster.has_gateway_key && cluster.role.has_clients();
    let osds = cluster.osd_ids.iter().filter(|id| directory.has_device(**id)).map(ToString::to_string);
    let hosts = std::iter::once("client".to_owned()).chain(gateway.then(|| "gateway".to_owned()));
    hosts.chain(osds).collect()
}

fn needs_key_file(directory: &DataDir, cluster: &ClusterFile) -> Result<bool, NodeError> {
    Ok(cluster.role.has_clients() || !encrypted_osds(directory, cluster)?.is_empty())
}

/// OSDs of this host that the key service unlocks.
fn encrypted_osds(directory: &DataDir, cluster: &ClusterFile) -> Result<Vec<OsdId>, NodeError> {
    let mut encrypted = Vec::new();
    for &id in &cluster.osd_ids {
        if directory.unlock_with(id)? == Some(UnlockWith::Kms) {
            encrypted.push(id);
        }
    }
    Ok(encrypted)
}

// ---- the key service's file --------------------------------------------------------------------

async fn check_key_file(
    directory: &DataDir,
    cluster: &ClusterFile,
    choices: &Choices,
    state: &ClusterClient,
) -> Result<Option<String>, NodeError> {
    let path = directory.key_service_file();
    // Who makes a new key has to see all that would be lost.
    let is_wanted = choices.new_keys.iter().any(|name| name == KEY_FILE);
    // Without the key file nothing could be verified.
    let unverified = state.without_guard();
    let uses = if is_wanted {
        UsesByVersion::read(&unverified).await?
    } else {
        UsesByVersion::read_some(&unverified).await?
    };
    let uses = uses.local();
    if path.exists() {
        let file = KeyFile::read(&path)?;
        // Some may be missing: they may have been destroyed on purpose.
        let is_ours = uses.is_empty() || file.local_ids().any(|id| uses.contains_key(id));
        if file.transit.is_some() || is_ours {
            return Ok(None);
        }
        let found = file.local_ids().collect::<Vec<_>>().join(", ");
        return Err(NodeError::ForeignKeyFile { path, found, expected: wrapped_text(&uses) });
    }
    let sealed = sealed_text(directory, cluster, &uses)?;
    let remedy = match (&sealed, is_wanted) {
        (None, true) => {
            KeyFile::local().create(&path)?;
            let service = Arc::new(KeyRing::open(&path)?);
            atoll_authority::sign_anew(&state.without_guard(), service, unix_ms()).await?;
            state.delete(keys::STS_KEY).await?;
            write_user(directory, cluster, state).await?;
            return Ok(Some(format!(
                "recreated {}, and new credentials; earlier access keys are invalid",
                path.display()
            )));
        }
        (None, false) => ", or, since nothing is sealed yet, make another with 'atoll up --new-key kms'".into(),
        (Some(sealed), true) => format!("; --new-key kms is refused, because {sealed} would be lost"),
        (Some(_), false) => String::new(),
    };
    let what = format!("{}, and without the file these secrets can never be read", wrapped_text(&uses));
    Err(NodeError::Lost { path, what, remedy })
}

/// Returns the keys with the secrets that they wrapped.
fn wrapped_text(uses: &BTreeMap<&str, KeyUses>) -> String {
    if uses.is_empty() {
        return "a key service has wrapped the secrets in cluster state".into();
    }
    let texts: Vec<String> = uses.iter().map(|(id, uses)| format!("{uses} by the key {id}")).collect();
    format!("cluster state has wrapped {}", texts.join(", "))
}

/// Returns the losses with the key file, beside access keys.
fn sealed_text(
    directory: &DataDir,
    cluster: &ClusterFile,
    uses: &BTreeMap<&str, KeyUses>,
) -> Result<Option<String>, NodeError> {
    let mut sealed = KeyUses::default();
    for uses in uses.values() {
        sealed.images += uses.images;
        sealed.buckets += uses.buckets;
    }
    let encrypted = encrypted_osds(directory, cluster)?;
    if let Some(first) = encrypted.first() {
        return Ok(Some(format!("all that is on {} OSDs (the first is {first})", encrypted.len())));
    }
    Ok((sealed.total() > 0).then(|| format!("the data of {sealed}")))
}

// ---- static keys -------------------------------------------------------------------------------

/// Makes a new static key and puts it in the place of the lost one, which opens nothing any more.
pub(crate) async fn renew(
    directory: &DataDir,
    cluster: &ClusterFile,
    state: &ClusterClient,
    holder: &str,
) -> Result<(), NodeError> {
    let private = random_bytes::<32>();
    let key = KeyPair::from_private(private);
    let osd = cluster.osd_ids.iter().find(|id| id.to_string() == holder);
    let role = if holder == "gateway" { PeerRole::Gateway } else { PeerRole::Client };
    let of_host = host_key(role, &cluster.host_name());
    let name = osd.map_or_else(|| of_host.name.clone(), ToString::to_string);
    let mut transaction = Transaction::new();
    for (old, record, _) in state.list_usable::<AuthorizedKeyRecord>(keys::AUTHORIZED_KEYS).await?.entries {
        if record.name == name {
            transaction = transaction.delete(&old);
        }
    }
    transaction = match osd {
        Some(id) => {
            let found = state.get::<OsdRecord>(&keys::osd(*id)).await?;
            let (mut record, revision) = found.ok_or_else(|| {
                NodeError::Invalid(format!("{id} is no part of the cluster any more, so it needs no key"))
            })?;
            record.public_key = hex::encode(key.public());
            osds::put(transaction, &record, revision)?
        }
        None => transaction.put(&place_of(&key), &of_host)?,
    };
    state.transact(&transaction).await?;
    // Last: with a key in its place that cluster state does not know, nobody would miss the lost one.
    directory.write_static_key(holder, &private)
}

/// Returns the key of the record that authorises a static key.
pub(crate) fn place_of(key: &KeyPair) -> String {
    keys::authorized_key(&hex::encode(key.public()))
}
