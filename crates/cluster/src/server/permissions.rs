//! Permission that each request needs.

use std::sync::Arc;

use tonic::Status;

use super::audit_heads;
use super::auth::{Access, Caller};
use super::proto::{DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, request_op::Request};
use super::state::{LeaseState, State};
use super::{limits, status};
use crate::keys;

impl State {
    pub fn check_range_allowed(&self, caller: &Caller, request: &RangeRequest) -> Result<(), Status> {
        self.auth.check_range(caller, &request.key, &request.range_end, Access::Read)
    }

    /// With a lease, all keys of the lease must be writable, because they go together.
    pub fn check_put_allowed(&self, caller: &Caller, request: &PutRequest) -> Result<(), Status> {
        self.auth.check_range(caller, &request.key, &[], Access::Write)?;
        audit_heads::check_put(self, caller, request)?;
        self.check_own(caller, &request.key, &[], Some(&request.value))?;
        self.check_lease_allowed(caller, request.lease)?;
        // What was there is told, or kept and so told to whoever may read it.
        if request.prev_kv {
            self.auth.check_range(caller, &request.key, &[], Access::Read)?;
        }
        Ok(())
    }

    pub fn check_delete_allowed(&self, caller: &Caller, request: &DeleteRangeRequest) -> Result<(), Status> {
        self.auth.check_range(caller, &request.key, &request.range_end, Access::Write)?;
        audit_heads::check_delete(self, caller, request)?;
        self.check_own(caller, &request.key, &request.range_end, None)?;
        if request.prev_kv {
            self.auth.check_range(caller, &request.key, &request.range_end, Access::Read)?;
        }
        Ok(())
    }

    /// Checks both branches: the choice of a branch discloses something, too.
    pub fn check_txn_allowed(&self, caller: &Caller, txn: &TxnRequest) -> Result<(), Status> {
        for comparison in &txn.compare {
            self.auth.check_range(caller, &comparison.key, &comparison.range_end, Access::Read)?;
        }
        for operation in txn.success.iter().chain(&txn.failure) {
            self.check_operation_allowed(caller, operation)?;
        }
        Ok(())
    }

    fn check_operation_allowed(&self, caller: &Caller, operation: &RequestOp) -> Result<(), Status> {
        match &operation.request {
            Some(Request::RequestRange(request)) => self.check_range_allowed(caller, request),
            Some(Request::RequestPut(request)) => self.check_put_allowed(caller, request),
            Some(Request::RequestDeleteRange(request)) => self.check_delete_allowed(caller, request),
            // Stricter than etcd 3.4, which forgets to ask.
            Some(Request::RequestTxn(inner)) => self.check_txn_allowed(caller, inner),
            None => Ok(()),
        }
    }

    /// Refuses a caller that may not end a lease, renew it, or add keys to it. A lease belongs to its owner, as far as
    /// the owner may write its keys. Without an owner it belongs to writers of its keys; without keys, to root.
    pub fn check_lease_allowed(&self, caller: &Caller, lease: i64) -> Result<(), Status> {
        let Some(lease) = self.leases.get(&lease) else { return Ok(()) };
        let Caller::User(name) = caller else { return self.auth.check_root(caller) };
        if self.auth.check_root(caller).is_ok() || self.may_write_all(caller) {
            return Ok(());
        }
        let is_own = match &lease.owner {
            Some(owner) => owner == name,
            None => !lease.keys.is_empty(),
        };
        if !is_own {
            return Err(status::permission_denied());
        }
        for key in &lease.keys {
            self.auth.check_range(caller, key, &[], Access::Write)?;
            self.check_own(caller, key, &[], None)?;
        }
        Ok(())
    }

    fn may_write_all(&self, caller: &Caller) -> bool {
        let (key, end) = (keys::ROOT.as_bytes(), keys::range_end(keys::ROOT));
        self.auth.check_range(caller, key, &end, Access::Write).is_ok()
    }

    /// Refuses a caller that may neither end a lease nor read the names of all its keys. `names` are to be read.
    pub fn check_lease_readable(&self, caller: &Caller, lease: i64, names: bool) -> Result<(), Status> {
        let Some(found) = self.leases.get(&lease) else { return Ok(()) };
        if !names && self.check_lease_allowed(caller, lease).is_ok() {
            return Ok(());
        }
        if found.keys.is_empty() {
            return self.check_lease_allowed(caller, lease);
        }
        for key in &found.keys {
            self.auth.check_range(caller, key, &[], Access::Read)?;
        }
        Ok(())
    }

    /// Returns the leases that a user granted.
    pub fn leases_of<'a>(&'a self, user: &'a str) -> impl Iterator<Item = i64> + use<'a> {
        let is_own = move |lease: &LeaseState| lease.owner.as_deref() == Some(user);
        self.leases.iter().filter(move |(_, lease)| is_own(lease)).map(|(id, _)| *id)
    }

    /// The user who is to own a lease that the caller grants, if the number of that user's leases is bounded. A
    /// caller that may write nothing needs no lease.
    pub fn check_grant_allowed(&self, caller: &Caller, seconds: i64) -> Result<Option<Arc<str>>, Status> {
        let Caller::User(name) = caller else {
            return self.auth.check_root(caller).map(|()| None);
        };
        let user = self.auth.users.get(&**name).ok_or_else(status::invalid_token)?;
        if self.auth.check_root(caller).is_ok() {
            return Ok(None);
        }
        if user.roles.is_empty() {
            return Err(status::permission_denied());
        }
        if seconds > limits::LEASE_SECONDS_OF_USER {
            return Err(status::lease_ttl_too_large());
        }
        Ok(Some(Arc::clone(name)))
    }

    /// Checks that the caller may compact the history: only the coordinator may.
    pub fn check_compact_allowed(&self, caller: &Caller) -> Result<(), Status> {
        self.auth.check_range(caller, keys::COORDINATOR.as_bytes(), &[], Access::Write)
    }

    /// Checks that the caller is still known: a stream may be older than that.
    pub fn check_known(&self, caller: &Caller) -> Result<(), Status> {
        match caller {
            Caller::User(name) if !self.auth.users.contains_key(&**name) => Err(status::invalid_token()),
            _ => Ok(()),
        }
    }
}
