//! `aes-xts-plain64` over sectors, byte for byte as dm-crypt does it.
//!
//! Each sector is one XTS data unit. Its number ("IV") is `plain64`: the position of the sector in
//! the segment, counted in units of 512 bytes whatever the sector size is, plus the segment's
//! `iv_tweak`. So the sectors of 4096 bytes have the numbers 0, 8, 16, ... (Linux,
//! `admin-guide/device-mapper/dm-crypt.rst`: only the option `iv_large_sectors`, which LUKS2 does
//! not use, would make them 0, 1, 2, ...).

use crate::VolumeKey;
use crate::xts::{AES_BLOCK_BYTES, Direction, XtsContext};

/// Bytes of a sector, which is encrypted as a whole. The header's `sector_size`.
pub const SECTOR_BYTES: usize = 4096;

/// The unit in which `plain64` counts.
const IV_UNIT_BYTES: u64 = 512;

/// Encrypts and decrypts whole sectors of a segment. It has no integrity: a changed sector decrypts to noise,
/// which the checksums above detect.
///
/// A call changes the context, so it wants `&mut`; a clone is cheap and for another thread.
#[derive(Clone)]
pub struct VolumeCipher {
    encrypting: XtsContext,
    decrypting: XtsContext,
    sector_bytes: usize,
    iv_tweak: u64,
}

impl VolumeCipher {
    /// A cipher for sectors of [`SECTOR_BYTES`]. `iv_tweak` is the header's, in units of 512 bytes;
    /// [`Luks2Header::volume_cipher`](crate::Luks2Header::volume_cipher) knows it.
    pub fn new(key: &VolumeKey, iv_tweak: u64) -> Self {
        Self::with_sectors_of(SECTOR_BYTES, key, iv_tweak)
    }

    /// Keyslot areas are encrypted the same way, in other sectors.
    pub(crate) fn with_sectors_of(sector_bytes: usize, key: &VolumeKey, iv_tweak: u64) -> Self {
        VolumeCipher {
            encrypting: XtsContext::new(key, Direction::Encrypt),
            decrypting: XtsContext::new(key, Direction::Decrypt),
            sector_bytes,
            iv_tweak,
        }
    }

    /// Encrypts whole sectors in place. `first_byte` is where they begin in the segment; it and the
    /// length must be multiples of the sector.
    pub fn encrypt(&mut self, first_byte: u64, sectors: &mut [u8]) {
        let numbers = self.iv_numbers(first_byte, sectors.len());
        for (iv, sector) in numbers.zip(sectors.chunks_exact_mut(self.sector_bytes)) {
            self.encrypting.transform_in_place(&iv, sector);
        }
    }

    /// Encrypts whole sectors from `plaintext` into `ciphertext`, which must be as long.
    pub fn encrypt_into(&mut self, first_byte: u64, plaintext: &[u8], ciphertext: &mut [u8]) {
        let numbers = self.iv_numbers(first_byte, plaintext.len());
        transform_sectors(&mut self.encrypting, self.sector_bytes, numbers, plaintext, ciphertext);
    }

    /// Decrypts whole sectors in place: the inverse of [`VolumeCipher::encrypt`].
    pub fn decrypt(&mut self, first_byte: u64, sectors: &mut [u8]) {
        let numbers = self.iv_numbers(first_byte, sectors.len());
        for (iv, sector) in numbers.zip(sectors.chunks_exact_mut(self.sector_bytes)) {
            self.decrypting.transform_in_place(&iv, sector);
        }
    }

    /// Decrypts whole sectors from `ciphertext` into `plaintext`, which must be as long.
    pub fn decrypt_into(&mut self, first_byte: u64, ciphertext: &[u8], plaintext: &mut [u8]) {
        let numbers = self.iv_numbers(first_byte, ciphertext.len());
        transform_sectors(&mut self.decrypting, self.sector_bytes, numbers, ciphertext, plaintext);
    }

    /// The numbers of the sectors from `first_byte` on: 64 bits little-endian, then zeros. They
    /// wrap around as dm-crypt's do, because `iv_tweak` comes from outside and may be anything.
    fn iv_numbers(&self, first_byte: u64, length: usize) -> impl Iterator<Item = [u8; AES_BLOCK_BYTES]> + use<> {
        let sector_bytes = self.sector_bytes as u64;
        assert!(
            first_byte.is_multiple_of(sector_bytes) && (length as u64).is_multiple_of(sector_bytes),
            "only whole sectors of {sector_bytes} bytes can be encrypted, not {length} bytes at {first_byte}"
        );
        let first = self.iv_tweak.wrapping_add(first_byte / IV_UNIT_BYTES);
        let step = sector_bytes / IV_UNIT_BYTES;
        (0..).map(move |sector: u64| {
            let mut iv = [0; AES_BLOCK_BYTES];
            iv[..8].copy_from_slice(&first.wrapping_add(sector * step).to_le_bytes());
            iv
        })
    }
}

fn transform_sectors(
    context: &mut XtsContext,
    sector_bytes: usize,
    numbers: impl Iterator<Item = [u8; AES_BLOCK_BYTES]>,
    source: &[u8],
    destination: &mut [u8],
) {
    assert_eq!(source.len(), destination.len(), "encryption does not change the length");
    let sectors = source.chunks_exact(sector_bytes).zip(destination.chunks_exact_mut(sector_bytes));
    for (iv, (source, destination)) in numbers.zip(sectors) {
        context.transform(&iv, source, destination);
    }
}

#[cfg(test)]
mod tests {
    use aes::Aes256;
    use aes::cipher::KeyInit;
    use proptest::prelude::*;
    use xts_mode::Xts128;

    use super::*;

    fn key(seed: u8) -> VolumeKey {
        VolumeKey::from_bytes(std::array::from_fn(|i| seed.wrapping_add(i as u8))).unwrap()
    }

    /// The same by the crates `aes` and `xts-mode`, from the definition of the sector number.
    fn reference(seed: u8, iv_tweak: u64, first_byte: u64, data: &mut [u8]) {
        let key = key(seed);
        let (data_key, tweak_key) = key.expose().split_at(32);
        let xts = Xts128::new(Aes256::new(data_key.into()), Aes256::new(tweak_key.into()));
        for (index, sector) in data.chunks_exact_mut(SECTOR_BYTES).enumerate() {
            let byte = first_byte + (index * SECTOR_BYTES) as u64;
            let number = iv_tweak.wrapping_add(byte / 512);
            xts.encrypt_sector(sector, u128::from(number).to_le_bytes());
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn another_implementation_agrees(
            seed: u8,
            iv_tweak in prop_oneof![Just(0), any::<u64>()],
            first_sector in 0..1_u64 << 40,
            sectors in 0..5_usize,
            filling: u8,
        ) {
            let first_byte = first_sector * SECTOR_BYTES as u64;
            let plain: Vec<u8> = (0..sectors * SECTOR_BYTES).map(|i| filling ^ (i / 7) as u8).collect();
            let mut expected = plain.clone();
            reference(seed, iv_tweak, first_byte, &mut expected);

            let mut cipher = VolumeCipher::new(&key(seed), iv_tweak);
            let mut in_place = plain.clone();
            cipher.encrypt(first_byte, &mut in_place);
            prop_assert_eq!(&in_place, &expected);
            let mut copied = vec![0; plain.len()];
            cipher.clone().encrypt_into(first_byte, &plain, &mut copied);
            prop_assert_eq!(&copied, &expected);

            cipher.decrypt_into(first_byte, &copied, &mut in_place);
            prop_assert_eq!(&in_place, &plain);
            cipher.clone().decrypt(first_byte, &mut copied);
            prop_assert_eq!(&copied, &plain);
        }
    }

    /// IEEE 1619-2007, appendix B, vector 10 (XTS-AES-256, a data unit of 512 bytes, number 0xff):
    /// the plaintext is 00 01 .. ff twice; the first and the last 16 bytes of the ciphertext.
    #[test]
    fn ieee_1619_vector_10() {
        let data_key = hex::decode("2718281828459045235360287471352662497757247093699959574966967627").unwrap();
        let tweak_key = hex::decode("3141592653589793238462643383279502884197169399375105820974944592").unwrap();
        let key = VolumeKey::from_bytes([data_key, tweak_key].concat().try_into().unwrap()).unwrap();
        let mut unit: Vec<u8> = (0..512).map(|i| i as u8).collect();
        VolumeCipher::with_sectors_of(512, &key, 0xff).encrypt(0, &mut unit);
        assert_eq!(hex::encode(&unit[..16]), "1c3b3a102f770386e4836c99e370cf9b");
        assert_eq!(hex::encode(&unit[496..]), "c4f36ffda9fcea70b9c6e693e148c151");
    }

    #[test]
    fn the_second_sector_has_number_eight() {
        let (mut both, mut second) = ([7; 2 * SECTOR_BYTES], [7; SECTOR_BYTES]);
        VolumeCipher::new(&key(1), 0).encrypt(0, &mut both);
        VolumeCipher::new(&key(1), 8).encrypt(0, &mut second);
        assert_eq!(both[SECTOR_BYTES..], second);
    }

    #[test]
    #[should_panic(expected = "only whole sectors")]
    fn half_a_sector_is_a_mistake() {
        VolumeCipher::new(&key(1), 0).encrypt(512, &mut [0; SECTOR_BYTES]);
    }
}
