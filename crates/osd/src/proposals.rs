//! Which proposals to cluster state are under way. A PG repeats one that was not answered within a second; where
//! cluster state takes longer, many copies of it would only keep it busy.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use atoll_types::PgId;

/// Copies of one proposal that may be under way: the second reaches another member of cluster state if the first one's
/// hangs.
const COPIES_MAX: usize = 2;

/// A PG, and the revision of the record that is to be replaced.
type Proposal = (PgId, i64);

#[derive(Clone, Default)]
pub(crate) struct Proposals(Arc<Mutex<HashMap<Proposal, usize>>>);

/// One copy, under way until this is dropped.
pub(crate) struct UnderWay {
    proposals: Proposals,
    proposal: Proposal,
}

impl Proposals {
    /// Begins a copy, unless as many as may be are under way.
    pub fn begin(&self, proposal: Proposal) -> Option<UnderWay> {
        let mut under_way = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let copies = under_way.entry(proposal).or_default();
        if *copies == COPIES_MAX {
            return None;
        }
        *copies += 1;
        Some(UnderWay { proposals: self.clone(), proposal })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut under_way = self.proposals.0.lock().unwrap_or_else(PoisonError::into_inner);
        let copies = under_way.get_mut(&self.proposal).expect("pending proposals are counted");
        *copies -= 1;
        if *copies == 0 {
            under_way.remove(&self.proposal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_types::PoolId;

    #[test]
    fn two_copies_of_a_proposal_are_under_way_at_most() {
        let proposals = Proposals::default();
        let pg = PgId { pool: PoolId(1), index: 2 };
        let (first, second) = (proposals.begin((pg, 7)), proposals.begin((pg, 7)));
        assert!(first.is_some() && second.is_some() && proposals.begin((pg, 7)).is_none());
        assert!(proposals.begin((pg, 8)).is_some(), "another revision is another proposal");
        drop(first);
        let third = proposals.begin((pg, 7));
        assert!(third.is_some() && proposals.begin((pg, 7)).is_none());
        drop((second, third));
        assert!(proposals.0.lock().unwrap().is_empty(), "nothing is kept of what is over");
    }
}
