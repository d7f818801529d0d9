//! Usage of the store by each pool: objects, and the blocks that they refer to. The counts follow every
//! transaction in memory, and a checkpoint writes those that have changed into the tree. PGs that are split change
//! nothing in them.
//!
//! A store that was made before there were counts has none, unless it was empty.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use atoll_codec::{CodecError, Reader, Writer};
use atoll_types::PoolId;
use bytes::Bytes;

use super::{Changes, Metadata, Prepared, Unready, keys};

/// A pool's usage of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolCount {
    pub objects: u64,
    pub blocks: u64,
}

impl PoolCount {
    pub fn decode(value: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(Bytes::copy_from_slice(value));
        let count =
            PoolCount { objects: reader.u64("objects of a pool")?, blocks: reader.u64("blocks of a pool")? };
        reader.finish()?;
        Ok(count)
    }

    fn encode(self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(16);
        writer.u64(self.objects);
        writer.u64(self.blocks);
        writer.finish().to_vec()
    }

    /// `None` if it would be less than nothing.
    fn after(self, objects: i64, taken: usize, freed: usize) -> Option<Self> {
        let blocks = self.blocks.checked_add(taken as u64)?.checked_sub(freed as u64)?;
        Some(PoolCount { objects: self.objects.checked_add_signed(objects)?, blocks })
    }
}

/// The counts of all pools.
#[derive(Debug, Default)]
pub(crate) struct PoolCounts {
    by_pool: BTreeMap<PoolId, PoolCount>,
    /// Counts that the tree does not have.
    changed: BTreeSet<PoolId>,
    /// True if the tree has counts.
    is_marked: bool,
}

impl PoolCounts {
    pub fn iter(&self) -> impl Iterator<Item = (PoolId, PoolCount)> {
        self.by_pool.iter().map(|(pool, count)| (*pool, *count))
    }

    #[cfg(test)]
    pub fn set(&mut self, pool: PoolId, count: PoolCount) {
        self.by_pool.insert(pool, count);
        self.changed.insert(pool);
    }
}

impl Metadata {
    /// Reads the counts of the checkpoint.
    pub fn load_pool_counts(&self) -> Result<Option<PoolCounts>, Unready> {
        let mut counts = PoolCounts::default();
        let mut damage = None;
        self.tree.scan(&keys::POOLS, &keys::end_of(&keys::POOLS), |key, value| {
            match keys::parse_pool(key) {
                Some(None) => counts.is_marked = true,
                Some(Some(pool)) => match PoolCount::decode(value) {
                    Ok(count) => drop(counts.by_pool.insert(pool, count)),
                    Err(error) => damage = Some(error),
                },
                None => damage = Some(CodecError::Invalid { what: "pool key", value: key.len() as u64 }),
            }
            ControlFlow::Continue(())
        })?;
        match damage {
            Some(error) => Err(error.into()),
            None => Ok((counts.is_marked || self.object_count == 0).then_some(counts)),
        }
    }

    /// A transaction of a pool was applied.
    pub fn count(&mut self, pool: PoolId, applied: &Prepared) {
        let (taken, freed) = (applied.referenced.len(), applied.freed.len());
        let Some(counts) = &mut self.pool_counts else { return };
        if applied.object_delta == 0 && taken == 0 && freed == 0 {
            return;
        }
        let before = counts.by_pool.get(&pool).copied().unwrap_or_default();
        match before.after(applied.object_delta, taken, freed) {
            Some(after) => {
                counts.by_pool.insert(pool, after);
                counts.changed.insert(pool);
            }
            // What was read from the device was wrong: nothing is better than that.
            None => self.pool_counts = None,
        }
    }

    /// Pages that saving the counts needs and that are not in memory.
    pub fn cold_pages_of_counts(&self) -> Vec<u32> {
        let Some(counts) = &self.pool_counts else { return Vec::new() };
        let keys = counts.changed.iter().map(|pool| keys::pool(*pool));
        let mark = (!counts.is_marked).then(|| keys::POOLS.to_vec());
        let cold = |key: Vec<u8>| match self.tree.touch(&key).map_err(Unready::from) {
            Err(Unready::Cold(cold)) => cold.0,
            // Saving meets the damage and says so.
            _ => Vec::new(),
        };
        keys.chain(mark).flat_map(cold).collect()
    }

    /// Brings the tree up to date.
    pub fn save_pool_counts(&mut self) -> Result<(), Unready> {
        let mut changes = Changes::new(self);
        let Some(counts) = &self.pool_counts else { return Ok(()) };
        if !counts.is_marked {
            changes.set_value(keys::POOLS.to_vec(), Vec::new())?;
        }
        for pool in &counts.changed {
            match counts.by_pool.get(pool).filter(|count| **count != PoolCount::default()) {
                Some(count) => changes.set_value(keys::pool(*pool), count.encode())?,
                None => changes.remove_value(keys::pool(*pool))?,
            }
        }
        let prepared = changes.finish()?;
        self.apply(&prepared)?;
        if let Some(counts) = &mut self.pool_counts {
            counts.changed.clear();
            counts.is_marked = true;
            counts.by_pool.retain(|_, count| *count != PoolCount::default());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_than_nothing_is_no_count() {
        let count = PoolCount { objects: 1, blocks: 5 };
        assert_eq!(count.after(-1, 2, 7), Some(PoolCount::default()));
        assert_eq!(count.after(-2, 0, 0), None);
        assert_eq!(count.after(0, 0, 6), None);
        assert_eq!(PoolCount::decode(&count.encode()), Ok(count));
        assert!(PoolCount::decode(&count.encode()[1..]).is_err());
    }
}
