//! Join tokens: made on a host of the cluster, used once by another host to become one.
//!
//! A token has the address of cluster state and its authority; its secret and its record in cluster state allow
//! one more host to join. The host draws a password, and the embedded server makes a user with it for a valid
//! token: no password is ever sent to a host. Those and the client certificates of an etcd are never in a token:
//! each host brings its own.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use atoll_admin::peer_keys;
use atoll_authority::{Published, fingerprint, published};
use atoll_cluster::{ClusterClient, ClusterError, TlsFiles, Transaction, keys};
use atoll_coordinator::unix_ms;
use atoll_credentials::user_key_context;
use atoll_keys::{KeyRing, KeyService, random_bytes, sha256};
use atoll_types::frames::FrameMode;
use atoll_types::join::{HostRole, JoinRequest, JoinTokenRecord, JoinedHost};
use atoll_types::records::{OsdRecord, OsdUpRecord, PeerRole, RECORD_FORMAT};
use atoll_types::transports::Transports;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::bootstrap::{DEFAULT_S3_LISTEN, nbd_socket};
use crate::choices::{Choices, DEFAULT_OSD_BYTES};
use crate::data_dir::{ClusterFile, Credentials, DEFAULT_S3_TLS_LISTEN, DataDir};
use crate::error::NodeError;
use crate::host_login::random_password;
use crate::json_files::{read_json, replace_held, write_secret};
use crate::state_access::check_identity;

const PREFIX: &str = "atoll-join-2.";

/// A join token as it is handed over. Its text is as secret as a password.
#[derive(Clone, Serialize, Deserialize)]
pub struct JoinToken {
    /// Names its record.
    pub id: String,
    secret: String,
    cluster_id: String,
    frame_mode: FrameMode,
    endpoints: Vec<String>,
    login: Login,
    /// The authority itself, not a file.
    ca_pem: Option<String>,
    server_name: Option<String>,
    /// The key of signed records: the host accepts no other from the start. Missing in tokens of earlier releases, and of
    /// clusters that do not sign for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    signing_key: Option<String>,
}

/// How a host that joins logs in to cluster state.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Login {
    /// It needs none.
    None,
    /// The embedded server reports it.
    Told,
    /// It brings a user and a password of the etcd.
    Brought,
}

impl Login {
    fn to(cluster: &ClusterFile) -> Self {
        match cluster.state_user {
            None => Login::None,
            Some(_) if cluster.is_state_embedded() => Login::Told,
            Some(_) => Login::Brought,
        }
    }
}

impl JoinToken {
    /// The text to hand over.
    pub fn to_text(&self) -> String {
        let json = serde_json::to_vec(self).expect("a token is plain JSON");
        format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(json))
    }

    /// Reads the text.
    pub fn from_text(text: &str) -> Result<Self, NodeError> {
        let invalid = |detail: &str| NodeError::Invalid(format!("this is no join token: {detail}"));
        let encoded = text.trim().strip_prefix(PREFIX);
        let encoded = encoded.ok_or_else(|| invalid("it does not begin with 'atoll-join-2.'"))?;
        let json = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| invalid("it is not whole"))?;
        serde_json::from_slice(&json).map_err(|_| invalid("it is not whole, or of a later release"))
    }
}

/// Makes a token for a number of hosts.
pub async fn create_token(
    cluster: &ClusterFile,
    state: &ClusterClient,
    role: HostRole,
    term: Duration,
    uses: u32,
) -> Result<JoinToken, NodeError> {
    if !cluster.is_reachable() {
        let announced = cluster.advertise.unwrap_or(cluster.osd_listen());
        return Err(NodeError::Invalid(format!(
            "OSDs of this host announce {announced}, which no other host reaches; restart with 'atoll up \
             --listen IP', the address of this host for other hosts, or with '--advertise IP' if that is another \
             one"
        )));
    }
    if !check_identity(cluster, state).await? {
        return Err(NodeError::Invalid("the cluster is still being made; try again in a moment".into()));
    }
    let now_ms = unix_ms();
    for (key, record, revision) in state.list::<JoinTokenRecord>(keys::JOIN_TOKENS).await?.entries {
        if record.expires_unix_ms < now_ms {
            // Somebody else may be sweeping, too.
            let _ = state.delete_if(&key, revision).await;
        }
    }
    let ca = cluster.state_tls.ca.as_ref();
    let ca_pem = ca.map(|path| fs::read_to_string(path).map_err(NodeError::file(path))).transpose()?;
    let token = JoinToken {
        id: hex::encode(random_bytes::<8>()),
        secret: hex::encode(random_bytes::<32>()),
        cluster_id: cluster.cluster_id.clone(),
        frame_mode: cluster.frame_mode,
        endpoints: cluster.state_endpoints.clone(),
        login: Login::to(cluster),
        ca_pem,
        server_name: cluster.state_tls.server_name.clone(),
        signing_key: cluster.signing_key.clone(),
    };
    let record = JoinTokenRecord {
        format: RECORD_FORMAT,
        role,
        secret_sha256: hex::encode(sha256(token.secret.as_bytes())),
        created_unix_ms: now_ms,
        expires_unix_ms: now_ms.saturating_add(term.as_millis() as u64),
        used_by: None,
        uses: uses.max(1),
        used_by_others: Vec::new(),
        refused: None,
    };
    state.create(&keys::join_token(&token.id), &record).await?;
    Ok(token)
}

/// All tokens that have a record, with their ids.
pub async fn list_tokens(state: &ClusterClient) -> Result<Vec<(String, JoinTokenRecord)>, NodeError> {
    let listing = state.list::<JoinTokenRecord>(keys::JOIN_TOKENS).await?;
    let id = |key: &str| key.strip_prefix(keys::JOIN_TOKENS).unwrap_or(key).to_owned();
    Ok(listing.entries.into_iter().map(|(key, record, _)| (id(&key), record)).collect())
}

/// Makes a token worthless. A host that has used it stays in the cluster.
pub async fn revoke_token(state: &ClusterClient, id: &str) -> Result<(), NodeError> {
    if state.delete(&keys::join_token(id)).await? {
        return Ok(());
    }
    Err(NodeError::Invalid(format!("there is no join token {id}; see 'atoll cluster token ls'")))
}

/// Makes the data directory of a host that joins. Repeating it with the same token is no error.
pub async fn join(directory: &DataDir, token: &JoinToken, choices: &Choices) -> Result<ClusterFile, NodeError> {
    if directory.has_cluster() {
        let cluster = directory.cluster()?;
        if cluster.joined_by.as_ref() == Some(&token.id) {
            return Ok(cluster);
        }
        return Err(NodeError::Invalid(format!(
            "{} belongs to cluster {} already; leave --join out, or name another directory",
            directory.root().display(),
            cluster.cluster_id
        )));
    }
    directory.create()?;
    if !directory.prepared_osds().is_empty() {
        return Err(NodeError::Invalid(format!(
            "{} holds OSDs that were made for a cluster of their own; join first and create OSDs then, or name another \
             directory",
            directory.root().display()
        )));
    }
    let mut cluster = joined_cluster(directory, token, choices)?;
    log_in(directory, token, &mut cluster).await?;
    let state = ClusterClient::connect(&cluster.connect_options()).await?;
    if !check_identity(&cluster, &state).await? {
        return Err(NodeError::Invalid("the cluster of this token is not there any more".into()));
    }
    check_signing_key(token, &state).await?;
    let name_holders = state.list::<OsdRecord>(keys::OSDS).await?.entries;
    let up = state.list::<OsdUpRecord>(keys::OSD_UP).await?.entries;
    let is_up = |id| up.iter().any(|(_, record, _)| record.id == id);
    if token.login != Login::Told
        && let Some((_, osd, _)) =
            name_holders.iter().find(|(_, osd, _)| osd.host == cluster.host && is_up(osd.id))
    {
        return Err(NodeError::Invalid(format!(
            "another host is called '{}' ({} runs there), and copies would not be kept apart; give --host NAME",
            cluster.host, osd.id
        )));
    }
    if let Some(path) = &choices.key_service {
        adopt_key_service(directory, &state, &cluster, path).await?;
        // Who makes such tokens has seen the cluster signed.
        cluster.is_signed = token.signing_key.is_some();
    }
    let state = match directory.authority(&cluster) {
        Some(authority) => state.with_guard(Arc::new(authority)),
        None => state,
    };
    if token.login != Login::Told {
        cluster.role = use_token(directory, token, &cluster, &state).await?;
    }
    directory.create_cluster(&cluster)?;
    // It is in cluster.json now.
    fs::remove_file(directory.joining_file()).or_else(ignore_absent).map_err(NodeError::file(directory.root()))?;
    Ok(cluster)
}

/// Refuses a cluster whose records are signed by another key than the token names, or by none.
async fn check_signing_key(token: &JoinToken, state: &ClusterClient) -> Result<(), NodeError> {
    let Some(known) = &token.signing_key else { return Ok(()) };
    let name = |key: &str| fingerprint(key).unwrap_or_else(|| "no key".into());
    let found = match published(state, Some(known)).await? {
        Published::Follows(_) => return Ok(()),
        Published::Another(key) => format!("by {}", name(&key)),
        Published::None => "by no key".into(),
    };
    Err(NodeError::Invalid(format!(
        "the records of this cluster are signed {found}, and the join token {} says by {}: cluster state was \
         changed by hand, or its keys were lost and made again. If 'atoll host pin' on a host with the key service shows the \
         former, make another token there",
        token.id,
        name(known)
    )))
}

fn ignore_absent(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// The password with which this host is to log in to cluster state. It is kept from before the server gets it
/// until it is in cluster.json: an interrupted join resumes with it.
#[derive(Serialize, Deserialize)]
struct Joining {
    token: String,
    password: String,
}

/// Sees to it that the host can log in to cluster state. Joining an embedded one uses the token.
async fn log_in(directory: &DataDir, token: &JoinToken, cluster: &mut ClusterFile) -> Result<(), NodeError> {
    match token.login {
        Login::None => return Ok(()),
        Login::Brought if cluster.state_user.is_some() => return Ok(()),
        Login::Brought => {
            return Err(NodeError::Invalid(
                "the etcd of this cluster wants a user and a password, which are in no token: give --etcd-user and \
                 --etcd-password-file"
                    .into(),
            ));
        }
        Login::Told => {}
    }
    let path = directory.joining_file();
    // One of an earlier release has another form, and nothing that is of use now.
    let kept = read_json::<Joining>(&path).ok().filter(|joining| joining.token == token.id);
    let joining = match kept {
        Some(joining) => joining,
        None => {
            let joining = Joining { token: token.id.clone(), password: random_password() };
            let text = serde_json::to_string(&joining).expect("it is plain JSON");
            write_secret(&path, text.as_bytes())?;
            joining
        }
    };
    let request = JoinRequest {
        secret: token.secret.clone(),
        host: cluster.host.clone(),
        public_key: hex::encode(directory.make_static_key("client")?.public()),
        gateway_key: hex::encode(directory.make_static_key("gateway")?.public()),
        password: joining.password.clone(),
    };
    let joined = ClusterClient::join_by_token(&cluster.connect_options(), &token.id, &request).await;
    let answer = joined.map_err(|error| match error {
        ClusterError::Authentication { .. } => NodeError::Invalid(format!(
            "cluster state refuses the join token {}: it was used or revoked, has expired, or is incomplete; \
             make another with 'atoll cluster token create'. If its use is unexpected, 'atoll host ls' and \
             'atoll events' there show the host that used it, and 'atoll host revoke' revokes that host",
            token.id
        )),
        ClusterError::Refused { cause, .. } => NodeError::Invalid(cause),
        other => other.into(),
    })?;
    (cluster.state_user, cluster.state_password) = (Some(answer.user), Some(joining.password));
    cluster.role = answer.role;
    Ok(())
}

fn joined_cluster(directory: &DataDir, token: &JoinToken, choices: &Choices) -> Result<ClusterFile, NodeError> {
    let mut state_tls = TlsFiles { server_name: token.server_name.clone(), ..TlsFiles::default() };
    if let Some(pem) = &token.ca_pem {
        let path = directory.keys().join("state-ca.pem");
        write_secret(&path, pem.as_bytes())?;
        state_tls.ca = Some(std::path::absolute(&path).map_err(NodeError::file(&path))?);
    }
    let mut cluster = ClusterFile {
        format: RECORD_FORMAT,
        cluster_id: token.cluster_id.clone(),
        state_endpoints: token.endpoints.clone(),
        state_listen: None,
        state_user: None,
        state_password: None,
        state_tls,
        is_founded: true,
        is_signed: false,
        signing_key: token.signing_key.clone(),
        first_pools: None,
        joined_by: Some(token.id.clone()),
        role: HostRole::default(),
        host: choices.host.clone().unwrap_or_default(),
        rack: choices.rack.clone().unwrap_or_default(),
        zone: choices.zone.clone().unwrap_or_default(),
        listen: choices.listen,
        advertise: choices.advertise,
        frame_mode: token.frame_mode,
        first_frame_modes: None,
        first_transports: Transports::default(),
        has_gateway_key: true,
        osd_ids: Vec::new(),
        osd_bytes: choices.osd_bytes.unwrap_or(DEFAULT_OSD_BYTES),
        encrypt_at_rest: choices.encrypt_at_rest,
        s3_listen: choices.s3_listen.clone().unwrap_or(DEFAULT_S3_LISTEN.into()),
        s3_tls_listen: choices.s3_tls_listen.clone().unwrap_or(DEFAULT_S3_TLS_LISTEN.into()),
        admin_listen: choices.admin_listen.clone(),
        command_audit_log: choices.command_audit_log.clone(),
        tls_names: choices.tls_names.clone(),
        nbd_listen: vec![nbd_socket(directory)?],
        nvme_listen: Vec::new(),
        directory: None,
    };
    cluster.host = cluster.host_name();
    choices.etcd.apply(&mut cluster)?;
    Ok(cluster)
}

/// Takes the token and registers this host's key, both or neither.
async fn use_token(
    directory: &DataDir,
    token: &JoinToken,
    cluster: &ClusterFile,
    state: &ClusterClient,
) -> Result<HostRole, NodeError> {
    let refused = |why: String| Err(NodeError::Invalid(format!("the join token {} {why}", token.id)));
    let key = keys::join_token(&token.id);
    let public_key = hex::encode(directory.make_static_key("client")?.public());
    loop {
        let Some((mut record, revision)) = state.get::<JoinTokenRecord>(&key).await? else {
            return refused("was revoked, or has expired".into());
        };
        if hex::encode(sha256(token.secret.as_bytes())) != record.secret_sha256 {
            return refused("has the wrong secret".into());
        }
        // An earlier attempt of this host got as far as that.
        if record.users().any(|used_by| used_by.public_key == public_key) {
            return Ok(record.role);
        }
        if !record.has_uses_left() {
            let hosts: Vec<&str> = record.users().map(|used_by| used_by.host.as_str()).collect();
            let (hosts, uses) = (hosts.join("', '"), record.uses);
            return refused(format!("was used by host '{hosts}'; its number of uses is {uses}"));
        }
        if record.expires_unix_ms < unix_ms() {
            return refused("has expired; make another with 'atoll cluster token create'".into());
        }
        record.use_by(JoinedHost {
            host: cluster.host.clone(),
            public_key: public_key.clone(),
            joined_unix_ms: unix_ms(),
            address: None,
        });
        let mut transaction = Transaction::new().check(&key, revision).put(&key, &record)?;
        if record.role.has_clients() {
            let gateway_key = hex::encode(directory.make_static_key("gateway")?.public());
            for (key, role) in [(&public_key, PeerRole::Client), (&gateway_key, PeerRole::Gateway)] {
                let record = peer_keys::host_key(role, &cluster.host);
                transaction = transaction.put(&keys::authorized_key(key), &record)?;
            }
        }
        match state.transact(&transaction).await {
            Ok(_) => return Ok(record.role),
            // Look again at what became of it.
            Err(ClusterError::Conflict { .. } | ClusterError::Unclear { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Copies the key service's file, once it has shown that it is this cluster's.
async fn adopt_key_service(
    directory: &DataDir,
    state: &ClusterClient,
    cluster: &ClusterFile,
    path: &Path,
) -> Result<(), NodeError> {
    let service = KeyRing::open(path)?;
    restore_credentials(directory, state, cluster, &service).await.map_err(|error| match error {
        NodeError::Crypto(error) => NodeError::Invalid(format!(
            "{} is not the key file of this cluster: {error}; copy keys/kms.json from one of its hosts",
            path.display()
        )),
        other => other,
    })?;
    let bytes = fs::read(path).map_err(NodeError::file(path))?;
    replace_held(&directory.key_service_file(), &bytes)
}

/// Writes the credentials of the first user, from the wrapped secret in cluster state.
pub(crate) async fn restore_credentials(
    directory: &DataDir,
    state: &ClusterClient,
    cluster: &ClusterFile,
    service: &KeyRing,
) -> Result<(), NodeError> {
    let identities = atoll_admin::identities::current(state).await?;
    // The key that the first start made, or as good a one: it has all rights in the first account.
    let all = identities.access_keys().map(|key| &key.record);
    let of_root = all.filter(|key| key.is_of_first_root() && !key.is_disabled);
    let Some(user) = of_root.min_by_key(|key| (key.created_unix_ms, &key.access_key)) else { return Ok(()) };
    let secret = service.unwrap(&user_key_context(&user.access_key), &user.wrapped_secret_key).await?;
    directory.write_credentials(&Credentials {
        access_key: user.access_key.clone(),
        secret_key: hex::encode(secret.expose()),
        endpoint: cluster.s3_endpoint(),
        tls_endpoint: cluster.s3_tls_endpoint(),
        // It is made by the first start.
        ca_file: None,
    })
}

#[cfg(test)]
mod tests;
