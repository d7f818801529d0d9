//! ListParts and ListMultipartUploads.

use atoll_iam::Identities;
use bytes::Bytes;
use s3s::dto::{
    ChecksumAlgorithm, CommonPrefix, Initiator, ListMultipartUploadsInput, ListMultipartUploadsOutput,
    ListPartsInput, ListPartsOutput, MultipartUpload, Owner, Part,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::Service;
use super::answers::{checksum_type, class_name, etag, owner, set_checksums, size, timestamp};
use super::list::{Encoder, checked_limit, start_after};
use crate::bucket::Bucket;
use crate::digest::Algorithm;
use crate::listing::{Item, Query, list};
use crate::names::{UPLOAD_PREFIX, parse_part_number, parse_upload_key, part_key, part_prefix};
use crate::record::{PartHead, UploadHead, decode_head};

fn initiator(identities: &Identities, canonical_id: &str) -> Initiator {
    let Owner { display_name, id } = owner(identities, canonical_id);
    Initiator { display_name, id }
}

/// Returns the owner of the object to be made.
fn object_owner<'a>(upload: &'a UploadHead, bucket: &'a Bucket) -> &'a str {
    upload.object_owner.as_deref().unwrap_or(&bucket.record.owner)
}

impl Service {
    pub(super) async fn list_parts(
        &self,
        request: S3Request<ListPartsInput>,
    ) -> S3Result<S3Response<ListPartsOutput>> {
        let input = request.input;
        let limit = checked_limit(input.max_parts)?;
        let after = input.part_number_marker.unwrap_or(0);
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        let upload = self.upload(&index, &input.key, &input.upload_id).await?;
        let identities = self.directory.identities();
        let first = u32::try_from(after).ok().and_then(|after| after.checked_add(1));
        let mut from = part_key(&input.upload_id, first.unwrap_or(1));
        let wanted = usize::try_from(limit).unwrap_or(0);
        let prefix = part_prefix(&input.upload_id);
        let shard = index.shard_of(&input.key);
        let mut records = Vec::new();
        let mut more = limit > 0;
        while more && records.len() <= wanted {
            let ask = u32::try_from(wanted + 1 - records.len()).unwrap_or(1);
            let (page, follows) = self.note(&input.bucket, index.page(shard, prefix.clone(), from, ask).await)?;
            more = follows && !page.is_empty();
            records.extend(page);
            from = records.last().map_or_else(Bytes::new, |(key, _)| [key, &b"\0"[..]].concat().into());
        }
        let is_truncated = records.len() > wanted;
        records.truncate(wanted);

        let mut parts = Vec::with_capacity(records.len());
        for (key, value) in &records {
            let head: PartHead = decode_head(value)?;
            let mut part = Part {
                e_tag: Some(etag(&head.etag)),
                last_modified: Some(timestamp(head.modified_ms)),
                part_number: parse_part_number(key).and_then(|number| i32::try_from(number).ok()),
                size: Some(size(head.size)),
                ..Default::default()
            };
            set_checksums!(part, head.checksums);
            parts.push(part);
        }
        Ok(S3Response::new(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            initiator: Some(initiator(&identities, &upload.head.owner)),
            owner: Some(owner(&identities, object_owner(&upload.head, &index.bucket))),
            checksum_type: upload
                .head
                .checksum_algorithm
                .is_some()
                .then(|| checksum_type(upload.head.checksum_is_composite)),
            checksum_algorithm: upload.head.checksum_algorithm.map(ChecksumAlgorithm::from),
            is_truncated: Some(is_truncated),
            max_parts: Some(limit),
            next_part_number_marker: parts.last().and_then(|part| part.part_number),
            part_number_marker: Some(after),
            parts: Some(parts),
            storage_class: Some(class_name(upload.head.storage_class.as_ref()).into()),
            ..Default::default()
        }))
    }

    pub(super) async fn list_multipart_uploads(
        &self,
        request: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        let input = request.input;
        let encoder = Encoder::new(input.encoding_type.as_ref())?;
        let limit = checked_limit(input.max_uploads)?;
        let prefix = input.prefix.clone().unwrap_or_default();
        let delimiter = input.delimiter.clone().unwrap_or_default();
        let key_marker = input.key_marker.clone().unwrap_or_default();
        let from = match input.upload_id_marker.as_deref() {
            _ if key_marker.is_empty() => Vec::new(),
            Some(upload_id) if !upload_id.is_empty() => format!("{key_marker}\0{upload_id}\0").into_bytes(),
            // All uploads of the marker's key are behind us: `key\0...` sorts below `key\x01`.
            _ => match start_after(&key_marker, &prefix, &delimiter) {
                from if from.ends_with(b"\0") => [key_marker.as_bytes(), b"\x01"].concat(),
                from => from,
            },
        };
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        let identities = self.directory.identities();
        let query = Query {
            namespace: Bytes::from_static(UPLOAD_PREFIX),
            prefix: prefix.as_bytes().to_vec(),
            delimiter: delimiter.as_bytes().to_vec(),
            from,
            limit: usize::try_from(limit).unwrap_or(0),
            key_end: Some(0),
        };
        let page = self.note(&input.bucket, list(&index, &query).await)?;

        let (mut uploads, mut common_prefixes) = (Vec::new(), Vec::new());
        let (mut next_key, mut next_id) = (None, None);
        for item in &page.items {
            match item {
                Item::CommonPrefix(folded) => {
                    (next_key, next_id) = (Some(encoder.key(folded)), None);
                    common_prefixes.push(CommonPrefix { prefix: Some(encoder.key(folded)) });
                }
                Item::Record(name, value) => {
                    let full = [UPLOAD_PREFIX, name].concat();
                    let (key, upload_id) = parse_upload_key(&full).ok_or_else(|| {
                        s3_error!(InternalError, "The index holds an upload key that cannot be read")
                    })?;
                    let head: UploadHead = decode_head(value)?;
                    (next_key, next_id) = (Some(encoder.text(key)), Some(upload_id.to_owned()));
                    uploads.push(MultipartUpload {
                        checksum_type: head
                            .checksum_algorithm
                            .is_some()
                            .then(|| checksum_type(head.checksum_is_composite)),
                        checksum_algorithm: head.checksum_algorithm.clone().map(ChecksumAlgorithm::from),
                        initiated: Some(timestamp(head.initiated_ms)),
                        initiator: Some(initiator(&identities, &head.owner)),
                        owner: Some(owner(&identities, object_owner(&head, &index.bucket))),
                        key: Some(encoder.text(key)),
                        storage_class: Some(class_name(head.storage_class.as_ref()).into()),
                        upload_id: Some(upload_id.to_owned()),
                    });
                }
            }
        }
        let is_truncated = page.next.is_some();
        Ok(S3Response::new(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            common_prefixes: Some(common_prefixes),
            delimiter: (!delimiter.is_empty()).then(|| encoder.text(&delimiter)),
            encoding_type: input.encoding_type,
            is_truncated: Some(is_truncated),
            key_marker: Some(encoder.text(&key_marker)),
            max_uploads: Some(limit),
            next_key_marker: next_key.filter(|_| is_truncated),
            next_upload_id_marker: next_id.filter(|_| is_truncated),
            prefix: Some(encoder.text(&prefix)),
            upload_id_marker: input.upload_id_marker,
            uploads: Some(uploads),
            ..Default::default()
        }))
    }
}
