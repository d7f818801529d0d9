//! The sans-IO core: which request goes where, and when it goes again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use atoll_cluster::{ClusterMap, MapChange};
use atoll_objects::ClientError;
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::records::OsdUpRecord;
use atoll_types::transports::{Transport, Way};
use atoll_types::{
    Epoch, ObjectName, OsdId, PgId, PoolId, ReadOutcome, ReadRequest, Refusal, RequestId, TraceContext, Version,
    WriteRequest,
};
use atoll_wire::Message;
use bytes::Bytes;

use crate::invariants;

/// Request of a caller.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Read(ObjectName, ReadRequest),
    Write(WriteRequest),
}

/// Where a call goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// To the PG of its object.
    ByName(PoolId),
    /// To a PG itself.
    Pg(PgId),
}

/// The outcome of a call: writes give none.
pub(crate) type Answer = Result<Option<(ReadOutcome, Bytes)>, ClientError>;

pub(crate) enum RouterAction {
    /// Make a connection; answer with [`Router::connected`] or [`Router::disconnected`].
    Connect {
        osd: OsdId,
        /// The ways to it, the preferred first.
        ways: Vec<Way>,
        public_key: String,
    },
    /// End a connection, also one that is being made; answer with [`Router::disconnected`].
    Disconnect {
        osd: OsdId,
    },
    Send {
        osd: OsdId,
        message: Message,
    },
    Complete {
        sequence: u64,
        answer: Answer,
    },
}

struct Outstanding {
    target: Target,
    call: Call,
    /// The span that it is part of, if that is exported.
    span: Option<TraceContext>,
    deadline_ms: u64,
    timeout_ms: u64,
    /// Where it belongs by the newest map.
    pg: Option<PgId>,
    sent_to: Option<OsdId>,
    retry_at_ms: Option<u64>,
    attempt: u32,
    /// The newest write of its PG that was known when it was first sent.
    known: Option<Version>,
    /// The epoch that was sent with it last.
    sent_epoch: Epoch,
    /// The outcome of an attempt is unknown.
    is_unclear: bool,
    last_problem: Option<String>,
}

/// A client's knowledge of a PG.
#[derive(Default)]
struct PgProgress {
    /// The newest write that all members are known to have.
    known: Version,
    /// Writes that are outstanding.
    writes: BTreeSet<u64>,
    /// `answered_below` of the last write: those below it were answered.
    answered_below: u64,
}

const RETRY_PAUSE_MIN_MS: u64 = 10;
const RETRY_PAUSE_MAX_MS: u64 = 500;

pub(crate) struct Router {
    session: u64,
    /// This client's public key in hexadecimal, by which cluster state authorises it.
    own_key: String,
    next_sequence: u64,
    /// By the PGs that writes went to.
    progress: BTreeMap<PgId, PgProgress>,
    map: ClusterMap,
    has_map: bool,
    /// Where each OSD was announced last. One that has lost its lease in cluster state still serves.
    announced: BTreeMap<OsdId, OsdUpRecord>,
    outstanding: BTreeMap<u64, Outstanding>,
    connected: BTreeSet<OsdId>,
    connecting: BTreeSet<OsdId>,
    actions: VecDeque<RouterAction>,
}

impl Router {
    /// `session` must be a fresh random number, and `own_key` this client's public key.
    pub fn new(session: u64, own_key: String) -> Self {
        Router {
            session,
            own_key,
            next_sequence: 1,
            progress: BTreeMap::new(),
            map: ClusterMap::default(),
            has_map: false,
            announced: BTreeMap::new(),
            outstanding: BTreeMap::new(),
            connected: BTreeSet::new(),
            connecting: BTreeSet::new(),
            actions: VecDeque::new(),
        }
    }

    pub fn map(&self) -> &ClusterMap {
        &self.map
    }

    pub fn has_map(&self) -> bool {
        self.has_map
    }

    pub fn next_action(&mut self) -> Option<RouterAction> {
        self.actions.pop_front()
    }

    pub fn has_outstanding(&self) -> bool {
        !self.outstanding.is_empty()
    }

    /// Starts a call, which may be a part of an exported span; its end comes as [`RouterAction::Complete`] with the
    /// sequence returned.
    pub fn start(
        &mut self,
        now_ms: u64,
        timeout_ms: u64,
        target: Target,
        call: Call,
        span: Option<TraceContext>,
    ) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let outstanding = Outstanding {
            target,
            call,
            span,
            deadline_ms: now_ms.saturating_add(timeout_ms),
            timeout_ms,
            pg: None,
            sent_to: None,
            retry_at_ms: None,
            attempt: 0,
            known: None,
            sent_epoch: Epoch(0),
            is_unclear: false,
            last_problem: None,
        };
        let too_large = match &outstanding.call {
            Call::Write(request) => request.check_size().err(),
            Call::Read(..) => None,
        };
        let refused = too_large.map(|refusal| outstanding.refused(refusal));
        invariants::sequences_ascend(self.outstanding.last_key_value().map(|(newest, _)| *newest), sequence);
        self.outstanding.insert(sequence, outstanding);
        match refused {
            Some(error) => self.complete(sequence, Err(error)),
            None => self.dispatch(now_ms, sequence),
        }
        sequence
    }

    /// The caller no longer wants the outcome.
    pub fn forget(&mut self, sequence: u64) {
        self.take(sequence);
    }

    fn take(&mut self, sequence: u64) -> Option<Outstanding> {
        self.set_pg(sequence, None);
        self.outstanding.remove(&sequence)
    }

    /// Notes where a request belongs, if it is outstanding.
    fn set_pg(&mut self, sequence: u64, pg: Option<PgId>) {
        let Some(outstanding) = self.outstanding.get_mut(&sequence).filter(|outstanding| outstanding.pg != pg)
        else {
            return;
        };
        let before = std::mem::replace(&mut outstanding.pg, pg);
        // Its PG was split. The histories of the two PGs are one up to that, and the record under which it was
        // sent is from before.
        let before_split = Version { epoch: outstanding.sent_epoch, sequence: u64::MAX };
        outstanding.known = outstanding.known.map(|known| known.min(before_split));
        if matches!(outstanding.call, Call::Read(..)) {
            return;
        }
        if let Some(progress) = before.and_then(|pg| self.progress.get_mut(&pg)) {
            progress.writes.remove(&sequence);
        }
        if let Some(pg) = pg {
            self.progress.entry(pg).or_default().writes.insert(sequence);
        }
    }

    /// Requests may belong to other PGs by a new map. That is noted before the next one is sent, which reports the
    /// answered ones.
    fn place_all(&mut self) {
        let place = |(sequence, outstanding): (&u64, &Outstanding)| {
            // While its pool is not in the map, its PG must not take it for answered.
            (*sequence, self.place(outstanding.target, outstanding.call.object()).ok().or(outstanding.pg))
        };
        let places: Vec<_> = self.outstanding.iter().map(place).collect();
        places.into_iter().for_each(|(sequence, pg)| self.set_pg(sequence, pg));
    }

    fn place(&self, target: Target, object: &ObjectName) -> Result<PgId, ClientError> {
        match target {
            Target::Pg(pg) => Ok(pg),
            Target::ByName(pool) => {
                let record = self.map.pools.get(&pool).ok_or(ClientError::NoSuchPool(pool))?;
                Ok(self.map.pg_of_object(record, object))
            }
        }
    }

    /// The PGs of a pool, those that were split off included, each with the pool's number of PGs as of its last
    /// split.
    pub fn pgs(&self, pool: PoolId) -> Result<Vec<(PgId, u32)>, ClientError> {
        let record = self.map.pools.get(&pool).ok_or(ClientError::NoSuchPool(pool))?;
        let listed = |index| {
            let pg = PgId { pool, index };
            let known = self.map.pgs.get(&pg);
            if known.is_none() && index >= record.pg_num_first() {
                return None;
            }
            let pg_num_first = record.pg_num_first();
            let pg_num =
                known.map_or(pg.first_pg_num(pg_num_first), |(known, _)| known.pg_num_of(pg, pg_num_first));
            Some((pg, pg_num))
        };
        Ok((0..self.map.pg_num(record)).filter_map(listed).collect())
    }

    /// Sends a request to where it belongs now, or leaves it to be tried again.
    fn dispatch(&mut self, now_ms: u64, sequence: u64) {
        let Some(outstanding) = self.outstanding.get(&sequence) else { return };
        if !self.has_map {
            return;
        }
        let object = outstanding.call.object();
        let pg = match self.place(outstanding.target, object) {
            Ok(pg) => pg,
            Err(error) => {
                let error = if outstanding.may_have_been_done() { outstanding.outcome_unknown() } else { error };
                return self.complete(sequence, Err(error));
            }
        };
        self.set_pg(sequence, Some(pg));
        let Some((record, _)) = self.map.pgs.get(&pg) else {
            return self.retry_later(now_ms, sequence, format!("PG {pg} has no record yet"));
        };
        let (primary, epoch) = (record.primary, record.epoch);
        if !self.connected.contains(&primary) {
            let problem = match self.connect(primary) {
                Ok(()) => format!("{primary}, the primary of {pg}, is not reachable"),
                Err(problem) => problem,
            };
            return self.retry_later(now_ms, sequence, problem);
        }
        invariants::target_is_connected(self.connected.contains(&primary), primary);
        let message = self.message(sequence, pg, epoch);
        let outstanding = self.outstanding.get_mut(&sequence).expect("looked up above");
        outstanding.is_unclear |= outstanding.sent_to.is_some();
        outstanding.sent_to = Some(primary);
        outstanding.retry_at_ms = None;
        if let Some(span) = outstanding.span {
            self.actions.push_back(RouterAction::Send { osd: primary, message: Message::Traced { span } });
        }
        self.actions.push_back(RouterAction::Send { osd: primary, message });
    }

    fn message(&mut self, sequence: u64, pg: PgId, epoch: Epoch) -> Message {
        let id = RequestId { session: self.session, sequence };
        let outstanding = self.outstanding.get_mut(&sequence).expect("it is being sent");
        match outstanding.call.clone() {
            Call::Read(object, request) => Message::Read { id, pg, epoch, object, request },
            Call::Write(request) => {
                let progress = self.progress.get_mut(&pg).expect("the write was placed");
                let answered_below = *progress.writes.first().expect("this write is outstanding");
                invariants::answered_below_is_right(progress.answered_below, answered_below, sequence);
                progress.answered_below = answered_below;
                // Whoever knows this record does not order writes under an older one.
                let newest = progress.known.max(Version { epoch, sequence: 0 });
                let known = *outstanding.known.get_or_insert(newest);
                outstanding.sent_epoch = epoch;
                Message::Write { id, answered_below, known, pg, epoch, request }
            }
        }
    }

    /// Starts a connection, or says why none is possible.
    fn connect(&mut self, osd: OsdId) -> Result<(), String> {
        let (Some(up), Some(record)) = (self.announced.get(&osd), self.map.osds.get(&osd)) else {
            return Err(format!("{osd} was not seen running yet, or was removed"));
        };
        let Some(own) = self.map.authorized_keys.get(&self.own_key) else {
            return Err(format!(
                "the key of this process ({}) is not authorised in cluster state; it was revoked ('atoll cluster key ls')",
                self.own_key
            ));
        };
        if !self.map.is_key_of(osd, &record.public_key) {
            return Err(format!("the key of {osd} was revoked ('atoll cluster key ls')"));
        }
        if self.connecting.insert(osd) {
            let (ways, public_key) = (self.map.frames.ways(own.role, up), record.public_key.clone());
            self.actions.push_back(RouterAction::Connect { osd, ways, public_key });
        }
        Ok(())
    }

    /// Where an OSD is to be reached over RDMA, if this client prefers that and the OSD listens.
    pub fn rdma_address(&self, osd: OsdId) -> Option<&str> {
        let own = self.map.authorized_keys.get(&self.own_key)?;
        let is_preferred = self.map.frames.transports.of(own.role) == Transport::Rdma;
        let address = &self.announced.get(&osd)?.rdma_address;
        (is_preferred && !address.is_empty()).then_some(address)
    }

    fn is_trusted(&self, osd: OsdId) -> bool {
        self.map.osds.get(&osd).is_some_and(|record| self.map.is_key_of(osd, &record.public_key))
    }

    /// Ends connections with OSDs whose keys are no longer trusted.
    fn leave_untrusted(&mut self) {
        let linked = self.connected.union(&self.connecting);
        let left: Vec<_> = linked.filter(|osd| !self.is_trusted(**osd)).copied().collect();
        self.actions.extend(left.into_iter().map(|osd| RouterAction::Disconnect { osd }));
    }

    fn retry_later(&mut self, now_ms: u64, sequence: u64, problem: String) {
        let Some(outstanding) = self.outstanding.get_mut(&sequence) else { return };
        let pause_ms = (RETRY_PAUSE_MIN_MS << outstanding.attempt.min(10)).min(RETRY_PAUSE_MAX_MS);
        outstanding.attempt += 1;
        outstanding.sent_to = None;
        outstanding.retry_at_ms = Some(now_ms + pause_ms);
        outstanding.last_problem = Some(problem);
        invariants::one_attempt_is_outstanding(sequence, outstanding.sent_to, outstanding.retry_at_ms);
    }

    fn complete(&mut self, sequence: u64, answer: Answer) {
        let was_outstanding = self.take(sequence).is_some();
        invariants::completed_once(sequence, was_outstanding);
        self.actions.push_back(RouterAction::Complete { sequence, answer });
    }

    /// Everything that holds between events, looked at as a whole.
    fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        for (sequence, outstanding) in &self.outstanding {
            invariants::one_attempt_is_outstanding(*sequence, outstanding.sent_to, outstanding.retry_at_ms);
            if let Some(osd) = outstanding.sent_to {
                invariants::target_is_connected(self.connected.contains(&osd), osd);
            }
        }
        for osd in &self.connected {
            invariants::connected_or_connecting(*osd, self.connecting.contains(osd));
        }
    }

    /// The cluster map has changed.
    pub fn map_changed(&mut self, now_ms: u64, changes: Vec<MapChange>) {
        let is_first = !self.has_map;
        self.has_map = true;
        // Requests that wait for a PG or an OSD need not wait any longer.
        let may_go = changes.iter().any(|change| matches!(change, MapChange::Pg(..) | MapChange::Up(..)));
        let may_end = |change: &MapChange| matches!(change, MapChange::AuthorizedKey(..) | MapChange::Osd(..));
        let may_end = changes.iter().any(may_end);
        for change in changes {
            if let MapChange::Up(osd, Some(up)) = &change {
                self.announced.insert(*osd, up.clone());
            }
            self.map.apply(change);
        }
        if may_end {
            self.leave_untrusted();
        }
        self.place_all();
        let moved: Vec<u64> = self
            .outstanding
            .iter()
            .filter(|(_, o)| is_first || self.has_moved(o) || may_go && o.sent_to.is_none())
            .map(|(s, _)| *s)
            .collect();
        moved.into_iter().for_each(|sequence| self.dispatch(now_ms, sequence));
        self.check();
    }

    /// Returns true if a request waits at an OSD that is not the primary any more.
    fn has_moved(&self, outstanding: &Outstanding) -> bool {
        let Some(osd) = outstanding.sent_to else { return false };
        let pg = self.place(outstanding.target, outstanding.call.object()).ok();
        let primary = pg.and_then(|pg| self.map.pgs.get(&pg)).map(|(record, _)| record.primary);
        primary.is_some_and(|primary| primary != osd)
    }

    /// A connection is ready.
    pub fn connected(&mut self, now_ms: u64, osd: OsdId) {
        self.connecting.remove(&osd);
        if !self.is_trusted(osd) {
            // Its key was revoked while the connection was made.
            return self.actions.push_back(RouterAction::Disconnect { osd });
        }
        self.connected.insert(osd);
        invariants::connected_or_connecting(osd, self.connecting.contains(&osd));
        let waiting: Vec<u64> =
            self.outstanding.iter().filter(|(_, o)| o.sent_to.is_none()).map(|(s, _)| *s).collect();
        waiting.into_iter().for_each(|sequence| self.dispatch(now_ms, sequence));
        self.check();
    }

    /// A connection is lost or could not be made.
    pub fn disconnected(&mut self, now_ms: u64, osd: OsdId, problem: &str) {
        self.connecting.remove(&osd);
        self.connected.remove(&osd);
        let lost: Vec<u64> =
            self.outstanding.iter().filter(|(_, o)| o.sent_to == Some(osd)).map(|(s, _)| *s).collect();
        for sequence in lost {
            self.outstanding.get_mut(&sequence).expect("it was found").is_unclear = true;
            self.retry_later(now_ms, sequence, format!("{osd}: {problem}"));
        }
        self.check();
    }

    /// An answer has come.
    pub fn reply(&mut self, now_ms: u64, osd: OsdId, message: Message) {
        let (sequence, opens_seals, result) = match message {
            Message::ReadReply { sequence, opens_seals, result, payload } => {
                (sequence, opens_seals, result.map(|outcome| Some((outcome, payload))))
            }
            Message::WriteReply { sequence, pg, committed, result } => {
                if let Some(progress) = self.progress.get_mut(&pg) {
                    progress.known = progress.known.max(committed);
                }
                (sequence, false, result.map(|()| None))
            }
            _ => return,
        };
        // An answer of an OSD that was the primary is no use once the request was sent to the next
        // one, which may answer differently.
        let outstanding = self.outstanding.get(&sequence).filter(|outstanding| outstanding.sent_to == Some(osd));
        let Some(outstanding) = outstanding else { return };
        invariants::answer_is_of_the_last_attempt(sequence, outstanding.sent_to, osd);
        if opens_seals && !outstanding.call.opens_seals() {
            // Nobody would notice what was changed of it on the way.
            let error = ClientError::UnexpectedAnswer { object: outstanding.call.object().clone() };
            return self.complete(sequence, Err(error));
        }
        match result {
            Ok(found) => self.complete(sequence, Ok(found)),
            Err(Refusal::OutcomeUnknown) if outstanding.is_unclear => {
                let error = outstanding.outcome_unknown();
                self.complete(sequence, Err(error));
            }
            Err(refusal) if refusal.is_retryable() || refusal == Refusal::OutcomeUnknown => {
                // Now the client knows how far the PG is.
                let progress = outstanding.pg.and_then(|pg| self.progress.get(&pg));
                let knows_more = progress.is_some_and(|progress| Some(progress.known) > outstanding.known);
                let may_go = refusal == Refusal::OutcomeUnknown && knows_more;
                self.attempt_was_refused(sequence, &refusal);
                self.retry_later(now_ms, sequence, refusal.to_string());
                if may_go {
                    self.dispatch(now_ms, sequence);
                }
            }
            Err(refusal) => {
                let error = outstanding.refused(refusal);
                self.complete(sequence, Err(error));
            }
        }
    }

    /// The last attempt of a request was refused for now.
    fn attempt_was_refused(&mut self, sequence: u64, refusal: &Refusal) {
        let Some(outstanding) = self.outstanding.get_mut(&sequence) else { return };
        outstanding.is_unclear |= *refusal == Refusal::Undecided;
        if !outstanding.is_unclear {
            // No attempt did anything, so the next one is as good as the first.
            outstanding.known = None;
        }
    }

    /// Time has passed: retries and time limits.
    pub fn tick(&mut self, now_ms: u64) {
        let is_due = |o: &Outstanding| o.deadline_ms <= now_ms || o.retry_at_ms.is_some_and(|at| at <= now_ms);
        let due: Vec<u64> = self.outstanding.iter().filter(|(_, o)| is_due(o)).map(|(s, _)| *s).collect();
        for sequence in due {
            let outstanding = &self.outstanding[&sequence];
            if outstanding.deadline_ms <= now_ms {
                let error = outstanding.timed_out();
                self.complete(sequence, Err(error));
            } else {
                self.dispatch(now_ms, sequence);
            }
        }
        self.check();
    }
}

impl Call {
    fn opens_seals(&self) -> bool {
        matches!(self, Call::Read(_, ReadRequest::Data { opens_seals: true, .. }))
    }

    fn object(&self) -> &ObjectName {
        match self {
            Call::Read(object, _) => object,
            Call::Write(request) => &request.object,
        }
    }
}

impl Outstanding {
    fn pool(&self) -> PoolId {
        match self.target {
            Target::ByName(pool) => pool,
            Target::Pg(pg) => pg.pool,
        }
    }

    fn refused(&self, refusal: Refusal) -> ClientError {
        ClientError::Refused { pool: self.pool(), object: self.call.object().clone(), refusal }
    }

    /// Returns true for a write that an OSD may have carried out, or may yet.
    fn may_have_been_done(&self) -> bool {
        matches!(self.call, Call::Write(_)) && (self.is_unclear || self.sent_to.is_some())
    }

    fn outcome_unknown(&self) -> ClientError {
        ClientError::OutcomeUnknown { pool: self.pool(), object: self.call.object().clone() }
    }

    fn timed_out(&self) -> ClientError {
        let detail = match (self.sent_to, &self.last_problem) {
            (Some(osd), None) => format!("{osd} has not answered"),
            (Some(osd), Some(problem)) => format!("{osd} has not answered; before that: {problem}"),
            (None, Some(problem)) => problem.clone(),
            (None, None) => "the cluster map is not there yet".into(),
        };
        let (pool, object, timeout_ms) = (self.pool(), self.call.object().clone(), self.timeout_ms);
        ClientError::TimedOut { pool, object, timeout_ms, detail }
    }
}

/// A write that sets a fence in a PG, unless that is not one of `pg_num` any more.
pub fn fence_write(name: &Bytes, generation: u64, pg_num: u32) -> WriteRequest {
    let key = [atoll_types::operation::FENCE_KEY_PREFIX, name].concat();
    WriteRequest {
        object: ObjectName::new(PG_META_OBJECT).expect("the name is short"),
        conditions: vec![
            atoll_types::Condition::NotFenced { name: name.clone(), generation },
            atoll_types::Condition::PgNum { pg_num },
        ],
        mutations: vec![atoll_types::Mutation::OmapSet {
            key: key.into(),
            value: Bytes::copy_from_slice(&generation.to_be_bytes()),
        }],
        payload: Bytes::new(),
        payload_sealed: false,
    }
}

#[cfg(test)]
mod tests;
