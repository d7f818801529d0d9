//! A simulated device with the crash model of DESIGN section 7: a write that was not synced may be
//! kept, dropped or torn at 512 bytes when the power is cut, in any order.

use std::collections::BTreeMap;
use std::io;

use atoll_base::{BLOCK_BYTES, BlockBuffer};
use atoll_store::{Device, Disk, DiskOperation, DiskResult};

const SECTOR_BYTES: usize = 512;
const SECTORS_PER_BLOCK: usize = BLOCK_BYTES / SECTOR_BYTES;

/// A small deterministic random generator (xorshift64*, Vigna 2014).
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

type Sector = [u8; SECTOR_BYTES];

/// A device in memory. Sectors that were never written read as zeros.
#[derive(Clone)]
pub struct SimulatedDisk {
    size_bytes: u64,
    durable: BTreeMap<u64, Sector>,
    /// Written but not synced, oldest first.
    volatile: Vec<(u64, Sector)>,
}

impl SimulatedDisk {
    pub fn new(size_bytes: u64) -> Self {
        SimulatedDisk { size_bytes, durable: BTreeMap::new(), volatile: Vec::new() }
    }

    fn write(&mut self, offset: u64, bytes: &[u8], durable: bool) {
        for (index, sector) in bytes.chunks_exact(SECTOR_BYTES).enumerate() {
            let number = offset / SECTOR_BYTES as u64 + index as u64;
            let sector: Sector = sector.try_into().unwrap();
            if durable {
                self.volatile.retain(|(other, _)| *other != number);
                self.put(number, sector);
            } else {
                self.volatile.push((number, sector));
            }
        }
    }

    fn put(&mut self, number: u64, sector: Sector) {
        if sector == [0; SECTOR_BYTES] {
            self.durable.remove(&number);
        } else {
            self.durable.insert(number, sector);
        }
    }

    /// A write that is under way when the power is cut: each sector may or may not arrive.
    pub fn write_partly(&mut self, operation: &DiskOperation, random: &mut Random) {
        let DiskOperation::Write { offset, segments, .. } = operation else { return };
        let bytes: Vec<u8> = segments.iter().flat_map(|segment| segment.bytes().to_vec()).collect();
        let percent = [0, 30, 70, 95, 100][random.below(5) as usize];
        for (index, sector) in bytes.chunks_exact(SECTOR_BYTES).enumerate() {
            if random.chance(percent) {
                self.put(offset / SECTOR_BYTES as u64 + index as u64, sector.try_into().unwrap());
            }
        }
    }

    /// Cuts the power: every sector not synced is kept or dropped.
    pub fn crash(&mut self, random: &mut Random) {
        let percent = [0, 50, 100][random.below(3) as usize];
        for (number, sector) in std::mem::take(&mut self.volatile) {
            if random.chance(percent) {
                self.put(number, sector);
            }
        }
    }

    pub fn sync(&mut self) {
        for (number, sector) in std::mem::take(&mut self.volatile) {
            self.put(number, sector);
        }
    }

    fn read_sector(&self, number: u64) -> Sector {
        let volatile = self.volatile.iter().rev().find(|(other, _)| *other == number).map(|(_, sector)| *sector);
        volatile.or_else(|| self.durable.get(&number).copied()).unwrap_or([0; SECTOR_BYTES])
    }

    /// Flips a bit of a stored sector chosen by `random` among those at or after `from_byte`.
    pub fn rot(&mut self, from_byte: u64, random: &mut Random) {
        let candidates: Vec<u64> =
            self.durable.range(from_byte / SECTOR_BYTES as u64..).map(|(number, _)| *number).collect();
        if candidates.is_empty() {
            return;
        }
        let number = candidates[random.below(candidates.len() as u64) as usize];
        let sector = self.durable.get_mut(&number).unwrap();
        sector[random.below(SECTOR_BYTES as u64) as usize] ^= 1 << random.below(8);
    }
}

impl Disk for SimulatedDisk {
    fn size_bytes(&self, device: Device) -> Option<u64> {
        (device == Device::Data).then_some(self.size_bytes)
    }

    fn execute(&mut self, _device: Device, operation: DiskOperation) -> DiskResult {
        match operation {
            DiskOperation::Read { offset, block_count } => {
                if offset + (block_count * BLOCK_BYTES) as u64 > self.size_bytes {
                    return Err(io::Error::other("read beyond the device"));
                }
                let mut buffer = BlockBuffer::zeroed(block_count);
                for index in 0..block_count * SECTORS_PER_BLOCK {
                    let sector = self.read_sector(offset / SECTOR_BYTES as u64 + index as u64);
                    buffer.as_mut_slice()[index * SECTOR_BYTES..][..SECTOR_BYTES].copy_from_slice(&sector);
                }
                Ok(Some(buffer))
            }
            DiskOperation::Write { offset, segments, durable } => {
                let mut offset = offset;
                for segment in segments {
                    self.write(offset, segment.bytes(), durable);
                    offset += segment.bytes().len() as u64;
                }
                assert!(offset <= self.size_bytes, "write beyond the device");
                Ok(None)
            }
            DiskOperation::Sync => {
                self.sync();
                Ok(None)
            }
        }
    }
}
