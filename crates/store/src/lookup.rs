//! Lookups of metadata, and waiting for metadata that is not in memory.

use atoll_buffers::BLOCK_BYTES;
use atoll_types::limits::{OBJECTS_COUNTED_MAX, OBJECTS_LISTED_MAX};
use atoll_types::operation::{FENCE_KEY_PREFIX, PG_META_OBJECT};
use atoll_types::{Condition, Mutation, ObjectName, PgId, ReadRequest, Seals};
use bytes::Bytes;

use crate::disk::{DiskOperation, DiskResult};
use crate::error::StoreError;
use crate::event::{LoadId, StoreEvent};
use crate::loads::{LoadRequest, Waiter, Waiters};
use crate::metadata::{
    Changes, Cold, HOLE, ObjectInfo, ObjectKey, ObjectsPage, OmapPage, PageError, Unready, keys,
};
use crate::outbox::Purpose;
use crate::store::Store;
use crate::validate::{validate, written_bytes};

/// Result of a look at the store for a client's write.
#[derive(Debug)]
pub struct Examined {
    /// True if its object exists.
    pub exists: bool,
    /// It only overwrites blocks in place, for which there is always room.
    pub overwrites: bool,
    /// The store's refusal.
    pub check: Result<(), StoreError>,
}

/// Most bytes of keys and values in one page of omap entries.
const OMAP_PAGE_BYTES: usize = 512 << 10;

/// Objects that one page of a listing looks at.
fn listed_max(counts_blocks: bool) -> usize {
    if counts_blocks { OBJECTS_COUNTED_MAX } else { OBJECTS_LISTED_MAX }
}

impl Store {
    /// Returns the properties of an object as a whole.
    pub fn object(&self, key: &ObjectKey) -> Result<Option<ObjectInfo>, StoreError> {
        Ok(self.metadata.info(&self.metadata.parts.object(key.pg, &key.name))?)
    }

    /// The value of an omap entry.
    pub fn omap_value(&self, key: &ObjectKey, omap_key: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self.metadata.omap_value(&self.metadata.parts.object(key.pg, &key.name), omap_key)?)
    }

    /// Omap entries with this prefix from `from` on, in order, up to `limit` of them; and whether
    /// more follow.
    pub fn omap_page(
        &self,
        key: &ObjectKey,
        prefix: &[u8],
        from: &[u8],
        limit: usize,
    ) -> Result<OmapPage, StoreError> {
        Ok(self.metadata.omap_page(
            &self.metadata.parts.object(key.pg, &key.name),
            prefix,
            from,
            limit,
            OMAP_PAGE_BYTES,
        )?)
    }

    /// The seals of all units that overlap `length` bytes from `offset` on.
    pub fn seals(&self, key: &ObjectKey, offset: u64, length: u64) -> Result<Option<Seals>, StoreError> {
        let object = self.metadata.parts.object(key.pg, &key.name);
        let Some(info) = self.metadata.info(&object)? else { return Ok(None) };
        Ok(self.metadata.seals(&object, &info, offset, length)?)
    }

    /// Names of a PG's objects in order, behind `after`, up to `limit` of them.
    pub fn names_after(
        &self,
        pg: PgId,
        after: Option<&ObjectName>,
        limit: usize,
    ) -> Result<Vec<ObjectName>, StoreError> {
        Ok(self.metadata.names_after(pg, after, limit)?)
    }

    /// Returns a PG's objects whose names begin with `prefix`, behind `after`, and the position for the next page.
    /// Without their numbers of blocks more come at once.
    pub fn objects_page(
        &self,
        pg: PgId,
        prefix: &[u8],
        after: Option<&ObjectName>,
        counts_blocks: bool,
    ) -> Result<ObjectsPage, StoreError> {
        Ok(self.metadata.objects_page(pg, prefix, after, listed_max(counts_blocks), counts_blocks)?)
    }

    /// Which blocks of a range of an object hold data, within the object's size.
    pub fn mapped_blocks(&self, key: &ObjectKey, offset: u64, length: u32) -> Result<Vec<bool>, StoreError> {
        let object = self.metadata.parts.object(key.pg, &key.name);
        let first = (offset / BLOCK_BYTES as u64) as usize;
        let count = u64::from(length).div_ceil(BLOCK_BYTES as u64) as usize;
        let blocks = self.metadata.blocks(&object, first, count)?;
        Ok(blocks.into_iter().map(|block| block != HOLE).collect())
    }

    /// Returns true if all metadata of a read is in memory.
    pub fn is_read_loaded(&self, pg: PgId, object: &ObjectName, request: &ReadRequest) -> bool {
        !matches!(self.look_at_read(pg, object, request), Err(Unready::Cold(_)))
    }

    /// Returns true if all metadata of a write is in memory.
    pub fn is_write_loaded(
        &self,
        pg: PgId,
        object: &ObjectName,
        conditions: &[Condition],
        mutations: &[Mutation],
    ) -> bool {
        !matches!(self.look_at_write(pg, object, conditions, mutations), Err(Unready::Cold(_)))
    }

    /// Examines a client's write: everything is looked up once. `None` unless all of it is in memory, as
    /// [`Store::is_write_loaded`] says.
    pub fn examine_write(
        &self,
        pg: PgId,
        object: &ObjectName,
        conditions: &[Condition],
        mutations: &[Mutation],
        payload_bytes: usize,
    ) -> Option<Examined> {
        if let [Mutation::Write { offset, length, seals }] = mutations
            && *length as usize == payload_bytes
            && self.metadata.parts.is_of(pg, object)
        {
            if let Err(Unready::Cold(_)) = self.look_at_conditions(pg, object, conditions) {
                return None;
            }
            match self.metadata.find_overwrite(pg, object, *offset, *length, seals.as_ref()) {
                Ok(Some(_)) => return Some(Examined { exists: true, overwrites: true, check: Ok(()) }),
                Ok(None) => {}
                Err(PageError::Cold(_)) => return None,
                Err(error) => {
                    let check = Err(Unready::from(error).into());
                    return Some(Examined { exists: false, overwrites: false, check });
                }
            }
        }
        if !self.is_write_loaded(pg, object, conditions, mutations) {
            return None;
        }
        let key = ObjectKey { pg, name: object.clone() };
        let (exists, found) = match self.object(&key) {
            Ok(info) => (info.is_some(), Ok(())),
            Err(error) => (false, Err(error)),
        };
        let check = found.and_then(|()| self.check(&key, mutations, payload_bytes));
        Some(Examined { exists, overwrites: false, check })
    }

    fn look_at_read(&self, pg: PgId, object: &ObjectName, request: &ReadRequest) -> Result<(), Unready> {
        if let ReadRequest::ObjectList { prefix, after, counts_blocks, .. } = request {
            let limit = listed_max(*counts_blocks);
            return self.metadata.objects_page(pg, prefix, after.as_ref(), limit, *counts_blocks).map(drop);
        }
        let object = self.metadata.parts.object(pg, object);
        if self.metadata.tree.get(&keys::header(&object))?.is_none() {
            return Ok(());
        }
        match request {
            ReadRequest::Stat | ReadRequest::ObjectList { .. } => Ok(()),
            ReadRequest::Data { offset, length, .. } | ReadRequest::Extents { offset, length } => {
                let first = (*offset / BLOCK_BYTES as u64) as usize;
                let count = u64::from(*length).div_ceil(BLOCK_BYTES as u64) as usize;
                Ok(self.metadata.look_at_blocks(&object, first, count)?)
            }
            ReadRequest::OmapGet { key } => self.metadata.omap_value(&object, key).map(drop),
            ReadRequest::OmapList { prefix, from, limit } => {
                self.metadata.omap_page(&object, prefix, from, *limit as usize, OMAP_PAGE_BYTES).map(drop)
            }
        }
    }

    fn look_at_write(
        &self,
        pg: PgId,
        name: &ObjectName,
        conditions: &[Condition],
        mutations: &[Mutation],
    ) -> Result<(), Unready> {
        let object = self.metadata.parts.object(pg, name);
        self.metadata.tree.touch(&keys::header(&object))?;
        let info = self.metadata.info(&object)?;
        // Conditions are looked at of any write, also of one that will be refused for something else.
        self.look_at_conditions(pg, name, conditions)?;
        // Ranges come from clients. A write that breaks a rule will be refused and needs no more
        // metadata.
        if validate(mutations, written_bytes(mutations), info.as_ref()).is_err() {
            return Ok(());
        }
        // What writes and zeros touch is looked up directly; they are what must be fast.
        let may_share = info.is_some_and(|info| info.may_share);
        let is_plain = |mutation: &Mutation| matches!(mutation, Mutation::Write { .. } | Mutation::Create);
        if !may_share && mutations.iter().all(is_plain) {
            for mutation in mutations {
                let Mutation::Write { offset, length, .. } = mutation else { continue };
                let first = *offset / crate::metadata::CHUNK_BYTES;
                let end = (offset + u64::from(*length)).div_ceil(crate::metadata::CHUNK_BYTES);
                for index in first..end {
                    self.metadata.tree.get(&keys::chunk(&object, index as usize))?;
                }
            }
            return Ok(());
        }
        crate::plan::look_at(pg, &object, mutations, Changes::new(&self.metadata))
    }

    fn look_at_conditions(&self, pg: PgId, name: &ObjectName, conditions: &[Condition]) -> Result<(), Unready> {
        for condition in conditions {
            match condition {
                Condition::ObjectExists | Condition::ObjectAbsent | Condition::PgNum { .. } => {}
                Condition::OmapExists { key }
                | Condition::OmapAbsent { key }
                | Condition::OmapEquals { key, .. } => {
                    let object = self.metadata.parts.object(pg, name);
                    self.metadata.omap_value(&object, key)?;
                }
                Condition::OtherExists { object } => {
                    self.metadata.info(&self.metadata.parts.object(pg, object))?;
                }
                Condition::NotFenced { name, .. } => {
                    let own = ObjectName::new(PG_META_OBJECT).expect("the name is short");
                    let own = self.metadata.parts.object(pg, &own);
                    self.metadata.omap_value(&own, &[FENCE_KEY_PREFIX, name].concat())?;
                }
            }
        }
        Ok(())
    }

    /// Loads metadata. [`StoreEvent::Loaded`] follows, at once if nothing is missing.
    pub fn load(&mut self, request: LoadRequest) -> LoadId {
        let id = LoadId(self.outbox.next_id());
        let missing = match &request {
            LoadRequest::Pages(cold) => Err(Unready::Cold(cold.clone())),
            request => self.look_at(request),
        };
        match missing {
            Err(Unready::Cold(cold)) => {
                self.loads.requests.insert(id, request);
                self.wait_for(cold, Waiter::Load(id));
            }
            _ => self.outbox.tell(StoreEvent::Loaded(id)),
        }
        id
    }

    fn look_at(&self, request: &LoadRequest) -> Result<(), Unready> {
        match request {
            LoadRequest::Pages(_) => Ok(()),
            LoadRequest::Read { pg, object, request } => self.look_at_read(*pg, object, request),
            LoadRequest::Write { pg, object, conditions, mutations } => {
                self.look_at_write(*pg, object, conditions, mutations)
            }
        }
    }

    /// Has cold pages read; the waiter is woken when the first of them is there.
    pub(crate) fn wait_for(&mut self, cold: Cold, waiter: Waiter) {
        let needed = cold.0[0];
        if self.metadata.tree.pages.is_resident(needed) {
            return self.wake(waiter);
        }
        cold.0.into_iter().for_each(|number| self.load_page(number));
        let since = self.metadata.tree.pages.turn();
        let waiters = self.loads.waiters.entry(needed).or_insert(Waiters { since, waiters: Vec::new() });
        waiters.waiters.push(waiter);
    }

    /// Has a page read, unless it is in memory or being read.
    pub(crate) fn load_page(&mut self, number: u32) {
        if self.metadata.tree.pages.start_loading(number) {
            self.request_page(number, false);
        }
    }

    fn request_page(&mut self, number: u32, is_again: bool) {
        let block = self.metadata.tree.pages.location(number).block;
        let offset = u64::from(block) * BLOCK_BYTES as u64;
        self.outbox.request(Purpose::Page { number, is_again }, DiskOperation::Read { offset, block_count: 1 });
    }

    /// A page has been read. One with other content than the written one is read once more: the way may have been
    /// at fault.
    pub(crate) fn page_read(&mut self, number: u32, is_again: bool, result: DiskResult) {
        let is_good = match result {
            Ok(Some(block)) => self.metadata.tree.pages.loaded(number, block),
            Err(error) if !is_lost_by_medium(&error) => {
                // It may be there all the same when the device is back.
                return self.poison(format!("metadata page {number} cannot be read: {error}"));
            }
            Ok(None) | Err(_) => {
                self.metadata.tree.pages.not_loaded(number);
                false
            }
        };
        if !is_good {
            self.usage.corrupt_block_count += 1;
            if !is_again && self.metadata.tree.pages.start_loading(number) {
                return self.request_page(number, true);
            }
            return self.poison_by_damage(format!("metadata page {number} is damaged"));
        }
        let waiters = self.loads.waiters.remove(&number);
        for waiter in waiters.into_iter().flat_map(|waiters| waiters.waiters) {
            self.wake(waiter);
        }
    }

    fn wake(&mut self, waiter: Waiter) {
        match waiter {
            Waiter::Read(id) => self.continue_cold_read(id),
            Waiter::Scrub(id) => self.continue_scrub(id),
            Waiter::Checkpoint => self.checkpoint_page_loaded(),
            Waiter::Load(id) => {
                let Some(request) = self.loads.requests.remove(&id) else { return };
                match self.look_at(&request) {
                    Err(Unready::Cold(cold)) => {
                        self.loads.requests.insert(id, request);
                        self.wait_for(cold, waiter);
                    }
                    _ => self.outbox.tell(StoreEvent::Loaded(id)),
                }
            }
        }
    }
}

/// Returns true if an error means that the medium has lost the bytes, and not that the device is away: ENODATA and
/// EILSEQ stand for a critical error of the medium and for failed protection information.
fn is_lost_by_medium(error: &std::io::Error) -> bool {
    const ENODATA: i32 = 61;
    const EILSEQ: i32 = 84;
    matches!(error.raw_os_error(), Some(ENODATA | EILSEQ))
}
