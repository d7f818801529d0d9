//! A keyslot: the volume key, split into stripes, encrypted under a key that is derived from a
//! passphrase (LUKS2 On-Disk Format Specification 1.1, section 3.2).

use serde_json::Value;
use zeroize::Zeroizing;

use crate::metadata::{self, AntiForensic, Area, Base64, DecimalText, ENCRYPTION, Kdf};
use crate::{KeyDerivation, Luks2Error, Luks2Hash, VolumeCipher, VolumeKey, anti_forensic};

/// Length of the area that a keyslot takes: its stripes, rounded up to 4096 bytes.
const AREA_BYTES: usize = MATERIAL_BYTES.next_multiple_of(4096);

const KIND: &str = "luks2";
/// LUKS1's splitter is the only one that LUKS2 has.
const SPLITTER: &str = "luks1";
const STRIPES: usize = 4000;
const MATERIAL_BYTES: usize = STRIPES * VolumeKey::BYTES;
/// Keyslot areas are encrypted in sectors of 512 bytes, numbered from 0, whatever the segment has.
const AREA_SECTOR_BYTES: usize = 512;

/// A keyslot that can be tried.
pub(crate) struct Keyslot {
    /// Its key in the JSON: `0` to `31`.
    pub(crate) number: String,
    /// Slots with a higher priority are tried first; 1 is usual.
    pub(crate) priority: u8,
    derivation: KeyDerivation,
    salt: Vec<u8>,
    hash: Luks2Hash,
    /// The stripes, encrypted.
    material: Vec<u8>,
}

impl Keyslot {
    /// Returns a keyslot for `volume_key` whose area is at `offset`: its entry in the JSON, and the content of the
    /// area.
    pub(crate) fn create(
        derivation: KeyDerivation,
        passphrase: &[u8],
        volume_key: &VolumeKey,
        offset: u64,
        random: &mut impl FnMut(&mut [u8]),
    ) -> Result<(metadata::Keyslot, Vec<u8>), Luks2Error> {
        let mut salt = vec![0; 32];
        random(&mut salt);
        let area_key = derivation.derive(passphrase, &salt)?;
        let hash = Luks2Hash::Sha256;
        let stripes = anti_forensic::split(volume_key, STRIPES, hash, random);
        let mut material = vec![0; MATERIAL_BYTES];
        area_cipher(&area_key).encrypt_into(0, &stripes, &mut material);
        let json = metadata::Keyslot {
            kind: KIND.into(),
            key_size: VolumeKey::BYTES as u64,
            priority: None,
            af: AntiForensic { kind: SPLITTER.into(), stripes: STRIPES, hash },
            area: Area {
                kind: "raw".into(),
                offset: DecimalText(offset),
                size: DecimalText(AREA_BYTES as u64),
                encryption: ENCRYPTION.into(),
                key_size: VolumeKey::BYTES as u64,
            },
            kdf: Kdf { derivation, salt: Base64(salt) },
        };
        Ok((json, material))
    }

    /// Reads keyslot `number`. `device` is the front of the device; keyslot areas may use `areas` of it. An error
    /// says why this keyslot cannot be tried; others may.
    pub(crate) fn read(
        number: &str,
        json: &Value,
        device: &[u8],
        areas: &std::ops::Range<u64>,
    ) -> Result<Self, Luks2Error> {
        if json["type"] != KIND {
            return Err(Luks2Error::unsupported(format!("a keyslot of type {}", json["type"])));
        }
        let json: metadata::Keyslot = metadata::parse("it", json)?;
        let key_bytes = VolumeKey::BYTES as u64;
        let is_supported = json.area.encryption == ENCRYPTION
            && (json.key_size, json.area.key_size) == (key_bytes, key_bytes)
            && (json.af.kind.as_str(), json.af.stripes) == (SPLITTER, STRIPES)
            && json.area.kind == "raw";
        if !is_supported {
            return Err(Luks2Error::unsupported(format!(
                "a keyslot of {} bytes under {} with {} bytes, in {} stripes",
                json.key_size, json.area.encryption, json.area.key_size, json.af.stripes
            )));
        }
        Ok(Keyslot {
            number: number.into(),
            priority: json.priority.unwrap_or(1),
            derivation: json.kdf.derivation,
            salt: json.kdf.salt.0,
            hash: json.af.hash,
            material: material(&json.area, device, areas)?.to_vec(),
        })
    }

    /// The volume key, if `passphrase` is the right one, and otherwise noise. Only the digest distinguishes them.
    pub(crate) fn open(&self, passphrase: &[u8]) -> Result<Zeroizing<[u8; VolumeKey::BYTES]>, Luks2Error> {
        let area_key = self.derivation.derive(passphrase, &self.salt)?;
        let mut stripes = Zeroizing::new(vec![0; MATERIAL_BYTES]);
        area_cipher(&area_key).decrypt_into(0, &self.material, &mut stripes);
        Ok(anti_forensic::merge(&stripes, self.hash))
    }
}

fn area_cipher(area_key: &VolumeKey) -> VolumeCipher {
    VolumeCipher::with_sectors_of(AREA_SECTOR_BYTES, area_key, 0)
}

/// The encrypted stripes of a keyslot, which must lie where keyslot areas may be.
fn material<'a>(area: &Area, device: &'a [u8], areas: &std::ops::Range<u64>) -> Result<&'a [u8], Luks2Error> {
    let (start, end) = (area.offset.0, area.offset.0.checked_add(area.size.0));
    let fits =
        start >= areas.start && end.is_some_and(|end| end <= areas.end) && area.size.0 >= MATERIAL_BYTES as u64;
    if !fits {
        return Err(Luks2Error::damaged(format!("its area of {} bytes at {start} is out of bounds", area.size.0)));
    }
    usize::try_from(start).ok().and_then(|start| device.get(start..)?.get(..MATERIAL_BYTES)).ok_or_else(|| {
        Luks2Error::damaged(format!("its area at {start} is beyond the {} bytes that were read", device.len()))
    })
}
