//! One client: its operations in flight, the interval that counts, and its counts.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use atoll_reactor::LocalRuntime;
use futures::channel::oneshot;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::Pace;
use crate::error::BenchError;
use crate::figures::{ClientMeasurement, KindCounts, LatencyHistogram, Second};

/// Errors that end a run: a lost target fails at once.
const ERRORS_MAX: u64 = 100;
const ERROR_PAUSE: Duration = Duration::from_millis(100);
/// Longest wait after the interval for operations that are still in flight.
const LAST_OPERATIONS_WAIT: Duration = Duration::from_secs(60);

/// How a client works.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Operations in flight at once; with a rate, at most.
    pub depth: u32,
    /// Operations begun per second; as many as the depth allows if there is no rate.
    pub rate_per_second: Option<f64>,
    /// How long to work before it counts.
    pub warm_up: Duration,
    /// How long to measure.
    pub duration: Duration,
    /// Bytes after whose transfer the measurement ends early.
    pub bytes_max: Option<u64>,
}

/// A completed operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Such as `read`.
    pub kind: &'static str,
    /// Bytes moved.
    pub bytes: u64,
    /// True if its data was compared with the written data.
    pub is_verified: bool,
}

/// The repeated work of a client.
pub trait Operations {
    /// Does the next one.
    fn perform(&self) -> impl Future<Output = Result<Done, BenchError>>;
}

/// Timer of a client.
#[derive(Clone)]
pub enum Timer {
    /// On a reactor's runtime.
    Local(LocalRuntime),
    /// On tokio.
    Tokio,
}

impl Timer {
    /// Waits for some time.
    pub async fn sleep(&self, delay: Duration) {
        match self {
            Timer::Local(runtime) => runtime.sleep(delay).await,
            Timer::Tokio => tokio::time::sleep(delay).await,
        }
    }
}

struct Client<'a, O> {
    operations: &'a O,
    plan: &'a Plan,
    timer: &'a Timer,
    pace: Option<Pace>,
    measure_from: Instant,
    until: Cell<Instant>,
    /// Dropped when the end comes early.
    goes_on: RefCell<Option<oneshot::Sender<()>>>,
    counts: RefCell<Counts>,
}

struct Counts {
    result: ClientMeasurement,
    by_kind: BTreeMap<&'static str, KindCounts>,
    /// Operations that ended in the current second.
    second: LatencyHistogram,
    second_bytes: u64,
    /// When the operation of each worker was due, while it is in flight.
    in_flight: Vec<Option<Instant>>,
}

/// Runs a client by its plan. `at_edge` is called when the measured interval begins and when it is over.
///
/// Rates count operations that ended in the interval. Latencies also count operations that were due in it and
/// ended later: the client waits up to a minute for them. An operation that did not end, or did not begin although
/// it was due, counts with the time that it had waited: a lower bound, in
/// [`ClientMeasurement::censored`]. So a stall at the end of a run is in its percentiles.
pub async fn run_client(
    operations: &impl Operations,
    plan: &Plan,
    timer: &Timer,
    at_edge: &dyn Fn(),
) -> Result<ClientMeasurement, BenchError> {
    let has_rate = plan.rate_per_second.is_none_or(|rate| rate.is_finite() && rate > 0.0);
    if plan.depth == 0 || plan.duration.is_zero() || !has_rate {
        return Err(BenchError::Invalid(format!(
            "depth {}, {:?} and {:?} operations a second make no run; all must be above 0",
            plan.depth, plan.duration, plan.rate_per_second
        )));
    }
    let begun = Instant::now();
    let (goes_on, ends_early) = oneshot::channel();
    let client = Client {
        operations,
        plan,
        timer,
        pace: plan.rate_per_second.map(Pace::new),
        measure_from: begun + plan.warm_up,
        until: Cell::new(begun + plan.warm_up + plan.duration),
        goes_on: RefCell::new(Some(goes_on)),
        counts: RefCell::new(Counts::new(plan.depth)),
    };
    let workers = futures::future::join_all((0..plan.depth as usize).map(|worker| client.worker(worker)));
    let (is_over, over) = oneshot::channel::<()>();
    // The edges are watched first, so that they are not late because workers are busy.
    let edges = async {
        client.watch_edges(ends_early, at_edge).await;
        drop(is_over);
    };
    let patience = async {
        // The sender is dropped, never used.
        let _ = over.await;
        timer.sleep(LAST_OPERATIONS_WAIT).await;
    };
    futures::future::join(edges, futures::future::select(workers, pin!(patience))).await;
    Ok(client.finish())
}

impl<O: Operations> Client<'_, O> {
    /// Calls `at_edge` at both ends of the measured interval. The end may come early.
    async fn watch_edges(&self, ends_early: oneshot::Receiver<()>, at_edge: &dyn Fn()) {
        self.timer.sleep(self.measure_from.saturating_duration_since(Instant::now())).await;
        at_edge();
        let cpu_before = crate::figures::own_cpu_us();
        let left = self.until.get().saturating_duration_since(Instant::now());
        futures::future::select(pin!(self.timer.sleep(left)), ends_early).await;
        at_edge();
        self.counts.borrow_mut().result.client_cpu_us = crate::figures::own_cpu_us() - cpu_before;
    }

    fn end_early(&self, now: Instant) {
        self.until.set(self.until.get().min(now));
        self.goes_on.borrow_mut().take();
    }

    async fn worker(&self, worker: usize) {
        while let Some(due) = self.next_due().await {
            self.counts.borrow_mut().in_flight[worker] = Some(due);
            let outcome = self.operations.perform().await;
            self.counts.borrow_mut().in_flight[worker] = None;
            match outcome {
                Ok(done) => self.done(done, due),
                // Running out before the measured interval is an error like others.
                Err(BenchError::NothingLeft(_)) if Instant::now() > self.measure_from => {
                    return self.end_early(Instant::now());
                }
                Err(error) => {
                    self.failed(&error);
                    self.timer.sleep(ERROR_PAUSE).await;
                }
            }
        }
    }

    /// Waits until the next operation is due. Returns when that was, or nothing when the interval is over.
    async fn next_due(&self) -> Option<Instant> {
        let Some(pace) = &self.pace else {
            return Some(Instant::now()).filter(|now| *now < self.until.get());
        };
        let due = pace.next();
        let delay = due.saturating_duration_since(Instant::now());
        if due < self.until.get() && !delay.is_zero() {
            self.timer.sleep(delay).await;
        }
        if due < self.until.get() && Instant::now() >= self.until.get() {
            self.counts.borrow_mut().censor(self.until.get() - due);
            return None;
        }
        Some(due).filter(|due| *due < self.until.get())
    }

    fn done(&self, done: Done, due: Instant) {
        let now = Instant::now();
        if now < self.measure_from {
            return;
        }
        let latency = now.saturating_duration_since(due);
        let mut counts = self.counts.borrow_mut();
        let kind = counts.by_kind.entry(done.kind).or_default();
        if now > self.until.get() {
            kind.latencies.record(latency);
            counts.result.unfinished += 1;
            return;
        }
        kind.done(latency);
        // What was moved before says nothing about how long it takes to move so much.
        if self.plan.bytes_max.is_some_and(|most| counts.result.bytes + done.bytes >= most) {
            self.end_early(now);
        }
        counts.enter_second((now - self.measure_from).as_secs() as usize);
        counts.second.record(latency);
        counts.second_bytes += done.bytes;
        counts.result.bytes += done.bytes;
        counts.result.verified += u64::from(done.is_verified);
    }

    fn failed(&self, error: &BenchError) {
        let mut counts = self.counts.borrow_mut();
        counts.result.errors += 1;
        counts.result.first_error.get_or_insert_with(|| error.to_string());
        if counts.result.errors >= ERRORS_MAX {
            self.end_early(Instant::now());
        }
    }

    fn finish(self) -> ClientMeasurement {
        let mut counts = self.counts.into_inner();
        counts.end_second();
        let (until, now) = (self.until.get(), Instant::now());
        for due in std::mem::take(&mut counts.in_flight).into_iter().flatten() {
            counts.censor(now.saturating_duration_since(due));
        }
        while let Some(due) = self.pace.as_ref().map(Pace::next).filter(|due| *due < until) {
            counts.censor(until - due);
        }
        ClientMeasurement {
            seconds: until.saturating_duration_since(self.measure_from).as_secs_f64(),
            by_kind: counts.by_kind.into_iter().map(|(kind, counts)| (kind.to_owned(), counts)).collect(),
            ..counts.result
        }
    }
}

impl Counts {
    fn new(depth: u32) -> Self {
        Counts {
            result: ClientMeasurement::default(),
            by_kind: BTreeMap::new(),
            second: LatencyHistogram::default(),
            second_bytes: 0,
            in_flight: vec![None; depth as usize],
        }
    }

    /// Counts an operation that did not end, or never began, with the time that it has waited at least.
    fn censor(&mut self, waited: Duration) {
        self.result.unfinished += 1;
        self.result.censored.record(waited);
    }

    /// Closes the seconds before this one.
    fn enter_second(&mut self, second: usize) {
        while self.result.series.len() < second {
            self.end_second();
        }
    }

    fn end_second(&mut self) {
        let latency = self.second.latency();
        self.result.series.push(Second {
            operations: self.second.count(),
            bytes: std::mem::take(&mut self.second_bytes),
            p50_us: latency.p50,
            p99_us: latency.p99,
            max_us: latency.max,
        });
        self.second = LatencyHistogram::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operations of a fixed length. Some of them stall, one after the other.
    struct Stalls {
        timer: Timer,
        length: Duration,
        stall_at: u64,
        stalls: u64,
        stall: Duration,
        count: Cell<u64>,
    }

    impl Operations for Stalls {
        async fn perform(&self) -> Result<Done, BenchError> {
            self.count.set(self.count.get() + 1);
            let is_stalled = (self.stall_at..self.stall_at + self.stalls).contains(&self.count.get());
            self.timer.sleep(if is_stalled { self.stall } else { self.length }).await;
            Ok(Done { kind: "read", bytes: 1000, is_verified: false })
        }
    }

    fn plan(depth: u32, rate_per_second: Option<f64>) -> Plan {
        Plan { depth, rate_per_second, warm_up: Duration::ZERO, duration: Duration::from_secs(2), bytes_max: None }
    }

    async fn run(operations: &Stalls, plan: Plan) -> ClientMeasurement {
        run_client(operations, &plan, &Timer::Tokio, &|| ()).await.unwrap()
    }

    fn stalls(stall_at: u64) -> Stalls {
        Stalls {
            timer: Timer::Tokio,
            length: Duration::from_millis(2),
            stall_at,
            stalls: 1,
            stall: Duration::from_millis(500),
            count: Cell::new(0),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stall_is_not_omitted_with_a_rate() {
        // 100 operations a second one at a time, one of which takes half a second: the 50 that were due
        // meanwhile have waited 0 to 500 ms, so the 99th percentile of about 200 is over 400 ms.
        let open = run(&stalls(20), plan(1, Some(100.0))).await;
        let open = open.histogram();
        assert!(open.count() > 150, "{}", open.count());
        assert!(open.at_quantile_us(0.97) > 350_000, "{:?}", open.latency());
        assert!(open.at_quantile_us(0.90) > 100_000, "{:?}", open.latency());
        // The closed loop sees one slow operation only: that is the omission.
        let closed = run(&stalls(20), plan(1, None)).await.histogram();
        assert!(closed.at_quantile_us(0.97) < 100_000 && closed.latency().max > 400_000, "{:?}", closed.latency());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stall_until_the_end_is_in_the_percentiles() {
        // 100 operations a second for 2 s, four at once. The last 100 do not end: four are in flight for the whole
        // patience, the others never begin and have waited for up to a second.
        let stalled = Stalls { stall: Duration::from_secs(3600), stall_at: 100, stalls: 4, ..stalls(0) };
        let open = run(&stalled, plan(4, Some(100.0))).await;
        let due = open.histogram().count();
        assert!((199..=201).contains(&due), "{due}");
        assert_eq!(open.operations() + open.unfinished, due);
        assert!((95..=105).contains(&open.unfinished), "{}", open.unfinished);
        assert!(open.histogram().at_quantile_us(0.75) > 400_000, "{:?}", open.histogram().latency());
        assert!(open.histogram().latency().max >= 60_000_000, "{:?}", open.histogram().latency());
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_operations_are_waited_for() {
        // The closed loop stalls for 5 s from 1.9 s on; the interval ends after 2 s.
        let stalled = Stalls { stall: Duration::from_secs(5), stall_at: 950, ..stalls(0) };
        let closed = run(&stalled, plan(1, None)).await;
        assert_eq!((closed.seconds, closed.unfinished), (2.0, 1));
        assert!(closed.histogram().latency().max >= 4_990_000, "{:?}", closed.histogram().latency());
        assert_eq!(closed.censored.count(), 0, "it ended");
        assert_eq!(closed.operations() + 1, closed.histogram().count());
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_is_kept_and_seconds_add_up() {
        let measured = run(&stalls(0), plan(4, Some(200.0))).await;
        assert_eq!(measured.seconds, 2.0);
        let operations = measured.operations();
        assert!((380..=400).contains(&operations), "{operations}");
        assert_eq!(measured.series.iter().map(|second| second.operations).sum::<u64>(), operations);
        assert_eq!(measured.series.len(), 2);
        assert_eq!(measured.bytes, operations * 1000);
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_end_a_run_early_and_warming_up_does_not_count() {
        let edges = Cell::new(0);
        let plan = Plan {
            warm_up: Duration::from_millis(200),
            bytes_max: Some(400_000),
            duration: Duration::from_secs(30),
            ..plan(4, None)
        };
        let begun = Instant::now();
        let measured = run_client(&stalls(0), &plan, &Timer::Tokio, &|| edges.set(edges.get() + 1)).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10));
        assert_eq!(edges.get(), 2);
        assert!(measured.seconds < 10.0 && measured.bytes <= 400_000, "{} {}", measured.seconds, measured.bytes);
    }

    /// Has a number of operations in it.
    struct RunsOut(Cell<u64>);

    impl Operations for RunsOut {
        async fn perform(&self) -> Result<Done, BenchError> {
            let left = self.0.get().checked_sub(1).ok_or_else(|| BenchError::NothingLeft("empty".into()))?;
            self.0.set(left);
            tokio::time::sleep(Duration::from_millis(2)).await;
            Ok(Done { kind: "delete", bytes: 0, is_verified: false })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_ends_when_nothing_is_left() {
        let begun = Instant::now();
        let plan = Plan { duration: Duration::from_secs(30), ..plan(4, None) };
        let measured = run_client(&RunsOut(Cell::new(100)), &plan, &Timer::Tokio, &|| ()).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10) && measured.seconds < 10.0, "{}", measured.seconds);
        assert_eq!(measured.errors, 0, "{:?}", measured.first_error);
        assert!((90..=100).contains(&measured.histogram().count()), "{}", measured.histogram().count());
    }

    struct Fails;

    impl Operations for Fails {
        async fn perform(&self) -> Result<Done, BenchError> {
            Err(BenchError::S3("gone".into()))
        }
    }

    #[tokio::test]
    async fn errors_are_counted_and_end_a_run() {
        let measured = run_client(&Fails, &plan(64, None), &Timer::Tokio, &|| ()).await.unwrap();
        assert!(measured.errors >= ERRORS_MAX && measured.errors < 200, "{}", measured.errors);
        assert_eq!(measured.first_error.as_deref(), Some("S3: gone"));
        assert!(measured.histogram().count() == 0);
    }
}
