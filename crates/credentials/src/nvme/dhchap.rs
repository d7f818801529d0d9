//! Secrets of hosts and controllers, and their text `DHHC-1:HH:BASE64:` (NVM Express Base Specification 2.0, section
//! 8.13.5.8).

use atoll_keys::fill_random;
use zeroize::Zeroizing;

use super::hash::HashFunction;
use super::interchange::{self, InterchangeError};

const PREFIX: &str = "DHHC-1";
/// Label in the derivation of a key from a secret.
const KEY_LABEL: &[u8] = b"NVMe-over-Fabrics";
/// How long secrets may be, in bytes.
const LENGTHS: [usize; 3] = [32, 48, 64];

/// A secret. It is wiped from memory when dropped and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct DhchapSecret {
    /// Function that transforms it into a key; without one it is the key.
    hash: Option<HashFunction>,
    bytes: Zeroizing<Vec<u8>>,
}

/// The secrets for one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSecrets {
    /// The host's.
    pub host: DhchapSecret,
    /// The secret with which controllers prove themselves to this host, if they can.
    pub controller: Option<DhchapSecret>,
}

/// Why a text is no secret. None contains the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// It does not have the form.
    #[error("a secret has the form DHHC-1:HH:BASE64: with HH one of 00, 01, 02 and 03")]
    Form,
    /// It does not have the length that belongs to its hash function.
    #[error("the secret has {bytes} bytes: 32, 48 or 64 are allowed; 01 takes 32, 02 48 and 03 64")]
    Length {
        /// Without the check value.
        bytes: usize,
    },
    /// Its check value does not fit.
    #[error("the check value of the secret does not fit: a character of it is wrong or missing")]
    Check,
}

impl DhchapSecret {
    /// A random secret: of as many bytes as its hash function gives, or 32.
    pub fn random(hash: Option<HashFunction>) -> Self {
        let mut bytes = Zeroizing::new(vec![0; hash.map_or(32, HashFunction::output_bytes)]);
        fill_random(&mut bytes);
        DhchapSecret { hash, bytes }
    }

    /// Makes a secret from its bytes, as [`DhchapSecret::expose`] returns them.
    pub fn from_bytes(hash: Option<HashFunction>, bytes: Zeroizing<Vec<u8>>) -> Result<Self, SecretError> {
        let fits = match hash {
            Some(hash) => bytes.len() == hash.output_bytes(),
            None => LENGTHS.contains(&bytes.len()),
        };
        if fits { Ok(DhchapSecret { hash, bytes }) } else { Err(SecretError::Length { bytes: bytes.len() }) }
    }

    /// Reads the text.
    pub fn from_text(text: &str) -> Result<Self, SecretError> {
        let (hash, bytes) = interchange::decode(PREFIX, text).map_err(|error| match error {
            InterchangeError::Form => SecretError::Form,
            InterchangeError::Check => SecretError::Check,
        })?;
        Self::from_bytes(HashFunction::from_id(hash), bytes)
    }

    /// The text, as `nvme` and the kernel take it.
    pub fn to_text(&self) -> Zeroizing<String> {
        interchange::encode(PREFIX, self.hash.map_or(0, |hash| hash as u8), &self.bytes)
    }

    /// Returns the function that transforms it.
    pub fn hash(&self) -> Option<HashFunction> {
        self.hash
    }

    /// Its bytes.
    pub fn expose(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the key of the holder of this name (section 8.13.5.7).
    pub fn key_of(&self, name: &str) -> Zeroizing<Vec<u8>> {
        match self.hash {
            None => self.bytes.clone(),
            Some(hash) => Zeroizing::new(hash.hmac(&self.bytes, &[name.as_bytes(), KEY_LABEL]).as_ref().to_vec()),
        }
    }
}

impl std::fmt::Debug for DhchapSecret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "DhchapSecret({:?}, ..)", self.hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by 'nvme gen-dhchap-key' of nvme-cli 2.3 (libnvme 1.3).
    const OF_NVME_CLI: [(&str, Option<HashFunction>, usize); 4] = [
        ("DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:", None, 32),
        ("DHHC-1:01:H1gMKHpXBchpt+bvrcVH7sPfAqW29cTzrEBqW0zRQgvTz9RP:", Some(HashFunction::Sha256), 32),
        (
            "DHHC-1:02:R+UaLGJp51RSDlmD8pilplCXPTqlA1VIu9wsiPNkzgTcG3O7xCZBiUdbmxSFIdXTvjYzGA==:",
            Some(HashFunction::Sha384),
            48,
        ),
        (
            "DHHC-1:03:+YWNHf0mBgdgQkfqdJYIlDIr8gjjvvJ6gwj8MKBVarilCnDo+rR/AN2Knsq9v9fbl3uusm4qek992NaH73g36rUJMG4=:",
            Some(HashFunction::Sha512),
            64,
        ),
    ];

    #[test]
    fn secrets_of_nvme_cli_are_read_and_written() {
        for (text, hash, bytes) in OF_NVME_CLI {
            let secret = DhchapSecret::from_text(text).unwrap();
            assert_eq!((secret.hash(), secret.expose().len()), (hash, bytes), "{text}");
            assert_eq!(&*secret.to_text(), text);
            assert_eq!(DhchapSecret::from_text(&format!("{text}\n")), Ok(secret), "a file ends with a line feed");
        }
    }

    #[test]
    fn random_secrets_are_read_back_and_not_printed() {
        for hash in [None, Some(HashFunction::Sha256), Some(HashFunction::Sha384), Some(HashFunction::Sha512)] {
            let secret = DhchapSecret::random(hash);
            assert_eq!(DhchapSecret::from_text(&secret.to_text()), Ok(secret.clone()));
            assert_ne!(DhchapSecret::random(hash), secret);
            assert!(format!("{secret:?}").ends_with("..)"));
        }
    }

    #[test]
    fn an_invalid_secret_is_refused() {
        let text = OF_NVME_CLI[0].0;
        let changed = text.replacen("DHHC-1:00:", "DHHC-1:02:", 1);
        assert_eq!(DhchapSecret::from_text(&changed), Err(SecretError::Length { bytes: 32 }));
        let end = text.len() - 1;
        for wrong in ["", "DHHC-1", "DHHC-1:00::", &text[..end], &text[1..], &format!("{text}:")] {
            assert_eq!(DhchapSecret::from_text(wrong), Err(SecretError::Form), "{wrong}");
        }
        assert_eq!(DhchapSecret::from_text(&text.replacen("DHHC-1:00", "DHHC-1:04", 1)), Err(SecretError::Form));
        let first = text.as_bytes()[10];
        let other = if first == b'A' { "B" } else { "A" };
        let damaged = format!("{}{other}{}", &text[..10], &text[11..]);
        assert_eq!(DhchapSecret::from_text(&damaged), Err(SecretError::Check));
    }

    #[test]
    fn a_key_depends_on_the_name_if_there_is_a_hash_function() {
        let plain = DhchapSecret::random(None);
        assert_eq!(*plain.key_of("a"), plain.expose());
        let hashed = DhchapSecret::random(Some(HashFunction::Sha384));
        assert_ne!(hashed.key_of("a"), hashed.key_of("b"));
        assert_eq!(hashed.key_of("a").len(), 48);
    }
}
