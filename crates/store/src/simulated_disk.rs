//! Simulated devices for tests and simulations, with the crash model of DESIGN section 7: a write that was not synced
//! may be kept, dropped or torn at 512 bytes when the power is cut, in any order. Copies share all content, so that
//! every device write can be followed by a power cut of its own.

#![allow(missing_docs, clippy::unwrap_used)] // for tests

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};

use crate::disk::{Device, Disk, DiskOperation, DiskRequest, DiskResult, Segment};

const SECTOR_BYTES: usize = 512;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Content of a hole.
const DISCARDED: [u8; BLOCK_BYTES] = [0; BLOCK_BYTES];

type Block = Arc<[u8; BLOCK_BYTES]>;
type Blocks = BTreeMap<u64, Block>;

/// Source of chance; each simulation has one.
pub trait Chance {
    fn below(&mut self, bound: u64) -> u64;

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// A source of chance that always gives the same from one number.
struct Fixed(u64);

impl Chance for Fixed {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % bound
    }
}

#[derive(Clone)]
struct Unsynced {
    block: u64,
    /// Counts the writes of the device; data that a later synced write replaced cannot come back.
    time: u64,
    content: Block,
}

/// One device. Blocks that were never written read as zeros.
#[derive(Clone)]
struct Medium {
    size_bytes: u64,
    current: Blocks,
    durable: Blocks,
    unsynced: Vec<Unsynced>,
    /// When blocks were last written durably while unsynced writes were about.
    durable_at: BTreeMap<u64, u64>,
    time: u64,
}

fn put(map: &mut Blocks, block: u64, content: &Block) {
    if content[..] == [0; BLOCK_BYTES] {
        map.remove(&block);
    } else {
        map.insert(block, Arc::clone(content));
    }
}

impl Medium {
    fn new(size_bytes: u64) -> Self {
        Medium {
            size_bytes,
            current: BTreeMap::new(),
            durable: BTreeMap::new(),
            unsynced: Vec::new(),
            durable_at: BTreeMap::new(),
            time: 0,
        }
    }

    fn write(&mut self, block: u64, bytes: &[u8], durable: bool) {
        let content: Block = Arc::new(bytes.try_into().unwrap());
        self.time += 1;
        put(&mut self.current, block, &content);
        if durable {
            put(&mut self.durable, block, &content);
            self.durable_at.insert(block, self.time);
        } else {
            self.unsynced.push(Unsynced { block, time: self.time, content });
        }
    }

    fn sync(&mut self) {
        self.durable = self.current.clone();
        self.unsynced = Vec::new();
        self.durable_at = BTreeMap::new();
    }

    /// Keeps some sectors of a write.
    fn keep_partly(&mut self, block: u64, content: &Block, percent: u64, random: &mut impl Chance) {
        let mut merged = self.durable.get(&block).map_or([0; BLOCK_BYTES], |old| **old);
        for (old, new) in merged.chunks_exact_mut(SECTOR_BYTES).zip(content.chunks_exact(SECTOR_BYTES)) {
            if random.chance(percent) {
                old.copy_from_slice(new);
            }
        }
        put(&mut self.durable, block, &Arc::new(merged));
    }

    fn forget_unsynced(&mut self) {
        self.unsynced = Vec::new();
        self.current = self.durable.clone();
        self.durable_at = BTreeMap::new();
    }

    fn crash(&mut self, random: &mut impl Chance) {
        // Whole writes and torn ones; none, some or all of them.
        let (tear_percent, keep_percent) = (random.pick(&[0, 20, 100]), random.pick(&[0, 10, 50, 90, 100]));
        for write in std::mem::take(&mut self.unsynced) {
            if self.durable_at.get(&write.block).is_some_and(|time| *time > write.time) {
                continue;
            }
            let is_torn = random.chance(tear_percent);
            let percent = if is_torn || random.chance(keep_percent) { 100 } else { 0 };
            let percent = if is_torn { keep_percent } else { percent };
            self.keep_partly(write.block, &write.content, percent, random);
        }
        self.current = self.durable.clone();
        self.durable_at = BTreeMap::new();
    }
}

/// The devices of a store.
#[derive(Clone)]
pub struct SimulatedDisk {
    data: Medium,
    log: Option<Medium>,
    /// Writes that are still done before the power goes.
    pub writes_left: Option<u64>,
    /// Blocks that were given back.
    pub discarded_blocks: u64,
}

impl SimulatedDisk {
    pub fn new(size_bytes: u64, log_bytes: Option<u64>) -> Self {
        SimulatedDisk {
            data: Medium::new(size_bytes),
            log: log_bytes.map(Medium::new),
            writes_left: None,
            discarded_blocks: 0,
        }
    }

    fn medium(&mut self, device: Device) -> &mut Medium {
        match device {
            Device::Data => &mut self.data,
            Device::Log => self.log.as_mut().expect("there is a log device"),
        }
    }

    /// Carries out a request, which is still there for a report afterwards.
    pub fn execute_request(&mut self, request: &DiskRequest) -> DiskResult {
        let operation = match &request.operation {
            DiskOperation::Read { offset, block_count } => {
                DiskOperation::Read { offset: *offset, block_count: *block_count }
            }
            DiskOperation::Write { offset, segments, durable } => {
                let segments: Vec<Segment> = segments.clone();
                DiskOperation::Write { offset: *offset, segments, durable: *durable }
            }
            DiskOperation::WriteBytes { offset, bytes } => {
                DiskOperation::WriteBytes { offset: *offset, bytes: bytes.clone() }
            }
            DiskOperation::Sync => DiskOperation::Sync,
            DiskOperation::Discard { offset, block_count } => {
                DiskOperation::Discard { offset: *offset, block_count: *block_count }
            }
        };
        self.execute(request.device, operation)
    }

    /// A write that is under way when the power is cut: each sector may or may not arrive.
    pub fn write_partly(&mut self, device: Device, operation: &DiskOperation, random: &mut impl Chance) {
        let discarded = [0; BLOCK_BYTES];
        let (offset, pieces) = match operation {
            DiskOperation::Discard { offset, block_count } => (*offset, vec![&discarded[..]; *block_count]),
            operation => match operation.written() {
                Some(written) => written,
                None => return,
            },
        };
        let percent = random.pick(&[0, 30, 70, 95, 100]);
        // Whole blocks may arrive while others do not, or all of them may be torn.
        let tears = random.chance(50);
        let blocks = pieces.iter().flat_map(|piece| piece.chunks_exact(BLOCK_BYTES));
        for (block, bytes) in (offset / BLOCK..).zip(blocks) {
            let percent = if tears { percent } else { 100 * u64::from(random.chance(percent)) };
            let medium = self.medium(device);
            medium.keep_partly(block, &Arc::new(bytes.try_into().unwrap()), percent, random);
            // What is synced may not be replaced by an older write, whether this one was or not.
            medium.time += 1;
        }
    }

    /// Cuts the power: of every write that is not synced, none, some or all sectors are kept.
    pub fn crash(&mut self, random: &mut impl Chance) {
        self.data.crash(random);
        if let Some(log) = &mut self.log {
            log.crash(random);
        }
        self.writes_left = None;
    }

    /// Cuts the power, and nothing that was not synced is kept.
    pub fn forget_unsynced(&mut self) {
        self.data.forget_unsynced();
        if let Some(log) = &mut self.log {
            log.forget_unsynced();
        }
    }

    // ---- damage -----------------------------------------------------------------------------

    /// Blocks that hold anything but zeros.
    pub fn blocks(&self, device: Device) -> Vec<u64> {
        let medium = if device == Device::Data { Some(&self.data) } else { self.log.as_ref() };
        medium.map_or(Vec::new(), |medium| medium.current.keys().copied().collect())
    }

    pub fn block(&self, device: Device, block: u64) -> [u8; BLOCK_BYTES] {
        let medium = if device == Device::Data { Some(&self.data) } else { self.log.as_ref() };
        medium.and_then(|medium| medium.current.get(&block)).map_or([0; BLOCK_BYTES], |content| **content)
    }

    pub fn set_block(&mut self, device: Device, block: u64, bytes: &[u8; BLOCK_BYTES]) {
        self.medium(device).write(block, bytes, true);
    }

    /// Damages one sector of a block: a flipped bit, noise, or zeros.
    pub fn rot(&mut self, device: Device, block: u64, random: &mut impl Chance) {
        let mut bytes = self.block(device, block);
        let sectors = (BLOCK_BYTES / SECTOR_BYTES) as u64;
        let sector = random.below(sectors) as usize * SECTOR_BYTES;
        let sector = &mut bytes[sector..sector + SECTOR_BYTES];
        match random.below(3) {
            0 => sector[random.below(SECTOR_BYTES as u64) as usize] ^= 1 << random.below(8),
            1 => sector.iter_mut().for_each(|byte| *byte = random.below(256) as u8),
            _ => sector.fill(0),
        }
        self.set_block(device, block, &bytes);
    }
}

impl Disk for SimulatedDisk {
    fn size_bytes(&self, device: Device) -> Option<u64> {
        match device {
            Device::Data => Some(self.data.size_bytes),
            Device::Log => self.log.as_ref().map(|log| log.size_bytes),
        }
    }

    fn execute(&mut self, device: Device, operation: DiskOperation) -> DiskResult {
        match operation {
            DiskOperation::Read { offset, block_count } => {
                let medium = self.medium(device);
                if offset + block_count as u64 * BLOCK > medium.size_bytes {
                    return Err(io::Error::other("read beyond the device"));
                }
                let mut buffer = BlockBuffer::zeroed(block_count);
                let first = offset / BLOCK;
                for (block, content) in medium.current.range(first..first + block_count as u64) {
                    let start = (block - first) as usize * BLOCK_BYTES;
                    buffer.as_mut_slice()[start..start + BLOCK_BYTES].copy_from_slice(&content[..]);
                }
                Ok(Some(buffer))
            }
            DiskOperation::Write { .. } | DiskOperation::WriteBytes { .. } => {
                let (offset, pieces) = operation.written().unwrap();
                let durable = !matches!(operation, DiskOperation::Write { durable: false, .. });
                if let Some(left) = &mut self.writes_left {
                    if *left == 0 {
                        self.write_partly(device, &operation, &mut Fixed(offset));
                        return Err(io::Error::other("the power is gone"));
                    }
                    *left -= 1;
                }
                let medium = self.medium(device);
                let mut block = offset / BLOCK;
                for bytes in pieces.iter().flat_map(|piece| piece.chunks_exact(BLOCK_BYTES)) {
                    medium.write(block, bytes, durable);
                    block += 1;
                }
                assert!(block * BLOCK <= medium.size_bytes, "write beyond the device");
                Ok(None)
            }
            DiskOperation::Sync => {
                self.medium(device).sync();
                Ok(None)
            }
            DiskOperation::Discard { offset, block_count } => {
                if let Some(0) = self.writes_left {
                    return Err(io::Error::other("the power is gone"));
                }
                // After a power cut any part of it may be undone.
                let (first, count) = (offset / BLOCK, block_count as u64);
                let medium = self.medium(device);
                (first..first + count).for_each(|block| medium.write(block, &DISCARDED, false));
                self.discarded_blocks += count;
                Ok(None)
            }
        }
    }
}
