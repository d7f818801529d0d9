//! Selection of the operations of this process that are exported as traces, and the queue in which they wait for the
//! exporter. While nothing is to be exported, an operation costs one look at an atomic number.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use atoll_types::TraceContext;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::slow::{self, SlowOperation};
use crate::{Counter, Family, register};

/// Operations that wait until they are exported; further ones are left out and counted.
const WAITING_MAX: usize = 4_096;

/// The span of another program that an operation is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The span.
    pub context: TraceContext,
    /// True if the other program exports its span.
    pub is_sampled: bool,
}

impl TraceParent {
    /// Reads a `traceparent` header, <https://www.w3.org/TR/trace-context/>. One that is no such thing is as good as
    /// none.
    pub fn parse(text: &str) -> Option<TraceParent> {
        let mut parts = text.trim().split('-');
        let mut part = |digits: usize| {
            let part = parts.next()?;
            let is_hex = part.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
            (part.len() == digits && is_hex).then_some(part)
        };
        let (version, trace_id, span_id, flags) = (part(2)?, part(32)?, part(16)?, part(2)?);
        let is_whole = version != "00" || parts.next().is_none();
        let is_zero = |id: &str| id.bytes().all(|byte| byte == b'0');
        if version == "ff" || !is_whole || is_zero(trace_id) || is_zero(span_id) {
            return None;
        }
        let is_sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
        let mut context = TraceContext { trace_id: [0; 16], span_id: [0; 8] };
        hex::decode_to_slice(trace_id, &mut context.trace_id).ok()?;
        hex::decode_to_slice(span_id, &mut context.span_id).ok()?;
        Some(TraceParent { context, is_sampled })
    }
}

/// The span of an operation of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its trace, and its own id.
    pub context: TraceContext,
    /// The span that it is part of.
    pub parent_id: Option<[u8; 8]>,
}

impl Span {
    /// A new span: a part of another, or the first one of a trace.
    pub fn new(parent: Option<TraceContext>) -> Span {
        let trace_id = parent.map_or_else(random_id, |parent| parent.trace_id);
        let context = TraceContext { trace_id, span_id: random_id() };
        Span { context, parent_id: parent.map(|parent| parent.span_id) }
    }
}

/// Returns a unique id.
pub fn random_id<const BYTES: usize>() -> [u8; BYTES] {
    let mut id = [0; BYTES];
    getrandom(&mut id, GetRandomFlags::empty()).expect("the system returns this few random bytes at once");
    id
}

/// An operation that is to be exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedOperation {
    /// The operation.
    pub operation: SlowOperation,
    /// Unix time when it ended, in microseconds.
    pub ended_unix_us: u64,
    /// Its span.
    pub span: Span,
}

/// Results of operations for export.
struct Registered {
    sent: Counter,
    dropped: Counter,
    failed: Counter,
}

static REGISTERED: LazyLock<Registered> = LazyLock::new(|| {
    let traces: Family<1, Counter> =
        register("atoll_traces", "Operations to be exported as traces, by result", Family::default());
    let with = |result: &str| traces.get_or_create_owned(&[("result", result.to_owned())]);
    Registered { sent: with("sent"), dropped: with("dropped"), failed: with("failed") }
});

/// Says that all slow operations are exported; the other bits of [`CHOICE`] are `one_in`.
const SLOW_BIT: u64 = 1 << 32;
/// Which operations are exported; 0: none.
static CHOICE: AtomicU64 = AtomicU64::new(0);
static ENDPOINT: Mutex<String> = Mutex::new(String::new());
static QUEUE: OnceLock<SyncSender<TracedOperation>> = OnceLock::new();

/// Opens the queue, once for a process; without one nothing is exported.
pub fn open_queue() -> Receiver<TracedOperation> {
    LazyLock::force(&REGISTERED);
    let (sender, receiver) = sync_channel(WAITING_MAX);
    QUEUE.set(sender).expect("a process exports its traces in one place");
    receiver
}

/// From here on one operation of `one_in` is exported to the collector at this address, or none if that is 0, and all
/// that are slow if `with_slow`. Without an address nothing is.
pub fn configure(endpoint: &str, one_in: u32, with_slow: bool) {
    if QUEUE.get().is_none() {
        return;
    }
    endpoint.clone_into(&mut ENDPOINT.lock().unwrap_or_else(PoisonError::into_inner));
    let choice = u64::from(one_in) | if with_slow { SLOW_BIT } else { 0 };
    CHOICE.store(if endpoint.is_empty() { 0 } else { choice }, Ordering::Relaxed);
}

/// The collector's address; empty if nothing is to be exported.
pub fn endpoint() -> String {
    ENDPOINT.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Returns true if anything is exported.
pub fn is_on() -> bool {
    CHOICE.load(Ordering::Relaxed) != 0
}

/// An operation begins that is part of nothing else: its span, if it is among those that are exported.
pub fn begin() -> Option<Span> {
    let one_in = CHOICE.load(Ordering::Relaxed) & (SLOW_BIT - 1);
    (one_in != 0 && random().is_multiple_of(one_in)).then(|| Span::new(None))
}

/// The same of one that is part of something, which decides whether it is exported.
pub fn begin_in(parent: &TraceParent) -> Option<Span> {
    (is_on() && parent.is_sampled).then(|| Span::new(Some(parent.context)))
}

fn is_wanted(is_sampled: bool, is_slow: bool) -> bool {
    is_sampled || (is_slow && CHOICE.load(Ordering::Relaxed) & SLOW_BIT != 0)
}

/// An operation has ended now that is slow, for which there is a ring, or has been sampled and so has a span, or both:
/// keeps it, has it exported, or both. One that is only slow gets its span here, as a part of `parent`.
pub fn ended(
    operation: SlowOperation,
    sampled: Option<Span>,
    parent: Option<TraceContext>,
    slow_ring: Option<slow::Ring>,
) {
    if is_wanted(sampled.is_some(), slow_ring.is_some()) {
        export(operation.clone(), sampled.unwrap_or_else(|| Span::new(parent)));
    }
    if let Some(ring) = slow_ring {
        slow::record(operation, ring);
    }
}

/// Has an operation exported that has ended now, unless too many wait for that.
fn export(operation: SlowOperation, span: Span) {
    let Some(queue) = QUEUE.get() else { return };
    let ended_unix_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64);
    if queue.try_send(TracedOperation { operation, ended_unix_us, span }).is_err() {
        REGISTERED.dropped.inc();
    }
}

/// Counts `count` operations that the collector has accepted, or not.
pub fn were_exported(count: usize, is_taken: bool) {
    let counter = if is_taken { &REGISTERED.sent } else { &REGISTERED.failed };
    counter.inc_by(count as u64);
}

/// Splitmix64 of a counter: the numbers need not be secret.
fn random() -> u64 {
    static NEXT: LazyLock<AtomicU64> = LazyLock::new(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        AtomicU64::new(now ^ (u64::from(std::process::id()) << 32))
    });
    let state = NEXT.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn trace_parents_are_those_of_the_standard() {
        let parent = TraceParent::parse(PARENT).unwrap();
        assert_eq!(hex::encode(parent.context.trace_id), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(hex::encode(parent.context.span_id), "00f067aa0ba902b7");
        assert!(parent.is_sampled);
        assert!(!TraceParent::parse(&PARENT.replace("-01", "-00")).unwrap().is_sampled);
        assert!(
            TraceParent::parse(&format!("{}-more", PARENT.replacen("00", "cc", 1))).is_some(),
            "a later version"
        );
        for wrong in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            &format!("{PARENT}-more"),
            &PARENT.replacen("00", "ff", 1),
            &PARENT.to_uppercase(),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        ] {
            assert_eq!(TraceParent::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn settings_select_exported_traces_and_the_queue_is_bounded() {
        let parent = TraceParent::parse(PARENT).unwrap();
        configure("http://early:4318", 1, true);
        assert_eq!(begin(), None, "nobody exports anything yet");

        let queue = open_queue();
        assert!(!is_on() && begin().is_none() && !is_wanted(false, true) && begin_in(&parent).is_none());
        configure("http://collector:4318", 1, true);
        assert!(is_on() && is_wanted(false, true));
        let (first, second) = (begin().unwrap(), begin().unwrap());
        assert!(first.context.trace_id != second.context.trace_id && first.parent_id.is_none());
        let below = begin_in(&parent).unwrap();
        assert_eq!(below.context.trace_id, parent.context.trace_id);
        assert_eq!(below.parent_id, Some(parent.context.span_id));
        assert_ne!(below.context.span_id, parent.context.span_id);
        let unsampled = TraceParent { is_sampled: false, ..parent };
        assert_eq!(begin_in(&unsampled), None, "what it is part of is not exported either");
        configure("http://collector:4318", 10, false);
        let taken = (0..10_000).filter(|_| begin().is_some()).count();
        assert!((800..1_200).contains(&taken), "{taken} of 10,000");
        assert!(!is_wanted(false, true));

        for number in 0..=WAITING_MAX as u64 {
            let operation = SlowOperation { duration_us: number, ..SlowOperation::default() };
            export(operation, below);
        }
        assert_eq!(REGISTERED.dropped.get(), 1);
        let first = queue.try_recv().unwrap();
        assert_eq!((first.operation.duration_us, first.span), (0, below));
        assert_eq!(queue.try_iter().count(), WAITING_MAX - 1);
        configure("", 1, true);
        assert!(!is_on() && endpoint().is_empty());
    }
}
