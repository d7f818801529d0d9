//! Diffie-Hellman exchanges in the finite fields of RFC 7919.
//!
//! `aws-lc-rs` does not offer them, so powers are computed by the C library that it is made of. This file is the
//! crate's only one with `unsafe`: its public items are safe to call.
#![expect(unsafe_code, reason = "modular powers in constant time are only there as C functions")]
#![warn(clippy::undocumented_unsafe_blocks)]

use std::ptr::{NonNull, null, null_mut};

use atoll_keys::fill_random;
use aws_lc_sys::{
    BIGNUM, BN_CTX_free, BN_CTX_new, BN_bin2bn, BN_bn2bin_padded, BN_clear_free, BN_mod_exp_mont_consttime, BN_new,
};
use zeroize::Zeroizing;

use super::primes::{FFDHE2048, FFDHE3072, FFDHE4096};

/// Bytes of private values: more than twice the strength of the largest group (RFC 7919, section 5.2).
const PRIVATE_BYTES: usize = 64;
/// The generator of all groups.
const GENERATOR: u8 = 2;

/// A DH group, by its identifier in messages. The larger ones, ffdhe6144 and ffdhe8192, are not offered: they would let hosts
/// that have proved nothing use a processor for long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DhGroup {
    /// No exchange.
    Null = 0,
    /// ffdhe2048.
    Ffdhe2048 = 1,
    /// ffdhe3072.
    Ffdhe3072 = 2,
    /// ffdhe4096.
    Ffdhe4096 = 3,
}

impl DhGroup {
    /// In the order of preference: the group as strong as AES-128 first.
    pub const ALL: [DhGroup; 4] = [DhGroup::Ffdhe3072, DhGroup::Ffdhe4096, DhGroup::Ffdhe2048, DhGroup::Null];

    /// The one with this identifier.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|group| *group as u8 == id)
    }

    fn prime(self) -> Option<Vec<u8>> {
        let text = match self {
            DhGroup::Null => return None,
            DhGroup::Ffdhe2048 => FFDHE2048,
            DhGroup::Ffdhe3072 => FFDHE3072,
            DhGroup::Ffdhe4096 => FFDHE4096,
        };
        Some(hex::decode(text).expect("the primes are hexadecimal"))
    }
}

/// A private value for one exchange.
pub(super) struct DhKey {
    prime: Vec<u8>,
    private: Zeroizing<[u8; PRIVATE_BYTES]>,
}

impl DhKey {
    /// A random value; none in the NULL group.
    pub fn generate(group: DhGroup) -> Option<Self> {
        let mut key = DhKey { prime: group.prime()?, private: Zeroizing::new([0; PRIVATE_BYTES]) };
        fill_random(&mut *key.private);
        Some(key)
    }

    /// Returns the public value for the peer, as long as the group's prime.
    pub fn public_value(&self) -> Vec<u8> {
        self.power(&[GENERATOR]).to_vec()
    }

    /// Returns the shared secret, as long as the group's prime; none if the peer's value is not one of the group.
    pub fn agree(&self, peer: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        // The prime is safe, so 1 < y < p - 1 is all there is to check (RFC 7919, section 5.1). Numbers of one length are in
        // the order of their bytes.
        let mut one = vec![0; self.prime.len()];
        let mut last = self.prime.clone();
        *one.last_mut()? = 1;
        *last.last_mut()? -= 1;
        let is_in_group = peer.len() == self.prime.len() && *one < *peer && *peer < *last;
        is_in_group.then(|| self.power(peer))
    }

    /// A number below the prime to the power of the private value, as long as the prime.
    fn power(&self, base: &[u8]) -> Zeroizing<Vec<u8>> {
        let (base, exponent) = (Number::read(base), Number::read(&*self.private));
        let (prime, result) = (Number::read(&self.prime), Number::new());
        // SAFETY: The function gives a new context, or null, with which powers are computed all the same.
        let context = unsafe { BN_CTX_new() };
        // SAFETY: All numbers are owned by living values, the context was just made and is used by nobody else, and without a
        // Montgomery context one is made.
        let done = unsafe {
            BN_mod_exp_mont_consttime(result.get(), base.get(), exponent.get(), prime.get(), context, null())
        };
        // SAFETY: Nothing uses the context any more.
        unsafe { BN_CTX_free(context) };
        assert_eq!(done, 1, "the base is below the prime, which is odd; or memory has run out");
        let mut bytes = Zeroizing::new(vec![0; self.prime.len()]);
        // SAFETY: `bytes` has as many bytes as is said, and the number is owned by a living value.
        let done = unsafe { BN_bn2bin_padded(bytes.as_mut_ptr(), bytes.len(), result.get()) };
        assert_eq!(done, 1, "a result is below the prime");
        bytes
    }
}

/// A number of AWS-LC, wiped when dropped.
struct Number(NonNull<BIGNUM>);

impl Number {
    fn new() -> Self {
        // SAFETY: The function gives a new number, or null.
        Number(NonNull::new(unsafe { BN_new() }).expect("memory has not run out"))
    }

    fn read(bytes: &[u8]) -> Self {
        // SAFETY: `bytes` has the length that is said; null makes a new number.
        let number = unsafe { BN_bin2bn(bytes.as_ptr(), bytes.len(), null_mut()) };
        Number(NonNull::new(number).expect("memory has not run out"))
    }

    fn get(&self) -> *mut BIGNUM {
        self.0.as_ptr()
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        // SAFETY: This value owns what it points to, and is gone afterwards.
        unsafe { BN_clear_free(self.0.as_ptr()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_agree_in_every_group() {
        assert!(DhKey::generate(DhGroup::Null).is_none());
        for (group, bytes) in [(DhGroup::Ffdhe2048, 256), (DhGroup::Ffdhe3072, 384), (DhGroup::Ffdhe4096, 512)] {
            let (one, other) = (DhKey::generate(group).unwrap(), DhKey::generate(group).unwrap());
            let shared = one.agree(&other.public_value()).unwrap();
            assert_eq!(Some(&shared), other.agree(&one.public_value()).as_ref());
            assert_eq!((shared.len(), one.public_value().len()), (bytes, bytes));
            assert_ne!(one.public_value(), other.public_value());
        }
    }

    #[test]
    fn values_that_are_not_in_the_group_are_refused() {
        let key = DhKey::generate(DhGroup::Ffdhe2048).unwrap();
        let small = |value: u8| {
            let mut bytes = vec![0; 256];
            bytes[255] = value;
            bytes
        };
        let mut last = DhGroup::Ffdhe2048.prime().unwrap();
        last[255] -= 1;
        for wrong in [small(0), small(1), last, vec![0xFF; 256], vec![7; 255], vec![7; 257], Vec::new()] {
            assert!(key.agree(&wrong).is_none());
        }
        assert!(key.agree(&small(2)).is_some());
    }
}
