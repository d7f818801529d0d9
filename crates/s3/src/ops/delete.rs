//! DeleteObject and DeleteObjects.

use std::sync::Arc;

use atoll_audit::{Bounded, PATH_BYTES_MAX};
use futures::StreamExt;
use s3s::dto::{
    DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject, ETagCondition,
    Error, ObjectIdentifier,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::Service;
use super::conditions::WriteConditions;
use super::entries::version_name;
use super::put::check_key;
use crate::access::{Asked, Asking, BYPASS_GOVERNANCE, DELETE_OBJECT, GET_OBJECT, Permit};
use crate::audit::AuditedDeletion;
use crate::clock::unix_ms;
use crate::index::Index;
use crate::observed::{Observed, VERSION_BYTES_MAX};
use crate::record::EntryHead;
use crate::versions::Change;

const KEYS_MAX: usize = 1_000;
const DELETES_IN_FLIGHT: usize = 16;

/// Notes in the audit log the keys that were to be deleted.
fn note_deletions(extensions: &http::Extensions, results: &[(S3Result<Deletion>, String, Option<String>)]) {
    let Some(observed) = extensions.get::<Arc<Observed>>() else { return };
    let audited = |(result, key, version_id): &(S3Result<Deletion>, String, Option<String>)| AuditedDeletion {
        key: Bounded::new(key, PATH_BYTES_MAX).text().to_owned(),
        version_id: version_id.as_ref().map(|id| Bounded::new(id, VERSION_BYTES_MAX).text().to_owned()),
        error: result.as_ref().err().map(|error| error.code().as_str().to_owned()),
    };
    observed.deletes(results.iter().map(audited).collect());
}

/// Result of a deletion.
struct Deletion {
    /// The version that was deleted, or the delete marker that was written.
    version_id: Option<String>,
    /// True if a delete marker was written or deleted.
    is_of_marker: bool,
}

impl Service {
    /// Deletes one version for good; without a version id, the key's current object: where the bucket has
    /// versions, a delete marker takes its place.
    async fn delete_key(
        &self,
        index: &Index,
        key: &str,
        version_id: Option<&str>,
        conditions: WriteConditions,
        bypasses_governance: bool,
    ) -> S3Result<Deletion> {
        check_key(key)?;
        if let Some(version_id) = version_id {
            let removed = self.remove_version(index, key, version_id, &conditions, bypasses_governance).await?;
            let was_marker = removed.is_some_and(|head| head.is_delete_marker);
            return Ok(Deletion { version_id: Some(version_id.to_owned()), is_of_marker: was_marker });
        }
        let marker = EntryHead { is_delete_marker: true, modified_ms: unix_ms(), ..Default::default() };
        let written = self.write_version(index, key, (&marker, &[]), &conditions, &Change::default(), None).await;
        let written = self.note_write(&index.bucket.record.name, written)?;
        Ok(Deletion {
            version_id: written.is_versioned.then(|| version_name(&written.head)),
            is_of_marker: written.is_versioned,
        })
    }

    pub(super) async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let input = request.input;
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        self.check_reading_by_conditions(&asking, &index, &input.key, input.version_id.as_deref()).await?;
        let conditions = WriteConditions {
            if_match: input.if_match,
            size: input.if_match_size,
            last_modified: input.if_match_last_modified_time,
            ..Default::default()
        };
        let bypasses = input.bypass_governance_retention.unwrap_or(false);
        let version_id = input.version_id.as_deref();
        let done = self.delete_key(&index, &input.key, version_id, conditions, bypasses).await?;
        Ok(S3Response::new(DeleteObjectOutput {
            delete_marker: done.is_of_marker.then_some(true),
            version_id: done.version_id,
            ..Default::default()
        }))
    }

    /// Deletes the version of one entry of DeleteObjects, if the caller may.
    async fn delete_entry(
        &self,
        asking: &Asking<'_>,
        index: &Index,
        object: ObjectIdentifier,
        bypasses_governance: bool,
    ) -> S3Result<Deletion> {
        let id = object.version_id.as_deref();
        asking.check(DELETE_OBJECT, &Asked::key(&index.bucket, &object.key, id))?;
        if bypasses_governance {
            asking.check(BYPASS_GOVERNANCE, &Asked::key(&index.bucket, &object.key, id))?;
        }
        if object.e_tag.is_some() || object.size.is_some() || object.last_modified_time.is_some() {
            let is_allowed = asking.check_early(GET_OBJECT, &Asked::key(&index.bucket, &object.key, id))?;
            let pending = if is_allowed { Vec::new() } else { vec![GET_OBJECT] };
            let permit = Permit { pending, ..asking.permit.clone() };
            self.check_reading_by_conditions(&asking.with_permit(&permit), index, &object.key, id).await?;
        }
        let conditions = WriteConditions {
            if_match: object.e_tag.map(ETagCondition::ETag),
            size: object.size,
            last_modified: object.last_modified_time,
            ..Default::default()
        };
        self.delete_key(index, &object.key, id, conditions, bypasses_governance).await
    }

    pub(super) async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let asking = Asking::of(&request.headers, &request.uri, &request.extensions)?;
        let input = request.input;
        if input.delete.objects.is_empty() || input.delete.objects.len() > KEYS_MAX {
            return Err(s3_error!(MalformedXML, "Between 1 and {KEYS_MAX} keys can be deleted by one request"));
        }
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        let bypasses = input.bypass_governance_retention.unwrap_or(false);
        let deletions = futures::stream::iter(input.delete.objects).map(|object| {
            let (index, asking) = (&index, &asking);
            async move {
                let (key, version_id) = (object.key.clone(), object.version_id.clone());
                (self.delete_entry(asking, index, object, bypasses).await, key, version_id)
            }
        });
        let results: Vec<_> = deletions.buffered(DELETES_IN_FLIGHT).collect().await;

        note_deletions(&request.extensions, &results);
        let is_quiet = input.delete.quiet.unwrap_or(false);
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for (result, key, version_id) in results {
            match result {
                Ok(_) if is_quiet => {}
                Ok(done) => deleted.push(DeletedObject {
                    key: Some(key),
                    delete_marker: done.is_of_marker.then_some(true),
                    delete_marker_version_id: done.version_id.filter(|_| done.is_of_marker),
                    version_id,
                }),
                Err(error) => errors.push(Error {
                    code: Some(error.code().as_str().to_owned()),
                    key: Some(key),
                    message: Some(error.message().unwrap_or_default().to_owned()),
                    version_id,
                }),
            }
        }
        let output = DeleteObjectsOutput {
            deleted: (!deleted.is_empty()).then_some(deleted),
            errors: (!errors.is_empty()).then_some(errors),
            ..Default::default()
        };
        Ok(S3Response::new(output))
    }
}
