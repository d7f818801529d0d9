//! Memory for data on its way: all requests of a gateway together stay within a budget, and wait
//! when it is used up.
//!
//! It is handed out in steps, from a pool for each step: a request takes more only as its bytes come, and small
//! requests never wait for large ones. A holder of memory of one step may wait for that of a later one, never of
//! an earlier one or the same, so no holders wait in a circle. Of each pool one account, and one address, have
//! half at most.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use atoll_objects::ClientError;
use atoll_seal::SEGMENT_BYTES;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::CHUNK_BYTES;
use crate::error::GatewayError;

const UNIT_BYTES: u64 = 1 << 10;
const SEGMENT: u64 = SEGMENT_BYTES as u64;
/// Smallest half: less would not suffice for a single request.
const HALF_BYTES_MIN: u64 = 16 << 20;

/// Memory of a write by the number of bytes that have come.
const WRITE_STEPS: [u64; 4] = [4 << 10, SEGMENT, 512 << 10, CHUNK_BYTES];
/// Parts of the half for writing, in 32nds.
const WRITE_PARTS: [u64; 4] = [1, 4, 8, 19];
/// Bytes that are read at once: of small answers; of large ones while there is little memory; and while there is
/// more.
const READ_STEPS: [u64; 4] = [SEGMENT, SEGMENT, 512 << 10, CHUNK_BYTES];
/// Parts of the half for reading, in 32nds. Copies have the rest.
const READ_PARTS: [u64; 4] = [2, 4, 6, 12];
const COPY_PARTS: u64 = 8;
/// The steps of large answers.
const TRICKLE: usize = 1;

/// Most that a copy has read and not yet written: the reads that run ahead, and the one in hand.
const COPY_BYTES_MAX: u64 = 3 * CHUNK_BYTES;

/// Callers whose shares are remembered while they have nothing under way.
const IDLE_CALLERS_MAX: usize = 1_024;

/// A holder of a share of the budget.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Caller {
    /// By its canonical id.
    Account(String),
    Address(IpAddr),
}

impl Caller {
    /// The holder of one IPv6 address has all of its network.
    pub(crate) fn of_address(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => Caller::Address(Ipv6Addr::from_bits(address.to_bits() & !NETWORK_BITS).into()),
            address => Caller::Address(address),
        }
    }
}

/// Bits of an IPv6 address that a client chooses.
const NETWORK_BITS: u128 = (1 << 64) - 1;

/// The pools of the whole gateway, or of one caller.
struct Pools {
    writes: [Arc<Semaphore>; 4],
    reads: [Arc<Semaphore>; 4],
    copies: Arc<Semaphore>,
}

impl Pools {
    /// Returns one part of `part` of these halves.
    fn new(half_bytes: u64, part: u64) -> Self {
        let pool = |thirty_seconds: u64, step: u64| {
            let bytes = (half_bytes / 32 * thirty_seconds / part).max(step);
            let units = usize::try_from(bytes / UNIT_BYTES).unwrap_or(Semaphore::MAX_PERMITS);
            Arc::new(Semaphore::new(units.min(Semaphore::MAX_PERMITS)))
        };
        Pools {
            writes: std::array::from_fn(|step| pool(WRITE_PARTS[step], WRITE_STEPS[step])),
            reads: std::array::from_fn(|step| pool(READ_PARTS[step], READ_STEPS[step])),
            copies: pool(COPY_PARTS, COPY_BYTES_MAX),
        }
    }
}

struct Shared {
    half_bytes: u64,
    all: Arc<Pools>,
    callers: Mutex<HashMap<Caller, Arc<Pools>>>,
}

impl Shared {
    fn callers(&self) -> MutexGuard<'_, HashMap<Caller, Arc<Pools>>> {
        // Nothing panics while the lock is held, and a map is whole after every call.
        self.callers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pools_of(&self, caller: Caller) -> Arc<Pools> {
        let mut callers = self.callers();
        if callers.len() >= IDLE_CALLERS_MAX && !callers.contains_key(&caller) {
            callers.retain(|_, pools| !is_idle(pools));
        }
        callers.entry(caller).or_insert_with(|| Arc::new(Pools::new(self.half_bytes, 2))).clone()
    }
}

/// Returns true if these pools, and memory of them, are unused.
fn is_idle(pools: &Arc<Pools>) -> bool {
    let all = pools.writes.iter().chain(&pools.reads).chain([&pools.copies]);
    Arc::strong_count(pools) == 1 && all.clone().all(|pool| Arc::strong_count(pool) == 1)
}

/// The budget, as one request has it.
#[derive(Clone)]
pub(crate) struct Budget {
    shared: Arc<Shared>,
    /// Pools of the callers, and then of all.
    pools: Vec<Arc<Pools>>,
}

/// A part of the budget; comes back when dropped.
pub(crate) struct Share {
    _permits: Vec<OwnedSemaphorePermit>,
}

impl Budget {
    /// Returns a budget of about `bytes` bytes.
    pub(crate) fn new(bytes: u64) -> Self {
        let half_bytes = (bytes / 2).max(HALF_BYTES_MIN);
        let all = Arc::new(Pools::new(half_bytes, 1));
        let shared = Arc::new(Shared { half_bytes, all: all.clone(), callers: Mutex::default() });
        Budget { shared, pools: vec![all] }
    }

    /// The same budget, within the shares of these callers.
    pub(crate) fn of(&self, callers: impl IntoIterator<Item = Caller>) -> Self {
        let of_callers = callers.into_iter().map(|caller| self.shared.pools_of(caller));
        Budget { shared: self.shared.clone(), pools: of_callers.chain([self.shared.all.clone()]).collect() }
    }

    /// Returns the smallest memory for a write of `bytes` bytes, of at most `bytes_max`.
    pub(crate) fn write_step(bytes: u64, bytes_max: u64) -> u64 {
        let step = WRITE_STEPS.into_iter().find(|step| bytes <= *step);
        step.unwrap_or(CHUNK_BYTES).min(bytes_max)
    }

    /// Waits for memory to collect `bytes` in, at most a chunk.
    pub(crate) async fn for_write(&self, bytes: u64) -> Result<Share, GatewayError> {
        let step = WRITE_STEPS.iter().position(|step| bytes <= *step).unwrap_or(WRITE_STEPS.len() - 1);
        self.wait(|pools| &pools.writes[step], bytes.min(CHUNK_BYTES)).await
    }

    /// Waits for memory for all the reading that a copy of `bytes` does.
    pub(crate) async fn for_copy(&self, bytes: u64) -> Result<Share, GatewayError> {
        self.wait(|pools| &pools.copies, bytes.min(COPY_BYTES_MAX)).await
    }

    /// Waits for memory to read `bytes` into that are next of an answer of `whole` bytes; perhaps for fewer, whole
    /// segments.
    pub(super) async fn for_read(&self, bytes: u64, whole: u64) -> Result<(Share, u64), GatewayError> {
        if whole <= SEGMENT {
            return Ok((self.wait(|pools| &pools.reads[0], bytes).await?, bytes));
        }
        for step in (TRICKLE + 1..READ_STEPS.len()).rev() {
            // For fewer bytes than the step before has there is no need of it.
            let now = bytes.min(READ_STEPS[step]);
            if bytes > READ_STEPS[step - 1]
                && let Some(share) = self.attempt(|pools| &pools.reads[step], now)
            {
                return Ok((share, now));
            }
        }
        let now = bytes.min(READ_STEPS[TRICKLE]);
        Ok((self.wait(|pools| &pools.reads[TRICKLE], now).await?, now))
    }

    async fn wait(&self, pool: impl Fn(&Pools) -> &Arc<Semaphore>, bytes: u64) -> Result<Share, GatewayError> {
        let mut permits = Vec::with_capacity(self.pools.len());
        for pools in &self.pools {
            let permit = pool(pools).clone().acquire_many_owned(units(bytes)).await;
            // The semaphore is never closed.
            permits.push(permit.map_err(|_| ClientError::ShutDown)?);
        }
        Ok(Share { _permits: permits })
    }

    /// The same without waiting.
    fn attempt(&self, pool: impl Fn(&Pools) -> &Arc<Semaphore>, bytes: u64) -> Option<Share> {
        let permits = self.pools.iter().map(|pools| pool(pools).clone().try_acquire_many_owned(units(bytes)).ok());
        Some(Share { _permits: permits.collect::<Option<_>>()? })
    }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const GIB: u64 = 1 << 30;

    fn account(name: &str) -> [Caller; 1] {
        [Caller::Account(name.into())]
    }

    /// As many shares as there are without waiting.
    async fn all<T>(mut take: impl AsyncFnMut() -> Result<T, GatewayError>) -> Vec<T> {
        let mut taken = Vec::new();
        while let Ok(share) = tokio::time::timeout(Duration::from_millis(1), take()).await {
            taken.push(share.unwrap());
        }
        taken
    }

    #[tokio::test(start_paused = true)]
    async fn all_of_it_is_not_more_than_was_said() {
        let budget = Budget::new(GIB);
        let (mut bytes, mut shares) = (0, Vec::new());
        for step in WRITE_STEPS {
            let taken = all(async || budget.for_write(step).await).await;
            bytes += taken.len() as u64 * step;
            shares.extend(taken);
        }
        assert!((GIB / 2 - 8 * CHUNK_BYTES..=GIB / 2).contains(&bytes), "{bytes}");
        let mut bytes = 0;
        for whole in [SEGMENT, GIB] {
            let taken = all(async || budget.for_read(whole.min(CHUNK_BYTES), whole).await).await;
            bytes += taken.iter().map(|(_, bytes)| bytes).sum::<u64>();
            shares.extend(taken.into_iter().map(|(share, _)| share));
        }
        let taken = all(async || budget.for_copy(GIB).await).await;
        bytes += taken.len() as u64 * COPY_BYTES_MAX;
        assert!((GIB / 2 - 8 * CHUNK_BYTES..=GIB / 2).contains(&bytes), "{bytes}");
    }

    #[tokio::test(start_paused = true)]
    async fn small_ones_do_not_wait_for_large_ones() {
        let budget = Budget::new(GIB);
        let _large = all(async || budget.for_write(CHUNK_BYTES).await).await;
        let _large = all(async || budget.for_read(CHUNK_BYTES, GIB).await).await;
        assert!(tokio::time::timeout(Duration::from_secs(1), budget.for_write(1 << 10)).await.is_ok());
        assert!(tokio::time::timeout(Duration::from_secs(1), budget.for_read(SEGMENT, SEGMENT)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn one_caller_has_half() {
        for caller in [Caller::Account("a".into()), Caller::Address(IpAddr::from([192, 0, 2, 1]))] {
            let budget = Budget::new(GIB);
            let greedy = budget.of([caller]);
            let others = budget.of(account("b"));
            let mut held = Vec::new();
            for step in WRITE_STEPS {
                held.extend(all(async || greedy.for_write(step).await).await);
                assert!(tokio::time::timeout(Duration::from_secs(1), others.for_write(step)).await.is_ok());
            }
            held.extend(all(async || Ok(greedy.for_read(CHUNK_BYTES, GIB).await?.0)).await);
            let (_, bytes) = others.for_read(CHUNK_BYTES, GIB).await.unwrap();
            assert_eq!(bytes, CHUNK_BYTES);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn large_answers_go_on_in_small_reads() {
        let budget = Budget::new(GIB);
        let mut sizes = Vec::new();
        let held = all(async || budget.for_read(CHUNK_BYTES, GIB).await).await;
        sizes.extend(held.iter().map(|(_, bytes)| *bytes));
        assert!(sizes.is_sorted_by(|a, b| a >= b), "the more is held, the less is read at once");
        assert_eq!((sizes[0], sizes[sizes.len() - 1]), (CHUNK_BYTES, SEGMENT));
        assert!(sizes.len() > 1_000, "{}", sizes.len());
    }

    /// One request gets its largest need of the smallest budget.
    #[tokio::test(start_paused = true)]
    async fn the_least_is_enough_for_one() {
        let budget = Budget::new(1).of(account("a"));
        for step in WRITE_STEPS {
            budget.for_write(step).await.unwrap();
        }
        budget.for_copy(GIB).await.unwrap();
        assert_eq!(budget.for_read(CHUNK_BYTES, GIB).await.unwrap().1, CHUNK_BYTES);
    }

    #[tokio::test(start_paused = true)]
    async fn callers_that_are_gone_are_forgotten() {
        let budget = Budget::new(GIB);
        let kept = budget.of(account("kept")).for_write(1).await.unwrap();
        for number in 0..10 * IDLE_CALLERS_MAX {
            budget.of(account(&number.to_string())).for_write(1).await.unwrap();
        }
        let callers = budget.shared.callers();
        assert!(callers.len() <= IDLE_CALLERS_MAX && callers.contains_key(&account("kept")[0]));
        drop(kept);
    }
}
