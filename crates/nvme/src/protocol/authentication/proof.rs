//! Values by which both sides prove that they hold a secret (NVM Express Base Specification 2.0, section 8.13.5).

use atoll_credentials::nvme::HashFunction;
use aws_lc_rs::hmac;

/// Bytes of the longest hash.
pub(super) const HASH_BYTES_MAX: usize = 64;

/// The side that proves that it holds a secret.
#[derive(Clone, Copy)]
pub(super) enum Prover {
    Host,
    Controller,
}

/// Input of a response, which proves that its maker holds a secret.
pub(super) struct Proof<'a> {
    pub hash: HashFunction,
    /// Key of the secret for this prover ([`atoll_credentials::nvme::DhchapSecret::key_of`]).
    pub key: &'a [u8],
    /// The challenge; with a DH group the augmented one.
    pub challenge: &'a [u8],
    pub sequence: u32,
    pub transaction: u16,
    pub host: &'a str,
    pub subsystem: &'a str,
}

impl Proof<'_> {
    /// The response to the challenge (section 8.13.5.5).
    pub fn response(&self, prover: Prover) -> hmac::Tag {
        let (text, own, other) = match prover {
            Prover::Host => (&b"HostHost"[..], self.host, self.subsystem),
            Prover::Controller => (&b"Controller"[..], self.subsystem, self.host),
        };
        let (sequence, transaction) = (self.sequence.to_le_bytes(), self.transaction.to_le_bytes());
        // SC_C is 0: there is no secure channel that this would be a part of.
        let parts = [self.challenge, &sequence, &transaction, &[0], text, own.as_bytes(), &[0], other.as_bytes()];
        self.hash.hmac(self.key, &parts)
    }
}

/// Returns a challenge augmented with the result of a DH exchange (section 8.13.5.4).
pub(super) fn augmented(hash: HashFunction, session_key: &[u8], challenge: &[u8]) -> hmac::Tag {
    hash.hmac(hash.digest(session_key).as_ref(), &[challenge])
}
