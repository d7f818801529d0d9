//! State that the services of one server share.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use tokio::sync::watch as latest;
use tonic::Status;

use super::disk_error::Identity;
use super::host_records::Signer;
use super::lease_clock::LeaseClock;
use super::proto::ResponseHeader;
use super::state::State;
use super::status;
use super::tokens::Gate;
use super::writer::WriterHandle;
use crate::client::RecordGuard;

/// There are no elections, so the term never changes.
pub(super) const TERM: u64 = 1;

/// Finds the signer of records, if the key service is there now. The signer is kept current elsewhere.
pub type FindSigner = Arc<dyn Fn() -> Option<Arc<dyn RecordGuard>> + Send + Sync>;

/// Shared state of all services of one server.
pub(super) struct Shared {
    pub(super) identity: Identity,
    pub(super) writer: WriterHandle,
    pub(super) lease_clock: Mutex<LeaseClock>,
    pub(super) gate: Gate,
    /// As clients name it.
    pub(super) url: String,
    pub(super) directory: PathBuf,
    pub(super) signer: Option<FindSigner>,
    /// Held while a snapshot is sent: all have the same file.
    pub(super) snapshot: Arc<tokio::sync::Mutex<()>>,
    /// Becomes true when the server stops, so that endless streams end.
    pub(super) stop: latest::Receiver<bool>,
}

impl Shared {
    pub(super) fn signer(&self) -> Signer {
        self.signer.as_ref().and_then(|find| find())
    }

    /// The newest durable state, unless the server has stopped: a connection may outlive it, and
    /// another server may have taken over the directory.
    pub(super) fn state(&self) -> Result<Arc<State>, Status> {
        if *self.stop.borrow() { Err(status::stopped()) } else { Ok(self.writer.state()) }
    }

    pub(super) fn header(&self, revision: i64) -> Option<ResponseHeader> {
        let Identity { cluster, member } = self.identity;
        Some(ResponseHeader { cluster_id: cluster, member_id: member, revision, raft_term: TERM })
    }
}

/// Returns when the server stops or is dropped.
pub(super) async fn stopped(stop: &mut latest::Receiver<bool>) {
    // An error means that the server was dropped, which stops it as well.
    let _ = stop.wait_for(|stopping| *stopping).await.is_ok();
}
