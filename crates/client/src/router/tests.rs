//! Targets and repetitions of requests, and OSDs that the client does not connect to.

use super::*;
use atoll_types::frames::{FrameMode, FrameModes, FrameScope, FramesRecord};
use atoll_types::records::{
    AuthorizedKeyRecord, FailureDomain, OsdRecord, OsdUpRecord, PeerRole, PgRecord, PoolRecord, Redundancy,
};
use atoll_types::transports::{Transport, Way};

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
        store_id: String::new(),
    };
    let up = |id: u32| OsdUpRecord {
        format: 1,
        id: OsdId(id),
        address: "127.0.0.1:1".into(),
        local_name: format!("atoll-osd.{id}"),
        rdma_address: String::new(),
        process_id: 1,
        process: None,
        incarnation: 1,
        signs_changes: true,
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
        accepted: None,
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
            RouterAction::Send { osd, message: Message::Traced { .. } } => format!("tell {osd} the span"),
            RouterAction::Send { osd, .. } => format!("send to {osd}"),
            RouterAction::Complete { sequence, answer } => format!("complete {sequence} {}", answer.is_ok()),
        })
        .collect()
}

const PG: PgId = PgId { pool: PoolId(1), index: 0 };

fn answer(sequence: u64, result: Result<(), Refusal>) -> Message {
    Message::WriteReply { sequence, pg: PG, committed: Version::default(), result }
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
    let sequence = router.start(0, 1000, Target::ByName(PoolId(1)), write(), None);
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
    router.reply(102, OsdId(0), answer(sequence, Ok(())));
    assert!(drain(&mut router).is_empty());
    router.reply(102, OsdId(1), answer(sequence, Err(Refusal::Busy)));
    assert!(drain(&mut router).is_empty());
    router.tick(700);
    assert_eq!(drain(&mut router), ["send 1 to osd.1"]);
    router.reply(703, OsdId(1), answer(sequence, Ok(())));
    assert_eq!(drain(&mut router), ["complete 1 true"]);
}

#[test]
fn unchecked_data_is_for_readers_with_seals_only() {
    let mut router = router();
    router.map_changed(0, changes(0, 1));
    router.connected(1, OsdId(0));
    drain(&mut router);
    let object = || ObjectName::new("object").unwrap();
    let outcome = ReadOutcome::Data { object_bytes: 0, version: atoll_types::Version::default(), seals: None };
    for (request, is_taken) in
        [(ReadRequest::checked_data(0, 4096), false), (ReadRequest::data_to_open(0, 4096), true)]
    {
        let call = Call::Read(object(), request);
        let sequence = router.start(1, 1_000, Target::ByName(PoolId(1)), call, None);
        drain(&mut router);
        let (result, payload) = (Ok(outcome.clone()), Bytes::new());
        router.reply(2, OsdId(0), Message::ReadReply { sequence, opens_seals: true, result, payload });
        assert_eq!(drain(&mut router), [format!("complete {sequence} {is_taken}")]);
    }
}

#[test]
fn the_span_goes_before_each_attempt_of_its_request_and_no_other() {
    let mut router = router();
    router.map_changed(0, changes(0, 1));
    let span = TraceContext { trace_id: [1; 16], span_id: [2; 8] };
    let traced = router.start(0, 1_000, Target::ByName(PoolId(1)), write(), Some(span));
    router.start(0, 1_000, Target::ByName(PoolId(1)), write(), None);
    drain(&mut router);
    router.connected(1, OsdId(0));
    assert_eq!(drain(&mut router), ["tell osd.0 the span", "send 1 to osd.0", "send 2 to osd.0"]);
    router.reply(2, OsdId(0), answer(traced, Err(Refusal::Busy)));
    router.tick(700);
    assert_eq!(drain(&mut router), ["tell osd.0 the span", "send 1 to osd.0"]);
}

#[test]
fn an_osd_that_is_not_announced_any_more_is_tried_where_it_was() {
    let mut router = router();
    router.map_changed(0, changes(0, 1));
    router.map_changed(1, vec![MapChange::Up(OsdId(0), None)]);
    router.start(2, 1000, Target::ByName(PoolId(1)), write(), None);
    assert_eq!(drain(&mut router), ["connect osd.0"]);
    router.disconnected(3, OsdId(0), "reset");
    router.map_changed(4, vec![MapChange::Osd(OsdId(0), None)]);
    router.tick(500);
    assert!(drain(&mut router).is_empty(), "it was removed");
}

#[test]
fn a_timeout_names_the_cause_of_waiting() {
    let said = |router: &mut Router| {
        std::iter::from_fn(|| router.next_action()).find_map(|action| match action {
            RouterAction::Complete { answer: Err(error), .. } => Some(error.to_string()),
            _ => None,
        })
    };
    let mut router = router();
    router.start(0, 1000, Target::ByName(PoolId(1)), write(), None);
    router.tick(1000);
    assert!(said(&mut router).is_some_and(|text| text.contains("the cluster map is not there yet")));
    router.map_changed(1001, changes(0, 1));
    router.connected(1002, OsdId(0));
    router.start(1003, 1000, Target::ByName(PoolId(1)), write(), None);
    router.tick(2003);
    assert!(said(&mut router).is_some_and(|text| text.ends_with("osd.0 has not answered")));
    router.start(2004, 1000, Target::ByName(PoolId(1)), write(), None);
    router.disconnected(2005, OsdId(0), "reset");
    router.connected(2006, OsdId(0));
    router.tick(3004);
    let text = said(&mut router).expect("its time is over");
    assert!(text.ends_with("osd.0 has not answered; before that: osd.0: reset"), "{text}");
}

#[test]
fn time_limits_and_refusals_end_requests() {
    let mut router = router();
    router.map_changed(0, changes(0, 1));
    router.start(0, 1000, Target::ByName(PoolId(1)), write(), None);
    router.tick(1000);
    assert_eq!(drain(&mut router), ["connect osd.0", "complete 1 false"]);
    router.connected(1001, OsdId(0));
    router.start(1002, 1000, Target::ByName(PoolId(1)), write(), None);
    router.reply(1003, OsdId(0), answer(2, Err(Refusal::NoSuchObject)));
    assert_eq!(drain(&mut router), ["send 2 to osd.0", "complete 2 false"]);
    router.start(1002, 1000, Target::ByName(PoolId(9)), write(), None);
    assert_eq!(drain(&mut router), ["complete 3 false"], "an unknown pool is an error at once");
}

#[test]
fn revoked_keys_end_connections_and_make_none() {
    let mut router = router();
    router.map_changed(0, changes(0, 1));
    let sequence = router.start(0, 10_000, Target::ByName(PoolId(1)), write(), None);
    assert_eq!(drain(&mut router), ["connect osd.0"]);
    router.connected(1, OsdId(0));
    drain(&mut router);
    // The OSD's key: what waits at it goes again when it is trusted again.
    router.map_changed(2, vec![MapChange::AuthorizedKey("key0".into(), None)]);
    assert_eq!(drain(&mut router), ["disconnect osd.0"]);
    router.disconnected(3, OsdId(0), "aborted");
    router.tick(1_000);
    assert!(drain(&mut router).is_empty());
    assert!(router.outstanding[&sequence].last_problem.as_ref().unwrap().contains("key of osd.0 was revoked"));
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
    assert!(router.outstanding[&sequence].last_problem.as_ref().unwrap().contains("key of this process (me)"));
}

#[test]
fn the_ways_to_an_osd_are_those_of_the_keys_role() {
    let mut router = router();
    let frames =
        FramesRecord::from(FrameModes::default().with(FrameScope::Role(PeerRole::Gateway), FrameMode::Secure128));
    router.map_changed(0, changes(0, 1).into_iter().chain([MapChange::Frames(frames)]).collect());
    router.start(0, 1_000, Target::ByName(PoolId(1)), write(), None);
    let action = router.next_action();
    let Some(RouterAction::Connect { ways, .. }) = action else { panic!("it is not connected") };
    let is_unix = |way: &Way| (way.transport, way.address.as_str()) == (Transport::Unix, "atoll-osd.0");
    assert!(ways.len() == 2 && is_unix(&ways[0]), "{ways:?}");
    assert!(ways.iter().all(|way| way.mode == FrameMode::Secure128), "{ways:?}");
}

/// Returns the fields of the next write: its sequence, `answered_below`, and the known state.
fn sent(router: &mut Router) -> Option<(u64, u64, (u64, u64))> {
    std::iter::from_fn(|| router.next_action()).find_map(|action| match action {
        RouterAction::Send { message: Message::Write { id, answered_below, known, .. }, .. } => {
            Some((id.sequence, answered_below, (known.epoch.0, known.sequence)))
        }
        _ => None,
    })
}

fn answer_at(sequence: u64, committed: u64, result: Result<(), Refusal>) -> Message {
    Message::WriteReply { sequence, pg: PG, committed: Version { epoch: Epoch(4), sequence: committed }, result }
}

fn connected_router() -> Router {
    let mut router = router();
    router.map_changed(0, changes(0, 4));
    router.start(0, 100_000, Target::Pg(PG), write(), None);
    router.connected(1, OsdId(0));
    router
}

#[test]
fn a_retry_has_the_knowledge_of_its_first_attempt() {
    let mut router = connected_router();
    assert_eq!(sent(&mut router), Some((1, 1, (4, 0))), "only the record is known");
    router.start(2, 100_000, Target::Pg(PG), write(), None);
    assert_eq!(sent(&mut router), Some((2, 1, (4, 0))));
    router.reply(3, OsdId(0), answer_at(2, 70, Ok(())));
    router.start(3, 100_000, Target::Pg(PG), write(), None);
    assert_eq!(sent(&mut router), Some((3, 1, (4, 70))));
    router.disconnected(4, OsdId(0), "reset");
    router.connected(5, OsdId(0));
    assert_eq!(sent(&mut router), Some((1, 1, (4, 0))), "nobody knows what became of the first attempt");
    assert_eq!(sent(&mut router), Some((3, 1, (4, 70))));
    // An attempt that may have been done is unclear, also if a later one was refused.
    router.reply(6, OsdId(0), answer_at(1, 80, Err(Refusal::Busy)));
    router.tick(1_000);
    assert_eq!(sent(&mut router), Some((1, 1, (4, 0))));
}

#[test]
fn attempts_that_did_nothing_do_not_count() {
    let mut router = connected_router();
    assert_eq!(sent(&mut router), Some((1, 1, (4, 0))));
    router.reply(2, OsdId(0), answer_at(1, 0, Err(Refusal::Busy)));
    router.start(3, 100_000, Target::Pg(PG), write(), None);
    router.reply(4, OsdId(0), answer_at(2, 70, Ok(())));
    drain(&mut router);
    router.tick(1_000);
    assert_eq!(sent(&mut router), Some((1, 1, (4, 70))), "as good as the first");
    router.reply(1_001, OsdId(0), answer_at(1, 0, Err(Refusal::Undecided)));
    router.start(1_002, 100_000, Target::Pg(PG), write(), None);
    router.reply(1_003, OsdId(0), answer_at(3, 90, Ok(())));
    drain(&mut router);
    router.tick(2_000);
    assert_eq!(sent(&mut router), Some((1, 1, (4, 70))), "it was ordered");
}

#[test]
fn only_a_write_that_may_have_been_done_has_an_unknown_outcome() {
    let mut router = connected_router();
    assert_eq!(sent(&mut router), Some((1, 1, (4, 0))));
    // The first attempt did nothing, and the PG says how far it is.
    router.reply(2, OsdId(0), answer_at(1, 70, Err(Refusal::OutcomeUnknown)));
    assert_eq!(sent(&mut router), Some((1, 1, (4, 70))), "at once");
    router.disconnected(3, OsdId(0), "reset");
    router.connected(4, OsdId(0));
    assert_eq!(sent(&mut router), Some((1, 1, (4, 70))));
    router.reply(5, OsdId(0), answer_at(1, 5_000, Err(Refusal::OutcomeUnknown)));
    let Some(RouterAction::Complete { answer: Err(error), .. }) = router.next_action() else {
        panic!("it is over")
    };
    assert!(matches!(error, ClientError::OutcomeUnknown { pool: PoolId(1), .. }) && error.is_unclear());
}

/// A caller removes the data of a write that did not happen.
#[test]
fn a_write_that_may_have_been_done_does_not_fail_for_its_pool() {
    let errors = |router: &mut Router| {
        let actions = std::iter::from_fn(|| router.next_action());
        let ended = actions.filter_map(|action| match action {
            RouterAction::Complete { sequence, answer: Err(error) } => Some((sequence, error.is_unclear())),
            _ => None,
        });
        ended.collect::<Vec<_>>()
    };
    let mut router = router();
    router.map_changed(0, changes(0, 4));
    router.connected(1, OsdId(0));
    router.start(2, 100_000, Target::ByName(PoolId(1)), write(), None);
    router.disconnected(3, OsdId(0), "reset");
    router.start(4, 100_000, Target::ByName(PoolId(1)), write(), None);
    router.map_changed(5, vec![MapChange::Pool(PoolId(1), None)]);
    router.tick(1_000);
    assert_eq!(errors(&mut router), [(1, true), (2, false)], "the second was never sent");
}

#[test]
fn a_write_is_outstanding_while_its_pool_is_not_in_the_map() {
    let mut router = router();
    router.map_changed(0, changes(0, 4));
    router.connected(1, OsdId(0));
    router.start(2, 100_000, Target::ByName(PoolId(1)), write(), None);
    router.start(2, 100_000, Target::Pg(PG), write(), None);
    drain(&mut router);
    router.map_changed(3, vec![MapChange::Pool(PoolId(1), None)]);
    router.reply(4, OsdId(0), answer(2, Err(Refusal::Busy)));
    router.tick(1_000);
    assert_eq!(sent(&mut router), Some((2, 1, (4, 0))), "the first is not answered");
    router.map_changed(1_001, changes(0, 4));
    router.disconnected(1_002, OsdId(0), "reset");
    router.connected(1_003, OsdId(0));
    assert_eq!(sent(&mut router), Some((1, 1, (4, 0))));
}

#[test]
fn a_stuck_write_holds_up_nothing_in_other_groups() {
    let other = PgId { pool: PoolId(1), index: 1 };
    let mut router = router();
    let mut all = changes(0, 4);
    let Some(MapChange::Pg(_, record)) = all.last().cloned() else { panic!("the last is the PG") };
    all.push(MapChange::Pg(other, record));
    router.map_changed(0, all);
    router.start(0, 100_000, Target::Pg(PG), write(), None);
    router.start(0, 100_000, Target::Pg(PG), Call::Read(ObjectName::new("o").unwrap(), ReadRequest::Stat), None);
    router.connected(1, OsdId(0));
    drain(&mut router);
    router.start(2, 100_000, Target::Pg(other), write(), None);
    assert_eq!(sent(&mut router).map(|(sequence, below, _)| (sequence, below)), Some((3, 3)));
    router.start(3, 100_000, Target::Pg(PG), write(), None);
    assert_eq!(sent(&mut router).map(|(sequence, below, _)| (sequence, below)), Some((4, 1)));
}

#[test]
fn knowledge_from_before_a_split_counts_up_to_the_split() {
    let mut router = connected_router();
    drain(&mut router);
    let object = |name: &str| ObjectName::new(name).unwrap();
    let moves = |name: &&String| atoll_types::pg_of_object(PoolId(1), &object(name), 2).index == 1;
    let names: Vec<String> = (0..9).map(|number| format!("o{number}")).collect();
    let Call::Write(request) = write() else { panic!("it writes") };
    let call = Call::Write(WriteRequest { object: object(names.iter().find(moves).unwrap()), ..request });
    // The PG is ahead of the record that the client knows.
    router.reply(
        2,
        OsdId(0),
        Message::WriteReply {
            sequence: 1,
            pg: PG,
            committed: Version { epoch: Epoch(6), sequence: 70 },
            result: Ok(()),
        },
    );
    router.start(3, 100_000, Target::ByName(PoolId(1)), call, None);
    assert_eq!(sent(&mut router), Some((2, 2, (6, 70))));
    let mut split = changes(0, 7);
    let Some(MapChange::Pg(_, record)) = split.last().cloned() else { panic!("the last is the PG") };
    let Some(MapChange::Pool(id, Some(pool))) = split.get(7).cloned() else { panic!("the pool is there") };
    split.push(MapChange::Pg(PgId { pool: PoolId(1), index: 1 }, record));
    split.push(MapChange::Pool(id, Some(PoolRecord { pg_num: 2, pg_num_first: 1, ..pool })));
    router.map_changed(4, split);
    router.disconnected(5, OsdId(0), "reset");
    router.connected(6, OsdId(0));
    assert_eq!(sent(&mut router), Some((2, 2, (4, u64::MAX))));
}

/// Cluster state was put back from a snapshot before a split, which was found in the copies of the PG.
#[test]
fn a_pg_that_is_beyond_the_number_of_its_pool_is_found() {
    let mut router = router();
    let mut all = changes(0, 4);
    let Some(MapChange::Pg(_, record)) = all.last().cloned() else { panic!("the last is the PG") };
    let split_off = PgId { pool: PoolId(1), index: 1 };
    all.push(MapChange::Pg(split_off, record));
    router.map_changed(0, all);
    let object = |name: &str| ObjectName::new(name).unwrap();
    let of = |name: &str| router.place(Target::ByName(PoolId(1)), &object(name)).unwrap();
    let names: Vec<String> = (0..9).map(|number| format!("o{number}")).collect();
    for name in &names {
        assert_eq!(of(name), atoll_types::pg_of_object(PoolId(1), &object(name), 2));
    }
    assert!(names.iter().any(|name| of(name) == split_off));
    assert_eq!(router.pgs(PoolId(1)).unwrap().len(), 2, "fences and lists reach both");
}
