//! The hash functions of DH-HMAC-CHAP, and the values computed with them (NVM Express Base Specification 2.0,
//! section 8.13.5).

use aws_lc_rs::{digest, hmac};

/// A hash function, by its identifier in messages and in secrets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HashFunction {
    /// SHA-256.
    Sha256 = 1,
    /// SHA-384.
    Sha384 = 2,
    /// SHA-512.
    Sha512 = 3,
}

/// Bytes of the longest hash.
pub(super) const HASH_BYTES_MAX: usize = 64;

impl HashFunction {
    /// All of them, the strongest first.
    pub const ALL: [HashFunction; 3] = [HashFunction::Sha512, HashFunction::Sha384, HashFunction::Sha256];

    /// The one with this identifier.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| *hash as u8 == id)
    }

    /// Bytes of a hash.
    pub fn output_bytes(self) -> usize {
        match self {
            HashFunction::Sha256 => 32,
            HashFunction::Sha384 => 48,
            HashFunction::Sha512 => 64,
        }
    }

    /// The hash of bytes.
    pub(crate) fn digest(self, bytes: &[u8]) -> digest::Digest {
        let algorithm = match self {
            HashFunction::Sha256 => &digest::SHA256,
            HashFunction::Sha384 => &digest::SHA384,
            HashFunction::Sha512 => &digest::SHA512,
        };
        digest::digest(algorithm, bytes)
    }

    /// HMAC with this function, of parts one after the other.
    pub(crate) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> hmac::Tag {
        let algorithm = match self {
            HashFunction::Sha256 => hmac::HMAC_SHA256,
            HashFunction::Sha384 => hmac::HMAC_SHA384,
            HashFunction::Sha512 => hmac::HMAC_SHA512,
        };
        let mut context = hmac::Context::with_key(&hmac::Key::new(algorithm, key));
        parts.iter().for_each(|part| context.update(part));
        context.sign()
    }
}

/// The side that proves that it holds a secret.
#[derive(Clone, Copy)]
pub(super) enum Prover {
    Host,
    Controller,
}

/// Input of a response, which proves that its maker holds a secret.
pub(super) struct Proof<'a> {
    pub hash: HashFunction,
    /// Key of the secret for this prover ([`super::DhchapSecret::key_of`]).
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
