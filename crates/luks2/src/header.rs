//! A header as a whole: make one, read one, unlock one.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::binary_header::{self, DEFAULT_COPY_BYTES, HeaderCopy};
use crate::digest::KeyDigest;
use crate::keyslot::Keyslot;
use crate::metadata::{self, Config, DecimalText, ENCRYPTION, Metadata, SegmentSize, parse};
use crate::{KeyDerivation, KmsToken, Luks2Error, SECTOR_BYTES, VolumeCipher, VolumeKey};

/// Offset of the data of a new volume: the header and all keyslots before it take 16 MiB, as with `cryptsetup`.
pub const HEADER_BYTES: usize = 16 << 20;

/// As many keyslots as `cryptsetup` allows.
const MAX_KEYSLOTS: usize = 32;

/// A LUKS2 header that can be unlocked.
pub struct Luks2Header {
    uuid: String,
    is_degraded: bool,
    data_offset: u64,
    segment_bytes: Option<u64>,
    iv_tweak: u64,
    digest: KeyDigest,
    /// In the order in which they are tried.
    keyslots: Vec<Keyslot>,
    /// Why the other keyslots are not.
    skipped: Vec<String>,
    kms_token: Option<KmsToken>,
}

impl Luks2Header {
    /// Makes the header of a new volume, with a random volume key in one keyslot. `random` fills
    /// bytes unpredictably (the operating system's random source, except in simulations). `token` is
    /// for a passphrase that a key-management service keeps.
    ///
    /// Returns the first [`HEADER_BYTES`] of the device, to be written at offset 0 as they are, and
    /// the volume key. Errors: [`Luks2Error::KeyDerivation`], or [`Luks2Error::WeakKey`] if `random`
    /// is not random.
    pub fn create(
        derivation: KeyDerivation,
        passphrase: &[u8],
        uuid: [u8; 16],
        token: Option<&KmsToken>,
        mut random: impl FnMut(&mut [u8]),
    ) -> Result<(Vec<u8>, VolumeKey), Luks2Error> {
        let mut key_bytes = zeroize::Zeroizing::new([0; VolumeKey::BYTES]);
        random(&mut key_bytes[..]);
        let volume_key = VolumeKey::from_bytes(*key_bytes)?;
        let areas_start = 2 * DEFAULT_COPY_BYTES;
        let (keyslot, material) =
            Keyslot::create(derivation, passphrase, &volume_key, areas_start as u64, &mut random)?;
        let mut json = new_metadata(&keyslot, &KeyDigest::create(&volume_key, &mut random).to_metadata());
        if let Some(token) = token {
            json.tokens.insert("0".into(), token.to_json()?);
        }
        let json = serde_json::to_vec(&json).expect("the metadata is plain JSON");

        // What no keyslot uses is zeros, so nothing of an older header survives there.
        let mut bytes = binary_header::write_copies(&Self::uuid_text(uuid), &json, &mut random);
        bytes.extend(material);
        bytes.resize(HEADER_BYTES, 0);
        Ok((bytes, volume_key))
    }

    /// Reads the header of a device, from its front `device`: [`HEADER_BYTES`] for those that
    /// [`Luks2Header::create`] has made, and the size of all keyslots for others.
    ///
    /// The newest sound copy of the two counts; [`Luks2Header::is_degraded`] is true when it is the only one.
    /// Errors: [`Luks2Error::NotLuks2`], [`Luks2Error::Damaged`] (both copies are), [`Luks2Error::Unsupported`],
    /// and [`Luks2Error::KeyDerivation`] if recognising the key would cost too much. A keyslot that cannot be used
    /// is no error as long as another one opens.
    pub fn read(device: &[u8]) -> Result<Self, Luks2Error> {
        let copies = binary_header::find_copies(device)?;
        let mut first_error = None;
        for copy in &copies {
            match Self::from_copy(copy, device) {
                Err(error @ Luks2Error::Damaged { .. }) => first_error = first_error.or(Some(error)),
                Ok(header) => {
                    let is_degraded = copies.len() < 2 || first_error.is_some();
                    return Ok(Luks2Header { is_degraded, ..header });
                }
                Err(other) => return Err(other),
            }
        }
        Err(first_error.expect("there is a copy, or there had been an error already"))
    }

    fn from_copy(copy: &HeaderCopy, device: &[u8]) -> Result<Self, Luks2Error> {
        let metadata: Metadata = serde_json::from_slice(copy.json)
            .map_err(|error| Luks2Error::damaged(format!("its JSON: {error}")))?;
        check_config(&metadata, copy)?;
        let (number, segment) = only_segment(&metadata)?;
        let headers_end = 2 * copy.copy_bytes as u64;
        if segment.offset.0 < headers_end {
            return Err(Luks2Error::unsupported("a header that is detached from its data"));
        }
        let areas_end = headers_end.saturating_add(metadata.config.keyslots_size.0).min(segment.offset.0);
        let (digest, numbers) = KeyDigest::of_segment(number, &metadata)?;
        let (keyslots, skipped) = read_keyslots(&metadata, &numbers, device, &(headers_end..areas_end));
        Ok(Luks2Header {
            uuid: copy.uuid.clone(),
            is_degraded: false,
            data_offset: segment.offset.0,
            segment_bytes: match segment.size {
                SegmentSize::Dynamic => None,
                SegmentSize::Bytes(bytes) => Some(bytes),
            },
            iv_tweak: segment.iv_tweak.0,
            digest,
            keyslots,
            skipped,
            kms_token: KmsToken::find(&metadata.tokens),
        })
    }

    /// The volume key, from the first keyslot that `passphrase` opens. Each try costs the keyslot's
    /// key derivation: half a second for our own, and a few minutes and 4 GiB at most for a hostile
    /// one. If none opens: [`Luks2Error::WrongPassphrase`].
    pub fn unlock(&self, passphrase: &[u8]) -> Result<VolumeKey, Luks2Error> {
        let (mut tried, mut skipped) = (0, self.skipped.clone());
        for keyslot in &self.keyslots {
            match keyslot.open(passphrase) {
                Ok(key) if self.digest.matches(&key) => return VolumeKey::from_bytes(*key),
                Ok(_) => tried += 1,
                Err(error) => skipped.push(format!("keyslot {} ({error})", keyslot.number)),
            }
        }
        Err(Luks2Error::WrongPassphrase { tried, skipped })
    }

    /// A cipher for the data. Offset 0 of it is [`Luks2Header::data_offset_bytes`] of the device.
    pub fn volume_cipher(&self, key: &VolumeKey) -> VolumeCipher {
        VolumeCipher::new(key, self.iv_tweak)
    }

    /// Where the data begins on the device, in bytes: a multiple of 4096.
    pub fn data_offset_bytes(&self) -> u64 {
        self.data_offset
    }

    /// Length of the data in bytes, a multiple of 4096; none if it ends at the device's end.
    pub fn segment_bytes(&self) -> Option<u64> {
        self.segment_bytes
    }

    /// The passphrase that a key-management service keeps, if there is one.
    pub fn kms_token(&self) -> Option<&KmsToken> {
        self.kms_token.as_ref()
    }

    /// Returns the text of a UUID in a header: hexadecimal with hyphens.
    pub fn uuid_text(uuid: [u8; 16]) -> String {
        let hex = hex::encode(uuid);
        [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
    }

    /// The UUID, as text with hyphens.
    pub fn uuid(&self) -> &str {
        &self.uuid
    }

    /// Returns true if one of the two copies is damaged: `cryptsetup repair` writes it again.
    pub fn is_degraded(&self) -> bool {
        self.is_degraded
    }
}

/// Names nothing that is secret.
impl std::fmt::Debug for Luks2Header {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Luks2Header").field("uuid", &self.uuid).finish_non_exhaustive()
    }
}

fn new_metadata(keyslot: &metadata::Keyslot, digest: &metadata::Digest) -> Metadata {
    let segment = metadata::Segment {
        kind: "crypt".into(),
        offset: DecimalText(HEADER_BYTES as u64),
        size: SegmentSize::Dynamic,
        iv_tweak: DecimalText(0),
        encryption: ENCRYPTION.into(),
        sector_size: SECTOR_BYTES as u64,
        integrity: None,
        flags: vec![],
    };
    Metadata {
        keyslots: numbered_zero(keyslot),
        tokens: BTreeMap::new(),
        segments: numbered_zero(&segment),
        digests: numbered_zero(digest),
        config: Config {
            json_size: DecimalText((DEFAULT_COPY_BYTES - binary_header::BLOCK_BYTES) as u64),
            keyslots_size: DecimalText((HEADER_BYTES - 2 * DEFAULT_COPY_BYTES) as u64),
            requirements: None,
        },
    }
}

fn numbered_zero(object: &impl serde::Serialize) -> metadata::Numbered {
    let value = serde_json::to_value(object).expect("the metadata is plain JSON");
    BTreeMap::from([("0".into(), value)])
}

fn check_config(metadata: &Metadata, copy: &HeaderCopy) -> Result<(), Luks2Error> {
    if metadata.config.json_size.0 != (copy.copy_bytes - binary_header::BLOCK_BYTES) as u64 {
        return Err(Luks2Error::damaged("its JSON has another size than its binary header"));
    }
    if metadata.keyslots.len() > MAX_KEYSLOTS || metadata.digests.len() > MAX_KEYSLOTS {
        return Err(Luks2Error::damaged(format!("it has more than {MAX_KEYSLOTS} keyslots or digests")));
    }
    // A requirement is a feature without which the data must not be touched, such as a
    // re-encryption that is under way.
    match &metadata.config.requirements {
        Some(requirements) if !requirements.mandatory.is_empty() => {
            Err(Luks2Error::unsupported(format!("the requirement '{}'", requirements.mandatory.join("', '"))))
        }
        _ => Ok(()),
    }
}

/// The number of the only segment, and the segment, if it is one that can be used.
fn only_segment(metadata: &Metadata) -> Result<(&str, metadata::Segment), Luks2Error> {
    let mut segments = metadata.segments.iter();
    let (Some((number, json)), None) = (segments.next(), segments.next()) else {
        return Err(Luks2Error::unsupported(format!("{} data segments instead of one", metadata.segments.len())));
    };
    if json["type"] != "crypt" {
        return Err(Luks2Error::unsupported(format!("a data segment of type {}", json["type"])));
    }
    let segment: metadata::Segment = parse("its data segment", json)?;
    if segment.integrity.is_some() || !segment.flags.is_empty() {
        return Err(Luks2Error::unsupported("a data segment with integrity tags or flags"));
    }
    if segment.encryption != ENCRYPTION {
        return Err(Luks2Error::unsupported(format!("the cipher '{}'", segment.encryption)));
    }
    if segment.sector_size != SECTOR_BYTES as u64 {
        return Err(Luks2Error::unsupported(format!("sectors of {} bytes", segment.sector_size)));
    }
    let size_is_whole = match segment.size {
        SegmentSize::Dynamic => true,
        SegmentSize::Bytes(bytes) => bytes > 0 && bytes.is_multiple_of(segment.sector_size),
    };
    if !size_is_whole || !segment.offset.0.is_multiple_of(segment.sector_size) {
        return Err(Luks2Error::unsupported("a data segment that is not made of whole blocks of 4096 bytes"));
    }
    Ok((number, segment))
}

/// The keyslots with these numbers in the order in which to try them, and why others are not tried.
fn read_keyslots(
    metadata: &Metadata,
    numbers: &[String],
    device: &[u8],
    areas: &std::ops::Range<u64>,
) -> (Vec<Keyslot>, Vec<String>) {
    let (mut keyslots, mut skipped) = (vec![], vec![]);
    for (number, json) in metadata.keyslots.iter().filter(|(number, _)| numbers.contains(number)) {
        match Keyslot::read(number, json, device, areas) {
            Ok(keyslot) if keyslot.priority == 0 => {
                skipped.push(format!("keyslot {number} (its priority is 'ignore')"))
            }
            Ok(keyslot) => keyslots.push(keyslot),
            Err(error) => skipped.push(format!("keyslot {number} ({error})")),
        }
    }
    keyslots.sort_by_key(|keyslot| Reverse(keyslot.priority));
    (keyslots, skipped)
}
