//! Random writes of an object in shards, compared with a plain copy of it: reads agree whatever
//! shards are lost, parity always fits, and every write can be rolled back, also twice. Some are left to
//! the members to complete.

use super::*;
use crate::config::CodeShape;
use crate::erasure::overwrites::{Replaced, complete, fitting_shape};
use crate::erasure::parts::{Part, assemble, is_all_zero};
use atoll_ec::Code;
use atoll_types::{Epoch, LogEntry, PgId, PoolId, Touched, Transaction, Version};
use proptest::prelude::*;

const SEAL_BYTES: u16 = 7;

/// A shard as a store has it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Shard {
    data: Vec<u8>,
    seals: BTreeMap<u64, Vec<u8>>,
    whole: (u64, u32, u16),
    version: u64,
}

type Member = BTreeMap<ObjectName, Shard>;

fn name(text: &str) -> ObjectName {
    ObjectName::new(text).unwrap()
}

fn apply(member: &mut Member, object: &ObjectName, mutations: &[Mutation], payload: &Bytes) {
    let mut payload = payload.clone();
    for mutation in mutations {
        match mutation {
            Mutation::Remove => {
                member.remove(object);
                continue;
            }
            Mutation::ClonePreImage { copy } => {
                let shard = member[object].clone();
                member.insert(copy.clone(), shard);
                continue;
            }
            Mutation::CloneFrom { source } => {
                let copy = member[source].clone();
                member.insert(object.clone(), copy);
                continue;
            }
            _ => {}
        }
        let shard = member.entry(object.clone()).or_default();
        let unit = u64::from(shard.whole.1);
        match mutation {
            Mutation::Write { offset, length, seals } => {
                let end = (offset + u64::from(*length)) as usize;
                assert!(end <= shard.data.len() && end.is_multiple_of(BLOCK_BYTES), "{mutation:?}");
                shard.data[*offset as usize..end].copy_from_slice(&payload.split_to(*length as usize));
                if let Some(seals) = seals {
                    assert_eq!((seals.unit_bytes, seals.seal_bytes), (shard.whole.1, shard.whole.2));
                    assert!(offset.is_multiple_of(unit));
                    let each = seals.bytes.chunks(usize::from(seals.seal_bytes));
                    assert_eq!(each.len(), length.div_ceil(seals.unit_bytes) as usize);
                    shard.seals.extend((offset / unit..).zip(each.map(<[u8]>::to_vec)));
                }
            }
            Mutation::Zero { offset, length } => {
                assert!(unit == 0 || offset.is_multiple_of(unit) && length.is_multiple_of(unit));
                shard.data[*offset as usize..(offset + length) as usize].fill(0);
                let units = offset / unit.max(1)..(offset + length) / unit.max(1);
                shard.seals.retain(|number, _| unit == 0 || !units.contains(number));
            }
            Mutation::Truncate { size_bytes } => {
                assert!(*size_bytes as usize <= shard.data.len());
                shard.data.truncate(*size_bytes as usize);
                if unit > 0 {
                    assert!(size_bytes.is_multiple_of(unit));
                    shard.seals.retain(|number, _| *number < size_bytes / unit);
                }
            }
            Mutation::SetShardOf { object_bytes, shard_bytes, seal_unit_bytes, seal_bytes } => {
                assert!(*shard_bytes as usize >= shard.data.len());
                shard.data.resize(*shard_bytes as usize, 0);
                shard.whole = (*object_bytes, *seal_unit_bytes, *seal_bytes);
            }
            Mutation::SetVersion { version } => shard.version = version.sequence,
            other => panic!("{other:?} is nothing for a shard"),
        }
    }
    assert!(payload.is_empty());
}

fn part(shard: &Shard, span: Span) -> Part {
    let data = Bytes::copy_from_slice(&shard.data[span.start as usize..span.end as usize]);
    let (unit, width) = (u64::from(shard.whole.1), usize::from(shard.whole.2));
    let mut seals = Vec::new();
    let first = span.start.checked_div(unit).unwrap_or(0);
    for number in first..if unit == 0 { 0 } else { span.end.div_ceil(unit) } {
        seals.extend(shard.seals.get(&number).cloned().unwrap_or_else(|| vec![0; width]));
    }
    Part { data, seals: seals.into() }
}

/// The object that the shards must give.
#[derive(Clone, Debug, Default, PartialEq)]
struct Plain {
    data: Vec<u8>,
    seals: BTreeMap<u64, Vec<u8>>,
}

#[derive(Clone, Debug)]
enum Step {
    Write { first: u64, blocks: u64, cut: u64 },
    Zero { first: u64, blocks: u64 },
    Truncate { share: u64 },
    Remove,
    RemoveAndWrite { blocks: u64 },
    ZeroAndWrite { first: u64, blocks: u64 },
    Create,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u64..40, 1u64..12, 0u64..4096).prop_map(|(first, blocks, cut)| Step::Write { first, blocks, cut }),
        2 => (0u64..10, 20u64..60).prop_map(|(first, blocks)| Step::Write { first, blocks, cut: 0 }),
        3 => (0u64..40, 1u64..30).prop_map(|(first, blocks)| Step::Zero { first, blocks }),
        2 => (0u64..=100).prop_map(|share| Step::Truncate { share }),
        1 => Just(Step::Remove),
        1 => (1u64..40).prop_map(|blocks| Step::RemoveAndWrite { blocks }),
        1 => (0u64..20, 1u64..9).prop_map(|(first, blocks)| Step::ZeroAndWrite { first, blocks }),
        1 => Just(Step::Create),
    ]
}

struct World {
    shape: CodeShape,
    code: Code,
    /// Bytes of a sealed unit; 0 without seals.
    unit: u64,
    members: Vec<Member>,
    plain: Option<Plain>,
    version: u64,
    filler: u8,
}

impl World {
    fn bytes(&mut self, length: u64) -> Vec<u8> {
        self.filler = self.filler.wrapping_add(1).max(1);
        let seed = self.filler;
        (0..length).map(|index| (index as u8).wrapping_mul(31).wrapping_add(seed)).collect()
    }

    fn put(&mut self, plain: &mut Plain, first: u64, blocks: u64, cut: u64) -> (Mutation, Vec<u8>) {
        let unit = self.unit.max(BLOCK);
        let offset = first * BLOCK / unit * unit;
        let mut length = blocks * BLOCK;
        if offset + length - cut >= plain.data.len() as u64 {
            length -= cut.min(length - 1);
        }
        let data = self.bytes(length);
        let end = (offset + length) as usize;
        plain.data.resize(plain.data.len().max(end), 0);
        plain.data[offset as usize..end].copy_from_slice(&data);
        let seals = (self.unit > 0).then(|| {
            let count = length.div_ceil(unit);
            let bytes = self.bytes(count * u64::from(SEAL_BYTES));
            plain.seals.extend((offset / unit..).zip(bytes.chunks(usize::from(SEAL_BYTES)).map(<[u8]>::to_vec)));
            Seals { unit_bytes: unit as u32, seal_bytes: SEAL_BYTES, bytes: bytes.into() }
        });
        (Mutation::Write { offset, length: length as u32, seals }, data)
    }

    fn cut(&self, plain: &mut Plain, offset: u64, length: u64) -> Mutation {
        let end = (offset + length).min(plain.data.len() as u64);
        if offset < end {
            plain.data[offset as usize..end as usize].fill(0);
        }
        if self.unit > 0 {
            plain.seals.retain(|number, _| !(offset / self.unit..(offset + length) / self.unit).contains(number));
        }
        Mutation::Zero { offset, length }
    }

    /// The mutations of a step, and the object that results.
    fn mutations(&mut self, step: &Step) -> (Vec<Mutation>, Vec<u8>, Option<Plain>) {
        let unit = self.unit.max(BLOCK);
        let align =
            |first: u64, blocks: u64| (first * BLOCK / unit * unit, (blocks * BLOCK).next_multiple_of(unit));
        let mut plain = self.plain.clone().unwrap_or_default();
        match *step {
            Step::Write { first, blocks, cut } => {
                let (write, data) = self.put(&mut plain, first, blocks, cut);
                (vec![write], data, Some(plain))
            }
            Step::Zero { first, blocks } => {
                let (offset, length) = align(first, blocks);
                let zero = self.cut(&mut plain, offset, length);
                (vec![zero], Vec::new(), Some(plain))
            }
            Step::Truncate { share } => {
                let mut size = plain.data.len() as u64 * share / 100;
                if share < 100 {
                    size = size / unit * unit;
                }
                plain.data.truncate(size as usize);
                if share < 100 {
                    plain.seals.retain(|number, _| *number < size / unit);
                }
                (vec![Mutation::Truncate { size_bytes: size }], Vec::new(), Some(plain))
            }
            Step::Remove => (vec![Mutation::Remove], Vec::new(), None),
            Step::RemoveAndWrite { blocks } => {
                let mut plain = Plain::default();
                let (write, data) = self.put(&mut plain, 0, blocks, 5);
                (vec![Mutation::Remove, write], data, Some(plain))
            }
            Step::ZeroAndWrite { first, blocks } => {
                let zero = self.cut(&mut plain, 0, 16 * BLOCK);
                let (write, data) = self.put(&mut plain, first, blocks, 0);
                (vec![zero, write], data, Some(plain))
            }
            Step::Create => (vec![Mutation::Create], Vec::new(), Some(plain)),
        }
    }

    fn whole(&self) -> Option<WholeObject> {
        let shard = self.members[0].get(&name("object"))?;
        let (object_bytes, unit, width) = shard.whole;
        let version = Version { epoch: Epoch(1), sequence: shard.version };
        Some(WholeObject { object_bytes, version, seal_shape: (unit > 0).then_some((unit, width)) })
    }

    /// A member adds its own data to the change of its shard.
    fn completed(&self, shard: usize, change: ShardChange, span: Span) -> ShardChange {
        if change.basis == Basis::Whole {
            return change;
        }
        let (object, pg) = (name("object"), PgId { pool: PoolId(1), index: 0 });
        let entry = LogEntry {
            version: Version { epoch: Epoch(1), sequence: self.version + 1 },
            request: None,
            object: object.clone(),
            touched: Touched::default(),
            committed_sequence: 0,
            pre_image: Some(change.pre_image),
        };
        let (mutations, payload, payload_sealed) = (change.mutations, change.payload, true);
        let whole =
            Transaction { pg, object: object.clone(), mutations, payload, payload_sealed, log: vec![entry] };
        let replaced = Replaced { span, is_difference: change.basis == Basis::Difference };
        let (_, seal_shape) = fitting_shape(&whole, &replaced).unwrap();
        let old = part(&self.members[shard][&object], span);
        let Transaction { mutations, payload, mut log, .. } = complete(&whole, replaced, seal_shape, old);
        let pre_image = log.remove(0).pre_image.unwrap();
        ShardChange { mutations, payload, pre_image, basis: Basis::Whole }
    }

    fn run(&mut self, step: &Step, roll_back: bool, asking: Option<u8>) {
        let (mutations, payload, plain) = self.mutations(step);
        let (object, clone) = (name("object"), name("clone"));
        let mut update = Update::plan(self.shape, self.whole(), &mutations, &payload.clone().into()).unwrap();
        if let (Some(own), true) = (asking, update.can_be_read_by_members()) {
            update.leave_to_members(own % self.shape.shards());
        }
        let span = update.span;
        let wanted = update.wanted();
        let old =
            wanted.iter().map(|(shard, span)| (*shard, part(&self.members[usize::from(*shard)][&object], *span)));
        let old: BTreeMap<u8, Part> = old.collect();
        let changes = update.finish(&self.code, &old, clone.clone()).into_iter().enumerate();
        let changes: Vec<ShardChange> =
            changes.map(|(shard, change)| self.completed(shard, change, span)).collect();
        self.version += 1;
        for (member, change) in self.members.iter_mut().zip(&changes) {
            let before = member.clone();
            apply(member, &object, &change.mutations, &change.payload);
            if let Some(shard) = member.get_mut(&object) {
                shard.version = self.version;
            }
            if roll_back {
                for _ in 0..2 {
                    apply(member, &object, &change.pre_image.mutations, &change.pre_image.payload);
                }
            }
            member.remove(&clone);
            if roll_back {
                let normal = |member: &Member| {
                    let mut member = member.clone();
                    member.values_mut().for_each(|shard| shard.seals.retain(|_, seal| !is_all_zero(seal)));
                    member
                };
                assert_eq!(normal(member), normal(&before), "{step:?} rolled back");
            }
        }
        if !roll_back {
            self.plain = plain;
        }
    }

    /// All shards agree with the object, and any `data` of them give it back.
    fn check(&self, lost: &[usize]) {
        let object = name("object");
        let Some(plain) = &self.plain else {
            assert!(self.members.iter().all(|member| !member.contains_key(&object)));
            return;
        };
        let whole = self.whole().unwrap();
        assert_eq!(whole.object_bytes, plain.data.len() as u64);
        let shards: Vec<&Shard> = self.members.iter().map(|member| &member[&object]).collect();
        let span = Span { start: 0, end: self.shape.shard_bytes(whole.object_bytes) };
        assert!(shards.iter().all(|shard| shard.data.len() == span.length() && shard.whole == shards[0].whole));
        let parts: Vec<Part> = shards.iter().map(|shard| part(shard, span)).collect();
        let left = |pick: fn(&Part) -> &Bytes| -> Vec<(usize, &[u8])> {
            let there = parts.iter().enumerate().filter(|(shard, _)| !lost.contains(shard));
            there.map(|(shard, part)| (shard, &pick(part)[..])).collect()
        };
        let rebuild = |pick: fn(&Part) -> &Bytes, length: usize| -> Vec<Vec<u8>> {
            let mut output = vec![vec![0; length]; lost.len()];
            let mut slices: Vec<&mut [u8]> = output.iter_mut().map(|bytes| &mut bytes[..]).collect();
            self.code.reconstruct(&left(pick), lost, &mut slices).unwrap();
            output
        };
        let data = rebuild(|part| &part.data, span.length());
        let seals = rebuild(|part| &part.seals, parts[0].seals.len());
        for ((shard, data), seals) in lost.iter().zip(&data).zip(&seals) {
            assert!(data[..] == parts[*shard].data[..], "data of shard {shard}");
            assert_eq!(seals[..], parts[*shard].seals[..], "seals of shard {shard}");
        }
        let parts = (0..).zip(parts).map(|(shard, part)| (shard, (span, part))).collect();
        for (offset, length) in [(0, 1 << 22), (4096, 9000), (81_920, 4096), (65_536, 65_536)] {
            let (data, seals) = assemble(self.shape, &whole, (offset, length), &parts);
            let end = (offset + length).min(whole.object_bytes);
            let expected = plain.data.get(offset as usize..end as usize).unwrap_or(&[]);
            assert!(data == expected, "{length} bytes at {offset}");
            if let (Some(seals), true) = (seals, offset < end) {
                let units = offset / self.unit..end.div_ceil(self.unit);
                let zero = vec![0; usize::from(SEAL_BYTES)];
                let expected: Vec<u8> =
                    units.flat_map(|unit| plain.seals.get(&unit).unwrap_or(&zero).clone()).collect();
                assert_eq!(seals.bytes[..], expected[..], "seals of {length} bytes at {offset}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn shards_are_what_the_object_is(
        data in 2u8..6, parity in 1u8..4, chunk_blocks in prop_oneof![Just(1u32), Just(2), Just(4), Just(16)], unit in 0u32..3,
        steps in proptest::collection::vec((step(), any::<bool>(), any::<Option<u8>>()), 1..12), lost in 0usize..1000,
    ) {
        let chunk_bytes = chunk_blocks * BLOCK_BYTES as u32;
        let unit = [0, BLOCK_BYTES as u32, chunk_bytes][unit as usize];
        let shape = CodeShape { data, parity, chunk_bytes };
        let mut world = World {
            shape,
            code: Code::new(data.into(), parity.into()).unwrap(),
            unit: unit.into(),
            members: vec![Member::new(); usize::from(shape.shards())],
            plain: None,
            version: 0,
            filler: 0,
        };
        for (number, (step, roll_back, asking)) in steps.iter().enumerate() {
            world.run(step, *roll_back, *asking);
            let shards = usize::from(shape.shards());
            let mut gone: Vec<usize> = (0..usize::from(parity)).map(|index| (lost + number + index * 2) % shards).collect();
            gone.sort_unstable();
            gone.dedup();
            world.check(&gone);
        }
    }
}

#[test]
fn small_overwrites_touch_only_their_shards() {
    let shape = CodeShape { data: 4, parity: 2, chunk_bytes: 65_536 };
    let version = Version { epoch: Epoch(1), sequence: 1 };
    let old = Some(WholeObject { object_bytes: 1 << 20, version, seal_shape: None });
    let write = |offset, length: u32| {
        let write = Mutation::Write { offset, length, seals: None };
        Update::plan(shape, old, &[write], &vec![1; length as usize].into()).unwrap()
    };
    let span = Span { start: 8192, end: 12_288 };
    assert_eq!(
        write(65_536 + 8192, 4096).wanted().into_iter().collect::<Vec<_>>(),
        [1, 4, 5].map(|shard| (shard, span))
    );
    // A whole stripe needs no old bytes.
    assert!(write(0, 4 * 65_536).wanted().keys().eq(&[0, 1, 2, 3, 4, 5]));
    assert!(write(0, 8 * 65_536).wanted().is_empty());
    assert!(write(1 << 20, 4096).wanted().is_empty());
    // Members that read for themselves leave the difference of the data to the primary, and its own shard.
    let left = |offset, length, own| {
        let mut update = write(offset, length);
        assert!(update.can_be_read_by_members());
        update.leave_to_members(own);
        update.wanted().into_keys().collect::<Vec<u8>>()
    };
    assert_eq!(left(65_536 + 8192, 4096, 0), [1]);
    assert_eq!(left(65_536 + 8192, 4096, 1), [1]);
    assert_eq!(left(65_536 + 8192, 4096, 5), [1, 5]);
    assert_eq!(left(0, 4 * 65_536, 4), [4], "parity follows from the new bytes");
}

#[test]
fn only_small_overwrites_of_what_is_there_may_stay_in_place() {
    let shape = CodeShape { data: 2, parity: 1, chunk_bytes: 65_536 };
    let version = Version { epoch: Epoch(1), sequence: 1 };
    let old = WholeObject { object_bytes: 1 << 20, version, seal_shape: Some((4096, SEAL_BYTES)) };
    let may = |old: Option<WholeObject>, mutations: &[Mutation], bytes: usize| {
        Update::plan(shape, old, mutations, &vec![1; bytes].into()).unwrap().may_stay_in_place()
    };
    let write = |offset, length: u32| {
        let bytes = vec![1; length as usize / 4096 * usize::from(SEAL_BYTES)].into();
        let seals = Some(Seals { unit_bytes: 4096, seal_bytes: SEAL_BYTES, bytes });
        [Mutation::Write { offset, length, seals }]
    };
    assert!(may(Some(old), &write(8192, 4096), 4096));
    // Also across data shards, as long as the log entry holds what is replaced on each.
    assert!(may(Some(old), &write(0, 131_072), 131_072));
    assert!(!may(Some(old), &write(0, 135_168), 135_168), "every shard clones the object");
    assert!(!may(Some(old), &write((1 << 20) - 4096, 8192), 8192), "it grows");
    assert!(!may(None, &write(0, 4096), 4096), "it is new");
    let unsealed = WholeObject { seal_shape: None, ..old };
    assert!(!may(Some(unsealed), &write(0, 4096), 4096), "it gets seals");
    let zero = Mutation::Zero { offset: 0, length: 4096 };
    assert!(!may(Some(old), &[vec![zero], write(8192, 4096).to_vec()].concat(), 4096));
    assert!(!may(Some(old), &[vec![Mutation::Remove], write(0, 4096).to_vec()].concat(), 4096));
}

#[test]
fn an_erasure_coded_pool_refuses_what_it_cannot_hold() {
    let shape = CodeShape { data: 2, parity: 1, chunk_bytes: 4096 };
    let plan =
        |mutation: Mutation, payload: Vec<u8>| Update::plan(shape, None, &[mutation], &payload.into()).err();
    let key = Bytes::from_static(b"key");
    assert!(plan(Mutation::OmapSet { key: key.clone(), value: key }, vec![]).is_some());
    let seals = Seals { unit_bytes: 8192, seal_bytes: 1, bytes: Bytes::from_static(b"x") };
    assert!(plan(Mutation::Write { offset: 0, length: 8192, seals: Some(seals) }, vec![0; 8192]).is_some());
    assert!(plan(Mutation::Write { offset: 1, length: 1, seals: None }, vec![0]).is_some());
    assert!(plan(Mutation::Write { offset: 0, length: 1, seals: None }, vec![]).is_some());
    assert!(plan(Mutation::Write { offset: 0, length: 1, seals: None }, vec![0]).is_none());
}
