//! The queue of clients' requests that cannot start yet, at the primary.

use std::collections::{BTreeSet, VecDeque};

use atoll_types::{Mutation, ObjectName, ReadRequest, Refusal, RequestId, Version, WriteRequest};
use bytes::Bytes;

use crate::actions::{Action, ClientId, Lookup, ObjectView, Token};
use crate::group::Pg;
use crate::invariants;
use crate::outbox::Outbox;
use crate::progress::ReadTimes;
use crate::replication::ordering::Attempt;

/// Requests that may wait in one PG. Further ones are refused as busy.
const WAITING_MAX: usize = 4096;

pub(crate) enum Waiting {
    Read(ReadRequest),
    Write(RequestId, WriteRequest),
    /// A refusal that rests on writes in flight, of the object or of others that the write looks at.
    /// It is given when they are committed.
    Refuse(RequestId, Refusal, Vec<ObjectName>),
}

/// A client's request that cannot start yet. Requests for one object keep their order.
pub(crate) struct WaitingRequest {
    pub client: ClientId,
    pub sequence: u64,
    pub object: ObjectName,
    pub what: Waiting,
    /// Newest write of the PG that its client knew when it first sent this one; its earlier copies are still to be
    /// looked for.
    pub known: Option<Version>,
    /// The load that it waits for.
    pub loading: Option<Token>,
    /// Times of a read, to report where its time went.
    pub times: ReadTimes,
}

impl WaitingRequest {
    pub fn new(client: ClientId, sequence: u64, object: ObjectName, what: Waiting) -> Self {
        WaitingRequest { client, sequence, object, what, known: None, loading: None, times: ReadTimes::default() }
    }

    /// Asks the shell to load the metadata of the request. The request waits for it.
    pub fn load(mut self, lookup: Lookup, now_us: u64, outbox: &mut Outbox) -> Attempt {
        self.times.asked_us.get_or_insert(now_us);
        let token = outbox.token();
        self.loading = Some(token);
        outbox.push(Action::Load { token, lookup });
        Attempt::MustWait(Box::new(self))
    }

    /// Asks the shell to load the metadata of a write with these mutations. It waits for it.
    pub fn load_write(self, mutations: Vec<Mutation>, view: &impl ObjectView, outbox: &mut Outbox) -> Attempt {
        let Waiting::Write(_, write) = &self.what else { unreachable!("only writes come here") };
        let (object, conditions) = (self.object.clone(), write.conditions.clone());
        self.load(Lookup::Write { object, conditions, mutations }, view.now_us(), outbox)
    }

    pub fn is_write(&self) -> bool {
        matches!(self.what, Waiting::Write(..))
    }

    /// Its object, and the others that it looks at.
    pub fn objects(&self) -> impl Iterator<Item = &ObjectName> {
        let write = match &self.what {
            Waiting::Write(_, write) => Some(write),
            _ => None,
        };
        [&self.object].into_iter().chain(write.into_iter().flat_map(WriteRequest::other_objects))
    }
}

/// Waiting requests, in order of arrival.
#[derive(Default)]
pub(crate) struct Queue {
    requests: VecDeque<WaitingRequest>,
}

impl Queue {
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub fn len(&self) -> usize {
        self.requests.len()
    }

    fn is_full(&self) -> bool {
        self.requests.len() >= WAITING_MAX
    }

    fn has_one_for(&self, object: &ObjectName) -> bool {
        self.requests.iter().any(|waiting| waiting.object == *object)
    }

    fn push(&mut self, request: WaitingRequest) {
        invariants::waiting_requests_are_bounded(self.requests.len(), WAITING_MAX);
        self.requests.push_back(request);
    }

    /// A request that had begun waits again, ahead of later ones.
    pub fn push_first(&mut self, request: WaitingRequest) {
        self.requests.push_front(request);
    }

    fn take(&mut self) -> VecDeque<WaitingRequest> {
        std::mem::take(&mut self.requests)
    }

    /// Requests that were taken still wait, ahead of those that have come since.
    fn put_back(&mut self, mut requests: VecDeque<WaitingRequest>) {
        requests.append(&mut self.requests);
        self.requests = requests;
    }

    /// Takes all refusals that wait.
    fn take_refusals(&mut self) -> Vec<WaitingRequest> {
        let is_refusal = |request: &WaitingRequest| matches!(request.what, Waiting::Refuse(..));
        let (refusals, others): (Vec<_>, Vec<_>) = self.take().into_iter().partition(is_refusal);
        self.requests = others.into();
        refusals
    }

    /// Redirects the answer to a waiting write to another connection. False if it does not wait.
    pub fn take_over(&mut self, client: ClientId, id: RequestId) -> bool {
        let waiting = self.requests.iter_mut().find(
            |waiting| matches!(&waiting.what, Waiting::Write(other, _) | Waiting::Refuse(other, ..) if *other == id),
        );
        waiting.map(|waiting| waiting.client = client).is_some()
    }

    /// A load is done. False if no request waits for it.
    fn loaded(&mut self, token: Token, now_us: u64) -> bool {
        let Some(request) = self.requests.iter_mut().find(|request| request.loading == Some(token)) else {
            return false;
        };
        request.loading = None;
        request.times.loaded_us = Some(now_us);
        true
    }

    /// A client's request, if it waits.
    pub fn find(&self, client: ClientId, sequence: u64) -> Option<&WaitingRequest> {
        self.requests.iter().find(|waiting| waiting.client == client && waiting.sequence == sequence)
    }

    /// Returns true if an earlier request for the object of this one waits.
    pub fn has_earlier(&self, request: &WaitingRequest) -> bool {
        let mut earlier = self.requests.iter().take_while(|waiting| !std::ptr::eq(*waiting, request));
        earlier.any(|waiting| waiting.object == request.object)
    }
}

impl Pg {
    pub(crate) fn enqueue(&mut self, request: WaitingRequest, view: &impl ObjectView) {
        if !self.config.is_primary() {
            return self.refuse(request, Refusal::NotPrimary);
        }
        let must_queue = self.queue.has_one_for(&request.object);
        let attempt = if must_queue { Attempt::MustWait(Box::new(request)) } else { self.start(request, view) };
        let Attempt::MustWait(request) = attempt else { return };
        if self.queue.is_full() {
            self.refuse(*request, Refusal::Busy);
        } else {
            self.queue.push(*request);
        }
    }

    pub(crate) fn refuse(&mut self, request: WaitingRequest, refusal: Refusal) {
        match request.what {
            Waiting::Read(_) => {
                self.outbox.reply_read(request.client, request.sequence, Err(refusal), Bytes::new())
            }
            _ => self.reply_write(request.client, request.sequence, Err(refusal)),
        }
    }

    /// Refuses all waiting requests.
    pub(crate) fn refuse_waiting(&mut self, refusal: &Refusal) {
        for request in self.queue.take() {
            self.refuse(request, refusal.clone());
        }
    }

    /// The writes that refusals rested on may be rolled back, so clients get an error that asks for a retry.
    pub(crate) fn withdraw_refusals(&mut self) {
        let withdrawn = self.queue.take_refusals();
        let refusal = self.inactive();
        withdrawn.into_iter().for_each(|request| self.refuse(request, refusal.clone()));
    }

    /// Starts all requests that can start, in order per object.
    pub(crate) fn start_waiting(&mut self, view: &impl ObjectView) {
        if self.queue.is_empty() || !self.config.is_active() {
            return;
        }
        let mut waiting = self.queue.take();
        let mut passed = VecDeque::new();
        let mut blocked: BTreeSet<ObjectName> = BTreeSet::new();
        let mut others_left = waiting.iter().filter(|request| !request.is_write()).count();
        loop {
            // Usually one write can start, and the others wait until the view shows it. Checking
            // that once for all of them keeps long queues cheap.
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
        self.queue.put_back(passed);
    }

    /// A load is done. If the metadata was evicted again meanwhile, it is loaded again.
    pub fn loaded(&mut self, token: Token, view: &impl ObjectView) {
        let part = self.erasure.as_mut().and_then(|erasure| erasure.loaded(token));
        if let Some(request) = part {
            return self.read_shard_part(request, view);
        }
        if let Some(read) = self.reads.loaded(token) {
            return self.read_span(read, view);
        }
        // If no request waits for it, it was refused meanwhile.
        if self.queue.loaded(token, view.now_us()) {
            self.start_waiting(view);
        }
    }
}
