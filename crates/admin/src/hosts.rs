//! Hosts: the list, their users in cluster state, and revocation.

use std::collections::{BTreeMap, BTreeSet};

use atoll_cluster::{ClusterClient, ClusterError, Transaction, keys};
use atoll_coordinator::unix_ms;
use atoll_types::OsdId;
use atoll_types::events::{EventKind, EventRecord, Severity};
use atoll_types::hosts::HostRecord;
use atoll_types::join::HostRole;
use atoll_types::records::{AuthorizedKeyRecord, OsdRecord, PeerRole, RECORD_FORMAT};
use serde::Serialize;

use crate::error::AdminError;
use crate::osds;

/// A host of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// Its name.
    pub host: String,
    /// Its role; unknown for a host without credentials of its own.
    pub role: Option<HostRole>,
    /// Its own user in cluster state; without one it logs in as other hosts do, or was there first.
    pub user: Option<String>,
    /// When it joined, as Unix time in milliseconds.
    pub joined_unix_ms: Option<u64>,
    /// When its password was changed last, as Unix time in milliseconds.
    pub rotated_unix_ms: Option<u64>,
    /// Where it joined from.
    pub address: Option<String>,
    /// Its OSDs.
    pub osds: Vec<OsdId>,
    /// How many static keys of its processes may connect to OSDs.
    pub keys: usize,
    /// It was shut out.
    pub is_revoked: bool,
}

/// Something that was taken from a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "taken")]
pub enum Taken {
    /// Its user in cluster state, and with it all tokens of that.
    User {
        /// Its name.
        user: String,
    },
    /// It has no user of its own, and knows the password of others: that has to be changed.
    NoUserOfItsOwn,
    /// Keys with which its processes connect to OSDs, and with which its OSDs authenticate to clients.
    Keys {
        /// Their holders.
        holders: Vec<String>,
    },
    /// The certificate of its admin server for other hosts.
    Certificate,
    /// OSDs that hold no data any more: others take it over.
    OsdsOut {
        /// Their numbers.
        osds: Vec<OsdId>,
    },
}

/// The records from which hosts are known.
struct Known {
    hosts: BTreeMap<String, HostRecord>,
    osds: Vec<OsdRecord>,
    keys: Vec<(String, AuthorizedKeyRecord)>,
    admin_servers: BTreeSet<String>,
}

impl Known {
    async fn read(client: &ClusterClient) -> Result<Known, AdminError> {
        let hosts = client.list::<HostRecord>(keys::HOSTS).await?.entries.into_iter();
        let osds = client.list::<OsdRecord>(keys::OSDS).await?.entries.into_iter();
        let servers = client.list_raw(keys::ADMIN_SERVERS).await?.entries.into_iter();
        let name = |key: &str| key.strip_prefix(keys::ADMIN_SERVERS).unwrap_or(key).to_owned();
        Ok(Known {
            hosts: hosts.map(|(_, record, _)| (record.host.clone(), record)).collect(),
            osds: osds.map(|(_, record, _)| record).collect(),
            keys: crate::peer_keys::list(client).await?,
            admin_servers: servers.map(|(key, ..)| name(&key)).collect(),
        })
    }

    fn osds_of(&self, host: &str) -> Vec<OsdId> {
        self.osds.iter().filter(|osd| osd.host == host).map(|osd| osd.id).collect()
    }

    /// Keys of its clients and of its OSDs.
    fn keys_of(&self, host: &str) -> Vec<&(String, AuthorizedKeyRecord)> {
        let osds = self.osds_of(host);
        let is_of_host = |record: &AuthorizedKeyRecord| match record.osd {
            Some(osd) => osds.contains(&osd),
            None => {
                [PeerRole::Client, PeerRole::Gateway].iter().any(|role| record.name == format!("{role}@{host}"))
            }
        };
        self.keys.iter().filter(|(_, record)| is_of_host(record)).collect()
    }

    fn names(&self) -> BTreeSet<String> {
        let of_osds = self.osds.iter().map(|osd| osd.host.clone());
        let of_keys = self.keys.iter().filter_map(|(_, record)| Some(record.name.split_once('@')?.1.to_owned()));
        let known = self.hosts.keys().cloned().chain(self.admin_servers.iter().cloned());
        known.chain(of_osds).chain(of_keys).collect()
    }

    fn host(&self, name: &str) -> Host {
        let record = self.hosts.get(name);
        let user = record.map(|record| record.user.clone()).filter(|user| !user.is_empty());
        Host {
            host: name.to_owned(),
            role: record.map(|record| record.role),
            is_revoked: record.is_some() && user.is_none(),
            user,
            joined_unix_ms: record.map(|record| record.joined_unix_ms),
            rotated_unix_ms: record.and_then(|record| record.rotated_unix_ms),
            address: record.and_then(|record| record.address.clone()),
            osds: self.osds_of(name),
            keys: self.keys_of(name).len(),
        }
    }
}

/// All hosts, by name.
pub async fn list(client: &ClusterClient) -> Result<Vec<Host>, AdminError> {
    let known = Known::read(client).await?;
    Ok(known.names().iter().map(|name| known.host(name)).collect())
}

fn no_such<T>(name: &str) -> Result<T, AdminError> {
    AdminError::refused(format!("there is no host '{name}'; 'atoll host ls' names all hosts"))
}

/// Shuts a host out: its user, the keys of its processes, the certificate of its admin server, and its OSDs. Each
/// step is reported as it happens; an interrupted call is repeated.
pub async fn revoke(
    client: &ClusterClient,
    name: &str,
    mut progress: impl FnMut(&Taken),
) -> Result<Vec<Taken>, AdminError> {
    let known = Known::read(client).await?;
    if !known.names().contains(name) {
        return no_such(name);
    }
    let mut all = Vec::new();
    let mut taken = |one: Taken| {
        progress(&one);
        all.push(one);
    };
    // First what could undo the rest.
    match known.host(name).user {
        Some(user) => {
            client.remove_user(&user).await?;
            taken(Taken::User { user });
        }
        None if known.host(name).is_revoked => {}
        None => taken(Taken::NoUserOfItsOwn),
    }
    let keys = known.keys_of(name);
    for (key, _) in &keys {
        client.delete(&keys::authorized_key(key)).await?;
    }
    if !keys.is_empty() {
        let mut holders: Vec<String> = keys.iter().map(|(_, record)| record.name.clone()).collect();
        holders.sort();
        taken(Taken::Keys { holders });
    }
    if client.delete(&keys::admin_server(name)).await? {
        taken(Taken::Certificate);
    }
    let osds = known.osds_of(name);
    for &osd in &osds {
        osds::set_out(client, osd, true).await?;
        // It would be waited for until its lease ends.
        client.delete(&keys::osd_up(osd)).await?;
    }
    if !osds.is_empty() {
        taken(Taken::OsdsOut { osds });
    }
    note_revoked(client, &known, name).await?;
    Ok(all)
}

async fn note_revoked(client: &ClusterClient, known: &Known, name: &str) -> Result<(), AdminError> {
    if let Some(record) = known.hosts.get(name) {
        client.put(&keys::host(name), &HostRecord { user: String::new(), ..record.clone() }).await?;
    }
    let summary = format!("host '{name}' was shut out: its rights in cluster state, keys, certificate and OSDs");
    note(client, "HOST_REVOKED", Severity::Warning, summary).await
}

/// Notes an event about a host.
pub async fn note(
    client: &ClusterClient,
    code: &str,
    severity: Severity,
    summary: String,
) -> Result<(), AdminError> {
    let unix_ms = unix_ms();
    let event = EventRecord::new(unix_ms, EventKind::Host, code, severity, summary);
    client.put(&keys::new_event(unix_ms), &event).await?;
    Ok(())
}

/// Forgets a host that was shut out, so that another one can have its name. Its OSDs must be gone.
pub async fn remove(client: &ClusterClient, name: &str) -> Result<(), AdminError> {
    let known = Known::read(client).await?;
    if !known.names().contains(name) {
        return no_such(name);
    }
    let host = known.host(name);
    if host.user.is_some() || host.keys > 0 {
        return AdminError::refused(format!(
            "host '{name}' may still log in, or connect to OSDs; shut it out first: 'atoll host revoke {name}'"
        ));
    }
    if let Some(osd) = host.osds.first() {
        return AdminError::refused(format!(
            "{osd} is on host '{name}', and may hold the last copy of something; when its data is elsewhere ('atoll osd ls'), \
             'atoll osd rm {}' removes it",
            osd.0
        ));
    }
    let keys = [keys::host(name), keys::admin_server(name), keys::key_backup(name)];
    let transaction = keys.iter().fold(Transaction::new(), |transaction, key| transaction.delete(key));
    client.transact(&transaction).await?;
    Ok(())
}

/// Gives a host a user of its own, as a user that may manage users. One that it has already gets this password.
pub async fn give_user(
    client: &ClusterClient,
    name: &str,
    role: HostRole,
    user: &str,
    password: &str,
    public_key: &str,
) -> Result<(), AdminError> {
    let own = atoll_cluster::roles::own_grants(name);
    client.make_user(user, password, atoll_cluster::roles::roles_of(role), &own).await?;
    let before = client.get::<HostRecord>(&keys::host(name)).await?;
    let record = match before {
        Some((before, _)) if before.user == user => HostRecord { rotated_unix_ms: Some(unix_ms()), ..before },
        _ => HostRecord {
            format: RECORD_FORMAT,
            host: name.to_owned(),
            role,
            user: user.to_owned(),
            public_key: public_key.to_owned(),
            joined_unix_ms: unix_ms(),
            rotated_unix_ms: None,
            address: None,
        },
    };
    client.put(&keys::host(name), &record).await?;
    note(client, "HOST_USER", Severity::Note, format!("host '{name}' has the user {user} of its own, as {role}"))
        .await
}

/// Returns true if the caller may manage users, as far as is known without trying.
pub async fn may_manage_users(client: &ClusterClient) -> Result<bool, AdminError> {
    match client.users().await {
        Ok(_) => Ok(true),
        Err(ClusterError::Forbidden { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
