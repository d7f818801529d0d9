//! A member's stand-in store. Submissions show at once and become durable later, in order; a crash
//! loses those that are not durable. Blocks may go bad. Only loaded objects may be looked at.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use atoll_buffers::BLOCK_BYTES;
use atoll_pg::{Lookup, ObjectParts, ReadFailure, Token, is_hidden};
use atoll_store::validate_shapes;
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{
    Condition, Epoch, ListedObject, LogEntry, Mutation, ObjectName, PgId, ReadOutcome, ReadRequest, RequestId,
    Touched, Transaction, Version,
};
use bytes::{Bytes, BytesMut};

use crate::device::{Device, difference};
use crate::forgetting::Past;
use crate::random::Random;
use crate::state::{Object, Pgs, name, read};

/// Blocks in one part of an object for a learner.
pub const BLOCKS_PER_PART: usize = 2;
/// Objects in one page of a client's list.
const OBJECTS_PER_PAGE: usize = 3;

#[derive(Default)]
pub struct Store {
    pub visible: Pgs,
    pub durable: Pgs,
    pub pending: VecDeque<(Token, Transaction)>,
    /// Submissions that wait for room.
    pub backlog: VecDeque<(Token, Transaction)>,
    pub out_of_room: bool,
    /// Names whose object, or the lack of one, is in memory.
    pub loaded: BTreeSet<(PgId, ObjectName)>,
    /// PGs whose list of objects is in memory: it is in other pages than the metadata of one object.
    pub lists_loaded: BTreeSet<PgId>,
    /// Damaged blocks.
    pub bad: BTreeSet<(ObjectName, u32)>,
    pub ring_entries: usize,
    /// The last entry ever applied of each sequence, even if it was cut off again. The PG does not
    /// see it.
    pub history: BTreeMap<PgId, BTreeMap<u64, LogEntry>>,
    /// Requests that were durable here at some time.
    pub requests: BTreeSet<RequestId>,
    /// The highest epoch of each PG whose promise was durable here at some time.
    pub promised: BTreeMap<PgId, Epoch>,
    /// The real store; this one is then its model.
    pub device: Option<Box<Device>>,
    /// Earlier states, if the latest may be lost.
    pub past: Option<Past>,
}

impl Store {
    /// Returns the store of an OSD of a pool that begins with `pgs` PGs.
    pub fn new(ring_entries: usize, pgs: u32, device: Option<Device>) -> Self {
        let (visible, durable) = (Pgs::new(pgs), Pgs::new(pgs));
        Store { ring_entries, visible, durable, device: device.map(Box::new), ..Store::default() }
    }

    /// The real store, if there is one.
    pub fn real(&self) -> Option<&atoll_store::Store> {
        self.device.as_ref().map(|device| device.storage.store())
    }

    /// Returns true if the store takes the ranges, sizes and seals of a write.
    pub fn is_valid(&self, pg: PgId, object: &ObjectName, mutations: &[Mutation], payload_bytes: usize) -> bool {
        self.visible.of(pg).holds(pg, object) && self.has_valid_shapes(pg, object, mutations, payload_bytes)
    }

    fn has_valid_shapes(
        &self,
        pg: PgId,
        object: &ObjectName,
        mutations: &[Mutation],
        payload_bytes: usize,
    ) -> bool {
        let found = self.visible.of(pg).objects.get(object);
        let (size_bytes, seal_shape) = found.map_or((0, None), |found| (found.size, found.seal_shape));
        validate_shapes(mutations, payload_bytes, size_bytes, seal_shape).is_ok()
    }

    /// Returns true if the store takes a transaction now.
    pub fn takes(&self, transaction: &Transaction) -> bool {
        let head = transaction.reset_head().unwrap_or_else(|| self.visible.of(transaction.pg).head);
        let follows = match &transaction.log[..] {
            [entry] if entry.object == transaction.object => entry.version.sequence == head.sequence + 1,
            _ => true,
        };
        let is_there = |source: &ObjectName| self.visible.of(transaction.pg).objects.contains_key(source);
        let mut sources = transaction.mutations.iter().filter_map(Mutation::clone_source);
        let has_sources = sources.all(|source| *source != transaction.object && is_there(source));
        let Transaction { pg, object, mutations, payload, .. } = transaction;
        // A PG removes nothing of what a split has given to another, and changes none of it.
        let removes = |mutation: &Mutation| {
            matches!(mutation, Mutation::Remove | Mutation::RemoveOther { .. } | Mutation::ResetLog { .. })
        };
        let is_own = |object: &ObjectName| self.visible.of(*pg).holds(*pg, object);
        let is_removal = !mutations.is_empty() && mutations.iter().all(removes);
        let mut copies = mutations.iter().filter_map(|mutation| match mutation {
            Mutation::ClonePreImage { copy } => Some(copy),
            _ => None,
        });
        let splits_again = mutations.iter().any(|mutation| match mutation {
            Mutation::Split { pg_num_before, is_whole: true, .. } => {
                self.visible.of(pg.split_off(*pg_num_before)).head != Version::default()
            }
            _ => false,
        });
        let follows_splits = (is_own(object) || is_removal) && copies.all(is_own) && !splits_again;
        follows && has_sources && follows_splits && self.has_valid_shapes(*pg, object, mutations, payload.len())
    }

    pub fn submit(&mut self, token: Token, transaction: Transaction) {
        assert!(!self.out_of_room);
        for mutation in &transaction.mutations {
            if let Mutation::RemoveOther { object: other } | Mutation::ClonePreImage { copy: other } = mutation {
                self.bad.retain(|(object, _)| object != other);
            }
            if let Mutation::ClonePreImage { copy } = mutation {
                let of_this = self.bad.iter().filter(|(object, _)| *object == transaction.object);
                let shared: Vec<_> = of_this.map(|(_, block)| (copy.clone(), *block)).collect();
                self.bad.extend(shared);
            }
            if matches!(mutation, Mutation::Remove | Mutation::CloneFrom { .. }) {
                self.bad.retain(|(object, _)| *object != transaction.object);
            }
            if let Mutation::CloneFrom { source } = mutation {
                // The clone shares the source's blocks.
                let of_source = self.bad.iter().filter(|(object, _)| object == source);
                let shared: Vec<_> = of_source.map(|(_, block)| (transaction.object.clone(), *block)).collect();
                self.bad.extend(shared);
            }
        }
        for (first, count) in Touched::by(&transaction.mutations).block_ranges {
            for block in first..first + count {
                self.bad.remove(&(transaction.object.clone(), block));
            }
        }
        if let (Some(first), None) = (transaction.log.first(), transaction.reset_head()) {
            let head = self.visible.of(transaction.pg).head;
            assert_eq!(first.version.sequence, head.sequence + 1, "entry {} after {head}", first.version);
        }
        self.visible.apply(&transaction, self.ring_entries);
        self.pending.push_back((token, transaction));
    }

    /// The oldest submission is durable.
    pub fn commit(&mut self) -> (PgId, Token) {
        let (token, transaction) = self.pending.pop_front().unwrap();
        (self.make_durable(transaction), token)
    }

    /// The oldest submission of a PG is durable in the real store. Panics if that is another one.
    pub fn commit_of(&mut self, pg: PgId, token: Token) {
        let place = self.pending.iter().position(|(_, transaction)| transaction.pg == pg);
        let place = place.unwrap_or_else(|| panic!("the store has accepted {token:?}, its model has not"));
        let (oldest, transaction) = self.pending.remove(place).expect("it was found");
        assert_eq!(oldest, token, "submissions of pg {pg} become durable in their order");
        self.make_durable(transaction);
    }

    fn make_durable(&mut self, transaction: Transaction) -> PgId {
        let split_off = self.durable.apply(&transaction, self.ring_entries);
        if let Some(past) = &mut self.past {
            past.add(&transaction, self.ring_entries);
        }
        let pg = transaction.pg;
        self.requests.extend(transaction.log.iter().filter_map(|entry| entry.request));
        for entry in transaction.log {
            self.history.entry(pg).or_default().insert(entry.version.sequence, entry);
        }
        if let Some(new) = split_off {
            self.history.insert(new, self.history[&pg].clone());
        }
        for pg in self.durable.ids() {
            let before = self.promised.entry(pg).or_default();
            *before = self.durable.of(pg).promised().max(*before);
        }
        pg
    }

    /// Returns true if these PGs have forgotten all pre-images.
    pub fn has_forgotten_pre_images<'a>(&self, mut pgs: impl Iterator<Item = &'a PgId>) -> bool {
        pgs.all(|pg| {
            let state = self.visible.of(*pg);
            state.log.iter().all(|entry| entry.pre_image.is_none())
                && state.objects.keys().all(|object| object.as_str() == PG_META_OBJECT || !is_hidden(object))
        })
    }

    /// Returns true if the copy of a PG has been noted to be incomplete.
    pub fn is_incomplete(&self, pg: PgId) -> bool {
        self.visible.of(pg).is_incomplete()
    }

    pub fn crash(&mut self, random: &mut Random) {
        let pending = std::mem::take(&mut self.pending);
        if let Some(device) = &mut self.device {
            let found = device.crash(random);
            self.recover(&found, pending);
        }
        self.visible = self.durable.clone();
        self.backlog.clear();
        self.out_of_room = false;
        self.loaded.clear();
        self.lists_loaded.clear();
    }

    /// After a crash the real store holds all durable transactions, and some of the oldest of the others.
    fn recover(&mut self, found: &Pgs, pending: VecDeque<(Token, Transaction)>) {
        let mut state = self.durable.clone();
        let first = difference(&state, found);
        let mut kept = first.is_none().then_some(0);
        for (index, (_, transaction)) in pending.iter().enumerate() {
            state.apply(transaction, self.ring_entries);
            if difference(&state, found).is_none() {
                kept = Some(index + 1);
            }
        }
        let count = pending.len();
        let Some(kept) = kept else {
            panic!(
                "with none to {count} of the submissions that were not durable, the store has {}",
                first.unwrap()
            )
        };
        for (_, transaction) in pending.into_iter().take(kept) {
            self.make_durable(transaction);
        }
        self.durable.take_logs(found);
    }

    pub fn load(&mut self, pg: PgId, lookup: &Lookup) {
        match lookup {
            Lookup::Read { request: ReadRequest::ObjectList { .. }, .. } => drop(self.lists_loaded.insert(pg)),
            Lookup::Read { object, .. } => drop(self.loaded.insert((pg, object.clone()))),
            Lookup::Write { object, conditions, mutations } => {
                self.loaded.extend(looked_at(object, conditions, mutations).map(|object| (pg, object)));
            }
        }
    }

    pub fn has_room(&self, pg: PgId) -> bool {
        let device = self.device.as_ref();
        device.is_none_or(|device| device.storage.has_room_for(pg)) && !self.out_of_room && self.backlog.is_empty()
    }

    /// Notes the possible results of the pending reads now.
    pub fn note_right_answers(&mut self) {
        let mut reads = std::mem::take(&mut self.device.as_mut().expect("it has the real store").reads);
        for under_way in &mut reads {
            let object = self.visible.of(under_way.pg).objects.get(&under_way.object);
            if matches!(under_way.request, ReadRequest::ObjectList { .. }) {
                continue;
            }
            let answer = read(object, &under_way.request).map_err(ReadFailure::Refused);
            if under_way.right.last() != Some(&answer) {
                under_way.right.push(answer);
            }
        }
        self.device.as_mut().expect("it has the real store").reads = reads;
    }

    /// Damaged blocks among those touched of an object.
    pub fn damaged_of(&self, pg: PgId, object: &ObjectName, touched: &Touched) -> Vec<u32> {
        let is_touched = |block: &u32| {
            let is_in = |(first, count): &(u32, u32)| (*first..first + count).contains(block);
            touched.whole || touched.block_ranges.iter().any(is_in)
        };
        let damaged = self.bad.iter().filter(|(of, block)| of == object && self.is_bad(pg, object, *block));
        damaged.map(|(_, block)| *block).filter(is_touched).collect()
    }

    /// Returns true if all metadata of a read is in memory.
    pub fn is_read_loaded(&self, pg: PgId, object: &ObjectName, request: &ReadRequest) -> bool {
        match request {
            ReadRequest::ObjectList { .. } => self.lists_loaded.contains(&pg),
            _ => self.loaded.contains(&(pg, object.clone())),
        }
    }

    pub fn assert_loaded(&self, pg: PgId, object: &ObjectName) {
        // The real store knows by itself what is loaded.
        assert!(self.device.is_some() || self.loaded.contains(&(pg, object.clone())), "{object} is not loaded");
    }

    pub fn read(
        &self,
        pg: PgId,
        object: &ObjectName,
        request: &ReadRequest,
    ) -> Result<(ReadOutcome, Bytes), ReadFailure> {
        assert!(self.is_read_loaded(pg, object, request), "{request:?} of {object} is not loaded");
        if let ReadRequest::ObjectList { prefix, after, .. } = request {
            return Ok((self.page(pg, prefix, after.as_ref()), Bytes::new()));
        }
        if let ReadRequest::Data { offset, length, .. } = request {
            let first = (offset / BLOCK_BYTES as u64) as u32;
            let end = first + (u64::from(*length) / BLOCK_BYTES as u64) as u32;
            let blocks: Vec<u32> = (first..end).filter(|block| self.is_bad(pg, object, *block)).collect();
            if !blocks.is_empty() {
                return Err(ReadFailure::Corrupt { blocks });
            }
        }
        read(self.visible.of(pg).objects.get(object), request).map_err(ReadFailure::Refused)
    }

    /// The objects whose names begin so.
    fn page(&self, pg: PgId, prefix: &[u8], after: Option<&ObjectName>) -> ReadOutcome {
        let all = self.visible.of(pg).objects.iter();
        let wanted = all.filter(|(name, _)| {
            !is_hidden(name)
                && name.as_str().as_bytes().starts_with(prefix)
                && after.is_none_or(|after| *name > after)
        });
        let listed = |(name, object): (&ObjectName, &Object)| ListedObject {
            name: name.clone(),
            object_bytes: object.whole_size.unwrap_or(object.size),
            version: object.version,
            block_count: object.blocks.len() as u32,
            shared_block_count: 0,
        };
        let objects: Vec<_> = wanted.take(OBJECTS_PER_PAGE).map(listed).collect();
        let next = objects.get(OBJECTS_PER_PAGE - 1).map(|last| last.name.clone());
        ReadOutcome::ObjectPage { objects, next }
    }

    /// Objects after `after`, except hidden ones, and whether there are more.
    pub fn objects(
        &self,
        pg: PgId,
        after: Option<&ObjectName>,
        limit: usize,
    ) -> (Vec<(ObjectName, Version)>, bool) {
        let wanted = self
            .visible
            .of(pg)
            .objects
            .iter()
            .filter(|(name, _)| !is_hidden(name) && after.is_none_or(|after| *name > after));
        let mut listed: Vec<_> = wanted.map(|(name, object)| (name.clone(), object.version)).collect();
        let more = listed.len() > limit;
        listed.truncate(limit);
        (listed, more)
    }

    pub fn is_bad(&self, pg: PgId, object: &ObjectName, block: u32) -> bool {
        let holds =
            self.visible.of(pg).objects.get(object).is_some_and(|object| object.blocks.contains_key(&block));
        holds && self.bad.contains(&(object.clone(), block))
    }

    /// Returns the parts of an object that a learner lacks, or some of them; `Err` names a damaged block. If
    /// `is_small`, everything is in one transaction.
    pub fn read_for_backfill(
        &self,
        pg: PgId,
        object: &ObjectName,
        touched: &Touched,
        from: Option<u64>,
        is_small: bool,
    ) -> Result<ObjectParts, u32> {
        let part = |mutations, payload: Bytes| Transaction {
            pg,
            object: object.clone(),
            mutations,
            payload,
            payload_sealed: false,
            log: Vec::new(),
        };
        let Some(found) = self.visible.of(pg).objects.get(object) else {
            let transactions = vec![part(vec![Mutation::Remove], Bytes::new())];
            return Ok(ObjectParts { transactions, next: None });
        };
        let is_first = from.unwrap_or(0) == 0;
        let mut mutations = if touched.whole && is_first { vec![Mutation::Remove] } else { Vec::new() };
        mutations.push(Mutation::Create);
        let (blocks, next) = blocks_of_part(found, touched, from);
        let mut payload = BytesMut::new();
        for block in blocks {
            if self.is_bad(pg, object, block) {
                return Err(block);
            }
            let offset = u64::from(block) * BLOCK_BYTES as u64;
            match found.blocks.get(&block) {
                Some(data) => {
                    payload.extend_from_slice(data);
                    let seals = found.seals(offset, BLOCK_BYTES as u64);
                    mutations.push(Mutation::Write { offset, length: BLOCK_BYTES as u32, seals });
                }
                None => mutations.push(Mutation::Zero { offset, length: BLOCK_BYTES as u64 }),
            }
        }
        if let Some(next) = next {
            let transactions = vec![part(mutations, payload.freeze())];
            return Ok(ObjectParts { transactions, next: Some(u64::from(next) * BLOCK_BYTES as u64) });
        }
        if found.size > 0 && (touched.whole || !touched.block_ranges.is_empty()) {
            let last = (found.size / BLOCK_BYTES as u64) as u32 - 1;
            if self.is_bad(pg, object, last) {
                return Err(last);
            }
            set_size(found, last, &mut mutations, &mut payload);
        }
        let omap = omap_and_version(found, touched);
        let transactions = if is_small {
            vec![part(mutations.into_iter().chain(omap).collect(), payload.freeze())]
        } else {
            vec![part(mutations, payload.freeze()), part(omap.collect(), Bytes::new())]
        };
        Ok(ObjectParts { transactions, next: None })
    }
}

/// The blocks of a part of an object for a learner, and the block with which the next part begins.
fn blocks_of_part(found: &Object, touched: &Touched, from: Option<u64>) -> (BTreeSet<u32>, Option<u32>) {
    let all_blocks = (found.size / BLOCK_BYTES as u64) as u32;
    let ranges = if touched.whole { vec![(0, all_blocks)] } else { touched.block_ranges.clone() };
    let mut blocks: BTreeSet<u32> = ranges.iter().flat_map(|&(first, count)| first..first + count).collect();
    blocks.retain(|block| *block < all_blocks);
    let mut next = None;
    if let Some(from) = from {
        blocks = blocks.split_off(&((from / BLOCK_BYTES as u64) as u32));
        next = blocks.iter().nth(BLOCKS_PER_PART).copied();
        next.inspect(|next| drop(blocks.split_off(next)));
    }
    (blocks, next)
}

/// Writes the last block, and with it the size: the object may end in a hole.
fn set_size(found: &Object, last: u32, mutations: &mut Vec<Mutation>, payload: &mut BytesMut) {
    let offset = u64::from(last) * BLOCK_BYTES as u64;
    let seals = found.seals(offset, BLOCK_BYTES as u64);
    mutations.push(Mutation::Write { offset, length: BLOCK_BYTES as u32, seals });
    payload.extend_from_slice(&found.data(offset, BLOCK_BYTES as u64));
    if !found.blocks.contains_key(&last) {
        mutations.push(Mutation::Zero { offset, length: BLOCK_BYTES as u64 });
    }
}

/// Returns the mutations that set the touched omap entries, and the version.
fn omap_and_version(found: &Object, touched: &Touched) -> impl Iterator<Item = Mutation> {
    let keys = if touched.whole { found.omap.keys().cloned().collect() } else { touched.omap_keys.clone() };
    let version = Mutation::SetVersion { version: found.version };
    let omap = keys.into_iter().map(move |key| match found.omap.get(&key) {
        Some(value) => Mutation::OmapSet { key, value: value.clone() },
        None => Mutation::OmapRemove { key },
    });
    omap.chain([version])
}

/// The objects that a write looks at.
pub fn looked_at(
    object: &ObjectName,
    conditions: &[Condition],
    mutations: &[Mutation],
) -> impl Iterator<Item = ObjectName> {
    let is_fenced = conditions.iter().any(|condition| matches!(condition, Condition::NotFenced { .. }));
    let meta = is_fenced.then(|| name(PG_META_OBJECT));
    let others = conditions.iter().filter_map(Condition::other_object).chain(clone_source(mutations));
    let others: Vec<ObjectName> = others.cloned().collect();
    [object.clone()].into_iter().chain(meta).chain(others)
}

/// The object that a write clones.
pub fn clone_source(mutations: &[Mutation]) -> Option<&ObjectName> {
    mutations.iter().find_map(Mutation::clone_source)
}
