//! What an operator is told of this OSD's copy of a PG.

use atoll_types::pg_copies::PgCopy;

use crate::actions::ObjectView;
use crate::config::PgState;
use crate::group::Pg;
use crate::own_object::MIXED_SHARDS;

impl Pg {
    /// What this OSD has of the PG, and what it waits for.
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
            incomplete: self.promises.incompleteness(),
            shard: self.promises.shard().filter(|shard| *shard != MIXED_SHARDS),
            waits_for: self.waits_for(view),
        }
    }
}
