//! Bringing members of the active configuration level while the group peers: what one lacks are the
//! last writes that were in flight, so the log always reaches back to them. The parts of objects go
//! first, one message at a time, then the log entries.

use std::collections::{BTreeMap, VecDeque};

use atoll_base::operation::FENCE_KEY_PREFIX;
use atoll_base::{Epoch, LogEntry, Mutation, ObjectName, OsdId, Touched, Transaction, Version};
use atoll_wire::Message;

use crate::actions::{Action, ObjectView, Token};
use crate::group::{Pg, meta_object};

/// Bytes of log entries per message. One entry more may begin below this, and the largest entry
/// still leaves the message within the control segment's limit.
const ENTRY_BYTES_PER_MESSAGE: usize = 256 << 10;

pub(crate) struct SyncJob {
    epoch: Epoch,
    objects: VecDeque<(ObjectName, Touched)>,
    log: VecDeque<LogEntry>,
    /// Transactions of the current object that were read and not sent yet.
    ready: VecDeque<Transaction>,
    /// The read of the first of `objects` that is under way.
    reading: Option<Token>,
    /// That read failed; a tick tries it again.
    has_failed: bool,
}

impl Pg {
    /// Starts to send a member everything after its head.
    pub(crate) fn start_sync(&mut self, to: OsdId, epoch: Epoch, after: Version, view: &impl ObjectView) {
        let log: VecDeque<LogEntry> =
            view.log(self.id).into_iter().filter(|entry| entry.version > after).collect();
        if log.front().is_none_or(|entry| entry.version.sequence != after.sequence + 1) {
            // It cannot have been a member of the active configuration with this history.
            self.warn(format!("the log does not reach back to {after}, which {to} has; it must be filled"));
            self.membership.note_incomplete(to);
            return;
        }
        let objects = touched_objects(&log);
        let ready = VecDeque::new();
        let job = SyncJob { epoch, objects, log, ready, reading: None, has_failed: false };
        self.sync_jobs.insert(to, job);
        self.send_next_of_sync(to);
    }

    /// The member has the last message; sends the next. True when there is none.
    pub(crate) fn continue_sync(&mut self, to: OsdId) -> bool {
        let Some(job) = self.sync_jobs.get(&to) else { return false };
        if job.reading.is_none() && job.objects.is_empty() && job.ready.is_empty() && job.log.is_empty() {
            self.sync_jobs.remove(&to);
            return true;
        }
        self.send_next_of_sync(to);
        false
    }

    fn send_next_of_sync(&mut self, to: OsdId) {
        let token = self.token();
        let Some(job) = self.sync_jobs.get_mut(&to) else { return };
        let epoch = job.epoch;
        if let Some(transaction) = job.ready.pop_front() {
            return self.send(to, Message::PeerSync { epoch, tag: 0, transaction, is_last: false });
        }
        if let Some((object, touched)) = job.objects.front().cloned() {
            job.reading = Some(token);
            return self.actions.push_back(Action::ReadForSync { token, object, touched });
        }
        let log = entries_for_one_message(&mut job.log);
        let is_last = job.log.is_empty();
        let transaction = Transaction { log, ..self.own_change(Vec::new()) };
        self.send(to, Message::PeerSync { epoch, tag: 0, transaction, is_last });
    }

    /// The parts of an object that another OSD lacks have been read.
    pub fn sync_ready(&mut self, token: Token, result: Result<Vec<Transaction>, String>, view: &impl ObjectView) {
        if self.learner_copy_read(token, &result, view) {
            return;
        }
        let job = self.sync_jobs.iter_mut().find(|(_, job)| job.reading == Some(token));
        let Some((&to, job)) = job else { return };
        job.reading = None;
        match result {
            Ok(transactions) => {
                let object = job.objects.pop_front().map(|(object, _)| object);
                job.ready = transactions.into();
                if object == Some(meta_object()) {
                    keep_fences(job.ready.make_contiguous());
                }
                self.send_next_of_sync(to);
            }
            Err(cause) => {
                job.has_failed = true;
                self.warn(format!("cannot bring {to} level yet: {cause}"));
            }
        }
    }

    /// Tries again what could not be read.
    pub(crate) fn retry_failed_syncs(&mut self) {
        let failed: Vec<OsdId> =
            self.sync_jobs.iter().filter(|(_, job)| job.has_failed).map(|(to, _)| *to).collect();
        for to in failed {
            if let Some(job) = self.sync_jobs.get_mut(&to) {
                job.has_failed = false;
            }
            self.send_next_of_sync(to);
        }
    }

    /// A new epoch begins; what was sent under older ones is no longer heeded.
    pub(crate) fn stop_older_syncs(&mut self, epoch: Epoch) {
        self.sync_jobs.retain(|_, job| job.epoch >= epoch);
    }
}

/// Takes as many entries as fit into one message, at least one if there is any.
pub(crate) fn entries_for_one_message(log: &mut VecDeque<LogEntry>) -> Vec<LogEntry> {
    let (mut taken, mut bytes) = (Vec::new(), 0);
    while bytes < ENTRY_BYTES_PER_MESSAGE
        && let Some(entry) = log.pop_front()
    {
        bytes += entry.encoded_bytes_bound();
        taken.push(entry);
    }
    taken
}

/// Of the group's own object only the fences are the group's; the rest is the OSD's own.
pub(crate) fn keep_fences(transactions: &mut [Transaction]) {
    let is_fence = |mutation: &Mutation| match mutation {
        Mutation::OmapSet { key, .. } | Mutation::OmapRemove { key } => key.starts_with(FENCE_KEY_PREFIX),
        _ => false,
    };
    for transaction in transactions {
        transaction.mutations.retain(is_fence);
    }
}

fn touched_objects(log: &VecDeque<LogEntry>) -> VecDeque<(ObjectName, Touched)> {
    let mut objects: BTreeMap<ObjectName, Touched> = BTreeMap::new();
    for entry in log {
        objects.entry(entry.object.clone()).or_default().merge(&entry.touched);
    }
    objects.into_iter().collect()
}
