//! Recovery yields to clients: while they are at work, reads for other OSDs keep to a rate; otherwise recovery has
//! no limit. Objects that members wait for while a PG peers are never held back for clients, because they wait for
//! them, too. In any case only a limited number of objects are on their way at once, which bounds memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

use atoll_storage::RecoveryRead;
use atoll_types::PgId;

use crate::invariants;

/// Clients count as at work for this long after their last request.
const CLIENTS_IDLE_AFTER_MS: u64 = 250;
/// Objects that are read or on their way at once.
const OBJECTS_MAX: usize = 16;
/// The same while clients are at work: small objects wait for round trips, large ones for the rate.
const OBJECTS_BESIDE_CLIENTS_MAX: usize = 4;
/// Time whose rate may be saved up: reads begin at ticks of the loop.
const CREDIT_MS: u64 = 50;

/// Step that may begin now.
pub(crate) enum RecoveryStep {
    /// To read this, for which clients wait.
    Read(RecoveryRead),
    /// The PG may begin with its next object.
    Next(PgId),
}

/// Decides when recovery may read.
pub(crate) struct RecoveryScheduler {
    bytes_per_second: u64,
    urgent: VecDeque<RecoveryRead>,
    /// PGs that have an object to copy; they take turns.
    wanting: BTreeSet<PgId>,
    last: Option<PgId>,
    /// Objects without a sent part.
    reading: usize,
    /// Objects by PG with a sent part that has not all arrived.
    on_their_way: BTreeMap<PgId, usize>,
    on_their_way_in_all: usize,
    read_bytes: u64,
    /// Bytes that the rate allows now; below zero, those read beyond it.
    credit_bytes: i64,
    paid_at_ms: u64,
    client_at_ms: Option<u64>,
}

impl RecoveryScheduler {
    pub fn new(bytes_per_second: u64) -> Self {
        RecoveryScheduler {
            bytes_per_second,
            urgent: VecDeque::new(),
            wanting: BTreeSet::new(),
            last: None,
            reading: 0,
            on_their_way: BTreeMap::new(),
            on_their_way_in_all: 0,
            read_bytes: 0,
            credit_bytes: 0,
            paid_at_ms: 0,
            client_at_ms: None,
        }
    }

    /// Bytes read so far.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    pub fn client_request(&mut self, now_ms: u64) {
        self.client_at_ms = Some(now_ms);
    }

    pub fn add_urgent(&mut self, read: RecoveryRead) {
        self.urgent.push_back(read);
    }

    /// The state of a PG: objects that are on their way, and whether it has more to copy.
    pub fn note_pg(&mut self, pg: PgId, on_their_way: usize, wants_to_backfill: bool) {
        let before = match on_their_way {
            0 => self.on_their_way.remove(&pg).unwrap_or(0),
            _ => self.on_their_way.insert(pg, on_their_way).unwrap_or(0),
        };
        self.on_their_way_in_all = self.on_their_way_in_all - before + on_their_way;
        if cfg!(debug_assertions) {
            let sum = self.on_their_way.values().sum();
            invariants::objects_on_their_way_add_up(self.on_their_way_in_all, sum);
        }
        if wants_to_backfill {
            self.wanting.insert(pg);
        } else {
            self.wanting.remove(&pg);
        }
    }

    /// A PG is gone, with objects that it has begun to read from members.
    pub fn forget_pg(&mut self, pg: PgId, reading: usize) {
        self.note_pg(pg, 0, false);
        self.end(reading);
    }

    /// Returns the next step, if there is one. A PG that gets "next" and has nothing answers with
    /// [`RecoveryScheduler::declined`].
    pub fn next(&mut self, now_ms: u64) -> Option<RecoveryStep> {
        self.earn(now_ms);
        let objects = self.reading + self.on_their_way_in_all;
        if objects >= OBJECTS_MAX {
            return None;
        }
        if let Some(read) = self.urgent.pop_front() {
            self.reading += 1;
            return Some(RecoveryStep::Read(read));
        }
        let clients_work = self.client_at_ms.is_some_and(|at_ms| now_ms < at_ms + CLIENTS_IDLE_AFTER_MS);
        // One at a time, so that its cost is known before the next begins.
        let has_turn = self.credit_bytes >= 0 && self.reading == 0 && objects < OBJECTS_BESIDE_CLIENTS_MAX;
        if clients_work && !has_turn {
            return None;
        }
        let behind = self.last.and_then(|last| self.wanting.range((Excluded(last), Unbounded)).next());
        let pg = *behind.or_else(|| self.wanting.first())?;
        // It is added again when it still has something to copy.
        self.wanting.remove(&pg);
        self.last = Some(pg);
        self.reading += 1;
        Some(RecoveryStep::Next(pg))
    }

    fn earn(&mut self, now_ms: u64) {
        let earned_bytes = (now_ms - self.paid_at_ms) * self.bytes_per_second / 1_000;
        if earned_bytes > 0 {
            let most_bytes = self.bytes_per_second * CREDIT_MS / 1_000;
            self.credit_bytes = self.credit_bytes.saturating_add_unsigned(earned_bytes).min(most_bytes as i64);
            self.paid_at_ms = now_ms;
        }
    }

    /// The PG had nothing to begin with.
    pub fn declined(&mut self) {
        self.end(1);
    }

    fn end(&mut self, objects: usize) {
        invariants::recovery_ends_what_it_began(self.reading, objects);
        self.reading -= objects;
    }

    /// Something has been read.
    pub fn done(&mut self, read: &RecoveryRead, bytes: u64) {
        self.read(!read.goes_on(), bytes);
    }

    /// Something has been read, the first part of an object if it `begins`.
    pub fn read(&mut self, begins: bool, bytes: u64) {
        if begins {
            self.end(1);
        }
        self.credit_bytes = self.credit_bytes.saturating_sub_unsigned(bytes);
        self.read_bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_pg::Token;
    use atoll_types::PoolId;
    use atoll_types::{ObjectName, Touched};

    fn pg(index: u32) -> PgId {
        PgId { pool: PoolId(1), index }
    }

    fn read(pg: PgId) -> RecoveryRead {
        let object = ObjectName::new("object").unwrap();
        RecoveryRead { pg, token: Token(1), object, touched: Touched::default(), from: Some(0) }
    }

    /// The PG that may begin.
    fn begun(scheduler: &mut RecoveryScheduler, now_ms: u64) -> Option<PgId> {
        match scheduler.next(now_ms)? {
            RecoveryStep::Next(pg) => Some(pg),
            RecoveryStep::Read(read) => panic!("{} is urgent", read.object),
        }
    }

    /// Bytes read in ten seconds if every object has 4 MiB and takes no time.
    fn bytes_read(has_clients: bool) -> u64 {
        let mut scheduler = RecoveryScheduler::new(64 << 20);
        // The loop looks every 50 ms if nothing else happens.
        for now_ms in (0..10_000).step_by(50) {
            if has_clients {
                scheduler.client_request(now_ms);
            }
            scheduler.note_pg(pg(0), 0, true);
            while scheduler.read_bytes() < 8 << 30
                && let Some(pg) = begun(&mut scheduler, now_ms)
            {
                scheduler.done(&read(pg), 4 << 20);
                scheduler.note_pg(pg, 0, true);
            }
        }
        scheduler.read_bytes()
    }

    #[test]
    fn recovery_keeps_to_its_rate_while_clients_are_at_work() {
        let allowed = 640 << 20;
        let bytes = bytes_read(true);
        assert!((allowed - (8 << 20)..=allowed + (8 << 20)).contains(&bytes), "{} MiB", bytes >> 20);
        assert_eq!(bytes_read(false), 8 << 30);
    }

    #[test]
    fn few_objects_are_on_their_way_at_once_and_pgs_take_turns() {
        let mut scheduler = RecoveryScheduler::new(1);
        let mut turns = Vec::new();
        (0..3).for_each(|index| scheduler.note_pg(pg(index), 0, true));
        while let Some(pg) = begun(&mut scheduler, 0) {
            turns.push(pg.index);
            scheduler.note_pg(pg, 0, true);
        }
        assert_eq!(turns.len(), OBJECTS_MAX);
        assert_eq!(turns[..4], [0, 1, 2, 0]);
        (0..OBJECTS_MAX).for_each(|_| scheduler.done(&read(pg(0)), 4096));
        scheduler.note_pg(pg(0), OBJECTS_MAX, true);
        assert!(begun(&mut scheduler, 0).is_none(), "they are on their way still");
        scheduler.done(&RecoveryRead { from: Some(4096), ..read(pg(0)) }, 4096);
        scheduler.note_pg(pg(0), 0, true);
        scheduler.client_request(0);
        assert!(begun(&mut scheduler, 100).is_none(), "what was read is a lot for this rate");
        scheduler.add_urgent(read(pg(0)));
        assert!(matches!(scheduler.next(100), Some(RecoveryStep::Read(_))), "clients wait for it");
        assert!(begun(&mut scheduler, 1_000).is_some(), "clients are gone");
    }

    #[test]
    fn beside_clients_one_object_is_read_before_the_next() {
        let mut scheduler = RecoveryScheduler::new(1 << 30);
        for objects in 1..=OBJECTS_BESIDE_CLIENTS_MAX {
            scheduler.client_request(100);
            scheduler.note_pg(pg(0), objects - 1, true);
            assert!(begun(&mut scheduler, 100).is_some(), "the rate allows it");
            scheduler.note_pg(pg(0), objects - 1, true);
            assert!(begun(&mut scheduler, 100).is_none(), "one at a time");
            scheduler.done(&read(pg(0)), 4096);
        }
        scheduler.note_pg(pg(0), OBJECTS_BESIDE_CLIENTS_MAX, true);
        assert!(begun(&mut scheduler, 100).is_none(), "enough are on their way");
    }
}
