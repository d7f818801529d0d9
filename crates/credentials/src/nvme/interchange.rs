//! The text of a secret, `PREFIX:HH:BASE64:`, with a check value behind its bytes (NVM Express Base Specification 2.0,
//! section 8.13.5.8; NVMe/TCP Transport Specification 1.0, section 3.6.1).

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crc_fast::{CrcAlgorithm, checksum};
use zeroize::Zeroizing;

const CHECK_BYTES: usize = 4;

/// Reasons why a text is not a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InterchangeError {
    /// It does not have the form.
    Form,
    /// Its check value does not fit.
    Check,
}

/// Reads the text: the number of a hash function, and the secret.
pub(super) fn decode(prefix: &str, text: &str) -> Result<(u8, Zeroizing<Vec<u8>>), InterchangeError> {
    let mut parts = text.trim().split(':');
    let (found, hash, encoded) = (parts.next(), parts.next(), parts.next());
    // The last colon ends the secret.
    let rest = (parts.next(), parts.next());
    if found != Some(prefix) || rest != (Some(""), None) {
        return Err(InterchangeError::Form);
    }
    let hash = match hash {
        Some("00") => 0,
        Some("01") => 1,
        Some("02") => 2,
        Some("03") => 3,
        _ => return Err(InterchangeError::Form),
    };
    let decoded = STANDARD.decode(encoded.unwrap_or_default()).map_err(|_| InterchangeError::Form)?;
    let mut decoded = Zeroizing::new(decoded);
    let length = decoded.len().checked_sub(CHECK_BYTES).ok_or(InterchangeError::Form)?;
    let is_right = decoded[length..] == check_of(&decoded[..length]);
    decoded.truncate(length);
    if is_right { Ok((hash, decoded)) } else { Err(InterchangeError::Check) }
}

/// The text of a secret.
pub(super) fn encode(prefix: &str, hash: u8, bytes: &[u8]) -> Zeroizing<String> {
    let mut checked = Zeroizing::new(bytes.to_vec());
    checked.extend_from_slice(&check_of(bytes));
    let encoded = Zeroizing::new(STANDARD.encode(&*checked));
    Zeroizing::new(format!("{prefix}:{hash:02}:{}:", &*encoded))
}

fn check_of(bytes: &[u8]) -> [u8; CHECK_BYTES] {
    (checksum(CrcAlgorithm::Crc32IsoHdlc, bytes) as u32).to_le_bytes()
}
