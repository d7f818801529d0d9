//! The sans-IO core: which request goes where, and when it goes again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use atoll_base::frames::FrameMode;
use atoll_base::operation::PG_META_OBJECT;
use atoll_base::{
    Epoch, ObjectName, OsdId, PgId, PoolId, ReadOutcome, ReadRequest, Refusal, RequestId, WriteRequest,
};
use atoll_cluster::{ClusterMap, MapChange};
use atoll_wire::Message;
use bytes::Bytes;

use crate::api::ClientError;

/// What a caller asks for.
#[derive(Clone, Debug)]
pub(crate) enum Call {
    Read(ObjectName, ReadRequest),
    Write(WriteRequest),
}

/// Where a call goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    /// To the placement group of its object.
    ByName(PoolId),
    /// To a placement group itself.
    Group(PgId),
}

/// The outcome of a call: writes give none.
pub(crate) type Answer = Result<Option<(ReadOutcome, Bytes)>, ClientError>;

pub(crate) enum RouterAction {
    /// Make a connection; answer with [`Router::connected`] or [`Router::disconnected`].
    Connect {
        osd: OsdId,
        address: String,
        public_key: String,
        mode: FrameMode,
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
    deadline_ms: u64,
    timeout_ms: u64,
    sent_to: Option<OsdId>,
    retry_at_ms: Option<u64>,
    attempt: u32,
    last_problem: String,
}

const RETRY_PAUSE_MIN_MS: u64 = 10;
const RETRY_PAUSE_MAX_MS: u64 = 500;

pub(crate) struct Router {
    session: u64,
    /// This client's public key in hexadecimal, by which cluster state knows what it may do.
    own_key: String,
    next_sequence: u64,
    map: ClusterMap,
    has_map: bool,
    /// Where each OSD was announced last. One that has lost its lease in cluster state still serves.
    addresses: BTreeMap<OsdId, String>,
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
            map: ClusterMap::default(),
            has_map: false,
            addresses: BTreeMap::new(),
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

    /// Starts a call; its end comes as [`RouterAction::Complete`] with the sequence returned.
    pub fn start(&mut self, now_ms: u64, timeout_ms: u64, target: Target, call: Call) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let outstanding = Outstanding {
            target,
            call,
            deadline_ms: now_ms.saturating_add(timeout_ms),
            timeout_ms,
            sent_to: None,
            retry_at_ms: None,
            attempt: 0,
            last_problem: "the cluster map is not there yet".into(),
        };
        let too_large = match &outstanding.call {
            Call::Write(request) => request.check_size().err(),
            Call::Read(..) => None,
        };
        let refused = too_large.map(|refusal| outstanding.refused(refusal));
        self.outstanding.insert(sequence, outstanding);
        match refused {
            Some(error) => self.complete(sequence, Err(error)),
            None => self.dispatch(now_ms, sequence),
        }
        sequence
    }

    /// The caller no longer wants the outcome.
    pub fn forget(&mut self, sequence: u64) {
        self.outstanding.remove(&sequence);
    }

    fn place(&self, target: Target, object: &ObjectName) -> Result<PgId, ClientError> {
        match target {
            Target::Group(pg) => Ok(pg),
            Target::ByName(pool) => {
                let record = self.map.pools.get(&pool).ok_or(ClientError::NoSuchPool(pool))?;
                Ok(record.pg_of_object(object, |pg| self.map.pgs.contains_key(&pg)))
            }
        }
    }

    /// The placement groups of a pool, and of how many each is one: those that it was made with, and
    /// those that were split off.
    pub fn groups(&self, pool: PoolId) -> Result<Vec<(PgId, u32)>, ClientError> {
        let record = self.map.pools.get(&pool).ok_or(ClientError::NoSuchPool(pool))?;
        let group = |index| {
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
        Ok((0..record.pg_num).filter_map(group).collect())
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
            Err(error) => return self.complete(sequence, Err(error)),
        };
        let Some((record, _)) = self.map.pgs.get(&pg) else {
            return self.retry_later(now_ms, sequence, format!("placement group {pg} has no record yet"));
        };
        let (primary, epoch) = (record.primary, record.epoch);
        if !self.connected.contains(&primary) {
            let problem = match self.connect(primary) {
                Ok(()) => format!("{primary}, the primary of {pg}, is not reachable"),
                Err(problem) => problem,
            };
            return self.retry_later(now_ms, sequence, problem);
        }
        let message = self.message(sequence, pg, epoch);
        let outstanding = self.outstanding.get_mut(&sequence).expect("looked up above");
        outstanding.sent_to = Some(primary);
        outstanding.retry_at_ms = None;
        self.actions.push_back(RouterAction::Send { osd: primary, message });
    }

    fn message(&self, sequence: u64, pg: PgId, epoch: Epoch) -> Message {
        let id = RequestId { session: self.session, sequence };
        match self.outstanding[&sequence].call.clone() {
            Call::Read(object, request) => Message::Read { id, pg, epoch, object, request },
            Call::Write(request) => {
                let answered_below = *self.outstanding.keys().next().expect("this request is outstanding");
                Message::Write { id, answered_below, pg, epoch, request }
            }
        }
    }

    /// Has a connection made, or says why that is of no use.
    fn connect(&mut self, osd: OsdId) -> Result<(), String> {
        let (Some(address), Some(record)) = (self.addresses.get(&osd), self.map.osds.get(&osd)) else {
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
            let (address, public_key) = (address.clone(), record.public_key.clone());
            let mode = self.map.frames.modes.of(own.role);
            self.actions.push_back(RouterAction::Connect { osd, address, public_key, mode });
        }
        Ok(())
    }

    fn is_trusted(&self, osd: OsdId) -> bool {
        self.map.osds.get(&osd).is_some_and(|record| self.map.is_key_of(osd, &record.public_key))
    }

    /// Ends connections with OSDs whose keys do not count any more.
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
        outstanding.last_problem = problem;
    }

    fn complete(&mut self, sequence: u64, answer: Answer) {
        self.outstanding.remove(&sequence);
        self.actions.push_back(RouterAction::Complete { sequence, answer });
    }

    /// The cluster map has changed.
    pub fn map_changed(&mut self, now_ms: u64, changes: Vec<MapChange>) {
        let is_first = !self.has_map;
        self.has_map = true;
        // Whoever waits for a placement group or an OSD need not wait any longer.
        let may_go = changes.iter().any(|change| matches!(change, MapChange::Pg(..) | MapChange::Up(..)));
        let may_end = |change: &MapChange| matches!(change, MapChange::AuthorizedKey(..) | MapChange::Osd(..));
        let may_end = changes.iter().any(may_end);
        for change in changes {
            if let MapChange::Up(osd, Some(up)) = &change {
                self.addresses.insert(*osd, up.address.clone());
            }
            self.map.apply(change);
        }
        if may_end {
            self.leave_untrusted();
        }
        let moved: Vec<u64> = self
            .outstanding
            .iter()
            .filter(|(_, o)| is_first || self.has_moved(o) || may_go && o.sent_to.is_none())
            .map(|(s, _)| *s)
            .collect();
        moved.into_iter().for_each(|sequence| self.dispatch(now_ms, sequence));
    }

    /// Whether a request waits at an OSD that is not the primary any more.
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
        let waiting: Vec<u64> =
            self.outstanding.iter().filter(|(_, o)| o.sent_to.is_none()).map(|(s, _)| *s).collect();
        waiting.into_iter().for_each(|sequence| self.dispatch(now_ms, sequence));
    }

    /// A connection is lost or could not be made.
    pub fn disconnected(&mut self, now_ms: u64, osd: OsdId, problem: &str) {
        self.connecting.remove(&osd);
        self.connected.remove(&osd);
        let lost: Vec<u64> =
            self.outstanding.iter().filter(|(_, o)| o.sent_to == Some(osd)).map(|(s, _)| *s).collect();
        for sequence in lost {
            self.retry_later(now_ms, sequence, format!("{osd}: {problem}"));
        }
    }

    /// An answer has come.
    pub fn reply(&mut self, now_ms: u64, osd: OsdId, message: Message) {
        let (sequence, result) = match message {
            Message::ReadReply { sequence, result, payload } => {
                (sequence, result.map(|outcome| Some((outcome, payload))))
            }
            Message::WriteReply { sequence, result } => (sequence, result.map(|()| None)),
            _ => return,
        };
        // An answer of an OSD that was the primary is no use once the request was sent to the next
        // one, which may answer differently.
        let outstanding = self.outstanding.get(&sequence).filter(|outstanding| outstanding.sent_to == Some(osd));
        let Some(outstanding) = outstanding else { return };
        match result {
            Ok(found) => self.complete(sequence, Ok(found)),
            Err(refusal) if refusal.is_retryable() => self.retry_later(now_ms, sequence, refusal.to_string()),
            Err(refusal) => {
                let error = outstanding.refused(refusal);
                self.complete(sequence, Err(error));
            }
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
    }
}

impl Call {
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
            Target::Group(pg) => pg.pool,
        }
    }

    fn refused(&self, refusal: Refusal) -> ClientError {
        ClientError::Refused { pool: self.pool(), object: self.call.object().clone(), refusal }
    }

    fn timed_out(&self) -> ClientError {
        ClientError::TimedOut {
            pool: self.pool(),
            object: self.call.object().clone(),
            timeout_ms: self.timeout_ms,
            detail: self.last_problem.clone(),
        }
    }
}

/// A write that sets a fence in a placement group, unless that is not one of `pg_num` any more.
pub(crate) fn fence_write(name: &Bytes, generation: u64, pg_num: u32) -> WriteRequest {
    let key = [atoll_base::operation::FENCE_KEY_PREFIX, name].concat();
    WriteRequest {
        object: ObjectName::new(PG_META_OBJECT).expect("the name is short"),
        conditions: vec![
            atoll_base::Condition::NotFenced { name: name.clone(), generation },
            atoll_base::Condition::PgNum { pg_num },
        ],
        mutations: vec![atoll_base::Mutation::OmapSet {
            key: key.into(),
            value: Bytes::copy_from_slice(&generation.to_be_bytes()),
        }],
        payload: Bytes::new(),
        payload_sealed: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_base::frames::{FrameModes, FramesRecord};
    use atoll_base::records::{
        AuthorizedKeyRecord, FailureDomain, OsdRecord, OsdUpRecord, PeerRole, PgRecord, PoolRecord, Redundancy,
    };

    fn key(role: PeerRole, osd: Option<OsdId>) -> AuthorizedKeyRecord {
        AuthorizedKeyRecord { format: 1, role, osd, name: "somebody".into() }
    }

    fn router() -> Router {
        Router::new(7, "me".into())
    }

    fn changes(primary: u32, epoch: u64) -> Vec<MapChange> {
        let osd = |id: u32| OsdRecord {
            format: 1,
            id: OsdId(id),
            host: "h".into(),
            public_key: format!("key{id}"),
            weight: 1.0,
            device_class: "ssd".into(),
            device_bytes: 1,
            rack: String::new(),
            zone: String::new(),
            is_out: false,
        };
        let up = |id: u32| OsdUpRecord {
            format: 1,
            id: OsdId(id),
            address: "127.0.0.1:1".into(),
            process_id: 1,
            incarnation: 1,
        };
        let record = PgRecord {
            format: 1,
            epoch: Epoch(epoch),
            members: vec![OsdId(0), OsdId(1)],
            primary: OsdId(primary),
            activated_epoch: Epoch(epoch),
            last_active_members: vec![],
            pg_num: 0,
            shards: vec![],
            last_active_shards: vec![],
        };
        let pool = PoolRecord {
            format: 1,
            id: PoolId(1),
            name: "p".into(),
            redundancy: Redundancy::Replicated { size: 2, min_size: 2 },
            pg_num: 1,
            pg_num_first: 0,
            failure_domain: FailureDomain::Osd,
            device_class: None,
        };
        vec![
            MapChange::AuthorizedKey("me".into(), Some(key(PeerRole::Gateway, None))),
            MapChange::AuthorizedKey("key0".into(), Some(key(PeerRole::Osd, Some(OsdId(0))))),
            MapChange::AuthorizedKey("key1".into(), Some(key(PeerRole::Osd, Some(OsdId(1))))),
            MapChange::Osd(OsdId(0), Some(osd(0))),
            MapChange::Osd(OsdId(1), Some(osd(1))),
            MapChange::Up(OsdId(0), Some(up(0))),
            MapChange::Up(OsdId(1), Some(up(1))),
            MapChange::Pool(PoolId(1), Some(pool)),
            MapChange::Pg(PgId { pool: PoolId(1), index: 0 }, Some((record, epoch as i64))),
        ]
    }

    fn drain(router: &mut Router) -> Vec<String> {
        std::iter::from_fn(|| router.next_action())
            .map(|action| match action {
                RouterAction::Connect { osd, .. } => format!("connect {osd}"),
                RouterAction::Disconnect { osd } => format!("disconnect {osd}"),
                RouterAction::Send { osd, message: Message::Write { id, .. } } => {
                    format!("send {} to {osd}", id.sequence)
                }
                RouterAction::Send { osd, .. } => format!("send to {osd}"),
                RouterAction::Complete { sequence, answer } => format!("complete {sequence} {}", answer.is_ok()),
            })
            .collect()
    }

    fn write() -> Call {
        Call::Write(WriteRequest {
            object: ObjectName::new("o").unwrap(),
            conditions: vec![],
            mutations: vec![],
            payload: Bytes::new(),
            payload_sealed: false,
        })
    }

    #[test]
    fn requests_wait_for_map_and_connection_and_survive_both_changing() {
        let mut router = router();
        let sequence = router.start(0, 1000, Target::ByName(PoolId(1)), write());
        assert!(drain(&mut router).is_empty());
        router.map_changed(1, changes(0, 1));
        assert_eq!(drain(&mut router), ["connect osd.0"]);
        router.connected(2, OsdId(0));
        assert_eq!(drain(&mut router), ["send 1 to osd.0"]);
        router.disconnected(3, OsdId(0), "reset");
        router.tick(40);
        assert_eq!(drain(&mut router), ["connect osd.0"]);
        router.map_changed(50, changes(1, 2));
        assert_eq!(drain(&mut router), ["connect osd.1"]);
        router.connected(101, OsdId(1));
        assert_eq!(drain(&mut router), ["send 1 to osd.1"]);
        // What the former primary says does not count any more.
        router.reply(102, OsdId(0), Message::WriteReply { sequence, result: Ok(()) });
        assert!(drain(&mut router).is_empty());
        router.reply(102, OsdId(1), Message::WriteReply { sequence, result: Err(Refusal::Busy) });
        assert!(drain(&mut router).is_empty());
        router.tick(700);
        assert_eq!(drain(&mut router), ["send 1 to osd.1"]);
        router.reply(703, OsdId(1), Message::WriteReply { sequence, result: Ok(()) });
        assert_eq!(drain(&mut router), ["complete 1 true"]);
    }

    #[test]
    fn an_osd_that_is_not_announced_any_more_is_tried_where_it_was() {
        let mut router = router();
        router.map_changed(0, changes(0, 1));
        router.map_changed(1, vec![MapChange::Up(OsdId(0), None)]);
        router.start(2, 1000, Target::ByName(PoolId(1)), write());
        assert_eq!(drain(&mut router), ["connect osd.0"]);
        router.disconnected(3, OsdId(0), "reset");
        router.map_changed(4, vec![MapChange::Osd(OsdId(0), None)]);
        router.tick(500);
        assert!(drain(&mut router).is_empty(), "it was removed");
    }

    #[test]
    fn time_limits_and_refusals_end_requests() {
        let mut router = router();
        router.map_changed(0, changes(0, 1));
        router.start(0, 1000, Target::ByName(PoolId(1)), write());
        router.tick(1000);
        assert_eq!(drain(&mut router), ["connect osd.0", "complete 1 false"]);
        router.connected(1001, OsdId(0));
        router.start(1002, 1000, Target::ByName(PoolId(1)), write());
        router.reply(1003, OsdId(0), Message::WriteReply { sequence: 2, result: Err(Refusal::NoSuchObject) });
        assert_eq!(drain(&mut router), ["send 2 to osd.0", "complete 2 false"]);
        router.start(1002, 1000, Target::ByName(PoolId(9)), write());
        assert_eq!(drain(&mut router), ["complete 3 false"], "an unknown pool is an error at once");
    }

    #[test]
    fn revoked_keys_end_connections_and_make_none() {
        let mut router = router();
        router.map_changed(0, changes(0, 1));
        let sequence = router.start(0, 10_000, Target::ByName(PoolId(1)), write());
        assert_eq!(drain(&mut router), ["connect osd.0"]);
        router.connected(1, OsdId(0));
        drain(&mut router);
        // The OSD's key: what waits at it goes again when it is trusted again.
        router.map_changed(2, vec![MapChange::AuthorizedKey("key0".into(), None)]);
        assert_eq!(drain(&mut router), ["disconnect osd.0"]);
        router.disconnected(3, OsdId(0), "aborted");
        router.tick(1_000);
        assert!(drain(&mut router).is_empty());
        assert!(router.outstanding[&sequence].last_problem.contains("key of osd.0 was revoked"));
        let trusted = MapChange::AuthorizedKey("key0".into(), Some(key(PeerRole::Osd, Some(OsdId(0)))));
        router.map_changed(1_001, vec![trusted]);
        router.tick(2_000);
        assert_eq!(drain(&mut router), ["connect osd.0"]);
        // Another OSD's key is as good as none.
        router.map_changed(
            2_001,
            vec![MapChange::AuthorizedKey("key0".into(), Some(key(PeerRole::Osd, Some(OsdId(1)))))],
        );
        assert_eq!(drain(&mut router), ["disconnect osd.0"]);
        router.disconnected(2_002, OsdId(0), "aborted");
        // The client's own key.
        router.connected(2_002, OsdId(0));
        assert_eq!(drain(&mut router), ["disconnect osd.0"], "it was being made");
        router.disconnected(2_002, OsdId(0), "aborted");
        router.map_changed(2_003, vec![MapChange::AuthorizedKey("me".into(), None)]);
        router.tick(3_000);
        assert!(drain(&mut router).is_empty());
        assert!(router.outstanding[&sequence].last_problem.contains("key of this process (me)"));
    }

    #[test]
    fn the_mode_is_that_of_the_keys_role() {
        let mut router = router();
        let frames = FramesRecord::from(FrameModes::default().with(PeerRole::Gateway, FrameMode::Secure128));
        router.map_changed(0, changes(0, 1).into_iter().chain([MapChange::Frames(frames)]).collect());
        router.start(0, 1_000, Target::ByName(PoolId(1)), write());
        let action = router.next_action();
        assert!(matches!(action, Some(RouterAction::Connect { mode: FrameMode::Secure128, .. })));
    }
}
