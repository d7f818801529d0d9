//! Encryption of an object: its description in the index record, and the key that wraps its data keys.
//!
//! The data itself is always sealed alike, under fresh data keys. Kinds of encryption differ in whose
//! key wraps those: the bucket's own (SSE-S3), the bucket's for a named key of the key service
//! (SSE-KMS), or one that the client keeps (SSE-C). Where the operator wants it so, objects for which
//! no request asks for encryption are not sealed; its data keys encrypt nothing, but only gateways can
//! wrap them, so a bucket where that was never wanted has no such objects, whatever its index is made
//! to say.

use std::collections::BTreeMap;

use atoll_keys::{SecretKey, WRAPPED_KEY_BYTES, random_bytes, unwrap_key, wrap_key};
use atoll_seal::SegmentCipher;
use serde::{Deserialize, Serialize};

use crate::error::GatewayError;

/// The kind of encryption of an object or upload, as stored in its record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Encryption {
    /// SSE-S3.
    #[default]
    Bucket,
    /// SSE-KMS.
    Kms {
        /// The key of the key service; without a name the bucket's own key serves.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        key_name: Option<String>,
        /// The encryption context: without it the data keys do not open.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        context: BTreeMap<String, String>,
        /// True if S3 Bucket Keys were requested, which is only repeated in answers.
        #[serde(default)]
        bucket_key_enabled: bool,
    },
    /// SSE-C.
    Customer {
        /// A value wrapped by the client's key, to check if a key is the right one.
        check: String,
    },
    /// None: the data is stored as it is.
    Unsealed,
}

impl Encryption {
    /// For records: the usual kind is not written down.
    pub(crate) fn is_usual(&self) -> bool {
        *self == Encryption::Bucket
    }

    /// Returns true if ETags may be MD5 sums of the plaintext, by which others could recognise the object. S3
    /// promises them for these kinds only.
    pub(crate) fn has_md5_etag(&self) -> bool {
        matches!(self, Encryption::Bucket | Encryption::Unsealed)
    }

    /// A fresh record of a client's key, which itself is not kept.
    pub(crate) fn customer(bucket_id: &str, key: &SecretKey) -> Self {
        let check = wrap_key(key, &check_context(bucket_id), &SecretKey::from_bytes(random_bytes()));
        Encryption::Customer { check: hex::encode(check) }
    }
}

fn check_context(bucket_id: &str) -> String {
    format!("bucket {bucket_id} customer key")
}

/// Returns true if this is the key whose check was stored.
pub(crate) fn is_customer_key(bucket_id: &str, key: &SecretKey, check: &str) -> bool {
    hex::decode(check).is_ok_and(|check| unwrap_key(key, &check_context(bucket_id), &check).is_ok())
}

/// The key that wraps the data keys of one object.
#[derive(Clone)]
pub(crate) struct WrappingKey {
    key: SecretKey,
    bucket_id: String,
    /// Context of a data key beside bucket and data; empty but for an encryption context, and for unsealed data.
    binding: String,
    is_sealed: bool,
}

impl WrappingKey {
    pub(crate) fn new(key: SecretKey, bucket_id: &str, encryption: &Encryption) -> Self {
        let binding = match encryption {
            Encryption::Kms { context, .. } if !context.is_empty() => {
                format!(" context {}", serde_json::to_string(context).expect("a map of texts is plain JSON"))
            }
            Encryption::Unsealed => " unsealed".into(),
            _ => String::new(),
        };
        let is_sealed = *encryption != Encryption::Unsealed;
        WrappingKey { key, bucket_id: bucket_id.to_owned(), binding, is_sealed }
    }

    /// Returns the cipher of data under one of the data keys, if it is sealed.
    pub(crate) fn cipher(&self, data_id: &[u8; 16], data_key: &SecretKey) -> Option<SegmentCipher> {
        self.is_sealed.then(|| SegmentCipher::new(data_key, data_id))
    }

    /// Returns the context of a data key: it opens only this data of this bucket.
    fn context(&self, data_id: &[u8; 16]) -> String {
        format!("bucket {} data {}{}", self.bucket_id, hex::encode(data_id), self.binding)
    }

    pub(crate) fn wrap(&self, data_id: &[u8; 16], data_key: &SecretKey) -> [u8; WRAPPED_KEY_BYTES] {
        wrap_key(&self.key, &self.context(data_id), data_key)
    }

    pub(crate) fn unwrap(&self, data_id: &[u8; 16], wrapped: &[u8]) -> Result<SecretKey, GatewayError> {
        Ok(unwrap_key(&self.key, &self.context(data_id), wrapped)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_key_opens_only_in_its_context() {
        let encryption = |text: &str| Encryption::Kms {
            key_name: None,
            context: BTreeMap::from([("team".to_owned(), text.to_owned())]),
            bucket_key_enabled: false,
        };
        let (key, data_key) = (SecretKey::random(), SecretKey::random());
        let wrapping = |encryption: &Encryption| WrappingKey::new(key.clone(), "b1", encryption);
        let wrapped = wrapping(&encryption("blue")).wrap(&[7; 16], &data_key);
        assert_eq!(wrapping(&encryption("blue")).unwrap(&[7; 16], &wrapped).unwrap(), data_key);
        assert!(wrapping(&encryption("red")).unwrap(&[7; 16], &wrapped).is_err());
        assert!(wrapping(&Encryption::Bucket).unwrap(&[7; 16], &wrapped).is_err());
        assert!(wrapping(&Encryption::Unsealed).unwrap(&[7; 16], &wrapped).is_err());
        assert!(wrapping(&encryption("blue")).unwrap(&[8; 16], &wrapped).is_err());
    }

    /// A writer of the index cannot make sealed data count as unsealed data, or the other way round.
    #[test]
    fn a_data_key_says_whether_data_is_sealed() {
        let (key, data_key) = (SecretKey::random(), SecretKey::random());
        let [sealed, unsealed] =
            [Encryption::Bucket, Encryption::Unsealed].map(|kind| WrappingKey::new(key.clone(), "b1", &kind));
        assert!(sealed.cipher(&[7; 16], &data_key).is_some() && unsealed.cipher(&[7; 16], &data_key).is_none());
        assert!(unsealed.unwrap(&[7; 16], &sealed.wrap(&[7; 16], &data_key)).is_err());
        assert!(sealed.unwrap(&[7; 16], &unsealed.wrap(&[7; 16], &data_key)).is_err());
        assert!(unsealed.unwrap(&[7; 16], &unsealed.wrap(&[7; 16], &data_key)).is_ok());
    }

    #[test]
    fn customer_keys_are_recognised_and_not_stored() {
        let key = SecretKey::random();
        let Encryption::Customer { check } = Encryption::customer("b1", &key) else { panic!() };
        assert!(is_customer_key("b1", &key, &check));
        assert!(!is_customer_key("b1", &SecretKey::random(), &check));
        assert!(!is_customer_key("b2", &key, &check));
        assert!(!is_customer_key("b1", &key, "no"));
        assert!(!check.contains(&hex::encode(key.expose())));
    }

    #[test]
    fn the_usual_kind_reads_as_before() {
        assert_eq!(serde_json::to_string(&Encryption::Unsealed).unwrap(), r#""unsealed""#);
        let other =
            Encryption::Kms { key_name: Some("k".into()), context: BTreeMap::new(), bucket_key_enabled: true };
        let text = serde_json::to_string(&other).unwrap();
        assert_eq!(serde_json::from_str::<Encryption>(&text).unwrap(), other);
    }
}
