//! Common parts of the calls of hosts: records that the server reads and writes itself, and the roles that it
//! makes.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use atoll_types::events::{EventKind, EventRecord, Severity};
use atoll_types::record_json::read_record;
use atoll_types::records::AuthorizedKeyRecord;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tonic::Status;

use super::auth::Auth;
use super::change::Change;
use super::proto::PutRequest;
use super::span::Span;
use super::state::{Entry, State};
use crate::client::{GuardFault, Place, RESERVED, RecordGuard};
use crate::keys;
use crate::roles::{Role, grants};

/// Now, as Unix time in milliseconds.
pub fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(u64::MAX, |since| since.as_millis() as u64)
}

/// All records with a prefix that can be read, with their revisions.
pub fn records<T: DeserializeOwned>(change: &Change, prefix: &str) -> impl Iterator<Item = (i64, T)> + use<T> {
    let span = Span::new(prefix.as_bytes(), &keys::range_end(prefix));
    let found: Vec<_> = change.state().select(&span).map(|(_, entry)| Arc::clone(entry)).collect();
    found.into_iter().filter_map(|entry| Some((entry.mod_revision, read_record(&entry.value).ok()?)))
}

/// Writes a record.
pub fn put_record(change: &mut Change, key: &str, record: &impl Serialize) -> Result<(), Status> {
    put(change, key, serde_json::to_vec(record).expect("records are plain JSON"))
}

/// The signer of records, if the key service is here.
pub type Signer = Option<Arc<dyn RecordGuard>>;

/// Writes the key of a process, signed once the cluster is. Without a signer an operator has to sign it before it counts.
pub fn put_key(
    change: &mut Change,
    signer: &Signer,
    key: &str,
    record: &AuthorizedKeyRecord,
) -> Result<(), Status> {
    let is_there = |entry: &&Arc<Entry>| entry.value != RESERVED;
    let authority = change.state().keys.get(keys::AUTHORITY.as_bytes()).filter(is_there);
    let (Some(signer), Some(authority)) = (signer, authority) else { return put_record(change, key, record) };
    if signer.authority_revision() != authority.mod_revision {
        return Err(Status::unavailable("the keys of signed records are being read; try again"));
    }
    if !change.state().keys.contains_key(key.as_bytes()) {
        put(change, key, RESERVED.to_vec())?;
    }
    let entry = change.state().keys.get(key.as_bytes()).expect("it is there, or was reserved");
    let place = Place { key, version: entry.version + 1, create_revision: entry.create_revision };
    let value = serde_json::to_vec(record).expect("records are plain JSON");
    let sealed = signer.seal(&place, &value).map_err(|fault| match fault {
        GuardFault::Stale => Status::unavailable("the keys of signed records are being read; try again"),
        GuardFault::Refused(cause) => Status::failed_precondition(cause),
    })?;
    put(change, key, sealed)
}

fn put(change: &mut Change, key: &str, value: Vec<u8>) -> Result<(), Status> {
    change.put(&PutRequest { key: key.into(), value, ..PutRequest::default() }).map(drop)
}

/// An event about a host.
pub fn host_event(code: &str, severity: Severity, summary: String) -> EventRecord {
    EventRecord::new(unix_ms(), EventKind::Host, code, severity, summary)
}

/// Writes an event.
pub fn note_event(change: &mut Change, event: &EventRecord) -> Result<(), Status> {
    put_record(change, &keys::new_event(event.unix_ms), event)
}

/// The names of roles in cluster state.
pub fn role_names(roles: &[Role]) -> impl Iterator<Item = &'static str> {
    roles.iter().map(|role| role.name())
}

/// Sets the roles to those of this release.
pub fn set_roles(auth: &mut Auth) {
    for role in Role::ALL {
        auth.set_role(role.name(), &grants(role));
    }
}

/// Returns true if the present roles differ from those of this release. Without any there are no hosts to have
/// them.
pub fn has_old_roles(state: &State) -> bool {
    let mut wanted = (*state.auth).clone();
    set_roles(&mut wanted);
    let has_some = Role::ALL.iter().any(|role| state.auth.roles.contains_key(role.name()));
    has_some && wanted.roles != state.auth.roles
}
