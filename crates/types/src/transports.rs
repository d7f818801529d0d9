//! Ways of processes to OSDs: the transport, by role, and its frames.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::frames::{FrameMode, FramesRecord};
use crate::records::{OsdUpRecord, PeerRole};

/// Transport of a connection's frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Transport {
    /// Memory that processes of one host share; Unix sockets and TCP where it is not to be had.
    #[serde(rename = "shm")]
    SharedMemory,
    /// Unix sockets between processes of one host that share a network namespace, TCP between all others.
    #[default]
    #[serde(rename = "unix")]
    Unix,
    /// TCP, within a host too.
    #[serde(rename = "tcp")]
    Tcp,
    /// RDMA, within a host too, and TCP to OSDs that do not listen over it.
    #[serde(rename = "rdma")]
    Rdma,
}

impl Transport {
    /// All of them.
    pub const ALL: [Transport; 4] = [Transport::SharedMemory, Transport::Unix, Transport::Tcp, Transport::Rdma];

    /// Its name in settings, records and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Transport::SharedMemory => "shm",
            Transport::Unix => "unix",
            Transport::Tcp => "tcp",
            Transport::Rdma => "rdma",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "shm" => Ok(Transport::SharedMemory),
            "unix" => Ok(Transport::Unix),
            "tcp" => Ok(Transport::Tcp),
            "rdma" => Ok(Transport::Rdma),
            other => Err(format!("'{other}' is no transport: choose shm, unix, tcp or rdma")),
        }
    }
}

/// The preferred transports by the role that connects to OSDs. OSDs that cannot be reached by them are reached by
/// TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Transports {
    /// OSDs among themselves.
    pub cluster: Transport,
    /// NBD servers, benches and the command line.
    pub client: Transport,
    /// S3 gateways.
    pub gateway: Transport,
}

impl Transports {
    /// Those that a cluster has from its foundation. The default is for clusters whose records name none.
    pub fn of_new_clusters() -> Self {
        Transports::all(Transport::SharedMemory)
    }

    /// The same for everyone.
    pub fn all(transport: Transport) -> Self {
        Transports { cluster: transport, client: transport, gateway: transport }
    }

    /// The preferred transport of connections that the holder of a key of this role makes to an OSD.
    pub fn of(&self, role: PeerRole) -> Transport {
        match role {
            PeerRole::Osd => self.cluster,
            PeerRole::Client => self.client,
            PeerRole::Gateway => self.gateway,
        }
    }

    /// The same but for one role.
    pub fn with(self, role: PeerRole, transport: Transport) -> Self {
        match role {
            PeerRole::Osd => Transports { cluster: transport, ..self },
            PeerRole::Client => Transports { client: transport, ..self },
            PeerRole::Gateway => Transports { gateway: transport, ..self },
        }
    }
}

/// A way to an OSD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// Transport of the frames.
    pub transport: Transport,
    /// `IP:PORT`, the name under which the OSD listens on its host, or `PROVIDER:IP:PORT` for RDMA.
    pub address: String,
    /// How the frames are protected.
    pub mode: FrameMode,
}

impl FramesRecord {
    /// The ways to an OSD for the holder of a key of this role, the preferred first. The last is TCP, which
    /// reaches every OSD.
    pub fn ways(&self, role: PeerRole, up: &OsdUpRecord) -> Vec<Way> {
        let way = |transport, address: &String| {
            let mode = self.modes.of(role, transport);
            Way { transport, address: address.clone(), mode }
        };
        let transport = self.transports.of(role);
        let preferred: &[Transport] = match transport {
            Transport::Rdma if !up.rdma_address.is_empty() => &[Transport::Rdma],
            Transport::Rdma | Transport::Tcp => &[],
            Transport::SharedMemory | Transport::Unix if up.local_name.is_empty() => &[],
            Transport::SharedMemory => &[Transport::SharedMemory, Transport::Unix],
            Transport::Unix => &[Transport::Unix],
        };
        let address = if transport == Transport::Rdma { &up.rdma_address } else { &up.local_name };
        let ways = preferred.iter().map(|transport| way(*transport, address));
        ways.chain([way(Transport::Tcp, &up.address)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OsdId;
    use crate::frames::FrameModes;

    #[test]
    fn names_are_the_same_everywhere() {
        for transport in Transport::ALL {
            assert_eq!(transport.to_string().parse(), Ok(transport));
            assert_eq!(serde_json::to_value(transport).unwrap(), transport.to_string());
        }
        assert!("ib".parse::<Transport>().unwrap_err().contains("shm, unix, tcp or rdma"));
    }

    #[test]
    fn every_osd_is_reached_by_tcp_at_last() {
        let text = r#"{"format":1,"id":3,"address":"10.0.0.1:7000","process_id":1,"incarnation":2}"#;
        let without: OsdUpRecord = serde_json::from_str(text).unwrap();
        assert_eq!(without.id, OsdId(3));
        let with = OsdUpRecord { local_name: "atoll-osd".into(), ..without.clone() };
        let modes = FrameModes { unix: Some(FrameMode::Crc), ..FrameModes::all(FrameMode::Secure128) };
        let transports = Transports::default().with(PeerRole::Gateway, Transport::Tcp);
        let frames = FramesRecord { transports, ..FramesRecord::from(modes) };
        let tcp = Way { transport: Transport::Tcp, address: "10.0.0.1:7000".into(), mode: FrameMode::Secure128 };
        let unix = Way { transport: Transport::Unix, address: "atoll-osd".into(), mode: FrameMode::Crc };
        assert_eq!(frames.ways(PeerRole::Client, &with), [unix.clone(), tcp.clone()]);
        let shared = FramesRecord {
            transports: transports.with(PeerRole::Osd, Transport::SharedMemory),
            ..FramesRecord::from(modes)
        };
        let shm = Way { transport: Transport::SharedMemory, ..unix.clone() };
        assert_eq!(shared.ways(PeerRole::Osd, &with), [shm, unix, tcp.clone()]);
        let over_rdma = FramesRecord { transports: Transports::all(Transport::Rdma), ..FramesRecord::from(modes) };
        assert_eq!(
            over_rdma.ways(PeerRole::Client, &with),
            std::slice::from_ref(&tcp),
            "it does not listen over RDMA"
        );
        let listening = OsdUpRecord { rdma_address: "verbs:10.0.0.1:7001".into(), ..with.clone() };
        let rdma =
            Way { transport: Transport::Rdma, address: "verbs:10.0.0.1:7001".into(), mode: FrameMode::Secure128 };
        assert_eq!(over_rdma.ways(PeerRole::Osd, &listening), [rdma, tcp.clone()]);
        let only_tcp = vec![tcp];
        assert_eq!(frames.ways(PeerRole::Gateway, &with), only_tcp, "it prefers TCP");
        assert_eq!(frames.ways(PeerRole::Client, &without), only_tcp, "an older OSD has no Unix socket");
    }
}
