//! OSDs that are full. Others hear of it with the answers to their pings. No write of a client that was ordered
//! when the primary knew of it may take space there.

use atoll_types::{Mutation, Touched, Transaction};
use atoll_wire::Message;

use crate::clients::Kind;
use crate::world::{World, osd};

impl World {
    /// An OSD is full from now on, or is not any more.
    pub fn set_full(&mut self, at: usize, is_full: bool) {
        self.note("full", &[at as u64, is_full.into()]);
        self.hears_of_full(at, at, is_full);
    }

    pub fn is_full(&self, at: usize) -> bool {
        self.members[at].full.contains(&osd(at))
    }

    /// An OSD hears whether another is full.
    pub fn hears_of_full(&mut self, at: usize, of: usize, is_full: bool) {
        if self.members[at].full.contains(&osd(of)) == is_full {
            return;
        }
        // What is ordered by now was ordered before this was known.
        self.run_pgs(at);
        let known = &mut self.members[at].full;
        if is_full {
            known.insert(osd(of));
        } else {
            known.remove(&osd(of));
        }
    }

    /// A primary has ordered a write, which it sends to a member.
    pub fn note_ordered(&mut self, primary: usize, to: usize, message: &Message) {
        let (Message::Replicate { transaction, .. } | Message::Overwrite { transaction, .. }) = message else {
            return;
        };
        let Some(entry) = transaction.log.first() else { return };
        let primary_record = self.members[primary].pgs[&transaction.pg].record();
        // Learners are no members yet, and their space is not looked at.
        let is_member = |at: &usize| primary_record.members.contains(&osd(*at));
        for at in [primary, to].into_iter().filter(is_member) {
            if self.members[primary].full.contains(&osd(at)) {
                self.ordered_while_full.insert((at, transaction.pg, entry.version));
            }
        }
    }

    /// A full OSD takes a write. Panics if that needs space.
    pub fn needs_no_space(&mut self, at: usize, transaction: &Transaction) {
        let [entry] = &transaction.log[..] else { return };
        // A member that catches up gets entries beside what it needs to begin with.
        if entry.object != transaction.object {
            return;
        }
        if !self.ordered_while_full.contains(&(at, transaction.pg, entry.version)) || self.frees(transaction) {
            return;
        }
        let state = self.members[at].store.visible.of(transaction.pg);
        let stays = |mutation: &Mutation| match mutation {
            Mutation::Write { .. } => {
                let blocks = Touched::by(std::slice::from_ref(mutation)).block_ranges;
                let mut blocks = blocks.into_iter().flat_map(|(first, count)| first..first + count);
                blocks.all(|block| state.has_to_itself(&transaction.object, block))
            }
            _ => false,
        };
        let only_frees = transaction.mutations.iter().all(|mutation| matches!(mutation, Mutation::Zero { .. }));
        assert!(
            only_frees || transaction.mutations.iter().all(stays),
            "{} is full, and {} of '{}' takes space: {:?}",
            osd(at),
            entry.version,
            transaction.object,
            transaction.mutations
        );
        self.overwrites_in_place += u64::from(!transaction.payload.is_empty());
    }

    /// Returns true if a client deletes or trims, or sets a fence.
    fn frees(&self, transaction: &Transaction) -> bool {
        let request = transaction.log[0].request;
        let Some(op) = self.clients.ops.iter().find(|op| Some(op.id) == request) else { return true };
        let Kind::Write(write) = &op.kind else { return true };
        let frees = |mutation: &Mutation| {
            matches!(
                mutation,
                Mutation::Remove | Mutation::Zero { .. } | Mutation::Truncate { .. } | Mutation::OmapSet { .. }
            )
        };
        write.mutations.iter().all(frees)
    }
}
