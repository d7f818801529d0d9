//! The requests of clients. Every value written is unique in its run.

use atoll_buffers::BLOCK_BYTES;
use atoll_types::operation::{FENCE_KEY_PREFIX, PG_META_OBJECT};
use atoll_types::{Condition, Mutation, ObjectName, ReadRequest, WriteRequest};
use bytes::Bytes;

use crate::clients::{Clients, Kind};
use crate::random::Random;
use crate::state::name;

pub const BLOCKS: u64 = 6;
pub const KEYS: u64 = 3;
pub const BLOCK: u64 = BLOCK_BYTES as u64;
const FENCE: &[u8] = b"image";

pub fn block_of(value: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK_BYTES];
    block[..8].copy_from_slice(&value.to_be_bytes());
    block[BLOCK_BYTES - 8..].copy_from_slice(&value.to_be_bytes());
    block
}

pub fn write(object: ObjectName, conditions: Vec<Condition>, mutations: Vec<Mutation>, payload: Vec<u8>) -> Kind {
    let payload = payload.into();
    Kind::Write(WriteRequest { object, conditions, mutations, payload, payload_sealed: false })
}

pub fn object_name(index: u64) -> ObjectName {
    name(&format!("object{index}"))
}

pub fn key(index: u64) -> Bytes {
    Bytes::from(format!("key{index}"))
}

impl Clients {
    fn value(&mut self) -> Bytes {
        self.last_value += 1;
        Bytes::from(format!("value{}", self.last_value))
    }

    pub fn draw(&mut self, session: usize, pg_num: u32, random: &mut Random) -> Kind {
        let object = object_name(random.below(self.objects));
        if random.chance(40) {
            return self.draw_read(object, random);
        }
        let omap_key = key(random.below(KEYS));
        let value = self.value();
        let mut what = random.below(100);
        if self.is_coded && (52..75).contains(&what) {
            what = 0;
        }
        match what {
            0..45 => self.draw_data(object, session, random),
            45..52 => {
                let offset = random.below(BLOCKS) * BLOCK;
                write(object, vec![], vec![Mutation::Zero { offset, length: BLOCK * 2 }], vec![])
            }
            52..60 => write(object, vec![], vec![Mutation::OmapSet { key: omap_key, value }], vec![]),
            60..75 => {
                let known = self.known.get(&(object.clone(), omap_key.clone())).cloned().flatten();
                let condition = match known {
                    Some(value) => Condition::OmapEquals { key: omap_key.clone(), value },
                    None => Condition::OmapAbsent { key: omap_key.clone() },
                };
                let displaced_to = Bytes::from(format!("displaced{}", self.last_value));
                let value = (!random.chance(15)).then_some(value);
                let replace = Mutation::OmapReplace { key: omap_key, value, displaced_to };
                write(object, vec![condition], vec![replace], vec![])
            }
            75..80 => write(object, vec![Condition::ObjectAbsent], vec![Mutation::Create], vec![]),
            80..83 => {
                let Kind::Write(mut request) = self.draw_data(object, session, random) else {
                    unreachable!("it writes")
                };
                let other = object_name(random.below(self.objects));
                request.conditions.push(Condition::OtherExists { object: other });
                Kind::Write(request)
            }
            83..87 => write(object, vec![], vec![Mutation::Remove], vec![]),
            87..91 => {
                let source = object_name(random.below(self.objects));
                write(object, vec![], vec![Mutation::CloneFrom { source }], vec![])
            }
            91..93 if self.is_coded => {
                let Kind::Write(mut request) = self.draw_data(object, session, random) else {
                    unreachable!("it writes")
                };
                request.mutations.insert(0, Mutation::Remove);
                Kind::Write(request)
            }
            91..93 => {
                let mutations = vec![Mutation::Remove, Mutation::OmapSet { key: omap_key, value }];
                write(object, vec![Condition::ObjectExists], mutations, vec![])
            }
            _ => self.draw_fence(session, pg_num, random),
        }
    }

    fn draw_fence(&mut self, session: usize, pg_num: u32, random: &mut Random) -> Kind {
        self.last_generation += 1;
        let generation = self.last_generation;
        self.sessions[session].generation = generation;
        let mut conditions = vec![Condition::NotFenced { name: Bytes::from_static(FENCE), generation }];
        if random.chance(50) {
            conditions.push(Condition::PgNum { pg_num });
        }
        let fence_key = [FENCE_KEY_PREFIX, FENCE].concat().into();
        let value = Bytes::copy_from_slice(&generation.to_be_bytes());
        let set = Mutation::OmapSet { key: fence_key, value };
        write(name(PG_META_OBJECT), conditions, vec![set], vec![])
    }

    fn draw_data(&mut self, object: ObjectName, session: usize, random: &mut Random) -> Kind {
        let first = random.below(BLOCKS);
        let count = (1 + random.below(3)).min(BLOCKS - first);
        let mut payload = Vec::new();
        for _ in 0..count {
            self.last_value += 1;
            payload.extend(block_of(self.last_value));
        }
        let (offset, length) = (first * BLOCK, (count * BLOCK) as u32);
        let mut mutations = vec![Mutation::Write { offset, length, seals: None }];
        if random.chance(30) && !self.is_coded {
            mutations.push(Mutation::OmapSet { key: key(random.below(KEYS)), value: self.value() });
        }
        let mut conditions = Vec::new();
        if random.chance(25) {
            let generation = self.sessions[session].generation;
            conditions.push(Condition::NotFenced { name: Bytes::from_static(FENCE), generation });
        }
        write(object, conditions, mutations, payload)
    }

    fn draw_read(&mut self, object: ObjectName, random: &mut Random) -> Kind {
        let first = random.below(BLOCKS);
        let length = ((1 + random.below(BLOCKS)) * BLOCK) as u32;
        let request = match random.below(10) {
            6 => ReadRequest::Stat,
            // Erasure-coded objects have no omap.
            7 if !self.is_coded => {
                ReadRequest::OmapList { prefix: Bytes::from_static(b"k"), from: Bytes::new(), limit: 2 }
            }
            8.. if !self.is_coded => ReadRequest::OmapGet { key: key(random.below(KEYS)) },
            _ => ReadRequest::checked_data(first * BLOCK, length),
        };
        Kind::Read(object, sometimes_extents(request))
    }
}

/// The same range, but for its extents, of some reads of data.
fn sometimes_extents(request: ReadRequest) -> ReadRequest {
    match request {
        ReadRequest::Data { offset, length, .. } if (offset + u64::from(length)) / BLOCK % 4 == 3 => {
            ReadRequest::Extents { offset, length }
        }
        request => request,
    }
}

/// Reads of all objects.
pub fn final_reads(objects: u64) -> Vec<Kind> {
    let objects = (0..objects).map(object_name);
    let requests = || {
        let data = ReadRequest::checked_data(0, (BLOCKS * BLOCK * 2) as u32);
        let list = ReadRequest::OmapList { prefix: Bytes::new(), from: Bytes::new(), limit: 1_000 };
        [data, list, ReadRequest::Stat]
    };
    objects.flat_map(|object| requests().map(|request| Kind::Read(object.clone(), request))).collect()
}
