//! Configured pre-shared keys, and their text `NVMeTLSkey-1:HH:BASE64:` (NVMe/TCP Transport Specification 1.0, section
//! 3.6.1).

use atoll_keys::fill_random;
use zeroize::Zeroizing;

use super::hash::HashFunction;
use super::interchange::{self, InterchangeError};

const PREFIX: &str = "NVMeTLSkey-1";

/// A key as an administrator gives it to a host and to the target. It is wiped from memory when dropped and never
/// printed.
#[derive(Clone, PartialEq, Eq)]
pub struct TlsKey {
    /// Function that binds it to the host's name; without one it is used as it is.
    hash: Option<HashFunction>,
    bytes: Zeroizing<Vec<u8>>,
}

/// Why a text is no key. None contains the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TlsKeyError {
    /// It does not have the form.
    #[error("a key has the form NVMeTLSkey-1:HH:BASE64: with HH one of 00, 01 and 02")]
    Form,
    /// It does not have the length that belongs to its hash function.
    #[error("the key has {bytes} bytes: 32 or 48 are allowed; 01 takes 32 and 02 48")]
    Length {
        /// Without the check value.
        bytes: usize,
    },
    /// Its check value does not fit.
    #[error("the check value of the key does not fit: a character of it is wrong or missing")]
    Check,
}

/// Returns the hash function for a key of `bytes` bytes.
fn of_length(bytes: usize) -> Option<HashFunction> {
    [HashFunction::Sha256, HashFunction::Sha384].into_iter().find(|hash| hash.output_bytes() == bytes)
}

impl TlsKey {
    /// A random key for this hash function. Panics if it is another than SHA-256 and SHA-384.
    pub fn random(hash: HashFunction) -> Self {
        assert_ne!(hash, HashFunction::Sha512, "no cipher suite has this hash function");
        let mut bytes = Zeroizing::new(vec![0; hash.output_bytes()]);
        fill_random(&mut bytes);
        TlsKey { hash: Some(hash), bytes }
    }

    /// Makes a key from its bytes, as [`TlsKey::expose`] returns them.
    pub fn from_bytes(hash: Option<HashFunction>, bytes: Zeroizing<Vec<u8>>) -> Result<Self, TlsKeyError> {
        let own = of_length(bytes.len()).ok_or(TlsKeyError::Length { bytes: bytes.len() })?;
        if hash.is_none_or(|hash| hash == own) {
            Ok(TlsKey { hash, bytes })
        } else {
            Err(TlsKeyError::Length { bytes: bytes.len() })
        }
    }

    /// Reads the text.
    pub fn from_text(text: &str) -> Result<Self, TlsKeyError> {
        let (hash, bytes) = interchange::decode(PREFIX, text).map_err(|error| match error {
            InterchangeError::Form => TlsKeyError::Form,
            InterchangeError::Check => TlsKeyError::Check,
        })?;
        match HashFunction::from_id(hash) {
            Some(HashFunction::Sha512) => Err(TlsKeyError::Form),
            hash => Self::from_bytes(hash, bytes),
        }
    }

    /// The text, as `nvme` takes it.
    pub fn to_text(&self) -> Zeroizing<String> {
        interchange::encode(PREFIX, self.hash.map_or(0, |hash| hash as u8), &self.bytes)
    }

    /// Returns the function that binds it to the host's name, if there is one.
    pub fn hash(&self) -> Option<HashFunction> {
        self.hash
    }

    /// The function of the cipher suites with which it is used.
    pub fn suite_hash(&self) -> HashFunction {
        of_length(self.bytes.len()).expect("a key has the length of a hash")
    }

    /// Its bytes.
    pub fn expose(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::fmt::Debug for TlsKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "TlsKey({:?}, ..)", self.hash)
    }
}
