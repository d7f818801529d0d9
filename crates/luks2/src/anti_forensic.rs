//! The anti-forensic splitter (LUKS1 specification, section 2.4; LUKS2 keeps it as `luks1`): a key
//! becomes many stripes that are all needed to have it back. A disk that has kept an old copy of a
//! single sector of a removed keyslot then keeps nothing.
//!
//! The stripes but the last are random. Folding them with XOR and diffusing after each gives a mask;
//! the last stripe is the key under that mask.

use zeroize::Zeroizing;

use crate::{Luks2Hash, VolumeKey};

const STRIPE_BYTES: usize = VolumeKey::BYTES;

/// Splits `key` into `stripes` stripes of 64 bytes.
pub(crate) fn split(
    key: &VolumeKey,
    stripes: usize,
    hash: Luks2Hash,
    random: &mut impl FnMut(&mut [u8]),
) -> Zeroizing<Vec<u8>> {
    let mut material = Zeroizing::new(vec![0; stripes * STRIPE_BYTES]);
    let (random_stripes, last) = material.split_at_mut((stripes - 1) * STRIPE_BYTES);
    random(random_stripes);
    let mask = fold(random_stripes, hash);
    xor(last, &mask[..]);
    xor(last, key.expose());
    material
}

/// Returns the key bytes from a result of [`split`]. `material` is whole stripes, at least one.
pub(crate) fn merge(material: &[u8], hash: Luks2Hash) -> Zeroizing<[u8; STRIPE_BYTES]> {
    let (random_stripes, last) = material.split_at(material.len() - STRIPE_BYTES);
    let mut key = fold(random_stripes, hash);
    xor(&mut key[..], last);
    key
}

fn fold(random_stripes: &[u8], hash: Luks2Hash) -> Zeroizing<[u8; STRIPE_BYTES]> {
    let mut mask = Zeroizing::new([0; STRIPE_BYTES]);
    for stripe in random_stripes.chunks_exact(STRIPE_BYTES) {
        xor(&mut mask[..], stripe);
        diffuse(&mut mask, hash);
    }
    mask
}

/// Replaces each part of a digest's length by its hash, together with the number of the part.
fn diffuse(stripe: &mut [u8; STRIPE_BYTES], hash: Luks2Hash) {
    for (number, part) in (0_u32..).zip(stripe.chunks_mut(hash.digest_bytes())) {
        let digest = hash.digest(&[&number.to_be_bytes(), part]);
        part.copy_from_slice(&digest.as_ref()[..part.len()]);
    }
}

fn xor(target: &mut [u8], other: &[u8]) {
    target.iter_mut().zip(other).for_each(|(target, other)| *target ^= other);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stripe_is_needed() {
        let key = VolumeKey::from_bytes(std::array::from_fn(|i| i as u8)).unwrap();
        for hash in [Luks2Hash::Sha256, Luks2Hash::Sha512] {
            let mut material =
                split(&key, 40, hash, &mut |bytes: &mut [u8]| aws_lc_rs::rand::fill(bytes).unwrap());
            assert_eq!(*merge(&material, hash), *key.expose());
            for stripe in 0..40 {
                material[stripe * STRIPE_BYTES] ^= 1;
                assert_ne!(*merge(&material, hash), *key.expose());
                material[stripe * STRIPE_BYTES] ^= 1;
            }
        }
    }
}
