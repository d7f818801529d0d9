//! Devices that lose durable data: the newest records of the log, which look like its torn end, or all since an
//! older copy was made, which is put back. At most as many devices of a run do so as the redundancy covers.

use std::collections::VecDeque;

use atoll_store::simulated_disk::SimulatedDisk;
use atoll_types::pg_copies::Incompleteness;
use atoll_types::records::PgRecord;
use atoll_types::{Epoch, PgId, Transaction};

use crate::device::{RECORDS_FORGOTTEN_MAX, difference};
use crate::options::Fault;
use crate::random::Random;
use crate::state::Pgs;
use crate::store::Store;
use crate::world::{Event, World};

/// Submissions that may be taken back.
const SUBMISSIONS_MAX: usize = 64;
/// Simulated time within which OSDs start again that stopped together.
pub const TOGETHER: u64 = 1_500_000;

/// Earlier states of a store.
#[derive(Default)]
pub struct Past {
    /// Durable state before the newest submissions.
    base: Pgs,
    /// Those, which are durable, too.
    newest: VecDeque<Transaction>,
    copy: Option<Copy>,
}

/// A copy of a device.
struct Copy {
    contents: Pgs,
    disk: Option<SimulatedDisk>,
}

impl Past {
    /// A submission is durable.
    pub fn add(&mut self, transaction: &Transaction, ring_entries: usize) {
        self.newest.push_back(transaction.clone());
        if self.newest.len() > SUBMISSIONS_MAX {
            let oldest = self.newest.pop_front().expect("there are many");
            self.base.apply(&oldest, ring_entries);
        }
    }
}

impl Store {
    /// From now on the store may lose durable data.
    pub fn keep_past(&mut self, keeps_past: bool) {
        let base = Pgs::new(self.durable.first());
        self.past = keeps_past.then(|| Past { base, ..Past::default() });
        if let Some(device) = &mut self.device {
            device.keeps_past = keeps_past;
        }
    }

    /// Copies the device, if all that was submitted is durable.
    fn copy_device(&mut self) {
        let Some(past) = self.past.as_mut().filter(|_| self.pending.is_empty()) else { return };
        let disk = self.device.as_ref().map(|device| device.copy());
        past.copy = Some(Copy { contents: self.durable.clone(), disk });
    }

    /// Puts the copy back in the place of the device, whose process is gone. False if there is none.
    fn put_back(&mut self, random: &mut Random) -> bool {
        let Some(copy) = self.past.as_ref().and_then(|past| past.copy.as_ref()) else { return false };
        let mut contents = copy.contents.clone();
        if let (Some(device), Some(disk)) = (&mut self.device, &copy.disk) {
            let found = device.put_back(disk, random);
            let differs = difference(&contents, &found);
            assert_eq!(differs, None, "the store on a copy of its disk");
            contents.take_logs(&found);
        }
        self.durable = contents;
        // Cluster state knows that the device was further: before it serves, its copies are no longer complete.
        for pg in self.durable.ids() {
            if !self.durable.of(pg).objects.is_empty() {
                let mark = atoll_pg::mark_incomplete(pg, Incompleteness::OldDevice);
                if let Some(device) = &mut self.device {
                    device.apply_blocking(&mark);
                }
                self.durable.apply(&mark, self.ring_entries);
            }
        }
        self.visible = self.durable.clone();
        let past = self.past.as_mut().expect("it has a copy");
        (past.base, past.newest) = (self.durable.clone(), VecDeque::new());
        true
    }

    /// Forgets some of the latest durable data; the process is gone. False if nothing is forgotten.
    fn forget(&mut self, random: &mut Random) -> bool {
        let Some(past) = &mut self.past else { return false };
        let records = 1 + random.below(RECORDS_FORGOTTEN_MAX as u64) as usize;
        let found = match &mut self.device {
            Some(device) => {
                let Some(found) = device.forget(records, random) else { return false };
                Some(found)
            }
            None => None,
        };
        let mut kept = past.newest.len().saturating_sub(records);
        let mut state = past.base.clone();
        if let Some(found) = &found {
            // The longest history that is what the store has.
            let mut at = state.clone();
            let mut fits = difference(&at, found).is_none().then_some(0);
            for (index, transaction) in past.newest.iter().enumerate() {
                at.apply(transaction, self.ring_entries);
                if difference(&at, found).is_none() {
                    fits = Some(index + 1);
                }
            }
            let difference = || difference(&at, found).unwrap_or_default();
            kept =
                fits.unwrap_or_else(|| panic!("a store that forgot has no state that it had: {}", difference()));
        }
        let has_forgotten = kept < past.newest.len();
        past.newest.truncate(kept);
        past.newest.iter().for_each(|transaction| _ = state.apply(transaction, self.ring_entries));
        if let Some(found) = &found {
            state.take_logs(found);
        }
        self.durable = state;
        self.visible = self.durable.clone();
        has_forgotten
    }
}

impl World {
    /// A device has lost durable data.
    pub fn note_loss(&mut self, at: usize) {
        let epoch = |pg: PgId| (pg, self.cluster.of(pg).expect("it is listed").record.epoch);
        let epochs = self.cluster.pgs().into_iter().map(epoch).collect();
        self.losses.insert(at, epochs);
    }

    /// Returns true if an OSD has lost something that is not everywhere again.
    pub fn has_open_loss(&self, at: usize) -> bool {
        let is_open = |(pg, epoch): &(PgId, Epoch)| {
            // A cluster state that was put back may lack it for a while.
            let is_over = |record: &PgRecord| record.epoch > *epoch && record.activated_epoch >= record.epoch;
            !self.cluster.of(*pg).is_some_and(|state| is_over(&state.record))
        };
        self.losses.get(&at).is_some_and(|epochs| epochs.iter().any(is_open))
    }

    /// OSDs that have lost something, have a damaged block, or do not run.
    fn away_or_lost(&self) -> usize {
        let is_whole = |at: &usize| {
            let member = &self.members[*at];
            let is_damaged = self.cluster.pgs().iter().any(|pg| !member.store.damaged_objects(*pg).is_empty());
            member.is_up && member.paused_until <= self.now && !is_damaged && !self.has_open_loss(*at)
        };
        self.members.len() - (0..self.members.len()).filter(is_whole).count()
    }

    /// Returns true if all OSDs that run reach each other.
    pub fn all_reach_each_other(&self) -> bool {
        let up = || (0..self.members.len()).filter(|at| self.members[*at].is_up);
        let mut pairs = up().flat_map(|a| up().filter(move |b| a < *b).map(move |b| (a, b)));
        pairs.all(|(a, b)| self.network.is_open(a, b, self.now))
    }

    /// Copies or shards that a PG can do without.
    fn redundancy(&self) -> usize {
        self.options.size() - self.options.shape.map_or(1, |shape| usize::from(shape.data))
    }

    /// Returns true if a fault, together with the devices that have lost something, might isolate some members,
    /// too few of them with the acknowledged writes: they cannot know of it.
    pub fn is_beyond_redundancy(&self, fault: Fault) -> bool {
        use Fault::{BreakLink, Crash, DamageBlock, Partition, Pause, ReplaceDevice, StopClock};
        if !(0..self.members.len()).any(|at| self.has_open_loss(at)) {
            return false;
        }
        let takes_one = matches!(fault, Crash | DamageBlock | Pause | ReplaceDevice | StopClock);
        matches!(fault, BreakLink | Partition) || takes_one && self.away_or_lost() >= self.redundancy()
    }

    /// An OSD whose device may lose something now: the PGs have all copies or shards.
    fn forgetful_osd(&mut self) -> Option<usize> {
        let is_whole = |pg: &PgId| {
            let state = self.cluster.of(*pg).expect("it is listed");
            let record = &state.record;
            let count = if self.options.shape.is_some() { state.shards() } else { record.members.len() };
            let is_complete = |at: usize| !self.members[at].store.is_incomplete(*pg);
            record.activated_epoch == record.epoch
                && count >= self.options.size()
                && record.members.iter().all(|member| is_complete(member.0 as usize - 1))
        };
        let is_splitting = self.cluster.pgs().len() < self.policy.pg_num as usize;
        if is_splitting || !self.cluster.pgs().iter().all(is_whole) {
            return None;
        }
        let at = self.interesting_osd();
        let others_lost = self.away_or_lost() - usize::from(self.has_open_loss(at));
        let may_lose = self.members[at].is_up && others_lost < self.redundancy() && self.all_reach_each_other();
        may_lose.then_some(at)
    }

    /// The power goes, at one OSD or at all, and one device lacks durable data afterwards.
    fn lose(&mut self, lose: impl FnOnce(&mut Store, &mut Random) -> bool) {
        let Some(at) = self.forgetful_osd() else { return };
        if self.random.chance(40) {
            self.crash_together();
        } else {
            self.crash(at);
        }
        let has_forgotten = lose(&mut self.members[at].store, &mut self.random);
        self.note("forget", &[at as u64, has_forgotten.into()]);
        if has_forgotten {
            self.note_loss(at);
            self.statistics.forgotten += 1;
        }
    }

    /// All OSDs stop, and start again soon: none continues without one that is a little late.
    fn crash_together(&mut self) {
        for at in (0..self.members.len()).filter(|at| self.members[*at].is_up).collect::<Vec<_>>() {
            self.kill(at);
            let delay = self.random.below(TOGETHER);
            self.at(self.now + delay, Event::Restart { at });
        }
    }

    pub fn forget(&mut self) {
        self.lose(Store::forget);
    }

    pub fn put_back(&mut self) {
        self.lose(Store::put_back);
    }

    pub fn copy_device(&mut self) {
        let at = self.interesting_osd();
        self.members[at].store.copy_device();
    }
}
