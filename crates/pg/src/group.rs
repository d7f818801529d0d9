//! A PG on one OSD: its components, and its interface for the shell.

use std::cell::Cell;

use atoll_types::records::PgRecord;
use atoll_types::{Epoch, OsdId, PgId, SharedTransaction, Transaction, Version};

use crate::actions::{Action, ObjectView};
use crate::backfill::Learners;
use crate::config::{Configuration, PgState, PoolPolicy, noted_pg_num};
use crate::erasure::{Erasure, PreImages, QuietNote};
use crate::intake::Intake;
use crate::outbox::Outbox;
use crate::peering::Peering;
use crate::peering::membership::Membership;
use crate::peering::promises::Promises;
use crate::primary_requests::PrimaryRequests;
use crate::replication::duplicates::Duplicates;
use crate::replication::fences::Fences;
use crate::replication::log::Log;
use crate::replication::queue::Queue;
use crate::replication::reads::Reads;
use crate::replication::refusals::StoreRefusals;
use crate::scrub::Scrub;
use crate::staging::Staged;
use crate::stray::StrayCopy;
use crate::submissions::Submission;

/// Bytes that a PG uses at most to recognise retries.
const RETRY_MEMORY_BYTES: usize = 512 << 10;

/// One PG on one OSD.
pub struct Pg {
    pub(crate) config: Configuration,
    pub(crate) promises: Promises,
    pub(crate) membership: Membership,
    pub(crate) peering: Peering,
    pub(crate) learners: Learners,
    pub(crate) stray: StrayCopy,
    pub(crate) log: Log,
    pub(crate) queue: Queue,
    pub(crate) duplicates: Duplicates,
    pub(crate) fences: Fences,
    pub(crate) reads: Reads,
    pub(crate) refusals: StoreRefusals,
    pub(crate) primary_requests: PrimaryRequests,
    pub(crate) intake: Intake,
    pub(crate) staged: Staged,
    pub(crate) scrub: Option<Scrub>,
    /// Only in an erasure-coded PG.
    pub(crate) erasure: Option<Erasure>,
    /// Sequence down to which the newest writes could be rolled back, for a head and a committed sequence.
    pub(crate) rolls_back: Cell<Option<((Version, u64), u64)>>,
    /// A split is about to be ordered: no write begins.
    pub(crate) is_splitting: bool,
    pub(crate) outbox: Outbox,
}

impl Pg {
    /// A PG as this OSD finds it after a start, from its copy and the record in cluster state. The
    /// shell must have loaded the PG's own object
    /// ([`PG_META_OBJECT`](atoll_types::operation::PG_META_OBJECT)), which holds this OSD's promise.
    /// Without a promise there, the OSD was never a member or has lost its device.
    pub fn new(
        id: PgId,
        me: OsdId,
        policy: PoolPolicy,
        target: Vec<OsdId>,
        record: PgRecord,
        view: &impl ObjectView,
    ) -> Self {
        let mut pg = Pg {
            config: Configuration {
                id,
                me,
                policy,
                target,
                state: if record.primary == me { PgState::Inactive } else { PgState::Member },
                record,
                pg_num_noted: noted_pg_num(id, view),
                elsewhere: Epoch(0),
            },
            promises: Promises::find(id, view),
            membership: Membership::new(view.now_ms()),
            peering: Peering::default(),
            learners: Learners::default(),
            stray: StrayCopy::default(),
            log: Log::new(view.head(id), &view.log(id)),
            queue: Queue::default(),
            duplicates: Duplicates::new(RETRY_MEMORY_BYTES),
            fences: Fences::default(),
            reads: Reads::default(),
            refusals: StoreRefusals::default(),
            primary_requests: PrimaryRequests::default(),
            intake: Intake::default(),
            staged: Staged::None,
            scrub: None,
            erasure: policy
                .shape
                .map(|shape| Erasure::new(shape, PreImages::find(id, view), QuietNote::find(id, view))),
            rolls_back: Cell::new(None),
            is_splitting: false,
            outbox: Outbox::new(id),
        };
        pg.log.note_committed(pg.erasure.as_ref().map_or(0, |erasure| erasure.quiet.noted()));
        pg.duplicates.catch_up(&view.log(id), view.head(id));
        pg.follow_record_decision(view);
        pg.promises.notice_lost_device(&pg.config);
        pg.find_staged(view);
        pg.advance(view);
        pg.note_pg_num(view);
        pg
    }

    /// Lets the PG use fewer bytes than usual to recognise retries.
    pub fn limit_retry_memory(&mut self, bytes: usize) {
        self.duplicates.limit_memory(bytes);
    }

    /// The PG's pool and index.
    pub fn id(&self) -> PgId {
        self.config.id
    }

    /// This OSD's role in the PG, and how far it has come.
    pub fn state(&self) -> &PgState {
        &self.config.state
    }

    /// The record in force, as far as this OSD knows.
    pub fn record(&self) -> &PgRecord {
        &self.config.record
    }

    /// The OSDs that are being backfilled, with the number of objects that each still lacks, once
    /// that is known.
    pub fn learners(&self) -> impl Iterator<Item = (OsdId, Option<usize>)> {
        self.learners.progress()
    }

    /// Returns the number of objects whose parts a learner has been sent and has not all acknowledged.
    pub fn objects_in_transit(&self) -> usize {
        self.learners.objects_in_transit()
    }

    /// Clients' requests that cannot start yet.
    pub fn waiting_count(&self) -> usize {
        self.queue.len()
    }

    /// Copies, or shards, that the PG should have.
    pub fn size(&self) -> usize {
        self.config.policy.size as usize
    }

    /// Returns true if the members are the PG's targets.
    pub fn is_on_target(&self) -> bool {
        self.config.is_on_target()
    }

    /// The next action for the shell. When there is none, call [`Pg::proceed`] and ask once more.
    pub fn next_action(&mut self) -> Option<Action> {
        self.outbox.pop()
    }

    /// Starts steps that waited until the view shows earlier submissions. All actions have been taken.
    pub fn proceed(&mut self, view: &impl ObjectView) {
        assert!(self.outbox.is_empty(), "the shell takes all actions first");
        self.with_erasure(view, Erasure::continue_roll_back);
        self.start_learning(view);
        self.read_waiting_spans(view);
        self.order_ready(view);
        self.start_waiting(view);
        self.continue_scrub(view);
    }

    /// Returns true if this OSD is the primary. If it has promised a higher epoch than its record has, another OSD
    /// leads already.
    pub(crate) fn leads(&self) -> bool {
        self.config.is_primary() && self.promises.epoch() <= self.config.record.epoch
    }

    pub(crate) fn submit(&mut self, purpose: Submission, mut transaction: Transaction) {
        if let Some(head) = transaction.reset_head() {
            self.log.cut(head.sequence);
            self.duplicates.cut(head);
            if let Some(erasure) = &mut self.erasure {
                erasure.pre_images.delete_with(head, &mut transaction);
            }
        }
        self.submit_write(purpose, transaction.into());
    }

    /// Submits a write that leaves the history before it as it is.
    pub(crate) fn submit_write(&mut self, purpose: Submission, transaction: SharedTransaction) {
        if let Some(entry) = transaction.log.last() {
            self.log.ends_at(entry.version.sequence);
        }
        transaction.log.iter().for_each(|entry| self.duplicates.follow(entry));
        self.outbox.submit(purpose, transaction);
    }
}
