//! Splitting: a pool gets twice as many PGs, and each PG keeps half of its objects. The other half
//! stays where it is on every member and becomes a PG of its own.
//!
//! The primary lets no write begin until those in flight are done, and then orders the split like a
//! write. Applying it gives the new PG a copy of the history and of the PG's own object (promises
//! and fences). When all members have it, one compare-and-swap puts both PGs into cluster state;
//! the new one is active there with the epoch of the split. In between, requests for objects of the
//! new PG wait. If the primary is lost meanwhile, the split is in the history or not, like any
//! other write, and the next primary continues.
//!
//! Since nothing is in flight when a split is ordered, a member of the active configuration that
//! lacks it lacks nothing else: it splits its copy as the others did. Any other copy that lacks it
//! may lack more. Such a copy only gets the new number of PGs, and its objects of the new PG do not
//! count.

use atoll_types::operation::PG_META_OBJECT;
use atoll_types::pg_copies::Incompleteness;
use atoll_types::records::PgRecord;
use atoll_types::{Epoch, LogEntry, Mutation, ObjectName, PreImage, Transaction, Version, WriteRequest};
use bytes::Bytes;

use crate::actions::{Action, ObjectView};
use crate::config::Configuration;
use crate::group::Pg;
use crate::invariants;
use crate::own_object::{PG_NUM_KEY, SPLIT_KEY, own_change, own_object};
use crate::submissions::Submission;

impl Configuration {
    /// The pool's number of PGs by the copies of this OSD, which may be ahead of cluster state. In a copy that was
    /// backfilled the store does not know of a split if the new PG was on the OSD before; that PG's history shows it,
    /// and the note of it once cluster state had it.
    pub fn pg_num_here(&self, view: &impl ObjectView) -> u32 {
        let mut pg_num = self.pg_num().max(self.pg_num_noted).max(view.pg_num(self.id).unwrap_or(0));
        while view.head(self.id.split_off(pg_num)) != Version::default() {
            pg_num *= 2;
        }
        pg_num
    }

    /// Returns true if this copy has a split that cluster state, as this OSD knows it, does not have.
    pub fn is_split_under_way(&self, view: &impl ObjectView) -> bool {
        self.pg_num_here(view) > self.pg_num()
    }

    /// Returns true if an object belongs to this PG if the pool has `pg_num` PGs.
    pub fn has_place_for(&self, object: &ObjectName, pg_num: u32) -> bool {
        object.as_str() == PG_META_OBJECT || self.id.holds(object, pg_num)
    }

    /// Returns the mutation that informs a learner of the number of PGs. If its copy was split further, that split
    /// is rolled back.
    pub fn tell_of_splits(&self, view: &impl ObjectView) -> Mutation {
        let (pg_num_before, pg_num) = (self.policy.pg_num_first, self.pg_num_here(view));
        Mutation::Split { pg_num_before, pg_num, is_whole: false }
    }

    /// The pre-image of a split, to roll it back if not all members have it.
    fn pre_image_of_split(&self) -> PreImage {
        let (pg_num_before, pg_num) = (self.policy.pg_num_first, self.pg_num());
        let key = Bytes::from_static(SPLIT_KEY);
        let note = match pg_num > self.id.first_pg_num(pg_num_before) {
            true => Mutation::OmapSet { key, value: Bytes::copy_from_slice(&pg_num.to_be_bytes()) },
            false => Mutation::OmapRemove { key },
        };
        PreImage {
            mutations: vec![note, Mutation::Split { pg_num_before, pg_num, is_whole: false }],
            payload: Bytes::new(),
        }
    }
}

impl Pg {
    /// While active: continues a split if one is wanted or under way. If so, returns true, and
    /// nothing else may change the configuration.
    pub(crate) fn split(&mut self, view: &impl ObjectView) -> bool {
        if self.config.is_split_under_way(view) {
            let is_in_flight = self.log.in_flight().any(|write| write.client_request.is_none());
            if !is_in_flight {
                self.is_splitting = false;
                self.propose_split(view);
            }
            return true;
        }
        self.is_splitting = self.config.policy.pg_num > self.config.pg_num();
        if !self.is_splitting {
            return false;
        }
        // Learners begin again after the split, and find most objects in place.
        self.learners.clear();
        let is_quiet = self.log.has_none_in_flight() && self.outbox.view_is_current() && self.scrub.is_none();
        let may_order = self.intake.is_whole() && view.has_room(self.config.id);
        if is_quiet && may_order && self.membership.has_undecided_proposal() {
            // It may add a member, which would lack what is split off.
            self.outdate_proposals(view);
        } else if is_quiet && may_order {
            // Reads of shards must not cross the split, which moves objects to the new PG.
            self.abandon_operations();
            let mutations = split_whole(self.config.pg_num() * 2);
            let (object, payload) = (own_object(), Bytes::new());
            let split = WriteRequest { object, conditions: Vec::new(), mutations, payload, payload_sealed: false };
            let pre_image = self.erasure.as_ref().map(|_| self.config.pre_image_of_split());
            invariants::split_is_ordered_alone(self.log.has_none_in_flight());
            self.order(None, split, false, pre_image, view.now_us());
        }
        true
    }

    /// All members have split their copies: puts both PGs into cluster state.
    fn propose_split(&mut self, view: &impl ObjectView) {
        let is_in_flight = self.log.in_flight().any(|write| write.client_request.is_none());
        invariants::split_is_proposed_when_all_have_it(self.config.is_active(), is_in_flight);
        if self.membership.begin_proposal(view.now_ms()) {
            self.propose_with_split(self.config.record.clone(), view);
        }
    }

    /// Proposes a record, and with it the split that is under way: all members have it.
    pub(crate) fn propose_with_split(&mut self, record: PgRecord, view: &impl ObjectView) {
        let expected = Box::new(self.config.record.clone());
        if !self.config.is_split_under_way(view) {
            let record = Box::new(record);
            return self.outbox.push(Action::Propose { expected, record, split_off: None });
        }
        let new = self.config.id.split_off(self.config.pg_num());
        let head = view.head(new);
        // Every member that has split its copy had promised at least the epoch of the split. Without a copy here, which
        // moved away before an older cluster state was put back, it is not known. The first epoch says as much: copies
        // of members count, unless they were deleted since.
        let activated_epoch = if head == Version::default() { Epoch(1) } else { head.epoch };
        let record = PgRecord { pg_num: self.config.pg_num() * 2, ..record };
        let split_off = PgRecord {
            activated_epoch,
            last_active_members: self.config.record.members.clone(),
            last_active_shards: self.config.record.shards.clone(),
            ..record.clone()
        };
        let (record, split_off) = (Box::new(record), Some(Box::new((new, split_off))));
        self.outbox.push(Action::Propose { expected, record, split_off });
    }

    /// Notes the number of PGs that cluster state has, if this copy was split: cluster state may be put back, and the new
    /// PG may have gone from this OSD by then.
    pub(crate) fn note_pg_num(&mut self, view: &impl ObjectView) {
        let (id, pg_num) = (self.config.id, self.config.pg_num());
        let is_split = pg_num > id.first_pg_num(self.config.policy.pg_num_first);
        let has_copy = view.head(id) != Version::default() && !self.stray.has_begun();
        if is_split && has_copy && pg_num > self.config.pg_num_noted {
            self.config.pg_num_noted = pg_num;
            let (key, value) = (Bytes::from_static(PG_NUM_KEY), Bytes::copy_from_slice(&pg_num.to_be_bytes()));
            self.submit(Submission::NotePgNum, own_change(id, vec![Mutation::OmapSet { key, value }]));
        }
    }

    /// Returns true if a primary has this copy split off a PG whose history is here already, which the store refuses.
    /// Then the copy lacks writes and has to be backfilled.
    pub(crate) fn is_split_again(&mut self, transaction: &Transaction, view: &impl ObjectView) -> bool {
        let splits_again = transaction.mutations.iter().any(|mutation| match mutation {
            Mutation::Split { pg_num, is_whole: true, .. } => {
                view.head(self.config.id.split_off(pg_num / 2)) != Version::default()
            }
            _ => false,
        });
        if splits_again {
            self.note_incomplete_here(Incompleteness::LacksCommitted, view);
        }
        splits_again
    }
}

/// The split of a copy that has the whole history before it.
pub(crate) fn split_whole(pg_num: u32) -> Vec<Mutation> {
    let value = Bytes::copy_from_slice(&pg_num.to_be_bytes());
    let note = Mutation::OmapSet { key: Bytes::from_static(SPLIT_KEY), value };
    vec![note, Mutation::Split { pg_num_before: pg_num / 2, pg_num, is_whole: true }]
}

/// Returns true if a log entry is a split.
pub(crate) fn is_split(entry: &LogEntry) -> bool {
    entry.object.as_str() == PG_META_OBJECT && entry.touched.omap_keys.iter().any(|key| key[..] == *SPLIT_KEY)
}
