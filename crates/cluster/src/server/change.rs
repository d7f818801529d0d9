//! A write in progress: a copy of the state with the effects of one request applied. All of its
//! events carry one revision. It is pure; the writer decides whether it takes effect.

use std::sync::Arc;

use tonic::Status;

use super::auth::Auth;
use super::limits;
use super::proto::{
    DeleteRangeRequest, DeleteRangeResponse, PutRequest, PutResponse, RangeRequest, RangeResponse, ResponseHeader,
};
use super::span::Span;
use super::state::{Entry, Granted, Key, LeaseState, State};
use super::status;

/// Change of one key.
#[derive(Clone, Debug)]
pub struct Event {
    pub key: Key,
    /// Its new entry; none after a deletion.
    pub now: Option<Arc<Entry>>,
    pub before: Option<Arc<Entry>>,
}

/// One request's effects.
pub struct Change {
    state: State,
    events: Vec<Event>,
    /// Leases granted and revoked.
    leases: Vec<(i64, Option<Granted>)>,
    compacted: bool,
    has_new_auth: bool,
}

/// A change that is over.
pub struct Finished {
    pub state: State,
    pub events: Vec<Event>,
    pub leases: Vec<(i64, Option<Granted>)>,
    pub compacted: bool,
    /// True if users or roles have changed.
    pub has_new_auth: bool,
}

impl Change {
    pub fn begin(state: &State) -> Change {
        Change {
            state: state.clone(),
            events: Vec::new(),
            leases: Vec::new(),
            compacted: false,
            has_new_auth: false,
        }
    }

    /// The state with everything applied so far.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The revision seen from within: the new one as soon as anything was written.
    pub fn revision(&self) -> i64 {
        if self.events.is_empty() { self.state.revision } else { self.new_revision() }
    }

    fn new_revision(&self) -> i64 {
        self.state.revision + 1
    }

    /// Answers within a transaction carry a header with nothing but the revision.
    pub fn bare_header(&self) -> Option<ResponseHeader> {
        Some(ResponseHeader { revision: self.revision(), ..Default::default() })
    }

    pub fn finish(mut self) -> Finished {
        self.state.revision = self.revision();
        let Change { state, events, leases, compacted, has_new_auth } = self;
        Finished { state, events, leases, compacted, has_new_auth }
    }

    /// Users and roles, to be changed. That makes no revision of keys.
    pub fn auth(&mut self) -> &mut Auth {
        self.has_new_auth = true;
        let auth = Arc::make_mut(&mut self.state.auth);
        auth.revision += 1;
        auth
    }

    pub fn range(&self, request: &RangeRequest) -> Result<RangeResponse, Status> {
        let mut response = self.state.range(request)?;
        response.header = self.bare_header();
        Ok(response)
    }

    pub fn put(&mut self, request: &PutRequest) -> Result<PutResponse, Status> {
        check_put(request)?;
        let before = self.state.keys.get(request.key.as_slice()).cloned();
        if (request.ignore_value || request.ignore_lease) && before.is_none() {
            return Err(status::key_not_found());
        }
        let (value, lease) = match &before {
            Some(old) => (
                if request.ignore_value { old.value.clone() } else { request.value.clone() },
                if request.ignore_lease { old.lease } else { request.lease },
            ),
            None => (request.value.clone(), request.lease),
        };
        if lease != 0 && !self.state.leases.contains_key(&lease) {
            return Err(status::lease_not_found());
        }

        let key: Key = Arc::from(request.key.as_slice());
        let revision = self.new_revision();
        let entry = Arc::new(Entry {
            create_revision: before.as_ref().map_or(revision, |old| old.create_revision),
            mod_revision: revision,
            version: before.as_ref().map_or(1, |old| old.version + 1),
            lease,
            value,
        });
        let old_bytes = before.as_ref().map_or(0, |old| key.len() + old.value.len());
        let stored = self.state.stored_bytes + (key.len() + entry.value.len()) as u64 - old_bytes as u64;
        if stored > limits::STORED_BYTES && stored > self.state.stored_bytes {
            return Err(status::no_space());
        }
        self.state.stored_bytes = stored;
        if let Some(old) = &before {
            self.detach(&key, old.lease);
        }
        if let Some(lease) = self.state.leases.get_mut(&lease) {
            lease.keys.insert(key.clone());
        }
        self.state.keys.insert(key.clone(), entry.clone());
        let prev_kv = before.as_ref().filter(|_| request.prev_kv).map(|old| old.to_proto(&key));
        self.events.push(Event { key, now: Some(entry), before });
        Ok(PutResponse { header: self.bare_header(), prev_kv })
    }

    pub fn delete_range(&mut self, request: &DeleteRangeRequest) -> Result<DeleteRangeResponse, Status> {
        if request.key.is_empty() {
            return Err(status::empty_key());
        }
        let span = Span::new(&request.key, &request.range_end);
        let doomed: Vec<Key> = self.state.select(&span).map(|(key, _)| key.clone()).collect();
        let mut prev_kvs = Vec::new();
        for key in &doomed {
            if let Some(old) = self.remove(key)
                && request.prev_kv
            {
                prev_kvs.push(old.to_proto(key));
            }
        }
        Ok(DeleteRangeResponse { header: self.bare_header(), deleted: doomed.len() as i64, prev_kvs })
    }

    /// `owner` is the user who grants it, if the number of that user's leases is bounded.
    pub fn grant_lease(&mut self, id: i64, seconds: i64, owner: Option<Arc<str>>) -> Result<(), Status> {
        if self.state.leases.contains_key(&id) {
            return Err(status::lease_exists());
        }
        if self.state.leases.len() >= limits::LEASES {
            return Err(status::too_many_leases());
        }
        if owner.as_deref().is_some_and(|owner| self.state.leases_of(owner).count() >= limits::LEASES_OF_USER) {
            return Err(status::too_many_leases_of_user());
        }
        let lease = LeaseState { granted_seconds: seconds, owner: owner.clone(), keys: Default::default() };
        self.state.leases.insert(id, lease);
        self.leases.push((id, Some((seconds, owner))));
        Ok(())
    }

    /// Its keys are deleted in the order of their names, at one revision.
    pub fn revoke_lease(&mut self, id: i64) -> Result<(), Status> {
        let lease = self.state.leases.get(&id).cloned().ok_or_else(status::lease_not_found)?;
        for key in &lease.keys {
            self.remove(key);
        }
        self.state.leases.remove(&id);
        self.leases.push((id, None));
        Ok(())
    }

    pub fn compact(&mut self, revision: i64) -> Result<(), Status> {
        if revision <= self.state.compacted {
            return Err(status::compacted());
        }
        if revision > self.state.revision {
            return Err(status::future_revision());
        }
        self.state.compacted = revision;
        self.compacted = true;
        Ok(())
    }

    fn remove(&mut self, key: &Key) -> Option<Arc<Entry>> {
        let old = self.state.keys.remove(key)?;
        self.state.stored_bytes -= (key.len() + old.value.len()) as u64;
        self.detach(key, old.lease);
        self.events.push(Event { key: key.clone(), now: None, before: Some(old.clone()) });
        Some(old)
    }

    fn detach(&mut self, key: &Key, lease: i64) {
        if let Some(lease) = self.state.leases.get_mut(&lease) {
            lease.keys.remove(key);
        }
    }
}

/// Refuses a put that is invalid in every state.
pub fn check_put(request: &PutRequest) -> Result<(), Status> {
    if request.key.is_empty() {
        return Err(status::empty_key());
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(status::value_provided());
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(status::lease_provided());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(change: &mut Change, key: &str, lease: i64) {
        change.put(&PutRequest { key: key.into(), value: b"v".to_vec(), lease, ..Default::default() }).unwrap();
    }

    #[test]
    fn one_change_makes_one_revision() {
        let mut change = Change::begin(&State::new());
        put(&mut change, "a", 0);
        put(&mut change, "b", 0);
        let done = change.finish();
        assert_eq!(done.state.revision, 2);
        assert!(done.state.keys.values().all(|entry| entry.create_revision == 2 && entry.version == 1));
        assert_eq!(done.state.stored_bytes, 4);
    }

    #[test]
    fn a_change_without_effect_makes_no_revision() {
        let mut change = Change::begin(&State::new());
        let request = DeleteRangeRequest { key: b"a".to_vec(), range_end: b"\0".to_vec(), prev_kv: false };
        assert_eq!(change.delete_range(&request).unwrap().deleted, 0);
        assert_eq!(change.finish().state.revision, 1);
    }

    #[test]
    fn a_user_has_no_more_leases_than_one_may() {
        let mut change = Change::begin(&State::new());
        let low: Arc<str> = "low".into();
        for id in 0..limits::LEASES_OF_USER as i64 {
            change.grant_lease(id, 60, Some(low.clone())).unwrap();
        }
        assert!(change.grant_lease(-1, 60, Some(low.clone())).is_err());
        change.grant_lease(-1, 60, Some("other".into())).unwrap();
        assert_eq!(change.state().leases_of("other").collect::<Vec<_>>(), [-1]);
        change.revoke_lease(0).unwrap();
        change.grant_lease(0, 60, Some(low)).unwrap();
    }

    #[test]
    fn a_put_moves_its_key_between_leases() {
        let mut change = Change::begin(&State::new());
        change.grant_lease(1, 60, None).unwrap();
        change.grant_lease(2, 60, None).unwrap();
        put(&mut change, "a", 1);
        put(&mut change, "a", 2);
        change.revoke_lease(1).unwrap();
        assert_eq!(change.state().keys.len(), 1);
        change.revoke_lease(2).unwrap();
        let done = change.finish();
        assert!(done.state.keys.is_empty() && done.state.leases.is_empty());
        assert_eq!(done.state.stored_bytes, 0);
    }
}
