//! The cluster's objects, by the object client.

use async_trait::async_trait;
use atoll_client::ThreadClient;
use atoll_objects::{ClientError, ObjectClient};
use atoll_s3::DataStore;
use atoll_types::{ObjectName, PoolId, ReadOutcome, ReadRequest, WriteRequest};
use bytes::Bytes;

/// The objects of the cluster, by the client of the thread that asks for them.
pub struct ClusterObjects;

#[async_trait]
impl DataStore for ClusterObjects {
    async fn send_read(
        &self,
        pool: PoolId,
        object: ObjectName,
        request: ReadRequest,
    ) -> Result<(ReadOutcome, Bytes), ClientError> {
        ThreadClient.send_read(pool, object, request).await
    }

    async fn send_write(&self, pool: PoolId, request: WriteRequest) -> Result<(), ClientError> {
        ThreadClient.send_write(pool, request).await
    }
}
