//! Admission: whether the log, the device and memory have space for a transaction, and whether it
//! follows its PG's history.

use atoll_buffers::BLOCK_BYTES;
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{Mutation, Room, Transaction, Version};

use crate::error::StoreError;
use crate::event::BackingRoom;
use crate::log::record::check_sequences;
use crate::metadata::{BlockMeta, Changes, HOLE, ObjectKey, Unready};
use crate::plan::{INLINE_BYTES_MAX, check_prepared};
use crate::store::Store;
use crate::validate::validate;

/// Metadata pages that clients may not take, so that recovery and deletes always have room.
const RESERVE_PAGES: u32 = 1 << 16;
/// Data that is not at its place counts as still to be taken from the file system under a device file, which may have it
/// all already. When that is nearly full, no more waits for the next checkpoint.
const PENDING_BYTES_HELD: u64 = 16 << 20;

impl Store {
    /// Returns true if clients must not add data. Blocks that the next checkpoint will free count as free.
    pub fn is_full(&self) -> bool {
        self.space.is_full() || self.page_room() <= RESERVE_PAGES || self.backing_room >= BackingRoom::Low
    }

    /// Returns the kinds of client operations that are allowed here. Primaries ask it about their own copies: a
    /// rebuilt copy has for itself the blocks that are shared here, and then small overwrites take space of the
    /// reserve.
    pub fn room(&self) -> Room {
        let is_reserve_used = self.space.is_reserve_used()
            || self.page_room() <= RESERVE_PAGES / 8 * 5
            || self.backing_room == BackingRoom::None;
        match (self.is_full(), is_reserve_used) {
            (false, _) => Room::Enough,
            (true, false) => Room::Overwrites,
            (true, true) => Room::Deletes,
        }
    }

    /// Returns the last reported room of the file system under a sparse file.
    pub fn backing_room(&self) -> BackingRoom {
        self.backing_room
    }

    /// Sets the room of the file system under a sparse file. Deletes still succeed, and so do overwrites of
    /// allocated blocks.
    pub fn set_backing_room(&mut self, room: BackingRoom) {
        self.backing_room = room;
    }

    /// Sets the share of the device that clients may fill, in percent; the rest is for recovery, deletes and
    /// checkpoints.
    pub fn set_full_percent(&mut self, percent: u32) {
        self.space.set_full_percent(percent);
    }

    /// Returns true if space is short only until the next checkpoint is done.
    pub(crate) fn waits_for_space(&self) -> bool {
        self.space.is_low() && !self.is_full()
    }

    /// Returns true if a checkpoint is needed for the sake of space, here or in the file system under a sparse
    /// file: only a checkpoint frees that, and no other event may start one.
    pub(crate) fn must_reclaim(&self) -> bool {
        let backing_gains = self.space.has_freed() || self.overlay.memory_bytes() > PENDING_BYTES_HELD;
        self.space.must_be_reclaimed() || self.backing_room != BackingRoom::Enough && backing_gains
    }

    /// Metadata pages that may still be added. The page table has room for fewer than a large
    /// device has blocks.
    fn page_room(&self) -> u32 {
        self.metadata.tree.pages.room(self.page_count_max)
    }

    /// Lets tests fill the page table without half a tebibyte of metadata.
    #[doc(hidden)]
    pub fn limit_pages(&mut self, count_max: u32) {
        self.page_count_max = count_max;
    }

    /// Returns true if nothing at all may be added: the rest is for checkpoints, which free space.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.space.is_exhausted()
            || self.page_room() <= RESERVE_PAGES / 2
            || self.backing_room == BackingRoom::None
    }

    /// Returns true if hardly more is left than checkpoints need.
    fn is_spent(&self) -> bool {
        self.space.is_spent() || self.page_room() <= RESERVE_PAGES / 4 || self.backing_room == BackingRoom::None
    }

    /// Returns true if a transaction needs the space left for checkpoints on an exhausted device. Deletes and
    /// trims do not: of shards they keep a pre-image, which shares blocks and goes when all members have the
    /// write, and trims write parity. While members are full, primaries order nothing else that needs space for
    /// shards. Small overwrites of copies that were pending when [`Store::room`] ended are taken: a PG could not
    /// continue without them.
    pub(crate) fn takes_from_checkpoints(&self, transaction: &Transaction) -> Result<bool, StoreError> {
        let Transaction { pg, object, mutations, payload, log, .. } = transaction;
        let is_pre_image = |mutation: &Mutation| matches!(mutation, Mutation::ClonePreImage { .. });
        let adds = mutations.iter().any(|mutation| Self::adds(mutation) && !is_pre_image(mutation));
        let only_frees = payload.is_empty() && !adds;
        if only_frees || object.as_str() == PG_META_OBJECT {
            return Ok(false);
        }
        let is_of_shards = log.iter().any(|entry| entry.pre_image.is_some());
        let is_write = |mutation: &Mutation| matches!(mutation, Mutation::Write { .. });
        let is_small = payload.len() <= INLINE_BYTES_MAX && mutations.iter().all(is_write) && !log.is_empty();
        if (is_of_shards || is_small) && !self.is_spent() {
            return Ok(false);
        }
        self.would_need_room(&ObjectKey { pg: *pg, name: object.clone() }, mutations)
    }

    /// Checks a client's write before it gets its place in the PG's history. Its metadata is loaded
    /// ([`Store::is_write_loaded`]).
    pub fn check(&self, key: &ObjectKey, mutations: &[Mutation], payload_bytes: usize) -> Result<(), StoreError> {
        self.metadata.parts.check_owner(key.pg, &key.name, mutations, false)?;
        let info = self.metadata.info(&self.metadata.parts.object(key.pg, &key.name))?;
        let block_count = validate(mutations, payload_bytes, info.as_ref())?;
        // A write that gets its place in the history and is then refused would break the history.
        check_prepared(key, mutations, &self.metadata)?;
        // The PG's own object holds fences and promises; without them not even deletes would be
        // possible.
        let is_own = key.name.as_str() == PG_META_OBJECT;
        let adds_data = block_count > 0 || Self::adds_metadata(mutations) && !is_own;
        if adds_data && self.is_full() && self.needs_room(key, mutations) {
            Err(StoreError::NoSpace)
        } else {
            Ok(())
        }
    }

    /// Returns true if a write needs space that it does not have yet. Small overwrites of blocks that are this
    /// object's alone stay in their places, so that a file system can write its notes of a delete on a full
    /// device. A store without the metadata in memory returns true.
    pub fn needs_room(&self, key: &ObjectKey, mutations: &[Mutation]) -> bool {
        self.would_need_room(key, mutations).unwrap_or(true)
    }

    /// The same. Fails if the metadata is not in memory.
    pub(crate) fn would_need_room(&self, key: &ObjectKey, mutations: &[Mutation]) -> Result<bool, StoreError> {
        let mut written_blocks = 0;
        for mutation in mutations {
            let Mutation::Write { offset, length, .. } = mutation else { return Ok(true) };
            let blocks = self.own_blocks(key, *offset, *length)?;
            written_blocks += blocks.len();
            if blocks.contains(&false) {
                return Ok(true);
            }
        }
        Ok(written_blocks * BLOCK_BYTES > INLINE_BYTES_MAX)
    }

    /// Which blocks of a range an object has to itself: small overwrites of them stay in place and need no space.
    pub fn own_blocks(&self, key: &ObjectKey, offset: u64, length: u32) -> Result<Vec<bool>, StoreError> {
        let object = self.metadata.parts.object(key.pg, &key.name);
        let first = (offset / BLOCK_BYTES as u64) as usize;
        let count = (length as usize).div_ceil(BLOCK_BYTES);
        let Some(info) = self.metadata.info(&object)? else { return Ok(vec![false; count]) };
        let blocks = self.metadata.blocks(&object, first, count)?;
        if !info.may_share {
            return Ok(blocks.into_iter().map(|block| block != HOLE).collect());
        }
        let mut references = Changes::new(&self.metadata);
        let mut is_own = |block: BlockMeta| -> Result<bool, Unready> {
            Ok(block != HOLE && references.further_references(block.device_block)? == 0)
        };
        Ok(blocks.into_iter().map(&mut is_own).collect::<Result<_, _>>()?)
    }

    /// Returns true if the mutations add metadata.
    pub fn adds_metadata(mutations: &[Mutation]) -> bool {
        mutations.iter().any(Self::adds)
    }

    fn adds(mutation: &Mutation) -> bool {
        matches!(
            mutation,
            Mutation::OmapSet { .. }
                | Mutation::OmapReplace { value: Some(_), .. }
                | Mutation::Create
                | Mutation::CloneFrom { .. }
                | Mutation::ClonePreImage { .. }
        )
    }

    /// Returns true if the log and the device have room for any transaction. If not, wait until the running
    /// checkpoint is done. A full device still has room, so that deletes are possible.
    pub fn has_log_room(&self) -> bool {
        !self.waits_for_space()
            && self.log.has_room()
            && self.unwritten_page_bytes() <= self.page_budget_bytes / 4 * 3
    }

    /// Bytes of metadata pages that a checkpoint must write before they can be dropped.
    pub(crate) fn unwritten_page_bytes(&self) -> u64 {
        let frozen = self.checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.pages_left());
        ((self.metadata.tree.pages.dirty_count() + frozen) * BLOCK_BYTES) as u64
    }

    /// A split that gives a new PG the history of its parent takes the place of none that the new PG has already.
    pub(crate) fn check_split(&self, transaction: &Transaction) -> Result<(), StoreError> {
        for mutation in &transaction.mutations {
            let Mutation::Split { pg_num_before, pg_num, is_whole: true } = mutation else { continue };
            let split = self.metadata.parts.split(transaction.pg, *pg_num_before, *pg_num, true)?;
            if let Some((pg, _)) = split.made.iter().find(|(pg, _)| self.head(*pg) != Version::default()) {
                let detail = format!("PG {pg}, which would be split off again, has a history of its own");
                return Err(StoreError::Invalid { detail });
            }
        }
        Ok(())
    }

    /// A write of an object must be the next of its PG's history: a gap would hide that the one
    /// before was refused. Log entries of a backfill come in transactions of the PG's own object,
    /// and may leave a gap.
    pub(crate) fn check_follows(&self, transaction: &Transaction) -> Result<(), StoreError> {
        let reset_head = transaction.reset_head();
        check_sequences(transaction, reset_head)
            .map_err(|error| StoreError::Invalid { detail: error.to_string() })?;
        let head = reset_head.unwrap_or_else(|| self.head(transaction.pg));
        match &transaction.log[..] {
            [entry]
                if entry.object == transaction.object
                    && Some(entry.version.sequence) != head.sequence.checked_add(1) =>
            {
                let detail = format!("write {} does not follow the PG's head {head}", entry.version);
                Err(StoreError::Invalid { detail })
            }
            _ => Ok(()),
        }
    }
}
