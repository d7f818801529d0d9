//! CopyObject: the source is opened and sealed again, so that no two objects share data.

use std::ops::Range;

use futures::StreamExt;
use s3s::dto::{
    CopyObjectInput, CopyObjectOutput, CopyObjectResult, CopySource, MetadataDirective, TaggingDirective,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::Service;
use super::answers::{
    checked_metadata, content_headers, entry_checksum_type, etag, set_checksums, timestamp, wanted_class,
};
use super::body::{BODY_BYTES_MAX, Purpose, StoredBody, Target};
use super::conditions::{ReadConditions, WriteConditions};
use super::encryption::{
    CustomerKey, Sealing, check_key_of_write, context_answer, set_encryption, source_customer_headers,
    wanted_headers,
};
use super::entries::{Version, version_answer};
use super::object_lock::lock_headers;
use super::put::check_key;
use super::tagging::header_tags;
use crate::access::{Asked, Asking, GET_OBJECT, GET_TAGGING, Permit, SET_TAGS, SealedFor};
use crate::clock::unix_ms;
use crate::digest::{Algorithm, Expected};
use crate::error::GatewayError;
use crate::index::Index;
use crate::record::{EntryHead, Piece};
use crate::versions::Change;

const ATTEMPTS: u32 = 3;

/// The source of a copy, found and checked.
pub(super) struct Source {
    pub index: Index,
    pub key: String,
    /// The version that was asked for.
    pub version_id: Option<String>,
    pub head: EntryHead,
    pub pieces: Vec<Piece>,
    /// The client's own key, if the source has one.
    pub customer: Option<CustomerKey>,
}

/// Returns true if both have the same content for the same readers.
fn is_same_to_readers(one: &EntryHead, other: &EntryHead) -> bool {
    one.etag == other.etag && one.owner == other.owner && one.acl == other.acl && one.tags == other.tags
}

/// Tags that are copied are read from the source and set at the target: access may go by them on either side.
fn check_copied_tags(asking: &Asking<'_>, source: &Source, target: &Index, key: &str) -> S3Result<()> {
    let tags = &source.head.tags;
    if tags.is_empty() {
        return Ok(());
    }
    let asked = Asked::key(&source.index.bucket, &source.key, source.version_id.as_deref());
    asking.check(GET_TAGGING, &Asked { object: Some(&source.head), ..asked })?;
    asking.with_tags(tags).check(SET_TAGS, &Asked::key(&target.bucket, key, None))
}

impl Service {
    /// Finds the source of a copy and checks its conditions.
    pub(super) async fn copy_source(
        &self,
        asking: &Asking<'_>,
        source: &CopySource,
        customer: Option<CustomerKey>,
        conditions: &ReadConditions,
    ) -> S3Result<Source> {
        let CopySource::Bucket { bucket, key, version_id } = source else {
            return Err(s3_error!(NotImplemented, "Copying from access points is not supported"));
        };
        let index = self.note(bucket, self.index(bucket).await)?;
        let Version { head, pieces, .. } = self.source_for(asking, &index, key, version_id.as_deref()).await?;
        check_key_of_write(&index.bucket, &head.encryption, customer.as_ref())?;
        conditions.check_copy_source(&head)?;
        let version_id = version_id.as_deref().map(str::to_owned);
        Ok(Source { index, key: key.to_string(), version_id, head, pieces, customer })
    }

    /// The object that a copy reads, if who asks may read it.
    async fn source_for(
        &self,
        asking: &Asking<'_>,
        index: &Index,
        key: &str,
        version_id: Option<&str>,
    ) -> S3Result<Version> {
        // Who may not read it whatever it is learns nothing of whether it is there.
        let is_allowed = asking.check_early(GET_OBJECT, &Asked::key(&index.bucket, key, version_id))?;
        let pending = if is_allowed { Vec::new() } else { vec![GET_OBJECT] };
        let permit = Permit { pending, ..asking.permit.clone() };
        self.object_for(&asking.with_permit(&permit), index, key, version_id).await
    }

    /// Copies a range of the source's data to the target.
    pub(super) async fn copy_data(
        &self,
        asking: &Asking<'_>,
        source: &mut Source,
        range: Option<Range<u64>>,
        target: Target<'_>,
        expected: &Expected,
    ) -> S3Result<StoredBody> {
        for attempt in 1.. {
            let range = range.clone().unwrap_or(0..source.head.size);
            if range.end - range.start > BODY_BYTES_MAX {
                return Err(s3_error!(
                    InvalidRequest,
                    "A copy source may have {BODY_BYTES_MAX} bytes; copy larger objects in parts"
                ));
            }
            let sealed = SealedFor { asking, bucket: &source.index.bucket, key: &source.key };
            let opening = self.sealing_of(&sealed, &source.head.encryption, source.customer.clone()).await?;
            match self.copy_range(source, &opening, range, target, expected).await {
                Err(GatewayError::Vanished { .. }) if attempt < ATTEMPTS => {
                    let (index, id) = (&source.index, source.version_id.as_deref());
                    let Version { head, pieces, .. } = self.object(index, &source.key, id).await?;
                    if !is_same_to_readers(&head, &source.head) {
                        return Err(s3_error!(OperationAborted, "The source was replaced while it was copied"));
                    }
                    (source.head, source.pieces) = (head, pieces);
                }
                other => return Ok(other?),
            }
        }
        Err(s3_error!(InternalError, "unreachable: every attempt returns"))
    }

    async fn copy_range(
        &self,
        source: &Source,
        opening: &Sealing,
        range: Range<u64>,
        target: Target<'_>,
        expected: &Expected,
    ) -> Result<StoredBody, GatewayError> {
        let bytes = range.end - range.start;
        let _reading = target.budget.for_copy(bytes).await?;
        let mut digest = expected.hashers();
        let mut writer = target.writer(self, bytes);
        let Source { index, key, pieces, .. } = source;
        let data = self.open_data(index, key, &opening.key, pieces, range, None).await?;
        let mut data = std::pin::pin!(data);
        while let Some(piece) = data.next().await {
            let piece = piece?;
            digest.update(piece.clone()).await;
            writer.push(&piece).await?;
        }
        StoredBody::new(writer, digest, bytes).await
    }

    pub(super) async fn copy_object(
        &self,
        request: S3Request<CopyObjectInput>,
    ) -> S3Result<S3Response<CopyObjectOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let mut input = request.input;
        let key = input.key;
        check_key(&key)?;
        let destination = WriteConditions::from_headers(&request.headers)?;
        let wanted = wanted_headers!(input);
        let source_key = source_customer_headers!(input).key(&request.extensions)?;
        let replaces = match input.metadata_directive.as_ref().map(MetadataDirective::as_str) {
            None | Some(MetadataDirective::COPY) => false,
            Some(MetadataDirective::REPLACE) => true,
            Some(_) => return Err(s3_error!(InvalidArgument, "Unknown metadata directive")),
        };
        let replaced_tags = match input.tagging_directive.as_ref().map(TaggingDirective::as_str) {
            None | Some(TaggingDirective::COPY) if input.tagging.is_some() => {
                return Err(s3_error!(InvalidArgument, "x-amz-tagging needs x-amz-tagging-directive: REPLACE"));
            }
            None | Some(TaggingDirective::COPY) => None,
            Some(TaggingDirective::REPLACE) => Some(header_tags(input.tagging.as_deref())?),
            Some(_) => return Err(s3_error!(InvalidArgument, "Unknown tagging directive")),
        };
        let conditions = ReadConditions {
            if_match: input.copy_source_if_match,
            if_none_match: input.copy_source_if_none_match,
            if_modified_since: input.copy_source_if_modified_since,
            if_unmodified_since: input.copy_source_if_unmodified_since,
        };
        let mut source = self.copy_source(&asking, &input.copy_source, source_key, &conditions).await?;
        let target = self.note(&input.bucket, self.index(&input.bucket).await)?;
        let lock = lock_headers!(self, input, &target);
        let access = self.new_access(&asking, &request.headers, &target.bucket, &key)?;
        if replaced_tags.is_none() {
            check_copied_tags(&asking, &source, &target, &key)?;
        }
        self.check_reading_by_conditions(&asking, &target, &key, None).await?;
        let is_same = source.key == key && source.index.bucket.record.id == target.bucket.record.id;
        let sealed = SealedFor { asking: &asking, bucket: &target.bucket, key: &key };
        let sealing = self.sealing_to_write(&sealed, wanted, &request.extensions).await?;
        let class = wanted_class(&request.headers);
        let is_changed = replaces
            || replaced_tags.is_some()
            || source.version_id.is_some()
            || class != source.head.storage_class;
        if is_same && !is_changed && sealing.encryption == source.head.encryption {
            return Err(s3_error!(
                InvalidRequest,
                "This copy request is illegal because it is trying to copy an object to itself without changing the object's metadata or encryption"
            ));
        }
        let (headers, metadata) = if replaces {
            (content_headers!(input), checked_metadata(input.metadata.take())?)
        } else {
            (source.head.headers.clone(), source.head.metadata.clone())
        };

        let mut expected = Expected::default();
        match &input.checksum_algorithm {
            Some(algorithm) => expected.add_algorithm(Algorithm::parse(algorithm.as_str())?),
            None => {
                for name in source.head.checksums.keys() {
                    expected.add_algorithm(Algorithm::parse(name)?);
                }
            }
        }
        self.check_conditions(&target, &key, &destination).await?;
        let budget = self.budget_of(&request.extensions);
        let to = Target {
            index: &target,
            object_key: &key,
            key: &sealing.key,
            budget: &budget,
            purpose: Purpose::Object,
        };
        let stored = self.copy_data(&asking, &mut source, None, to, &expected).await?;
        let head = EntryHead {
            size: stored.bytes,
            etag: stored.etag(&sealing.encryption),
            modified_ms: unix_ms(),
            headers,
            metadata,
            checksums: stored.digests.checksums,
            encryption: sealing.encryption.clone(),
            tags: replaced_tags.unwrap_or_else(|| source.head.tags.clone()),
            lock,
            storage_class: class,
            owner: access.owner,
            acl: access.acl,
            ..Default::default()
        };
        let entry = (&head, stored.piece.as_slice());
        let written =
            self.write_version(&target, &key, entry, &destination, &Change::default(), Some(stored.data)).await;
        let head = self.note_write(&input.bucket, written)?.head;

        let mut result = CopyObjectResult {
            e_tag: Some(etag(&head.etag)),
            last_modified: Some(timestamp(head.modified_ms)),
            checksum_type: entry_checksum_type(&head),
            ..Default::default()
        };
        set_checksums!(result, head.checksums);
        let mut output = CopyObjectOutput {
            copy_object_result: Some(result),
            copy_source_version_id: version_answer(&source.index, &source.head),
            version_id: head.version_id.clone(),
            ssekms_encryption_context: context_answer(&sealing.encryption),
            ..Default::default()
        };
        set_encryption!(output, sealing.answer());
        Ok(S3Response::new(output))
    }
}
