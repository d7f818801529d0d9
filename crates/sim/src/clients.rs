//! Client sessions. Each has several requests outstanding and retries them under their ids until
//! there is a definite answer, with duplicates and lost connections. All answers are recorded for
//! the checks.

use std::collections::BTreeMap;

use atoll_pg::ClientId;
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{
    Condition, Epoch, ObjectName, PgId, ReadOutcome, ReadRequest, Refusal, RequestId, Version, WriteRequest,
};
use atoll_wire::Message;
use bytes::Bytes;

use crate::cluster::ClusterState;
use crate::state::{PG, PGS_MAX, pg_of};
use crate::store::clone_source;
use crate::workload::final_reads;
use crate::world::{Event, World};

const OPS_MAX: usize = 300;
const OUTSTANDING_MAX: usize = 8;
/// How long a late request is usually under way, in simulated microseconds.
const LATE: u64 = 200_000;

#[derive(Clone, Debug)]
pub enum Kind {
    Write(WriteRequest),
    Read(ObjectName, ReadRequest),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Written(Result<(), Refusal>),
    Found(Result<ReadOutcome, Refusal>, Bytes),
}

/// One request and its definite answer.
pub struct Op {
    pub session: usize,
    pub id: RequestId,
    /// The PG, of a request about a PG's own object.
    pub own_of: PgId,
    /// The PG that it was last sent to. Only answers of that one count.
    sent_to: PgId,
    pub kind: Kind,
    pub invoked: u64,
    pub answered: Option<(u64, Answer)>,
    pub attempt: u32,
    /// The newest write of the PG that its client knew of when it first sent it.
    pub known: Option<Version>,
    /// The epoch that was sent with it last.
    sent_epoch: Epoch,
    /// A copy of it was sent whose outcome its client does not know.
    is_unclear: bool,
    /// No client may send it.
    pub breaks_rules: bool,
    /// Its last attempt was answered, and did nothing.
    was_refused: bool,
}

pub struct Session {
    pub id: u64,
    next_sequence: u64,
    /// Its connection to the primary of each PG.
    links: [Link; PGS_MAX],
    /// The newest write of each PG that all members are known to have.
    known: [Version; PGS_MAX],
    /// The generation of its fence.
    pub generation: u64,
}

#[derive(Clone, Copy)]
struct Link {
    conn: ClientId,
    to: usize,
    incarnation: u64,
    last_request: u64,
    last_answer: u64,
}

pub struct Clients {
    pub sessions: Vec<Session>,
    pub ops: Vec<Op>,
    conns: BTreeMap<ClientId, (usize, PgId)>,
    /// The last answers on connections that their clients had given up.
    pub missed: BTreeMap<ClientId, Message>,
    /// The omap values that clients saw last.
    pub known: BTreeMap<(ObjectName, Bytes), Option<Bytes>>,
    pub last_value: u64,
    pub last_generation: u64,
    /// The number of objects.
    pub objects: u64,
    /// The pool is erasure-coded: objects have data only.
    pub is_coded: bool,
}

impl Op {
    /// Returns the PG that it belongs to, after splits up to this number of PGs.
    fn place_of(&self, pg_num: u32) -> PgId {
        match self.object() {
            object if object.as_str() == PG_META_OBJECT => self.own_of,
            object => pg_of(object, pg_num),
        }
    }

    /// The PG that it belongs to.
    fn place(&self, cluster: &ClusterState) -> PgId {
        let first = self.place_of(cluster.pg_num_first());
        self.place_of(cluster.pg_num_of(first))
    }

    /// Returns its object.
    pub fn object(&self) -> &ObjectName {
        match &self.kind {
            Kind::Read(object, _) => object,
            Kind::Write(write) => &write.object,
        }
    }

    /// Returns true if its client got an unknown outcome.
    pub fn has_unknown_outcome(&self) -> bool {
        matches!(&self.answered, Some((_, Answer::Written(Err(Refusal::OutcomeUnknown)))))
    }

    fn begin_next_attempt(&mut self) {
        self.attempt += 1;
        self.is_unclear |= !std::mem::take(&mut self.was_refused);
        if !self.is_unclear {
            // Nothing was done so far: it begins anew.
            self.known = None;
        }
    }
}

impl Clients {
    pub fn new(sessions: u64, objects: u64, is_coded: bool) -> Self {
        let link = Link { conn: ClientId(0), to: 0, incarnation: 0, last_request: 0, last_answer: 0 };
        let session = |index| Session {
            id: 100 + index,
            next_sequence: 1,
            links: [link; PGS_MAX],
            known: [Version::default(); PGS_MAX],
            generation: 0,
        };
        Clients {
            sessions: (0..sessions).map(session).collect(),
            ops: Vec::new(),
            conns: BTreeMap::new(),
            missed: BTreeMap::new(),
            known: BTreeMap::new(),
            last_value: 0,
            last_generation: 0,
            objects,
            is_coded,
        }
    }

    pub fn all_answered(&self) -> bool {
        self.ops.iter().all(|op| op.answered.is_some())
    }

    pub fn session_of(&self, conn: ClientId) -> u64 {
        self.sessions[self.conns[&conn].0].id
    }

    /// Below which number the client has the answers to all requests that are, or could soon be, sent to a
    /// PG.
    pub fn answered_below(&self, session_id: u64, pg: PgId, cluster: &ClusterState) -> u64 {
        let session = &self.sessions[(session_id - 100) as usize];
        let outstanding = self.ops.iter().filter(|op| op.id.session == session_id && op.answered.is_none());
        let of_pg = outstanding.filter(|op| op.sent_to == pg || op.place(cluster) == pg);
        of_pg.map(|op| op.id.sequence).min().unwrap_or(session.next_sequence)
    }

    /// A new connection.
    pub fn conn_id(&mut self, session: usize, pg: PgId) -> ClientId {
        let conn = ClientId(self.conns.len() as u64 + 1);
        self.conns.insert(conn, (session, pg));
        conn
    }

    /// The connection on which a request was sent last.
    pub fn conn_of(&self, op: usize, pg: PgId) -> ClientId {
        self.sessions[self.ops[op].session].links[pg.index as usize].conn
    }

    fn learn(&mut self, op: usize) {
        let op = &self.ops[op];
        match (&op.kind, op.answered.as_ref().map(|(_, answer)| answer)) {
            (Kind::Read(object, ReadRequest::OmapGet { key }), Some(Answer::Found(result, _))) => {
                let value = match result {
                    Ok(ReadOutcome::OmapValue(value)) => value.clone(),
                    _ => None,
                };
                self.known.insert((object.clone(), key.clone()), value);
            }
            (Kind::Write(write), Some(Answer::Written(Ok(())))) => {
                for mutation in &write.mutations {
                    if let atoll_types::Mutation::OmapReplace { key, value, .. } = mutation {
                        self.known.insert((write.object.clone(), key.clone()), value.clone());
                    }
                }
            }
            (Kind::Write(write), Some(Answer::Written(Err(Refusal::ConditionFailed { .. })))) => {
                if let [Condition::OmapAbsent { key } | Condition::OmapEquals { key, .. }] = &write.conditions[..]
                {
                    self.known.remove(&(write.object.clone(), key.clone()));
                }
            }
            _ => {}
        }
    }
}

impl World {
    pub fn client_wakes(&mut self, session: usize) {
        let outstanding =
            self.clients.ops.iter().filter(|op| op.session == session && op.answered.is_none()).count();
        if self.is_quiet() || self.clients.ops.len() >= OPS_MAX {
            return;
        }
        // Requests come in bursts, so they meet each other.
        let burst = (OUTSTANDING_MAX - outstanding.min(OUTSTANDING_MAX)).min(1 + self.random.below(6) as usize);
        for _ in 0..burst {
            self.start_any(session);
            self.perhaps_break_rules(session);
        }
        self.after(self.options.client_pace, Event::ClientWakes { session });
    }

    pub fn read_everything(&mut self) {
        for kind in final_reads(self.clients.objects) {
            self.start(0, kind);
        }
    }

    /// Sends a request drawn by chance.
    pub fn start_any(&mut self, session: usize) {
        let pg_num = self.cluster.pg_num_of(self.next_own_pg(session));
        let kind = self.clients.draw(session, pg_num, &mut self.random);
        self.start(session, kind);
    }

    /// The PG that the next request is for, if that is about a PG itself: any.
    fn next_own_pg(&self, session: usize) -> PgId {
        let (pgs, sequence) = (self.cluster.pgs(), self.clients.sessions[session].next_sequence);
        pgs[(sequence + 1) as usize % pgs.len()]
    }

    /// Sends a request; returns its number.
    pub fn start(&mut self, session: usize, kind: Kind) -> usize {
        let own_of = self.next_own_pg(session);
        self.start_in(session, own_of, kind)
    }

    /// Sends a request; if it is about a PG's own object, to this PG. Returns its number.
    pub fn start_in(&mut self, session: usize, own_of: PgId, kind: Kind) -> usize {
        let state = &mut self.clients.sessions[session];
        let id = RequestId { session: state.id, sequence: state.next_sequence };
        state.next_sequence += 1;
        self.statistics.clones +=
            u64::from(matches!(&kind, Kind::Write(write) if clone_source(&write.mutations).is_some()));
        let op = Op {
            session,
            id,
            own_of,
            sent_to: PG,
            kind,
            invoked: self.now,
            answered: None,
            attempt: 0,
            known: None,
            sent_epoch: Epoch(0),
            is_unclear: false,
            breaks_rules: false,
            was_refused: false,
        };
        self.clients.ops.push(op);
        let index = self.clients.ops.len() - 1;
        self.send_op(index);
        index
    }

    fn send_op(&mut self, index: usize) {
        let op = &self.clients.ops[index];
        let (session, id, attempt) = (op.session, op.id, op.attempt);
        let pg = self.believed_pg(index);
        if self.cluster.of(pg).is_none() {
            // Cluster state was put back, and does not know the PG yet.
            return self.after(200_000, Event::ClientRetries { op: index, attempt });
        }
        let moves = self.clients.ops[index].sent_to != pg;
        self.clients.ops[index].sent_to = pg;
        let link = self.clients.sessions[session].links[pg.index as usize];
        let is_lost = link.conn == ClientId(0) || self.members[link.to].incarnation != link.incarnation;
        let has_moved = link.to != self.primary_of(pg) && !self.mishap(20);
        if is_lost || has_moved || attempt > 0 && self.mishap(40) {
            self.new_conn(session, pg);
        }
        let mut epoch = self.cluster.of(pg).expect("it is believed in").record.epoch;
        let op = &mut self.clients.ops[index];
        let after = op.place_of(2 * self.cluster.pg_num_first());
        if let Some(split_off) = self.cluster.of(after).filter(|_| after != pg) {
            // A map in which there is no split yet has no later record either.
            epoch = epoch.min(split_off.first_epoch);
        }
        if let Some(known) = op.known.as_mut().filter(|_| moves) {
            // The histories of the two PGs are one up to the split.
            *known = (*known).min(Version { epoch: op.sent_epoch, sequence: u64::MAX });
        }
        op.sent_epoch = epoch;
        let answered_below = self.clients.answered_below(id.session, pg, &self.cluster);
        let newest = self.clients.sessions[session].known[pg.index as usize];
        let newest = newest.max(Version { epoch, sequence: 0 });
        let known = *self.clients.ops[index].known.get_or_insert(newest);
        let message = match self.clients.ops[index].kind.clone() {
            Kind::Write(request) => Message::Write { id, answered_below, known, pg, epoch, request },
            Kind::Read(object, request) => Message::Read { id, pg, epoch, object, request },
        };
        let late_percent = self.options.late_percent;
        let is_late = late_percent > 0 && !self.is_quiet() && self.random.chance(late_percent);
        let delay = self.random.delay(if is_late { LATE } else { 200 });
        let link = &mut self.clients.sessions[session].links[pg.index as usize];
        let time = (self.now + delay).max(link.last_request);
        link.last_request = time;
        let (conn, to, incarnation) = (link.conn, link.to, link.incarnation);
        if self.mishap(10) {
            // A duplicate, over this connection or late over an older one.
            self.clients.ops[index].is_unclear = true;
            let is_same = self.random.chance(30);
            let conn = if is_same { conn } else { self.clients.conn_id(session, pg) };
            let late = if is_same { time } else { self.now + self.random.delay(2_000) };
            self.at(late, Event::Request { conn, to, incarnation, message: message.clone() });
        }
        self.at(time, Event::Request { conn, to, incarnation, message });
        let patience = self.random.between(20_000, 2_000_000);
        self.at(self.now + patience, Event::ClientRetries { op: index, attempt });
    }

    /// The PG of a request by the client's map, which may lag.
    fn believed_pg(&mut self, op: usize) -> PgId {
        let lags = self.mishap(10);
        let op = &self.clients.ops[op];
        // A map lags but never goes back: once it knew of the split, it knows.
        let first = self.cluster.pg_num_first();
        let knew_split = op.sent_to.index >= first;
        if lags && !knew_split { op.place_of(first) } else { op.place(&self.cluster) }
    }

    /// The primary by the client's map, which may lag.
    fn believed_primary(&mut self, pg: PgId) -> usize {
        let lags = self.mishap(10);
        let state = self.cluster.of(pg).expect("it is believed in");
        let record = if lags { &state.previous } else { &state.record };
        let primary = record.primary.0 as usize - 1;
        let is_lost = self.mishap(3);
        if is_lost { self.random.below(self.members.len() as u64) as usize } else { primary }
    }

    fn new_conn(&mut self, session: usize, pg: PgId) {
        let conn = self.clients.conn_id(session, pg);
        let to = self.believed_primary(pg);
        let (now, incarnation) = (self.now, self.members[to].incarnation);
        let link = Link { conn, to, incarnation, last_request: now, last_answer: now };
        self.clients.sessions[session].links[pg.index as usize] = link;
    }

    /// The connection is lost. Answers on it do not arrive; requests in flight may.
    pub fn break_client(&mut self, session: usize) {
        for pg in self.cluster.pgs() {
            self.new_conn(session, pg);
        }
        let lost: Vec<usize> = (0..self.clients.ops.len())
            .filter(|&index| self.clients.ops[index].session == session)
            .filter(|&index| self.clients.ops[index].answered.is_none())
            .collect();
        for index in lost {
            self.clients.ops[index].begin_next_attempt();
            self.send_op(index);
        }
    }

    pub fn client_retries(&mut self, op: usize, attempt: u32) {
        let state = &mut self.clients.ops[op];
        if state.answered.is_none() && state.attempt == attempt {
            state.begin_next_attempt();
            self.statistics.retries += 1;
            self.send_op(op);
        }
    }

    pub fn send_answer(&mut self, conn: ClientId, message: Message) {
        let (session, pg) = self.clients.conns[&conn];
        let delay = self.random.delay(200);
        let link = &mut self.clients.sessions[session].links[pg.index as usize];
        if link.conn != conn {
            self.clients.missed.insert(conn, message);
            return;
        }
        let time = (self.now + delay).max(link.last_answer + 1);
        link.last_answer = time;
        self.at(time, Event::Answer { conn, message });
    }

    pub fn answer_arrives(&mut self, conn: ClientId, message: Message) {
        let (session, pg) = self.clients.conns[&conn];
        if self.clients.sessions[session].links[pg.index as usize].conn != conn {
            return;
        }
        let (sequence, answer) = match message {
            Message::WriteReply { sequence, pg, committed, result } => {
                let known = &mut self.clients.sessions[session].known[pg.index as usize];
                *known = committed.max(*known);
                (sequence, Answer::Written(result))
            }
            Message::ReadReply { sequence, result, payload, .. } => (sequence, Answer::Found(result, payload)),
            _ => unreachable!("clients get only replies"),
        };
        let of_this = |op: &Op| op.session == session && op.id.sequence == sequence;
        let index = self.clients.ops.iter().position(of_this).unwrap();
        let op = &mut self.clients.ops[index];
        if op.answered.is_some() || op.sent_to != pg {
            return;
        }
        let refusal = match &answer {
            Answer::Written(result) => result.as_ref().err(),
            Answer::Found(result, _) => result.as_ref().err(),
        };
        let is_corrupt = matches!(refusal, Some(Refusal::Corrupt { .. }));
        // If no other copy was sent, the one that did nothing was the first.
        let is_first = matches!(refusal, Some(Refusal::OutcomeUnknown)) && !op.is_unclear;
        let will_retry = refusal.is_some_and(Refusal::is_retryable) || is_corrupt || is_first;
        op.was_refused = will_retry && !matches!(refusal, Some(Refusal::Undecided));
        self.statistics.unknown_outcomes +=
            u64::from(matches!(refusal, Some(Refusal::OutcomeUnknown)) && !is_first);
        let attempt = op.attempt;
        if !will_retry {
            op.answered = Some((self.now, answer));
            self.note("answered", &[session as u64, sequence]);
            return self.clients.learn(index);
        }
        if is_corrupt {
            self.statistics.corrupt_refusals += 1;
            let has_long_been_quiet = self.now > self.options.quiet_at.saturating_add(60_000_000);
            assert!(!has_long_been_quiet, "a block is damaged on one copy only, and all members can be reached");
        }
        self.after(40_000, Event::ClientRetries { op: index, attempt });
    }
}
