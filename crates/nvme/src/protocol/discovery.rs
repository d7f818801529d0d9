//! The discovery log (NVMe over Fabrics 1.1, section 5.3).

use std::net::SocketAddr;

use bytes::{BufMut, BytesMut};

use super::types::Nqn;

/// The subsystem that lists all others.
pub const DISCOVERY_SUBSYSTEM: &str = "nqn.2014-08.org.nvmexpress.discovery";
const RECORD_BYTES: usize = 1024;
const TRANSPORT_TCP: u8 = 3;
const FAMILY_IPV4: u8 = 1;
const FAMILY_IPV6: u8 = 2;
const SUBSYSTEM_NVM: u8 = 2;
/// Offset of an entry's transport security.
const TRANSPORT_SPECIFIC_AT: usize = 768;
/// A secure channel is needed, or not.
const REQUIREMENTS_SECURE: u8 = 1;
const REQUIREMENTS_NONE: u8 = 2;
/// Security of NVMe/TCP (NVMe/TCP Transport Specification 1.0, section 3.1.1).
const SECURITY_NONE: u8 = 0;
const SECURITY_TLS_1_3: u8 = 2;

/// Policy for TLS of a host's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelSecurity {
    /// It has no key.
    None,
    /// It may.
    Offered,
    /// It must.
    Required,
}

/// A subsystem, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// The subsystem.
    pub subsystem: Nqn,
    /// Where it is served.
    pub address: SocketAddr,
    /// How.
    pub security: ChannelSecurity,
}

/// Appends the log page.
pub(super) fn put_discovery(bytes: &mut BytesMut, generation: u64, entries: &[DiscoveryEntry]) {
    bytes.put_u64_le(generation);
    bytes.put_u64_le(entries.len() as u64);
    bytes.resize(RECORD_BYTES, 0);
    for entry in entries {
        let start = bytes.len();
        bytes.put_u8(TRANSPORT_TCP);
        bytes.put_u8(if entry.address.is_ipv4() { FAMILY_IPV4 } else { FAMILY_IPV6 });
        bytes.put_u8(SUBSYSTEM_NVM);
        let (requirements, security) = match entry.security {
            ChannelSecurity::None => (REQUIREMENTS_NONE, SECURITY_NONE),
            ChannelSecurity::Offered => (REQUIREMENTS_NONE, SECURITY_TLS_1_3),
            ChannelSecurity::Required => (REQUIREMENTS_SECURE, SECURITY_TLS_1_3),
        };
        bytes.put_u8(requirements);
        // The port is the first; the controller is any.
        bytes.put_u16_le(1);
        bytes.put_u16_le(0xFFFF);
        bytes.put_u16_le(32);
        put_text(bytes, start + 32, &entry.address.port().to_string(), 32);
        put_text(bytes, start + 256, &entry.subsystem, 0);
        put_text(bytes, start + 512, &entry.address.ip().to_string(), 256);
        bytes.resize(start + TRANSPORT_SPECIFIC_AT, 0);
        bytes.put_u8(security);
        bytes.resize(start + RECORD_BYTES, 0);
    }
}

/// Text at an offset. Fields that are ASCII strings of a given length are filled with spaces; names end with zeros.
fn put_text(bytes: &mut BytesMut, at: usize, text: &str, spaces_to: usize) {
    bytes.resize(at, 0);
    bytes.put_slice(text.as_bytes());
    if text.len() < spaces_to {
        bytes.resize(at + spaces_to, b' ');
    }
}
