//! Bringing a member level: the parts of objects that it lacks, one message at a time, then the
//! log entries that it lacks. If the log does not reach back far enough, every object is sent
//! whole: so a member whose device was replaced is filled again.

use std::collections::{BTreeMap, VecDeque};

use atoll_base::operation::FENCE_KEY_PREFIX;
use atoll_base::{Epoch, LogEntry, Mutation, ObjectName, OsdId, Touched, Transaction, Version};
use atoll_wire::Message;
use bytes::Bytes;

use crate::actions::{Action, ObjectView, Token};
use crate::group::{Pg, meta_object};

/// Bytes of log entries per message. One entry more may begin below this, and the largest entry
/// still leaves the message within the control segment's limit.
const ENTRY_BYTES_PER_MESSAGE: usize = 256 << 10;

pub(crate) struct SyncJob {
    epoch: Epoch,
    objects: VecDeque<(ObjectName, Touched)>,
    log: VecDeque<LogEntry>,
    /// The list of all objects that is under way; until it comes, `objects` is not known.
    listing: Option<Token>,
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
        let reaches_back = log.front().is_some_and(|entry| entry.version.sequence == after.sequence + 1);
        let objects = if reaches_back { touched_objects(&log) } else { VecDeque::new() };
        let ready = VecDeque::new();
        let mut job = SyncJob { epoch, objects, log, listing: None, ready, reading: None, has_failed: false };
        if !reaches_back {
            let text = format!("pg {}: sending all objects to {to}, whose history ends at {after}", self.id);
            self.actions.push_back(Action::Warn { text });
            let token = self.token();
            job.listing = Some(token);
            self.actions.push_back(Action::ListObjects { token });
        }
        self.sync_jobs.insert(to, job);
        self.send_next_of_sync(to);
    }

    /// All objects of the group but its own one have been listed.
    pub fn objects_listed(&mut self, token: Token, objects: Vec<ObjectName>) {
        let job = self.sync_jobs.iter_mut().find(|(_, job)| job.listing == Some(token));
        // Without a job: it was stopped or replaced meanwhile.
        let Some((&to, job)) = job else { return };
        // It does not matter at which moment since it was asked for the list was made: the group
        // is peering, so no writes flow, and the list cannot miss objects.
        let whole = Touched { whole: true, ..Touched::default() };
        let objects = objects.into_iter().chain([meta_object()]);
        job.objects = objects.map(|object| (object, whole.clone())).collect();
        job.listing = None;
        self.send_next_of_sync(to);
    }

    /// The member has the last message; sends the next. True when there is none.
    pub(crate) fn continue_sync(&mut self, to: OsdId) -> bool {
        let Some(job) = self.sync_jobs.get(&to) else { return false };
        let waits = job.listing.is_some() || job.reading.is_some();
        if !waits && job.objects.is_empty() && job.ready.is_empty() && job.log.is_empty() {
            self.sync_jobs.remove(&to);
            return true;
        }
        self.send_next_of_sync(to);
        false
    }

    fn send_next_of_sync(&mut self, to: OsdId) {
        let token = self.token();
        let Some(job) = self.sync_jobs.get_mut(&to) else { return };
        if job.listing.is_some() {
            // The log must not overtake the objects: whoever has it counts as level.
            return;
        }
        let epoch = job.epoch;
        if let Some(transaction) = job.ready.pop_front() {
            return self.send(to, Message::PeerSync { epoch, transaction, is_last: false });
        }
        if let Some((object, touched)) = job.objects.front().cloned() {
            job.reading = Some(token);
            return self.actions.push_back(Action::ReadForSync { token, object, touched });
        }
        let (mut log, mut log_bytes) = (Vec::new(), 0);
        while log_bytes < ENTRY_BYTES_PER_MESSAGE
            && let Some(entry) = job.log.pop_front()
        {
            log_bytes += entry.encoded_bytes_bound();
            log.push(entry);
        }
        let is_last = job.log.is_empty();
        let transaction = Transaction {
            pg: self.id,
            object: meta_object(),
            mutations: Vec::new(),
            payload: Bytes::new(),
            payload_sealed: false,
            log,
        };
        self.send(to, Message::PeerSync { epoch, transaction, is_last });
    }

    /// The parts of an object that a member lacks have been read.
    pub fn sync_ready(&mut self, token: Token, result: Result<Vec<Transaction>, String>) {
        let job = self.sync_jobs.iter_mut().find(|(_, job)| job.reading == Some(token));
        let Some((&to, job)) = job else { return };
        job.reading = None;
        match result {
            Ok(transactions) => {
                let object = job.objects.pop_front().map(|(object, _)| object);
                job.ready = transactions.into();
                if object == Some(meta_object()) {
                    // Fences are the group's; the promise is the member's own.
                    for transaction in &mut job.ready {
                        transaction.mutations.retain(is_fence);
                    }
                }
                self.send_next_of_sync(to);
            }
            Err(cause) => {
                job.has_failed = true;
                let text = format!("pg {}: cannot bring {to} level yet: {cause}", self.id);
                self.actions.push_back(Action::Warn { text });
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

fn is_fence(mutation: &Mutation) -> bool {
    matches!(mutation, Mutation::OmapSet { key, .. } if key.starts_with(FENCE_KEY_PREFIX))
}

fn touched_objects(log: &VecDeque<LogEntry>) -> VecDeque<(ObjectName, Touched)> {
    let mut objects: BTreeMap<ObjectName, Touched> = BTreeMap::new();
    for entry in log {
        objects.entry(entry.object.clone()).or_default().merge(&entry.touched);
    }
    objects.into_iter().collect()
}
