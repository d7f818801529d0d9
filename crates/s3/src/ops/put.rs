//! PutObject.

use atoll_types::limits::OMAP_KEY_BYTES_MAX;
use http::HeaderMap;
use s3s::dto::{PutObjectInput, PutObjectOutput};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::Service;
use super::answers::{
    checked_metadata, checksum_type, content_headers, entry_checksum_type, etag, set_checksums, wanted_class,
};
use super::body::{BodyLength, Purpose, Target, Upload, body_length};
use super::conditions::WriteConditions;
use super::encryption::{context_answer, set_encryption, wanted_headers};
use super::object_lock::lock_headers;
use super::tagging::header_tags;
use crate::access::{Asking, SealedFor};
use crate::clock::unix_ms;
use crate::digest::{Algorithm, Expected};
use crate::names::{KEY_BYTES_MAX, null_place, version_key};
use crate::record::EntryHead;
use crate::trailers::Trailers;
use crate::versions::Change;

/// Refuses a key that cannot be stored.
pub(super) fn check_key(key: &str) -> S3Result<()> {
    match key.len() {
        0 => Err(s3_error!(InvalidArgument, "A key must have at least one character")),
        // As a version's, a key with many zero bytes is longer.
        1..=KEY_BYTES_MAX if version_key(key, &null_place(0)).len() < OMAP_KEY_BYTES_MAX => Ok(()),
        _ => Err(s3_error!(KeyTooLongError, "Your key is too long; it may have {KEY_BYTES_MAX} bytes")),
    }
}

/// Refuses a checksum type that is not the object's.
pub(super) fn check_checksum_type(headers: &HeaderMap, is_composite: bool) -> S3Result<()> {
    let own = checksum_type(is_composite);
    match headers.get("x-amz-checksum-type") {
        Some(wanted) if wanted.as_bytes() != own.as_str().as_bytes() => {
            Err(s3_error!(InvalidRequest, "The checksum type of the object is {}", own.as_str()))
        }
        _ => Ok(()),
    }
}

impl Service {
    pub(super) async fn put_object(
        &self,
        request: S3Request<PutObjectInput>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let length = body_length(&request.headers, request.input.content_length);
        self.put_object_of(request, length).await
    }

    /// The same, for a body of this length. Nothing is visible unless all of the body arrives.
    pub(crate) async fn put_object_of(
        &self,
        request: S3Request<PutObjectInput>,
        length: Option<BodyLength>,
    ) -> S3Result<S3Response<PutObjectOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let mut input = request.input;
        let key = input.key;
        check_key(&key)?;
        if input.write_offset_bytes.is_some() {
            return Err(s3_error!(NotImplemented, "Appends are not supported"));
        }
        let tags = header_tags(input.tagging.as_deref())?;
        let metadata = checked_metadata(input.metadata.take())?;
        let headers = content_headers!(input);
        let mut expected = Expected::from_headers(&request.headers)?;
        check_checksum_type(&request.headers, false)?;
        if let Some(algorithm) = &input.checksum_algorithm {
            expected.add_algorithm(Algorithm::parse(algorithm.as_str())?);
        }

        let wanted = wanted_headers!(input);
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        let lock = lock_headers!(self, input, &index);
        let access = self.new_access(&asking, &request.headers, &index.bucket, &key)?;
        let conditions =
            WriteConditions { if_match: input.if_match, if_none_match: input.if_none_match, ..Default::default() };
        self.check_reading_by_conditions(&asking, &index, &key, None).await?;
        // Better before the body is taken in than after it.
        self.check_conditions(&index, &key, &conditions).await?;
        let sealed = SealedFor { asking: &asking, bucket: &index.bucket, key: &key };
        let sealing = self.sealing_to_write(&sealed, wanted, &request.extensions).await?;
        let trailers = Trailers::of(&request.extensions, request.trailing_headers);
        let upload = Upload { body: input.body, length, expected, trailers };
        let budget = self.budget_of(&request.extensions);
        let target = Target {
            index: &index,
            object_key: &key,
            key: &sealing.key,
            budget: &budget,
            purpose: Purpose::Object,
        };
        let stored = self.store_body(target, upload).await?;
        let head = EntryHead {
            size: stored.bytes,
            etag: stored.etag(&sealing.encryption),
            modified_ms: unix_ms(),
            headers,
            metadata,
            checksums: stored.digests.checksums,
            encryption: sealing.encryption.clone(),
            tags,
            lock,
            storage_class: wanted_class(&request.headers),
            owner: access.owner,
            acl: access.acl,
            ..Default::default()
        };
        let entry = (&head, stored.piece.as_slice());
        let written =
            self.write_version(&index, &key, entry, &conditions, &Change::default(), Some(stored.data)).await;
        let head = self.note_write(&input.bucket, written)?.head;

        let mut output = PutObjectOutput {
            e_tag: Some(etag(&head.etag)),
            version_id: head.version_id.clone(),
            checksum_type: entry_checksum_type(&head),
            ssekms_encryption_context: context_answer(&sealing.encryption),
            ..Default::default()
        };
        set_encryption!(output, sealing.answer());
        set_checksums!(output, head.checksums);
        Ok(S3Response::new(output))
    }
}
