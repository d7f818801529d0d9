//! The refusals of the API. Clients (etcd's own among them) recognise several by their exact text,
//! so these texts are a part of the interface.

use tonic::Status;

pub fn empty_key() -> Status {
    Status::invalid_argument("etcdserver: key is not provided")
}

pub fn key_not_found() -> Status {
    Status::invalid_argument("etcdserver: key not found")
}

pub fn value_provided() -> Status {
    Status::invalid_argument("etcdserver: value is provided")
}

pub fn lease_provided() -> Status {
    Status::invalid_argument("etcdserver: lease is provided")
}

pub fn duplicate_key() -> Status {
    Status::invalid_argument("etcdserver: duplicate key given in txn request")
}

pub fn too_many_operations() -> Status {
    Status::invalid_argument("etcdserver: too many operations in txn request")
}

pub fn invalid_sort() -> Status {
    Status::invalid_argument("etcdserver: invalid sort option")
}

/// Only this server says this: etcd would answer from its history.
pub fn historical_revision(asked: i64, current: i64) -> Status {
    Status::out_of_range(format!(
        "etcdserver: mvcc: required revision has been compacted: revision {asked} was asked for, the embedded \
         server keeps only the newest ({current}); ask without a revision, or run a real etcd"
    ))
}

pub const COMPACTED: &str = "etcdserver: mvcc: required revision has been compacted";

pub fn compacted() -> Status {
    Status::out_of_range(COMPACTED)
}

pub fn future_revision() -> Status {
    Status::out_of_range("etcdserver: mvcc: required revision is a future revision")
}

pub fn no_space() -> Status {
    Status::resource_exhausted("etcdserver: mvcc: database space exceeded")
}

pub fn lease_not_found() -> Status {
    Status::not_found("etcdserver: requested lease not found")
}

pub fn lease_exists() -> Status {
    Status::failed_precondition("etcdserver: lease already exists")
}

pub fn lease_ttl_too_large() -> Status {
    Status::out_of_range("etcdserver: too large lease TTL")
}

pub fn too_many_leases() -> Status {
    Status::resource_exhausted("the embedded server holds as many leases as it may; revoke some")
}

pub fn too_many_leases_of_user() -> Status {
    Status::resource_exhausted("the embedded server holds as many leases of this user as it may; revoke some")
}

pub fn auth_not_enabled() -> Status {
    Status::failed_precondition("etcdserver: authentication is not enabled")
}

pub fn auth_failed() -> Status {
    Status::invalid_argument("etcdserver: authentication failed, invalid user ID or password")
}

pub fn invalid_token() -> Status {
    Status::unauthenticated("etcdserver: invalid auth token")
}

pub fn stopped() -> Status {
    Status::unavailable("etcdserver: server stopped")
}

/// After a failed write to disk nothing more is accepted: the content of the disk is unknown.
pub fn disk_failed() -> Status {
    Status::unavailable(
        "the embedded server could not write to its disk and accepts nothing more; see its log, then restart it",
    )
}

// ---- users and roles -----------------------------------------------------------------------------

pub fn permission_denied() -> Status {
    Status::permission_denied("etcdserver: permission denied")
}

pub fn user_empty() -> Status {
    Status::invalid_argument("etcdserver: user name is empty")
}

pub fn user_exists() -> Status {
    Status::failed_precondition("etcdserver: user name already exists")
}

pub fn user_not_found() -> Status {
    Status::failed_precondition("etcdserver: user name not found")
}

pub fn role_empty() -> Status {
    Status::invalid_argument("etcdserver: role name is empty")
}

pub fn role_exists() -> Status {
    Status::failed_precondition("etcdserver: role name already exists")
}

pub fn role_not_found() -> Status {
    Status::failed_precondition("etcdserver: role name not found")
}

pub fn role_not_granted() -> Status {
    Status::failed_precondition("etcdserver: role is not granted to the user")
}

pub fn permission_not_given() -> Status {
    Status::invalid_argument("etcdserver: permission not given")
}

pub fn permission_not_granted() -> Status {
    Status::failed_precondition("etcdserver: permission is not granted to the role")
}

pub fn no_root_user() -> Status {
    Status::failed_precondition("etcdserver: root user does not exist")
}

pub fn no_root_role() -> Status {
    Status::failed_precondition("etcdserver: root user does not have root role")
}

pub fn invalid_auth_management() -> Status {
    Status::invalid_argument("etcdserver: invalid auth management")
}

/// Only this server returns this: its data directory has the password of one user, who can then not be changed by
/// requests.
pub fn owner_is_fixed() -> Status {
    Status::failed_precondition(
        "the user of the embedded server is that of its data directory and is not changed here",
    )
}
