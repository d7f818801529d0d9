//! Checkpoints: applying the log's small writes to their places, writing the metadata to the other
//! slot, and swapping the superblock, after which the log is trimmed. Client I/O goes on beside it.
//!
//! A chunk is up to 1 MiB: `magic u32 | crc u32 | generation u64 | index u64 | length u32 | bytes`.
//! The bytes of all chunks together are records, each with a `u32` length in front.

use std::collections::VecDeque;
use std::sync::Arc;

use atoll_base::limits::PG_LOG_ENTRIES;
use atoll_base::{
    BLOCK_BYTES, BlockBuffer, CodecError, LogEntry, ObjectName, PgId, Reader, Version, Writer, crc32c,
};
use bytes::{Buf, Bytes, BytesMut};

use crate::disk::{DiskOperation, Segment, WRITE_SEGMENTS_MAX};
use crate::metadata::{Metadata, ObjectKey};
use crate::onode::{Onode, decode_omap_entry};
use crate::overlay::PendingBlock;
use crate::store::{PgState, Purpose, Store};
use crate::superblock::Superblock;

const CHUNK_MAGIC: u32 = 0x4b4e_4843;
const CHUNK_HEADER_BYTES: usize = 28;
pub(crate) const CHUNK_BLOCKS: usize = 256;
const CHUNK_BYTES_MAX: usize = CHUNK_BLOCKS * BLOCK_BYTES - CHUNK_HEADER_BYTES;
const OMAP_ENTRIES_PER_RECORD: usize = 256;
const RECORD_BYTES_MAX: usize = 1 << 30;
/// Requests that a checkpoint has in flight at once, so that it leaves room for clients.
const REQUESTS_MAX: usize = 8;

/// A piece of checkpointed metadata.
pub(crate) enum Record {
    Pg(PgId, PgState),
    Object(ObjectKey, Onode),
    /// More omap entries of the object before.
    Omap(Vec<(Bytes, Bytes)>),
}

impl Record {
    fn encode_pg(pg: &PgId, state: &PgState, writer: &mut Writer) {
        writer.u8(1);
        pg.encode(writer);
        state.head.encode(writer);
        writer.u64(state.applied_number);
        writer.u32(state.log.len() as u32);
        state.log.iter().for_each(|entry| entry.encode(writer));
    }

    fn encode_object(key: &ObjectKey, onode: &Onode, writer: &mut Writer) {
        writer.u8(2);
        key.pg.encode(writer);
        key.name.encode(writer);
        onode.encode(writer);
    }

    fn encode_omap<'a>(entries: impl ExactSizeIterator<Item = (&'a Bytes, &'a Bytes)>, writer: &mut Writer) {
        writer.u8(3);
        writer.u32(entries.len() as u32);
        for (key, value) in entries {
            writer.bytes(key);
            writer.bytes(value);
        }
    }

    fn decode(bytes: Bytes) -> Result<Self, CodecError> {
        let mut reader = Reader::new(bytes);
        let record = match reader.u8("record kind")? {
            1 => {
                let pg = PgId::decode(&mut reader)?;
                let head = Version::decode(&mut reader)?;
                let applied_number = reader.u64("applied number")?;
                let count = reader.count(PG_LOG_ENTRIES, "log entries")?;
                let log = (0..count).map(|_| LogEntry::decode(&mut reader).map(Arc::new));
                let log = log.collect::<Result<VecDeque<_>, _>>()?;
                Record::Pg(pg, PgState { head, applied_number, log })
            }
            2 => {
                let pg = PgId::decode(&mut reader)?;
                let name = ObjectName::decode(&mut reader)?;
                Record::Object(ObjectKey { pg, name }, Onode::decode(&mut reader)?)
            }
            3 => {
                let count = reader.count(OMAP_ENTRIES_PER_RECORD, "omap entries")?;
                Record::Omap((0..count).map(|_| decode_omap_entry(&mut reader)).collect::<Result<_, _>>()?)
            }
            value => return Err(CodecError::Invalid { what: "record kind", value: value.into() }),
        };
        reader.finish()?;
        Ok(record)
    }
}

/// Cuts the bytes of all chunks into records.
#[derive(Default)]
pub(crate) struct RecordReader {
    buffer: BytesMut,
}

impl RecordReader {
    pub fn push(&mut self, chunk: &[u8]) {
        self.buffer.extend_from_slice(chunk);
    }

    pub fn next(&mut self) -> Result<Option<Record>, CodecError> {
        let Some(&length) = self.buffer.first_chunk::<4>() else { return Ok(None) };
        let length = u32::from_le_bytes(length) as usize;
        if length > RECORD_BYTES_MAX {
            return Err(CodecError::Invalid { what: "record length", value: length as u64 });
        }
        if self.buffer.len() < 4 + length {
            return Ok(None);
        }
        self.buffer.advance(4);
        Record::decode(self.buffer.split_to(length).freeze()).map(Some)
    }

    pub fn finish(self) -> Result<(), CodecError> {
        match self.buffer.len() {
            0 => Ok(()),
            count => Err(CodecError::LeftOver { count }),
        }
    }
}

/// Checks a chunk and returns its bytes.
pub(crate) fn decode_chunk(block: &BlockBuffer, generation: u64, index: u64) -> Option<&[u8]> {
    let bytes = block.as_slice();
    let mut reader = Reader::new(Bytes::copy_from_slice(bytes.get(..CHUNK_HEADER_BYTES)?));
    let magic = reader.u32("magic").ok()?;
    let check = reader.u32("check").ok()?;
    let identity = (reader.u64("generation").ok()?, reader.u64("index").ok()?);
    let length = reader.u32("length").ok()? as usize;
    let covered = bytes.get(8..CHUNK_HEADER_BYTES + length)?;
    let fits = magic == CHUNK_MAGIC && identity == (generation, index) && crc32c(covered) == check;
    fits.then(|| &bytes[CHUNK_HEADER_BYTES..CHUNK_HEADER_BYTES + length])
}

fn encode_chunk(content: &[u8], generation: u64, index: u64) -> BlockBuffer {
    let mut writer = Writer::with_capacity(CHUNK_HEADER_BYTES);
    writer.u64(generation);
    writer.u64(index);
    writer.u32(content.len() as u32);
    let mut buffer = BlockBuffer::zeroed((CHUNK_HEADER_BYTES + content.len()).div_ceil(BLOCK_BYTES));
    let bytes = buffer.as_mut_slice();
    bytes[8..CHUNK_HEADER_BYTES].copy_from_slice(writer.as_slice());
    bytes[CHUNK_HEADER_BYTES..CHUNK_HEADER_BYTES + content.len()].copy_from_slice(content);
    let check = crc32c(&bytes[8..CHUNK_HEADER_BYTES + content.len()]);
    bytes[..4].copy_from_slice(&CHUNK_MAGIC.to_le_bytes());
    bytes[4..8].copy_from_slice(&check.to_le_bytes());
    buffer
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Transactions in the snapshot are not all durable in the log yet.
    WaitForLog,
    /// Applying blocks and writing chunks.
    Write,
    Sync,
    Superblock,
}

pub(crate) struct Checkpoint<S> {
    phase: Phase,
    /// The snapshot holds the transactions below this number.
    freeze_number: u64,
    /// Log position up to which records may be trimmed.
    pub wal_trim_to: u64,
    superblock: Superblock,
    pgs: VecDeque<(PgId, PgState)>,
    objects: S,
    /// Encoded records that are not in a chunk yet.
    encoded: BytesMut,
    encoding_done: bool,
    apply: Vec<(u32, PendingBlock)>,
    apply_position: usize,
    requests_in_flight: usize,
    freed: Vec<u32>,
}

impl<M: Metadata> Store<M> {
    /// Whether a checkpoint runs.
    pub fn is_checkpointing(&self) -> bool {
        self.checkpoint.is_some()
    }

    /// Starts a checkpoint of the state as it is now, unless one runs.
    pub fn start_checkpoint(&mut self) {
        if self.checkpoint.is_some() || self.poisoned.is_some() {
            return;
        }
        let (wal_position, wal_sequence) = self.wal_head();
        self.text_being_checkpointed_bytes = std::mem::take(&mut self.text_since_checkpoint_bytes);
        let superblock = Superblock {
            generation: self.superblock.generation + 1,
            slot: 1 - self.superblock.slot,
            chunk_count: 0,
            incarnation: self.incarnation,
            wal_position,
            wal_sequence,
            ..self.superblock.clone()
        };
        self.checkpoint = Some(Checkpoint {
            phase: Phase::WaitForLog,
            freeze_number: self.next_number,
            wal_trim_to: self.wal_appended_blocks(),
            superblock,
            pgs: self.pgs.iter().map(|(pg, state)| (*pg, state.clone())).collect(),
            objects: self.metadata.snapshot(),
            encoded: BytesMut::new(),
            encoding_done: false,
            apply: self.overlay.in_log_sorted(),
            apply_position: 0,
            requests_in_flight: 0,
            freed: std::mem::take(&mut self.freed),
        });
        self.advance_checkpoint();
    }

    /// Moves the checkpoint on; called whenever something that it waits for may have happened.
    pub(crate) fn advance_checkpoint(&mut self) {
        let Some(mut checkpoint) = self.checkpoint.take() else { return };
        if checkpoint.phase == Phase::WaitForLog {
            let oldest = self.oldest_uncommitted_number();
            if oldest.is_none_or(|number| number >= checkpoint.freeze_number) {
                checkpoint.phase = Phase::Write;
            }
        }
        if checkpoint.phase == Phase::Write {
            self.write_checkpoint(&mut checkpoint);
            if checkpoint.is_written() {
                checkpoint.phase = Phase::Sync;
                checkpoint.requests_in_flight = 1;
                self.request(Purpose::Checkpoint, DiskOperation::Sync);
            }
        }
        self.checkpoint = Some(checkpoint);
    }

    fn write_checkpoint(&mut self, checkpoint: &mut Checkpoint<M::Snapshot>) {
        while checkpoint.requests_in_flight < REQUESTS_MAX {
            if let Some((offset, segments)) = checkpoint.next_run() {
                let write = DiskOperation::Write { offset, segments, durable: false };
                self.request(Purpose::Checkpoint, write);
            } else if let Some(chunk) = checkpoint.next_chunk() {
                let index = checkpoint.superblock.chunk_count;
                checkpoint.superblock.chunk_count += 1;
                let slot = usize::from(checkpoint.superblock.slot);
                let block = self.layout.slot_start[slot] + index * CHUNK_BLOCKS as u64;
                if (index + 1) * CHUNK_BLOCKS as u64 > self.layout.slot_blocks {
                    self.poison("the metadata does not fit into its slot".into());
                    return;
                }
                let buffer = encode_chunk(&chunk, checkpoint.superblock.generation, index);
                let segment =
                    Segment { block_count: buffer.block_count(), buffer: Arc::new(buffer), first_block: 0 };
                let offset = block * BLOCK_BYTES as u64;
                let write = DiskOperation::Write { offset, segments: vec![segment], durable: false };
                self.request(Purpose::Checkpoint, write);
            } else {
                return;
            }
            checkpoint.requests_in_flight += 1;
        }
    }

    pub(crate) fn checkpoint_request_done(&mut self) {
        let checkpoint = self.checkpoint.as_mut().expect("a checkpoint waits for its requests");
        checkpoint.requests_in_flight -= 1;
        match checkpoint.phase {
            Phase::WaitForLog | Phase::Write => self.advance_checkpoint(),
            Phase::Sync => {
                checkpoint.phase = Phase::Superblock;
                checkpoint.requests_in_flight = 1;
                let offset = checkpoint.superblock.block() * BLOCK_BYTES as u64;
                let buffer = Arc::new(checkpoint.superblock.encode());
                let segments = vec![Segment { buffer, first_block: 0, block_count: 1 }];
                self.request(Purpose::Checkpoint, DiskOperation::Write { offset, segments, durable: true });
            }
            Phase::Superblock => self.finish_checkpoint(),
        }
    }

    fn finish_checkpoint(&mut self) {
        let checkpoint = self.checkpoint.take().expect("called with a checkpoint");
        self.superblock = checkpoint.superblock;
        self.text_being_checkpointed_bytes = 0;
        for (device_block, applied) in &checkpoint.apply {
            self.overlay.remove_if_from(*device_block, &applied.buffer);
        }
        checkpoint.freed.iter().for_each(|&block| self.allocator.release(block));
        self.trim_wal(checkpoint.wal_trim_to);
        self.usage.checkpoint_count += 1;
    }
}

impl<S: Iterator<Item = (ObjectKey, Arc<Onode>)>> Checkpoint<S> {
    fn is_written(&self) -> bool {
        let all_encoded = self.encoding_done && self.encoded.is_empty();
        all_encoded && self.apply_position == self.apply.len() && self.requests_in_flight == 0
    }

    /// The next run of adjacent blocks to apply.
    fn next_run(&mut self) -> Option<(u64, Vec<Segment>)> {
        let (first, _) = self.apply.get(self.apply_position)?;
        let first = *first;
        let mut segments = Vec::new();
        while let Some((block, pending)) = self.apply.get(self.apply_position) {
            if *block != first + segments.len() as u32 || segments.len() == WRITE_SEGMENTS_MAX {
                break;
            }
            let buffer = Arc::clone(&pending.buffer);
            segments.push(Segment { buffer, first_block: pending.index, block_count: 1 });
            self.apply_position += 1;
        }
        Some((u64::from(first) * BLOCK_BYTES as u64, segments))
    }

    /// Encodes until a chunk is full or everything is encoded.
    fn next_chunk(&mut self) -> Option<Bytes> {
        while self.encoded.len() < CHUNK_BYTES_MAX && !self.encoding_done {
            if let Some((pg, state)) = self.pgs.pop_front() {
                self.push_record(|writer| Record::encode_pg(&pg, &state, writer));
            } else if let Some((key, onode)) = self.objects.next() {
                self.push_record(|writer| Record::encode_object(&key, &onode, writer));
                let entries: Vec<_> = onode.omap.iter().collect();
                for batch in entries.chunks(OMAP_ENTRIES_PER_RECORD) {
                    self.push_record(|writer| Record::encode_omap(batch.iter().copied(), writer));
                }
            } else {
                self.encoding_done = true;
            }
        }
        let length = self.encoded.len().min(CHUNK_BYTES_MAX);
        (length > 0).then(|| self.encoded.split_to(length).freeze())
    }

    fn push_record(&mut self, encode: impl FnOnce(&mut Writer)) {
        let mut writer = Writer::with_capacity(1024);
        encode(&mut writer);
        self.encoded.extend_from_slice(&(writer.len() as u32).to_le_bytes());
        self.encoded.extend_from_slice(writer.as_slice());
    }
}
