//! Where requests go, when they go again, and to which OSDs the client does not connect.

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
            RouterAction::Send { osd, message: Message::Traced { .. } } => format!("tell {osd} the span"),
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
fn what_nothing_checked_is_for_who_opens_seals_only() {
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
    router.reply(2, OsdId(0), Message::WriteReply { sequence: traced, result: Err(Refusal::Busy) });
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
fn a_time_limit_says_what_the_request_waited_for() {
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
    router.reply(1003, OsdId(0), Message::WriteReply { sequence: 2, result: Err(Refusal::NoSuchObject) });
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
