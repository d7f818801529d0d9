//! A record in the index that says that data is being written which nothing names yet. It comes before the data,
//! the change that names the data removes it and requires it, and the collector makes garbage of its data if it is
//! not renewed. So data whose gateway died is found, and data that was given up is never named.
//!
//! Data beside the index has none: it would cost as much as the data. There is one afterwards in two cases: when it is
//! not certain whether the change happened that names the data, and when a search has found no record that names it. From
//! then on the change is refused, and the collector looks whether the data was named.

use std::time::{Duration, Instant};

use atoll_keys::WRAPPED_KEY_BYTES;
use atoll_metrics::current_span::carry;
use atoll_objects::ClientError;
use atoll_types::{Condition, Mutation};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

use crate::error::GatewayError;
use crate::index::Index;
use crate::names::intent_key;
use crate::record::{Piece, Place, encode};

/// Head of an intent's record: it changes with every renewal.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct IntentHead {
    renewals: u64,
    /// The S3 key whose records may name the data already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub named_by: Option<String>,
    /// The data is beside the index, and a search has found no record that names it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_suspect: bool,
}

/// The record that says of small data that it may be named by this key, or not.
pub(super) fn unclear_record(object_key: &str, piece: &Piece) -> Bytes {
    let head = IntentHead { named_by: Some(object_key.to_owned()), ..Default::default() };
    encode(&head, std::slice::from_ref(piece))
}

/// A piece of data beside the index, by its id alone.
pub(crate) fn suspect_piece(data_id: &[u8; 16]) -> Piece {
    Piece { place: Place::Beside, data_id: *data_id, wrapped_key: [0; WRAPPED_KEY_BYTES], bytes: 1 }
}

/// The record that says of data beside the index that no record seems to name it, and that none may from now on.
pub(crate) fn suspect_record(data_id: &[u8; 16]) -> Bytes {
    let head = IntentHead { is_suspect: true, ..Default::default() };
    encode(&head, &[suspect_piece(data_id)])
}

/// The intent of one body.
pub(crate) struct Intent {
    index: Index,
    /// The S3 key in whose shard the data will be named.
    object_key: String,
    /// All that may be written.
    piece: Piece,
    interval: Duration,
    renewals: u64,
    renewed: Option<Instant>,
    under_way: Option<JoinHandle<Result<(), GatewayError>>>,
}

impl Intent {
    /// An intent to write a piece. Nothing is sent yet.
    pub(crate) fn new(index: &Index, object_key: &str, piece: Piece, interval: Duration) -> Self {
        Intent {
            index: index.clone(),
            object_key: object_key.to_owned(),
            piece,
            interval,
            renewals: 0,
            renewed: None,
            under_way: None,
        }
    }

    fn key(&self) -> Bytes {
        intent_key(&self.piece.data_id)
    }

    /// Returns true if the index may have it.
    pub(super) fn has_begun(&self) -> bool {
        self.renewed.is_some()
    }

    /// Sends it, if it was not sent yet, or is to be renewed. Does not wait for that.
    pub(super) async fn tend(&mut self) -> Result<(), GatewayError> {
        if self.under_way.as_ref().is_some_and(JoinHandle::is_finished) {
            self.durable().await?;
        }
        let is_due = self.renewed.is_none_or(|renewed| renewed.elapsed() >= self.interval);
        if is_due && self.under_way.is_none() {
            self.send();
        }
        Ok(())
    }

    fn send(&mut self) {
        let value = encode(
            &IntentHead { renewals: self.renewals, ..Default::default() },
            std::slice::from_ref(&self.piece),
        );
        let conditions = match self.renewed {
            None => Vec::new(),
            Some(_) => vec![self.condition()],
        };
        let (index, object_key) = (self.index.clone(), self.object_key.clone());
        let set = vec![Mutation::OmapSet { key: self.key(), value }];
        // A task of its own: dropped with the request, it could come after the removal.
        self.under_way =
            Some(tokio::spawn(carry(async move { index.change(&object_key, conditions, set).await })));
        self.renewals += 1;
        self.renewed = Some(Instant::now());
    }

    /// Waits until it is durable as it was sent.
    pub(super) async fn durable(&mut self) -> Result<(), GatewayError> {
        let Some(under_way) = &mut self.under_way else { return Ok(()) };
        let done = under_way.await;
        self.under_way = None;
        match done {
            Ok(Err(GatewayError::ConditionFailed(_))) => Err(GatewayError::Abandoned),
            Ok(done) => done,
            // The task cannot be cancelled, so it panicked or the runtime is going down.
            Err(_) => Err(ClientError::ShutDown.into()),
        }
    }

    /// Returns the condition of the change that names the data.
    pub(super) fn condition(&self) -> Condition {
        Condition::OmapExists { key: self.key() }
    }

    /// Returns the further mutation of the change that names the data.
    pub(super) fn removal(&self) -> Mutation {
        Mutation::OmapRemove { key: self.key() }
    }

    /// Removes it after the data that it names.
    pub(super) async fn withdraw(self) -> Result<(), GatewayError> {
        let shard = self.index.shard_of(&self.object_key);
        let exists = vec![Condition::ObjectExists];
        match self.index.change_shard(shard, exists, vec![self.removal()]).await {
            Err(error) if error.failed_condition().is_some() => Ok(()),
            removed => removed.map_err(GatewayError::from),
        }
    }
}
