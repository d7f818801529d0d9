//! Ages of secrets, and the commands that renew them.

use std::fs;
use std::path::Path;
use std::time::UNIX_EPOCH;

use atoll_admin::{api_tokens, login_oidc, metrics_tokens, nvme_hosts, operators};
use atoll_cluster::{ClusterClient, keys};
use atoll_coordinator::health::{Problem, Severity};
use atoll_keys::{KeyRing, KeyService};
use atoll_types::authority::AuthorityRecord;
use atoll_types::hosts::HostRecord;
use atoll_types::identities::{AccessKeyRecord, StsKeyRecord};
use serde::Serialize;

use crate::data_dir::{ClusterFile, DataDir};
use crate::error::NodeError;

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

/// A secret, and how old it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SecretAge {
    /// The secret and its holder.
    pub secret: String,
    /// Where it lies: a key of cluster state, or a file of this host.
    pub place: String,
    /// Time at which it was made, as Unix time in milliseconds; `None` if it was not noted.
    pub since_unix_ms: Option<u64>,
    /// The command that renews it.
    pub rotated_by: &'static str,
}

impl SecretAge {
    fn new(secret: String, place: String, since_unix_ms: u64, rotated_by: &'static str) -> Self {
        // Records of earlier releases have no time.
        SecretAge { secret, place, since_unix_ms: Some(since_unix_ms).filter(|since| *since > 0), rotated_by }
    }
}

/// The secrets of the cluster, and the files of this host that hold one, oldest first. Join tokens end by themselves, and
/// are not among them.
pub async fn secret_ages(
    directory: &DataDir,
    cluster: &ClusterFile,
    state: &ClusterClient,
) -> Result<Vec<SecretAge>, NodeError> {
    let mut found = of_host(directory, cluster);
    found.extend(of_cluster_state(state).await?);
    found.extend(of_logins(state).await?);
    found.extend(of_clients(state).await?);
    if directory.key_service_file().exists() {
        found.extend(of_key_service(&KeyRing::open(&directory.key_service_file())?).await?);
    }
    found.sort_by_key(|age| (age.since_unix_ms.unwrap_or_default(), age.secret.clone()));
    Ok(found)
}

async fn of_key_service(service: &KeyRing) -> Result<Vec<SecretAge>, NodeError> {
    let of_key = |key: atoll_keys::KeyDescription| {
        let newest = key.versions.iter().map(|version| version.created_unix_ms).max().unwrap_or_default();
        let secret = format!("key {} of the key service", key.name);
        SecretAge::new(secret, "keys/kms.json, or Transit".into(), newest, "atoll key rotate NAME")
    };
    Ok(service.list().await?.into_iter().map(of_key).collect())
}

async fn of_cluster_state(state: &ClusterClient) -> Result<Vec<SecretAge>, NodeError> {
    let mut found = Vec::new();
    if let Some((record, _)) = state.get::<AuthorityRecord>(keys::AUTHORITY).await? {
        let newest = record.keys.last().map_or(0, |key| key.created_unix_ms);
        let secret = "key that signs records".into();
        found.push(SecretAge::new(secret, keys::AUTHORITY.into(), newest, "atoll key rotate"));
    }
    if let Some((record, _)) = state.get::<StsKeyRecord>(keys::STS_KEY).await? {
        let secret = "key of temporary credentials".into();
        let since = record.made_unix_ms.unwrap_or_default();
        found.push(SecretAge::new(secret, keys::STS_KEY.into(), since, "atoll key rotate-sts"));
    }
    for (place, host, _) in state.list::<HostRecord>(keys::HOSTS).await?.entries {
        let secret = format!("password of host {} in cluster state", host.host);
        let since = host.rotated_unix_ms.unwrap_or(host.joined_unix_ms);
        found.push(SecretAge::new(secret, place, since, "atoll host rotate"));
    }
    Ok(found)
}

/// Returns secrets of operators, and of programs that act for them.
async fn of_logins(state: &ClusterClient) -> Result<Vec<SecretAge>, NodeError> {
    let mut found = Vec::new();
    let mut add = |secret: String, place: String, since, rotated_by| {
        found.push(SecretAge::new(secret, place, since, rotated_by));
    };
    for (name, operator) in operators::list(state).await? {
        let since = operator.password_unix_ms.unwrap_or(operator.created_unix_ms);
        let place = || keys::operator(&name);
        add(format!("password of operator {name}"), place(), since, "atoll operator set NAME --new-password");
        if let Some(totp) = &operator.totp {
            let rotated_by = "atoll operator totp reset NAME, then enrol";
            add(format!("second factor of operator {name}"), place(), totp.enrolled_unix_ms, rotated_by);
        }
    }
    for (token, _) in api_tokens::list(state).await? {
        let rotated_by = "atoll operator token create, then revoke";
        let secret = format!("token {} for the admin API", token.name);
        add(secret, keys::API_TOKENS.into(), token.created_unix_ms, rotated_by);
    }
    if let Some((provider, _)) = login_oidc::find(state).await?
        && let Some(secret) = provider.secret
    {
        let rotated_by = "atoll operator oidc set --client-secret-file";
        add("secret of the OpenID Connect client".into(), keys::LOGIN_OIDC.into(), secret.set_unix_ms, rotated_by);
    }
    Ok(found)
}

/// Returns secrets of clients of metrics, images and S3.
async fn of_clients(state: &ClusterClient) -> Result<Vec<SecretAge>, NodeError> {
    let mut found = Vec::new();
    let mut add = |secret: String, place: String, since, rotated_by| {
        found.push(SecretAge::new(secret, place, since, rotated_by));
    };
    for (name, token) in metrics_tokens::list(state).await? {
        let place = keys::metrics_token(&name);
        let rotated_by = "atoll metrics token create, then rm";
        add(format!("token {name} for metrics"), place, token.created_unix_ms, rotated_by);
    }
    for host in nvme_hosts::list(state).await? {
        let place = keys::nvme_host(&host.host);
        add(format!("secret of NVMe host {}", host.host), place, host.created_unix_ms, "atoll nvme host set");
    }
    for host in nvme_hosts::list_tls(state).await? {
        let place = keys::nvme_tls(&host.host);
        add(
            format!("key for TLS of NVMe host {}", host.host),
            place,
            host.created_unix_ms,
            "atoll nvme host set-tls",
        );
    }
    for (place, key, _) in state.list::<AccessKeyRecord>(keys::ACCESS_KEYS).await?.entries {
        let rotated_by = "aws iam create-access-key, then delete-access-key";
        add(format!("secret of access key {}", key.access_key), place, key.created_unix_ms, rotated_by);
    }
    Ok(found)
}

/// Files say when they were written.
fn of_host(directory: &DataDir, cluster: &ClusterFile) -> Vec<SecretAge> {
    let host = cluster.host_name();
    let mut found = Vec::new();
    let mut add = |what: String, path: &Path, rotated_by| {
        let written = fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
        let since = written.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        if let Some(since) = since {
            let place = path.strip_prefix(directory.root()).unwrap_or(path).display().to_string();
            found.push(SecretAge::new(what, place, since.as_millis() as u64, rotated_by));
        }
    };
    let holders = ["client".to_owned(), "gateway".to_owned()].into_iter();
    for holder in holders.chain(cluster.osd_ids.iter().map(ToString::to_string)) {
        let path = directory.static_key_file(&holder);
        add(format!("static key of {holder} on host {host}"), &path, "atoll cluster key rotate NAME");
    }
    let tls = directory.tls();
    add(format!("key of the TLS certificate of host {host}"), &tls.join("server.key"), "atoll host renew-tls");
    add(format!("key of the TLS authority on host {host}"), &tls.join("ca.key"), "a new tls/ca.key and ca.crt");
    found
}

/// Returns a problem for secrets older than `days_max` days; 0: none is too old.
pub fn old_secret_problems(ages: &[SecretAge], days_max: u32, now_unix_ms: u64) -> Vec<Problem> {
    let days = |age: &SecretAge| age.since_unix_ms.map(|since| now_unix_ms.saturating_sub(since) / DAY_MS);
    let too_old = |age: &&SecretAge| days(age).is_some_and(|days| days > u64::from(days_max));
    let subjects: Vec<String> = match days_max {
        0 => Vec::new(),
        _ => ages
            .iter()
            .filter(too_old)
            .map(|age| format!("{} ({} days)", age.secret, days(age).unwrap_or(0)))
            .collect(),
    };
    if subjects.is_empty() {
        return Vec::new();
    }
    vec![Problem {
        code: "SECRETS_OLD",
        severity: Severity::Warning,
        summary: format!("{} secrets are older than {days_max} days", subjects.len()),
        subjects,
        action: "'atoll key ages' names the command that renews each".into(),
        since_unix_ms: None,
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_secrets_over_the_limit_are_reported() {
        let age = |name: &str, days: u64| {
            SecretAge::new(name.into(), "place".into(), (1_000 - days) * DAY_MS, "a command")
        };
        let unknown = SecretAge::new("unknown".into(), "place".into(), 0, "a command");
        let ages = [unknown, age("old", 91), age("due", 90), age("young", 1)];
        let now = 1_000 * DAY_MS;
        assert!(old_secret_problems(&ages, 0, now).is_empty(), "0: off");
        let [problem] = &old_secret_problems(&ages, 90, now)[..] else { panic!("one problem") };
        assert_eq!((problem.code, &problem.subjects[..]), ("SECRETS_OLD", &["old (91 days)".to_owned()][..]));
        assert!(old_secret_problems(&ages, 91, now).is_empty());
    }
}
