//! Multipart uploads: beginning one, adding parts, giving up.
//!
//! An upload's record never changes while it is open, and every part's index change demands it
//! byte for byte. Completing and aborting first write a closing note into the record: from then on
//! no part can come or go, and of several that close at once only the last to note itself wins.

use std::ops::Range;
use std::time::Instant;

use atoll_types::{Condition, Mutation};
use bytes::Bytes;
use http::HeaderMap;
use s3s::dto::{
    AbortMultipartUploadInput, AbortMultipartUploadOutput, ChecksumAlgorithm, ChecksumType, CopyPartResult,
    CreateMultipartUploadInput, CreateMultipartUploadOutput, UploadPartCopyInput, UploadPartCopyOutput,
    UploadPartInput, UploadPartOutput,
};
use s3s::{S3Error, S3Request, S3Response, S3Result, s3_error};

use super::Service;
use super::answers::{
    checked_metadata, checksum_type, content_headers, etag, set_checksums, timestamp, wanted_class,
};
use super::body::{Purpose, StoredBody, Target, Upload, body_length};
use super::conditions::ReadConditions;
use super::encryption::{
    context_answer, customer_headers, encryption_answer, set_encryption, source_customer_headers, wanted_headers,
};
use super::entries::{pause_before, version_answer};
use super::object_lock::lock_headers;
use super::put::check_key;
use super::tagging::header_tags;
use crate::access::{Asking, SealedFor};
use crate::clock::unix_ms;
use crate::digest::{Algorithm, Expected};
use crate::encryption::Encryption;
use crate::error::GatewayError;
use crate::index::Index;
use crate::names::{garbage_key, is_upload_id, new_upload_id, part_key, part_prefix, upload_key};
use crate::record::{Closing, PartHead, UploadHead, decode_head, encode};
use crate::trailers::Trailers;

/// Parts of one upload.
pub(super) const PARTS_MAX: i32 = 10_000;
/// Factor by which a completion or abort counts as dead sooner than other idle work.
const CLOSING_IS_SOONER: u32 = 10;
/// Attempts to close an upload after another request has taken the note for that of a dead one.
pub(super) const CLOSINGS_MAX: u32 = 8;

/// A multipart upload as found in the index.
pub(super) struct OpenUpload {
    pub head: UploadHead,
    /// The record as stored, for conditions.
    pub value: Bytes,
}

pub(super) fn being_closed() -> S3Error {
    s3_error!(OperationAborted, "The upload is being completed or aborted by another request")
}

fn no_such_upload() -> S3Error {
    s3_error!(
        NoSuchUpload,
        "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or completed"
    )
}

/// The condition that an upload's record is still this one.
pub(super) fn unchanged(key: &str, upload_id: &str, value: &Bytes) -> Condition {
    Condition::OmapEquals { key: upload_key(key, upload_id), value: value.clone() }
}

impl Service {
    pub(super) async fn create_multipart_upload(
        &self,
        request: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let mut input = request.input;
        let key = input.key;
        check_key(&key)?;
        let wanted = wanted_headers!(input);
        let tags = header_tags(input.tagging.as_deref())?;
        let metadata = checked_metadata(input.metadata.take())?;
        let headers = content_headers!(input);
        let algorithm =
            input.checksum_algorithm.as_ref().map(|name| Algorithm::parse(name.as_str())).transpose()?;
        let is_composite = match (algorithm, input.checksum_type.as_ref().map(ChecksumType::as_str)) {
            (None, _) | (Some(Algorithm::Crc64Nvme), None) => false,
            (Some(_), None) => true,
            (Some(Algorithm::Crc64Nvme), Some(ChecksumType::COMPOSITE))
            | (Some(Algorithm::Sha1 | Algorithm::Sha256), Some(ChecksumType::FULL_OBJECT)) => {
                return Err(s3_error!(InvalidRequest, "This checksum type cannot be used with this algorithm"));
            }
            (Some(_), Some(name)) => name == ChecksumType::COMPOSITE,
        };
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        let lock = lock_headers!(self, input, &index);
        let access = self.new_access(&asking, &request.headers, &index.bucket, &key)?;
        let sealed = SealedFor { asking: &asking, bucket: &index.bucket, key: &key };
        let sealing = self.sealing_to_write(&sealed, wanted, &request.extensions).await?;
        let head = UploadHead {
            initiated_ms: unix_ms(),
            owner: asking.permit.canonical_id().to_owned(),
            headers,
            metadata,
            checksum_algorithm: algorithm.map(|algorithm| algorithm.name().to_owned()),
            checksum_is_composite: is_composite,
            encryption: sealing.encryption.clone(),
            closing: None,
            tags,
            lock,
            storage_class: wanted_class(&request.headers),
            object_owner: access.owner,
            acl: access.acl,
        };
        let upload_id = new_upload_id();
        let change = Mutation::OmapSet { key: upload_key(&key, &upload_id), value: encode(&head, &[]) };
        self.note(&input.bucket, index.change(&key, Vec::new(), vec![change]).await)?;
        let mut output = CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            checksum_algorithm: head.checksum_algorithm.clone().map(ChecksumAlgorithm::from),
            checksum_type: head.checksum_algorithm.is_some().then(|| checksum_type(is_composite)),
            key: Some(key),
            upload_id: Some(upload_id),
            ssekms_encryption_context: context_answer(&sealing.encryption),
            ..Default::default()
        };
        set_encryption!(output, sealing.answer());
        Ok(S3Response::new(output))
    }

    /// The upload of this id for this key, in any state.
    pub(super) async fn upload(&self, index: &Index, key: &str, upload_id: &str) -> S3Result<OpenUpload> {
        if !is_upload_id(upload_id) {
            return Err(no_such_upload());
        }
        let found = index.get(key, upload_key(key, upload_id)).await;
        let value = self.note(&index.bucket.record.name, found)?.ok_or_else(no_such_upload)?;
        Ok(OpenUpload { head: decode_head(&value)?, value })
    }

    /// The upload, open for parts. A closing note whose writer died is withdrawn.
    async fn open_upload(&self, index: &Index, key: &str, upload_id: &str) -> S3Result<OpenUpload> {
        let upload = self.upload(index, key, upload_id).await?;
        match &upload.head.closing {
            None => Ok(upload),
            Some(closing) if self.is_closing_abandoned(closing) => {
                self.set_closing(index, key, upload_id, upload, None).await
            }
            Some(_) => Err(being_closed()),
        }
    }

    fn is_closing_abandoned(&self, closing: &Closing) -> bool {
        let after = self.abandoned_after / CLOSING_IS_SOONER;
        self.standing.is_since(&closing.token, after, Instant::now())
    }

    /// Returns the error for an upload that has changed since it was read: it is gone, or is being closed.
    async fn why_changed(&self, index: &Index, key: &str, upload_id: &str) -> S3Error {
        match self.upload(index, key, upload_id).await {
            Ok(_) => being_closed(),
            Err(error) => error,
        }
    }

    /// Writes or withdraws the closing note, if the upload's record is still the one given.
    pub(super) async fn set_closing(
        &self,
        index: &Index,
        key: &str,
        upload_id: &str,
        upload: OpenUpload,
        closing: Option<Closing>,
    ) -> S3Result<OpenUpload> {
        let head = UploadHead { closing, ..upload.head };
        let value = encode(&head, &[]);
        let change = Mutation::OmapSet { key: upload_key(key, upload_id), value: value.clone() };
        match index.change(key, vec![unchanged(key, upload_id, &upload.value)], vec![change]).await {
            Err(GatewayError::ConditionFailed(_)) => Err(self.why_changed(index, key, upload_id).await),
            result => {
                self.note(&index.bucket.record.name, result)?;
                Ok(OpenUpload { head, value })
            }
        }
    }

    /// Closes an upload for parts, on behalf of a completion or an abort.
    pub(super) async fn close_upload(&self, index: &Index, key: &str, upload_id: &str) -> S3Result<OpenUpload> {
        let upload = self.upload(index, key, upload_id).await?;
        let token = hex::encode(atoll_keys::random_bytes::<8>());
        let closing = Closing { token, since_ms: unix_ms() };
        self.set_closing(index, key, upload_id, upload, Some(closing)).await
    }

    async fn add_part(
        &self,
        index: &Index,
        key: &str,
        upload_id: &str,
        number: u32,
        upload: &OpenUpload,
        stored: StoredBody,
    ) -> S3Result<PartHead> {
        let head = PartHead {
            size: stored.bytes,
            etag: stored.etag(&upload.head.encryption),
            modified_ms: unix_ms(),
            checksums: stored.digests.checksums,
        };
        let change = Mutation::OmapReplace {
            key: part_key(upload_id, number),
            value: Some(encode(&head, stored.piece.as_slice())),
            displaced_to: garbage_key(head.modified_ms),
        };
        let guards = vec![unchanged(key, upload_id, &upload.value)];
        match index.publish(key, guards, vec![change], stored.data).await {
            Err((GatewayError::ConditionFailed(_), _)) => Err(self.why_changed(index, key, upload_id).await),
            result => {
                self.note(&index.bucket.record.name, result.map_err(|(error, _)| error))?;
                Ok(head)
            }
        }
    }

    pub(super) async fn upload_part(
        &self,
        request: S3Request<UploadPartInput>,
    ) -> S3Result<S3Response<UploadPartOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let mut input = request.input;
        let number = checked_part_number(input.part_number)?;
        let budget = self.budget_of(&request.extensions);
        let customer = customer_headers!(input).key(&request.extensions)?;
        let mut expected = Expected::from_headers(&request.headers)?;
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        let upload = self.open_upload(&index, &input.key, &input.upload_id).await?;
        check_part_encryption(&request.headers, &upload.head.encryption)?;
        add_upload_algorithm(&mut expected, &upload)?;
        let length = body_length(&request.headers, input.content_length);
        let trailers = Trailers::of(&request.extensions, request.trailing_headers);
        let received = Upload { body: input.body, length, expected, trailers };
        let sealed = SealedFor { asking: &asking, bucket: &index.bucket, key: &input.key };
        let sealing = self.sealing_of_upload(&sealed, &upload.head.encryption, customer).await?;
        let target = Target {
            index: &index,
            object_key: &input.key,
            key: &sealing.key,
            budget: &budget,
            purpose: Purpose::Part,
        };
        let stored = self.store_body(target, received).await?;
        let head = self.add_part(&index, &input.key, &input.upload_id, number, &upload, stored).await?;
        let mut output = UploadPartOutput { e_tag: Some(etag(&head.etag)), ..Default::default() };
        set_encryption!(output, sealing.answer());
        set_checksums!(output, head.checksums);
        Ok(S3Response::new(output))
    }

    pub(super) async fn upload_part_copy(
        &self,
        request: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let mut input = request.input;
        let number = checked_part_number(input.part_number)?;
        let budget = self.budget_of(&request.extensions);
        let customer = customer_headers!(input).key(&request.extensions)?;
        let source_key = source_customer_headers!(input).key(&request.extensions)?;
        let conditions = ReadConditions {
            if_match: input.copy_source_if_match,
            if_none_match: input.copy_source_if_none_match,
            if_modified_since: input.copy_source_if_modified_since,
            if_unmodified_since: input.copy_source_if_unmodified_since,
        };
        let mut source = self.copy_source(&asking, &input.copy_source, source_key, &conditions).await?;
        let range = input.copy_source_range.map(|text| copy_range(&text, source.head.size)).transpose()?;
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        let upload = self.open_upload(&index, &input.key, &input.upload_id).await?;
        let mut expected = Expected::default();
        add_upload_algorithm(&mut expected, &upload)?;
        let sealed = SealedFor { asking: &asking, bucket: &index.bucket, key: &input.key };
        let sealing = self.sealing_of_upload(&sealed, &upload.head.encryption, customer).await?;
        let target = Target {
            index: &index,
            object_key: &input.key,
            key: &sealing.key,
            budget: &budget,
            purpose: Purpose::Part,
        };
        let stored = self.copy_data(&asking, &mut source, range, target, &expected).await?;
        let head = self.add_part(&index, &input.key, &input.upload_id, number, &upload, stored).await?;
        let mut result = CopyPartResult {
            e_tag: Some(etag(&head.etag)),
            last_modified: Some(timestamp(head.modified_ms)),
            ..Default::default()
        };
        set_checksums!(result, head.checksums);
        let mut output = UploadPartCopyOutput {
            copy_part_result: Some(result),
            copy_source_version_id: version_answer(&source.index, &source.head),
            ..Default::default()
        };
        set_encryption!(output, sealing.answer());
        Ok(S3Response::new(output))
    }

    pub(super) async fn abort_multipart_upload(
        &self,
        request: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let input = request.input;
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        for attempt in 0..CLOSINGS_MAX {
            self.await_closing(&index, &input.key, &input.upload_id, attempt).await?;
            let upload = self.close_upload(&index, &input.key, &input.upload_id).await?;
            let shard = index.shard_of(&input.key);
            let parts = self.note(&input.bucket, index.all(shard, part_prefix(&input.upload_id)).await)?;
            let now = unix_ms();
            let discard = |(key, _)| Mutation::OmapReplace { key, value: None, displaced_to: garbage_key(now) };
            let mut changes: Vec<Mutation> = parts.into_iter().map(discard).collect();
            changes.push(Mutation::OmapRemove { key: upload_key(&input.key, &input.upload_id) });
            let guards = vec![unchanged(&input.key, &input.upload_id, &upload.value)];
            match index.change(&input.key, guards, changes).await {
                Err(GatewayError::ConditionFailed(_)) => {}
                result => {
                    self.note(&input.bucket, result)?;
                    return Ok(S3Response::new(AbortMultipartUploadOutput::default()));
                }
            }
        }
        Err(being_closed())
    }

    /// Before an upload is closed once more: gives way to another request that is closing it now.
    pub(super) async fn await_closing(
        &self,
        index: &Index,
        key: &str,
        upload_id: &str,
        attempt: u32,
    ) -> S3Result<()> {
        for pause in 0..attempt {
            if self.upload(index, key, upload_id).await?.head.closing.is_none() {
                break;
            }
            pause_before(pause + 1).await;
        }
        Ok(())
    }
}

/// Parts are also hashed with the algorithm that the upload began with.
fn add_upload_algorithm(expected: &mut Expected, upload: &OpenUpload) -> S3Result<()> {
    if let Some(name) = &upload.head.checksum_algorithm {
        expected.add_algorithm(Algorithm::parse(name)?);
    }
    Ok(())
}

/// Some clients repeat the headers of encryption that the upload began with: others are refused.
pub(super) fn check_part_encryption(headers: &HeaderMap, encryption: &Encryption) -> S3Result<()> {
    let of_upload = encryption_answer(encryption, None);
    let key_id = of_upload.key_id.map(String::into_bytes);
    let own = [
        ("x-amz-server-side-encryption", of_upload.algorithm.map(|name| name.as_str().as_bytes().to_vec())),
        ("x-amz-server-side-encryption-aws-kms-key-id", key_id),
    ];
    let differs = |(name, value): &(&str, Option<Vec<u8>>)| {
        headers.get(*name).is_some_and(|wanted| value.as_deref() != Some(wanted.as_bytes()))
    };
    if own.iter().any(differs) {
        return Err(s3_error!(
            InvalidRequest,
            "The headers of encryption are not those that the upload began with"
        ));
    }
    Ok(())
}

fn checked_part_number(number: i32) -> S3Result<u32> {
    let valid = u32::try_from(number).ok().filter(|_| (1..=PARTS_MAX).contains(&number));
    valid.ok_or_else(|| {
        s3_error!(InvalidArgument, "Part number must be an integer between 1 and {PARTS_MAX}, inclusive")
    })
}

/// `bytes=first-last`, all within the source: the only form that S3 takes here.
fn copy_range(text: &str, bytes: u64) -> S3Result<Range<u64>> {
    match s3s::dto::Range::parse(text) {
        Ok(s3s::dto::Range::Int { first, last: Some(last) }) if last < bytes => Ok(first..last + 1),
        Ok(s3s::dto::Range::Int { last: Some(_), .. }) => {
            Err(s3_error!(InvalidRange, "The range of the copy source reaches beyond its {bytes} bytes"))
        }
        _ => Err(s3_error!(InvalidArgument, "The x-amz-copy-source-range must have the form bytes=first-last")),
    }
}
