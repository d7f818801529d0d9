//! The two binary headers and their checksums (LUKS2 On-Disk Format Specification 1.1, chapter 2).
//!
//! A copy is a block of 4096 bytes, then JSON text, padded with zeros to the header size in the block. The primary
//! copy begins at byte 0, the secondary right behind it. All numbers are big-endian:
//!
//! ```text
//! offset  bytes
//!      0      6  magic: "LUKS" ba be; in the secondary copy "SKUL" ba be
//!      6      2  version, 2
//!      8      8  size of this copy with its JSON: 16 KiB to 4 MiB, a power of two
//!     16      8  sequence: the copy with the higher one is newer
//!     24     48  label
//!     72     32  name of the checksum's hash
//!    104     64  salt: random, so that no two headers have the same checksum
//!    168     40  UUID, as text
//!    208     48  subsystem
//!    256      8  position of this copy on the device
//!    448     64  checksum of the whole copy, with zeros in this place
//! ```

use crate::{Luks2Error, Luks2Hash};

/// Length of the block before the JSON.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Size of one copy in `cryptsetup` by default.
pub(crate) const DEFAULT_COPY_BYTES: usize = 16 << 10;
/// All sizes that a copy may have.
const COPY_SIZES: [usize; 9] =
    [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];

const PRIMARY_MAGIC: &[u8; 6] = b"LUKS\xba\xbe";
const SECONDARY_MAGIC: &[u8; 6] = b"SKUL\xba\xbe";
const VERSION: u16 = 2;
const CHECKSUM: std::ops::Range<usize> = 448..448 + Luks2Hash::MAX_BYTES;

/// One copy of the header whose checksum is right.
#[derive(Debug)]
pub(crate) struct HeaderCopy<'a> {
    pub(crate) copy_bytes: usize,
    pub(crate) uuid: String,
    /// The JSON text, without its padding.
    pub(crate) json: &'a [u8],
    sequence: u64,
}

/// Content of a place that should have a copy.
enum Flaw {
    /// No magic, so there may never have been a header.
    NoMagic,
    /// A header that another version of LUKS has written.
    OtherVersion(u16),
    /// A damaged header.
    Damaged(String),
}

/// The sound copies at the front of `area`, the newest first.
///
/// The position of the secondary copy is known only from the primary one. If that is damaged, the
/// secondary is looked for at every position that it may have.
pub(crate) fn find_copies(area: &[u8]) -> Result<Vec<HeaderCopy<'_>>, Luks2Error> {
    let primary = read_copy(area, 0);
    let secondary = match &primary {
        Ok(primary) => read_copy(area, primary.copy_bytes),
        Err(Flaw::OtherVersion(version)) => return Err(Luks2Error::unsupported(format!("version {version}"))),
        Err(_) => find_secondary(area),
    };
    match (primary, secondary) {
        (Ok(primary), Ok(secondary)) if secondary.sequence > primary.sequence => Ok(vec![secondary, primary]),
        (Ok(primary), Ok(secondary)) => Ok(vec![primary, secondary]),
        (Ok(copy), Err(_)) | (Err(_), Ok(copy)) => Ok(vec![copy]),
        (Err(Flaw::NoMagic), Err(Flaw::NoMagic)) => Err(Luks2Error::NotLuks2),
        (Err(primary), Err(secondary)) => Err(Luks2Error::damaged(format!(
            "the primary copy {}, the secondary copy {}",
            primary.describe(),
            secondary.describe()
        ))),
    }
}

fn find_secondary(area: &[u8]) -> Result<HeaderCopy<'_>, Flaw> {
    let mut flaw = Flaw::NoMagic;
    for place in COPY_SIZES {
        match read_copy(area, place) {
            Err(Flaw::NoMagic) => {}
            Err(other) => flaw = other,
            found => return found,
        }
    }
    Err(flaw)
}

impl Flaw {
    fn describe(&self) -> String {
        match self {
            Flaw::NoMagic => "is not there".into(),
            Flaw::OtherVersion(version) => format!("has version {version}"),
            Flaw::Damaged(detail) => detail.clone(),
        }
    }
}

fn read_copy(area: &[u8], place: usize) -> Result<HeaderCopy<'_>, Flaw> {
    let is_secondary = place > 0;
    let magic = if is_secondary { SECONDARY_MAGIC } else { PRIMARY_MAGIC };
    let bytes = area.get(place..).filter(|bytes| bytes.starts_with(magic)).ok_or(Flaw::NoMagic)?;
    let damaged = |detail: &str| Flaw::Damaged(detail.into());
    if bytes.len() < BLOCK_BYTES {
        return Err(damaged("is cut short"));
    }
    let version = u16::from_be_bytes(array(bytes, 6));
    if version != VERSION {
        return Err(Flaw::OtherVersion(version));
    }
    let copy_bytes = usize::try_from(u64::from_be_bytes(array(bytes, 8))).unwrap_or(usize::MAX);
    if !COPY_SIZES.contains(&copy_bytes) || (is_secondary && place != copy_bytes) {
        return Err(damaged("has a size that no header has"));
    }
    if u64::from_be_bytes(array(bytes, 256)) != place as u64 {
        return Err(damaged("has a position where it is not"));
    }
    let bytes = bytes.get(..copy_bytes).ok_or_else(|| damaged("is cut short"))?;
    verify_checksum(bytes)?;
    let json = &bytes[BLOCK_BYTES..];
    let json_end = json.iter().position(|byte| *byte == 0).ok_or_else(|| damaged("has no end of its JSON"))?;
    Ok(HeaderCopy {
        copy_bytes,
        uuid: text(&bytes[168..208]).ok_or_else(|| damaged("has no UUID"))?,
        json: &json[..json_end],
        sequence: u64::from_be_bytes(array(bytes, 16)),
    })
}

fn verify_checksum(copy: &[u8]) -> Result<(), Flaw> {
    let hash = match text(&copy[72..104]).as_deref() {
        Some("sha256") => Luks2Hash::Sha256,
        Some("sha512") => Luks2Hash::Sha512,
        _ => return Err(Flaw::Damaged("has a checksum of an unknown kind".into())),
    };
    let expected = checksum(hash, copy);
    if copy[CHECKSUM] == expected { Ok(()) } else { Err(Flaw::Damaged("has a wrong checksum".into())) }
}

/// The checksum field of `copy`: the digest, padded with zeros.
fn checksum(hash: Luks2Hash, copy: &[u8]) -> [u8; Luks2Hash::MAX_BYTES] {
    let digest = hash.digest(&[&copy[..CHECKSUM.start], &[0; Luks2Hash::MAX_BYTES], &copy[CHECKSUM.end..]]);
    let mut field = [0; Luks2Hash::MAX_BYTES];
    field[..digest.as_ref().len()].copy_from_slice(digest.as_ref());
    field
}

/// Both copies of a new header, one after the other. `json` must fit in a copy of the default size
/// with a zero byte behind it; each copy has a salt of its own.
pub(crate) fn write_copies(uuid: &str, json: &[u8], random: &mut impl FnMut(&mut [u8])) -> Vec<u8> {
    assert!(json.len() < DEFAULT_COPY_BYTES - BLOCK_BYTES, "a header with one keyslot fits");
    let mut copies = Vec::with_capacity(2 * DEFAULT_COPY_BYTES);
    for (place, magic) in [(0, PRIMARY_MAGIC), (DEFAULT_COPY_BYTES, SECONDARY_MAGIC)] {
        let mut copy = vec![0; DEFAULT_COPY_BYTES];
        let mut put = |offset: usize, bytes: &[u8]| copy[offset..offset + bytes.len()].copy_from_slice(bytes);
        put(0, magic);
        put(6, &VERSION.to_be_bytes());
        put(8, &(DEFAULT_COPY_BYTES as u64).to_be_bytes());
        put(16, &1_u64.to_be_bytes());
        put(72, b"sha256");
        put(168, uuid.as_bytes());
        put(256, &(place as u64).to_be_bytes());
        put(BLOCK_BYTES, json);
        random(&mut copy[104..168]);
        let checksum = checksum(Luks2Hash::Sha256, &copy);
        copy[CHECKSUM].copy_from_slice(&checksum);
        copies.append(&mut copy);
    }
    copies
}

fn array<const N: usize>(block: &[u8], offset: usize) -> [u8; N] {
    block[offset..offset + N].try_into().expect("a slice of N bytes has N bytes")
}

/// The text in a field that is padded with zeros, if it is printable ASCII.
fn text(field: &[u8]) -> Option<String> {
    let end = field.iter().position(|byte| *byte == 0)?;
    let is_printable = field[..end].iter().all(|byte| byte.is_ascii_graphic());
    (end > 0 && is_printable).then(|| String::from_utf8_lossy(&field[..end]).into_owned())
}
