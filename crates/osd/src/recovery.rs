//! Recovery yields to clients: while they are at work, what is read to fill other OSDs keeps to a
//! rate; otherwise it goes as fast as it can. What members wait for while a group peers is never
//! held back, because clients wait for it too.

use std::collections::VecDeque;

use atoll_base::{ObjectName, PgId, Touched};
use atoll_pg::Token;

/// Clients are at work until so long after their last request.
const CLIENTS_REST_MS: u64 = 250;
/// Objects that are read at once for recovery.
const READS_MAX: usize = 16;

/// An object that is to be read for another OSD.
pub(crate) struct RecoveryRead {
    pub pg: PgId,
    pub token: Token,
    pub object: ObjectName,
    pub touched: Touched,
}

/// Decides when recovery may read.
pub(crate) struct RecoveryScheduler {
    bytes_per_second: u64,
    waiting: VecDeque<RecoveryRead>,
    reading: usize,
    /// Bytes read beyond what the rate allowed so far.
    debt_bytes: u64,
    paid_at_ms: u64,
    client_at_ms: Option<u64>,
}

impl RecoveryScheduler {
    pub fn new(bytes_per_second: u64) -> Self {
        RecoveryScheduler {
            bytes_per_second,
            waiting: VecDeque::new(),
            reading: 0,
            debt_bytes: 0,
            paid_at_ms: 0,
            client_at_ms: None,
        }
    }

    pub fn client_request(&mut self, now_ms: u64) {
        self.client_at_ms = Some(now_ms);
    }

    pub fn add(&mut self, read: RecoveryRead) {
        self.waiting.push_back(read);
    }

    /// The next object to read now, if any.
    pub fn next(&mut self, now_ms: u64) -> Option<RecoveryRead> {
        let paid_bytes = (now_ms - self.paid_at_ms) * self.bytes_per_second / 1_000;
        if paid_bytes > 0 {
            self.debt_bytes = self.debt_bytes.saturating_sub(paid_bytes);
            self.paid_at_ms = now_ms;
        }
        let clients_work = self.client_at_ms.is_some_and(|at_ms| now_ms < at_ms + CLIENTS_REST_MS);
        // One object at a time tells soon enough what it costs.
        let must_wait = clients_work && (self.debt_bytes > 0 || self.reading > 0);
        if must_wait || self.reading >= READS_MAX {
            return None;
        }
        let read = self.waiting.pop_front()?;
        self.reading += 1;
        Some(read)
    }

    /// An object has been read.
    pub fn done(&mut self, bytes: u64) {
        self.reading = self.reading.checked_sub(1).expect("what ends has begun");
        self.debt_bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_base::PoolId;

    fn read(number: u64) -> RecoveryRead {
        let pg = PgId { pool: PoolId(1), index: 0 };
        let object = ObjectName::new(&format!("object{number}")).unwrap();
        RecoveryRead { pg, token: Token(number), object, touched: Touched::default() }
    }

    /// Bytes read in ten seconds if every object has 4 MiB and takes no time.
    fn bytes_read(has_clients: bool) -> u64 {
        let mut scheduler = RecoveryScheduler::new(64 << 20);
        (0..100_000).for_each(|number| scheduler.add(read(number)));
        let mut bytes = 0;
        for now_ms in 0..10_000 {
            if has_clients {
                scheduler.client_request(now_ms);
            }
            while bytes < 8 << 30 && scheduler.next(now_ms).is_some() {
                bytes += 4 << 20;
                scheduler.done(4 << 20);
            }
        }
        bytes
    }

    #[test]
    fn recovery_keeps_to_its_rate_while_clients_are_at_work() {
        let allowed = 640 << 20;
        let bytes = bytes_read(true);
        assert!((allowed - (8 << 20)..=allowed + (8 << 20)).contains(&bytes), "{} MiB", bytes >> 20);
        assert_eq!(bytes_read(false), 8 << 30);
    }

    #[test]
    fn few_objects_are_read_at_once() {
        let mut scheduler = RecoveryScheduler::new(1);
        (0..100).for_each(|number| scheduler.add(read(number)));
        let started = std::iter::from_fn(|| scheduler.next(0)).count();
        assert_eq!(started, READS_MAX);
        scheduler.client_request(0);
        scheduler.done(4096);
        assert!(scheduler.next(1).is_none(), "clients go first");
        (1..READS_MAX).for_each(|_| scheduler.done(0));
        assert!(scheduler.next(100).is_none(), "4096 bytes are a lot for this rate");
        assert!(scheduler.next(1_000).is_some(), "clients are gone");
    }
}
