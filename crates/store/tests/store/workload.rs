//! Random transactions, and the settings under which a history runs.

use atoll_store::{DEVICE_BYTES_MIN, FormatOptions, Store, WAL_BYTES_MIN};
use atoll_types::limits::OBJECT_BYTES_MAX;
use atoll_types::operation::{PG_META_OBJECT, PRE_IMAGE_PREFIX};
use atoll_types::{Mutation, ObjectName, Transaction};
use bytes::Bytes;

use crate::model::{Builder, ModelPg, ZEROS};
use crate::random::Random;
use atoll_store::simulated_disk::SimulatedDisk;

/// Shape of a history.
#[derive(Clone, Debug)]
pub struct Profile {
    pub wal_is_apart: bool,
    pub pg_count: usize,
    pub objects_per_pg: u64,
    /// Different omap keys of an object.
    pub omap_keys: u64,
    /// How long omap keys and values are at most.
    pub omap_key_bytes: u64,
    pub omap_value_bytes: u64,
    /// Share of transactions that change omap entries.
    pub omap_percent: u64,
    /// Length of small writes in blocks, at most.
    pub small_blocks: u64,
    pub large_blocks: u64,
    /// True if records of the log take long, so that much happens beside each of them.
    pub log_is_slow: bool,
    /// Transactions before the first power cut.
    pub prologue: u64,
    /// Share of transactions with a pre-image.
    pub pre_image_percent: u64,
    /// Most data of a pre-image.
    pub pre_image_bytes: u64,
}

impl Profile {
    pub fn random(random: &mut Random) -> Self {
        let mut profile = Profile {
            wal_is_apart: random.chance(40),
            pg_count: random.pick(&[1, 3, 3, 20]),
            objects_per_pg: random.pick(&[3, 6, 12]),
            omap_keys: random.pick(&[3, 8]),
            omap_key_bytes: random.pick(&[8, 8, 300]),
            omap_value_bytes: random.pick(&[8, 200, 4000]),
            omap_percent: random.pick(&[10, 30]),
            small_blocks: random.pick(&[1, 4, 16]),
            large_blocks: random.pick(&[20, 40, 80]),
            log_is_slow: random.chance(30),
            prologue: random.pick(&[0, 50, 400, 1500]),
            pre_image_percent: random.pick(&[0, 30, 90]),
            pre_image_bytes: random.pick(&[100, 8 << 10, 64 << 10]),
        };
        match random.below(4) {
            // Many objects: a tree of several levels.
            0 => {
                (profile.objects_per_pg, profile.small_blocks) = (1200 / profile.pg_count as u64, 1);
                profile.large_blocks = 18;
                profile.prologue = 1500;
            }
            // Long keys: a tree of several levels although it has few entries.
            1 => {
                (profile.omap_key_bytes, profile.omap_keys, profile.omap_percent) = (1200, 40, 60);
                profile.omap_value_bytes = 1500;
            }
            _ => {}
        }
        profile
    }

    /// Fresh devices with a store.
    pub fn format(&self) -> SimulatedDisk {
        // The smallest ring, so that it wraps often.
        let log_bytes = self.wal_is_apart.then_some(WAL_BYTES_MIN + (1 << 20));
        let mut disk = SimulatedDisk::new(DEVICE_BYTES_MIN, log_bytes);
        let options = FormatOptions { store_id: [1; 16], wal_bytes: 0, wal_is_apart: self.wal_is_apart };
        Store::format(&mut disk, options).expect("a device can be formatted");
        disk
    }

    /// A random change of a random object, and the state after it.
    pub fn transaction(&self, pg: usize, state: &ModelPg, random: &mut Random) -> (Transaction, ModelPg) {
        let is_own = random.chance(2) && self.omap_percent < 100;
        let name = if is_own { ObjectName::new(PG_META_OBJECT).unwrap() } else { self.name(random) };
        let mut builder = Builder::new(pg, &name, state);
        if is_own {
            self.change_own(&mut builder, random);
            return builder.finish();
        }
        let sources: Option<ObjectName> = {
            let source = if random.chance(30) { self.kept_name(random) } else { self.name(random) };
            (source != name && state.objects.contains_key(&source)).then_some(source)
        };
        match (random.below(100), sources) {
            (choice, _) if choice < self.omap_percent => self.change_omap(&mut builder, random),
            (_, Some(source)) if random.chance(12) => builder.clone_from(&source),
            (_, source) if random.chance(20) => self.keep_and_change(&mut builder, &name, source, random),
            _ => self.change_data(&mut builder, random),
        }
        if random.chance(self.pre_image_percent) {
            self.pre_image(&mut builder, random);
        }
        builder.finish()
    }

    /// A member's write in an erasure-coded PG: clones the object as its pre-image, or not, and changes it.
    fn keep_and_change(
        &self,
        builder: &mut Builder,
        name: &ObjectName,
        source: Option<ObjectName>,
        random: &mut Random,
    ) {
        let copy = self.other_name(name, random);
        if random.chance(10) {
            self.write(builder, false, random);
            builder.clone_pre_image(&copy);
        } else if random.chance(80) {
            builder.clone_pre_image(&copy);
        }
        // The copy may have been the source.
        let source = source.filter(|source| builder.state().objects.contains_key(source));
        let is_first_only = builder.is_kept_only();
        match (random.below(8), source) {
            (0 | 1, Some(source)) if is_first_only => return builder.clone_from(&source),
            (0, _) => builder.remove(),
            (1, _) => builder.zero(random.below(40) as usize, 1 + random.below(40) as usize),
            (2 | 3, _) => {
                let size = builder.object().map_or(0, |object| object.blocks.len());
                builder.truncate(random.below(size as u64 + 1) as usize);
            }
            _ => {}
        }
        if random.chance(50) {
            self.shard_of(builder, random);
        }
        if random.chance(80) {
            let is_large = random.chance(15);
            self.write(builder, is_large, random);
        }
        if random.chance(15) {
            let other = self.other_name(name, random);
            builder.remove_other(&other);
        }
    }

    fn shard_of(&self, builder: &mut Builder, random: &mut Random) {
        let was_sealed = builder.object().is_some_and(|object| object.is_sealed);
        let is_sealed = if random.chance(90) { was_sealed } else { !was_sealed };
        let (blocks, whole_bytes) = (random.below(60) as usize, random.below(OBJECT_BYTES_MAX + 1));
        builder.shard_of(blocks, whole_bytes, is_sealed);
    }

    /// Removes pre-image clones, and perhaps newer entries of the log.
    fn change_own(&self, builder: &mut Builder, random: &mut Random) {
        for _ in 0..1 + random.below(4) {
            let other = self.kept_name(random);
            builder.remove_other(&other);
        }
        if random.chance(50) {
            let head = builder.state().head;
            builder.reset_log(head - random.below(40.min(head + 1)));
        }
    }

    /// The store does not look at pre-images.
    fn pre_image(&self, builder: &mut Builder, random: &mut Random) {
        let length = if random.chance(10) { self.pre_image_bytes } else { self.pre_image_bytes.min(200) };
        let payload = vec![random.next() as u8; random.below(length + 1) as usize];
        let write = Mutation::Write { offset: 0, length: payload.len() as u32, seals: None };
        let mutations = match random.below(3) {
            0 => vec![Mutation::CloneFrom { source: self.kept_name(random) }],
            1 => vec![Mutation::Truncate { size_bytes: random.below(1 << 20) }, write],
            _ => Vec::new(),
        };
        builder.pre_image(mutations, payload.into());
    }

    fn kept_name(&self, random: &mut Random) -> ObjectName {
        ObjectName::new(&format!("{PRE_IMAGE_PREFIX}{}", random.below(4))).unwrap()
    }

    /// Returns the name of a pre-image clone, or of any object but this one.
    fn other_name(&self, name: &ObjectName, random: &mut Random) -> ObjectName {
        let other = if random.chance(20) { self.name(random) } else { self.kept_name(random) };
        if other == *name { self.kept_name(random) } else { other }
    }

    fn name(&self, random: &mut Random) -> ObjectName {
        let index = random.below(self.objects_per_pg);
        ObjectName::new(&format!("object{index:04}")).unwrap()
    }

    fn change_data(&self, builder: &mut Builder, random: &mut Random) {
        let size = builder.object().map_or(0, |object| object.blocks.len());
        match random.below(40) {
            0 | 1 => builder.remove(),
            2 => builder.create(),
            3 | 4 => builder.truncate(random.below(size as u64 + 1) as usize),
            5 | 6 => builder.zero(random.below(40) as usize, 1 + random.below(40) as usize),
            7..12 => self.write(builder, true, random),
            // What a transaction frees itself must not be written in place.
            12 => {
                builder.zero(random.below(8) as usize, 1 + random.below(20) as usize);
                self.write(builder, false, random);
            }
            13 => {
                builder.remove();
                self.write(builder, random.chance(30), random);
            }
            14 => {
                builder.truncate(random.below(size as u64 + 1) as usize);
                self.write(builder, false, random);
            }
            // Several writes, which may overlap.
            15 | 16 => {
                self.write(builder, random.chance(30), random);
                self.write(builder, false, random);
                self.change_omap(builder, random);
            }
            _ => self.write(builder, false, random),
        }
    }

    fn write(&self, builder: &mut Builder, is_large: bool, random: &mut Random) {
        let count = match is_large {
            false => 1 + random.below(self.small_blocks),
            true if random.chance(2) => 500,
            true => 17 + random.below(self.large_blocks - 16),
        };
        let first = if is_large { random.below(30) } else { random.below(60) };
        let short = if random.chance(25) { 1 + random.below(4095) } else { 0 };
        let seed = if random.chance(5) { ZEROS } else { random.next() >> 1 };
        let was_sealed = builder.object().is_some_and(|object| object.is_sealed);
        // Some objects are never sealed, and some writes leave the seals of others as they are.
        let is_sealed = if was_sealed { random.chance(95) } else { random.chance(50) };
        builder.write(first as usize, count as usize, short as usize, seed, is_sealed);
    }

    fn change_omap(&self, builder: &mut Builder, random: &mut Random) {
        let key = |random: &mut Random| {
            let index = random.below(self.omap_keys);
            let mut key = format!("key{index:05}").into_bytes();
            // Zeros are escaped in the tree. The length depends on the index: keys are found again.
            let length = 8 + (index * 7919) % (self.omap_key_bytes - 7);
            key.resize(length as usize, if index % 7 == 3 && length < 200 { 0 } else { b'k' });
            Bytes::from(key)
        };
        for _ in 0..1 + random.below(3) {
            let length = match random.below(40) {
                0 => 20_000,
                1 => 0,
                _ => random.below(self.omap_value_bytes + 1),
            };
            let value = Bytes::from(vec![random.next() as u8; length as usize]);
            match random.below(8) {
                0 => builder.omap_remove(key(random)),
                1 => builder.omap_replace(key(random), Some(value), Bytes::from_static(b"displaced")),
                2 => builder.omap_replace(key(random), None, Bytes::from_static(b"displaced")),
                _ => builder.omap_set(key(random), value),
            }
        }
    }
}
