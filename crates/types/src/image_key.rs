//! Sealing of an image, as its record has it.

use serde::{Deserialize, Serialize};

/// Key of an image: a secret that the key-management service has wrapped, and its purpose. Records of releases
/// that sealed every image have a `wrapped_key`; these releases refuse records without one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageKey {
    /// The image key: blocks are sealed under keys that are derived from it.
    WrappedKey(String),
    /// Blocks are not sealed. The secret encrypts nothing; that the key service opens it shows that a user of the
    /// key service made an image of this id and name so, and not a user that can merely write cluster state.
    UnsealedPermit(String),
}

impl ImageKey {
    /// Returns true if blocks are sealed.
    pub fn is_sealed(&self) -> bool {
        matches!(self, ImageKey::WrappedKey(_))
    }

    /// The wrapped secret; empty once it was destroyed.
    pub fn wrapped(&self) -> &str {
        let (ImageKey::WrappedKey(wrapped) | ImageKey::UnsealedPermit(wrapped)) = self;
        wrapped
    }

    /// Returns the wrapped secret, to be rewrapped.
    pub fn wrapped_mut(&mut self) -> &mut String {
        let (ImageKey::WrappedKey(wrapped) | ImageKey::UnsealedPermit(wrapped)) = self;
        wrapped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record_json::{RecordError, read_record};
    use crate::records::ImageRecord;

    fn record(key: &str) -> Result<ImageRecord, RecordError> {
        let text = format!(
            r#"{{"format":1,"id":"01","name":"disk","size_bytes":4096,"object_bytes":4194304,"pool":1{key},
            "attach_ids":[],"writer_generation":3,"created_unix_ms":7}}"#
        );
        read_record(text.as_bytes())
    }

    #[test]
    fn records_of_earlier_releases_are_sealed() {
        let sealed = record(r#","wrapped_key":"local:1:ab""#).unwrap();
        assert_eq!(sealed.key, ImageKey::WrappedKey("local:1:ab".into()));
        assert!(sealed.key.is_sealed());
        let destroyed = record(r#","wrapped_key":"""#).unwrap();
        assert!(destroyed.key.is_sealed() && destroyed.key.wrapped().is_empty());
        assert!(matches!(record(""), Err(RecordError::Malformed(_))), "it must say one or the other");
    }

    #[test]
    fn unsealed_records_have_no_key_and_come_back_as_they_were() {
        let unsealed = record(r#","unsealed_permit":"local:1:cd""#).unwrap();
        assert!(!unsealed.key.is_sealed());
        let text = serde_json::to_string(&unsealed).unwrap();
        assert!(text.contains(r#""unsealed_permit":"local:1:cd""#) && !text.contains("wrapped_key"), "{text}");
        assert_eq!(read_record::<ImageRecord>(text.as_bytes()).unwrap(), unsealed);
    }
}
