//! Asking the admin servers of all hosts.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use atoll_admin_socket::exchange;
use atoll_cluster::{ClusterClient, ClusterError, keys};
use atoll_node::DataDir;
use atoll_types::monitoring::AdminServerRecord;
use atoll_types::records::{OsdRecord, OsdUpRecord};
use bytes::Bytes;
use futures::future::join_all;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{CertificateError, Error};

use super::Unanswered;
use super::identity::{HostKey, client_config};
use super::local::{OfHost, Tells, ask_processes};
use super::remembered::is_remembered;

/// A host that takes longer counts as one that does not answer.
const HOST_LIMIT: Duration = Duration::from_secs(4);
const STATE_LIMIT: Duration = Duration::from_secs(4);

/// The host from which others are looked at.
pub struct ThisHost {
    /// Its data directory.
    pub directory: DataDir,
    /// Its name.
    pub name: String,
    /// Its own processes.
    pub processes: Vec<String>,
}

/// The other hosts of the cluster, as cluster state knows them at one time.
#[derive(Clone, Debug, Default)]
pub struct OtherHosts {
    servers: Vec<AdminServerRecord>,
    /// Processes without an admin server.
    untold: Vec<Unanswered>,
}

/// Answers of processes of all hosts.
pub struct Everywhere<T> {
    /// By host and process.
    pub told: Vec<(String, String, T)>,
    /// Hosts and processes that did not answer.
    pub unanswered: Vec<Unanswered>,
}

impl OtherHosts {
    /// Asks cluster state.
    pub async fn find(client: &ClusterClient, this: &ThisHost) -> Result<OtherHosts, ClusterError> {
        let servers = client.list::<AdminServerRecord>(keys::ADMIN_SERVERS).await?.entries;
        let servers = servers.into_iter().map(|(_, record, _)| record).filter(is_remembered);
        let servers: Vec<_> = servers.filter(|server| server.host != this.name).collect();
        let processes = servers.iter().flat_map(|server| &server.processes).chain(&this.processes);
        let told: BTreeSet<&String> = processes.collect();
        let osds = client.list::<OsdRecord>(keys::OSDS).await?.entries;
        let mut untold = Vec::new();
        for (_, up, _) in client.list::<OsdUpRecord>(keys::OSD_UP).await?.entries {
            let process = up.id.to_string();
            if !told.contains(&process) {
                let record = osds.iter().find(|(_, record, _)| record.id == up.id);
                untold.push(Unanswered {
                    host: record.map(|(_, record, _)| record.host.clone()),
                    process: Some(process),
                    reason: "no admin server reports it; is there one on its host ('atoll up --admin-listen')?"
                        .into(),
                });
            }
        }
        Ok(OtherHosts { servers, untold })
    }

    /// The same within a time; an error in words.
    pub async fn find_soon(client: &ClusterClient, this: &ThisHost) -> Result<OtherHosts, String> {
        match tokio::time::timeout(STATE_LIMIT, OtherHosts::find(client, this)).await {
            Ok(found) => found.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer of cluster state within {} s", STATE_LIMIT.as_secs())),
        }
    }

    /// Those with one of these names, or all if there is no name.
    #[must_use]
    pub fn only(mut self, names: &[String]) -> OtherHosts {
        if !names.is_empty() {
            self.servers.retain(|server| names.contains(&server.host));
            self.untold.retain(|untold| untold.host.as_ref().is_none_or(|host| names.contains(host)));
        }
        self
    }

    /// Without some hosts.
    pub(crate) fn leave_out(&mut self, is_left_out: impl Fn(&str) -> bool) {
        self.servers.retain(|server| !is_left_out(&server.host));
    }

    /// Their names.
    pub fn names(&self) -> Vec<&str> {
        self.servers.iter().map(|server| &server.host[..]).collect()
    }

    /// Returns processes without an admin server.
    pub(crate) fn untold(&self) -> &[Unanswered] {
        &self.untold
    }

    /// Asks all of them for something at once. Returns the answer of each, and the missing ones.
    pub(crate) async fn ask<T: DeserializeOwned>(
        &self,
        directory: &DataDir,
        route: &str,
    ) -> (Vec<(String, T)>, Vec<Unanswered>) {
        let asked = self.servers.iter().map(async |server| {
            let answer = tokio::time::timeout(HOST_LIMIT, ask_host(directory, server, route)).await;
            answer.unwrap_or_else(|_| Err(format!("no answer within {} s", HOST_LIMIT.as_secs())))
        });
        let answers = join_all(asked).await;
        let (mut told, mut unanswered) = (Vec::new(), Vec::new());
        for (server, answer) in self.servers.iter().zip(answers) {
            match answer {
                Ok(answer) => told.push((server.host.clone(), answer)),
                Err(reason) => unanswered.push(Unanswered::of_host(&server.host, reason)),
            }
        }
        (told, unanswered)
    }
}

impl ThisHost {
    /// Asks the processes of other hosts, and, unless they are left out, those of this one.
    pub async fn ask<T: Tells + DeserializeOwned>(&self, others: &OtherHosts, with_own: bool) -> Everywhere<T> {
        let own = async {
            match with_own {
                true => Some((self.name.clone(), ask_processes::<T>(&self.directory, &self.processes).await)),
                false => None,
            }
        };
        let (own, (of_others, mut unanswered)) =
            tokio::join!(own, others.ask::<OfHost<T>>(&self.directory, T::HOST_ROUTE));
        unanswered.extend(others.untold.iter().cloned());
        let mut told = Vec::new();
        for (host, of_host) in own.into_iter().chain(of_others) {
            let silent = of_host.unanswered.into_iter().map(|(process, reason)| Unanswered {
                host: Some(host.clone()),
                process: Some(process),
                reason,
            });
            unanswered.extend(silent);
            told.extend(of_host.told.into_iter().map(|(process, what)| (host.clone(), process, what)));
        }
        unanswered.sort();
        Everywhere { told, unanswered }
    }
}

async fn ask_host<T: DeserializeOwned>(
    directory: &DataDir,
    server: &AdminServerRecord,
    route: &str,
) -> Result<T, String> {
    let address: SocketAddr = server.address.parse().map_err(|_| format!("'{}' is no address", server.address))?;
    let asked = ask_server(directory, address, &server.public_key_sha256, route).await;
    let hint = match address.ip().is_loopback() {
        true => "; its admin server listens on loopback ('atoll up --admin-listen IP:PORT' there)",
        false => "",
    };
    let body = asked.map_err(|reason| format!("{address}: {reason}{hint}"))?;
    serde_json::from_slice(&body).map_err(|error| format!("{address}: its answer is malformed: {error}"))
}

async fn ask_server(directory: &DataDir, address: SocketAddr, key: &str, route: &str) -> Result<Bytes, String> {
    if key.is_empty() {
        return Err("its admin server has not announced its key".into());
    }
    let config = client_config(directory, HostKey(key.to_owned()));
    let config = config.map_err(|error| format!("this host has no certificate to show: {error}"))?;
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let name = ServerName::IpAddress(address.ip().into());
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    let (status, answer) = exchange(stream.map_err(|error| reason(&error))?, route, None).await?;
    match status {
        200 => Ok(answer.body),
        _ => Err(format!("it refuses, with status {status}: {}", String::from_utf8_lossy(&answer.body).trim())),
    }
}

fn reason(error: &std::io::Error) -> String {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
    match cause {
        Some(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure)) => {
            "the server that answers has another key than the admin server".into()
        }
        _ => error.to_string(),
    }
}
