//! Report of this OSD's copy of a PG for an operator.

use atoll_types::pg_copies::PgCopy;

use crate::actions::ObjectView;
use crate::config::PgState;
use crate::group::Pg;
use crate::own_object::MIXED_SHARDS;

impl Pg {
    /// Returns this OSD's state of the PG, and its reasons for waiting.
    pub fn copy_told(&self, view: &impl ObjectView) -> PgCopy {
        let state = match self.config.state {
            PgState::Member => "member",
            PgState::Inactive => "inactive",
            PgState::Peering => "peering",
            PgState::Recovering => "recovering",
            PgState::Active => "active",
        };
        PgCopy {
            pg: self.config.id.to_string(),
            osd: self.config.me,
            state: state.into(),
            epoch: self.config.record.epoch,
            promised: self.promises.epoch(),
            head: view.head(self.config.id),
            committed_sequence: self.log.committed_sequence(),
            rolls_back_to: self.rolls_back_to(view),
            incomplete: self.promises.incompleteness(),
            shard: self.promises.shard().filter(|shard| *shard != MIXED_SHARDS),
            waits_for: self.waits_for(view),
            age_ms: 0,
        }
    }

    /// Returns the sequence down to which the newest writes have pre-images. To look at a log takes time, so it is
    /// done when that has changed, and for PGs that stand still.
    fn rolls_back_to(&self, view: &impl ObjectView) -> u64 {
        let head = view.head(self.config.id);
        if self.erasure.is_none() || self.config.is_active() || self.is_idle(view) {
            return head.sequence;
        }
        let known = (head, self.log.committed_sequence());
        if let Some((at, sequence)) = self.rolls_back.get()
            && at == known
        {
            return sequence;
        }
        let log = view.log(self.config.id);
        let undoable = log.iter().rev().take_while(|entry| entry.pre_image.is_some()).count() as u64;
        let sequence = head.sequence.saturating_sub(undoable);
        self.rolls_back.set(Some((known, sequence)));
        sequence
    }
}
