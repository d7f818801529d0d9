//! The cluster's objects as the gateway needs them: the calls of
//! [`ObjectClient`](atoll_objects::ObjectClient), with futures that may move between threads.

use async_trait::async_trait;
use atoll_objects::{ClientError, Extent, answers};
use atoll_types::{Condition, Mutation, ObjectName, PoolId, ReadOutcome, ReadRequest, WriteRequest};
use bytes::Bytes;

/// Access to the cluster's objects, from the runtimes of the gateway's [`Workers`](crate::Workers).
/// [`ObjectClient`](atoll_objects::ObjectClient) promises nothing about `Send`, since one of its implementations
/// lives on a single reactor thread; a handle whose futures are `Send` implements this trait by passing both calls
/// on.
#[async_trait]
pub trait DataStore: Send + Sync + 'static {
    /// Sends a read and waits for its outcome and payload.
    async fn send_read(
        &self,
        pool: PoolId,
        object: ObjectName,
        request: ReadRequest,
    ) -> Result<(ReadOutcome, Bytes), ClientError>;

    /// Sends a write and waits until it is durable.
    async fn send_write(&self, pool: PoolId, request: WriteRequest) -> Result<(), ClientError>;
}

impl dyn DataStore {
    /// Sends a [`ReadRequest::Data`].
    pub(crate) async fn read(
        &self,
        pool: PoolId,
        object: ObjectName,
        request: ReadRequest,
    ) -> Result<Extent, ClientError> {
        let answer = self.send_read(pool, object.clone(), request).await?;
        answers::extent(object, answer)
    }

    /// Value of one omap entry; an object that does not exist is an error.
    pub(crate) async fn omap_get(
        &self,
        pool: PoolId,
        object: ObjectName,
        key: Bytes,
    ) -> Result<Option<Bytes>, ClientError> {
        let answer = self.send_read(pool, object.clone(), ReadRequest::OmapGet { key }).await?;
        answers::omap_value(object, answer)
    }

    /// Omap entries with `prefix`, at or after `from`, in key order, and whether more follow.
    pub(crate) async fn omap_list(
        &self,
        pool: PoolId,
        object: ObjectName,
        prefix: Bytes,
        from: Bytes,
        limit: u32,
    ) -> Result<(Vec<(Bytes, Bytes)>, bool), ClientError> {
        let answer = self.send_read(pool, object.clone(), ReadRequest::OmapList { prefix, from, limit }).await?;
        answers::omap_page(object, answer)
    }

    /// Names with `prefix`, after `after`, of objects in the PG of an object, which itself need not exist; and the name
    /// after which there may be more.
    pub(crate) async fn list_beside(
        &self,
        pool: PoolId,
        object: ObjectName,
        prefix: Bytes,
        after: Option<ObjectName>,
    ) -> Result<(Vec<ObjectName>, Option<ObjectName>), ClientError> {
        let request = ReadRequest::ObjectList { prefix, after, counts_blocks: false, pg_num: None };
        let answer = self.send_read(pool, object.clone(), request).await?;
        match answer {
            (ReadOutcome::ObjectPage { objects, next }, _) => {
                Ok((objects.into_iter().map(|object| object.name).collect(), next))
            }
            _ => Err(ClientError::UnexpectedAnswer { object }),
        }
    }

    /// A write that carries no data: conditions, then omap changes, creation or removal.
    pub(crate) async fn change(
        &self,
        pool: PoolId,
        object: ObjectName,
        conditions: Vec<Condition>,
        mutations: Vec<Mutation>,
    ) -> Result<(), ClientError> {
        let request = WriteRequest { object, conditions, mutations, payload: Bytes::new(), payload_sealed: false };
        self.send_write(pool, request).await
    }
}
