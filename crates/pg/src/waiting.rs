//! Clients' requests that cannot be started yet, at the primary.

use std::collections::{BTreeSet, VecDeque};

use atoll_base::{Mutation, ObjectName, ReadRequest, Refusal, RequestId, WriteRequest};
use bytes::Bytes;

use crate::actions::{Action, ClientId, Lookup, ObjectView, Token};
use crate::client_requests::Attempt;
use crate::group::{Pg, PgState};

/// Requests that may wait in one group before clients are told to come back.
const WAITING_MAX: usize = 4096;

pub(crate) enum Waiting {
    Read(ReadRequest),
    Write(RequestId, WriteRequest),
    /// A refusal that rests on data still in flight, of the objects that it clones too: it is given
    /// only once that is committed.
    Refuse(RequestId, Refusal, Vec<ObjectName>),
}

/// A client's request that cannot be started yet. Requests for one object keep their order.
pub(crate) struct WaitingRequest {
    pub client: ClientId,
    pub sequence: u64,
    pub object: ObjectName,
    pub what: Waiting,
    /// The load of what it looks at, while that is under way.
    pub loading: Option<Token>,
}

impl WaitingRequest {
    pub fn new(client: ClientId, sequence: u64, object: ObjectName, what: Waiting) -> Self {
        WaitingRequest { client, sequence, object, what, loading: None }
    }

    fn is_write(&self) -> bool {
        matches!(self.what, Waiting::Write(..))
    }

    /// What it is about, and what it clones.
    pub fn objects(&self) -> impl Iterator<Item = &ObjectName> {
        let mutations = match &self.what {
            Waiting::Write(_, write) => &write.mutations[..],
            _ => &[],
        };
        [&self.object].into_iter().chain(mutations.iter().filter_map(Mutation::clone_source))
    }
}

impl Pg {
    pub(crate) fn enqueue(&mut self, request: WaitingRequest, view: &impl ObjectView) {
        if !self.is_primary() {
            return self.refuse(request, Refusal::NotPrimary);
        }
        let must_queue = self.waiting.iter().any(|waiting| waiting.object == request.object);
        let attempt = if must_queue { Attempt::MustWait(Box::new(request)) } else { self.start(request, view) };
        let Attempt::MustWait(request) = attempt else { return };
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push_back(*request);
        } else {
            self.refuse(*request, Refusal::Busy);
        }
    }

    pub(crate) fn refuse(&mut self, request: WaitingRequest, refusal: Refusal) {
        match request.what {
            Waiting::Read(_) => self.reply_read(request.client, request.sequence, Err(refusal), Bytes::new()),
            _ => self.reply_written(request.client, request.sequence, Err(refusal)),
        }
    }

    /// What waits is sent back, to be retried.
    pub(crate) fn refuse_waiting(&mut self, refusal: &Refusal) {
        for request in std::mem::take(&mut self.waiting) {
            self.refuse(request, refusal.clone());
        }
    }

    /// What refusals rested on may have been taken back: clients ask again.
    pub(crate) fn withdraw_refusals(&mut self) {
        let is_refusal = |request: &WaitingRequest| matches!(request.what, Waiting::Refuse(..));
        let waiting = std::mem::take(&mut self.waiting);
        let (withdrawn, waiting): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_refusal);
        self.waiting = waiting.into();
        let refusal = self.inactive();
        withdrawn.into_iter().for_each(|request| self.refuse(request, refusal.clone()));
    }

    /// Starts whatever can be started, in order per object.
    pub(crate) fn start_waiting(&mut self, view: &impl ObjectView) {
        if self.waiting.is_empty() || self.state != PgState::Active {
            return;
        }
        let mut waiting = std::mem::take(&mut self.waiting);
        let mut passed = VecDeque::new();
        let mut blocked: BTreeSet<ObjectName> = BTreeSet::new();
        let mut others_left = waiting.iter().filter(|request| !request.is_write()).count();
        loop {
            // Mostly one write can start, and the others wait until the view shows it: what all of them
            // wait for is looked at once, or long queues would be dear.
            let are_writes_held_up = self.are_writes_held_up(view);
            if are_writes_held_up && others_left == 0 {
                break;
            }
            let Some(request) = waiting.pop_front() else { break };
            let is_write = request.is_write();
            others_left -= usize::from(!is_write);
            if is_write && are_writes_held_up {
                blocked.insert(request.object.clone());
            }
            if blocked.contains(&request.object) {
                passed.push_back(request);
            } else if let Attempt::MustWait(request) = self.start(request, view) {
                blocked.insert(request.object.clone());
                passed.push_back(*request);
            }
        }
        passed.append(&mut waiting);
        passed.append(&mut self.waiting);
        self.waiting = passed;
    }

    /// What a request waited for is in memory, or was a moment ago: what has been evicted again is
    /// asked for again.
    pub fn loaded(&mut self, token: Token, view: &impl ObjectView) {
        let fill = self.coded.as_mut().and_then(|coded| coded.fills_loading.remove(&token));
        if let Some(order) = fill {
            return self.read_shard_part(order, view);
        }
        if let Some((purpose, object, request)) = self.copies_loading.remove(&token) {
            return self.read_when_loaded(purpose, object, request, view);
        }
        let request = self.waiting.iter_mut().find(|request| request.loading == Some(token));
        // Without a request: it was refused meanwhile.
        let Some(request) = request else { return };
        request.loading = None;
        self.start_waiting(view);
    }

    /// Has the shell load what a request looks at; until then the request waits.
    pub(crate) fn load(&mut self, mut request: WaitingRequest, lookup: Lookup) -> Attempt {
        let token = self.token();
        request.loading = Some(token);
        self.actions.push_back(Action::Load { token, lookup });
        Attempt::MustWait(Box::new(request))
    }
}
