//! The messages as bytes (NVM Express Base Specification 2.0, sections 8.13.4 and 8.13.5).

use atoll_credentials::nvme::HashFunction;
use bytes::{BufMut, BytesMut};

use super::ffdhe::DhGroup;
use crate::protocol::pdu::{u16_at, u32_at};

/// SECP, SPSP0 and SPSP1 of both commands (section 8.13.2).
pub(in crate::protocol) const SECURITY_PROTOCOL: u8 = 0xE9;
pub(in crate::protocol) const SECURITY_SPECIFIC: [u8; 2] = [1, 1];
/// More than any message has, in bytes: a reply with a value of the largest group.
pub(in crate::protocol) const MESSAGE_BYTES_MAX: usize = 4096;

/// AUTH_TYPE.
mod kind {
    pub const COMMON: u8 = 0;
    pub const DHCHAP: u8 = 1;
}

/// AUTH_ID.
mod id {
    pub const NEGOTIATE: u8 = 0x00;
    pub const CHALLENGE: u8 = 0x01;
    pub const REPLY: u8 = 0x02;
    pub const SUCCESS1: u8 = 0x03;
    pub const SUCCESS2: u8 = 0x04;
    pub const FAILURE2: u8 = 0xF0;
    pub const FAILURE1: u8 = 0xF1;
}

/// AUTH_ID of DH-HMAC-CHAP in a descriptor of protocols.
const PROTOCOL_DHCHAP: u8 = 1;
const NEGOTIATE_BYTES: usize = 8;
const DESCRIPTOR_BYTES: usize = 64;
const DESCRIPTORS_MAX: usize = 32;
/// Hash functions begin here in a descriptor, DH groups behind as many places.
const DESCRIPTOR_LISTS: usize = 4;
const LIST_BYTES: usize = 30;
const REPLY_BYTES: usize = 16;
const SUCCESS2_BYTES: usize = 16;
const FAILURE_BYTES: usize = 8;
const REASON_FAILED: u8 = 1;

/// Reasons for a failed authentication, as messages have them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Failure {
    /// A response is wrong, or cannot be given.
    #[error("a response is not that of the secret")]
    Authentication = 1,
    /// No protocol that the host names is known here.
    #[error("the host does not know DH-HMAC-CHAP")]
    ProtocolNotUsable = 2,
    /// A secure channel is asked for, which there is not.
    #[error("the host wants a secure channel")]
    SecureChannelMismatch = 3,
    /// No hash function in common.
    #[error("there is no hash function that both know")]
    HashNotUsable = 4,
    /// No DH group in common.
    #[error("there is no DH group that both know")]
    GroupNotUsable = 5,
    /// A message does not have its form.
    #[error("a message of the host is malformed")]
    IncorrectPayload = 6,
    /// It is not the turn of this message.
    #[error("a message of the host is not the one that was due")]
    IncorrectMessage = 7,
}

/// A message of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HostMessage {
    Negotiate(Negotiate),
    Reply(Reply),
    Success2,
    /// The host has given up.
    Failure2,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Negotiate {
    /// SC_C.
    pub secure_channel: u8,
    pub knows_dhchap: bool,
    /// Those that are known here, too.
    pub hashes: Vec<HashFunction>,
    pub groups: Vec<DhGroup>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub response: Vec<u8>,
    /// If the controller is to prove itself.
    pub challenge: Option<Vec<u8>>,
    pub sequence: u32,
    /// Empty without a group.
    pub public_value: Vec<u8>,
}

/// The number of a message's transaction (T_ID), if it is long enough to have one.
pub(super) fn transaction(bytes: &[u8]) -> Option<u16> {
    (bytes.len() >= FAILURE_BYTES).then(|| u16_at(bytes, 4))
}

/// A message, with the number of its transaction.
pub(super) fn read(bytes: &[u8]) -> Result<(u16, HostMessage), Failure> {
    if bytes.len() < FAILURE_BYTES || u16_at(bytes, 2) != 0 {
        return Err(Failure::IncorrectPayload);
    }
    let message = match (bytes[0], bytes[1]) {
        (kind::COMMON, id::NEGOTIATE) => read_negotiate(bytes).map(HostMessage::Negotiate),
        (kind::DHCHAP, id::REPLY) => read_reply(bytes).map(HostMessage::Reply),
        (kind::DHCHAP, id::SUCCESS2) => (bytes.len() == SUCCESS2_BYTES).then_some(HostMessage::Success2),
        (kind::COMMON, id::FAILURE2) => (bytes.len() == FAILURE_BYTES).then_some(HostMessage::Failure2),
        _ => return Err(Failure::IncorrectMessage),
    };
    Ok((u16_at(bytes, 4), message.ok_or(Failure::IncorrectPayload)?))
}

fn read_negotiate(bytes: &[u8]) -> Option<Negotiate> {
    let count = usize::from(bytes[7]);
    let has_its_length = bytes.len() == NEGOTIATE_BYTES + count * DESCRIPTOR_BYTES;
    if !(1..=DESCRIPTORS_MAX).contains(&count) || !has_its_length {
        return None;
    }
    let mut descriptors = bytes[NEGOTIATE_BYTES..].chunks_exact(DESCRIPTOR_BYTES);
    let mut negotiate =
        Negotiate { secure_channel: bytes[6], knows_dhchap: false, hashes: Vec::new(), groups: Vec::new() };
    let Some(descriptor) = descriptors.find(|descriptor| descriptor[0] == PROTOCOL_DHCHAP) else {
        return Some(negotiate);
    };
    let (hash_count, group_count) = (usize::from(descriptor[2]), usize::from(descriptor[3]));
    if hash_count > LIST_BYTES || group_count > LIST_BYTES {
        return None;
    }
    let hashes = &descriptor[DESCRIPTOR_LISTS..][..hash_count];
    let groups = &descriptor[DESCRIPTOR_LISTS + LIST_BYTES..][..group_count];
    negotiate.knows_dhchap = true;
    negotiate.hashes = hashes.iter().filter_map(|id| HashFunction::from_id(*id)).collect();
    negotiate.groups = groups.iter().filter_map(|id| DhGroup::from_id(*id)).collect();
    Some(negotiate)
}

fn read_reply(bytes: &[u8]) -> Option<Reply> {
    let fixed = bytes.get(..REPLY_BYTES)?;
    let (hash_bytes, public_bytes) = (usize::from(fixed[6]), usize::from(u16_at(fixed, 10)));
    let rest = &bytes[REPLY_BYTES..];
    if rest.len() != 2 * hash_bytes + public_bytes {
        return None;
    }
    let (response, rest) = rest.split_at(hash_bytes);
    let (challenge, public_value) = rest.split_at(hash_bytes);
    Some(Reply {
        response: response.to_vec(),
        challenge: (fixed[8] & 1 != 0).then(|| challenge.to_vec()),
        sequence: u32_at(fixed, 12),
        public_value: public_value.to_vec(),
    })
}

fn begin(kind: u8, id: u8, transaction: u16) -> BytesMut {
    let mut bytes = BytesMut::with_capacity(MESSAGE_BYTES_MAX);
    bytes.put_slice(&[kind, id, 0, 0]);
    bytes.put_u16_le(transaction);
    bytes
}

/// Challenge for the host.
pub(super) struct Challenge<'a> {
    pub hash: HashFunction,
    pub group: DhGroup,
    pub sequence: u32,
    /// As long as a hash.
    pub value: &'a [u8],
    /// Empty without a group.
    pub public_value: &'a [u8],
}

impl Challenge<'_> {
    pub fn write(&self, transaction: u16) -> BytesMut {
        let mut bytes = begin(kind::DHCHAP, id::CHALLENGE, transaction);
        bytes.put_slice(&[self.value.len() as u8, 0, self.hash as u8, self.group as u8]);
        bytes.put_u16_le(self.public_value.len() as u16);
        bytes.put_u32_le(self.sequence);
        bytes.put_slice(self.value);
        bytes.put_slice(self.public_value);
        bytes
    }
}

/// The host has proved itself; with the controller's proof, if that was asked for.
pub(super) fn success1(transaction: u16, hash: HashFunction, response: Option<&[u8]>) -> BytesMut {
    let mut bytes = begin(kind::DHCHAP, id::SUCCESS1, transaction);
    bytes.put_slice(&[hash.output_bytes() as u8, 0, u8::from(response.is_some())]);
    bytes.put_bytes(0, 7);
    match response {
        Some(response) => bytes.put_slice(response),
        None => bytes.put_bytes(0, hash.output_bytes()),
    }
    bytes
}

/// The authentication has failed.
pub(super) fn failure1(transaction: u16, failure: Failure) -> BytesMut {
    let mut bytes = begin(kind::COMMON, id::FAILURE1, transaction);
    bytes.put_slice(&[REASON_FAILED, failure as u8]);
    bytes
}
