//! How this host reaches cluster state, and how the embedded server is opened to other hosts.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use atoll_cluster::{ClusterClient, TlsFiles, keys};
use atoll_keys::random_bytes;
use atoll_types::records::ClusterRecord;
use rcgen::{CertificateParams, KeyPair};

use crate::data_dir::{ClusterFile, DataDir};
use crate::error::NodeError;
use crate::json_files::write_secret;

/// The name in the embedded server's certificate. Clients look for it whatever the address is.
pub(crate) const EMBEDDED_NAME: &str = "cluster-state.atoll";

/// Where the embedded server's port is drawn from, and how often until the kernel chooses one.
const PORTS: Range<u16> = 10_000..20_000;
const DRAWS_MAX: usize = 64;
/// Linux's own setting.
const LINUX_PORTS_OF_CONNECTIONS: RangeInclusive<u16> = 32_768..=60_999;

/// The user's choices for a real etcd.
#[derive(Clone, Debug, Default)]
pub struct EtcdChoices {
    /// Endpoints, all of one etcd cluster.
    pub endpoints: Vec<String>,
    /// PEM file of the authority of its certificates.
    pub ca: Option<PathBuf>,
    /// PEM file of this host's client certificate.
    pub certificate: Option<PathBuf>,
    /// PEM file of that certificate's private key.
    pub key: Option<PathBuf>,
    /// The etcd's user and the file with the password.
    pub user: Option<(String, PathBuf)>,
}

impl EtcdChoices {
    /// Applies the choices to the cluster file, and leaves the rest unchanged.
    pub(crate) fn apply(&self, cluster: &mut ClusterFile) -> Result<(), NodeError> {
        let says_anything = !self.endpoints.is_empty()
            || self.user.is_some()
            || [&self.ca, &self.certificate, &self.key].iter().any(|path| path.is_some());
        if says_anything && cluster.state_listen.is_some() {
            return Err(NodeError::Invalid(
                "this cluster was made with the embedded cluster-state server, so --etcd cannot be given; an etcd is \
                 chosen when the cluster is made"
                    .into(),
            ));
        }
        if !self.endpoints.is_empty() {
            cluster.state_endpoints = self.endpoints.clone();
        }
        let tls = &mut cluster.state_tls;
        for (chosen, kept) in
            [(&self.ca, &mut tls.ca), (&self.certificate, &mut tls.certificate), (&self.key, &mut tls.key)]
        {
            if let Some(path) = chosen {
                *kept = Some(absolute(path)?);
            }
        }
        if let Some((user, file)) = &self.user {
            let password = std::fs::read_to_string(file).map_err(NodeError::file(file))?;
            cluster.state_user = Some(user.clone());
            cluster.state_password = Some(password.trim_end_matches(['\r', '\n']).to_owned());
        }
        Ok(())
    }
}

/// Files must be found wherever the next command is started from.
fn absolute(path: &Path) -> Result<PathBuf, NodeError> {
    std::path::absolute(path).map_err(NodeError::file(path))
}

/// A free port for the embedded cluster-state server, remembered from then on.
pub(crate) fn free_address(ip: IpAddr) -> Result<SocketAddr, NodeError> {
    draw_address(ip, &ports_of_connections())
}

/// The ports that the kernel gives to connections of its own choice.
fn ports_of_connections() -> RangeInclusive<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ends = text.split_whitespace().map(str::parse);
    match (ends.next(), ends.next()) {
        (Some(Ok(first)), Some(Ok(last))) => first..=last,
        _ => LINUX_PORTS_OF_CONNECTIONS,
    }
}

/// Not one of those that connections get: a connection could have it when the server is to start again.
fn draw_address(ip: IpAddr, of_connections: &RangeInclusive<u16>) -> Result<SocketAddr, NodeError> {
    let drawn = (0..DRAWS_MAX).map(|_| PORTS.start + u16::from_le_bytes(random_bytes()) % PORTS.len() as u16);
    let listen = |port| TcpListener::bind((ip, port)).and_then(|listener| listener.local_addr());
    let found = drawn.filter(|port| !of_connections.contains(port)).find_map(|port| listen(port).ok());
    found.map_or_else(|| listen(0), Ok).map_err(|error| {
        NodeError::Invalid(format!("cannot listen on {ip}: {error}; give --listen an address of this host"))
    })
}

/// Opens the embedded server to other hosts: at an address that they can reach, and with TLS, since
/// its password crosses the network.
pub(crate) fn expose_embedded(directory: &DataDir, cluster: &mut ClusterFile) -> Result<(), NodeError> {
    let listen = cluster.osd_listen();
    let Some(current) = cluster.state_listen.as_ref().and_then(|text| text.parse::<SocketAddr>().ok()) else {
        return Ok(());
    };
    if current.ip() == listen {
        return Ok(());
    }
    let address = free_address(listen)?;
    if directory.state_identity().is_none() {
        let generated = || {
            let key = KeyPair::generate()?;
            let certificate = CertificateParams::new([EMBEDDED_NAME.to_owned()])?.self_signed(&key)?;
            Ok((certificate.pem(), key.serialize_pem()))
        };
        let (certificate, key) = generated().map_err(|error: rcgen::Error| {
            NodeError::Invalid(format!("cannot make a certificate for cluster state: {error}"))
        })?;
        write_secret(&directory.keys().join("state.pem"), certificate.as_bytes())?;
        // Last, because it is what makes the server speak TLS.
        write_secret(&directory.keys().join("state.key"), key.as_bytes())?;
    }
    cluster.state_tls = TlsFiles {
        ca: Some(absolute(&directory.keys().join("state.pem"))?),
        server_name: Some(EMBEDDED_NAME.into()),
        ..TlsFiles::default()
    };
    cluster.state_listen = Some(address.to_string());
    let reached_at = SocketAddr::new(cluster.advertise.unwrap_or(listen), address.port());
    cluster.state_endpoints = vec![format!("https://{reached_at}")];
    Ok(())
}

/// Makes sure that cluster state is that of this cluster. It says whether there is any.
pub async fn check_identity(cluster: &ClusterFile, state: &ClusterClient) -> Result<bool, NodeError> {
    let found = state.get::<ClusterRecord>(keys::CLUSTER).await?;
    let endpoints = cluster.state_endpoints.join(", ");
    match found {
        Some((record, _)) if record.id == cluster.cluster_id => Ok(true),
        Some((record, _)) => Err(NodeError::Invalid(format!(
            "cluster state at {endpoints} belongs to another cluster ({}), this one is {}; give each cluster an etcd \
             of its own, or join that cluster with 'atoll join'",
            record.id, cluster.cluster_id
        ))),
        None if cluster.is_founded => Err(NodeError::Invalid(format!(
            "cluster state at {endpoints} is empty, but this cluster has been made already ({}): it is the wrong \
             etcd, or it has lost its data; restore its snapshot, since it is not recreated over existing data",
            cluster.cluster_id
        ))),
        None => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const IP: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn no_connection_takes_the_servers_port() {
        for _ in 0..100 {
            assert!(PORTS.contains(&draw_address(IP, &LINUX_PORTS_OF_CONNECTIONS).unwrap().port()));
            assert!(draw_address(IP, &(10_000..=19_900)).unwrap().port() > 19_900);
        }
    }

    #[test]
    fn a_host_whose_connections_may_have_any_port_gets_one_too() {
        assert!(draw_address(IP, &(1..=u16::MAX)).unwrap().port() > 0);
    }
}
