//! Versioning of a bucket, and its versions.

use futures::future::try_join_all;
use s3s::dto::{
    BucketVersioningStatus, ChecksumAlgorithm, CommonPrefix, DeleteMarkerEntry, GetBucketVersioningInput,
    GetBucketVersioningOutput, ListObjectVersionsInput, ListObjectVersionsOutput, MFADelete, ObjectVersion,
    PutBucketVersioningInput, PutBucketVersioningOutput,
};
use s3s::{S3Error, S3Request, S3Response, S3Result, s3_error};

use atoll_iam::Identities;
use atoll_types::records::{BucketRecord, BucketVersioning};

use super::Service;
use super::answers::{checksum_type, class_name, etag, owner, size, timestamp};
use super::entries::{check_version_id, version_name};
use super::list::{Encoder, checked_limit};
use crate::listing::common_prefix;
use crate::listing::versions::{After, VersionItem, VersionQuery, list_versions};
use crate::names::prefix_end;
use crate::record::{EntryHead, decode_head};
use crate::versions::{NULL_VERSION, place_of};

impl Service {
    pub(super) async fn get_bucket_versioning(
        &self,
        request: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        let bucket = self.buckets.get(&request.input.bucket).await?;
        let status = bucket.record.versioning.map(|versioning| match versioning.is_enabled {
            true => BucketVersioningStatus::from_static(BucketVersioningStatus::ENABLED),
            false => BucketVersioningStatus::from_static(BucketVersioningStatus::SUSPENDED),
        });
        Ok(S3Response::new(GetBucketVersioningOutput { status, ..Default::default() }))
    }

    pub(super) async fn put_bucket_versioning(
        &self,
        request: S3Request<PutBucketVersioningInput>,
    ) -> S3Result<S3Response<PutBucketVersioningOutput>> {
        let input = request.input;
        let wanted = input.versioning_configuration;
        if wanted.mfa_delete.as_ref().is_some_and(|wish| wish.as_str() != MFADelete::DISABLED) {
            return Err(s3_error!(NotImplemented, "MFA delete is not supported"));
        }
        let is_enabled = match wanted.status.as_ref().map(BucketVersioningStatus::as_str) {
            Some(BucketVersioningStatus::ENABLED) => true,
            Some(BucketVersioningStatus::SUSPENDED) => false,
            _ => return Err(s3_error!(MalformedXML, "The status of versioning must be Enabled or Suspended")),
        };
        let set = |record: &mut BucketRecord| {
            if !is_enabled && record.object_lock.is_some() {
                return Err(s3_error!(
                    InvalidBucketState,
                    "An Object Lock configuration is present on this bucket, so its versioning cannot be suspended"
                ));
            }
            let generation = record.versioning.map_or(0, |versioning| versioning.generation);
            record.settle_format();
            record.versioning = Some(BucketVersioning { generation, is_enabled });
            Ok(())
        };
        self.change_versioning(&input.bucket, set).await?;
        Ok(S3Response::new(PutBucketVersioningOutput::default()))
    }

    /// Changes settings in a bucket's record that every write must follow. When this returns, no gateway writes by
    /// an older record.
    pub(super) async fn change_versioning(
        &self,
        bucket: &str,
        change: impl Fn(&mut BucketRecord) -> S3Result<()>,
    ) -> S3Result<()> {
        let change_and_count = |record: &mut BucketRecord| {
            let before = record.clone();
            change(record)?;
            if *record != before
                && let Some(versioning) = &mut record.versioning
            {
                versioning.generation += 1;
            }
            Ok::<_, S3Error>(())
        };
        // Not the record that a cache or a lagging copy of cluster state may have.
        let index = self.index_of(self.buckets.try_change(bucket, change_and_count).await?);
        let all = (0..index.shards()).map(|shard| index.align_versioning(shard));
        self.note(bucket, try_join_all(all).await)?;
        Ok(())
    }

    pub(super) async fn list_object_versions(
        &self,
        request: S3Request<ListObjectVersionsInput>,
    ) -> S3Result<S3Response<ListObjectVersionsOutput>> {
        let input = request.input;
        let encoder = Encoder::new(input.encoding_type.as_ref())?;
        let limit = checked_limit(input.max_keys)?;
        let prefix = input.prefix.unwrap_or_default();
        let delimiter = input.delimiter.unwrap_or_default();
        let key_marker = input.key_marker.unwrap_or_default();
        let after = after(&key_marker, input.version_id_marker.as_deref(), &prefix, &delimiter)?;
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        let after = match after {
            // Where the null version stands is known to the index alone.
            After::Version(key, id) if id == NULL_VERSION => {
                let text = String::from_utf8_lossy(&key).into_owned();
                let version = self.version(&index, &text, Some(NULL_VERSION)).await?;
                let place = version.map(|version| place_of(&version.head));
                place.map_or(After::KeysBefore(key.clone()), |place| After::Version(key, place))
            }
            after => after,
        };
        let query = VersionQuery {
            prefix: prefix.as_bytes().to_vec(),
            delimiter: delimiter.as_bytes().to_vec(),
            after,
            limit: usize::try_from(limit).unwrap_or(0),
        };
        let page = self.note(&input.bucket, list_versions(&index, &query).await)?;
        let mut output = ListObjectVersionsOutput {
            name: Some(input.bucket),
            max_keys: Some(limit),
            is_truncated: Some(page.is_truncated),
            prefix: Some(encoder.text(&prefix)),
            delimiter: (!delimiter.is_empty()).then(|| encoder.text(&delimiter)),
            encoding_type: input.encoding_type,
            key_marker: Some(encoder.text(&key_marker)),
            version_id_marker: input.version_id_marker,
            ..Default::default()
        };
        if page.is_truncated {
            (output.next_key_marker, output.next_version_id_marker) = next_markers(&encoder, page.items.last())?;
        }
        let identities = self.directory.identities();
        for item in page.items {
            add_line(&mut output, &encoder, &identities, &index.bucket.record.owner, item)?;
        }
        Ok(S3Response::new(output))
    }
}

/// Returns the position behind which a listing with these markers begins.
fn after(key_marker: &str, version_marker: Option<&str>, prefix: &str, delimiter: &str) -> S3Result<After> {
    let key = key_marker.as_bytes().to_vec();
    match version_marker.filter(|marker| !marker.is_empty()) {
        Some(_) if key.is_empty() => {
            Err(s3_error!(InvalidArgument, "A version-id marker cannot be specified without a key marker."))
        }
        Some(id) => {
            check_version_id(Some(id))?;
            Ok(After::Version(key, id.to_owned()))
        }
        None if key.is_empty() => Ok(After::Nothing),
        None => {
            let folded = common_prefix(&key, prefix.as_bytes(), delimiter.as_bytes());
            let end = folded.filter(|folded| *folded == key).and_then(|folded| prefix_end(&folded));
            Ok(end.map_or(After::Key(key), After::KeysBefore))
        }
    }
}

/// The markers behind which the next page begins.
fn next_markers(encoder: &Encoder, last: Option<&VersionItem>) -> S3Result<(Option<String>, Option<String>)> {
    match last {
        None => Ok((None, None)),
        Some(VersionItem::CommonPrefix(prefix)) => Ok((Some(encoder.key(prefix)), None)),
        Some(VersionItem::Version { key, place, record }) => {
            let place = if place.is_empty() { place_of(&decode_head(record)?) } else { place.clone() };
            Ok((Some(encoder.text(key)), Some(place)))
        }
    }
}

fn add_line(
    output: &mut ListObjectVersionsOutput,
    encoder: &Encoder,
    identities: &Identities,
    bucket_owner: &str,
    item: VersionItem,
) -> S3Result<()> {
    let (key, place, record) = match item {
        VersionItem::Version { key, place, record } => (key, place, record),
        VersionItem::CommonPrefix(prefix) => {
            let line = CommonPrefix { prefix: Some(encoder.key(&prefix)) };
            output.common_prefixes.get_or_insert_default().push(line);
            return Ok(());
        }
    };
    let head: EntryHead = decode_head(&record)?;
    let (key, is_latest) = (Some(encoder.text(&key)), Some(place.is_empty()));
    let (last_modified, version_id) = (Some(timestamp(head.modified_ms)), Some(version_name(&head)));
    let owner = Some(owner(identities, head.owner.as_deref().unwrap_or(bucket_owner)));
    if head.is_delete_marker {
        let line = DeleteMarkerEntry { is_latest, key, last_modified, owner, version_id };
        output.delete_markers.get_or_insert_default().push(line);
        return Ok(());
    }
    let algorithms: Vec<_> = head.checksums.keys().map(|name| ChecksumAlgorithm::from(name.clone())).collect();
    output.versions.get_or_insert_default().push(ObjectVersion {
        checksum_type: (!algorithms.is_empty()).then(|| checksum_type(head.checksum_is_composite)),
        checksum_algorithm: (!algorithms.is_empty()).then_some(algorithms),
        e_tag: Some(etag(&head.etag)),
        is_latest,
        key,
        last_modified,
        owner,
        size: Some(size(head.size)),
        storage_class: Some(class_name(head.storage_class.as_ref()).into()),
        version_id,
        ..Default::default()
    });
    Ok(())
}
