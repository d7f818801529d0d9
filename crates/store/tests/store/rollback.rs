//! A member of an erasure-coded PG: it writes with pre-images, rolls writes back, forgets the pre-images of writes
//! that will not be rolled back, and loses power. A roll back must restore the previous state.

use std::collections::BTreeMap;

use atoll_buffers::BLOCK_BYTES;
use atoll_store::{
    CheckOptions, DEVICE_BYTES_MIN, Disk, DiskOperation, DiskRequest, FormatOptions, ObjectKey, Store, StoreEvent,
    check,
};
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{Epoch, LogEntry, Mutation, ObjectName, PreImage, Seals, Touched, Transaction, Version};
use bytes::Bytes;

use crate::model::pg_id;
use crate::random::{Random, on_all_cores, setting};
use crate::verify::{look, look_and_submit};
use atoll_store::simulated_disk::SimulatedDisk;

const BLOCK: u64 = BLOCK_BYTES as u64;
const SEAL_BYTES: u16 = 4;
/// A larger pre-image is a clone.
const PRE_IMAGE_BYTES_MAX: u64 = 64 << 10;

/// An object as one can see it.
#[derive(Clone, Debug, PartialEq)]
struct Content {
    size_bytes: u64,
    whole_bytes: Option<u64>,
    version: Version,
    seals: Option<Seals>,
    data: Bytes,
}

/// A PG as one can see it, without its own object.
#[derive(Clone)]
struct Found {
    head: Version,
    log: Vec<LogEntry>,
    objects: BTreeMap<ObjectName, Content>,
}

impl Found {
    /// Returns true if storage may show this when `expected` was submitted: forgotten pre-images may be back.
    fn may_be(&self, expected: &Found, forgotten: Version) -> bool {
        let is_same = |found: &LogEntry, entry: &LogEntry| {
            let is_forgotten = entry.version <= forgotten && entry.pre_image.is_none();
            *found == *entry
                || is_forgotten && LogEntry { committed_sequence: 0, pre_image: None, ..found.clone() } == *entry
        };
        let (log, objects) = (&expected.log, &expected.objects);
        (self.head, &self.objects, self.log.len()) == (expected.head, objects, log.len())
            && self.log.iter().zip(log).all(|(found, entry)| is_same(found, entry))
    }
}

struct Member {
    random: Random,
    disk: SimulatedDisk,
    store: Store,
    incarnation: u64,
    epoch: Epoch,
    pending: Vec<DiskRequest>,
    /// State after each transaction.
    history: Vec<Found>,
    committed: usize,
    /// State at each head that the PG ever had.
    heads: BTreeMap<Version, BTreeMap<ObjectName, Content>>,
    forgotten: Version,
}

impl Member {
    fn new(seed: u64) -> Self {
        let mut disk = SimulatedDisk::new(DEVICE_BYTES_MIN, None);
        Store::format(&mut disk, FormatOptions { store_id: [1; 16], wal_bytes: 0, wal_is_apart: false }).unwrap();
        let store = Store::open(&mut disk, 1).unwrap();
        let nothing = Found { head: Version::default(), log: Vec::new(), objects: BTreeMap::new() };
        Member {
            random: Random::new(seed),
            disk,
            store,
            incarnation: 1,
            epoch: Epoch(1),
            pending: Vec::new(),
            heads: BTreeMap::from([(nothing.head, BTreeMap::new())]),
            history: vec![nothing],
            committed: 0,
            forgotten: Version::default(),
        }
    }

    fn newest(&self) -> &Found {
        self.history.last().unwrap()
    }

    fn take_requests(&mut self) {
        self.pending.extend(std::iter::from_fn(|| self.store.next_request()));
    }

    /// Completes all reads: the next look may wait for pages that are being read.
    fn finish_reads(&mut self) {
        loop {
            self.take_requests();
            let is_read = |request: &DiskRequest| matches!(request.operation, DiskOperation::Read { .. });
            let Some(index) = self.pending.iter().position(is_read) else { break };
            let request = self.pending.swap_remove(index);
            let result = self.disk.execute(request.device, request.operation);
            self.store.complete(request.id, result);
        }
        self.take_events();
    }

    fn take_events(&mut self) {
        while let Some(event) = self.store.next_event() {
            match event {
                StoreEvent::Committed(_) => self.committed += 1,
                StoreEvent::Loaded(_) => {}
                event => panic!("{event:?}"),
            }
        }
    }

    /// Lets the disk carry out some requests, in any order.
    fn steps(&mut self, count_max: usize) {
        for _ in 0..count_max {
            self.store.flush();
            self.take_requests();
            if self.pending.is_empty() {
                return;
            }
            let index = self.random.below(self.pending.len() as u64) as usize;
            let request = self.pending.swap_remove(index);
            let result = self.disk.execute(request.device, request.operation);
            self.store.complete(request.id, result);
            self.take_events();
        }
    }

    fn read(&mut self, key: &ObjectKey) -> Bytes {
        self.take_requests();
        let id = self.store.read(key.clone(), 0, 4 << 20);
        loop {
            while let Some(event) = self.store.next_event() {
                match event {
                    StoreEvent::Read { id: read, result } if read == id => return result.unwrap().data,
                    StoreEvent::Committed(_) => self.committed += 1,
                    StoreEvent::Loaded(_) => {}
                    event => panic!("{event:?}"),
                }
            }
            // Nothing but the read goes on.
            self.take_requests();
            let is_read = |request: &DiskRequest| matches!(request.operation, DiskOperation::Read { .. });
            let index = self.pending.iter().position(is_read).expect("the read waits for the disk");
            let request = self.pending.swap_remove(index);
            let result = self.disk.execute(request.device, request.operation);
            self.store.complete(request.id, result);
        }
    }

    fn look_at(&mut self, name: &ObjectName) -> Option<Content> {
        let key = ObjectKey { pg: pg_id(0), name: name.clone() };
        self.finish_reads();
        let info = look(&mut self.store, &mut self.disk, |store| store.object(&key)).unwrap()?;
        self.finish_reads();
        let (size_bytes, whole_bytes, version) = (info.size_bytes, info.whole_bytes, info.version);
        let seals = look(&mut self.store, &mut self.disk, |store| store.seals(&key, 0, size_bytes)).unwrap();
        let data = self.read(&key);
        Some(Content { size_bytes, whole_bytes, version, seals, data })
    }

    fn found(&mut self) -> Found {
        self.finish_reads();
        let names =
            look(&mut self.store, &mut self.disk, |store| store.names_after(pg_id(0), None, 1_000)).unwrap();
        let names: Vec<_> = names.into_iter().filter(|name| name.as_str() != PG_META_OBJECT).collect();
        let objects = names.into_iter().map(|name| (name.clone(), self.look_at(&name).unwrap())).collect();
        let log = self.store.log(pg_id(0)).cloned().collect();
        Found { head: self.store.head(pg_id(0)), log, objects }
    }

    fn submit(&mut self, object: &ObjectName, mutations: Vec<Mutation>, payload: Bytes, log: Vec<LogEntry>) {
        self.finish_reads();
        if !self.store.has_log_room() {
            self.steps(usize::MAX);
        }
        let object = object.clone();
        let transaction = Transaction { pg: pg_id(0), object, mutations, payload, payload_sealed: true, log };
        look_and_submit(&mut self.store, &mut self.disk, &transaction);
        let mut found = self.newest().clone();
        // What the transaction is about; everything else must be found as it was.
        let others = transaction.mutations.iter().filter_map(|mutation| match mutation {
            Mutation::ClonePreImage { copy: other } | Mutation::RemoveOther { object: other } => {
                Some(other.clone())
            }
            _ => None,
        });
        for name in others.chain([transaction.object]).filter(|name| name.as_str() != PG_META_OBJECT) {
            match self.look_at(&name) {
                Some(content) => drop(found.objects.insert(name, content)),
                None => drop(found.objects.remove(&name)),
            }
        }
        (found.head, found.log) = (self.store.head(pg_id(0)), self.store.log(pg_id(0)).cloned().collect());
        self.history.push(found);
    }

    fn own(&self) -> ObjectName {
        ObjectName::new(PG_META_OBJECT).unwrap()
    }

    // ---- what a member does -----------------------------------------------------------------

    fn shard_of(&self, blocks: u64, whole_bytes: u64, is_sealed: bool) -> Mutation {
        let (seal_unit_bytes, seal_bytes) = if is_sealed { (BLOCK as u32, SEAL_BYTES) } else { (0, 0) };
        Mutation::SetShardOf {
            object_bytes: whole_bytes,
            shard_bytes: blocks * BLOCK,
            seal_unit_bytes,
            seal_bytes,
        }
    }

    fn write(&mut self) {
        let name = ObjectName::new(&format!("object{}", self.random.below(6))).unwrap();
        let sequence = self.newest().head.sequence + 1;
        let version = Version { epoch: self.epoch, sequence };
        let kept = ObjectName::new(&format!("@kept/0.{sequence}")).unwrap();
        let old = self.newest().objects.get(&name).cloned();
        let old_blocks = old.as_ref().map_or(0, |old| old.size_bytes / BLOCK);
        let count_max = if self.random.chance(20) { 40 } else { 3 };
        let (first, count) = (self.random.below(30), 1 + self.random.below(count_max));
        let is_removal = self.random.chance(10);
        let is_cut = self.random.chance(15);
        let is_sealed = old.as_ref().is_some_and(|old| old.seals.is_some()) || self.random.chance(50);
        let mut mutations = Vec::new();
        let pre_image = match &old {
            None => PreImage { mutations: vec![Mutation::Remove], payload: Bytes::new() },
            Some(_) if is_removal || is_cut || count * BLOCK > PRE_IMAGE_BYTES_MAX => {
                mutations.push(Mutation::ClonePreImage { copy: kept.clone() });
                PreImage { mutations: vec![Mutation::CloneFrom { source: kept }], payload: Bytes::new() }
            }
            Some(old) => {
                let is_same = first + count <= old_blocks && old.seals.is_some() == is_sealed;
                pre_image_of_overwrite(old, first, count, (!is_same).then(|| self.shard_of_old(old)))
            }
        };
        let mut payload = Bytes::new();
        if is_removal {
            mutations.push(Mutation::Remove);
        } else {
            let blocks = if is_cut { (old_blocks / 2).max(first + count) } else { old_blocks.max(first + count) };
            if is_cut && blocks < old_blocks {
                mutations.push(Mutation::Truncate { size_bytes: blocks * BLOCK });
            }
            mutations.push(self.shard_of(blocks, 2 * blocks * BLOCK - 1, is_sealed));
            let fill = self.random.next() as u8;
            let bytes = vec![fill; count as usize * usize::from(SEAL_BYTES)].into();
            let seals = is_sealed.then(|| Seals { unit_bytes: BLOCK as u32, seal_bytes: SEAL_BYTES, bytes });
            mutations.push(Mutation::Write { offset: first * BLOCK, length: (count * BLOCK) as u32, seals });
            payload = vec![fill; (count * BLOCK) as usize].into();
        }
        let touched = Touched::by(&mutations);
        let entry = LogEntry {
            version,
            request: None,
            object: name.clone(),
            touched,
            committed_sequence: 0,
            pre_image: Some(pre_image),
        };
        self.submit(&name, mutations, payload, vec![entry]);
        let objects = self.visible();
        self.heads.insert(version, objects);
    }

    fn shard_of_old(&self, old: &Content) -> Mutation {
        self.shard_of(old.size_bytes / BLOCK, old.whole_bytes.unwrap(), old.seals.is_some())
    }

    /// The objects, without pre-image clones.
    fn visible(&self) -> BTreeMap<ObjectName, Content> {
        let is_visible = |(name, _): &(&ObjectName, &Content)| !name.as_str().starts_with("@kept/");
        let objects = self.newest().objects.iter().filter(is_visible);
        objects.map(|(name, content)| (name.clone(), content.clone())).collect()
    }

    fn kept(&self, is_wanted: impl Fn(Version) -> bool) -> Vec<Mutation> {
        let entries = self.newest().log.iter().filter(|entry| is_wanted(entry.version));
        let kept = entries.filter_map(|entry| entry.pre_image.as_ref()?.clone_object().cloned());
        kept.map(|object| Mutation::RemoveOther { object }).collect()
    }

    /// Returns the heads to which the PG can be rolled back.
    fn heads_left(&self) -> Vec<Version> {
        let heads = self.newest().log.iter().map(|entry| entry.version);
        [Version::default()].into_iter().chain(heads).filter(|head| *head >= self.forgotten).collect()
    }

    fn roll_back(&mut self) {
        let choices = self.heads_left();
        let near = choices.len().saturating_sub(20) as u64;
        let head = choices[(near + self.random.below(choices.len() as u64 - near)) as usize];
        self.roll_back_to(head);
    }

    /// Each write together with its entry in the log, as `crates/pg/src/erasure/roll_back.rs` does.
    fn roll_back_to(&mut self, head: Version) {
        let log = self.newest().log.clone();
        let befores = log.iter().rev().skip(1).map(|entry| entry.version).chain([Version::default()]);
        let newer = log.iter().rev().zip(befores).take_while(|(entry, _)| entry.version > head);
        for (entry, before) in newer {
            let pre_image = entry.pre_image.clone().expect("it was not forgotten");
            let mut mutations = vec![Mutation::ResetLog { head: before }];
            mutations.extend(pre_image.mutations);
            mutations.extend(self.kept(|version| version == entry.version));
            self.submit(&entry.object, mutations, pre_image.payload, Vec::new());
            assert!(self.visible() == self.heads[&before], "not what was there at {before}");
            let count = self.random.below(3) as usize;
            self.steps(count);
            if self.random.chance(5) {
                return self.crash();
            }
        }
        assert_eq!(self.newest().head, head);
        self.epoch.0 += 1;
    }

    fn forget(&mut self) {
        // The clones are gone, durably, before the log forgets them.
        let choices = self.heads_left();
        let through = choices[self.random.below(choices.len() as u64) as usize];
        let gone = self.kept(|version| version <= through);
        self.submit(&self.own(), gone, Bytes::new(), Vec::new());
        self.steps(usize::MAX);
        self.store.forget_pre_images(pg_id(0), through);
        self.forgotten = self.forgotten.max(through);
        let log: Vec<LogEntry> = self.store.log(pg_id(0)).cloned().collect();
        let index = self.history.len() - 1;
        let before = std::mem::replace(&mut self.history[index].log, log.clone());
        for (was, is) in before.into_iter().zip(log) {
            let pre_image = if was.version <= through { None } else { was.pre_image.clone() };
            assert!(is == LogEntry { committed_sequence: 0, pre_image, ..was });
        }
    }

    fn crash(&mut self) {
        for request in std::mem::take(&mut self.pending) {
            self.disk.write_partly(request.device, &request.operation, &mut self.random);
        }
        self.disk.crash(&mut self.random);
        self.incarnation += 1;
        self.store = Store::open(&mut self.disk, self.incarnation).unwrap();
        let report = check(&mut self.disk, CheckOptions { data: true }, &mut |_, _, _| {}).unwrap();
        assert_eq!(report.problems, []);
        let found = self.found();
        let candidates = self.committed..self.history.len();
        let fits = |index: &usize| found.may_be(&self.history[*index], self.forgotten);
        let index = candidates.rev().find(fits).expect("one of the states since the last commit is found");
        self.history.truncate(index + 1);
        self.history[index] = found;
        self.committed = index;
        let head = self.newest().head;
        self.epoch.0 += 1;
        assert!(self.visible() == self.heads[&head], "not what was there at {head}");
    }
}

/// The pre-image of a small overwrite of a shard.
fn pre_image_of_overwrite(old: &Content, first: u64, count: u64, shard_of: Option<Mutation>) -> PreImage {
    let old_blocks = old.size_bytes / BLOCK;
    let end = (first + count).min(old_blocks);
    let mut mutations = Vec::new();
    if let Some(shard_of) = shard_of {
        mutations.extend([Mutation::Truncate { size_bytes: old.size_bytes }, shard_of]);
    }
    let mut payload = Bytes::new();
    if first < end {
        payload = old.data.slice((first * BLOCK) as usize..(end * BLOCK) as usize);
        let width = usize::from(SEAL_BYTES);
        let seals = old.seals.as_ref().map(|seals| {
            let bytes = seals.bytes.slice(first as usize * width..end as usize * width);
            Seals { unit_bytes: BLOCK as u32, seal_bytes: SEAL_BYTES, bytes }
        });
        mutations.push(Mutation::Write { offset: first * BLOCK, length: payload.len() as u32, seals });
    }
    mutations.push(Mutation::SetVersion { version: old.version });
    PreImage { mutations, payload }
}

fn run(seed: u64) {
    let mut member = Member::new(seed);
    for _ in 0..200 {
        match member.random.below(40) {
            0 => member.crash(),
            1 => {
                // The pre-images of the newest writes are those that were found.
                member.crash();
                member.roll_back();
            }
            2 => member.store.start_checkpoint(),
            3 => member.roll_back(),
            4 => member.forget(),
            5 => {
                let bytes = member.random.pick(&[64 << 10, 64 << 20]);
                member.store.set_memory_budget(bytes, bytes);
            }
            _ => member.write(),
        }
        let count = member.random.below(6) as usize;
        member.steps(count);
    }
    member.steps(usize::MAX);
    assert_eq!(member.committed + 1, member.history.len(), "everything is durable");
    member.crash();
}

#[test]
fn what_is_taken_back_leaves_what_was_there_before() {
    let runs = setting("ATOLL_ROLLBACK_RUNS", 40);
    on_all_cores(0, |seed| {
        if seed < runs {
            run(seed);
        }
        seed < runs
    });
}
