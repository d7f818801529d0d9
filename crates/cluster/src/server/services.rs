//! The unary calls: keys, leases, members, status.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_security_log::{SecurityEvent, note};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::auth::Caller;
use super::change::Change;
use super::lease_clock::LeaseClock;
use super::limits;
use super::proto::{cluster_server, kv_server, lease_server, maintenance_server, *};
use super::tokens::{caller_of, peer_of};
use super::{Shared, snapshot, status, stopped, txn};

/// All services of the API; they differ only in their methods.
#[derive(Clone)]
pub struct Services {
    pub shared: Arc<Shared>,
}

impl Services {
    fn clock(&self) -> std::sync::MutexGuard<'_, LeaseClock> {
        clock(&self.shared.lease_clock)
    }

    pub fn header(&self) -> Option<ResponseHeader> {
        self.shared.header(self.shared.writer.state().revision)
    }

    /// Notes a refusal for lack of rights.
    pub fn noted<R>(&self, peer: Option<SocketAddr>, result: Result<R, Status>) -> Result<R, Status> {
        result.inspect_err(|error| {
            if error.code() == tonic::Code::PermissionDenied {
                note(SecurityEvent::RefusedRight, peer_of(peer), error.message());
            }
        })
    }

    /// Names the cluster in a header that has only a revision yet.
    fn complete(&self, header: Option<ResponseHeader>) -> Option<ResponseHeader> {
        self.shared.header(header.map_or(0, |header| header.revision))
    }
}

/// The table is consistent between any two statements that change it, so a panic elsewhere does
/// not spoil it.
pub fn clock(clock: &Mutex<LeaseClock>) -> std::sync::MutexGuard<'_, LeaseClock> {
    clock.lock().unwrap_or_else(PoisonError::into_inner)
}

#[tonic::async_trait]
impl kv_server::Kv for Services {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let state = self.shared.state()?;
        let (caller, peer) = (caller_of(request.extensions()), request.remote_addr());
        self.noted(peer, state.check_range_allowed(&caller, request.get_ref()))?;
        let mut response = state.range(request.get_ref())?;
        response.header = self.shared.header(state.revision);
        Ok(Response::new(response))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        let (caller, peer) = (caller_of(request.extensions()), request.remote_addr());
        let request = request.into_inner();
        let done = self.shared.writer.submit(move |change| {
            change.state().check_put_allowed(&caller, &request)?;
            change.put(&request)
        });
        let mut response = self.noted(peer, done.await)?;
        response.header = self.complete(response.header);
        Ok(Response::new(response))
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        let (caller, peer) = (caller_of(request.extensions()), request.remote_addr());
        let request = request.into_inner();
        let done = self.shared.writer.submit(move |change| {
            change.state().check_delete_allowed(&caller, &request)?;
            change.delete_range(&request)
        });
        let mut response = self.noted(peer, done.await)?;
        response.header = self.complete(response.header);
        Ok(Response::new(response))
    }

    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let (caller, peer) = (caller_of(request.extensions()), request.remote_addr());
        let request = request.into_inner();
        txn::check(&request)?;
        let is_read_only = txn::is_read_only(&request);
        let perform = move |change: &mut Change| {
            change.state().check_txn_allowed(&caller, &request)?;
            txn::apply(change, &request)
        };
        let done = if is_read_only {
            perform(&mut Change::begin(&*self.shared.state()?))
        } else {
            self.shared.writer.submit(perform).await
        };
        let mut response = self.noted(peer, done)?;
        response.header = self.complete(response.header);
        Ok(Response::new(response))
    }

    async fn compact(&self, request: Request<CompactionRequest>) -> Result<Response<CompactionResponse>, Status> {
        let (caller, peer) = (caller_of(request.extensions()), request.remote_addr());
        let revision = request.get_ref().revision;
        let done = self.shared.writer.submit(move |change| {
            change.state().check_compact_allowed(&caller)?;
            change.compact(revision)
        });
        self.noted(peer, done.await)?;
        Ok(Response::new(CompactionResponse { header: self.header() }))
    }
}

#[tonic::async_trait]
impl lease_server::Lease for Services {
    async fn lease_grant(
        &self,
        request: Request<LeaseGrantRequest>,
    ) -> Result<Response<LeaseGrantResponse>, Status> {
        let (caller, peer) = (caller_of(request.extensions()), request.remote_addr());
        let asked = request.into_inner();
        if asked.ttl > limits::LEASE_SECONDS {
            return Err(status::lease_ttl_too_large());
        }
        let seconds = asked.ttl.max(limits::LEASE_SECONDS_MIN);
        let id = if asked.id == 0 { random_lease_id()? } else { asked.id };
        let granted = self.shared.writer.submit(move |change| {
            let owner = change.state().check_grant_allowed(&caller, asked.ttl)?;
            change.grant_lease(id, seconds, owner)
        });
        self.noted(peer, granted.await)?;
        self.clock().start(id, seconds, Instant::now());
        Ok(Response::new(LeaseGrantResponse { header: self.header(), id, ttl: seconds, error: String::new() }))
    }

    async fn lease_revoke(
        &self,
        request: Request<LeaseRevokeRequest>,
    ) -> Result<Response<LeaseRevokeResponse>, Status> {
        let (caller, peer) = (caller_of(request.extensions()), request.remote_addr());
        let id = request.get_ref().id;
        let done = self.shared.writer.submit(move |change| {
            change.state().check_lease_allowed(&caller, id)?;
            change.revoke_lease(id)
        });
        self.noted(peer, done.await)?;
        Ok(Response::new(LeaseRevokeResponse { header: self.header() }))
    }

    type LeaseKeepAliveStream = ReceiverStream<Result<LeaseKeepAliveResponse, Status>>;

    async fn lease_keep_alive(
        &self,
        request: Request<Streaming<LeaseKeepAliveRequest>>,
    ) -> Result<Response<Self::LeaseKeepAliveStream>, Status> {
        let caller = caller_of(request.extensions());
        let mut requests = request.into_inner();
        let (answers, stream) = mpsc::channel(limits::WATCH_QUEUE);
        let services = self.clone();
        let mut stop = self.shared.stop.clone();
        tokio::spawn(async move {
            loop {
                let request = tokio::select! {
                    request = requests.message() => request,
                    () = stopped(&mut stop) => Err(status::stopped()),
                };
                let answer = match request {
                    Ok(Some(request)) => services.keep_alive(&caller, request.id),
                    Ok(None) => return,
                    Err(status) => Err(status),
                };
                let is_last = answer.is_err();
                if answers.send(answer).await.is_err() || is_last {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn lease_time_to_live(
        &self,
        request: Request<LeaseTimeToLiveRequest>,
    ) -> Result<Response<LeaseTimeToLiveResponse>, Status> {
        let (caller, peer) = (caller_of(request.extensions()), request.remote_addr());
        let asked = request.into_inner();
        let state = self.shared.state()?;
        self.noted(peer, state.check_lease_readable(&caller, asked.id, asked.keys))?;
        let mut response = LeaseTimeToLiveResponse {
            header: self.shared.header(state.revision),
            id: asked.id,
            ttl: -1,
            ..Default::default()
        };
        if let Some(lease) = state.leases.get(&asked.id) {
            let whole = Duration::from_secs(lease.granted_seconds.unsigned_abs());
            let left = self.clock().left(asked.id, Instant::now()).unwrap_or(whole);
            response.ttl = left.as_secs() as i64;
            response.granted_ttl = lease.granted_seconds;
            if asked.keys {
                response.keys = lease.keys.iter().map(|key| key.to_vec()).collect();
            }
        }
        Ok(Response::new(response))
    }

    async fn lease_leases(
        &self,
        request: Request<LeaseLeasesRequest>,
    ) -> Result<Response<LeaseLeasesResponse>, Status> {
        let caller = caller_of(request.extensions());
        let state = self.shared.state()?;
        // Nobody else needs to know that there is one.
        let own = state.leases.keys().filter(|id| state.check_lease_allowed(&caller, **id).is_ok());
        let leases = own.map(|id| LeaseStatus { id: *id }).collect();
        Ok(Response::new(LeaseLeasesResponse { header: self.shared.header(state.revision), leases }))
    }
}

impl Services {
    /// Ends the leases that a user granted, with their keys: the user is gone.
    pub async fn end_leases_of(&self, user: &str) -> Result<(), Status> {
        let user = user.to_owned();
        let end = move |change: &mut Change| {
            let leases: Vec<i64> = change.state().leases_of(&user).collect();
            leases.into_iter().try_for_each(|id| change.revoke_lease(id))
        };
        self.shared.writer.submit(end).await
    }

    /// A term of zero informs the holder that the lease is lost.
    fn keep_alive(&self, caller: &Caller, id: i64) -> Result<LeaseKeepAliveResponse, Status> {
        let state = self.shared.state()?;
        state.check_known(caller)?;
        state.check_lease_allowed(caller, id)?;
        let renewed = state
            .leases
            .get(&id)
            .map(|lease| lease.granted_seconds)
            .filter(|seconds| self.clock().renew(id, *seconds, Instant::now()));
        Ok(LeaseKeepAliveResponse { header: self.shared.header(state.revision), id, ttl: renewed.unwrap_or(0) })
    }
}

/// Positive, as etcd's are.
fn random_lease_id() -> Result<i64, Status> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .map_err(|error| Status::internal(format!("/dev/urandom: {error}")))?;
    Ok((i64::from_le_bytes(bytes) & i64::MAX).max(1))
}

#[tonic::async_trait]
impl cluster_server::Cluster for Services {
    async fn member_list(
        &self,
        _request: Request<MemberListRequest>,
    ) -> Result<Response<MemberListResponse>, Status> {
        let member = Member {
            id: self.shared.identity.member,
            name: "embedded".into(),
            client_ur_ls: vec![self.shared.url.clone()],
            ..Default::default()
        };
        Ok(Response::new(MemberListResponse { header: self.header(), members: vec![member] }))
    }
}

#[tonic::async_trait]
impl maintenance_server::Maintenance for Services {
    /// There is nothing here that could raise one.
    async fn alarm(&self, _request: Request<AlarmRequest>) -> Result<Response<AlarmResponse>, Status> {
        Ok(Response::new(AlarmResponse { header: self.header(), alarms: Vec::new() }))
    }

    async fn status(&self, _request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let state = self.shared.state()?;
        Ok(Response::new(StatusResponse {
            header: self.shared.header(state.revision),
            // The version of the API that is spoken; clients parse it.
            version: "3.4.0".into(),
            // What its limit is about.
            db_size: state.stored_bytes as i64,
            db_size_in_use: state.stored_bytes as i64,
            db_size_quota: limits::STORED_BYTES as i64,
            leader: self.shared.identity.member,
            raft_index: state.revision.unsigned_abs(),
            raft_applied_index: state.revision.unsigned_abs(),
            raft_term: super::shared::TERM,
            ..Default::default()
        }))
    }

    type SnapshotStream = ReceiverStream<Result<SnapshotResponse, Status>>;

    async fn snapshot(&self, request: Request<SnapshotRequest>) -> Result<Response<Self::SnapshotStream>, Status> {
        // It has everything.
        let caller = caller_of(request.extensions());
        self.noted(request.remote_addr(), self.shared.state()?.auth.check_root(&caller))?;
        let alone = self.shared.snapshot.clone().lock_owned().await;
        let (state, identity) = (self.shared.state()?, self.shared.identity);
        let directory = self.shared.directory.clone();
        let (pieces, stream) = mpsc::channel(limits::WATCH_QUEUE);
        tokio::task::spawn_blocking(move || {
            snapshot::send(&directory, &state, identity, &pieces);
            drop(alone);
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}
