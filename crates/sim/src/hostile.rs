//! Clients that break the rules of the protocol, with ranges and seals that cannot be, names and keys as long as may be,
//! and conditions on anything: each such request is refused for good, and changes nothing. Pings are not among them,
//! because PGs hear nothing of a client's pings: the tests of the daemon's links send those.

use atoll_types::limits::{OBJECT_BYTES_MAX, OBJECT_NAME_BYTES_MAX, OMAP_KEY_BYTES_MAX};
use atoll_types::operation::{FENCE_KEY_PREFIX, PG_META_OBJECT, PRE_IMAGE_PREFIX};
use atoll_types::{Condition, Epoch, Mutation, ReadRequest, Refusal, Seals, Version};
use bytes::Bytes;

use crate::clients::{Answer, Kind};
use crate::random::Random;
use crate::state::name;
use crate::workload::{BLOCK, KEYS, key, object_name, write};
use crate::world::World;

/// How often a client begins with such a request, in percent.
const PERCENT: u64 = 4;

impl World {
    /// Now and then sends a request that no client may send.
    pub fn perhaps_break_rules(&mut self, session: usize) {
        if self.random.chance(PERCENT) {
            let kind = match self.random.chance(50) {
                true => draw(self.clients.objects, &mut self.random),
                false => draw_impossible(self.clients.objects, &mut self.random),
            };
            let op = self.start(session, kind);
            self.clients.ops[op].breaks_rules = true;
            self.statistics.hostile += 1;
        }
    }
}

fn draw(objects: u64, random: &mut Random) -> Kind {
    let object = object_name(random.below(objects));
    let own = || name(PG_META_OBJECT);
    let any = Version { epoch: Epoch(1 << 40), sequence: 1 << 40 };
    let set = |key: &'static [u8]| Mutation::OmapSet { key: Bytes::from_static(key), value: vec![0xff; 8].into() };
    match random.below(9) {
        0 => write(
            name(&format!("{PRE_IMAGE_PREFIX}0.{}", random.below(20))),
            vec![],
            vec![Mutation::Remove],
            vec![],
        ),
        1 => write(object, vec![], vec![Mutation::ResetLog { head: Version::default() }], vec![]),
        2 => write(object, vec![], vec![Mutation::SetVersion { version: any }], vec![]),
        3 => write(own(), vec![], vec![set(b"epoch")], vec![]),
        4 => write(own(), vec![], vec![Mutation::Remove], vec![]),
        5 => {
            // The fence is not the generation of the condition.
            let fence = Bytes::from([FENCE_KEY_PREFIX, b"image"].concat());
            let condition = Condition::NotFenced { name: Bytes::from_static(b"image"), generation: 1 << 40 };
            let higher = Mutation::OmapSet { key: fence, value: vec![0xff; 8].into() };
            write(own(), vec![condition], vec![higher], vec![])
        }
        6 => write(object, vec![], vec![Mutation::CloneFrom { source: own() }], vec![]),
        7 => Kind::Read(object, ReadRequest::checked_data(1 + random.below(BLOCK - 1), BLOCK as u32)),
        _ => Kind::Read(object, ReadRequest::checked_data(0, u32::MAX)),
    }
}

/// A write that no store takes, perhaps under conditions, of an object of others or of one with a long name.
fn draw_impossible(objects: u64, random: &mut Random) -> Kind {
    let long = |random: &mut Random| name(&"n".repeat(OBJECT_NAME_BYTES_MAX - random.below(2) as usize));
    let object = if random.chance(70) { object_name(random.below(objects)) } else { long(random) };
    let block = BLOCK as u32;
    let whole = |offset, length| Mutation::Write { offset, length, seals: None };
    let sealed = |unit_bytes, seal_bytes: u16, count: usize| {
        let bytes = vec![0x5a; count * usize::from(seal_bytes)].into();
        Mutation::Write { offset: 0, length: block, seals: Some(Seals { unit_bytes, seal_bytes, bytes }) }
    };
    let (mutation, payload_bytes) = match random.below(11) {
        0 => (Mutation::Zero { offset: 1, length: 1 }, 0),
        1 => (Mutation::Zero { offset: u64::MAX, length: u64::MAX }, 0),
        2 => (Mutation::Truncate { size_bytes: OBJECT_BYTES_MAX * 2 }, 0),
        3 => (whole(BLOCK, 0), 0),
        4 => (whole(BLOCK - 1, block), BLOCK),
        5 => (whole(OBJECT_BYTES_MAX, block), BLOCK),
        6 => (whole(u64::MAX - 1, block), BLOCK),
        // More or less data than it says.
        7 => (whole(0, block), random.below(BLOCK)),
        // A unit that divides nothing, and seals for more units than are written.
        8 => (sealed(12_288, 4, 1), BLOCK),
        9 => (sealed(block, 4, 2), BLOCK),
        _ => (sealed(block * 2, 64, 0), BLOCK),
    };
    // The write before it must not be done either.
    let before = random.chance(30).then(|| whole(0, block));
    let payload = vec![0x5a; payload_bytes as usize + before.as_ref().map_or(0, |_| BLOCK as usize)];
    let conditions = (0..random.below(3)).map(|_| draw_condition(objects, random)).collect();
    write(object, conditions, before.into_iter().chain([mutation]).collect(), payload)
}

/// A condition on anything.
fn draw_condition(objects: u64, random: &mut Random) -> Condition {
    let key = if random.chance(50) { key(random.below(KEYS)) } else { vec![0xff; OMAP_KEY_BYTES_MAX].into() };
    match random.below(8) {
        0 => Condition::ObjectExists,
        1 => Condition::ObjectAbsent,
        2 => Condition::OmapExists { key },
        3 => Condition::OmapAbsent { key },
        4 => Condition::OmapEquals { key, value: vec![0; 5_000].into() },
        5 => Condition::NotFenced { name: key, generation: random.below(3) },
        6 => Condition::PgNum { pg_num: random.below(4) as u32 },
        _ => Condition::OtherExists { object: object_name(random.below(objects + 1)) },
    }
}

/// Returns true if a request that breaks rules was refused for good.
pub fn is_refused(answer: &Answer) -> bool {
    let refusal = match answer {
        Answer::Written(result) => result.as_ref().err(),
        Answer::Found(result, _) => result.as_ref().err(),
    };
    use Refusal::{ConditionFailed, Fenced, Invalid};
    matches!(refusal, Some(Invalid { .. } | ConditionFailed { .. } | Fenced { .. }))
}
