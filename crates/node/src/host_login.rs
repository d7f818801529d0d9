//! How this host logs in to cluster state, and how its password is changed while its processes run: these look here for
//! another one when theirs is refused.

use std::fs;

use atoll_cluster::{ClusterClient, ClusterError, LoginSource};
use atoll_keys::random_bytes;
use atoll_types::hosts::HostChange;
use atoll_types::join::HostRole;
use serde::{Deserialize, Serialize};

use crate::data_dir::{ClusterFile, DataDir};
use crate::error::NodeError;
use crate::json_files::{read_json, write_json};

/// Prefix of the hosts' users in an embedded cluster state.
pub(crate) const HOST_USER: &str = "host-";

/// `keys/rotating.json`: a login that cluster state is about to know, or knows already.
#[derive(Serialize, Deserialize)]
pub(crate) struct Rotating {
    pub user: String,
    pub password: String,
}

/// Returns a random password.
pub fn random_password() -> String {
    hex::encode(random_bytes::<32>())
}

/// The logins that a data directory has now.
pub fn login_source(directory: &DataDir) -> LoginSource {
    let directory = directory.clone();
    LoginSource::new(move || {
        let rotating = read_json::<Rotating>(&directory.rotating_file()).ok();
        let cluster = directory.cluster().ok();
        let current = cluster.and_then(|cluster| cluster.state_user.zip(cluster.state_password));
        current.into_iter().chain(rotating.map(|login| (login.user, login.password))).collect()
    })
}

impl ClusterFile {
    /// Returns true if this host has credentials of its own in an embedded cluster state.
    pub fn has_own_login(&self) -> bool {
        self.state_user.as_ref().is_some_and(|user| user.starts_with(HOST_USER))
    }

    /// Returns true if this host may not write the records of its OSDs itself, and cluster state does it on
    /// request.
    pub(crate) fn has_osds_by_request(&self) -> bool {
        self.has_own_login() && self.role == HostRole::Osd
    }
}

impl DataDir {
    /// Puts a login in its place, once cluster state knows it.
    pub(crate) fn keep_login(&self, login: &Rotating) -> Result<(), NodeError> {
        self.change_cluster(|file| {
            (file.state_user, file.state_password) = (Some(login.user.clone()), Some(login.password.clone()));
            Ok(())
        })?;
        forget(self)
    }

    /// Notes a login that cluster state is about to know.
    pub(crate) fn announce_login(&self, login: &Rotating) -> Result<(), NodeError> {
        write_json(&self.rotating_file(), login)
    }
}

fn forget(directory: &DataDir) -> Result<(), NodeError> {
    let path = directory.rotating_file();
    match fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(NodeError::file(path)(error)),
        _ => Ok(()),
    }
}

/// Finishes a change of the password that was cut short: whichever of the two cluster state knows is the password.
pub(crate) async fn finish_rotation(directory: &DataDir, cluster: &mut ClusterFile) -> Result<(), NodeError> {
    let path = directory.rotating_file();
    if !path.exists() {
        return Ok(());
    }
    let rotating: Rotating = read_json(&path)?;
    let mut options = cluster.connect_options();
    options.login = None;
    match ClusterClient::connect(&options.clone().with_user(&rotating.user, &rotating.password)).await {
        Ok(_) => {
            directory.keep_login(&rotating)?;
            (cluster.state_user, cluster.state_password) = (Some(rotating.user), Some(rotating.password));
            Ok(())
        }
        Err(ClusterError::Authentication { .. }) => {
            ClusterClient::connect(&options).await?;
            forget(directory)
        }
        Err(error) => Err(error.into()),
    }
}

/// New credentials of a host.
pub enum OtherLogin {
    /// Its own user, with another password.
    Password(String),
    /// The user of the host that made the cluster, with another password.
    Shared(String),
    /// A user of its own in place of a shared one.
    Own(String),
}

/// Gives this host another password in cluster state, or a user of its own if it shares one.
pub async fn rotate_login(directory: &DataDir, state: &ClusterClient) -> Result<OtherLogin, NodeError> {
    let cluster = directory.cluster()?;
    let Some(user) = cluster.state_user.clone() else {
        return Err(NodeError::Invalid(
            "cluster state asks for no user and no password, so there is none to change: whoever reaches it may do \
             everything"
                .into(),
        ));
    };
    if cluster.has_own_login() {
        return rotate_own(directory).await.map(OtherLogin::Password);
    }
    if cluster.state_listen.is_some() {
        return rotate_shared(directory, &cluster).await.map(OtherLogin::Shared);
    }
    if !cluster.is_state_embedded() {
        return Err(NodeError::Invalid(format!(
            "the user {user} is one of an etcd: 'etcdctl user passwd {user}' changes its password, and 'atoll up --etcd-user \
             {user} --etcd-password-file FILE' on this host takes the new one"
        )));
    }
    own_user(directory, &cluster, state).await.map(OtherLogin::Own)
}

/// Changes the password of the server's own user. The server takes it from the data directory when a host logs in
/// with it.
async fn rotate_shared(directory: &DataDir, cluster: &ClusterFile) -> Result<String, NodeError> {
    let user = cluster.state_user.clone().unwrap_or_default();
    let login = Rotating { user: user.clone(), password: random_password() };
    directory.keep_login(&login)?;
    let mut options = cluster.connect_options().with_user(&login.user, &login.password);
    options.login = None;
    ClusterClient::connect(&options).await?;
    Ok(user)
}

/// Makes a user for a host that shares one with all rights.
async fn own_user(directory: &DataDir, cluster: &ClusterFile, state: &ClusterClient) -> Result<String, NodeError> {
    let public_key = hex::encode(directory.static_key("client")?.public());
    let host = cluster.host_name();
    let login = Rotating { user: format!("{HOST_USER}{host}-{}", &public_key[..8]), password: random_password() };
    directory.announce_login(&login)?;
    let Rotating { user, password } = &login;
    atoll_admin::hosts::give_user(state, &host, cluster.role, user, password, &public_key).await?;
    directory.keep_login(&login)?;
    Ok(login.user)
}

/// Gives this host another password in the embedded cluster state. Its processes stay connected.
pub(crate) async fn rotate_own(directory: &DataDir) -> Result<String, NodeError> {
    let mut cluster = directory.cluster()?;
    finish_rotation(directory, &mut cluster).await?;
    let user = cluster.state_user.clone().unwrap_or_default();
    let rotating = Rotating { user: user.clone(), password: random_password() };
    directory.announce_login(&rotating)?;
    let change = HostChange::Password(rotating.password.clone());
    ClusterClient::change_own(&cluster.connect_options(), change).await?;
    directory.keep_login(&rotating)?;
    Ok(user)
}
