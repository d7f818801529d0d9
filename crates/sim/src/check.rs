//! What must hold of a finished run. The members' logs give the order of all writes; replayed on
//! the model in that order they must explain every answer.

use std::collections::BTreeMap;

use atoll_base::operation::{FENCE_KEY_PREFIX, PG_META_OBJECT};
use atoll_base::{LogEntry, ObjectName, Refusal, RequestId, Touched, Transaction};

use crate::clients::{Answer, Kind, Op};
use crate::state::{Object, PG, State, failed_condition, name, read};
use crate::store::clone_source;
use crate::world::World;

/// All states of one object, by the sequence of the write that led to them.
type Versions = BTreeMap<u64, Option<Object>>;

pub fn check(world: &World) {
    let history = merged_history(world);
    replicas_are_identical(world, &history);
    let places = place_writes(world, &history);
    writes_keep_real_time_order(&world.clients.ops, &places);
    let versions = replay(world, &history);
    answers_fit(world, &places, &versions, history.len() as u64);
}

/// The history of the group: of two entries in one place that of the later epoch is in force, for
/// the other one was never acknowledged.
fn merged_history(world: &World) -> Vec<LogEntry> {
    let head = world.members[world.primary()].store.durable.head;
    let mut merged: BTreeMap<u64, LogEntry> = BTreeMap::new();
    for member in &world.members {
        for (sequence, entry) in member.store.history.range(..=head.sequence) {
            let known = merged.entry(*sequence).or_insert_with(|| entry.clone());
            if entry.version > known.version {
                *known = entry.clone();
            }
        }
    }
    for (index, sequence) in merged.keys().enumerate() {
        assert_eq!(*sequence, index as u64 + 1, "the history has no gaps");
    }
    merged.into_values().collect()
}

fn replicas_are_identical(world: &World, history: &[LogEntry]) {
    let first = &world.members[world.primary()].store.visible;
    for member in &world.cluster.record.members {
        let at = member.0 as usize - 1;
        let member = &world.members[at];
        let (visible, durable) = (&member.store.visible, &member.store.durable);
        assert!(visible.objects == durable.objects, "everything is durable on member {at}");
        assert_eq!(visible.head, history.last().map(|entry| entry.version).unwrap_or_default(), "head of {at}");
        for entry in &visible.log {
            assert_eq!(*entry, history[entry.version.sequence as usize - 1], "log of member {at}");
        }
        for (object, contents) in &first.objects {
            let other = visible.objects.get(object).unwrap_or_else(|| panic!("member {at} lacks {object}"));
            assert_eq!(contents.size, other.size, "size of {object} on member {at}");
            if object.as_str() == PG_META_OBJECT {
                assert_eq!(fences(contents), fences(other), "fences on member {at}");
                continue;
            }
            assert_eq!(contents.version, other.version, "version of {object} on member {at}");
            assert_eq!(contents.omap, other.omap, "omap of {object} on member {at}");
            assert!(same_data(contents, other), "data of {object} on member {at}");
        }
        assert_eq!(first.objects.len(), visible.objects.len(), "objects of member {at}");
    }
}

/// Of the group's own object the rest is each OSD's own.
fn fences(meta: &Object) -> BTreeMap<bytes::Bytes, bytes::Bytes> {
    let of_group = meta.omap.iter().filter(|(key, _)| key.starts_with(FENCE_KEY_PREFIX));
    of_group.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Where each request is in the history: at most once, and only if its client knows of it.
fn place_writes(world: &World, history: &[LogEntry]) -> BTreeMap<RequestId, u64> {
    let mut places = BTreeMap::new();
    for entry in history {
        let request = entry.request.unwrap();
        let before = places.insert(request, entry.version.sequence);
        assert!(before.is_none(), "{request:?} was done twice: {before:?} and {}", entry.version);
    }
    for op in &world.clients.ops {
        let place = places.get(&op.id);
        match &op.answered {
            Some((_, Answer::Written(Ok(())))) => assert!(place.is_some(), "acknowledged and lost: {:?}", op.id),
            Some((_, answer)) => assert!(place.is_none(), "{:?} was done but answered {answer:?}", op.id),
            None => panic!("never answered: {:?}", op.id),
        }
    }
    places
}

fn writes_keep_real_time_order(ops: &[Op], places: &BTreeMap<RequestId, u64>) {
    for earlier in ops {
        let (Some((answered, _)), Some(place)) = (&earlier.answered, places.get(&earlier.id)) else { continue };
        for later in ops.iter().filter(|later| later.invoked > *answered) {
            let after = places.get(&later.id);
            assert!(after.is_none_or(|after| after > place), "{:?} before {:?}", later.id, earlier.id);
        }
    }
}

/// Replays the history; every write's conditions must have held at its place.
fn replay(world: &World, history: &[LogEntry]) -> BTreeMap<ObjectName, Versions> {
    let ops: BTreeMap<RequestId, &Op> = world.clients.ops.iter().map(|op| (op.id, op)).collect();
    let mut state = State::default();
    let mut versions: BTreeMap<ObjectName, Versions> = BTreeMap::new();
    for entry in history {
        let request = entry.request.unwrap();
        let Kind::Write(write) = &ops[&request].kind else { panic!("{request:?} is no write") };
        let (object, meta) = (state.objects.get(&write.object), state.objects.get(&name(PG_META_OBJECT)));
        let failed = failed_condition(&write.conditions, object, meta);
        assert_eq!(failed, None, "{request:?} at {} was done", entry.version);
        assert_eq!(entry.touched, Touched::by(&write.mutations));
        if let Some(source) = clone_source(&write.mutations) {
            assert!(state.objects.contains_key(source), "{request:?} cloned {source}, which there was not");
        }
        let transaction = Transaction {
            pg: PG,
            object: write.object.clone(),
            mutations: write.mutations.clone(),
            payload: write.payload.clone(),
            payload_sealed: false,
            log: vec![entry.clone()],
        };
        state.apply(&transaction, 1);
        let now = state.objects.get(&write.object).cloned();
        versions.entry(write.object.clone()).or_default().insert(entry.version.sequence, now);
    }
    // The group's own object holds the promise too, which has no place in the history.
    let mut objects = world.members[world.primary()].store.visible.objects.clone();
    if let Some(meta) = objects.remove(&name(PG_META_OBJECT)) {
        let model = state.objects.remove(&name(PG_META_OBJECT)).unwrap_or_default();
        assert_eq!(fences(&meta), model.omap, "fences");
    }
    for (object, contents) in &objects {
        let model = &state.objects[object];
        assert_eq!(contents.omap, model.omap, "omap of {object}");
        assert_eq!(contents.size, model.size, "size of {object}");
        assert!(same_data(contents, model), "data of {object}");
    }
    assert_eq!(objects.len(), state.objects.len(), "objects");
    versions
}

/// Every read and every definite refusal must fit one point of the history: not before any write
/// answered or any read's point known before it began, not after a write that began later.
fn answers_fit(
    world: &World,
    places: &BTreeMap<RequestId, u64>,
    versions: &BTreeMap<ObjectName, Versions>,
    last: u64,
) {
    // Per object, the points that answered requests have shown to be reached, in order of time.
    let mut reached: BTreeMap<ObjectName, Vec<(u64, u64)>> = BTreeMap::new();
    for op in &world.clients.ops {
        if let (Kind::Write(write), Some((answered, _)), Some(place)) =
            (&op.kind, &op.answered, places.get(&op.id))
        {
            reached.entry(write.object.clone()).or_default().push((*answered, *place));
        }
    }
    // Requests are in order of invocation, so the smallest fitting point is the best choice.
    for op in &world.clients.ops {
        let Some((answered, answer)) = &op.answered else { unreachable!("checked before") };
        let object = match (&op.kind, answer) {
            (Kind::Read(object, _), _) => object.clone(),
            (_, Answer::Written(Err(Refusal::Fenced { .. }))) => name(PG_META_OBJECT),
            (Kind::Write(write), Answer::Written(Err(Refusal::Invalid { .. }))) => {
                clone_source(&write.mutations).unwrap().clone()
            }
            (Kind::Write(write), Answer::Written(Err(_))) => write.object.clone(),
            _ => continue,
        };
        let lowest = reached.entry(object.clone()).or_default().iter();
        let lowest = lowest.filter(|(time, _)| *time < op.invoked).map(|(_, place)| *place).max().unwrap_or(0);
        let later = world.clients.ops.iter().filter(|later| later.invoked > *answered);
        let highest = later
            .filter(|later| matches!(&later.kind, Kind::Write(write) if write.object == object))
            .filter_map(|later| places.get(&later.id))
            .min()
            .map_or(last, |place| place - 1);
        let none = Versions::new();
        let states = versions.get(&object).unwrap_or(&none);
        let state_at = |place: u64| states.range(..=place).next_back().and_then(|(_, state)| state.as_ref());
        let candidates = [lowest].into_iter().chain(states.range(lowest + 1..).map(|(place, _)| *place));
        let mut candidates = candidates.filter(|place| *place <= highest);
        let point = candidates.find(|place| answer_fits(&op.kind, answer, state_at(*place)));
        let Some(point) = point else {
            panic!(
                "{:?} {:?} on {object} invoked {} answered {answered} fits no point in {lowest}..={highest}: {answer:?}",
                op.id,
                what(&op.kind),
                op.invoked
            );
        };
        reached.get_mut(&object).unwrap().push((*answered, point));
    }
}

fn what(kind: &Kind) -> String {
    match kind {
        Kind::Read(_, request) => format!("{request:?}"),
        Kind::Write(write) => format!("{:?} if {:?}", write.mutations, write.conditions),
    }
}

fn answer_fits(kind: &Kind, answer: &Answer, state: Option<&Object>) -> bool {
    use atoll_base::ReadOutcome::Data;
    match (kind, answer) {
        (Kind::Read(_, request), Answer::Found(result, payload)) => {
            match (read(state, request), result) {
                // The size beside data is a hint: it may be that of a write in flight.
                (Ok((Data { .. }, expected)), Ok(Data { .. })) => is_padded(&expected, payload),
                (Ok((expected, data)), Ok(outcome)) => expected == *outcome && data == *payload,
                (Err(expected), Err(refusal)) => expected == *refusal,
                _ => false,
            }
        }
        (Kind::Write(write), Answer::Written(Err(Refusal::Invalid { .. }))) => {
            state.is_none() || clone_source(&write.mutations) == Some(&write.object)
        }
        (Kind::Write(write), Answer::Written(Err(refusal))) => {
            // A fence is looked at in the group's own object, everything else in the write's.
            let failed = match refusal {
                Refusal::Fenced { .. } => failed_condition(&write.conditions, None, state),
                _ => failed_condition(&write.conditions, state, None),
            };
            failed.as_ref() == Some(refusal)
        }
        _ => false,
    }
}

/// A repair may write zeros where there is a hole.
fn same_data(one: &Object, other: &Object) -> bool {
    one.data(0, one.size) == other.data(0, other.size)
}

fn is_padded(expected: &[u8], found: &[u8]) -> bool {
    let shared = expected.len().min(found.len());
    let rest = [&expected[shared..], &found[shared..]].concat();
    expected[..shared] == found[..shared] && rest.iter().all(|byte| *byte == 0)
}
