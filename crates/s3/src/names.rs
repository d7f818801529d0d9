//! Names of the gateway's objects and of the keys in a bucket's index (docs/reference/formats.md, "S3
//! objects").

use atoll_codec::crc32c;
use atoll_types::ObjectName;
use bytes::Bytes;

/// Longest S3 key, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 1_024;
/// Prefix of data that is in the index itself: `d/<data id>`.
const INLINE_PREFIX: &str = "d/";
/// Prefix of entries: `o/<S3 key>`.
pub(crate) const ENTRY_PREFIX: &[u8] = b"o/";
/// Prefix of multipart uploads: `u/<S3 key>\0<upload id>`.
pub(crate) const UPLOAD_PREFIX: &[u8] = b"u/";
/// Prefix of all parts: `p/<upload id>/<part number>`.
pub(crate) const PART_PREFIX: &[u8] = b"p/";
/// Prefix of garbage: `g/<about unix ms>/<random id>`.
pub(crate) const GARBAGE_PREFIX: &[u8] = b"g/";
/// Prefix of holds: `h/<data id>/<random id>`.
pub(crate) const HOLD_PREFIX: &[u8] = b"h/";
/// Prefix of intents: `x/w/<data id>`. One read finds them together with other keys under `x/`.
pub(crate) const INTENT_PREFIX: &[u8] = b"x/w/";
/// Prefix of versions that are not the newest of their key: `v/<S3 key>\0<version id>`, the newer first.
pub(crate) const VERSION_PREFIX: &[u8] = b"v/";
/// Prefix of an index object's keys about the bucket.
pub(crate) const SIGN_PREFIX: &[u8] = b"x/";
/// Set while the bucket is being deleted.
pub(crate) const DELETING_KEY: &[u8] = b"x/deleting";
/// The bucket's versioning for writers; missing in a bucket that never had any.
pub(crate) const VERSIONING_KEY: &[u8] = b"x/versioning";

/// Characters of a version id: when it was written, inverted, and 64 random bits.
const VERSION_ID_CHARS: usize = 32;

const UPLOAD_ID_CHARS: usize = 32;

fn object_name(name: String) -> ObjectName {
    ObjectName::new(&name).expect("the gateway's object names are short")
}

/// The object that holds chunk `number` of the data `id`.
pub(crate) fn chunk_object(id: &[u8; 16], number: u64) -> ObjectName {
    object_name(format!("s3d/{}/{number:x}", hex::encode(id)))
}

/// Returns the object that holds the data `id` beside an index object: in the same PG, which follows from the name
/// before the `@`.
pub(crate) fn beside_object(index: &ObjectName, id: &[u8; 16]) -> ObjectName {
    object_name(format!("{index}@{}", hex::encode(id)))
}

/// Returns the prefix of the names of all objects beside an index object.
pub(crate) fn beside_prefix(index: &ObjectName) -> Bytes {
    format!("{index}@").into()
}

/// Returns the id of the data in an object beside an index object.
pub(crate) fn beside_data_id(object: &ObjectName) -> Option<[u8; 16]> {
    let (_, id) = object.as_str().rsplit_once('@')?;
    hex::decode(id).ok()?.try_into().ok()
}

/// The index object `shard` of a bucket.
pub(crate) fn index_object(bucket_id: &str, shard: u32) -> ObjectName {
    object_name(format!("s3i/{bucket_id}/{shard}"))
}

/// The shard in which all records of an S3 key live.
pub(crate) fn shard_of(key: &str, shards: u32) -> u32 {
    crc32c(key.as_bytes()) % shards.max(1)
}

/// The index key of an object's entry.
pub(crate) fn entry_key(key: &str) -> Bytes {
    [ENTRY_PREFIX, key.as_bytes()].concat().into()
}

/// The index key of the data `id`, if the index is where it is.
pub(crate) fn inline_key(id: &[u8; 16]) -> Bytes {
    format!("{INLINE_PREFIX}{}", hex::encode(id)).into()
}

/// An S3 key as it stands in the index keys of versions. A zero byte is followed by one that no text
/// has, so that the versions of a key stand together, in the order of keys.
pub(crate) fn escaped(key: &[u8]) -> Vec<u8> {
    key.split_inclusive(|&byte| byte == 0).fold(Vec::new(), |mut escaped, part| {
        escaped.extend_from_slice(part);
        if part.ends_with(b"\0") {
            escaped.push(0xff);
        }
        escaped
    })
}

/// Prefix of the index keys of a key's versions that are not the newest.
pub(crate) fn versions_prefix(key: &str) -> Bytes {
    [VERSION_PREFIX, &escaped(key.as_bytes()), b"\0"].concat().into()
}

/// The index key of a version that is not the newest.
pub(crate) fn version_key(key: &str, place: &str) -> Bytes {
    [&versions_prefix(key)[..], place.as_bytes()].concat().into()
}

/// Takes the index key of a version, without `v/`, apart into S3 key and place.
pub(crate) fn parse_version_key(rest: &[u8]) -> Option<(String, &str)> {
    let (key, place) = rest.split_at_checked(rest.len().checked_sub(VERSION_ID_CHARS + 1)?)?;
    let place = std::str::from_utf8(place).ok()?.strip_prefix('\0')?;
    let bytes: Vec<u8> = key.iter().copied().filter(|&byte| byte != 0xff).collect();
    Some((String::from_utf8(bytes).ok()?, place))
}

/// The index key that says where the null version is, if it is not the newest.
pub(crate) fn null_key(key: &str) -> Bytes {
    [b"n/", key.as_bytes()].concat().into()
}

/// A fresh id for a version that is written at `unix_us`. Ids of newer versions are smaller.
pub(crate) fn new_version_id(unix_us: u64) -> String {
    format!("{:016x}{}", !unix_us, hex::encode(atoll_keys::random_bytes::<8>()))
}

/// Where the null version of this time stands among the versions of its key.
pub(crate) fn null_place(unix_us: u64) -> String {
    format!("{:016x}{:016x}", !unix_us, 0)
}

/// When the version with this id, or at this place, was written, in microseconds.
pub(crate) fn version_time_us(id: &str) -> Option<u64> {
    u64::from_str_radix(id.get(..VERSION_ID_CHARS / 2)?, 16).ok().map(|inverted| !inverted)
}

/// Returns true if this has the form of a version id; anything else cannot be one of ours.
pub(crate) fn is_version_id(text: &str) -> bool {
    text.len() == VERSION_ID_CHARS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The index key of a multipart upload.
pub(crate) fn upload_key(key: &str, upload_id: &str) -> Bytes {
    [UPLOAD_PREFIX, key.as_bytes(), b"\0", upload_id.as_bytes()].concat().into()
}

/// Takes an upload's index key apart into S3 key and upload id.
pub(crate) fn parse_upload_key(index_key: &[u8]) -> Option<(&str, &str)> {
    let rest = std::str::from_utf8(index_key.strip_prefix(UPLOAD_PREFIX)?).ok()?;
    let split = rest.len().checked_sub(UPLOAD_ID_CHARS + 1)?;
    let (key, upload_id) = (rest.get(..split)?, rest.get(split..)?);
    Some((key, upload_id.strip_prefix('\0')?))
}

/// A fresh upload id.
pub(crate) fn new_upload_id() -> String {
    hex::encode(atoll_keys::random_bytes::<{ UPLOAD_ID_CHARS / 2 }>())
}

/// Returns true if this has the form of an upload id; anything else cannot be one of ours.
pub(crate) fn is_upload_id(text: &str) -> bool {
    text.len() == UPLOAD_ID_CHARS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Prefix of the index keys of an upload's parts.
pub(crate) fn part_prefix(upload_id: &str) -> Bytes {
    [PART_PREFIX, upload_id.as_bytes(), b"/"].concat().into()
}

/// The index key of a part.
pub(crate) fn part_key(upload_id: &str, number: u32) -> Bytes {
    format!("p/{upload_id}/{number:05}").into()
}

/// The part number in a part's index key.
pub(crate) fn parse_part_number(index_key: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(index_key).ok()?;
    text.rsplit_once('/')?.1.parse().ok()
}

/// A fresh index key for garbage that arises at about `unix_ms`: the older comes first, as far as clocks agree.
pub(crate) fn garbage_key(unix_ms: u64) -> Bytes {
    format!("g/{unix_ms:016x}/{}", hex::encode(atoll_keys::random_bytes::<8>())).into()
}

/// The index key that says that data is being written which nothing names yet.
pub(crate) fn intent_key(data_id: &[u8; 16]) -> Bytes {
    [INTENT_PREFIX, hex::encode(data_id).as_bytes()].concat().into()
}

/// A fresh index key that keeps data while it is read.
pub(crate) fn hold_key(data_id: &[u8; 16]) -> Bytes {
    format!("h/{}/{}", hex::encode(data_id), hex::encode(atoll_keys::random_bytes::<8>())).into()
}

/// The data that a hold keeps.
pub(crate) fn parse_hold_key(index_key: &[u8]) -> Option<[u8; 16]> {
    let (data_id, _) = std::str::from_utf8(index_key.strip_prefix(HOLD_PREFIX)?).ok()?.split_once('/')?;
    hex::decode(data_id).ok()?.try_into().ok()
}

/// The smallest byte string that is greater than every string with this prefix; `None` if there is
/// none.
pub(crate) fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upload_keys_come_apart() {
        let id = new_upload_id();
        assert!(is_upload_id(&id));
        for key in ["a", "ä/ö", "with\0zero", ""] {
            assert_eq!(parse_upload_key(&upload_key(key, &id)), Some((key, id.as_str())));
        }
        assert_eq!(parse_upload_key(b"u/short"), None);
    }

    #[test]
    fn part_and_hold_keys_come_apart() {
        assert_eq!(parse_part_number(&part_key("00", 10_000)), Some(10_000));
        assert_eq!(parse_hold_key(&hold_key(&[7; 16])), Some([7; 16]));
        assert_eq!(parse_hold_key(b"h/zz/"), None);
    }

    #[test]
    fn version_keys_come_apart_and_are_in_the_order_of_keys() {
        let (old, new) = (new_version_id(1_000), new_version_id(1_001));
        assert!(new < old && is_version_id(&new) && version_time_us(&new) == Some(1_001));
        let keys = ["", "a", "a\0", "a\0b", "a\u{1}", "ab", "ä"];
        let mut all = Vec::new();
        for key in keys {
            for place in [&new, &old] {
                let index_key = version_key(key, place);
                assert_eq!(parse_version_key(&index_key[2..]), Some((key.to_owned(), place.as_str())));
                all.push(index_key);
            }
        }
        assert!(all.is_sorted());
        assert_eq!(parse_version_key(b"short"), None);
    }

    #[test]
    fn keys_fit_into_the_omap() {
        let longest = "x".repeat(KEY_BYTES_MAX);
        assert!(version_key(&longest, &new_version_id(0)).len() <= atoll_types::limits::OMAP_KEY_BYTES_MAX);
        assert!(upload_key(&longest, &new_upload_id()).len() <= atoll_types::limits::OMAP_KEY_BYTES_MAX);
    }

    #[test]
    fn prefix_ends_are_just_behind_the_prefix() {
        assert_eq!(prefix_end(b"a/"), Some(b"a0".to_vec()));
        assert_eq!(prefix_end(b"a\xff"), Some(b"b".to_vec()));
        assert_eq!(prefix_end(b"\xff"), None);
    }

    /// The hash decides where a key's records live: it may never change.
    #[test]
    fn shards_are_stable() {
        assert_eq!(shard_of("photos/2026/cat.jpg", 8), crc32c(b"photos/2026/cat.jpg") % 8);
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
