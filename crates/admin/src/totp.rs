//! One-time passwords by time (RFC 6238): six digits of HMAC-SHA1 each 30 seconds, as all authenticator programs have
//! them.

use atoll_keys::{SecretKey, hmac_sha1};
use qrcodegen::{QrCode, QrCodeEcc};

/// Validity of a code, in seconds.
pub const STEP_SECONDS: u64 = 30;
/// Steps by which clocks may differ.
const STEPS_OFF: u64 = 1;
const DIGITS: usize = 6;
/// Light modules around a code, as readers require.
const QR_MARGIN: i32 = 2;
const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
/// Name that authenticators show beside the codes.
const ISSUER: &str = "Atoll";

/// The step of a moment.
pub fn step_at(unix_ms: u64) -> u64 {
    unix_ms / 1_000 / STEP_SECONDS
}

/// The code of a step.
pub fn code(secret: &[u8], step: u64) -> String {
    truncated(&hmac_sha1(secret, &step.to_be_bytes()), DIGITS)
}

/// Digits of an HMAC, as RFC 4226 (section 5.3) takes them.
fn truncated(mac: &[u8; 20], digits: usize) -> String {
    let offset = usize::from(mac[19] & 0xf);
    let chosen = [mac[offset] & 0x7f, mac[offset + 1], mac[offset + 2], mac[offset + 3]];
    let number = u64::from(u32::from_be_bytes(chosen)) % 10_u64.pow(digits as u32);
    format!("{number:0digits$}")
}

/// The step whose code this is, if it is one of now that is later than the last that was used.
pub fn step_of(secret: &SecretKey, given: &str, last_step: u64, unix_ms: u64) -> Option<u64> {
    let now = step_at(unix_ms);
    let steps = now.saturating_sub(STEPS_OFF)..=now.saturating_add(STEPS_OFF);
    // All are compared, so the time that it takes says nothing.
    let mut found = None;
    for step in steps.filter(|step| *step > last_step) {
        if is_same(&code(secret.expose(), step), given) {
            found = Some(step);
        }
    }
    found
}

fn is_same(one: &str, other: &str) -> bool {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let differ = one.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b));
    one.len() == other.len() && differ == 0
}

/// Bytes in base 32 (RFC 4648), without padding.
pub fn base32(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(5) {
        let mut block = [0; 8];
        block[3..3 + chunk.len()].copy_from_slice(chunk);
        let bits = u64::from_be_bytes(block);
        for at in 0..(chunk.len() * 8).div_ceil(5) {
            let index = (bits >> (35 - 5 * at)) & 31;
            text.push(char::from(ALPHABET[index as usize]));
        }
    }
    text
}

/// URL of a secret, for authenticators.
pub fn url(operator: &str, secret: &SecretKey) -> String {
    let escaped: String = operator.replace('@', "%40");
    let secret = base32(secret.expose());
    format!("otpauth://totp/{ISSUER}:{escaped}?secret={secret}&issuer={ISSUER}")
}

/// The modules of a QR code, row by row, with a margin: `1` is dark.
pub fn qr_rows(text: &str) -> Vec<String> {
    let qr = QrCode::encode_text(text, QrCodeEcc::Medium).expect("the URL of a secret fits into a QR code");
    let range = -QR_MARGIN..qr.size() + QR_MARGIN;
    let row = |y: i32| range.clone().map(|x| if qr.get_module(x, y) { '1' } else { '0' }).collect();
    range.clone().map(row).collect()
}

/// A QR code for a terminal: two rows of modules in each line.
pub fn qr_lines(text: &str) -> Vec<String> {
    let rows: Vec<Vec<bool>> =
        qr_rows(text).iter().map(|row| row.bytes().map(|one| one == b'1').collect()).collect();
    let lines = rows.chunks(2).map(|pair| {
        let lower = |x: usize| pair.get(1).is_some_and(|row| row[x]);
        // Dark modules are blank, because most terminals are dark and readers want a light ground.
        let block = |x: usize| match (pair[0][x], lower(x)) {
            (true, true) => ' ',
            (true, false) => '\u{2584}',
            (false, true) => '\u{2580}',
            (false, false) => '\u{2588}',
        };
        (0..pair[0].len()).map(block).collect()
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of RFC 6238, appendix B, for SHA-1; they have eight digits.
    #[test]
    fn codes_are_those_of_the_rfc() {
        let secret = b"12345678901234567890";
        for (seconds, expected) in [
            (59, "94287082"),
            (1_111_111_109, "07081804"),
            (1_111_111_111, "14050471"),
            (1_234_567_890, "89005924"),
            (2_000_000_000, "69279037"),
            (20_000_000_000, "65353130"),
        ] {
            let step = step_at(seconds * 1_000);
            assert_eq!(truncated(&hmac_sha1(secret, &step.to_be_bytes()), 8), expected);
            assert_eq!(code(secret, step), expected[2..]);
        }
    }

    #[test]
    fn secrets_are_written_as_the_rfc_says() {
        for (bytes, text) in
            [("", ""), ("f", "MY"), ("fo", "MZXQ"), ("foo", "MZXW6"), ("foob", "MZXW6YQ"), ("fooba", "MZXW6YTB")]
        {
            assert_eq!(base32(bytes.as_bytes()), text);
        }
        let secret = SecretKey::from_bytes(*b"12345678901234567890123456789012");
        let url = url("ann@x", &secret);
        assert!(url.starts_with(
            "otpauth://totp/Atoll:ann%40x?secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQGEZA&"
        ));
    }

    #[test]
    fn a_qr_code_is_a_square_with_its_three_marks() {
        let rows = qr_rows(&url("ann", &SecretKey::from_bytes([7; 32])));
        let mark = "1111111";
        assert!(rows.iter().all(|row| row.len() == rows.len()));
        let (first, last) = (&rows[2], &rows[rows.len() - 3]);
        assert!(
            first[2..].starts_with(mark)
                && first[..first.len() - 2].ends_with(mark)
                && last[2..].starts_with(mark)
        );
        assert_eq!(qr_lines("x").len(), qr_rows("x").len().div_ceil(2));
    }

    #[test]
    fn a_code_counts_once_and_near_its_time_only() {
        let secret = SecretKey::from_bytes([7; 32]);
        let now_ms = 1_700_000_000_000;
        let now = step_at(now_ms);
        let found = |step: u64, last: u64| step_of(&secret, &code(secret.expose(), step), last, now_ms);
        for step in now - 1..=now + 1 {
            assert_eq!(found(step, 0), Some(step));
            assert_eq!(found(step, step), None, "it was used");
        }
        assert_eq!((found(now - 2, 0), found(now + 2, 0)), (None, None));
        for wrong in ["", "12345", "1234567", "abcdef"] {
            assert_eq!(step_of(&secret, wrong, 0, now_ms), None);
        }
    }
}
