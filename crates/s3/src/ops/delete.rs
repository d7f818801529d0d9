//! DeleteObject and DeleteObjects.

use atoll_types::Mutation;
use futures::StreamExt;
use s3s::dto::{
    DeleteObjectInput, DeleteObjectOutput, DeleteObjectsInput, DeleteObjectsOutput, DeletedObject, ETagCondition,
    Error,
};
use s3s::{S3Request, S3Response, S3Result, s3_error};

use super::Service;
use super::conditions::{WriteConditions, precondition_failed};
use super::put::check_key;
use crate::clock::unix_ms;
use crate::error::GatewayError;
use crate::index::Index;
use crate::names::{entry_key, garbage_key};

const KEYS_MAX: usize = 1_000;
const DELETES_IN_FLIGHT: usize = 16;

impl Service {
    async fn delete_key(
        &self,
        index: &Index,
        key: &str,
        version_id: Option<&str>,
        conditions: WriteConditions,
    ) -> S3Result<()> {
        check_key(key)?;
        if version_id.is_some_and(|version| version != "null") {
            return Err(s3_error!(NoSuchVersion, "Buckets are not versioned"));
        }
        let guards = conditions.resolve(index, key).await?;
        let change =
            Mutation::OmapReplace { key: entry_key(key), value: None, displaced_to: garbage_key(unix_ms()) };
        match index.change(key, guards, vec![change]).await {
            Err(GatewayError::ConditionFailed(_)) => Err(precondition_failed()),
            other => self.note(&index.bucket.record.name, other),
        }
    }

    pub(super) async fn delete_object(
        &self,
        request: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let input = request.input;
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        let conditions = WriteConditions {
            if_match: input.if_match,
            size: input.if_match_size,
            last_modified: input.if_match_last_modified_time,
            ..Default::default()
        };
        self.delete_key(&index, &input.key, input.version_id.as_deref(), conditions).await?;
        Ok(S3Response::new(DeleteObjectOutput::default()))
    }

    pub(super) async fn delete_objects(
        &self,
        request: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        let input = request.input;
        if input.delete.objects.is_empty() || input.delete.objects.len() > KEYS_MAX {
            return Err(s3_error!(MalformedXML, "Between 1 and {KEYS_MAX} keys can be deleted by one request"));
        }
        let index = self.note(&input.bucket, self.index(&input.bucket).await)?;
        let deletions = futures::stream::iter(input.delete.objects).map(|object| {
            let index = &index;
            async move {
                let conditions = WriteConditions {
                    if_match: object.e_tag.map(ETagCondition::ETag),
                    size: object.size,
                    last_modified: object.last_modified_time,
                    ..Default::default()
                };
                let version_id = object.version_id;
                let result = self.delete_key(index, &object.key, version_id.as_deref(), conditions).await;
                (result, object.key, version_id)
            }
        });
        let results: Vec<_> = deletions.buffered(DELETES_IN_FLIGHT).collect().await;

        let is_quiet = input.delete.quiet.unwrap_or(false);
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for (result, key, version_id) in results {
            match result {
                Ok(()) if is_quiet => {}
                Ok(()) => deleted.push(DeletedObject { key: Some(key), version_id, ..Default::default() }),
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
