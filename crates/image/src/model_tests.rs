//! Random histories of an image, its snapshots and its clones, against arrays of numbers: writes, trims, snapshots
//! taken while writes are in flight, roll backs, clones of clones, flattening, shrinking; writers that die in the
//! middle, moves with snapshots, and work that is interrupted and done again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;

use atoll_client::{PoolClient, visit_objects};
use atoll_keys::SecretKey;
use atoll_sim::Statistics;
use atoll_types::PoolId;
use atoll_types::image_key::ImageKey;
use atoll_types::records::{ImageRecord, ImageStates, RECORD_FORMAT, SnapshotRecord};
use bytes::Bytes;
use futures::executor::block_on;
use futures::future::{join_all, select};

use crate::ahead::Ahead;
use crate::ancestry::{parse_image_id, unsealed};
use crate::lock::{fence_name, not_fenced};
use crate::memory_client::MemoryClient;
use crate::names::{image_prefix, parse};
use crate::pieces::BLOCK;
use crate::resize::discard_beyond;
use crate::sealing::Sealing;
use crate::simulated_client::SimulatedClient;
use crate::snapshots::{remove_unneeded, roll_objects_back};
use crate::state::{Parent, Places, State};
use crate::volume::{Volume, VolumeOf};

mod flattening;
mod going_back;
mod moves;

const POOL: PoolId = PoolId(1);
const OBJECT_BLOCKS: u64 = 4;
const OBJECT_BYTES: u64 = OBJECT_BLOCKS * BLOCK;
const BLOCKS: u64 = 7 * OBJECT_BLOCKS - 1;
/// Images that a history may have: the first, and clones.
const IMAGES_MAX: usize = 4;

/// The seeds of a plain test run, or more: `ATOLL_IMAGE_SEEDS=10000 cargo test -p atoll-image histories`.
/// `ATOLL_IMAGE_SEED=7` runs one.
fn seeds(usually: u64) -> std::ops::Range<u64> {
    let setting = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match setting("ATOLL_IMAGE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..setting("ATOLL_IMAGE_SEEDS").unwrap_or(usually),
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        atoll_types::mix(self.0) % end
    }
}

/// Content of an image: a number for each block, 0 for zeros.
type Contents = Vec<u8>;

struct Image<C> {
    record: ImageRecord,
    contents: Contents,
    /// By number.
    snapshots: BTreeMap<u64, Contents>,
    /// The image and the snapshot that it is a clone of, and the blocks that it shares.
    parent: Option<(usize, u64, u64)>,
    attach_count: usize,
    volume: Option<Rc<Volume<C>>>,
    /// Its snapshots are read where it was.
    is_moving: bool,
    /// The place that it has left to go back to this one.
    left: Option<usize>,
}

struct History<C> {
    client: C,
    random: Random,
    images: Vec<Image<C>>,
    next_value: u8,
    next_id: u64,
}

fn key_of(record: &ImageRecord) -> SecretKey {
    SecretKey::from_bytes(record.id.repeat(2).as_bytes().try_into().unwrap())
}

fn attach_ids(count: usize) -> Vec<[u8; 16]> {
    (0..count).map(|index| [index as u8 + 1; 16]).collect()
}

/// Objects whose client may die.
trait Objects: PoolClient {
    /// Later requests are of another process.
    fn next_process(&self) {}
}

impl Objects for MemoryClient {}

impl Objects for SimulatedClient {
    fn next_process(&self) {
        SimulatedClient::next_process(self);
    }
}

impl<C: Objects> History<C> {
    fn new(client: C, seed: u64) -> Self {
        let mut history = History { client, random: Random(seed), images: Vec::new(), next_value: 1, next_id: 1 };
        history.add_image(None);
        history
    }

    fn add_image(&mut self, parent: Option<(usize, u64)>) {
        let is_sealed = self.random.below(2) == 0;
        let id = self.new_id();
        let contents = match parent {
            Some((image, number)) => self.images[image].snapshots[&number].clone(),
            None => vec![0; BLOCKS as usize],
        };
        let states = ImageStates { is_marked: !is_sealed && parent.is_some(), ..ImageStates::default() };
        let record = ImageRecord {
            format: RECORD_FORMAT,
            name: format!("image{id}"),
            id,
            size_bytes: contents.len() as u64 * BLOCK,
            object_bytes: OBJECT_BYTES,
            pool: POOL,
            key: Self::key_for(is_sealed),
            attach_ids: Vec::new(),
            writer_generation: 0,
            changer: None,
            created_unix_ms: 0,
            states: Some(states),
            work: None,
            flattening: None,
            hold: None,
            export: None,
            metadata: BTreeMap::new(),
        };
        let parent = parent.map(|(image, number)| (image, number, contents.len() as u64));
        self.images.push(Image {
            record,
            contents,
            snapshots: BTreeMap::new(),
            parent,
            attach_count: 0,
            volume: None,
            is_moving: false,
            left: None,
        });
    }

    fn new_id(&mut self) -> String {
        self.next_id += 1;
        format!("{:016x}", self.next_id)
    }

    fn key_for(is_sealed: bool) -> ImageKey {
        let key = if is_sealed { ImageKey::WrappedKey } else { ImageKey::UnsealedPermit };
        key("wrapped".into())
    }

    fn parent_of(&self, parent: Option<(usize, u64, u64)>) -> Option<Parent<C>> {
        let (image, number, blocks) = parent?;
        Some(Parent { state: Rc::new(self.state(image, number)), overlap_bytes: blocks * BLOCK })
    }

    /// An image at one of its snapshots, as a reader opens it.
    fn state(&self, image: usize, number: u64) -> State<C> {
        let Image { record, parent, is_moving, .. } = &self.images[image];
        if let (Some((old, ..)), true) = (parent, is_moving) {
            return self.state(*old, number);
        }
        let snapshot = record.snapshots().iter().find(|snapshot| snapshot.number == number).unwrap();
        let parent = parent.map(|(of, at, _)| (of, at, snapshot.overlap_bytes / BLOCK));
        self.state_over(image, (Some(number), snapshot.size_bytes), self.parent_of(parent))
    }

    /// An image at a snapshot, or itself, above a parent.
    fn state_over(
        &self,
        image: usize,
        (number, size_bytes): (Option<u64>, u64),
        parent: Option<Parent<C>>,
    ) -> State<C> {
        let Image { record, attach_count, .. } = &self.images[image];
        let sealing = match record.key.is_sealed() {
            true => Sealing::reading(key_of(record), parse_image_id(record).unwrap(), attach_ids(*attach_count)),
            false => unsealed(record),
        };
        State {
            client: self.client.clone(),
            image_id: record.id.clone(),
            pool: POOL,
            object_bytes: OBJECT_BYTES,
            size_bytes,
            number,
            sealing: sealing.into(),
            parent,
            places: Places::default(),
        }
    }

    /// An image itself, as who only reads it opens it.
    fn head(&self, image: usize) -> State<C> {
        let Image { record, parent, left, .. } = &self.images[image];
        let here = self.state_over(image, (None, record.size_bytes), self.parent_of(*parent));
        let Some(left) = *left else { return here };
        let overlap_bytes = self.images[left].record.size_bytes;
        let here = Parent { state: Rc::new(here), overlap_bytes };
        self.state_over(left, (None, record.size_bytes), Some(here))
    }

    /// Its writer, attached if there is none.
    async fn volume(&mut self, image: usize) -> Rc<Volume<C>> {
        if let Some(volume) = &self.images[image].volume {
            return Rc::clone(volume);
        }
        self.images[image].attach_count += 1;
        self.images[image].record.writer_generation += 1;
        let Image { record, parent, attach_count, .. } = &self.images[image];
        self.client.fence(POOL, fence_name(&record.id), record.writer_generation).await.unwrap();
        let sealing = match record.key.is_sealed() {
            true => {
                Sealing::on(key_of(record), parse_image_id(record).unwrap(), attach_ids(*attach_count)).unwrap()
            }
            false => unsealed(record),
        };
        let ahead = match self.images[image].left {
            Some(_) => {
                let newest = record.states.as_ref().unwrap().newest;
                Some(Ahead::find(Rc::new(self.head(image)), newest).await.unwrap())
            }
            None => None,
        };
        let volume = Volume::new(VolumeOf {
            client: self.client.clone(),
            name: record.name.clone(),
            image_id: record.id.clone(),
            pool: POOL,
            object_bytes: OBJECT_BYTES,
            size_bytes: record.size_bytes,
            sealing,
            fence: not_fenced(record),
            kept_number: self.kept_number(image),
            parent: self.parent_of(*parent),
            moved_states: self.moved_states(image),
            ahead,
        });
        let volume = Rc::new(volume);
        if parent.is_some() {
            volume.list_objects().await.unwrap();
        }
        self.images[image].volume = Some(Rc::clone(&volume));
        volume
    }

    /// Some changes of different blocks at once. `dies`: the writer is dropped in the middle, and of each block
    /// either content is right.
    async fn change(&mut self, image: usize, dies: bool) {
        let volume = self.volume(image).await;
        let mut blocks: Vec<u64> = (0..self.images[image].contents.len() as u64).collect();
        let mut changes = Vec::new();
        for _ in 0..1 + self.random.below(4) {
            if blocks.is_empty() {
                break;
            }
            let first = blocks[self.random.below(blocks.len() as u64) as usize];
            let count = 1 + self.random.below(6);
            let range: Vec<u64> = (first..first + count).take_while(|block| blocks.contains(block)).collect();
            blocks.retain(|block| !range.contains(block));
            let value = match self.random.below(3) {
                0 => 0,
                _ => {
                    self.next_value = self.next_value % 250 + 1;
                    self.next_value
                }
            };
            changes.push((first, range.len() as u64, value, self.random.below(2) == 0));
        }
        let before = self.images[image].contents.clone();
        let done = |(first, count, value, is_other): (u64, u64, u8, bool)| {
            let volume = Rc::clone(&volume);
            let there = &before[first as usize..(first + count) as usize];
            let there: Bytes = there.iter().flat_map(|value| vec![*value; BLOCK as usize]).collect();
            async move {
                let (offset, length) = (first * BLOCK, count * BLOCK);
                match (value, is_other) {
                    (0, true) => volume.trim(offset, length).await.unwrap(),
                    (0, false) => volume.write_zeroes(offset, length).await.unwrap(),
                    (_, true) => {
                        let data = Bytes::from(vec![value; length as usize]);
                        let mut other = there.to_vec();
                        other[BLOCK as usize - 1] ^= 0x80;
                        assert!(!volume.compare_and_write(offset, &other.into(), &data).await.unwrap());
                        assert!(volume.compare_and_write(offset, &there, &data).await.unwrap());
                    }
                    (_, false) => volume.write(offset, &Bytes::from(vec![value; length as usize])).await.unwrap(),
                }
            }
        };
        let mut after = before.clone();
        for (first, count, value, _) in &changes {
            after[*first as usize..(*first + *count) as usize].fill(*value);
        }
        let all = join_all(changes.into_iter().map(done));
        if !dies {
            all.await;
            self.images[image].contents = after;
            return;
        }
        self.interrupt(all).await;
        self.images[image].volume = None;
        drop(volume);
        let found = self.read_head(image).await;
        for (block, value) in found.iter().enumerate() {
            assert!([before[block], after[block]].contains(value), "block {block} is {value} after a crash");
        }
        self.images[image].contents = found;
    }

    /// Drops a future after some turns, unless it is done before.
    async fn interrupt(&mut self, work: impl Future) {
        let turns = self.random.below(40);
        let clock = async {
            for _ in 0..turns {
                self.client.sleep(std::time::Duration::ZERO).await;
            }
        };
        select(pin!(work), pin!(clock)).await;
        self.client.next_process();
    }

    async fn read_head(&mut self, image: usize) -> Contents {
        let volume = self.volume(image).await;
        let length = self.images[image].contents.len() as u64 * BLOCK;
        values(&volume.read(0, length as u32).await.unwrap())
    }

    /// A snapshot while writes are pending: it has all completed writes, and either content of each block that is
    /// changed at the same time.
    async fn snapshot(&mut self, image: usize) {
        let volume = self.volume(image).await;
        let size_bytes = self.images[image].record.size_bytes;
        let overlap_bytes = self.images[image].parent.map_or(0, |(_, _, blocks)| blocks * BLOCK);
        let states = self.images[image].record.states.as_mut().unwrap();
        states.newest += 1;
        let number = states.newest;
        states.snapshots.push(SnapshotRecord {
            number,
            name: format!("s{number}"),
            size_bytes,
            overlap_bytes,
            created_unix_ms: 0,
            is_pending: false,
            clones: Vec::new(),
        });
        let before = self.images[image].contents.clone();
        let kept = self.images[image].record.kept_number();
        let (written, value) = (self.random.below(before.len() as u64), 251);
        let write = async {
            let data = Bytes::from(vec![value; BLOCK as usize]);
            volume.write(written * BLOCK, &data).await.unwrap();
            // This one was begun after the other was acknowledged: if it is in the snapshot, so is that.
            let next = (written + 1) % before.len() as u64;
            volume.write(next * BLOCK, &data).await.unwrap();
            next
        };
        let taken = async {
            self.client.sleep(std::time::Duration::ZERO).await;
            volume.keeping.change(kept).await;
            values(&self.state(image, number).read_blocks(0, size_bytes).await.unwrap())
        };
        let (next, shown) = futures::future::join(write, taken).await;
        for (block, found) in shown.iter().enumerate() {
            let is_changed = [written, next].contains(&(block as u64));
            assert!(
                *found == before[block] || is_changed && *found == value,
                "block {block} of a snapshot is {found}"
            );
        }
        let has = |block: u64| shown[block as usize] == value;
        assert!(
            !has(next) || has(written) || before[next as usize] == value,
            "a snapshot has the second write only"
        );
        let mut after = before;
        after[written as usize] = value;
        after[next as usize] = value;
        self.images[image].contents = after;
        self.images[image].snapshots.insert(number, shown);
    }

    fn clones_of(&self, image: usize, number: u64) -> bool {
        self.images.iter().any(|other| other.parent.is_some_and(|(of, at, _)| (of, at) == (image, number)))
    }

    fn a_snapshot(&mut self, image: usize) -> Option<u64> {
        let numbers: Vec<u64> = self.images[image].snapshots.keys().copied().collect();
        let chosen = self.random.below(numbers.len().max(1) as u64) as usize;
        numbers.get(chosen).copied()
    }

    /// Takes the image away from its writer, as commands that change all its objects do.
    async fn take_over(&mut self, image: usize) -> (C, ImageRecord) {
        self.images[image].volume = None;
        self.images[image].record.writer_generation += 1;
        let (client, record) = (self.client.clone(), self.images[image].record.clone());
        client.fence(POOL, fence_name(&record.id), record.writer_generation).await.unwrap();
        (client, record)
    }

    async fn remove_snapshot(&mut self, image: usize) {
        let Some(number) = self.a_snapshot(image).filter(|number| !self.clones_of(image, *number)) else { return };
        let states = self.images[image].record.states.as_mut().unwrap();
        states.snapshots.retain(|snapshot| snapshot.number != number);
        self.images[image].snapshots.remove(&number);
        if let Some(volume) = &self.images[image].volume {
            volume.keeping.change(self.images[image].record.kept_number()).await;
        }
        let (client, record) = (self.client.clone(), self.images[image].record.clone());
        let states = record.states.clone().unwrap();
        self.interrupt(remove_unneeded(&client, &record, &states, &|_, _| {})).await;
        if self.random.below(2) == 0 {
            remove_unneeded(&client, &record, &states, &|_, _| {}).await.unwrap();
        }
    }

    async fn roll_back(&mut self, image: usize) {
        let Some(number) = self.a_snapshot(image) else { return };
        let (client, record) = self.take_over(image).await;
        self.interrupt(roll_objects_back(&client, &record, number, &|_, _| {})).await;
        let (client, record) = self.take_over(image).await;
        roll_objects_back(&client, &record, number, &|_, _| {}).await.unwrap();
        let snapshot = record.snapshots().iter().find(|snapshot| snapshot.number == number).unwrap();
        self.images[image].record.size_bytes = snapshot.size_bytes;
        if let Some((_, _, blocks)) = &mut self.images[image].parent {
            *blocks = snapshot.overlap_bytes / BLOCK;
        }
        self.images[image].contents = self.images[image].snapshots[&number].clone();
    }

    async fn resize(&mut self, image: usize) {
        let blocks = 1 + self.random.below(BLOCKS);
        let before = self.images[image].contents.len() as u64;
        self.images[image].volume = None;
        if blocks < before {
            let (client, record) = self.take_over(image).await;
            self.interrupt(discard_beyond(&client, &record, blocks * BLOCK)).await;
            let (client, record) = self.take_over(image).await;
            discard_beyond(&client, &record, blocks * BLOCK).await.unwrap();
        }
        if let Some((_, _, shared)) = &mut self.images[image].parent {
            *shared = blocks.min(*shared);
        }
        self.images[image].record.size_bytes = blocks * BLOCK;
        self.images[image].contents.resize(blocks as usize, 0);
    }

    /// Everything reads as the model says.
    async fn verify(&mut self) {
        for image in 0..self.images.len() {
            self.verify_image(image).await;
        }
    }

    async fn verify_image(&mut self, image: usize) {
        let found = self.read_head(image).await;
        assert_eq!(found, self.images[image].contents, "image {image}");
        let volume = self.volume(image).await;
        let size_bytes = found.len() as u64 * BLOCK;
        let extents = volume.extents(0, size_bytes).await.unwrap();
        check_extents(&extents, &found);
        for number in self.images[image].snapshots.keys().copied().collect::<Vec<_>>() {
            let state = self.state(image, number);
            let expected = &self.images[image].snapshots[&number];
            let found = values(&state.read_blocks(0, expected.len() as u64 * BLOCK).await.unwrap());
            assert_eq!(found, *expected, "image {image} at snapshot {number}");
        }
    }

    /// Without snapshots and images nothing is left.
    async fn remove_everything(&mut self) {
        for image in (0..self.images.len()).rev() {
            let record = &mut self.images[image].record;
            record.states.as_mut().unwrap().snapshots.clear();
            let (record, states) = (record.clone(), record.states.clone().unwrap());
            remove_unneeded(&self.client, &record, &states, &|_, _| {}).await.unwrap();
            let prefix = image_prefix(&record.id);
            visit_objects::<crate::ImageError>(&self.client, POOL, &prefix, false, async |objects| {
                let parts = objects.iter().filter_map(|object| parse(&record.id, &object.name));
                assert!(parts.into_iter().all(|part| part.kept_for.is_none()), "a state that nothing needs");
                let names = objects.into_iter().map(|object| object.name);
                crate::objects::remove_objects(&self.client, POOL, names, None, || {}).await
            })
            .await
            .unwrap();
        }
    }

    async fn step(&mut self) {
        let image = self.random.below(self.images.len() as u64) as usize;
        match self.random.below(21) {
            0..9 => self.change(image, false).await,
            9 => self.change(image, true).await,
            10..13 => self.snapshot(image).await,
            13 => self.remove_snapshot(image).await,
            14 => self.roll_back(image).await,
            15 => self.resize(image).await,
            16 => self.flatten(image).await,
            17 => self.images[image].volume = None,
            18 => self.move_image(image).await,
            _ if self.images.len() < IMAGES_MAX => {
                if let Some(number) = self.a_snapshot(image) {
                    self.add_image(Some((image, number)));
                }
            }
            _ => self.verify().await,
        }
    }
}

/// A hole must read as zeros.
fn check_extents(extents: &[(u64, bool)], contents: &[u8]) {
    let mut at = 0;
    for (length, is_hole) in extents {
        let blocks = (at / BLOCK) as usize..((at + length) / BLOCK) as usize;
        assert!(!is_hole || contents[blocks].iter().all(|value| *value == 0), "a hole that is none");
        at += length;
    }
    assert_eq!(at, contents.len() as u64 * BLOCK);
}

/// The number in each block.
fn values(bytes: &[u8]) -> Contents {
    let value = |block: &[u8]| {
        assert!(block.iter().all(|byte| *byte == block[0]), "a block is torn");
        block[0]
    };
    bytes.chunks(BLOCK as usize).map(value).collect()
}

async fn run<C: Objects>(client: C, seed: u64, steps: usize) {
    let mut history = History::new(client, seed);
    for _ in 0..steps {
        history.step().await;
    }
    history.verify().await;
    history.remove_everything().await;
}

/// Runs some seeds and says which one fails.
fn each_seed(seeds: impl Iterator<Item = u64>, run: impl Fn(u64)) {
    for seed in seeds {
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed))).is_err() {
            panic!("seed {seed} fails");
        }
    }
}

#[test]
fn random_histories_match_a_model() {
    each_seed(seeds(300), |seed| {
        let client = MemoryClient::new(seed);
        block_on(run(client.clone(), seed, 60));
        assert_eq!(client.object_count(), 0);
    });
}

/// With power cuts, fail-over, moves and splits of the PG.
fn run_simulated(is_coded: bool) {
    let total = RefCell::new(Statistics::default());
    let seeds = seeds(20);
    each_seed(seeds.clone(), |seed| {
        let client = SimulatedClient::new(seed, is_coded);
        client.drive(run(client.clone(), seed, 40));
        let (objects, statistics) = client.finish();
        assert_eq!(objects, []);
        total.borrow_mut().add(&statistics);
    });
    let total = total.into_inner();
    println!("{total:?}");
    let happened = [total.takeovers, total.rollbacks, total.splits, total.clones, total.retries];
    assert!(seeds.count() < 20 || happened.iter().all(|count| *count > 0), "{total:?}");
}

#[test]
fn random_histories_survive_the_faults_of_a_cluster() {
    run_simulated(false);
}

#[test]
fn random_histories_survive_the_faults_of_a_coded_cluster() {
    run_simulated(true);
}
