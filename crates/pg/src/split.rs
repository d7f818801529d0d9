//! Splitting: a pool gets twice as many groups, and each group keeps half of its objects. The
//! other half stays where it is on every member, and becomes a group of its own.
//!
//! The primary lets no write begin until those in flight are done, and then orders the split like a
//! write. When all members have it, the new group has a copy of the history and of the group's own
//! object (promises and fences) on each of them, and a compare-and-swap puts both into cluster
//! state: the group as one of twice as many, and the new group, which is active with the epoch of
//! the split. In between, requests for what is split off wait. If the primary is lost meanwhile,
//! the split is in the history or not, like any other write, and the next primary goes on.
//!
//! Since nothing is in flight when a split is ordered, a member of the active configuration that
//! lacks it lacks nothing else: it splits its copy as the others did. Any other copy that lacks it
//! may lack more. It is told of how many groups it is one, and has nothing to say about what was
//! split off it.

use atoll_base::operation::PG_META_OBJECT;
use atoll_base::records::PgRecord;
use atoll_base::{LogEntry, Mutation, ObjectName, Undo, Version, WriteRequest};
use bytes::Bytes;

use crate::actions::{Action, ObjectView};
use crate::group::{Pg, meta_object};

/// The key in a group's own object that a split writes: of how many groups it is one.
pub const SPLIT_KEY: &[u8] = b"split";

impl Pg {
    /// Of how many groups of the pool this is one, by cluster state.
    pub fn pg_num(&self) -> u32 {
        self.record.pg_num_of(self.id, self.policy.pg_num_first)
    }

    /// The same by this OSD's copy, which may be ahead.
    pub(crate) fn pg_num_here(&self, view: &impl ObjectView) -> u32 {
        self.pg_num().max(view.pg_num(self.id).unwrap_or(0))
    }

    /// Whether an object is this group's if it is one of `pg_num`.
    pub(crate) fn has_place_for(&self, object: &ObjectName, pg_num: u32) -> bool {
        object.as_str() == PG_META_OBJECT || self.id.holds(object, pg_num)
    }

    /// While active: brings a split forward if one is wanted or under way. True if so, and then
    /// nothing else may change the configuration.
    pub(crate) fn split(&mut self, view: &impl ObjectView) -> bool {
        if self.pg_num_here(view) > self.pg_num() {
            let is_in_flight = self.in_flight.iter().any(|write| write.asker.is_none());
            if !is_in_flight {
                self.is_splitting = false;
                self.propose_split(view);
            }
            return true;
        }
        self.is_splitting = self.policy.pg_num > self.pg_num();
        if !self.is_splitting {
            return false;
        }
        // Whoever was being filled is filled anew afterwards: most of it is there then.
        self.learners.clear();
        let is_at_rest = self.in_flight.is_empty() && self.view_is_current() && self.scrub.is_none();
        let may_order = self.history_broken.is_none() && view.has_room(self.id);
        if is_at_rest && may_order && !self.membership.is_proposing(view.now_ms()) {
            // Objects go where shards of them are being read no more; that begins anew.
            self.abandon_operations();
            let mutations = split_whole(self.pg_num() * 2);
            let (object, payload) = (meta_object(), Bytes::new());
            let split = WriteRequest { object, conditions: Vec::new(), mutations, payload, payload_sealed: false };
            let undo = self.coded.as_ref().map(|_| self.undo_of_split());
            self.order(None, split, false, undo);
        }
        true
    }

    /// How an erasure-coded group takes back a split that not all members have.
    fn undo_of_split(&self) -> Undo {
        let (pg_num_before, pg_num) = (self.policy.pg_num_first, self.pg_num());
        let key = Bytes::from_static(SPLIT_KEY);
        let note = match pg_num > self.id.first_pg_num(pg_num_before) {
            true => Mutation::OmapSet { key, value: Bytes::copy_from_slice(&pg_num.to_be_bytes()) },
            false => Mutation::OmapRemove { key },
        };
        Undo {
            mutations: vec![note, Mutation::Split { pg_num_before, pg_num, is_whole: false }],
            payload: Bytes::new(),
        }
    }

    /// All members have split their copies: says so in cluster state.
    fn propose_split(&mut self, view: &impl ObjectView) {
        if !self.membership.begin_proposal(view.now_ms()) {
            return;
        }
        let new = self.id.split_off(self.pg_num());
        let head = view.head(new);
        if head == Version::default() {
            return self.warn(format!("{} does not have group {new}, which is split off; another must", self.me));
        }
        let pg_num = self.pg_num() * 2;
        let record = PgRecord { pg_num, ..self.record.clone() };
        let split_off = PgRecord {
            // Whoever has split its copy had promised the epoch of that, at least.
            activated_epoch: head.epoch,
            last_active_members: self.record.members.clone(),
            last_active_shards: self.record.shards.clone(),
            ..record.clone()
        };
        let expected = self.record.clone();
        self.actions.push_back(Action::Propose { expected, record, split_off: Some(Box::new((new, split_off))) });
    }

    /// What a copy that is to be filled is told about splits. It may have been undone.
    pub(crate) fn tell_of_splits(&self, view: &impl ObjectView) -> Mutation {
        let (pg_num_before, pg_num) = (self.policy.pg_num_first, self.pg_num_here(view));
        Mutation::Split { pg_num_before, pg_num, is_whole: false }
    }
}

/// The split of a copy that lacks nothing.
pub(crate) fn split_whole(pg_num: u32) -> Vec<Mutation> {
    let value = Bytes::copy_from_slice(&pg_num.to_be_bytes());
    let note = Mutation::OmapSet { key: Bytes::from_static(SPLIT_KEY), value };
    vec![note, Mutation::Split { pg_num_before: pg_num / 2, pg_num, is_whole: true }]
}

/// Whether a log entry is that of a split.
pub(crate) fn is_split(entry: &LogEntry) -> bool {
    entry.object.as_str() == PG_META_OBJECT && entry.touched.omap_keys.iter().any(|key| key[..] == *SPLIT_KEY)
}
