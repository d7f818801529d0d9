//! Messages between a probe and a responder. Both ends are of one release or say that they are not: nothing else
//! depends on it, so it has no other versions.
//!
//! The probe connects by TCP and sends a greeting. The responder answers with the same greeting and a
//! token, and then each frame with the same frame, in which it has put its clock. To datagrams on
//! the same port that begin with the token of a connection from the same address it answers with
//! the same datagram. Nothing else is answered.

/// Where a responder listens by default.
pub const PORT_DEFAULT: u16 = 7477;

/// The first bytes in both directions, with the version of all this.
pub(super) const GREETING: [u8; 8] = *b"ATOLLPF1";
pub(super) const TOKEN_BYTES: usize = 16;
/// As much as a small message of Atoll's own.
pub(super) const FRAME_BYTES: usize = 64;
/// Larger datagrams than any card sends.
pub(super) const DATAGRAM_BYTES_MAX: usize = 65_536;

/// Beginning of a connection's datagrams, so that no others are answered.
pub(super) type Token = [u8; TOKEN_BYTES];

/// A frame: its number, the responder's clock (0 in questions), and padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub number: u64,
    pub unix_ns: u64,
}

impl Frame {
    pub fn encode(self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.unix_ns.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8; FRAME_BYTES]) -> Self {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        Frame { number: word(0), unix_ns: word(8) }
    }
}

/// The clock of this host.
pub(super) fn unix_ns() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back() {
        let frame = Frame { number: 7, unix_ns: u64::MAX - 1 };
        assert_eq!(Frame::decode(&frame.encode()), frame);
    }
}
