//! Scrubbing an object of the running store: a digest of all that healthy replicas of it have in
//! common, so that PGs can compare their copies; and, when it is deep, reading its
//! data from the device before.
//!
//! Only errors of the present object count: a block that changed while it was read is looked at again, and a
//! change of metadata while it was loaded restarts the digest.

use std::collections::BTreeMap;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_codec::{Crc64, crc32c};
use bytes::Bytes;

use crate::disk::{DiskOperation, DiskResult};
use crate::event::{ScrubError, ScrubResult, StoreEvent};
use crate::loads::Waiter;
use crate::metadata::{BlockMeta, HOLE, ObjectInfo, ObjectKey, Unready};
use crate::outbox::{Purpose, ScrubPiece};
use crate::overlay::Home;
use crate::store::Store;

/// Attempts of a scrub that changes restart.
const ATTEMPTS_MAX: u32 = 8;
/// Omap entries that are added to a digest at a time. All of them must be in memory at once, so there
/// are few: a small cache of pages must have room for them.
const OMAP_ENTRIES: usize = 128;
const OMAP_BYTES: usize = 64 << 10;

/// Scrubs under way.
#[derive(Default)]
pub(crate) struct Scrubs {
    scrubs: BTreeMap<u64, Scrub>,
}

struct Scrub {
    key: ObjectKey,
    attempt: u32,
    data: Data,
    digest: Option<Digest>,
}

/// How far reading the data is.
enum Data {
    ToRead,
    Reading(Reading),
    Done { bad: Vec<(usize, BlockMeta)> },
}

struct Reading {
    expected: Vec<BlockMeta>,
    from_log: Vec<bool>,
    failed: Vec<usize>,
    pieces_left: usize,
}

/// A digest as far as the omap has been gone through.
struct Digest {
    info: ObjectInfo,
    crc: Crc64,
    /// The last omap key.
    after: Option<Bytes>,
}

/// Reason why a scrub cannot continue at once.
enum Pause {
    /// Blocks are being read.
    Reading,
    /// It starts over.
    Changed,
    Unready(Unready),
    Ended(ScrubError),
}

impl<E: Into<Unready>> From<E> for Pause {
    fn from(cause: E) -> Self {
        Pause::Unready(cause.into())
    }
}

impl Store {
    /// Scrubs an object; a deep scrub reads its data. The result comes as [`StoreEvent::Scrubbed`]
    /// with the id that is returned.
    ///
    /// ```
    /// use atoll_store::{ObjectKey, Store, StoreEvent};
    ///
    /// fn start_deep_scrub(store: &mut Store, key: ObjectKey) -> u64 {
    ///     store.scrub(key, true)
    /// }
    ///
    /// fn bad_blocks(event: StoreEvent) -> Vec<u32> {
    ///     match event {
    ///         StoreEvent::Scrubbed { result: Ok(result), .. } => result.bad_blocks,
    ///         _ => Vec::new(),
    ///     }
    /// }
    /// ```
    pub fn scrub(&mut self, key: ObjectKey, deep: bool) -> u64 {
        let id = self.outbox.next_id();
        let data = if deep { Data::ToRead } else { Data::Done { bad: Vec::new() } };
        self.continue_with(id, Scrub { key, attempt: 0, data, digest: None });
        id
    }

    /// Metadata that a scrub waits for is there.
    pub(crate) fn continue_scrub(&mut self, id: u64) {
        let scrub = self.scrubs.scrubs.remove(&id).expect("a scrub waits for its metadata");
        self.continue_with(id, scrub);
    }

    fn continue_with(&mut self, id: u64, mut scrub: Scrub) {
        let result = loop {
            match self.advance_scrub(id, &mut scrub) {
                Ok(result) => break Ok(result),
                Err(Pause::Reading) => return drop(self.scrubs.scrubs.insert(id, scrub)),
                Err(Pause::Unready(Unready::Cold(cold))) => {
                    self.scrubs.scrubs.insert(id, scrub);
                    return self.wait_for(cold, Waiter::Scrub(id));
                }
                Err(Pause::Unready(Unready::Damaged(error))) => {
                    break Err(ScrubError::DamagedMetadata { detail: error.to_string() });
                }
                Err(Pause::Unready(Unready::Invalid(detail))) => {
                    break Err(ScrubError::DamagedMetadata { detail });
                }
                Err(Pause::Ended(error)) => break Err(error),
                Err(Pause::Changed) if scrub.attempt == ATTEMPTS_MAX => break Err(ScrubError::Busy),
                Err(Pause::Changed) => scrub.attempt += 1,
            }
        };
        self.outbox.tell(StoreEvent::Scrubbed { id, result });
    }

    fn advance_scrub(&mut self, id: u64, scrub: &mut Scrub) -> Result<ScrubResult, Pause> {
        let object = self.metadata.parts.object(scrub.key.pg, &scrub.key.name);
        let info = self.metadata.info(&object)?.ok_or(Pause::Ended(ScrubError::NoSuchObject))?;
        match &mut scrub.data {
            Data::ToRead => {
                let expected = self.all_blocks(&object, &info)?;
                let reading = self.start_reading(id, expected);
                let is_complete = reading.pieces_left == 0;
                scrub.data = Data::Reading(reading);
                if !is_complete {
                    return Err(Pause::Reading);
                }
                return self.advance_scrub(id, scrub);
            }
            Data::Reading(reading) => {
                let now = self.all_blocks(&object, &info)?;
                match self.bad_blocks(reading, &now) {
                    Some(bad) => scrub.data = Data::Done { bad },
                    None => {
                        scrub.data = Data::ToRead;
                        return Err(Pause::Changed);
                    }
                }
            }
            Data::Done { .. } => {}
        }
        let digest = self.advance_digest(&object, &info, &mut scrub.digest)?;
        let Data::Done { bad } = &scrub.data else { unreachable!("the data was read above") };
        // Those that were replaced while the omap was loaded are not bad any more.
        let now = if bad.is_empty() { Vec::new() } else { self.all_blocks(&object, &info)? };
        let still_bad = bad.iter().filter(|(index, meta)| now.get(*index) == Some(meta));
        let bad_blocks: Vec<u32> = still_bad.map(|(index, _)| *index as u32).collect();
        self.usage.corrupt_block_count += bad_blocks.len() as u64;
        let (whole_bytes, seal_shape) = (info.whole_bytes, info.seal_shape());
        Ok(ScrubResult {
            size_bytes: info.size_bytes,
            whole_bytes,
            seal_shape,
            version: info.version,
            digest,
            bad_blocks,
        })
    }

    fn all_blocks(&self, object: &[u8], info: &ObjectInfo) -> Result<Vec<BlockMeta>, Unready> {
        self.metadata.blocks(object, 0, info.size_bytes.div_ceil(BLOCK_BYTES as u64) as usize)
    }

    // ---- data -------------------------------------------------------------------------------

    /// Checks blocks in memory and requests the rest, in runs as long as they are on the device.
    fn start_reading(&mut self, scrub_id: u64, expected: Vec<BlockMeta>) -> Reading {
        let mut reading =
            Reading { from_log: vec![false; expected.len()], failed: Vec::new(), pieces_left: 0, expected };
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (index, meta) in reading.expected.iter().enumerate().filter(|(_, meta)| **meta != HOLE) {
            if let Some(pending) = self.overlay.get(meta.device_block) {
                match (pending.bytes, pending.home) {
                    (Some(bytes), _) if crc32c(bytes) == meta.crc => {}
                    (None, Home::Log { block, .. }) => {
                        reading.from_log[index] = true;
                        reading.pieces_left += 1;
                        let offset = (self.layout.wal_start + block) * BLOCK_BYTES as u64;
                        let piece = Purpose::Scrub(ScrubPiece { scrub_id, first: index, count: 1 });
                        let read = DiskOperation::Read { offset, block_count: 1 };
                        self.outbox.request_on(self.layout.wal_device, piece, read);
                    }
                    _ => reading.failed.push(index),
                }
                continue;
            }
            match runs.last_mut() {
                Some((first, count))
                    if *first + *count == index && reading.expected[*first].is_before(*count, *meta) =>
                {
                    *count += 1;
                }
                _ => runs.push((index, 1)),
            }
        }
        reading.pieces_left += runs.len();
        for (first, count) in runs {
            let offset = u64::from(reading.expected[first].device_block) * BLOCK_BYTES as u64;
            let piece = Purpose::Scrub(ScrubPiece { scrub_id, first, count });
            self.outbox.request(piece, DiskOperation::Read { offset, block_count: count });
        }
        reading
    }

    pub(crate) fn scrub_piece_done(&mut self, piece: ScrubPiece, result: DiskResult) {
        let mut scrub = self.scrubs.scrubs.remove(&piece.scrub_id).expect("a scrub waits for its pieces");
        let Data::Reading(reading) = &mut scrub.data else { unreachable!("its data is being read") };
        reading.take(piece, result);
        if reading.pieces_left > 0 {
            self.scrubs.scrubs.insert(piece.scrub_id, scrub);
        } else {
            self.continue_with(piece.scrub_id, scrub);
        }
    }

    /// Returns the blocks that failed and still are the expected ones. `None` if read blocks may have been
    /// overwritten meanwhile: a block of the log, or one that has newer bytes now.
    fn bad_blocks(&self, reading: &Reading, now: &[BlockMeta]) -> Option<Vec<(usize, BlockMeta)>> {
        let mut bad = Vec::new();
        for &index in &reading.failed {
            let meta = reading.expected[index];
            if now.get(index) != Some(&meta) || reading.from_log[index] && self.is_applied(meta) {
                return None;
            }
            bad.push((index, meta));
        }
        bad.sort_unstable_by_key(|(index, _)| *index);
        Some(bad)
    }

    /// Returns true if a block that was in the log alone has come to its place.
    fn is_applied(&self, meta: BlockMeta) -> bool {
        self.overlay.get(meta.device_block).is_none()
    }

    // ---- the digest -------------------------------------------------------------------------

    fn advance_digest(
        &self,
        object: &[u8],
        info: &ObjectInfo,
        progress: &mut Option<Digest>,
    ) -> Result<u64, Pause> {
        if progress.as_ref().is_some_and(|digest| digest.info != *info) {
            *progress = None;
            return Err(Pause::Changed);
        }
        let mut digest = match progress.take() {
            Some(digest) => digest,
            None => self.start_digest(object, info)?,
        };
        loop {
            let from = digest.after.as_ref().map_or_else(Vec::new, |after| [after, &[0][..]].concat());
            let page = self.metadata.omap_page(object, b"", &from, OMAP_ENTRIES, OMAP_BYTES);
            let (entries, more) = match page {
                Ok(page) => page,
                Err(unready) => {
                    *progress = Some(digest);
                    return Err(unready.into());
                }
            };
            for (key, value) in &entries {
                digest.add_text(key);
                digest.add_text(value);
            }
            match entries.into_iter().next_back() {
                Some((key, _)) if more => digest.after = Some(key),
                _ => return Ok(digest.crc.finish()),
            }
        }
    }

    fn start_digest(&self, object: &[u8], info: &ObjectInfo) -> Result<Digest, Unready> {
        let zeros = crc32c(&[0; BLOCK_BYTES]);
        let mut digest = Digest { info: *info, crc: Crc64::default(), after: None };
        digest.crc.add(&info.size_bytes.to_le_bytes());
        for meta in self.all_blocks(object, info)? {
            let crc = if meta == HOLE { zeros } else { meta.crc };
            digest.crc.add(&crc.to_le_bytes());
        }
        // A copy that never had a seal says the same as one whose seals are all gone.
        let seals = self.metadata.seals(object, info, 0, info.size_bytes)?;
        if let Some(seals) = seals.filter(|seals| seals.bytes.iter().any(|&byte| byte != 0)) {
            digest.crc.add(&seals.unit_bytes.to_le_bytes());
            digest.crc.add(&seals.seal_bytes.to_le_bytes());
            digest.add_text(&seals.bytes);
        }
        Ok(digest)
    }
}

impl Digest {
    /// Adds bytes with their length, so that nothing can move from one text to the next.
    fn add_text(&mut self, text: &[u8]) {
        self.crc.add(&(text.len() as u64).to_le_bytes());
        self.crc.add(text);
    }
}

impl Reading {
    fn take(&mut self, piece: ScrubPiece, result: DiskResult) {
        self.pieces_left -= 1;
        let buffer: Option<BlockBuffer> = result.ok().flatten();
        let buffer = buffer.filter(|buffer| buffer.block_count() == piece.count);
        for position in 0..piece.count {
            let index = piece.first + position;
            let bytes = buffer.as_ref().map(|buffer| &buffer.as_slice()[position * BLOCK_BYTES..][..BLOCK_BYTES]);
            if bytes.is_none_or(|bytes| crc32c(bytes) != self.expected[index].crc) {
                self.failed.push(index);
            }
        }
    }
}
