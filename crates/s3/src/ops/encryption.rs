//! Encryption in requests and answers: SSE-S3, SSE-KMS and SSE-C.

use std::collections::BTreeMap;

use atoll_iam::arn::parse_kms_key_arn;
use atoll_keys::{DEFAULT_KEY, KeyError, SecretKey, is_key_name};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{Extensions, StatusCode};
use md5::{Digest, Md5};
use s3s::dto::ServerSideEncryption;
use s3s::{S3Error, S3Result, s3_error};
use zeroize::Zeroizing;

use super::Service;
use crate::access::{KeyUse, SealedFor};
use crate::arrival::Arrival;
use crate::bucket::Bucket;
use crate::encryption::{Encryption, WrappingKey, is_customer_key};
use crate::error::{GatewayError, custom_error};

/// Bytes of an encryption context, as JSON in Base64.
const CONTEXT_BYTES_MAX: usize = 8 << 10;

/// The headers of a key that the client keeps.
#[derive(Default)]
pub(super) struct CustomerHeaders {
    pub algorithm: Option<String>,
    pub key: Option<String>,
    pub md5: Option<String>,
}

/// The headers with which a new object or upload is encrypted.
pub(super) struct WantedHeaders {
    pub algorithm: Option<ServerSideEncryption>,
    pub key_id: Option<String>,
    pub context: Option<String>,
    pub bucket_key_enabled: Option<bool>,
    pub customer: CustomerHeaders,
}

/// A client's own key.
#[derive(Clone)]
pub(super) struct CustomerKey {
    key: SecretKey,
    /// As the client sent it; answers repeat it.
    md5: String,
}

/// An object's encryption with the key at hand.
pub(super) struct Sealing {
    pub encryption: Encryption,
    pub key: WrappingKey,
    customer_md5: Option<String>,
}

/// Collects the headers of a client's own key.
macro_rules! customer_headers {
    ($input:expr) => {
        $crate::ops::encryption::CustomerHeaders {
            algorithm: $input.sse_customer_algorithm.take(),
            key: $input.sse_customer_key.take(),
            md5: $input.sse_customer_key_md5.take(),
        }
    };
}
pub(super) use customer_headers;

/// Collects the headers of the client's own key for the source of a copy.
macro_rules! source_customer_headers {
    ($input:expr) => {
        $crate::ops::encryption::CustomerHeaders {
            algorithm: $input.copy_source_sse_customer_algorithm.take(),
            key: $input.copy_source_sse_customer_key.take(),
            md5: $input.copy_source_sse_customer_key_md5.take(),
        }
    };
}
pub(super) use source_customer_headers;

/// Collects the headers with which something new is to be encrypted.
macro_rules! wanted_headers {
    ($input:expr) => {
        $crate::ops::encryption::WantedHeaders {
            algorithm: $input.server_side_encryption.take(),
            key_id: $input.ssekms_key_id.take(),
            context: $input.ssekms_encryption_context.take(),
            bucket_key_enabled: $input.bucket_key_enabled.take(),
            customer: $crate::ops::encryption::customer_headers!($input),
        }
    };
}
pub(super) use wanted_headers;

/// Fills the fields about encryption that all answers have.
macro_rules! set_encryption {
    ($output:expr, $answer:expr) => {{
        let (output, answer) = (&mut $output, $answer);
        output.server_side_encryption = answer.algorithm;
        output.ssekms_key_id = answer.key_id;
        output.bucket_key_enabled = answer.bucket_key_enabled;
        output.sse_customer_algorithm = answer.customer_algorithm;
        output.sse_customer_key_md5 = answer.customer_md5;
    }};
}
pub(super) use set_encryption;

/// Encryption in an answer.
#[derive(Default)]
pub(super) struct EncryptionAnswer {
    pub algorithm: Option<ServerSideEncryption>,
    pub key_id: Option<String>,
    pub bucket_key_enabled: Option<bool>,
    pub customer_algorithm: Option<String>,
    pub customer_md5: Option<String>,
}

/// Returns the fields of answers for an object that is encrypted so.
pub(super) fn encryption_answer(encryption: &Encryption, customer_md5: Option<String>) -> EncryptionAnswer {
    let algorithm = |name: &'static str| Some(ServerSideEncryption::from_static(name));
    match encryption {
        Encryption::Bucket => {
            EncryptionAnswer { algorithm: algorithm(ServerSideEncryption::AES256), ..Default::default() }
        }
        Encryption::Kms { key_name, bucket_key_enabled, .. } => EncryptionAnswer {
            algorithm: algorithm(ServerSideEncryption::AWS_KMS),
            key_id: Some(key_name.clone().unwrap_or_else(|| DEFAULT_KEY.into())),
            bucket_key_enabled: bucket_key_enabled.then_some(true),
            ..Default::default()
        },
        Encryption::Customer { .. } => EncryptionAnswer {
            customer_algorithm: Some(ServerSideEncryption::AES256.into()),
            customer_md5,
            ..Default::default()
        },
        Encryption::Unsealed => EncryptionAnswer::default(),
    }
}

/// The encryption context of an answer: JSON in Base64.
pub(super) fn context_answer(encryption: &Encryption) -> Option<String> {
    match encryption {
        Encryption::Kms { context, .. } if !context.is_empty() => {
            Some(BASE64.encode(serde_json::to_string(context).ok()?))
        }
        _ => None,
    }
}

impl Sealing {
    pub(super) fn answer(&self) -> EncryptionAnswer {
        encryption_answer(&self.encryption, self.customer_md5.clone())
    }
}

impl CustomerHeaders {
    /// The key in the headers, if there are any. A key that could be read on its way is refused.
    pub(super) fn key(self, extensions: &Extensions) -> S3Result<Option<CustomerKey>> {
        let (algorithm, key, md5) = match (self.algorithm, self.key, self.md5) {
            (None, None, None) => return Ok(None),
            (Some(algorithm), Some(key), Some(md5)) => (algorithm, key, md5),
            _ => {
                return Err(s3_error!(
                    InvalidArgument,
                    "Requests specifying Server Side Encryption with Customer provided keys must provide the algorithm, the key, and its MD5"
                ));
            }
        };
        if !extensions.get::<Arrival>().is_some_and(|arrival| arrival.is_encrypted) {
            return Err(s3_error!(
                InvalidRequest,
                "Requests specifying Server Side Encryption with Customer provided keys must be made over a secure connection"
            ));
        }
        if algorithm != ServerSideEncryption::AES256 {
            return Err(s3_error!(
                InvalidEncryptionAlgorithmError,
                "The encryption request you specified is not valid. Supported value: AES256"
            ));
        }
        let decoded = BASE64.decode(&key).map(Zeroizing::new);
        let bytes: Option<&[u8; 32]> = decoded.as_ref().ok().and_then(|bytes| bytes[..].try_into().ok());
        let Some(bytes) = bytes else {
            return Err(s3_error!(
                InvalidArgument,
                "The secret key was invalid for the specified algorithm: it must have 256 bits"
            ));
        };
        if BASE64.decode(&md5).ok().as_deref() != Some(&Md5::digest(bytes)[..]) {
            return Err(s3_error!(
                InvalidArgument,
                "The calculated MD5 hash of the key did not match the hash that was provided"
            ));
        }
        Ok(Some(CustomerKey { key: SecretKey::from_bytes(*bytes), md5 }))
    }
}

/// A client's context as a map: JSON of texts in Base64.
fn parse_context(text: &str) -> S3Result<BTreeMap<String, String>> {
    let invalid =
        || s3_error!(InvalidArgument, "The encryption context must be a JSON object of texts, in Base64");
    if text.len() > CONTEXT_BYTES_MAX {
        return Err(s3_error!(InvalidArgument, "The encryption context may have {CONTEXT_BYTES_MAX} bytes"));
    }
    let bytes = BASE64.decode(text).map_err(|_| invalid())?;
    serde_json::from_slice(&bytes).map_err(|_| invalid())
}

/// Returns the key of the key service for a key id: the id itself, or the part behind the last slash of an ARN or
/// alias. `None` is the service's own choice.
pub(crate) fn parse_key_id(text: &str) -> S3Result<Option<String>> {
    let name = text.rsplit('/').next().unwrap_or_default();
    let name = name.strip_prefix("arn:aws:kms:").unwrap_or(name);
    if !is_key_name(name) {
        return Err(no_such_kms_key(text));
    }
    Ok((name != DEFAULT_KEY).then(|| name.to_owned()))
}

pub(super) fn no_such_kms_key(key_id: &str) -> S3Error {
    let message = format!("The key '{key_id}' does not exist in the key service; 'atoll key create' makes one");
    custom_error("KMS.NotFoundException", StatusCode::BAD_REQUEST, message)
}

impl WantedHeaders {
    /// Returns the encryption by the headers and the bucket's default.
    fn resolve(self, bucket: &Bucket, extensions: &Extensions) -> S3Result<(Encryption, Option<CustomerKey>)> {
        if let Some(customer) = self.customer.key(extensions)? {
            if self.algorithm.is_some() {
                return Err(s3_error!(
                    InvalidArgument,
                    "Server Side Encryption with Customer provided key is incompatible with the encryption method specified"
                ));
            }
            return Ok((Encryption::customer(&bucket.record.id, &customer.key), Some(customer)));
        }
        let has_kms_headers = self.key_id.is_some() || self.context.is_some();
        let default = bucket.record.default_encryption.clone().unwrap_or_default();
        let is_kms = match self.algorithm.as_ref().map(ServerSideEncryption::as_str) {
            Some(ServerSideEncryption::AWS_KMS) => true,
            Some(ServerSideEncryption::AES256) => false,
            None if has_kms_headers => {
                return Err(s3_error!(
                    InvalidArgument,
                    "The key id and encryption context need x-amz-server-side-encryption: aws:kms"
                ));
            }
            None if !bucket.record.seals_by_default() => return Ok((Encryption::Unsealed, None)),
            None => default.is_kms,
            Some(ServerSideEncryption::AWS_KMS_DSSE) => {
                return Err(s3_error!(NotImplemented, "Dual-layer encryption (aws:kms:dsse) is not supported"));
            }
            Some(other) => {
                return Err(s3_error!(InvalidArgument, "The encryption method '{other}' is not supported"));
            }
        };
        if !is_kms {
            if has_kms_headers {
                return Err(s3_error!(InvalidArgument, "A key id or encryption context does not go with AES256"));
            }
            return Ok((Encryption::Bucket, None));
        }
        let key_name = match &self.key_id {
            Some(key_id) => parse_key_id(key_id)?,
            None => default.key_name.filter(|_| default.is_kms),
        };
        let context = self.context.as_deref().map(parse_context).transpose()?.unwrap_or_default();
        let bucket_key_enabled = self.bucket_key_enabled.unwrap_or(default.bucket_key_enabled);
        Ok((Encryption::Kms { key_name, context, bucket_key_enabled }, None))
    }
}

impl Service {
    /// May who asks use the key of an object?
    pub(super) fn check_key_use(
        &self,
        sealed: &SealedFor<'_>,
        key_use: KeyUse,
        encryption: &Encryption,
    ) -> S3Result<()> {
        match encryption {
            Encryption::Kms { .. } => {
                sealed.check(key_use, encryption, &self.directory.identities(), &self.region)
            }
            Encryption::Bucket | Encryption::Customer { .. } | Encryption::Unsealed => Ok(()),
        }
    }

    /// Makes sure that an ARN names the account that its key belongs to.
    pub(super) fn check_key_account(&self, key_id: &str) -> S3Result<()> {
        let Some((account, name)) = parse_kms_key_arn(key_id) else { return Ok(()) };
        match self.directory.identities().kms_key(name) {
            Some(entry) if account != entry.record.account => Err(no_such_kms_key(key_id)),
            _ => Ok(()),
        }
    }

    /// How something new is encrypted, by the request and the bucket's default.
    pub(super) async fn sealing_to_write(
        &self,
        sealed: &SealedFor<'_>,
        wanted: WantedHeaders,
        extensions: &Extensions,
    ) -> S3Result<Sealing> {
        let bucket = sealed.bucket;
        let key_id = wanted.key_id.clone();
        let (encryption, customer) = wanted.resolve(bucket, extensions)?;
        key_id.as_deref().map_or(Ok(()), |key_id| self.check_key_account(key_id))?;
        self.check_key_use(sealed, KeyUse::GenerateDataKey, &encryption)?;
        if encryption == Encryption::Unsealed {
            self.buckets.check_unsealed_permit(&bucket.record).await?;
        }
        let key = match (&encryption, &customer) {
            (_, Some(customer)) => customer.key.clone(),
            (Encryption::Kms { key_name: Some(name), .. }, _) => {
                match self.buckets.named_key_to_write(&bucket.record, name).await {
                    Err(GatewayError::Key(KeyError::NoSuchKey { .. })) => return Err(no_such_kms_key(name)),
                    other => other?,
                }
            }
            _ => self.buckets.own_key(&bucket.record).await?,
        };
        let key = WrappingKey::new(key, &bucket.record.id, &encryption);
        Ok(Sealing { encryption, key, customer_md5: customer.map(|customer| customer.md5) })
    }

    /// Adds to an upload that is encrypted so, for a request with these headers. Its record alone does not
    /// have data stored without sealing: OSDs keep it.
    pub(super) async fn sealing_of_upload(
        &self,
        sealed: &SealedFor<'_>,
        encryption: &Encryption,
        customer: Option<CustomerKey>,
    ) -> S3Result<Sealing> {
        let bucket = sealed.bucket;
        if *encryption == Encryption::Unsealed {
            self.buckets.check_unsealed_permit(&bucket.record).await?;
        }
        check_key_of_write(bucket, encryption, customer.as_ref())?;
        self.sealing_of(sealed, encryption, customer).await
    }

    /// Opens an object that is encrypted so, for a request with these headers.
    pub(super) async fn sealing_of(
        &self,
        sealed: &SealedFor<'_>,
        encryption: &Encryption,
        customer: Option<CustomerKey>,
    ) -> S3Result<Sealing> {
        let bucket = sealed.bucket;
        self.check_key_use(sealed, KeyUse::Decrypt, encryption)?;
        let customer_md5 = check_customer_key(bucket, encryption, customer.as_ref())?;
        let key = match (encryption, customer) {
            (Encryption::Customer { .. }, Some(customer)) => customer.key,
            (Encryption::Kms { key_name: Some(name), .. }, _) => {
                self.buckets.named_key(&bucket.record, name).await?
            }
            _ => self.buckets.own_key(&bucket.record).await?,
        };
        let key = WrappingKey::new(key, &bucket.record.id, encryption);
        Ok(Sealing { encryption: encryption.clone(), key, customer_md5 })
    }
}

/// Checks that the client gave the key that the object needs, and none if it needs none. Returns the field that
/// the answer repeats.
pub(super) fn check_customer_key(
    bucket: &Bucket,
    encryption: &Encryption,
    customer: Option<&CustomerKey>,
) -> S3Result<Option<String>> {
    match (encryption, customer) {
        (Encryption::Customer { check }, Some(customer)) => {
            if !is_customer_key(&bucket.record.id, &customer.key, check) {
                return Err(s3_error!(
                    AccessDenied,
                    "The provided encryption parameters did not match the ones used originally"
                ));
            }
            Ok(Some(customer.md5.clone()))
        }
        (Encryption::Customer { .. }, None) => Err(s3_error!(
            InvalidRequest,
            "The object was stored using a form of Server Side Encryption. The correct parameters must be provided to retrieve the object"
        )),
        (_, Some(_)) => {
            Err(s3_error!(InvalidRequest, "The encryption parameters are not applicable to this object"))
        }
        (_, None) => Ok(None),
    }
}

/// As [`check_customer_key`], for a request that writes with the key of an upload, or of the source of a copy: a
/// wrong one is an error of the request, since rights are needed for the target.
pub(super) fn check_key_of_write(
    bucket: &Bucket,
    encryption: &Encryption,
    customer: Option<&CustomerKey>,
) -> S3Result<()> {
    let checked = check_customer_key(bucket, encryption, customer);
    checked.map(drop).map_err(|error| s3_error!(InvalidRequest, "{}", error.message().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_ids_are_names_arns_and_aliases() {
        let parse = |text| parse_key_id(text).unwrap();
        assert_eq!(parse("project"), Some("project".into()));
        assert_eq!(parse("alias/project"), Some("project".into()));
        assert_eq!(parse("arn:aws:kms:us-east-1:1:key/project"), Some("project".into()));
        assert_eq!(parse("arn:aws:kms:project"), Some("project".into()));
        assert_eq!(parse(DEFAULT_KEY), None);
        assert!(parse_key_id("a b").is_err());
        assert!(parse_key_id("").is_err());
    }

    #[test]
    fn contexts_are_json_of_texts() {
        let context = parse_context(&BASE64.encode(r#"{"team":"blue"}"#)).unwrap();
        assert_eq!(context["team"], "blue");
        for wrong in ["{}", &BASE64.encode("[1]"), &BASE64.encode(r#"{"a":1}"#), &"A".repeat(9_000)] {
            assert!(parse_context(wrong).is_err());
        }
    }
}
