//! The key under everything: AES-256-XTS takes two AES keys, so it has 512 bits.

use zeroize::Zeroize;

use crate::Luks2Error;

/// A 512-bit AES-256-XTS key: the data key, then the tweak key. It is wiped from memory when
/// dropped and never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct VolumeKey([u8; VolumeKey::BYTES]);

impl VolumeKey {
    /// Length of the key in bytes.
    pub const BYTES: usize = 64;

    /// Takes over existing key bytes. Equal halves are [`Luks2Error::WeakKey`].
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Result<Self, Luks2Error> {
        let key = VolumeKey(bytes);
        let (data_key, tweak_key) = key.0.split_at(Self::BYTES / 2);
        if data_key == tweak_key { Err(Luks2Error::WeakKey) } else { Ok(key) }
    }

    /// The key bytes.
    pub fn expose(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl Drop for VolumeKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl std::fmt::Debug for VolumeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("VolumeKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_halves_are_refused_and_nothing_is_printed() {
        assert_eq!(VolumeKey::from_bytes([65; 64]), Err(Luks2Error::WeakKey));
        let key = VolumeKey::from_bytes(std::array::from_fn(|i| i as u8)).unwrap();
        assert_eq!(format!("{key:?}"), "VolumeKey(..)");
    }
}
