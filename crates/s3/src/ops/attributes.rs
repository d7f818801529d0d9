//! GetObjectAttributes.

use s3s::dto::{
    Checksum, GetObjectAttributesInput, GetObjectAttributesOutput, GetObjectAttributesParts, ObjectAttributes,
    ObjectPart,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::Service;
use super::answers::{class_name, entry_checksum_type, etag, set_checksums, size, timestamp};
use super::encryption::{check_customer_key, customer_headers};
use super::entries::{Version, version_answer};
use super::list::checked_limit;
use crate::access::{Asking, KeyUse, SealedFor};
use crate::digest::Algorithm;
use crate::record::{Checksums, EntryHead, PartOfObject};

impl Service {
    pub(super) async fn get_object_attributes(
        &self,
        request: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<S3Response<GetObjectAttributesOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let mut input = request.input;
        let customer = customer_headers!(input).key(&request.extensions)?;
        let names = wanted_names(input.object_attributes.iter().map(ObjectAttributes::as_str))?;
        let wants = |name: &str| names.contains(&name);
        let limit = checked_limit(input.max_parts)?;
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        let id = input.version_id.as_deref();
        let Version { head, pieces, .. } = self.object_for(&asking, &index, &input.key, id).await?;
        check_customer_key(&index.bucket, &head.encryption, customer.as_ref())?;
        if !head.checksums.is_empty()
            && (wants(ObjectAttributes::CHECKSUM) || wants(ObjectAttributes::OBJECT_PARTS))
        {
            let sealed = SealedFor { asking: &asking, bucket: &index.bucket, key: &input.key };
            self.check_key_use(&sealed, KeyUse::Decrypt, &head.encryption)?;
        }
        let parts = head.parts(&pieces).filter(|_| wants(ObjectAttributes::OBJECT_PARTS));
        Ok(S3Response::new(GetObjectAttributesOutput {
            checksum: checksum_of(&head).filter(|_| wants(ObjectAttributes::CHECKSUM)),
            e_tag: wants(ObjectAttributes::ETAG).then(|| etag(&head.etag)),
            last_modified: Some(timestamp(head.modified_ms)),
            object_parts: parts.map(|parts| page_of(&head, &parts, input.part_number_marker, limit)),
            object_size: wants(ObjectAttributes::OBJECT_SIZE).then(|| size(head.size)),
            storage_class: wants(ObjectAttributes::STORAGE_CLASS)
                .then(|| class_name(head.storage_class.as_ref()).into()),
            version_id: version_answer(&index, &head),
            ..Default::default()
        }))
    }
}

/// The attributes asked for: some clients send their names in one header, some in several.
fn wanted_names<'a>(headers: impl Iterator<Item = &'a str>) -> S3Result<Vec<&'a str>> {
    let known = [
        ObjectAttributes::CHECKSUM,
        ObjectAttributes::ETAG,
        ObjectAttributes::OBJECT_PARTS,
        ObjectAttributes::OBJECT_SIZE,
        ObjectAttributes::STORAGE_CLASS,
    ];
    let names: Vec<&str> = headers.flat_map(|header| header.split(',')).map(str::trim).collect();
    if names.is_empty() || names.iter().any(|name| !known.contains(name)) {
        return Err(s3_error!(InvalidArgument, "Invalid attribute name specified."));
    }
    Ok(names)
}

fn checksum_of(head: &EntryHead) -> Option<Checksum> {
    if head.checksums.is_empty() {
        return None;
    }
    let mut checksum = Checksum { checksum_type: entry_checksum_type(head), ..Default::default() };
    set_checksums!(checksum, head.checksums);
    Some(checksum)
}

fn page_of(
    head: &EntryHead,
    parts: &[PartOfObject<'_>],
    after: Option<i32>,
    limit: i32,
) -> GetObjectAttributesParts {
    let after = after.unwrap_or(0);
    let later = || parts.iter().filter(|part| i64::from(part.number) > i64::from(after));
    let listed: Vec<_> = later().take(usize::try_from(limit).unwrap_or(0)).collect();
    let is_truncated = later().count() > listed.len();
    let last = listed.last().and_then(|part| i32::try_from(part.number).ok());
    let algorithm = head.checksums.keys().next();
    let answer = |part: &&PartOfObject<'_>| {
        let mut answer = ObjectPart {
            part_number: i32::try_from(part.number).ok(),
            size: Some(size(part.bytes)),
            ..Default::default()
        };
        let checksum = algorithm.zip(part.checksum);
        let checksums: Checksums =
            checksum.map(|(name, value)| (name.clone(), value.to_owned())).into_iter().collect();
        set_checksums!(answer, checksums);
        answer
    };
    GetObjectAttributesParts {
        is_truncated: Some(is_truncated),
        max_parts: Some(limit),
        next_part_number_marker: last.filter(|_| is_truncated),
        part_number_marker: Some(after),
        parts: Some(listed.iter().map(answer).collect()),
        total_parts_count: i32::try_from(parts.len()).ok(),
    }
}
