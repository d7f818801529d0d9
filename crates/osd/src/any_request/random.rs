//! Well-formed requests at random: they could be decoded, and that is all that is known of them.

use atoll_types::limits::{OBJECT_BYTES_MAX, OMAP_KEY_BYTES_MAX};
use atoll_types::operation::{FENCE_KEY_PREFIX, PG_META_OBJECT};
use atoll_types::{Condition, Mutation, ObjectName, ReadRequest, Seals, WriteRequest};
use bytes::Bytes;

use super::BLOCK;
use super::world::name;

/// Most bytes of data in one request; a request of more says so and has none.
const PAYLOAD_BYTES_MAX: u64 = 1 << 20;

/// A source of numbers (xorshift).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }

    pub fn object(&mut self) -> ObjectName {
        let long = "a long name of an object ".repeat(9);
        let all = ["a", "b", "c", "d", &long, PG_META_OBJECT, "@kept/1.1"];
        let index = if self.chance(90) { self.below(5) } else { self.below(7) };
        name(all[index as usize])
    }

    fn key(&mut self) -> Bytes {
        let fence = [FENCE_KEY_PREFIX, b"image"].concat();
        let all: [Bytes; 6] = [
            Bytes::new(),
            Bytes::from_static(b"key"),
            Bytes::from_static(b"other key"),
            fence.into(),
            vec![b'k'; OMAP_KEY_BYTES_MAX].into(),
            vec![0; OMAP_KEY_BYTES_MAX].into(),
        ];
        self.pick(&all)
    }

    fn value(&mut self) -> Bytes {
        let length = self.pick(&[0, 1, 8, 100, 5_000]);
        vec![self.next() as u8; length].into()
    }

    fn offset(&mut self) -> u64 {
        match self.below(10) {
            0 => self.pick(&[1, 4095, u64::MAX, u64::MAX - 4095, OBJECT_BYTES_MAX, OBJECT_BYTES_MAX - BLOCK]),
            1 | 2 => self.below(8) * (16 << 10),
            _ => self.below(40) * BLOCK,
        }
    }

    fn length(&mut self) -> u64 {
        match self.below(10) {
            0 => self.pick(&[0, 1, 4095, u64::from(u32::MAX), u64::MAX, OBJECT_BYTES_MAX]),
            1 | 2 => (1 + self.below(5)) * (16 << 10),
            3 => 1 + self.below(40_000),
            _ => (1 + self.below(20)) * BLOCK,
        }
    }

    fn seals(&mut self, length: u32) -> Option<Seals> {
        if self.chance(50) {
            return None;
        }
        let unit_bytes = self.pick(&[4096_u32, 4096, 4096, 8192, 16384, 65536, 12288]);
        let seal_bytes = self.pick(&[4_u16, 4, 4, 1, 64]);
        let units = if self.chance(95) { length.div_ceil(unit_bytes) } else { self.below(3) as u32 };
        let count = units.min(1 << 14) as usize * usize::from(seal_bytes);
        Some(Seals { unit_bytes, seal_bytes, bytes: vec![self.next() as u8; count].into() })
    }

    fn mutation(&mut self) -> Mutation {
        match self.below(12) {
            0..5 => {
                let (offset, length) = (self.offset(), self.length() as u32);
                Mutation::Write { offset, length, seals: self.seals(length) }
            }
            5 | 6 => Mutation::Zero { offset: self.offset(), length: self.length() },
            7 => Mutation::Truncate { size_bytes: self.offset() },
            8 => self.pick(&[Mutation::Create, Mutation::Remove]),
            9 => Mutation::CloneFrom { source: self.object() },
            10 => self.pick(&[
                Mutation::OmapSet { key: Bytes::from_static(b"key"), value: Bytes::from_static(b"value") },
                Mutation::OmapRemove { key: Bytes::from_static(b"key") },
            ]),
            _ => {
                let (key, value, displaced_to) = (self.key(), self.value(), self.key());
                let value = self.chance(70).then_some(value);
                Mutation::OmapReplace { key, value, displaced_to }
            }
        }
    }

    fn condition(&mut self) -> Condition {
        match self.below(8) {
            0 => Condition::ObjectExists,
            1 => Condition::ObjectAbsent,
            2 => Condition::OmapExists { key: self.key() },
            3 => Condition::OmapAbsent { key: self.key() },
            4 => Condition::OmapEquals { key: self.key(), value: self.value() },
            5 => Condition::NotFenced { name: self.key().slice(..0), generation: self.below(3) },
            6 => Condition::PgNum { pg_num: 1 },
            _ => Condition::OtherExists { object: self.object() },
        }
    }

    pub fn write(&mut self) -> WriteRequest {
        let object = self.object();
        let most = self.pick(&[1, 1, 1, 2, 4]);
        let mutations: Vec<Mutation> = (0..most).map(|_| self.mutation()).collect();
        let most = self.pick(&[0, 1, 1, 3]);
        let conditions = (0..most).map(|_| self.condition()).collect();
        let written = mutations.iter().map(|mutation| match mutation {
            Mutation::Write { length, .. } => u64::from(*length),
            _ => 0,
        });
        let written: u64 = written.sum();
        let bytes = if written <= PAYLOAD_BYTES_MAX && self.chance(97) { written } else { self.below(5000) };
        let payload = vec![self.next() as u8 | 1; bytes as usize].into();
        WriteRequest { object, conditions, mutations, payload, payload_sealed: self.chance(50) }
    }

    pub fn read(&mut self) -> ReadRequest {
        match self.below(7) {
            0 => ReadRequest::Stat,
            1 => ReadRequest::OmapGet { key: self.key() },
            2 => {
                let (prefix, from) = (self.key().slice(..0), self.key());
                ReadRequest::OmapList { prefix, from, limit: self.pick(&[0, 1, 3, 1000, u32::MAX]) }
            }
            3 => ReadRequest::Extents { offset: self.offset(), length: self.length() as u32 },
            4 => ReadRequest::ObjectList {
                prefix: self.pick(&[Bytes::new(), Bytes::from_static(b"a"), Bytes::from_static(&[0xff, 0])]),
                after: self.chance(50).then(|| self.object()),
                counts_blocks: self.chance(50),
                pg_num: self.chance(30).then(|| self.pick(&[0, 1, 2])),
            },
            _ => ReadRequest::Data {
                offset: self.offset(),
                length: self.length() as u32,
                opens_seals: self.chance(50),
            },
        }
    }
}
