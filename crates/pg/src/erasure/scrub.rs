//! A scrub's conclusions from the shards of an object: a bad one is computed from the others, or parity is
//! computed again and compared.

use atoll_ec::Code;
use atoll_types::{Mutation, ObjectName, OsdId};

use super::Erasure;
use super::backfill::add_part;
use super::fetch::{Fetch, Operation, Purpose, ShardParts};
use super::parts::Part;
use super::shape::Span;
use super::update::shard_of;
use crate::actions::ObjectView;
use crate::group::Pg;

/// Why a scrub reads shards.
pub(crate) enum Examination {
    /// To rebuild a member's bad shard.
    Rebuild { tag: u64, bad: OsdId, shard: u8 },
    /// To compare parity with the data.
    Verify { tag: u64 },
}

impl Examination {
    pub(super) fn tag(&self) -> u64 {
        let (Examination::Rebuild { tag, .. } | Examination::Verify { tag }) = self;
        *tag
    }
}

/// Conclusion from the shards of an object.
pub(crate) enum Examined {
    /// New content of a member's bad shard.
    Rebuilt { bad: OsdId, mutations: Vec<Mutation>, payload: Vec<u8> },
    /// A member's shard turned out to be damaged.
    Damaged,
    /// All shards fit together.
    Fits,
    /// They do not. This shard is wrong, if it is known which one is.
    DoesNotFit { culprit: Option<u8> },
}

impl Erasure {
    /// The shards that an examination reads have come.
    pub(super) fn examined(&self, what: Examination, fetch: &Fetch, parts: &ShardParts) -> Examined {
        match what {
            Examination::Rebuild { bad, shard, .. } => {
                let whole = fetch.whole;
                let mut mutations =
                    vec![Mutation::Remove, shard_of(self.shape, whole.object_bytes, whole.seal_shape)];
                let mut payload = Vec::new();
                if let Some((span, part)) = parts.get(&shard) {
                    add_part(*span, part, whole.seal_shape, true, &mut mutations, &mut payload);
                }
                mutations.push(Mutation::SetVersion { version: whole.version });
                Examined::Rebuilt { bad, mutations, payload }
            }
            Examination::Verify { .. } if fetch.has_found_damage => Examined::Damaged,
            Examination::Verify { .. } if fits(&self.code, parts, None) => Examined::Fits,
            Examination::Verify { .. } => Examined::DoesNotFit { culprit: self.culprit(parts) },
        }
    }

    /// The one shard without which all others fit together.
    fn culprit(&self, parts: &ShardParts) -> Option<u8> {
        if parts.len() <= usize::from(self.shape.data) + 1 {
            // With one shard more than it takes, it is unknown which one is wrong.
            return None;
        }
        let mut culprits = parts.keys().copied().filter(|shard| fits(&self.code, parts, Some(*shard)));
        culprits.next().filter(|_| culprits.next().is_none())
    }
}

impl Pg {
    /// Reads shards for a scrub.
    pub(crate) fn examine_shards(
        &mut self,
        object: ObjectName,
        fetch: Fetch,
        what: Examination,
        view: &impl ObjectView,
    ) {
        // No lock is needed: the scrub holds writes of the object back.
        let lock = Span { start: 0, end: 0 };
        let operation = Operation { object, lock, is_write: false, fetch, purpose: Purpose::Examine(what) };
        self.with_erasure(view, |erasure, context| erasure.begin(operation, context));
    }
}

/// Returns true if all shards, except `but`, fit together.
fn fits(code: &Code, parts: &ShardParts, but: Option<u8>) -> bool {
    let used: Vec<(u8, &Part)> =
        parts.iter().filter(|(shard, _)| Some(**shard) != but).map(|(shard, (_, part))| (*shard, part)).collect();
    let (sources, checked) = used.split_at(code.data_shards().min(used.len()));
    let agrees = |pick: fn(&Part) -> &bytes::Bytes| {
        let there: Vec<(usize, &[u8])> =
            sources.iter().map(|(shard, part)| (usize::from(*shard), &pick(part)[..])).collect();
        let numbers: Vec<usize> = checked.iter().map(|(shard, _)| usize::from(*shard)).collect();
        let mut output: Vec<Vec<u8>> = checked.iter().map(|(_, part)| vec![0; pick(part).len()]).collect();
        let mut slices: Vec<&mut [u8]> = output.iter_mut().map(|bytes| &mut bytes[..]).collect();
        let is_done = code.reconstruct(&there, &numbers, &mut slices).is_ok();
        is_done && output.iter().zip(checked).all(|(computed, (_, part))| computed[..] == pick(part)[..])
    };
    agrees(|part| &part.data) && agrees(|part| &part.seals)
}
