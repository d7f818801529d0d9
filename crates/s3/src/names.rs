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
/// Prefix of garbage: `g/<unix ms>/<random id>`.
pub(crate) const GARBAGE_PREFIX: &[u8] = b"g/";
/// Set while the bucket is being deleted.
pub(crate) const DELETING_KEY: &[u8] = b"x/deleting";

const UPLOAD_ID_CHARS: usize = 32;

fn object_name(name: String) -> ObjectName {
    ObjectName::new(&name).expect("the gateway's object names are short")
}

/// The object that holds chunk `number` of the data `id`.
pub(crate) fn chunk_object(id: &[u8; 16], number: u64) -> ObjectName {
    object_name(format!("s3d/{}/{number:x}", hex::encode(id)))
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

/// Whether this has the form of an upload id; anything else cannot be one of ours.
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

/// A fresh index key for garbage that arises at `unix_ms`.
pub(crate) fn garbage_key(unix_ms: u64) -> Bytes {
    format!("g/{unix_ms:016x}/{}", hex::encode(atoll_keys::random_bytes::<8>())).into()
}

/// When the garbage under this index key arose.
pub(crate) fn parse_garbage_time(index_key: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(index_key.strip_prefix(GARBAGE_PREFIX)?).ok()?;
    u64::from_str_radix(text.split_once('/')?.0, 16).ok()
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
    fn part_and_garbage_keys_come_apart() {
        assert_eq!(parse_part_number(&part_key("00", 10_000)), Some(10_000));
        assert_eq!(parse_garbage_time(&garbage_key(1_234)), Some(1_234));
        assert_eq!(parse_garbage_time(b"g/zz"), None);
    }

    #[test]
    fn keys_fit_into_the_omap() {
        let longest = "x".repeat(KEY_BYTES_MAX);
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
