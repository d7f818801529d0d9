//! The latest lines of audit logs: a host's entries cannot be changed, so an intruder on the host cannot rewrite
//! its logs unnoticed. A host says the lines of an hour in that hour, and only its own; after a month they may go.

use atoll_types::hosts::HostRecord;
use atoll_types::record_json::read_record;
use tonic::Status;

use super::auth::Caller;
use super::host_records::unix_ms;
use super::proto::{DeleteRangeRequest, PutRequest};
use super::span::Span;
use super::state::State;
use super::status;
use crate::keys;

const HOUR_MS: u64 = 3_600_000;
/// Largest error of hosts' clocks.
const CLOCK_MS: u64 = 300_000;
/// Age after which entries may be removed.
const KEPT_MS: u64 = 31 * 24 * HOUR_MS;
/// Bytes of one.
const VALUE_BYTES_MAX: usize = 2_048;

fn head_of(key: &[u8]) -> Option<Option<(&str, u64)>> {
    key.starts_with(keys::AUDIT_HEADS.as_bytes())
        .then(|| std::str::from_utf8(key).ok().and_then(keys::parse_audit_head))
}

fn is_bound(state: &State, caller: &Caller) -> bool {
    matches!(caller, Caller::User(_)) && state.auth.check_root(caller).is_err()
}

fn host_of(state: &State, caller: &Caller) -> Option<String> {
    let Caller::User(user) = caller else { return None };
    let span = Span::new(keys::HOSTS.as_bytes(), &keys::range_end(keys::HOSTS));
    let mut hosts = state.select(&span).filter_map(|(_, entry)| read_record::<HostRecord>(&entry.value).ok());
    hosts.find(|host| *host.user == **user).map(|host| host.host)
}

/// Refuses the line of another host, or of another hour.
pub fn check_put(state: &State, caller: &Caller, request: &PutRequest) -> Result<(), Status> {
    check_put_at(state, caller, request, unix_ms())
}

fn check_put_at(state: &State, caller: &Caller, request: &PutRequest, now_unix_ms: u64) -> Result<(), Status> {
    let Some(head) = head_of(&request.key).filter(|_| is_bound(state, caller)) else { return Ok(()) };
    let (host, hour) = head.ok_or_else(status::permission_denied)?;
    let begins_ms = hour.saturating_mul(HOUR_MS);
    let is_now =
        (begins_ms.saturating_sub(CLOCK_MS)..begins_ms.saturating_add(HOUR_MS + CLOCK_MS)).contains(&now_unix_ms);
    let is_plain = request.lease == 0 && request.value.len() <= VALUE_BYTES_MAX;
    match is_now && is_plain && host_of(state, caller).as_deref() == Some(host) {
        true => Ok(()),
        false => Err(status::permission_denied()),
    }
}

/// Refuses to remove lines that are to be kept.
pub fn check_delete(state: &State, caller: &Caller, request: &DeleteRangeRequest) -> Result<(), Status> {
    check_delete_at(state, caller, request, unix_ms())
}

fn check_delete_at(
    state: &State,
    caller: &Caller,
    request: &DeleteRangeRequest,
    now_unix_ms: u64,
) -> Result<(), Status> {
    if !is_bound(state, caller) {
        return Ok(());
    }
    let span = Span::new(&request.key, &request.range_end);
    let is_old = |hour: u64| hour.saturating_mul(HOUR_MS).saturating_add(KEPT_MS) < now_unix_ms;
    let is_kept = |key: &[u8]| head_of(key).is_some_and(|head| head.is_some_and(|(_, hour)| !is_old(hour)));
    match state.select(&span).any(|(key, _)| is_kept(key)) {
        true => Err(status::permission_denied()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use atoll_types::join::HostRole;
    use atoll_types::records::RECORD_FORMAT;

    use super::*;
    use crate::server::change::Change;
    use crate::server::host_records::put_record;

    /// Returns a state with two hosts; one may write everything.
    fn state() -> State {
        let state = State::new();
        let mut change = Change::begin(&state);
        for (host, user) in [("h1", "host-h1"), ("h2", "host-h2")] {
            let record = HostRecord {
                format: RECORD_FORMAT,
                host: host.into(),
                role: HostRole::Host,
                user: user.into(),
                public_key: String::new(),
                joined_unix_ms: 1,
                rotated_unix_ms: None,
                address: None,
            };
            put_record(&mut change, &keys::host(host), &record).unwrap();
            change.auth().add_user(user, None).unwrap();
        }
        for hour in [1_000, 2_000] {
            let request = put("h1", hour, 10);
            change.put(&request).unwrap();
        }
        change.state().clone()
    }

    fn put(host: &str, hour: u64, bytes: usize) -> PutRequest {
        PutRequest {
            key: keys::audit_head(host, "aa", hour).into(),
            value: vec![b'x'; bytes],
            ..PutRequest::default()
        }
    }

    fn user(name: &str) -> Caller {
        Caller::User(Arc::from(name))
    }

    #[test]
    fn a_host_says_its_own_lines_in_their_hour() {
        let (state, h1) = (state(), user("host-h1"));
        let is_taken = |request: &PutRequest, now: u64| check_put_at(&state, &h1, request, now).is_ok();
        let now = 2_000 * HOUR_MS + 1_000;
        assert!(is_taken(&put("h1", 2_000, 100), now), "again in the same hour");
        assert!(is_taken(&put("h1", 1_999, 100), now), "clocks differ");
        assert!(!is_taken(&put("h1", 1_999, 100), now + CLOCK_MS), "what was said stays");
        assert!(!is_taken(&put("h1", 1_000, 100), now));
        assert!(!is_taken(&put("h1", 2_001, 100), now), "nobody says what is to come");
        assert!(!is_taken(&put("h2", 2_000, 100), now), "of another host");
        assert!(!is_taken(&put("h1", 2_000, VALUE_BYTES_MAX + 1), now));
        assert!(!is_taken(&PutRequest { lease: 7, ..put("h1", 2_000, 1) }, now), "it would go with the lease");
        let strange = PutRequest { key: b"/atoll/audit_heads/h1".to_vec(), ..put("h1", 2_000, 1) };
        assert!(!is_taken(&strange, now));
        assert!(check_put_at(&state, &Caller::Owner, &put("h1", 1_000, 1), now).is_ok());
        let other = PutRequest { key: b"/atoll/flags".to_vec(), ..put("h1", 2_000, 1) };
        assert!(is_taken(&other, now), "nothing is said of other keys");
    }

    #[test]
    fn lines_are_removed_when_they_are_old_only() {
        let (state, h1) = (state(), user("host-h1"));
        let is_removed = |key: &str, range_end: &str, now: u64| {
            let request = DeleteRangeRequest { key: key.into(), range_end: range_end.into(), prev_kv: false };
            check_delete_at(&state, &h1, &request, now).is_ok()
        };
        let now = 2_000 * HOUR_MS;
        assert!(is_removed(&keys::audit_head("h1", "aa", 1_000), "", now));
        assert!(!is_removed(&keys::audit_head("h1", "aa", 2_000), "", now));
        assert!(!is_removed("/atoll/", "/atoll0", now), "nor with everything else");
        assert!(!is_removed("/atoll/audit_heads/", "\0", now));
        assert!(is_removed("/atoll/audit_heads/h1/aa/00001000", "/atoll/audit_heads/h1/aa/00001001", now));
        assert!(is_removed("/atoll/buckets/", "/atoll/buckets0", now));
    }
}
