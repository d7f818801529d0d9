//! GetObject and HeadObject.

use std::ops::Range;

use atoll_seal::SEGMENT_BYTES;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use http_body::Frame;
use http_body_util::StreamBody;
use s3s::dto::{GetObjectInput, GetObjectOutput, HeadObjectInput, HeadObjectOutput, StorageClass, StreamingBlob};
use s3s::header::X_AMZ_TAGGING_COUNT;
use s3s::{Body, S3Error, S3Request, S3Response, S3Result, s3_error};

use super::Service;
use super::answers::{entry_checksum_type, etag, metadata, set_checksums, size, timestamp};
use super::conditions::ReadConditions;
use super::encryption::{
    CustomerKey, Sealing, check_customer_key, customer_headers, encryption_answer, set_encryption,
};
use super::entries::{Version, version_answer};
use super::object_lock::set_lock;
use crate::access::{Asked, Asking, GET_LEGAL_HOLD, GET_RETENTION, GET_TAGGING, KeyUse, SealedFor};
use crate::data::{Budget, DataReader, Hold, plan_reads};
use crate::digest::Algorithm;
use crate::encryption::WrappingKey;
use crate::error::GatewayError;
use crate::index::Index;
use crate::record::{Checksums, EntryHead, Piece};

/// Attempts of a GET when the object is replaced, and its old data collected, under it.
const ATTEMPTS: u32 = 3;

/// The bytes that a Range header asks for.
pub(super) fn resolve_range(range: Option<s3s::dto::Range>, bytes: u64) -> S3Result<Option<Range<u64>>> {
    let Some(range) = range else { return Ok(None) };
    match range.check(bytes) {
        Ok(found) if found.start < found.end => Ok(Some(found)),
        _ => {
            let mut error = s3_error!(InvalidRange, "The requested range is not satisfiable");
            if let Ok(value) = HeaderValue::from_str(&format!("bytes */{bytes}")) {
                error.set_headers(HeaderMap::from_iter([(header::CONTENT_RANGE, value)]));
            }
            Err(error)
        }
    }
}

/// Parameters of a GET, except its key.
struct Opening {
    customer: Option<CustomerKey>,
    conditions: ReadConditions,
    range: Option<s3s::dto::Range>,
    part_number: Option<i32>,
    budget: Budget,
}

/// A version whose data is being read.
struct Opened {
    head: EntryHead,
    wanted: Wanted,
    sealing: Sealing,
    data: BoxStream<'static, Result<Bytes, GatewayError>>,
}

/// Part of an object's data for a read.
struct Wanted {
    /// `None` for all of it.
    range: Option<Range<u64>>,
    /// The number of the object's parts, if one of them is wanted.
    parts_count: Option<i32>,
    /// Checksums of the whole object: ranges have none.
    checksums: Checksums,
}

impl Wanted {
    fn new(
        range: Option<s3s::dto::Range>,
        part_number: Option<i32>,
        head: &EntryHead,
        pieces: &[Piece],
    ) -> S3Result<Self> {
        let Some(number) = part_number else {
            let range = resolve_range(range, head.size)?;
            let checksums = if range.is_none() { head.checksums.clone() } else { Checksums::new() };
            return Ok(Wanted { range, parts_count: None, checksums });
        };
        if range.is_some() {
            return Err(s3_error!(
                InvalidRequest,
                "Cannot specify both Range header and partNumber query parameter"
            ));
        }
        let none = || s3_error!(InvalidPart, "The requested part number does not exist");
        let number = u32::try_from(number).map_err(|_| none())?;
        match head.parts(pieces) {
            None if number == 1 => {
                Ok(Wanted { range: None, parts_count: None, checksums: head.checksums.clone() })
            }
            None => Err(none()),
            Some(parts) => {
                let part = parts.iter().find(|part| part.number == number).ok_or_else(none)?;
                let range = Some(part.offset..part.offset + part.bytes);
                let algorithm = head.checksums.keys().next().cloned();
                let checksums = algorithm.zip(part.checksum.map(str::to_owned)).into_iter().collect();
                Ok(Wanted { range, parts_count: i32::try_from(parts.len()).ok(), checksums })
            }
        }
    }

    /// The value of Content-Range.
    fn content_range(&self, head: &EntryHead) -> Option<String> {
        // An empty part has no first and no last byte.
        let range = self.range.as_ref().filter(|range| !range.is_empty())?;
        Some(format!("bytes {}-{}/{}", range.start, range.end - 1, head.size))
    }

    fn bytes(&self, head: &EntryHead) -> Range<u64> {
        self.range.clone().unwrap_or(0..head.size)
    }
}

impl Service {
    /// Opens a range of an object for reading. The first part of the data has been read and
    /// authenticated when this returns, so most failures still get a proper answer.
    pub(super) async fn open_data(
        &self,
        index: &Index,
        object_key: &str,
        key: &WrappingKey,
        pieces: &[Piece],
        range: Range<u64>,
        budget: Option<Budget>,
    ) -> Result<impl futures::Stream<Item = Result<Bytes, GatewayError>> + Send + 'static, GatewayError> {
        let shard = index.shard_of(object_key);
        let index_object = index.object(shard);
        // What is read at once needs no hold: it is read, or it vanished before anything was sent.
        let needs_hold = range.end - range.start > SEGMENT_BYTES as u64 && !self.garbage_grace.is_zero();
        let held = pieces.first().filter(|_| needs_hold);
        let hold = held.map(|piece| Hold::new(index, shard, piece.data_id, self.garbage_grace));
        let reads = plan_reads(pieces, range);
        let store = self.store.clone();
        let (reader, reads) = DataReader::new(store, budget, &index.bucket, index_object, key, pieces, reads)?;
        let mut stream = Box::pin(reader.stream(reads));
        let first = stream.next().await.transpose()?;
        let held = stream.inspect(move |_| {
            let _is_kept = &hold;
        });
        Ok(futures::stream::iter(first.map(Ok)).chain(held))
    }

    pub(super) async fn get_object(
        &self,
        request: S3Request<GetObjectInput>,
    ) -> S3Result<S3Response<GetObjectOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let mut input = request.input;
        let customer = customer_headers!(input).key(&request.extensions)?;
        let conditions = ReadConditions {
            if_match: input.if_match.take(),
            if_none_match: input.if_none_match.take(),
            if_modified_since: input.if_modified_since.take(),
            if_unmodified_since: input.if_unmodified_since.take(),
        };
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        let budget = self.budget_of(&request.extensions);
        let opening = Opening { customer, conditions, range: input.range, part_number: input.part_number, budget };
        let key = input.key.as_str();
        if input.version_id.is_none()
            && let Some(opened) = self.open_guessed(&asking, &index, key, &opening).await
        {
            return Ok(self.answer(&asking, &input, &index, opened?));
        }
        for attempt in 1.. {
            let found = self.object_for(&asking, &index, key, input.version_id.as_deref()).await?;
            if found.place.is_none() {
                self.entry_hints.note(&index.bucket.record.id, key, found.record.clone());
            }
            match self.open_version(&asking, &index, key, &opening, found).await? {
                Err(GatewayError::Vanished { .. }) if attempt < ATTEMPTS => {}
                opened => return Ok(self.answer(&asking, &input, &index, opened?)),
            }
        }
        Err(s3_error!(InternalError, "unreachable: every attempt returns"))
    }

    /// Opens the probable newest version of a key while its entry is read: one round instead of two. `None` if it
    /// turns out to be another one.
    async fn open_guessed(
        &self,
        asking: &Asking<'_>,
        index: &Index,
        key: &str,
        opening: &Opening,
    ) -> Option<S3Result<Opened>> {
        let bucket_id = &index.bucket.record.id;
        let guess = Version::new(self.entry_hints.newest(bucket_id, key)?, None).ok()?;
        let asked = Asked { object: Some(&guess.head), ..Asked::key(&index.bucket, key, None) };
        if guess.head.is_delete_marker || asking.check_pending(&asked).is_err() {
            return None;
        }
        let record = guess.record.clone();
        let (opened, entry) =
            futures::join!(self.open_version(asking, index, key, opening, guess), index.entry(key));
        let is_right = entry.is_ok_and(|entry| entry == Some(record));
        match opened {
            Ok(Err(GatewayError::Vanished { .. })) => None,
            Ok(opened) if is_right => Some(opened.map_err(S3Error::from)),
            Err(answer) if is_right => Some(Err(answer)),
            _ => {
                self.entry_hints.forget(bucket_id, key);
                None
            }
        }
    }

    /// Opens the part of a version that a GET requests. The inner error is that its data cannot be read.
    async fn open_version(
        &self,
        asking: &Asking<'_>,
        index: &Index,
        key: &str,
        opening: &Opening,
        version: Version,
    ) -> S3Result<Result<Opened, GatewayError>> {
        let Version { head, pieces, .. } = version;
        opening.conditions.check(&head)?;
        let wanted = Wanted::new(opening.range, opening.part_number, &head, &pieces)?;
        let sealed = SealedFor { asking, bucket: &index.bucket, key };
        let sealing = self.sealing_of(&sealed, &head.encryption, opening.customer.clone()).await?;
        let (bytes, budget) = (wanted.bytes(&head), Some(opening.budget.clone()));
        let data = self.open_data(index, key, &sealing.key, &pieces, bytes, budget).await;
        Ok(data.map(|data| Opened { head, wanted, sealing, data: data.boxed() }))
    }

    fn answer(
        &self,
        asking: &Asking<'_>,
        input: &GetObjectInput,
        index: &Index,
        opened: Opened,
    ) -> S3Response<GetObjectOutput> {
        let Opened { head, wanted, sealing, data } = opened;
        let bytes = wanted.bytes(&head);
        let name = format!("{}/{}", input.bucket, input.key);
        let frames = data.map_ok(Frame::data).inspect_err(move |error| {
            // The answer has begun: all that is left is to cut the connection.
            tracing::error!(object = name, %error, "GET fails in the middle of its data");
        });
        let mut output = object_output(&head, input.checksum_mode.as_ref().map(|_| &wanted.checksums));
        hide_what_is_not_asked(
            asking,
            &Asked::key(&index.bucket, &input.key, input.version_id.as_deref()),
            &head,
            &mut output,
        );
        output.version_id = version_answer(index, &head);
        output.content_length = Some(size(bytes.end - bytes.start));
        output.body = Some(StreamingBlob::from(Body::http_body_unsync(StreamBody::new(frames))));
        output.content_range = wanted.content_range(&head);
        output.parts_count = wanted.parts_count;
        set_encryption!(output, sealing.answer());
        let mut response = S3Response::new(output);
        if wanted.range.is_some() {
            response.status = Some(StatusCode::PARTIAL_CONTENT);
        }
        response
    }

    pub(super) async fn head_object(
        &self,
        request: S3Request<HeadObjectInput>,
    ) -> S3Result<S3Response<HeadObjectOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let mut input = request.input;
        let customer = customer_headers!(input).key(&request.extensions)?;
        let conditions = ReadConditions {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            if_modified_since: input.if_modified_since,
            if_unmodified_since: input.if_unmodified_since,
        };
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        let Version { head, pieces, .. } =
            self.object_for(&asking, &index, &input.key, input.version_id.as_deref()).await?;
        let customer_md5 = check_customer_key(&index.bucket, &head.encryption, customer.as_ref())?;
        conditions.check(&head)?;
        let wanted = Wanted::new(input.range, input.part_number, &head, &pieces)?;
        let bytes = wanted.bytes(&head);
        if input.checksum_mode.is_some() && !wanted.checksums.is_empty() {
            // They tell something of the contents.
            let sealed = SealedFor { asking: &asking, bucket: &index.bucket, key: &input.key };
            self.check_key_use(&sealed, KeyUse::Decrypt, &head.encryption)?;
        }
        let mut found = object_output(&head, input.checksum_mode.as_ref().map(|_| &wanted.checksums));
        hide_what_is_not_asked(
            &asking,
            &Asked::key(&index.bucket, &input.key, input.version_id.as_deref()),
            &head,
            &mut found,
        );
        let mut response = S3Response::new(HeadObjectOutput {
            accept_ranges: found.accept_ranges,
            cache_control: input.response_cache_control.or(found.cache_control),
            checksum_crc32: found.checksum_crc32,
            checksum_crc32c: found.checksum_crc32c,
            checksum_crc64nvme: found.checksum_crc64nvme,
            checksum_sha1: found.checksum_sha1,
            checksum_sha256: found.checksum_sha256,
            checksum_type: found.checksum_type,
            content_disposition: input.response_content_disposition.or(found.content_disposition),
            content_encoding: input.response_content_encoding.or(found.content_encoding),
            content_language: input.response_content_language.or(found.content_language),
            content_length: Some(size(bytes.end - bytes.start)),
            content_range: wanted.content_range(&head),
            parts_count: wanted.parts_count,
            content_type: input.response_content_type.or(found.content_type),
            e_tag: found.e_tag,
            expires: input.response_expires.or(found.expires),
            last_modified: found.last_modified,
            metadata: found.metadata,
            storage_class: found.storage_class,
            version_id: version_answer(&index, &head),
            object_lock_mode: found.object_lock_mode,
            object_lock_retain_until_date: found.object_lock_retain_until_date,
            object_lock_legal_hold_status: found.object_lock_legal_hold_status,
            ..Default::default()
        });
        set_encryption!(response.output, encryption_answer(&head.encryption, customer_md5));
        if wanted.range.is_some() {
            response.status = Some(StatusCode::PARTIAL_CONTENT);
        }
        if let Some(count) = found.tag_count {
            // s3s has no field for it in this answer.
            response.headers.insert(X_AMZ_TAGGING_COUNT, HeaderValue::from(count));
        }
        Ok(response)
    }
}

/// Everything about an object but its data. s3s itself applies the `response-*` overrides of a GET.
fn object_output(head: &EntryHead, checksums: Option<&Checksums>) -> GetObjectOutput {
    let headers = head.headers.clone();
    let default_type = || "binary/octet-stream".to_owned();
    let mut output = GetObjectOutput {
        accept_ranges: Some("bytes".into()),
        cache_control: headers.cache_control,
        content_disposition: headers.content_disposition,
        content_encoding: headers.content_encoding,
        content_language: headers.content_language,
        content_type: Some(headers.content_type.unwrap_or_else(default_type)),
        expires: headers.expires.map(|seconds| timestamp(u64::try_from(seconds).unwrap_or(0) * 1_000)),
        e_tag: Some(etag(&head.etag)),
        last_modified: Some(timestamp(head.modified_ms)),
        metadata: metadata(&head.metadata),
        storage_class: head.storage_class.clone().map(StorageClass::from),
        tag_count: i32::try_from(head.tags.len()).ok().filter(|count| *count > 0),
        ..Default::default()
    };
    set_lock!(output, &head.lock);
    if let Some(checksums) = checksums.filter(|checksums| !checksums.is_empty()) {
        set_checksums!(output, *checksums);
        output.checksum_type = entry_checksum_type(head);
    }
    output
}

/// Tags and locks are shown to those only who may ask for them by themselves.
fn hide_what_is_not_asked<'a>(
    asking: &Asking<'a>,
    asked: &Asked<'a>,
    head: &'a EntryHead,
    output: &mut GetObjectOutput,
) {
    let asked = Asked { object: Some(head), ..*asked };
    let may = |rule| asking.check(rule, &asked).is_ok();
    if output.tag_count.is_some() && !may(GET_TAGGING) {
        output.tag_count = None;
    }
    if output.object_lock_mode.is_some() && !may(GET_RETENTION) {
        (output.object_lock_mode, output.object_lock_retain_until_date) = (None, None);
    }
    if output.object_lock_legal_hold_status.is_some() && !may(GET_LEGAL_HOLD) {
        output.object_lock_legal_hold_status = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn resolve(header: &str, bytes: u64) -> Option<Range<u64>> {
        resolve_range(Some(s3s::dto::Range::parse(header).unwrap()), bytes).ok().flatten()
    }

    #[test]
    fn ranges_resolve_as_in_rfc_9110() {
        assert_eq!(resolve("bytes=0-0", 10), Some(0..1));
        assert_eq!(resolve("bytes=5-", 10), Some(5..10));
        assert_eq!(resolve("bytes=5-99", 10), Some(5..10));
        assert_eq!(resolve("bytes=-3", 10), Some(7..10));
        assert_eq!(resolve("bytes=-30", 10), Some(0..10));
        assert_eq!(resolve("bytes=-0", 10), None);
        assert_eq!(resolve("bytes=10-", 10), None);
        assert_eq!(resolve("bytes=0-", 0), None);
        assert_eq!(resolve("bytes=-1", 0), None);
        assert!(s3s::dto::Range::parse("bytes=5-4").is_err());
    }

    proptest! {
        #[test]
        fn ranges_stay_within_the_object(first: u32, length in 0u32..100, bytes in 0u64..200) {
            let first = first % 250;
            if let Some(range) = resolve(&format!("bytes={first}-{}", first + length), bytes) {
                prop_assert!(range.start < range.end && range.end <= bytes);
                prop_assert_eq!(range.start, u64::from(first));
            } else {
                prop_assert!(u64::from(first) >= bytes);
            }
        }
    }
}
