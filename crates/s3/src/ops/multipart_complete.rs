//! CompleteMultipartUpload.

use std::collections::BTreeMap;

use atoll_types::Mutation;
use http::HeaderMap;
use s3s::dto::{CompleteMultipartUploadInput, CompleteMultipartUploadOutput, CompletedPart};
use s3s::{S3Error, S3ErrorCode, S3Request, S3Response, S3Result, s3_error};

use super::Service;
use super::answers::{entry_checksum_type, etag, set_checksums};
use super::conditions::WriteConditions;
use super::encryption::{CustomerKey, check_key_of_write, customer_headers, encryption_answer};
use super::entries::WriteError;
use super::multipart::{CLOSINGS_MAX, OpenUpload, PARTS_MAX, being_closed, check_part_encryption, unchanged};
use super::put::check_checksum_type;
use crate::access::{Asking, KeyUse, SealedFor};
use crate::clock::unix_ms;
use crate::digest::{Algorithm, multipart_etag};
use crate::error::GatewayError;
use crate::index::Index;
use crate::names::{garbage_key, parse_part_number, part_key, part_prefix, upload_key};
use crate::record::{
    Checksums, EntryHead, PART_CHECKSUMS_MAX, PartHead, Piece, Place, decode_head, decode_pieces,
};
use crate::versions::Change;

/// Smallest part that is not the last.
const PART_BYTES_MIN: u64 = 5 << 20;

struct StoredPart {
    head: PartHead,
    pieces: Vec<Piece>,
}

/// The object to be made.
struct Assembly {
    head: EntryHead,
    pieces: Vec<Piece>,
    used: Vec<u32>,
}

impl Service {
    pub(super) async fn complete_multipart_upload(
        &self,
        request: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let mut input = request.input;
        let customer = customer_headers!(input).key(&request.extensions)?;
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        self.check_reading_by_conditions(&asking, &index, &input.key, None).await?;
        let head = match self.complete_at_last(&asking, &index, &input, &request.headers, customer.as_ref()).await
        {
            // Perhaps this very upload was completed by a request whose answer got lost.
            Err(error) if *error.code() == S3ErrorCode::NoSuchUpload => {
                let entry = self.note(&input.bucket, index.entry(&input.key).await)?;
                let head: Option<EntryHead> = entry.map(|value| decode_head(&value)).transpose()?;
                let own = head.filter(|head| head.upload_id.as_ref() == Some(&input.upload_id));
                own.ok_or(error)?
            }
            other => other?,
        };
        let mut output = CompleteMultipartUploadOutput {
            location: Some(format!("/{}/{}", input.bucket, input.key)),
            bucket: Some(input.bucket),
            key: Some(input.key),
            e_tag: Some(etag(&head.etag)),
            version_id: head.version_id.clone(),
            checksum_type: entry_checksum_type(&head),
            ..Default::default()
        };
        // This answer has no headers of a client's own key.
        let said = encryption_answer(&head.encryption, None);
        output.server_side_encryption = said.algorithm;
        output.ssekms_key_id = said.key_id;
        output.bucket_key_enabled = said.bucket_key_enabled;
        set_checksums!(output, head.checksums);
        Ok(S3Response::new(output))
    }

    /// Completes an upload, once more if its note was taken for that of a dead completion meanwhile.
    async fn complete_at_last(
        &self,
        asking: &Asking<'_>,
        index: &Index,
        input: &CompleteMultipartUploadInput,
        headers: &HeaderMap,
        customer: Option<&CustomerKey>,
    ) -> S3Result<EntryHead> {
        for attempt in 0..CLOSINGS_MAX {
            self.await_closing(index, &input.key, &input.upload_id, attempt).await?;
            if let Some(head) = self.complete(asking, index, input, headers, customer).await? {
                return Ok(head);
            }
        }
        Err(being_closed())
    }

    /// `customer` is the client's own key, if the request has one: it need not, but must not differ. `None` if the
    /// upload was not closed any more in the end.
    async fn complete(
        &self,
        asking: &Asking<'_>,
        index: &Index,
        input: &CompleteMultipartUploadInput,
        headers: &HeaderMap,
        customer: Option<&CustomerKey>,
    ) -> S3Result<Option<EntryHead>> {
        let (key, upload_id) = (&input.key, &input.upload_id);
        let listed =
            input.multipart_upload.as_ref().and_then(|upload| upload.parts.as_deref()).unwrap_or_default();
        let conditions = WriteConditions {
            if_match: input.if_match.clone(),
            if_none_match: input.if_none_match.clone(),
            ..Default::default()
        };
        let upload = self.close_upload(index, key, upload_id).await?;
        let attempt = async {
            check_part_encryption(headers, &upload.head.encryption)?;
            if upload.head.checksum_algorithm.is_some() {
                // The checksum of the whole is made of those of the parts.
                let sealed = SealedFor { asking, bucket: &index.bucket, key };
                self.check_key_use(&sealed, KeyUse::Decrypt, &upload.head.encryption)?;
            }
            if customer.is_some() {
                check_key_of_write(&index.bucket, &upload.head.encryption, customer)?;
            }
            let stored = self.stored_parts(index, key, upload_id).await?;
            let assembly = assemble(&upload, upload_id, listed, &stored)?;
            check_whole(input, &assembly.head)?;
            if !assembly.head.checksums.is_empty() {
                check_checksum_type(headers, assembly.head.checksum_is_composite)?;
            }
            let end = Change {
                conditions: vec![unchanged(key, upload_id, &upload.value)],
                mutations: end_of_upload(key, upload_id, &assembly, &stored),
            };
            let entry = (&assembly.head, assembly.pieces.as_slice());
            match self.write_version(index, key, entry, &conditions, &end, None).await {
                Err(WriteError::Gateway(GatewayError::ConditionFailed(_))) => Ok(None),
                written => Ok(Some(self.note_write(&input.bucket, written)?.head)),
            }
        };
        let result: S3Result<_> = attempt.await;
        if let Err(error) = &result
            && error.status_code().is_some_and(|status| status.is_client_error())
            && *error.code() != S3ErrorCode::NoSuchUpload
        {
            // The client may correct its list, or add what is missing, and try again. If this
            // fails, the note goes stale and is withdrawn later.
            let _ = self.set_closing(index, key, upload_id, upload, None).await;
        }
        result
    }

    async fn stored_parts(
        &self,
        index: &Index,
        key: &str,
        upload_id: &str,
    ) -> S3Result<BTreeMap<u32, StoredPart>> {
        let records = index.all(index.shard_of(key), part_prefix(upload_id)).await;
        let mut parts = BTreeMap::new();
        for (index_key, value) in self.note(&index.bucket.record.name, records)? {
            let number = parse_part_number(&index_key)
                .ok_or_else(|| s3_error!(InternalError, "The index holds a part key that cannot be read"))?;
            let pieces = decode_pieces(&value)?;
            // An entry of several pieces could not say which of them is in the index.
            if pieces.iter().any(|piece| piece.place != Place::Chunks) {
                return Err(s3_error!(InternalError, "The index holds a part whose data is not in chunks"));
            }
            parts.insert(number, StoredPart { head: decode_head(&value)?, pieces });
        }
        Ok(parts)
    }
}

fn invalid_part() -> S3Error {
    s3_error!(
        InvalidPart,
        "One or more of the specified parts could not be found, or its entity tag does not match"
    )
}

/// Checks the client's list against the stored parts and puts the object together.
fn assemble(
    upload: &OpenUpload,
    upload_id: &str,
    listed: &[CompletedPart],
    stored: &BTreeMap<u32, StoredPart>,
) -> S3Result<Assembly> {
    if listed.is_empty() || listed.len() > PARTS_MAX as usize {
        return Err(s3_error!(MalformedXML, "You must specify at least one part"));
    }
    let mut parts: Vec<(u32, &StoredPart)> = Vec::with_capacity(listed.len());
    for part in listed {
        let number = part.part_number.and_then(|number| u32::try_from(number).ok()).ok_or_else(invalid_part)?;
        if parts.last().is_some_and(|(before, _)| *before >= number) {
            return Err(s3_error!(InvalidPartOrder, "The list of parts was not in ascending order"));
        }
        let found = stored.get(&number).ok_or_else(invalid_part)?;
        if part.e_tag.as_ref().is_some_and(|etag| etag.value() != found.head.etag) {
            return Err(invalid_part());
        }
        let sent = [
            (Algorithm::Crc32, &part.checksum_crc32),
            (Algorithm::Crc32c, &part.checksum_crc32c),
            (Algorithm::Crc64Nvme, &part.checksum_crc64nvme),
            (Algorithm::Sha1, &part.checksum_sha1),
            (Algorithm::Sha256, &part.checksum_sha256),
        ];
        for (algorithm, value) in sent {
            let stored = found.head.checksums.get(algorithm.name());
            if value.is_some() && stored.is_some() && value.as_ref() != stored {
                return Err(invalid_part());
            }
        }
        parts.push((number, found));
    }
    let all_but_last = &parts[..parts.len() - 1];
    if let Some((number, part)) = all_but_last.iter().find(|(_, part)| part.head.size < PART_BYTES_MIN) {
        return Err(s3_error!(
            EntityTooSmall,
            "Part {number} has {} bytes; every part but the last needs {PART_BYTES_MIN}",
            part.head.size
        ));
    }
    let internal = || s3_error!(InternalError, "The digest of a stored part cannot be read");
    let etag = multipart_etag(parts.iter().map(|(_, part)| &*part.head.etag)).ok_or_else(internal)?;
    let numbers: Vec<u32> = parts.iter().map(|(number, _)| *number).collect();
    let head = EntryHead {
        part_numbers: if numbers.iter().copied().eq(1..=numbers.len() as u32) { Vec::new() } else { numbers },
        part_checksums: part_checksums(upload, &parts),
        size: parts.iter().map(|(_, part)| part.head.size).sum(),
        etag,
        modified_ms: unix_ms(),
        headers: upload.head.headers.clone(),
        metadata: upload.head.metadata.clone(),
        checksums: whole_checksums(upload, &parts)?,
        checksum_is_composite: upload.head.checksum_is_composite,
        encryption: upload.head.encryption.clone(),
        upload_id: Some(upload_id.to_owned()),
        tags: upload.head.tags.clone(),
        lock: upload.head.lock,
        storage_class: upload.head.storage_class.clone(),
        owner: upload.head.object_owner.clone(),
        acl: upload.head.acl.clone(),
        ..Default::default()
    };
    Ok(Assembly {
        head,
        pieces: parts.iter().flat_map(|(_, part)| part.pieces.iter().cloned()).collect(),
        used: parts.iter().map(|(number, _)| *number).collect(),
    })
}

/// Returns the checksums of the parts, for requests of the object's parts.
fn part_checksums(upload: &OpenUpload, parts: &[(u32, &StoredPart)]) -> Vec<String> {
    let Some(name) = upload.head.checksum_algorithm.as_ref().filter(|_| parts.len() <= PART_CHECKSUMS_MAX) else {
        return Vec::new();
    };
    let checksums = parts.iter().map(|(_, part)| part.head.checksums.get(name).cloned());
    checksums.collect::<Option<_>>().unwrap_or_default()
}

/// The object's checksum, if the upload was begun with an algorithm.
fn whole_checksums(upload: &OpenUpload, parts: &[(u32, &StoredPart)]) -> S3Result<Checksums> {
    let Some(name) = &upload.head.checksum_algorithm else { return Ok(Checksums::new()) };
    let algorithm = Algorithm::parse(name)?;
    let of = |part: &StoredPart| part.head.checksums.get(name).cloned();
    let known: Option<Vec<(String, u64)>> =
        parts.iter().map(|(_, part)| Some((of(part)?, part.head.size))).collect();
    let known = known.ok_or_else(invalid_part)?;
    let whole = if upload.head.checksum_is_composite {
        algorithm.composite(known.iter().map(|(checksum, _)| checksum.as_str()))
    } else {
        algorithm.combined(known.iter().map(|(checksum, bytes)| (checksum.as_str(), *bytes)))
    };
    let whole = whole.ok_or_else(|| s3_error!(InternalError, "The checksum of a stored part cannot be read"))?;
    Ok(Checksums::from([(name.clone(), whole)]))
}

/// Compares with the client's values for the whole object.
fn check_whole(input: &CompleteMultipartUploadInput, head: &EntryHead) -> S3Result<()> {
    let sent = [
        (Algorithm::Crc32, &input.checksum_crc32),
        (Algorithm::Crc32c, &input.checksum_crc32c),
        (Algorithm::Crc64Nvme, &input.checksum_crc64nvme),
        (Algorithm::Sha1, &input.checksum_sha1),
        (Algorithm::Sha256, &input.checksum_sha256),
    ];
    for (algorithm, value) in sent {
        if let (Some(value), Some(found)) = (value, head.checksums.get(algorithm.name()))
            && value != found
        {
            return Err(s3_error!(BadDigest, "The {} you specified did not match the parts", algorithm.name()));
        }
    }
    if input.mpu_object_size.is_some_and(|size| u64::try_from(size) != Ok(head.size)) {
        return Err(s3_error!(InvalidRequest, "The parts do not add up to the object size you specified"));
    }
    Ok(())
}

/// Returns the mutations that remove the upload, in the change that makes the object visible.
fn end_of_upload(
    key: &str,
    upload_id: &str,
    assembly: &Assembly,
    stored: &BTreeMap<u32, StoredPart>,
) -> Vec<Mutation> {
    let now = assembly.head.modified_ms;
    let mut changes = vec![Mutation::OmapRemove { key: upload_key(key, upload_id) }];
    for &number in stored.keys() {
        let part = part_key(upload_id, number);
        changes.push(match assembly.used.binary_search(&number) {
            Ok(_) => Mutation::OmapRemove { key: part },
            Err(_) => Mutation::OmapReplace { key: part, value: None, displaced_to: garbage_key(now) },
        });
    }
    changes
}
