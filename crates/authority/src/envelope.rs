//! The bytes of a signature: the last field of a record's JSON object, always as long for its kind. The proof covers the
//! bytes before it as they are, so no two readers can understand a signed record differently.
//!
//! A proof is a MAC, which holders of the key verify, or an Ed25519 signature, which holders of the public key verify:
//! processes without the key service obey records of some kinds.

use atoll_cluster::{Place, kinds};
use atoll_keys::SecretKey;
use atoll_types::authority::AuthorityPublicKey;
use aws_lc_rs::hmac;
use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

const BEGIN: &[u8] = b",\"signed\":\"";
const END: &[u8] = b"\"}";
/// Hexadecimal digits of the key's id, of the version, and of the creation's revision.
const DIGITS: [usize; 3] = [16, 16, 16];
/// Bytes of a MAC, and of an Ed25519 signature.
const MAC_BYTES: usize = 32;
const PUBLIC_BYTES: usize = 64;
/// Length of a MAC within a record, with all that belongs to it.
pub const SIGNATURE_BYTES: usize = length(MAC_BYTES);
/// The uses of the keys; nothing else is authenticated by them.
const PURPOSE: &[u8] = b"signed record 1";
const PUBLIC_PURPOSE: &[u8] = b"signed record for all 1";
const SEED_PURPOSE: &[u8] = b"key of records for all 1";
const SUCCESSOR_PURPOSE: &[u8] = b"successor of a key 1";

const fn length(proof_bytes: usize) -> usize {
    BEGIN.len() + 16 + 1 + 16 + 1 + 16 + 1 + 2 * proof_bytes + END.len()
}

/// A key that signs: of 256 random bits, from which the pair for Ed25519 follows.
pub(crate) struct SigningKey {
    pub id: String,
    mac: hmac::Key,
    pair: Ed25519KeyPair,
}

impl SigningKey {
    pub fn new(id: &str, secret: &SecretKey) -> SigningKey {
        let mac = hmac::Key::new(hmac::HMAC_SHA256, secret.expose());
        let seed = hmac::sign(&mac, SEED_PURPOSE);
        let pair = Ed25519KeyPair::from_seed_unchecked(seed.as_ref()).expect("a seed has 32 bytes");
        SigningKey { id: id.to_owned(), mac, pair }
    }

    /// Returns its public half, with the word of the key before it.
    pub fn public(&self, before: Option<&SigningKey>) -> AuthorityPublicKey {
        let public_key = hex::encode(self.pair.public_key());
        let endorsement = before.map(|key| hex::encode(key.pair.sign(&successor(&self.id, &public_key))));
        AuthorityPublicKey { id: self.id.clone(), public_key, endorsement }
    }

    fn verify(&self, place: &Place<'_>, record: &[u8], signature: &Signature<'_>) -> bool {
        if signature.is_for_all() {
            let public = UnparsedPublicKey::new(&ED25519, self.pair.public_key());
            return public.verify(&covered(PUBLIC_PURPOSE, place, record), &signature.proof).is_ok();
        }
        hmac::verify(&self.mac, &covered(PURPOSE, place, record), &signature.proof).is_ok()
    }
}

fn successor(id: &str, public_key: &str) -> Vec<u8> {
    [SUCCESSOR_PURPOSE, b" ", id.as_bytes(), b" ", public_key.as_bytes()].concat()
}

/// The public half of a key, which verifies and cannot sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublicKey {
    pub id: String,
    bytes: Vec<u8>,
}

impl PublicKey {
    /// Takes one over; `None` if it is malformed.
    pub fn of(key: &AuthorityPublicKey) -> Option<PublicKey> {
        let bytes = hex::decode(&key.public_key).ok().filter(|bytes| bytes.len() == 32)?;
        let is_id = key.id.len() == DIGITS[0] && key.id.bytes().all(is_digit);
        is_id.then(|| PublicKey { id: key.id.clone(), bytes })
    }

    /// Reads the text of [`Self::to_text`].
    pub fn parse(text: &str) -> Option<PublicKey> {
        let (id, public_key) = text.split_once(':')?;
        PublicKey::of(&AuthorityPublicKey { id: id.into(), public_key: public_key.into(), endorsement: None })
    }

    /// One that verifies nothing.
    pub fn nobodys() -> PublicKey {
        PublicKey { id: String::new(), bytes: Vec::new() }
    }

    /// Its id and its bytes in hexadecimal, with a colon between them.
    pub fn to_text(&self) -> String {
        format!("{}:{}", self.id, hex::encode(&self.bytes))
    }

    /// Returns whether this key has signed that another one follows it.
    pub fn endorses(&self, next: &AuthorityPublicKey) -> bool {
        let Some(endorsement) = next.endorsement.as_ref().and_then(|text| hex::decode(text).ok()) else {
            return false;
        };
        let public = UnparsedPublicKey::new(&ED25519, &self.bytes);
        public.verify(&successor(&next.id, &next.public_key), &endorsement).is_ok()
    }

    /// Verifies a signature in the place where the record was found; an error is its fault in words.
    pub fn verify(&self, place: &Place<'_>, record: &[u8], signature: &Signature<'_>) -> Result<(), &'static str> {
        if !signature.is_for_all() {
            return Err("its signature is one for holders of the keys only");
        }
        let public = UnparsedPublicKey::new(&ED25519, &self.bytes);
        let covered = covered(PUBLIC_PURPOSE, &signature.place(place), record);
        public.verify(&covered, &signature.proof).map_err(|_| NOT_OF_THIS)?;
        signature.check_place(place)
    }
}

/// Returns the bytes that a proof covers.
fn covered(purpose: &[u8], place: &Place<'_>, record: &[u8]) -> Vec<u8> {
    let mut bytes = purpose.to_vec();
    for part in [place.key.as_bytes(), &place.version.to_be_bytes(), &place.create_revision.to_be_bytes(), record]
    {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

const NOT_OF_THIS: &str = "its signature is not of this content under this name";

/// Fields of a signature.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Signature<'a> {
    pub key_id: &'a str,
    version: i64,
    create_revision: i64,
    proof: Vec<u8>,
}

impl Signature<'_> {
    /// Returns true if the public key verifies it.
    pub fn is_for_all(&self) -> bool {
        self.proof.len() == PUBLIC_BYTES
    }

    /// The place that it is made for.
    fn place<'a>(&self, found: &Place<'a>) -> Place<'a> {
        Place { key: found.key, version: self.version, create_revision: self.create_revision }
    }

    fn check_place(&self, found: &Place<'_>) -> Result<(), &'static str> {
        if self.version != found.version {
            return Err("its signature is of an earlier or later state of it: it was put back");
        }
        if self.create_revision != found.create_revision {
            return Err("its signature is of a record that was removed: it was put back");
        }
        // A creation cannot be signed, since its revision is known only when it has happened.
        if found.version < 2 {
            return Err("it was created with its signature, which no holder of the keys does");
        }
        Ok(())
    }
}

/// Signs a record for a place, for all if they are to verify its kind; `None` if it is no JSON object with a field.
pub(crate) fn seal(key: &SigningKey, place: &Place<'_>, record: &[u8], has_public: bool) -> Option<Vec<u8>> {
    let body = record.strip_suffix(b"}").filter(|body| body.first() == Some(&b'{') && body.len() > 1)?;
    let proof = if has_public && kinds::is_for_all(place.key) {
        hex::encode(key.pair.sign(&covered(PUBLIC_PURPOSE, place, record)))
    } else {
        hex::encode(hmac::sign(&key.mac, &covered(PURPOSE, place, record)))
    };
    let (version, created) = (place.version, place.create_revision);
    let text = format!("{}.{version:016x}.{created:016x}.{proof}", key.id);
    Some([body, BEGIN, text.as_bytes(), END].concat())
}

fn is_digit(letter: u8) -> bool {
    letter.is_ascii_digit() || (b'a'..=b'f').contains(&letter)
}

/// Divides a stored record into the record and its signature; `None` if it has none.
pub(crate) fn split(stored: &[u8]) -> Option<(Vec<u8>, Signature<'_>)> {
    split_at(stored, MAC_BYTES).or_else(|| split_at(stored, PUBLIC_BYTES))
}

fn split_at(stored: &[u8], proof_bytes: usize) -> Option<(Vec<u8>, Signature<'_>)> {
    let (body, signature) = stored.split_at_checked(stored.len().checked_sub(length(proof_bytes))?)?;
    let text = std::str::from_utf8(signature.strip_prefix(BEGIN)?.strip_suffix(END)?).ok()?;
    let mut parts = text.split('.');
    let mut part = |digits: usize| parts.next().filter(|part| part.len() == digits && part.bytes().all(is_digit));
    let [id_digits, version_digits, created_digits] = DIGITS;
    let key_id = part(id_digits)?;
    let version = i64::from_str_radix(part(version_digits)?, 16).ok()?;
    let create_revision = i64::from_str_radix(part(created_digits)?, 16).ok()?;
    let proof = hex::decode(part(2 * proof_bytes)?).ok()?;
    Some(([body, b"}"].concat(), Signature { key_id, version, create_revision, proof }))
}

/// Returns a stored record without its signature, whatever that says.
pub fn without_signature(stored: &[u8]) -> Vec<u8> {
    split(stored).map_or_else(|| stored.to_vec(), |(record, _)| record)
}

/// Verifies a signature in the place where the record was found; an error is its fault in words.
pub(crate) fn verify(
    key: &SigningKey,
    place: &Place<'_>,
    record: &[u8],
    signature: &Signature<'_>,
) -> Result<(), &'static str> {
    if !key.verify(&signature.place(place), record, signature) {
        return Err(NOT_OF_THIS);
    }
    signature.check_place(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &[u8] = br#"{"format":1,"name":"a","rights":["read"]}"#;

    fn key(byte: u8) -> SigningKey {
        SigningKey::new("0011223344556677", &SecretKey::from_bytes([byte; 32]))
    }

    fn place(version: i64, create_revision: i64) -> Place<'static> {
        Place { key: "/atoll/users/a", version, create_revision }
    }

    fn check(stored: &[u8], place: &Place<'_>) -> Result<Vec<u8>, &'static str> {
        let (record, signature) = split(stored).ok_or("it has no signature")?;
        verify(&key(7), place, &record, &signature).map(|()| record)
    }

    #[test]
    fn a_signed_record_is_json_and_no_byte_of_it_can_change() {
        let stored = seal(&key(7), &place(3, 90), RECORD, true).unwrap();
        assert_eq!(stored.len(), RECORD.len() - 1 + SIGNATURE_BYTES);
        let json: serde_json::Value = serde_json::from_slice(&stored).unwrap();
        assert_eq!(json["name"], "a");
        assert_eq!(check(&stored, &place(3, 90)).unwrap(), RECORD);
        assert_eq!(without_signature(&stored), RECORD);
        for position in 0..stored.len() {
            for bit in 0..8 {
                let mut changed = stored.clone();
                changed[position] ^= 1 << bit;
                let is_id = (RECORD.len() - 1 + BEGIN.len()..).take(16).any(|at| at == position);
                // The id only says which key it is.
                assert!(is_id || check(&changed, &place(3, 90)).is_err(), "byte {position}, bit {bit}");
            }
        }
        assert!(check(&seal(&key(8), &place(3, 90), RECORD, true).unwrap(), &place(3, 90)).is_err());
        assert!(
            seal(&key(7), &place(1, 1), b"{}", true).is_none()
                && seal(&key(7), &place(1, 1), b"7", true).is_none()
        );
    }

    #[test]
    fn a_signature_holds_in_its_place_only() {
        let stored = seal(&key(7), &place(3, 90), RECORD, true).unwrap();
        for (version, created) in [(2, 90), (4, 90), (3, 89), (3, 91), (1, 90)] {
            assert!(check(&stored, &place(version, created)).is_err(), "{version}, {created}");
        }
        assert!(check(&stored, &Place { key: "/atoll/users/b", ..place(3, 90) }).is_err());
        // Nobody can know the revision of a creation, and so sign it.
        for create_revision in [1, 90, 91] {
            let created = seal(&key(7), &place(1, create_revision), RECORD, true).unwrap();
            for revision in [create_revision, create_revision + 1] {
                assert!(check(&created, &place(1, revision)).is_err(), "{create_revision}, {revision}");
            }
        }
    }

    /// Computed with Python's hmac, from docs/reference/formats.md.
    #[test]
    fn known_answer() {
        let stored = String::from_utf8(seal(&key(7), &place(1, 2), RECORD, true).unwrap()).unwrap();
        let (_, mac) = stored.trim_end_matches("\"}").rsplit_once('.').unwrap();
        assert_eq!(mac, "427f8fbbfa454443c5f8b89dcb40aea72976af4320f4e3756a47cc90a49c5b4c");
    }

    #[test]
    fn the_public_key_verifies_what_all_obey_and_nothing_else() {
        let place = |version, create_revision| Place { key: "/atoll/pools/1", version, create_revision };
        let public = PublicKey::of(&key(7).public(None)).unwrap();
        assert_eq!(PublicKey::parse(&public.to_text()), Some(public.clone()));
        let check = |stored: &[u8], place: &Place<'_>| {
            let (record, signature) = split(stored).ok_or("it has no signature")?;
            public.verify(place, &record, &signature).map(|()| record)
        };
        let stored = seal(&key(7), &place(3, 90), RECORD, true).unwrap();
        assert_eq!(stored.len(), RECORD.len() - 1 + length(PUBLIC_BYTES));
        assert_eq!(check(&stored, &place(3, 90)).unwrap(), RECORD);
        let (record, signature) = split(&stored).unwrap();
        verify(&key(7), &place(3, 90), &record, &signature).unwrap();
        assert!(verify(&key(8), &place(3, 90), &record, &signature).is_err());
        for position in (0..stored.len()).filter(|at| *at < RECORD.len() + BEGIN.len() || *at > stored.len() - 20)
        {
            let mut changed = stored.clone();
            changed[position] ^= 1;
            let is_id = (RECORD.len() - 1 + BEGIN.len()..).take(16).any(|at| at == position);
            assert!(is_id || check(&changed, &place(3, 90)).is_err(), "byte {position}");
        }
        for (version, created) in [(2, 90), (4, 90), (3, 89), (1, 90)] {
            assert!(check(&stored, &place(version, created)).is_err());
        }
        let of_holders = seal(&key(7), &place(3, 90), RECORD, false).unwrap();
        assert!(check(&of_holders, &place(3, 90)).is_err(), "a MAC is nothing to it");
        assert!(check(&seal(&key(8), &place(3, 90), RECORD, true).unwrap(), &place(3, 90)).is_err());
    }

    #[test]
    fn a_key_names_its_successor() {
        let [first, second, other] = [7, 8, 9].map(key);
        let public = PublicKey::of(&first.public(None)).unwrap();
        let next = second.public(Some(&first));
        assert!(public.endorses(&next));
        for wrong in [
            second.public(None),
            second.public(Some(&other)),
            AuthorityPublicKey { public_key: other.public(None).public_key, ..next.clone() },
            AuthorityPublicKey { id: "0000000000000000".into(), ..next },
        ] {
            assert!(!public.endorses(&wrong));
        }
    }
}
