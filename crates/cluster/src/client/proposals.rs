//! Signatures of those who change PGs: each change of a PG's record or target bears one, by the static key of the process
//! that proposes it. It is the last field of the record's JSON object, and covers the bytes before it as they are, with the
//! record's name and the revision that the change replaces.

use std::fmt;
use std::sync::Arc;

use atoll_wire::{KeyPair, SIGNATURE_BYTES, verify_signature};

use crate::keys;

const BEGIN: &[u8] = b",\"proposer\":\"";
const END: &[u8] = b"\"}";
const KEY_DIGITS: usize = 64;
const REVISION_DIGITS: usize = 16;
const LENGTH: usize = BEGIN.len() + KEY_DIGITS + 1 + REVISION_DIGITS + 1 + 2 * SIGNATURE_BYTES + END.len();
/// The use of static keys for signatures; nothing else is signed by them.
const PURPOSE: &[u8] = b"Atoll change of a PG 1";

/// Returns a static key, if there is one yet.
pub type StaticKey = Arc<dyn Fn() -> Option<KeyPair> + Send + Sync>;

/// Signs changes of PGs.
#[derive(Clone)]
pub struct Proposer(StaticKey);

impl fmt::Debug for Proposer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proposer").finish_non_exhaustive()
    }
}

impl From<KeyPair> for Proposer {
    fn from(key: KeyPair) -> Proposer {
        Proposer(Arc::new(move || Some(key.clone())))
    }
}

impl Proposer {
    /// One whose key is looked for when it signs.
    pub fn new(key: StaticKey) -> Proposer {
        Proposer(key)
    }

    /// Returns a record with its signature; the record itself if it is no JSON object with a field, or there is no key.
    pub(crate) fn sign(&self, key: &str, replaced: i64, record: Vec<u8>) -> Vec<u8> {
        let body = record.strip_suffix(b"}").filter(|body| body.first() == Some(&b'{') && body.len() > 1);
        let (Some(body), Some(pair)) = (body, (self.0)()) else { return record };
        let proof = pair.sign(&covered(key, replaced, &record));
        let text = format!("{}.{replaced:016x}.{}", hex::encode(pair.public()), hex::encode(proof));
        [body, BEGIN, text.as_bytes(), END].concat()
    }
}

/// Returns whether changes under this key are signed by their proposers.
pub(crate) fn is_proposed(key: &str) -> bool {
    key.starts_with(keys::PGS) || key.starts_with(keys::PG_TARGETS)
}

fn covered(key: &str, replaced: i64, record: &[u8]) -> Vec<u8> {
    let mut bytes = PURPOSE.to_vec();
    for part in [key.as_bytes(), &replaced.to_be_bytes(), record] {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

/// A record with the signature of its proposer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Proposal {
    /// The record.
    pub record: Vec<u8>,
    /// The static key that has signed it, in hexadecimal.
    pub public_key: String,
    /// The revision that it replaces; 0 if it is new.
    pub replaced: i64,
    proof: Vec<u8>,
}

impl Proposal {
    /// Divides a stored record; `None` if it has no signature.
    pub fn of(stored: &[u8]) -> Option<Proposal> {
        let (body, signature) = stored.split_at_checked(stored.len().checked_sub(LENGTH)?)?;
        let text = std::str::from_utf8(signature.strip_prefix(BEGIN)?.strip_suffix(END)?).ok()?;
        let mut parts = text.split('.');
        let mut part =
            |digits: usize| parts.next().filter(|part| part.len() == digits && part.bytes().all(is_digit));
        let public_key = part(KEY_DIGITS)?.to_owned();
        let replaced = i64::from_str_radix(part(REVISION_DIGITS)?, 16).ok()?;
        let proof = hex::decode(part(2 * SIGNATURE_BYTES)?).ok()?;
        Some(Proposal { record: [body, b"}"].concat(), public_key, replaced, proof })
    }

    /// Returns true if the holder of its key has signed it, under this name.
    pub fn is_signed(&self, key: &str) -> bool {
        let mut public = [0; 32];
        hex::decode_to_slice(&self.public_key, &mut public).is_ok()
            && verify_signature(&public, &covered(key, self.replaced, &self.record), &self.proof)
    }
}

fn is_digit(letter: u8) -> bool {
    letter.is_ascii_digit() || (b'a'..=b'f').contains(&letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "/atoll/pgs/1.0";
    const RECORD: &[u8] = br#"{"format":1,"epoch":3,"members":[1,2]}"#;

    fn proposer() -> Proposer {
        KeyPair::from_private([7; 32]).into()
    }

    #[test]
    fn a_signed_change_is_json_and_no_byte_of_it_can_change() {
        let stored = proposer().sign(KEY, 9, RECORD.to_vec());
        let json: serde_json::Value = serde_json::from_slice(&stored).unwrap();
        assert_eq!(json["members"], serde_json::json!([1, 2]));
        let found = Proposal::of(&stored).unwrap();
        assert_eq!((&found.record[..], found.replaced), (RECORD, 9));
        assert!(found.is_signed(KEY) && !found.is_signed("/atoll/pgs/1.1"));
        for position in 0..stored.len() {
            let mut altered = stored.clone();
            altered[position] ^= 1;
            assert!(!Proposal::of(&altered).is_some_and(|found| found.is_signed(KEY)), "byte {position}");
        }
    }

    #[test]
    fn what_is_no_record_stays_as_it_is() {
        for value in [&b""[..], b"{}", b"[1]", b"\xff"] {
            assert_eq!(proposer().sign(KEY, 0, value.to_vec()), value);
            assert_eq!(Proposal::of(value), None);
        }
        assert_eq!(Proposer::new(Arc::new(|| None)).sign(KEY, 0, RECORD.to_vec()), RECORD);
    }
}
