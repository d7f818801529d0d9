//! The bytes of a signature: the last field of a record's JSON object, always as long. The MAC covers the bytes before
//! it as they are, so no two readers can understand a signed record differently.

use atoll_cluster::Place;
use atoll_keys::SecretKey;
use aws_lc_rs::hmac;

const BEGIN: &[u8] = b",\"signed\":\"";
const END: &[u8] = b"\"}";
/// Hexadecimal digits of the key's id, of the version, of the creation's revision, and of the MAC.
const DIGITS: [usize; 4] = [16, 16, 16, 64];
/// Length of a signature within a record.
pub const SIGNATURE_BYTES: usize = BEGIN.len() + 16 + 1 + 16 + 1 + 16 + 1 + 64 + END.len();
/// Purpose of a MAC; nothing else is authenticated by the same keys.
const PURPOSE: &[u8] = b"signed record 1";

/// A key that signs.
pub(crate) struct MacKey {
    pub id: String,
    key: hmac::Key,
}

impl MacKey {
    pub fn new(id: &str, secret: &SecretKey) -> MacKey {
        MacKey { id: id.to_owned(), key: hmac::Key::new(hmac::HMAC_SHA256, secret.expose()) }
    }

    fn context(&self, place: &Place<'_>, record: &[u8]) -> hmac::Context {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(PURPOSE);
        for part in
            [place.key.as_bytes(), &place.version.to_be_bytes(), &place.create_revision.to_be_bytes(), record]
        {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        context
    }
}

/// Fields of a signature.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Signature<'a> {
    pub key_id: &'a str,
    version: i64,
    create_revision: i64,
    mac: Vec<u8>,
}

/// Signs a record for a place; `None` if it is no JSON object with a field.
pub(crate) fn seal(key: &MacKey, place: &Place<'_>, record: &[u8]) -> Option<Vec<u8>> {
    let body = record.strip_suffix(b"}").filter(|body| body.first() == Some(&b'{') && body.len() > 1)?;
    let mac = key.context(place, record).sign();
    let (version, created) = (place.version, place.create_revision);
    let text = format!("{}.{version:016x}.{created:016x}.{}", key.id, hex::encode(mac.as_ref()));
    Some([body, BEGIN, text.as_bytes(), END].concat())
}

/// Divides a stored record into the record and its signature; `None` if it has none.
pub(crate) fn split(stored: &[u8]) -> Option<(Vec<u8>, Signature<'_>)> {
    let (body, signature) = stored.split_at_checked(stored.len().checked_sub(SIGNATURE_BYTES)?)?;
    let text = std::str::from_utf8(signature.strip_prefix(BEGIN)?.strip_suffix(END)?).ok()?;
    let mut parts = text.split('.');
    let mut part = |digits: usize| {
        let is_digit = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
        parts.next().filter(|part| part.len() == digits && part.chars().all(is_digit))
    };
    let [id_digits, version_digits, created_digits, mac_digits] = DIGITS;
    let key_id = part(id_digits)?;
    let version = i64::from_str_radix(part(version_digits)?, 16).ok()?;
    let create_revision = i64::from_str_radix(part(created_digits)?, 16).ok()?;
    let mac = hex::decode(part(mac_digits)?).ok()?;
    Some(([body, b"}"].concat(), Signature { key_id, version, create_revision, mac }))
}

/// Returns a stored record without its signature, whatever that says.
pub fn without_signature(stored: &[u8]) -> Vec<u8> {
    split(stored).map_or_else(|| stored.to_vec(), |(record, _)| record)
}

/// Verifies a signature in the place where the record was found; the error is in words.
pub(crate) fn verify(
    key: &MacKey,
    place: &Place<'_>,
    record: &[u8],
    signature: &Signature<'_>,
) -> Result<(), &'static str> {
    let signed = Place { key: place.key, version: signature.version, create_revision: signature.create_revision };
    let context = key.context(&signed, record);
    // Signing again and comparing in constant time is what verifying is.
    if aws_lc_rs::constant_time::verify_slices_are_equal(context.sign().as_ref(), &signature.mac).is_err() {
        return Err("its signature is not of this content under this name");
    }
    if signature.version != place.version {
        return Err("its signature is of an earlier or later state of it: it was put back");
    }
    if signature.create_revision != place.create_revision {
        return Err("its signature is of a record that was removed: it was put back");
    }
    // A creation cannot be signed, since its revision is known only when it has happened.
    if place.version < 2 {
        return Err("it was created with its signature, which no holder of the keys does");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORD: &[u8] = br#"{"format":1,"name":"a","rights":["read"]}"#;

    fn key(byte: u8) -> MacKey {
        MacKey::new("0011223344556677", &SecretKey::from_bytes([byte; 32]))
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
        let stored = seal(&key(7), &place(3, 90), RECORD).unwrap();
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
        assert!(check(&seal(&key(8), &place(3, 90), RECORD).unwrap(), &place(3, 90)).is_err());
        assert!(seal(&key(7), &place(1, 1), b"{}").is_none() && seal(&key(7), &place(1, 1), b"7").is_none());
    }

    #[test]
    fn a_signature_holds_in_its_place_only() {
        let stored = seal(&key(7), &place(3, 90), RECORD).unwrap();
        for (version, created) in [(2, 90), (4, 90), (3, 89), (3, 91), (1, 90)] {
            assert!(check(&stored, &place(version, created)).is_err(), "{version}, {created}");
        }
        assert!(check(&stored, &Place { key: "/atoll/users/b", ..place(3, 90) }).is_err());
        // Nobody can know the revision of a creation, and so sign it.
        for create_revision in [1, 90, 91] {
            let created = seal(&key(7), &place(1, create_revision), RECORD).unwrap();
            for revision in [create_revision, create_revision + 1] {
                assert!(check(&created, &place(1, revision)).is_err(), "{create_revision}, {revision}");
            }
        }
    }

    /// Computed with Python's hmac, from docs/reference/formats.md.
    #[test]
    fn known_answer() {
        let stored = String::from_utf8(seal(&key(7), &place(1, 2), RECORD).unwrap()).unwrap();
        let (_, mac) = stored.trim_end_matches("\"}").rsplit_once('.').unwrap();
        assert_eq!(mac, "427f8fbbfa454443c5f8b89dcb40aea72976af4320f4e3756a47cc90a49c5b4c");
    }
}
