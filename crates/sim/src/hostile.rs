//! Clients that break the rules of the protocol: each such request is refused as invalid, and changes nothing.

use atoll_types::operation::{FENCE_KEY_PREFIX, PG_META_OBJECT, PRE_IMAGE_PREFIX};
use atoll_types::{Condition, Epoch, Mutation, ReadRequest, Refusal, Version};
use bytes::Bytes;

use crate::clients::{Answer, Kind};
use crate::random::Random;
use crate::state::name;
use crate::workload::{BLOCK, object_name, write};
use crate::world::World;

/// How often a client begins with such a request, in percent.
const PERCENT: u64 = 4;

impl World {
    /// Now and then sends a request that no client may send.
    pub fn may_break_rules(&mut self, session: usize) {
        if self.random.chance(PERCENT) {
            let kind = draw(self.clients.objects, &mut self.random);
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

/// Whether a request that breaks rules was refused.
pub fn is_refused(answer: &Answer) -> bool {
    matches!(
        answer,
        Answer::Written(Err(Refusal::Invalid { .. })) | Answer::Found(Err(Refusal::Invalid { .. }), _)
    )
}
