//! What an OSD promises to the primaries of a group: to heed no lower epoch, and to help no other
//! primary while a lease binds it to the one before.

use std::collections::BTreeSet;

use atoll_base::{Epoch, LogEntry, Mutation, OsdId, PgId, Transaction};
use atoll_wire::Message;
use bytes::Bytes;

use crate::actions::ObjectView;
use crate::coded::SHARD_KEY;
use crate::group::{EPOCH_KEY, INCOMPLETE_KEY, Pg, PgState, meta_object};
use crate::submissions::Submission;

/// Bytes of log entries in one answer: well below the control segment's limit.
const LOG_BYTES_PER_ANSWER: usize = 1 << 20;

pub(crate) struct Promises {
    /// Lower epochs are not heeded; durable before anything is said under it.
    pub epoch: Epoch,
    durable: Epoch,
    /// Objects may be missing or old: this OSD cannot say what was acknowledged.
    pub is_incomplete: bool,
    /// Who asked for the promise last, perhaps this OSD itself, and whether it wants the log.
    pub asked_by: Option<OsdId>,
    wants_log: bool,
    /// The shard that this OSD's objects are of, in an erasure-coded group, if it has any.
    pub shard: Option<u8>,
    /// The shard that whoever asked last takes it to hold as a member.
    pub wants_shard: Option<u8>,
    /// An answer is owed to whoever asked, or this OSD itself waits for it.
    is_owed: bool,
    /// The primary that was answered last: it may serve reads on this OSD's word. Before the first
    /// answer since the start it may be anyone.
    answered: Option<OsdId>,
    has_answered: bool,
    /// No answer before this time of this OSD's clock, unless all of `bound_to` release it earlier.
    bound_until_ms: u64,
    /// Who may serve reads on this OSD's word, and has not said yet that it does not.
    bound_to: BTreeSet<OsdId>,
}

impl Promises {
    pub fn find(pg: PgId, view: &impl ObjectView) -> Self {
        let promised = view.omap_value(pg, &meta_object(), EPOCH_KEY);
        // Objects from before the group was split off, in a copy that was not told so in time.
        let is_left_over = promised.is_none() && view.pg_num(pg).is_some();
        let promised = promised.and_then(|value| Some(u64::from_be_bytes(value[..].try_into().ok()?)));
        let epoch = Epoch(promised.unwrap_or(0));
        let shard = view.omap_value(pg, &meta_object(), SHARD_KEY).and_then(|value| value.first().copied());
        Promises {
            epoch,
            durable: epoch,
            is_incomplete: view.omap_value(pg, &meta_object(), INCOMPLETE_KEY).is_some() || is_left_over,
            asked_by: None,
            shard,
            wants_shard: None,
            wants_log: false,
            is_owed: false,
            answered: None,
            has_answered: false,
            bound_until_ms: view.lease_granted_until_ms(None),
            bound_to: BTreeSet::new(),
        }
    }

    pub fn is_durable(&self) -> bool {
        self.durable == self.epoch
    }

    /// Whether somebody waits for an answer, perhaps this OSD itself.
    pub fn owes_answer(&self) -> bool {
        self.is_owed
    }

    /// Binds this OSD for as long as the primary that it answered may rely on it.
    fn bind(&mut self, me: OsdId, new_primary: OsdId, active_members: &[OsdId], view: &impl ObjectView) {
        match self.answered {
            Some(old) if old == new_primary => return,
            Some(old) => {
                self.bound_until_ms = self.bound_until_ms.max(view.lease_granted_until_ms(Some(old)));
                self.bound_to.insert(old);
            }
            // Before the start it may have been any of them.
            None if !self.has_answered => self.bound_to.extend(active_members),
            None => {}
        }
        self.answered = None;
        self.bound_to.remove(&me);
        self.bound_to.remove(&new_primary);
    }
}

impl Pg {
    /// Whoever was a member in an active configuration has promised its epoch, durably. An OSD
    /// that does not know of it has lost its device, and knows nothing of what was acknowledged.
    pub(crate) fn notice_lost_device(&mut self) {
        let record = &self.record;
        if record.last_active_members.contains(&self.me) && self.promises.epoch < record.activated_epoch {
            self.promises.is_incomplete = true;
        }
    }

    /// A primary asks for the promise.
    pub(crate) fn asked(
        &mut self,
        from: OsdId,
        epoch: Epoch,
        (active_epoch, active_members): (Epoch, &[OsdId]),
        wants_log: bool,
        view: &impl ObjectView,
    ) {
        // A primary that asks under an epoch no lower than promised has been elected by cluster
        // state, even if this OSD's own view of the record lags.
        if epoch < self.promises.epoch {
            return;
        }
        if active_members.contains(&self.me) && self.promises.epoch < active_epoch {
            self.promises.is_incomplete = true;
        }
        self.promises.wants_log = wants_log;
        self.promise(epoch, from, active_members, view);
    }

    /// Makes a promise, unless it is made already, and answers when it may.
    pub(crate) fn promise(
        &mut self,
        epoch: Epoch,
        primary: OsdId,
        active_members: &[OsdId],
        view: &impl ObjectView,
    ) {
        self.promises.asked_by = Some(primary);
        self.promises.is_owed = true;
        if epoch == self.promises.epoch {
            return self.answer_when_released(view);
        }
        if primary != self.me && self.is_primary() && epoch > self.record.epoch {
            // Cluster state has chosen another; this OSD hears of it later.
            self.restart_peering();
            self.disown_in_flight();
        }
        self.promises.bind(self.me, primary, active_members, view);
        self.promises.epoch = epoch;
        // Whoever leads now says anew what is to be taken back.
        self.end_roll_back();
        for osd in self.promises.bound_to.clone() {
            self.ask_for_release(osd);
        }
        let value = Bytes::copy_from_slice(&epoch.0.to_be_bytes());
        let mut mutations = vec![Mutation::OmapSet { key: Bytes::from_static(EPOCH_KEY), value }];
        let wanted = if primary == self.me { self.record.shard_of(self.me) } else { self.promises.wants_shard };
        if let (Some(shard), None) = (wanted, self.promises.shard) {
            // Nothing is here yet, or it would say of which shard it is.
            self.promises.shard = Some(shard);
            mutations.push(set_shard(shard));
        }
        if self.promises.is_incomplete {
            mutations.push(incomplete());
        }
        let transaction = self.own_change(mutations);
        self.submit(Submission::Promise { epoch }, transaction);
    }

    /// Tells a former primary that it was replaced, if this OSD is bound to it.
    pub(crate) fn ask_for_release(&mut self, osd: OsdId) {
        if self.promises.bound_to.contains(&osd) {
            self.send(osd, Message::Fenced { pg: self.id, epoch: self.promises.epoch });
        }
    }

    pub(crate) fn promise_is_durable(&mut self, epoch: Epoch, view: &impl ObjectView) {
        self.promises.durable = self.promises.durable.max(epoch);
        self.answer_when_released(view);
    }

    /// Gives the answer that is owed once the promise is durable and no lease binds any more.
    pub(crate) fn answer_when_released(&mut self, view: &impl ObjectView) {
        let promises = &mut self.promises;
        let is_bound = view.now_ms() < promises.bound_until_ms && !promises.bound_to.is_empty();
        if !promises.is_owed || !promises.is_durable() || is_bound {
            return;
        }
        promises.is_owed = false;
        let primary = promises.asked_by.unwrap_or(self.me);
        promises.answered = Some(primary);
        promises.has_answered = true;
        promises.bound_to.clear();
        if primary == self.me {
            self.peering.own_promise = Some(promises.epoch);
            return self.advance(view);
        }
        let wants_log = promises.wants_log;
        self.tell_what_is_here(primary, wants_log, view);
    }

    pub(crate) fn tell_what_is_here(&mut self, primary: OsdId, wants_log: bool, view: &impl ObjectView) {
        let mut log = if wants_log { newest_of(view.log(self.id)) } else { Vec::new() };
        log.iter_mut().for_each(|entry| entry.undo = None);
        let shard = self.promises.shard;
        let (epoch, head) = (self.promises.epoch, view.head(self.id));
        let is_complete = !self.promises.is_incomplete;
        self.send(primary, Message::PeerInfo { pg: self.id, epoch, head, is_complete, log, shard });
    }

    /// Another member has promised a higher epoch to another primary.
    pub(crate) fn fenced(&mut self, from: OsdId, epoch: Epoch) {
        if epoch > self.record.epoch && self.is_primary() && self.state != PgState::Inactive {
            // Cluster state will say who leads the group now.
            self.restart_peering();
        }
        self.send(from, Message::FencedAck { pg: self.id, epoch });
    }

    /// The former primary does not rely on this OSD any more.
    pub(crate) fn released(&mut self, from: OsdId, epoch: Epoch, view: &impl ObjectView) {
        if epoch == self.promises.epoch && self.promises.bound_to.remove(&from) {
            self.answer_when_released(view);
        }
    }

    /// A primary that fills this OSD says when that begins and when it is done.
    pub(crate) fn note_completeness(&mut self, transaction: &Transaction) {
        if transaction.object != meta_object() {
            return;
        }
        for mutation in &transaction.mutations {
            match mutation {
                Mutation::OmapSet { key, .. } if key[..] == *INCOMPLETE_KEY => self.promises.is_incomplete = true,
                Mutation::OmapRemove { key } if key[..] == *INCOMPLETE_KEY => self.promises.is_incomplete = false,
                Mutation::OmapSet { key, value } if key[..] == *SHARD_KEY => {
                    self.promises.shard = value.first().copied();
                }
                _ => {}
            }
        }
    }
}

/// Says durably which shard the objects are of.
pub(crate) fn set_shard(shard: u8) -> Mutation {
    Mutation::OmapSet { key: Bytes::from_static(SHARD_KEY), value: Bytes::copy_from_slice(&[shard]) }
}

/// Says durably that the data is behind the history.
pub(crate) fn incomplete() -> Mutation {
    Mutation::OmapSet { key: Bytes::from_static(INCOMPLETE_KEY), value: Bytes::from_static(b"1") }
}

fn newest_of(mut log: Vec<LogEntry>) -> Vec<LogEntry> {
    let mut bytes = 0;
    let fits = log.iter().rev().take_while(|entry| {
        bytes += entry.encoded_bytes_bound();
        bytes <= LOG_BYTES_PER_ANSWER
    });
    let count = fits.count();
    log.split_off(log.len() - count)
}
