//! The write-ahead log: a ring of records, each a batch of transactions.
//!
//! ```text
//! magic u32 | crc u32 | incarnation u64 | sequence u64 | durable through u64 | generation u64
//! text bytes u32 | data blocks u32 | transactions u32 | transactions ... padding | data blocks
//! ```
//!
//! The CRC covers everything behind it up to the end of the transactions; the data blocks are covered by the block
//! CRCs inside the transactions. "Durable through" is the newest earlier record that was known to be durable when
//! this one was written: replay uses it to distinguish the torn end of the log from damage in its middle.
//! "Generation" is that of the superblock which was in force: when a superblock is lost, the log says that the one
//! before is not the newest.

use std::sync::Arc;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_codec::{CodecError, Reader, Writer, crc32c};
use atoll_types::{Mutation, Transaction, Version};
use bytes::Bytes;

use crate::plan::{BlockPlacement, Plan};
use crate::validate::check_logged;

const MAGIC: u32 = 0x4c41_5741;
pub(crate) const HEADER_BYTES: usize = 52;
/// Longest record in blocks: the largest transaction or a full batch.
pub(crate) const RECORD_BLOCKS_MAX: u64 = 1024;
/// A batch is closed when its transactions take this many bytes.
pub(crate) const BATCH_BYTES: usize = 1 << 20;

/// Counters of transactions, records and checkpoints stay below this for any age of a store. A higher
/// one, read from a disk, would overflow soon.
const COUNTER_END: u64 = 1 << 62;

/// The number, if it is in the range of a counter.
#[inline]
pub(crate) fn counter(value: u64, what: &'static str) -> Result<u64, CodecError> {
    if value < COUNTER_END { Ok(value) } else { Err(CodecError::Invalid { what, value }) }
}

/// Checks the sequences that a transaction gives to its PG's history. `reset_head` is the
/// transaction's.
#[inline]
pub(crate) fn check_sequences(transaction: &Transaction, reset_head: Option<Version>) -> Result<(), CodecError> {
    let newest = transaction.log.iter().map(|entry| entry.version.sequence).max();
    let newest = newest.max(reset_head.map(|head| head.sequence));
    counter(newest.unwrap_or(0), "sequence of a log entry").map(drop)
}

/// A transaction as the log holds it.
pub(crate) struct LoggedTransaction {
    /// Counts the store's transactions; replay skips those that a checkpoint has already.
    pub number: u64,
    pub transaction: Transaction,
    pub is_inline: bool,
    pub placements: Vec<BlockPlacement>,
}

/// A transaction for the log, encoded but for where its data is; inline data is written beside it.
#[derive(Clone, Copy)]
pub(crate) struct TransactionText<'a> {
    pub number: u64,
    pub encoded: &'a Bytes,
    pub plan: &'a Plan,
}

impl TransactionText<'_> {
    fn encode(self, writer: &mut Writer) {
        writer.u64(self.number);
        writer.raw(self.encoded);
        writer.u8(u8::from(self.plan.inline_data().is_some()));
        self.plan.placements.iter().for_each(|placement| placement.encode(writer));
    }
}

/// Length of a transaction's text in bytes.
pub(crate) fn text_bytes(encoded: &Bytes, plan: &Plan) -> usize {
    let placements = plan.placements.iter().map(BlockPlacement::encoded_bytes);
    8 + encoded.len() + 1 + placements.sum::<usize>()
}

fn decode_transaction(reader: &mut Reader) -> Result<LoggedTransaction, CodecError> {
    let number = counter(reader.u64("transaction number")?, "transaction number")?;
    let transaction = Transaction::decode(reader, Bytes::new())?;
    check_sequences(&transaction, transaction.reset_head())?;
    transaction.mutations.iter().try_for_each(check_logged)?;
    let is_inline = reader.u8("inline")? != 0;
    let mut placements = Vec::new();
    for mutation in &transaction.mutations {
        let Mutation::Write { offset, length, .. } = mutation else { continue };
        let placement = BlockPlacement::decode(reader)?;
        let end_fits =
            offset.checked_add(u64::from(*length)).is_some_and(|end| end <= atoll_types::limits::OBJECT_BYTES_MAX);
        if !end_fits || placement.crcs.len() != (*length as usize).div_ceil(BLOCK_BYTES) {
            return Err(CodecError::Invalid { what: "placed blocks", value: placement.crcs.len() as u64 });
        }
        placements.push(placement);
    }
    Ok(LoggedTransaction { number, transaction, is_inline, placements })
}

/// The blocks that a record with this much text and data takes.
pub(crate) fn record_blocks(text_bytes: usize, data_blocks: usize) -> u64 {
    ((HEADER_BYTES + text_bytes).div_ceil(BLOCK_BYTES) + data_blocks) as u64
}

/// Identity of a record.
#[derive(Clone, Copy)]
pub(crate) struct RecordHead {
    pub incarnation: u64,
    pub sequence: u64,
    pub durable_through: u64,
    pub generation: u64,
}

/// Encodes a record up to its data blocks.
pub(crate) fn encode_record(
    head: RecordHead,
    transactions: &[TransactionText],
    text_bytes: usize,
    data_blocks: usize,
) -> BlockBuffer {
    let mut writer = Writer::with_capacity(HEADER_BYTES + text_bytes);
    writer.u64(head.incarnation);
    writer.u64(head.sequence);
    writer.u64(head.durable_through);
    writer.u64(head.generation);
    writer.u32(text_bytes as u32);
    writer.u32(data_blocks as u32);
    writer.u32(transactions.len() as u32);
    transactions.iter().for_each(|transaction| transaction.encode(&mut writer));
    let checked = writer.as_slice();
    let end = HEADER_BYTES + text_bytes;
    assert!(8 + checked.len() == end, "a record is as long as was counted");
    let mut buffer = BlockBuffer::for_overwriting(end.div_ceil(BLOCK_BYTES));
    let bytes = buffer.as_mut_slice();
    bytes[8..end].copy_from_slice(checked);
    bytes[end..].fill(0);
    let check = crc32c(checked);
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..8].copy_from_slice(&check.to_le_bytes());
    buffer
}

/// The header of a record, not yet checked against its CRC.
pub(crate) struct RecordHeader {
    pub head: RecordHead,
    pub text_bytes: usize,
    pub data_blocks: usize,
    transaction_count: usize,
    check: u32,
}

impl RecordHeader {
    /// Reads the header in a record's first block; `None` if there is none.
    pub fn parse(block: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(Bytes::copy_from_slice(block.get(..HEADER_BYTES)?));
        if reader.u32("magic").ok()? != MAGIC {
            return None;
        }
        let check = reader.u32("check").ok()?;
        let head = RecordHead {
            incarnation: reader.u64("incarnation").ok()?,
            sequence: reader.u64("sequence").ok()?,
            durable_through: reader.u64("durable through").ok()?,
            generation: reader.u64("generation").ok()?,
        };
        let text_bytes = reader.u32("text length").ok()? as usize;
        let data_blocks = reader.u32("data blocks").ok()? as usize;
        let transaction_count = reader.u32("transactions").ok()? as usize;
        let header = RecordHeader { head, text_bytes, data_blocks, transaction_count, check };
        (record_blocks(text_bytes, 0) <= RECORD_BLOCKS_MAX && header.blocks() <= RECORD_BLOCKS_MAX)
            .then_some(header)
    }

    /// Length of the whole record in blocks.
    pub fn blocks(&self) -> u64 {
        record_blocks(self.text_bytes, self.data_blocks)
    }

    /// Checks and decodes the whole record. `None` means that it is torn or damaged.
    pub fn decode(&self, record: &Arc<BlockBuffer>) -> Option<Vec<LoggedTransaction>> {
        let bytes = record.as_slice();
        if crc32c(bytes.get(8..HEADER_BYTES + self.text_bytes)?) != self.check {
            return None;
        }
        let text = Bytes::copy_from_slice(&bytes[HEADER_BYTES..HEADER_BYTES + self.text_bytes]);
        let mut reader = Reader::new(text);
        let mut transactions = Vec::new();
        for _ in 0..self.transaction_count {
            transactions.push(decode_transaction(&mut reader).ok()?);
        }
        reader.finish().ok()?;
        self.data_checks(bytes, &transactions).then_some(transactions)
    }

    /// Block of the record where its data begins.
    pub fn data_start(&self) -> usize {
        (HEADER_BYTES + self.text_bytes).div_ceil(BLOCK_BYTES)
    }

    fn data_checks(&self, bytes: &[u8], transactions: &[LoggedTransaction]) -> bool {
        let data = &bytes[self.data_start() * BLOCK_BYTES..];
        let inline = transactions.iter().filter(|logged| logged.is_inline);
        let crcs: Vec<u32> = inline.flat_map(|logged| &logged.placements).flat_map(|p| p.crcs.clone()).collect();
        crcs.len() == self.data_blocks
            && data.chunks_exact(BLOCK_BYTES).take(crcs.len()).map(crc32c).eq(crcs.iter().copied())
    }
}
