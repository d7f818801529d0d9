//! Every well-formed request of a client has a definite answer, for any ranges, seals and conditions, and with any
//! part of the metadata in memory: PGs, the store and the parts between them as an OSD has them, on a device in
//! memory. A store that refuses one member's part of a write, or metadata that is only cold, must not show.

mod random;
mod world;

use atoll_pg::{CodeShape, PgState};
use atoll_types::{Condition, Mutation, ReadOutcome, ReadRequest, Refusal, Seals, WriteRequest};
use atoll_wire::Message;
use bytes::Bytes;

use random::Random;
use world::{World, name};

const BLOCK: u64 = 4096;

/// Requests of a world, and worlds of each kind.
const REQUESTS: usize = 400;
const SEEDS: u64 = 12;

fn two_and_one() -> Option<CodeShape> {
    Some(CodeShape { data: 2, parity: 1, chunk_bytes: 16 << 10 })
}

/// A definite answer that is no damage, and a PG that is as it was.
fn check(world: &World, request: &str, answer: Option<Result<(), Refusal>>) {
    let request = request.chars().take(600).collect::<String>();
    let refusal = answer.unwrap_or_else(|| panic!("{request} has no answer")).err();
    let is_definite = refusal.as_ref().is_none_or(|refusal| !refusal.is_retryable());
    let is_damage = matches!(refusal, Some(Refusal::Corrupt { .. }));
    assert!(is_definite && !is_damage, "{request} is answered with {refusal:?}");
    assert_eq!((world.state(), world.epoch()), (&PgState::Active, world.first_epoch), "after {request}");
}

/// Many requests, most of them while all metadata is cold.
fn answers_all(seed: u64, shape: Option<CodeShape>) {
    let (mut world, mut random) = (World::new(shape), Random::new(seed));
    world.fill();
    for _ in 0..REQUESTS {
        if random.chance(60) {
            world.cool();
        }
        if random.chance(50) {
            let request = random.write();
            let text = format!("seed {seed}: {:?} if {:?}", request.mutations, request.conditions);
            let text = format!("{text} on '{}', {} bytes", request.object.as_str(), request.payload.len());
            let answer = world.write(request);
            check(&world, &text, answer);
        } else {
            let (object, request) = (random.object(), random.read());
            let text = format!("seed {seed}: {request:?} of '{}'", object.as_str());
            let answer = world.read(object, request).map(|answer| answer.map(drop));
            check(&world, &text, answer);
        }
    }
}

#[test]
fn every_request_on_copies_has_a_definite_answer() {
    (0..SEEDS).for_each(|seed| answers_all(seed, None));
}

#[test]
fn every_request_on_shards_has_a_definite_answer() {
    (100..100 + SEEDS).for_each(|seed| answers_all(seed, two_and_one()));
}

fn conditions() -> Vec<Condition> {
    let key = Bytes::from_static(b"key");
    vec![
        Condition::ObjectExists,
        Condition::ObjectAbsent,
        Condition::OmapExists { key: key.clone() },
        Condition::OmapAbsent { key: key.clone() },
        Condition::OmapEquals { key, value: Bytes::from_static(b"value") },
        Condition::NotFenced { name: Bytes::from_static(b"image"), generation: 1 },
        Condition::PgNum { pg_num: 1 },
        Condition::OtherExists { object: name("other") },
    ]
}

fn write(mutations: Vec<Mutation>, payload: Vec<u8>, conditions: Vec<Condition>) -> WriteRequest {
    WriteRequest { object: name("object"), conditions, mutations, payload: payload.into(), payload_sealed: false }
}

/// A write that breaks a rule and has a condition on metadata that is not in memory.
#[test]
fn conditions_of_invalid_writes_on_cold_objects_are_looked_at() {
    let invalid = [
        Mutation::Zero { offset: 1, length: 1 },
        Mutation::Write { offset: 0, length: 0, seals: None },
        Mutation::Truncate { size_bytes: 1 << 40 },
        Mutation::Write { offset: 4096 - 1, length: 0, seals: None },
    ];
    for shape in [None, two_and_one()] {
        let mut world = World::new(shape);
        world.fill();
        for condition in conditions() {
            for mutation in &invalid {
                world.cool();
                let request = write(vec![mutation.clone()], Vec::new(), vec![condition.clone()]);
                let answer = world.write(request);
                check(&world, &format!("{mutation:?} if {condition:?}"), answer);
            }
        }
    }
}

/// Everything that is read from metadata alone.
#[test]
fn metadata_of_cold_objects_is_loaded_and_no_damage() {
    let reads = [
        ReadRequest::Stat,
        ReadRequest::OmapGet { key: Bytes::from_static(b"key") },
        ReadRequest::OmapList { prefix: Bytes::new(), from: Bytes::new(), limit: 10 },
        ReadRequest::Extents { offset: 0, length: 8192 },
        ReadRequest::checked_data(0, 8192),
        list(false),
        list(true),
    ];
    for shape in [None, two_and_one()] {
        let mut world = World::new(shape);
        world.fill();
        let mutation = Mutation::Write { offset: 0, length: 8192, seals: None };
        assert_eq!(world.write(write(vec![mutation], vec![7; 8192], Vec::new())), Some(Ok(())));
        for read in &reads {
            world.cool();
            let answer = world.read(name("object"), read.clone());
            let found =
                answer.expect("it has an answer").unwrap_or_else(|refusal| panic!("{read:?}: {refusal:?}"));
            if let ReadOutcome::ObjectPage { objects, .. } = found {
                assert!(objects.len() > 20, "{read:?}");
            }
        }
    }
}

fn list(counts_blocks: bool) -> ReadRequest {
    ReadRequest::ObjectList { prefix: Bytes::from_static(b"o"), after: None, counts_blocks, pg_num: None }
}

/// A write whose later part gives the object seals, so that an earlier one does not fit them.
#[test]
fn writes_that_change_the_seals_within_are_planned_with_the_last_shape() {
    let seals = Seals { unit_bytes: 16 << 10, seal_bytes: 1, bytes: vec![1].into() };
    let sealed = Mutation::Write { offset: 0, length: 16 << 10, seals: Some(seals) };
    // Of the second shard, which is not the primary's.
    let zero = |offset| Mutation::Zero { offset: (16 << 10) + offset, length: BLOCK };
    let unsealed = Mutation::Write { offset: (16 << 10) + BLOCK, length: BLOCK as u32, seals: None };
    let requests = [
        (vec![zero(BLOCK), sealed.clone()], 16 << 10),
        (vec![unsealed.clone(), sealed.clone()], 20 << 10),
        (vec![zero(0), unsealed, sealed.clone()], 20 << 10),
        (vec![sealed, zero(BLOCK)], 16 << 10),
    ];
    for (mutations, bytes) in requests {
        for exists in [false, true] {
            let mut world = World::new(two_and_one());
            if exists {
                let whole = Mutation::Write { offset: 0, length: 64 << 10, seals: None };
                assert_eq!(world.write(write(vec![whole], vec![3; 64 << 10], Vec::new())), Some(Ok(())));
            }
            let answer = world.write(write(mutations.clone(), vec![5; bytes], Vec::new()));
            check(&world, &format!("{mutations:?}, exists: {exists}"), answer);
            let read = world.read(name("object"), ReadRequest::checked_data(0, 64 << 10));
            check(&world, "a read after it", read.map(|answer| answer.map(drop).or_else(ignore_absence)));
        }
    }
}

fn ignore_absence(refusal: Refusal) -> Result<(), Refusal> {
    if refusal == Refusal::NoSuchObject { Ok(()) } else { Err(refusal) }
}

/// The refusal in an answer, if it is one.
fn result_of(message: Message) -> (u64, Result<Option<ReadOutcome>, Refusal>) {
    match message {
        Message::WriteReply { sequence, result, .. } => (sequence, result.map(|()| None)),
        Message::ReadReply { sequence, result, .. } => (sequence, result.map(Some)),
        other => panic!("{other:?} is no answer"),
    }
}
