//! Signatures by static keys: XEdDSA over Curve25519 (Signal, revision 1), with a nonce that follows from key and message,
//! as in Ed25519. An X25519 key is also a key of Ed25519 whose sign is known, so whoever knows a process by its public key
//! verifies its signatures, and no second key has to be made known.

use aws_lc_rs::digest::{SHA512, digest};
use aws_lc_rs::signature::{ED25519, UnparsedPublicKey};
use curve25519_dalek::edwards::EdwardsPoint;
use curve25519_dalek::montgomery::MontgomeryPoint;
use curve25519_dalek::scalar::{Scalar, clamp_integer};
use zeroize::{Zeroize, Zeroizing};

use crate::handshake::{KeyPair, PublicKey};

/// Length of a signature.
pub const SIGNATURE_BYTES: usize = 64;
/// Begins the input of nonces. No point has such bytes, so no challenge has the same input.
const NONCE_PREFIX: [u8; 32] = {
    let mut bytes = [0xff; 32];
    bytes[0] = 0xfe;
    bytes
};
/// The bit that is the sign of a point's x.
const SIGN: u8 = 0x80;

impl KeyPair {
    /// Signs a message, which has to begin with its purpose: nothing else is ever signed by the key.
    pub fn sign(&self, message: &[u8]) -> [u8; SIGNATURE_BYTES] {
        let clamped = Zeroizing::new(clamp_integer(self.private));
        let mut scalar = Scalar::from_bytes_mod_order(*clamped);
        let mut public = EdwardsPoint::mul_base(&scalar).compress().to_bytes();
        if public[31] & SIGN != 0 {
            scalar = -scalar;
            public[31] &= !SIGN;
        }
        let secret = Zeroizing::new(scalar.to_bytes());
        let mut nonce = hashed(&[&NONCE_PREFIX, &*secret, message]);
        let commitment = EdwardsPoint::mul_base(&nonce).compress().to_bytes();
        let response = nonce + hashed(&[&commitment, &public, message]) * scalar;
        nonce.zeroize();
        scalar.zeroize();
        let mut signature = [0; SIGNATURE_BYTES];
        signature[..32].copy_from_slice(&commitment);
        signature[32..].copy_from_slice(&response.to_bytes());
        signature
    }
}

/// Returns true if the holder of a static key has signed this message.
#[must_use]
pub fn verify_signature(public: &PublicKey, message: &[u8], signature: &[u8]) -> bool {
    let Some(point) = MontgomeryPoint(*public).to_edwards(0) else { return false };
    let key = UnparsedPublicKey::new(&ED25519, point.compress().to_bytes());
    key.verify(message, signature).is_ok()
}

fn hashed(parts: &[&[u8]]) -> Scalar {
    let bytes = Zeroizing::new(parts.concat());
    let hash: [u8; 64] = digest(&SHA512, &bytes).as_ref().try_into().expect("SHA-512 gives 64 bytes");
    Scalar::from_bytes_mod_order_wide(&hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> KeyPair {
        KeyPair::from_private(std::array::from_fn(|position| number.wrapping_mul(31) ^ position as u8))
    }

    /// Half of the keys have a point of each sign. Another library verifies with Ed25519.
    #[test]
    fn a_signature_is_of_its_key_and_its_message() {
        for number in 0..32 {
            let (own, other) = (key(number), key(number + 1));
            let signature = own.sign(b"a message");
            assert!(verify_signature(&own.public(), b"a message", &signature), "{number}");
            assert!(!verify_signature(&own.public(), b"a Message", &signature));
            assert!(!verify_signature(&other.public(), b"a message", &signature));
            assert!(!verify_signature(&own.public(), b"a message", &signature[..63]));
            assert!(!verify_signature(&own.public(), b"a message", b""));
            assert_ne!(own.sign(b"another")[..32], signature[..32], "a nonce twice discloses the key");
        }
    }

    #[test]
    fn no_bit_of_a_signature_can_change() {
        let own = key(7);
        let signature = own.sign(b"a message");
        for bit in 0..8 * SIGNATURE_BYTES {
            let mut altered = signature;
            altered[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify_signature(&own.public(), b"a message", &altered), "bit {bit}");
        }
    }

    #[test]
    fn public_keys_of_low_order_sign_nothing() {
        let signature = key(7).sign(b"a message");
        for public in [[0; 32], [0xff; 32], std::array::from_fn(|position| u8::from(position == 0))] {
            assert!(!verify_signature(&public, b"a message", &signature));
        }
    }
}
