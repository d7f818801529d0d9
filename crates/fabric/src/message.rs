//! Messages of a link: the greeting while the ends connect, then messages. All numbers are little-endian; the
//! tables are in docs/internals/rdma.md.

use crate::error::FabricError;

/// Largest size of a message with its header; the size of the posted buffers.
pub const MESSAGE_BYTES_MAX: usize = 8192;
/// Bytes before everything else in a message.
pub const HEADER_BYTES: usize = 16;
/// Bytes of a reference, with which a message ends that has one.
pub const REFERENCE_BYTES: usize = 20;
/// Bytes of a greeting. RDMA-CM carries 56 at least.
pub const GREETING_BYTES: usize = 16;
/// Largest number of bytes of the stream in one reference.
pub const REFERRED_BYTES_MAX: usize = 64 << 20;
/// No side may have more messages under way than this, whatever the other grants.
pub const CREDITS_MAX: u32 = 1024;

const MAGIC: [u8; 4] = *b"AFAB";
const VERSION: u16 = 1;
const HAS_REFERENCE: u16 = 1;

fn broken<T>(what: impl Into<String>) -> Result<T, FabricError> {
    Err(FabricError::Peer(what.into()))
}

/// Returns a field of `N` bytes; the caller has checked the length.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("a range of N bytes has N bytes")
}

/// Private data of the connection, from each side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Token with which the other side begins its messages. It is secret.
    pub token: u64,
    /// How many messages the other side may send.
    pub credits: u16,
}

impl Greeting {
    /// As bytes.
    pub fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.credits.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.token.to_le_bytes());
        bytes
    }

    /// From the private data, which a transport may have padded.
    pub fn decode(bytes: &[u8]) -> Result<Self, FabricError> {
        if bytes.len() < GREETING_BYTES || bytes[..4] != MAGIC {
            return broken("it does not greet as Atoll does");
        }
        let version = u16::from_le_bytes(field(bytes, 4));
        if version != VERSION {
            return broken(format!("it speaks version {version} of the fabric protocol, not {VERSION}"));
        }
        let credits = u16::from_le_bytes(field(bytes, 6));
        if credits < 4 || u32::from(credits) > CREDITS_MAX {
            return broken(format!("it grants {credits} messages at first"));
        }
        Ok(Greeting { token: u64::from_le_bytes(field(bytes, 8)), credits })
    }
}

/// Bytes of the stream that the receiver reads from the sender's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Where they are, as the device counts.
    pub address: u64,
    /// The key to the memory.
    pub key: u64,
    /// How many; at most [`REFERRED_BYTES_MAX`].
    pub length: u32,
}

/// A message without its bytes of the stream: those follow the header, and precede the referred bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The receiver's token.
    pub token: u64,
    /// Number of further messages that the receiver may send.
    pub credits: u16,
    /// Number of further references that are read; their memory is the receiver's again.
    pub done: u32,
    /// Further bytes of the stream that this message stands for.
    pub reference: Option<Reference>,
}

impl Head {
    /// Writes it around the bytes of the stream, which are in `buffer` from [`HEADER_BYTES`] to `end`; gives the length
    /// of the message.
    pub fn encode(&self, buffer: &mut [u8], end: usize) -> usize {
        buffer[..8].copy_from_slice(&self.token.to_le_bytes());
        buffer[8..10].copy_from_slice(&self.credits.to_le_bytes());
        let flags = if self.reference.is_some() { HAS_REFERENCE } else { 0 };
        buffer[10..12].copy_from_slice(&flags.to_le_bytes());
        buffer[12..16].copy_from_slice(&self.done.to_le_bytes());
        let Some(reference) = self.reference else { return end };
        let bytes = &mut buffer[end..end + REFERENCE_BYTES];
        bytes[..8].copy_from_slice(&reference.address.to_le_bytes());
        bytes[8..16].copy_from_slice(&reference.key.to_le_bytes());
        bytes[16..].copy_from_slice(&reference.length.to_le_bytes());
        end + REFERENCE_BYTES
    }

    /// The token of a message, if it is long enough to have one.
    pub fn token_of(message: &[u8]) -> Option<u64> {
        (message.len() >= HEADER_BYTES).then(|| u64::from_le_bytes(field(message, 0)))
    }

    /// Reads a message; gives where its bytes of the stream end, too.
    pub fn decode(message: &[u8]) -> Result<(Self, usize), FabricError> {
        let Some(token) = Head::token_of(message) else {
            return broken(format!("a message has {} bytes", message.len()));
        };
        let flags = u16::from_le_bytes(field(message, 10));
        let mut head = Head {
            token,
            credits: u16::from_le_bytes(field(message, 8)),
            done: u32::from_le_bytes(field(message, 12)),
            reference: None,
        };
        match flags {
            0 => return Ok((head, message.len())),
            HAS_REFERENCE if message.len() >= HEADER_BYTES + REFERENCE_BYTES => {}
            HAS_REFERENCE => return broken("a message ends in its reference"),
            _ => return broken(format!("a message has flags {flags:#x}")),
        }
        let end = message.len() - REFERENCE_BYTES;
        let reference = Reference {
            address: u64::from_le_bytes(field(message, end)),
            key: u64::from_le_bytes(field(message, end + 8)),
            length: u32::from_le_bytes(field(message, end + 16)),
        };
        let length = reference.length as usize;
        if length == 0 || length > REFERRED_BYTES_MAX || reference.address.checked_add(length as u64).is_none() {
            return broken(format!("it refers to {length} bytes at {:#x}", reference.address));
        }
        head.reference = Some(reference);
        Ok((head, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_greetings_and_heads_decode() {
        let greeting = Greeting { token: 0x1122_3344_5566_7788, credits: 4 };
        let mut padded = greeting.encode().to_vec();
        padded.extend([0; 40]);
        assert_eq!(Greeting::decode(&padded).unwrap(), greeting);
        for reference in [None, Some(Reference { address: 7, key: u64::MAX, length: 4 << 20 })] {
            let head = Head { token: 5, credits: 12, done: 3, reference };
            let mut buffer = [0xee; 64];
            let length = head.encode(&mut buffer, 20);
            assert_eq!(Head::decode(&buffer[..length]).unwrap(), (head, 20));
            assert_eq!(buffer[16..20], [0xee; 4], "bytes of the stream");
        }
    }

    #[test]
    fn invalid_greetings_and_heads_are_refused() {
        assert!(Greeting::decode(b"GET / HTTP/1.1\r\n").is_err());
        let greeting = Greeting { token: 1, credits: 4 }.encode();
        for (at, value) in [(4, 9), (6, 3), (7, 0xff)] {
            let mut wrong = greeting;
            wrong[at] = value;
            assert!(matches!(Greeting::decode(&wrong), Err(FabricError::Peer(_))), "byte {at}");
        }
        assert!(Greeting::decode(&greeting[..15]).is_err());

        let head = |address, length| {
            let head =
                Head { token: 1, credits: 0, done: 0, reference: Some(Reference { address, key: 0, length }) };
            let mut buffer = [0; 36];
            head.encode(&mut buffer, HEADER_BYTES);
            Head::decode(&buffer)
        };
        assert!(head(0, 1).is_ok());
        assert!(head(0, 0).is_err());
        assert!(head(0, REFERRED_BYTES_MAX as u32 + 1).is_err());
        assert!(head(u64::MAX, 1).is_err(), "it would end behind the last address");
        let mut flags = [0; 36];
        flags[10] = 2;
        assert!(Head::decode(&flags).is_err());
        flags[10] = 1;
        assert!(Head::decode(&flags[..35]).is_err());
        assert!(Head::decode(&flags[..15]).is_err());
    }
}
