//! The calls on the cluster's objects, and how they fail: one trait ([`ObjectClient`]), which the handles
//! of atoll-client implement, and which tests implement in memory.
//!
//! This crate holds the callers' view. It may not know how a call reaches an OSD: no placement, no wire, no
//! cluster state, no I/O. So the S3 gateway can use it without these.

pub mod answers;
mod listing;

use std::future::Future;

use atoll_types::{
    Condition, Mutation, ObjectName, PoolId, ReadOutcome, ReadRequest, Refusal, Seals, Version, WriteRequest,
};
use bytes::Bytes;

pub use listing::{PoolClient, visit_objects};

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ClientError {
    /// The OSD refused for good.
    #[error("object '{object}' in pool {pool}: {refusal}")]
    Refused {
        /// The pool.
        pool: PoolId,
        /// The object.
        object: ObjectName,
        /// Why.
        refusal: Refusal,
    },
    /// No answer within the time limit, retries included. A write may or may not have happened.
    #[error("object '{object}' in pool {pool}: no answer within {timeout_ms} ms, last problem: {detail}")]
    TimedOut {
        /// The pool.
        pool: PoolId,
        /// The object.
        object: ObjectName,
        /// The limit that ran out, in milliseconds.
        timeout_ms: u64,
        /// The last problem seen.
        detail: String,
    },
    /// The write was sent more than once, and too much else was done meanwhile for the cluster to know
    /// whether it had been done. It may or may not have happened.
    #[error(
        "object '{object}' in pool {pool}: the write was sent again, and whether it was done before is not known any more"
    )]
    OutcomeUnknown {
        /// The pool.
        pool: PoolId,
        /// The object.
        object: ObjectName,
    },
    /// The pool is not in the cluster map.
    #[error("there is no pool {0}")]
    NoSuchPool(PoolId),
    /// The answer does not fit the question.
    #[error("object '{object}': the OSD sent an answer of the wrong kind")]
    UnexpectedAnswer {
        /// The object.
        object: ObjectName,
    },
    /// The client was shut down.
    #[error("the client is shut down")]
    ShutDown,
}

impl ClientError {
    /// Returns the OSD's refusal, if this is one.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            ClientError::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }

    /// Returns true if a write that failed with this may have happened all the same, or may happen later.
    pub fn is_unclear(&self) -> bool {
        match self {
            ClientError::TimedOut { .. } | ClientError::OutcomeUnknown { .. } | ClientError::ShutDown => true,
            // A write has no answer that could not fit.
            ClientError::Refused { .. } | ClientError::NoSuchPool(_) | ClientError::UnexpectedAnswer { .. } => {
                false
            }
        }
    }

    /// Returns true if the object was not there.
    pub fn is_no_such_object(&self) -> bool {
        self.refusal() == Some(&Refusal::NoSuchObject)
    }

    /// Returns the failed condition of a write, if this is one.
    pub fn failed_condition(&self) -> Option<u16> {
        match self.refusal() {
            Some(Refusal::ConditionFailed { index }) => Some(*index),
            _ => None,
        }
    }
}

/// A piece of an object as read.
#[derive(Debug, Clone)]
pub struct Extent {
    /// The data: shorter than asked where the object ends.
    pub data: Bytes,
    /// Size of the whole object, in bytes.
    pub object_bytes: u64,
    /// Version of its last change.
    pub version: Version,
    /// Seals of the units that overlap the range, if the object has any.
    pub seals: Option<Seals>,
}

/// Access to the cluster's objects. Every write is durable on all members when its future resolves; then it has
/// happened exactly once, however often the client had to retry. A write that is refused did not happen. Whether
/// one that fails otherwise has happened, or will, is not known ([`ClientError::is_unclear`]): once at most. A
/// caller that gets such an error removes nothing that the write may need, and looks before it repeats the write.
///
/// ```
/// use atoll_types::{Condition, Mutation, ObjectName, PoolId, WriteRequest};
/// use atoll_objects::{ClientError, ObjectClient};
///
/// /// Makes an object of one block, unless it exists, and reads it.
/// async fn example(client: &impl ObjectClient, pool: PoolId) -> Result<(), ClientError> {
///     let object = ObjectName::new("greeting").expect("1 to 255 bytes");
///     let request = WriteRequest {
///         object: object.clone(),
///         conditions: vec![Condition::ObjectAbsent],
///         mutations: vec![Mutation::Write { offset: 0, length: 4096, seals: None }],
///         payload: vec![b'!'; 4096].into(),
///         payload_sealed: false,
///     };
///     match client.send_write(pool, request).await {
///         Err(error) if error.failed_condition() == Some(0) => {}
///         done => done?,
///     }
///     let found = client.read(pool, object, 0, 4096).await?;
///     assert_eq!(found.data.len(), 4096);
///     Ok(())
/// }
/// ```
pub trait ObjectClient: Clone {
    /// Sends a read and waits for its outcome and payload.
    fn send_read(
        &self,
        pool: PoolId,
        object: ObjectName,
        request: ReadRequest,
    ) -> impl Future<Output = Result<(ReadOutcome, Bytes), ClientError>>;

    /// Sends a write and waits until it is durable.
    fn send_write(&self, pool: PoolId, request: WriteRequest) -> impl Future<Output = Result<(), ClientError>>;

    /// Reads a block-aligned range of an object.
    fn read(
        &self,
        pool: PoolId,
        object: ObjectName,
        offset: u64,
        length: u32,
    ) -> impl Future<Output = Result<Extent, ClientError>> {
        self.read_data(pool, object, ReadRequest::checked_data(offset, length))
    }

    /// Sends a [`ReadRequest::Data`].
    fn read_data(
        &self,
        pool: PoolId,
        object: ObjectName,
        request: ReadRequest,
    ) -> impl Future<Output = Result<Extent, ClientError>> {
        async move {
            let answer = self.send_read(pool, object.clone(), request).await?;
            answers::extent(object, answer)
        }
    }

    /// Size in bytes and version of an object.
    fn stat(&self, pool: PoolId, object: ObjectName) -> impl Future<Output = Result<(u64, Version), ClientError>> {
        async move {
            match self.send_read(pool, object.clone(), ReadRequest::Stat).await? {
                (ReadOutcome::Stat { object_bytes, version }, _) => Ok((object_bytes, version)),
                _ => Err(ClientError::UnexpectedAnswer { object }),
            }
        }
    }

    /// Value of one omap entry; an object that does not exist is an error.
    fn omap_get(
        &self,
        pool: PoolId,
        object: ObjectName,
        key: Bytes,
    ) -> impl Future<Output = Result<Option<Bytes>, ClientError>> {
        async move {
            let answer = self.send_read(pool, object.clone(), ReadRequest::OmapGet { key }).await?;
            answers::omap_value(object, answer)
        }
    }

    /// Omap entries with `prefix`, at or after `from`, in key order, and whether more follow.
    /// A page may hold fewer than `limit` entries even when more follow.
    fn omap_list(
        &self,
        pool: PoolId,
        object: ObjectName,
        prefix: Bytes,
        from: Bytes,
        limit: u32,
    ) -> impl Future<Output = Result<(Vec<(Bytes, Bytes)>, bool), ClientError>> {
        async move {
            let request = ReadRequest::OmapList { prefix, from, limit };
            let answer = self.send_read(pool, object.clone(), request).await?;
            answers::omap_page(object, answer)
        }
    }

    /// A write that carries no data: conditions, then omap changes, creation or removal.
    fn change(
        &self,
        pool: PoolId,
        object: ObjectName,
        conditions: Vec<Condition>,
        mutations: Vec<Mutation>,
    ) -> impl Future<Output = Result<(), ClientError>> {
        let request = WriteRequest { object, conditions, mutations, payload: Bytes::new(), payload_sealed: false };
        self.send_write(pool, request)
    }
}
