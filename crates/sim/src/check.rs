//! Requirements for a finished run. The members' logs give the order of all writes; replayed on the model in that
//! order, they must explain every answer. A PG that was split off has the history of the PG that it came from up
//! to the split.

use std::collections::{BTreeMap, BTreeSet};

use atoll_buffers::BLOCK_BYTES;
use atoll_types::operation::{FENCE_KEY_PREFIX, PG_META_OBJECT};
use atoll_types::{
    Condition, LogEntry, ObjectName, PgId, ReadRequest, Refusal, RequestId, Touched, Transaction, WriteRequest,
};

use atoll_ec::Code;
use atoll_pg::is_hidden;
use bytes::Bytes;

use crate::clients::{Answer, Kind, Op};
use crate::hostile::is_refused;
use crate::state::{Object, State, failed_condition, name, pg_of, read};
use crate::store::clone_source;
use crate::world::World;

/// All states of one object, by the sequence of the write that led to each.
type Versions = BTreeMap<u64, Option<Object>>;

pub fn check(world: &World) {
    for pg in world.cluster.pgs() {
        let checked = Checked { pg, world };
        let history = checked.merged_history();
        checked.replicas_are_identical(&history);
        let places = checked.requests_happen_once(&history);
        writes_keep_real_time_order(&world.clients.ops, &places);
        let versions = checked.replay(&history);
        checked.answers_fit(&places, &versions, history.len() as u64);
    }
}

/// Returns true for the entry of the split. The other one without a request is that of an operator's decision.
fn is_split(entry: &LogEntry) -> bool {
    entry.request.is_none() && entry.object.as_str() == PG_META_OBJECT
}

/// Checks before the last scrub, which would repair differences: the copies are identical, or the shards fit
/// together.
pub fn check_copies(world: &World) {
    for pg in world.cluster.pgs() {
        let checked = Checked { pg, world };
        checked.replicas_are_identical(&checked.merged_history());
        checked.objects();
    }
}

/// One PG of a finished run, to be checked.
#[derive(Clone, Copy)]
struct Checked<'a> {
    pg: PgId,
    world: &'a World,
}

impl Checked<'_> {
    fn state_at(&self, at: usize) -> &State {
        self.world.members[at].store.visible.of(self.pg)
    }

    fn primary(&self) -> usize {
        self.world.primary_of(self.pg)
    }

    /// The pool's number of PGs in the end, from this PG's view.
    fn pg_num(&self) -> u32 {
        self.world.cluster.pg_num_of(self.pg)
    }

    fn pg_num_first(&self) -> u32 {
        self.world.cluster.pg_num_first()
    }

    fn holds(&self, object: &ObjectName) -> bool {
        pg_of(object, self.pg_num()) == self.pg
    }

    /// Returns true if a request's object is in this PG.
    fn is_own(&self, op: &Op) -> bool {
        let object = op.object();
        if object.as_str() == PG_META_OBJECT { op.own_of == self.pg } else { self.holds(object) }
    }

    /// The history of the PG. Of two entries with one sequence the one of the higher epoch counts:
    /// the other one was never acknowledged.
    fn merged_history(&self) -> Vec<LogEntry> {
        let head = self.world.members[self.primary()].store.durable.of(self.pg).head;
        // Pre-images differ between members.
        let plain = |entry: &LogEntry| LogEntry { pre_image: None, ..entry.clone() };
        let mut merged: BTreeMap<u64, LogEntry> = BTreeMap::new();
        if self.pg.index >= self.pg_num_first() {
            // A member that was away at the split may be the only one that has the oldest entries.
            let parent = PgId { index: self.pg.index - self.pg_num_first(), ..self.pg };
            let before = Checked { pg: parent, ..*self }.merged_history();
            let split = before.iter().position(is_split).expect("it was split");
            merged.extend(before.into_iter().take(split + 1).map(|entry| (entry.version.sequence, entry)));
        }
        for member in &self.world.members {
            let Some(history) = member.store.history.get(&self.pg) else { continue };
            for (sequence, entry) in history.range(..=head.sequence) {
                let known = merged.entry(*sequence).or_insert_with(|| plain(entry));
                if entry.version > known.version {
                    *known = plain(entry);
                }
            }
        }
        for (index, sequence) in merged.keys().enumerate() {
            assert_eq!(*sequence, index as u64 + 1, "the history has no gaps");
        }
        merged.into_values().collect()
    }

    fn replicas_are_identical(&self, history: &[LogEntry]) {
        let first = self.state_at(self.primary());
        for member in &self.world.cluster.of(self.pg).expect("the PG exists").record.members {
            let at = member.0 as usize - 1;
            let (visible, durable) = (self.state_at(at), self.world.members[at].store.durable.of(self.pg));
            assert!(visible.objects == durable.objects, "everything is durable on member {at}");
            assert_eq!(
                visible.head,
                history.last().map(|entry| entry.version).unwrap_or_default(),
                "head of {at}"
            );
            for entry in &visible.log {
                assert_eq!(
                    entry.pre_image, None,
                    "member {at} keeps the pre-image of a write that all members have"
                );
                assert_eq!(*entry, history[entry.version.sequence as usize - 1], "log of member {at}");
            }
            assert!(visible.objects.keys().all(|object| object.as_str() == PG_META_OBJECT || !is_hidden(object)));
            for (object, contents) in &first.objects {
                let other = visible.objects.get(object).unwrap_or_else(|| panic!("member {at} lacks {object}"));
                assert_eq!(contents.size, other.size, "size of {object} on member {at}");
                if object.as_str() == PG_META_OBJECT {
                    assert_eq!(fences(contents), fences(other), "fences on member {at}");
                    continue;
                }
                assert!(self.holds(object), "{object} is not of PG {}", self.pg);
                assert_eq!(contents.version, other.version, "version of {object} on member {at}");
                assert_eq!(contents.omap, other.omap, "omap of {object} on member {at}");
                if self.world.options.shape.is_some() {
                    assert_eq!(contents.whole_size, other.whole_size, "size of the whole {object} on member {at}");
                    continue;
                }
                assert_eq!(other_blocks(contents, other), "", "data of {object} on member {at}");
                assert_eq!(sealed_units(contents), sealed_units(other), "seals of {object} on member {at}");
            }
            let names = |state: &State| state.objects.keys().map(ObjectName::to_string).collect::<Vec<_>>();
            assert_eq!(names(first), names(visible), "objects of PG {} on member {at}", self.pg);
        }
    }

    /// The objects of the PG, assembled from their shards if it is erasure-coded. All shards of an
    /// object must fit together.
    fn objects(&self) -> BTreeMap<ObjectName, Object> {
        let own = self.state_at(self.primary()).objects.clone();
        let Some(shape) = self.world.options.shape else { return own };
        let (data_count, shard_count) = (usize::from(shape.data), usize::from(shape.shards()));
        let code = Code::new(data_count, usize::from(shape.parity)).unwrap();
        let record = &self.world.cluster.of(self.pg).expect("the PG exists").record;
        assert_eq!(record.shards.iter().collect::<BTreeSet<_>>().len(), shard_count, "every shard is held");
        let holder = |shard: u8| record.members[record.shards.iter().position(|held| *held == shard).unwrap()];
        let whole = |(object, own): (ObjectName, Object)| {
            if object.as_str() == PG_META_OBJECT {
                return (object, own);
            }
            let shard = |number: u8| {
                let found = &self.state_at(holder(number).0 as usize - 1).objects[&object];
                found.data(0, found.size)
            };
            let shards: Vec<Bytes> = (0..shape.shards()).map(shard).collect();
            let there: Vec<(usize, &[u8])> = (0..data_count).map(|number| (number, &shards[number][..])).collect();
            let wanted: Vec<usize> = (data_count..shard_count).collect();
            let mut parity = vec![vec![0; own.size as usize]; wanted.len()];
            let mut slices: Vec<&mut [u8]> = parity.iter_mut().map(|bytes| &mut bytes[..]).collect();
            code.reconstruct(&there, &wanted, &mut slices).unwrap();
            for (number, parity) in wanted.iter().zip(parity) {
                assert!(parity == shards[*number], "parity shard {number} of {object} fits the data");
            }
            let size = own.whole_size.expect("a shard knows the size of its object");
            let mut plain = Object { size, version: own.version, ..Object::default() };
            let (chunk, block_bytes) = (u64::from(shape.chunk_bytes), BLOCK_BYTES as u64);
            for block in 0..size.div_ceil(block_bytes) {
                let number = block * block_bytes / chunk;
                let start = number / data_count as u64 * chunk + block * block_bytes % chunk;
                let shard = &shards[(number % data_count as u64) as usize];
                plain.blocks.insert(block as u32, shard.slice(start as usize..start as usize + BLOCK_BYTES));
            }
            (object, plain)
        };
        own.into_iter().map(whole).collect()
    }

    /// The sequence of each request in the history: at most one, and none if it was refused. If its client was
    /// told that the outcome is unknown, both are right.
    fn requests_happen_once(&self, history: &[LogEntry]) -> BTreeMap<RequestId, u64> {
        let mut places = BTreeMap::new();
        for entry in history {
            let Some(request) = entry.request else { continue };
            let before = places.insert(request, entry.version.sequence);
            assert!(before.is_none(), "{request:?} was done twice: {before:?} and {}", entry.version);
        }
        for op in &self.world.clients.ops {
            let place = places.get(&op.id);
            match &op.answered {
                Some((_, Answer::Written(Ok(())))) if self.is_own(op) => {
                    assert!(place.is_some(), "acknowledged and lost: {:?}", op.id);
                }
                Some((_, Answer::Written(Ok(())))) => {}
                Some(_) if op.has_unknown_outcome() => {}
                Some((_, answer)) => assert!(place.is_none(), "{:?} was done but answered {answer:?}", op.id),
                None => panic!("never answered: {:?}", op.id),
            }
        }
        places
    }

    /// Replays the history. The conditions of every write must have held at its sequence.
    fn replay(&self, history: &[LogEntry]) -> BTreeMap<ObjectName, Versions> {
        let ops: BTreeMap<RequestId, &Op> = self.world.clients.ops.iter().map(|op| (op.id, op)).collect();
        let mut state = State::default();
        let mut pg_num = self.pg_num_first();
        let mut versions: BTreeMap<ObjectName, Versions> = BTreeMap::new();
        for entry in history {
            let Some(request) = entry.request else {
                if !is_split(entry) {
                    assert!(entry.touched == Touched::default(), "{entry:?} begins another history");
                    continue;
                }
                assert_eq!(pg_num, self.pg_num_first(), "each PG is split once");
                pg_num *= 2;
                state.objects.retain(|object, _| object.as_str() == PG_META_OBJECT || self.holds(object));
                continue;
            };
            let Kind::Write(write) = &ops[&request].kind else { panic!("{request:?} is no write") };
            let (object, meta) = (state.objects.get(&write.object), state.objects.get(&name(PG_META_OBJECT)));
            let exists = |other: &ObjectName| state.objects.contains_key(other);
            let failed = failed_condition(&write.conditions, object, meta, exists, pg_num);
            assert_eq!(failed, None, "{request:?} at {} was done", entry.version);
            assert_eq!(entry.touched, Touched::by(&write.mutations).for_log());
            if let Some(source) = clone_source(&write.mutations) {
                assert!(state.objects.contains_key(source), "{request:?} cloned {source}, which did not exist");
            }
            let transaction = Transaction {
                pg: self.pg,
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
        assert_eq!(pg_num, self.pg_num(), "the split is in the history");
        // The PG's own object holds the promise, too, which is not in the history.
        let mut objects = self.objects();
        if let Some(meta) = objects.remove(&name(PG_META_OBJECT)) {
            let model = state.objects.remove(&name(PG_META_OBJECT)).unwrap_or_default();
            assert_eq!(fences(&meta), model.omap, "fences");
        }
        for (object, contents) in &objects {
            let model = &state.objects[object];
            assert_eq!(contents.omap, model.omap, "omap of {object}");
            assert_eq!(contents.size, model.size, "size of {object}");
            assert_eq!(other_blocks(contents, model), "", "data of {object}");
        }
        assert_eq!(objects.len(), state.objects.len(), "objects");
        versions
    }

    /// Every read and every definite refusal must fit one point of the history: not before a write
    /// that was answered, or a point that a read showed, before it began; not after a write that
    /// began later.
    fn answers_fit(
        &self,
        places: &BTreeMap<RequestId, u64>,
        versions: &BTreeMap<ObjectName, Versions>,
        last: u64,
    ) {
        let ops = &self.world.clients.ops;
        // Per object, the points that answers show to be reached, in order of time.
        let mut reached: BTreeMap<ObjectName, Vec<(u64, u64)>> = BTreeMap::new();
        for op in ops.iter().filter(|op| !op.has_unknown_outcome()) {
            if let (Kind::Write(write), Some((answered, _)), Some(place)) =
                (&op.kind, &op.answered, places.get(&op.id))
            {
                reached.entry(write.object.clone()).or_default().push((*answered, *place));
            }
        }
        // Requests are in order of invocation, so the smallest fitting point is the best choice.
        for op in ops.iter().filter(|op| self.is_own(op)) {
            let Some((answered, answer)) = &op.answered else { unreachable!("checked before") };
            if op.breaks_rules {
                every_broken_rule_is_refused(op, answer, places);
                continue;
            }
            if self.is_refused_for_the_split(op, answer) || is_list(&op.kind) || op.has_unknown_outcome() {
                continue;
            }
            if is_of_a_store(answer) {
                assert!(!places.contains_key(&op.id), "{:?} was refused by a store, and was done", op.id);
                continue;
            }
            let object = match (&op.kind, answer) {
                (Kind::Read(object, _), _) => object.clone(),
                (_, Answer::Written(Err(Refusal::Fenced { .. }))) => name(PG_META_OBJECT),
                (Kind::Write(write), Answer::Written(Err(Refusal::Invalid { .. }))) => {
                    clone_source(&write.mutations).unwrap().clone()
                }
                (Kind::Write(write), Answer::Written(Err(refusal))) => {
                    missing_other(write, refusal).unwrap_or(&write.object).clone()
                }
                _ => continue,
            };
            let lowest = reached.entry(object.clone()).or_default().iter();
            let lowest = lowest.filter(|(time, _)| *time < op.invoked).map(|(_, place)| *place).max().unwrap_or(0);
            let later = ops.iter().filter(|later| later.invoked > *answered);
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

    /// Returns true if a write was refused because of the split: its condition names another number of PGs, or it
    /// looks at an object of the other PG.
    fn is_refused_for_the_split(&self, op: &Op, answer: &Answer) -> bool {
        let (Kind::Write(write), Answer::Written(Err(refusal))) = (&op.kind, answer) else { return false };
        match refusal {
            Refusal::ConditionFailed { index } => match &write.conditions[usize::from(*index)] {
                Condition::PgNum { pg_num } => {
                    assert_ne!(*pg_num, self.pg_num(), "{:?} was refused: {answer:?}", op.id);
                    true
                }
                _ => false,
            },
            Refusal::Invalid { .. } => write.other_objects().any(|other| !self.holds(other)),
            _ => false,
        }
    }
}

/// The fences in the PG's own object. The rest belongs to each OSD.
fn fences(meta: &Object) -> BTreeMap<bytes::Bytes, bytes::Bytes> {
    let of_pg = meta.omap.iter().filter(|(key, _)| key.starts_with(FENCE_KEY_PREFIX));
    of_pg.map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn sealed_units(object: &Object) -> Vec<(&u32, &Bytes)> {
    object.seals.iter().filter(|(_, seal)| seal.iter().any(|byte| *byte != 0)).collect()
}

/// A list may lack objects that are made while it is read: its caller names those that it must have.
fn is_list(kind: &Kind) -> bool {
    matches!(kind, Kind::Read(_, ReadRequest::ObjectList { .. }))
}

/// Requests that clients may not send change nothing.
fn every_broken_rule_is_refused(op: &Op, answer: &Answer, places: &BTreeMap<RequestId, u64>) {
    let is_done = places.contains_key(&op.id);
    let is_refused = is_refused(answer) || op.has_unknown_outcome();
    assert!(is_refused && !is_done, "every_broken_rule_is_refused: {:?}: {answer:?}", op.id);
}

/// Returns true if a write was refused because a store lacks space for it, or does not take it for another reason.
fn is_of_a_store(answer: &Answer) -> bool {
    match answer {
        Answer::Written(Err(Refusal::NoSpace { .. })) => true,
        Answer::Written(Err(Refusal::Invalid { detail })) => detail.starts_with("the store of"),
        _ => false,
    }
}

fn writes_keep_real_time_order(ops: &[Op], places: &BTreeMap<RequestId, u64>) {
    // A late copy of one whose outcome is not known may still be done.
    for earlier in ops.iter().filter(|op| !op.has_unknown_outcome()) {
        let (Some((answered, _)), Some(place)) = (&earlier.answered, places.get(&earlier.id)) else { continue };
        for later in ops.iter().filter(|later| later.invoked > *answered) {
            let after = places.get(&later.id);
            assert!(after.is_none_or(|after| after > place), "{:?} before {:?}", later.id, earlier.id);
        }
    }
}

fn what(kind: &Kind) -> String {
    match kind {
        Kind::Read(_, request) => format!("{request:?}"),
        Kind::Write(write) => format!("{:?} if {:?}", write.mutations, write.conditions),
    }
}

/// The other object that a write was refused for, because it did not exist.
fn missing_other<'a>(write: &'a WriteRequest, refusal: &Refusal) -> Option<&'a ObjectName> {
    match refusal {
        Refusal::ConditionFailed { index } => write.conditions[usize::from(*index)].other_object(),
        _ => None,
    }
}

fn answer_fits(kind: &Kind, answer: &Answer, state: Option<&Object>) -> bool {
    use atoll_types::ReadOutcome::{Data, Extents};
    match (kind, answer) {
        (Kind::Read(_, request), Answer::Found(result, payload)) => {
            match (read(state, request), result) {
                // The size beside data is a hint: it may include a write in flight.
                (Ok((Data { .. }, expected)), Ok(Data { .. })) => is_padded(&expected, payload),
                // A repair may write zeros into a hole, so that a block of zeros may hold data.
                (Ok((Extents { blocks: expected, .. }, _)), Ok(Extents { blocks, .. })) => {
                    let is_told =
                        |(index, byte): (usize, &u8)| byte & !blocks.get(index).copied().unwrap_or(0) == 0;
                    expected.iter().enumerate().all(is_told)
                }
                (Ok((expected, data)), Ok(outcome)) => expected == *outcome && data == *payload,
                (Err(expected), Err(refusal)) => expected == *refusal,
                _ => false,
            }
        }
        (Kind::Write(write), Answer::Written(Err(Refusal::Invalid { .. }))) => {
            state.is_none() || clone_source(&write.mutations) == Some(&write.object)
        }
        (Kind::Write(write), Answer::Written(Err(refusal))) if missing_other(write, refusal).is_some() => {
            state.is_none()
        }
        (Kind::Write(write), Answer::Written(Err(refusal))) => {
            // A fence is in the PG's own object, everything else in the write's.
            let failed = match refusal {
                Refusal::Fenced { .. } => failed_condition(&write.conditions, None, state, |_| true, 0),
                _ => failed_condition(&write.conditions, state, None, |_| true, 0),
            };
            failed.as_ref() == Some(refusal)
        }
        _ => false,
    }
}

/// In words, which blocks are not the same in both. A repair may write zeros into a hole.
fn other_blocks(one: &Object, other: &Object) -> String {
    let size = one.size.max(other.size);
    let block = |object: &Object, index: usize| object.data((index * BLOCK_BYTES) as u64, BLOCK_BYTES as u64);
    let others =
        (0..size.div_ceil(BLOCK_BYTES as u64) as usize).filter(|index| block(one, *index) != block(other, *index));
    others
        .map(|index| format!("block {index}: {}, not {}\n", tag(&block(one, index)), tag(&block(other, index))))
        .collect()
}

/// The first bytes of a block, which name the value that was written.
fn tag(block: &[u8]) -> String {
    block.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn is_padded(expected: &[u8], found: &[u8]) -> bool {
    let shared = expected.len().min(found.len());
    let rest = [&expected[shared..], &found[shared..]].concat();
    expected[..shared] == found[..shared] && rest.iter().all(|byte| *byte == 0)
}
