//! Stores that refuse writes that others take: all data for a while, or for good one write, or additions to one
//! object.

use atoll_types::operation::PG_META_OBJECT;
use atoll_types::{Mutation, ObjectName, RequestId, Transaction};

use crate::clients::Kind;
use crate::workload::object_name;
use crate::world::World;

/// Writes that a store refuses for the time of the fault.
#[derive(Clone, Debug)]
pub enum Refused {
    /// One write, as a store might that takes it for malformed.
    Write(RequestId),
    /// Additions to one object, as a store without space for it might refuse them.
    Object(ObjectName),
}

/// Returns true if a change adds data or metadata.
fn adds(transaction: &Transaction) -> bool {
    let adds = |mutation: &Mutation| {
        use Mutation::{CloneFrom, ClonePreImage, Create, OmapReplace, OmapSet};
        matches!(mutation, OmapSet { .. } | OmapReplace { .. } | Create | CloneFrom { .. } | ClonePreImage { .. })
    };
    !transaction.payload.is_empty() || transaction.mutations.iter().any(adds)
}

impl Refused {
    fn is_in(&self, transaction: &Transaction) -> bool {
        match self {
            Refused::Write(request) => {
                let is_it = |entry: &atoll_types::LogEntry| {
                    entry.request == Some(*request) && entry.object == transaction.object
                };
                transaction.log.iter().any(is_it)
            }
            Refused::Object(object) => {
                // What is staged for it moves to its place by a clone.
                let is_copied =
                    |mutation: &Mutation| matches!(mutation, Mutation::ClonePreImage { copy } if copy == object);
                adds(transaction) && (transaction.object == *object || transaction.mutations.iter().any(is_copied))
            }
        }
    }
}

impl World {
    /// Returns true if a fault makes the store of an OSD refuse a change. It takes those of a PG's own object.
    pub fn refuses(&self, at: usize, transaction: &Transaction) -> bool {
        if transaction.object.as_str() == PG_META_OBJECT {
            return false;
        }
        let member = &self.members[at];
        let is_refused = member.refused.as_ref().is_some_and(|refused| refused.is_in(transaction));
        is_refused || self.now < member.refuses_until && adds(transaction)
    }

    /// From now on the store of an OSD refuses additions to an object, or a pending write.
    pub fn refuse_for_good(&mut self, at: usize) {
        let outstanding = |op: &&crate::clients::Op| op.answered.is_none() && matches!(op.kind, Kind::Write(_));
        let writes: Vec<RequestId> = self.clients.ops.iter().filter(outstanding).map(|op| op.id).collect();
        let refused = if writes.is_empty() || self.random.chance(50) {
            Refused::Object(object_name(self.random.below(self.options.objects.max(1))))
        } else {
            Refused::Write(writes[self.random.below(writes.len() as u64) as usize])
        };
        self.statistics.refusing_for_good += 1;
        self.note("refuses for good", &[at as u64, matches!(refused, Refused::Write(_)).into()]);
        self.members[at].refused = Some(refused);
    }
}
