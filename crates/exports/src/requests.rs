//! Pending requests of clients: their kind and begin, for reports of slow ones, and for those that are exported as
//! traces.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use atoll_metrics::slow::{self, IN_FLIGHT_MAX, SlowOperation, SlowStep};
use atoll_metrics::traces::{self, Span};
use atoll_reactor::LocalRuntime;
use atoll_types::TraceContext;

use crate::metrics::{OPERATIONS, Operation, Series};

/// Interval of the reports of slow pending requests.
const IN_FLIGHT_PAUSE: Duration = Duration::from_secs(1);

struct Request {
    series: Rc<Series>,
    client: Rc<str>,
    operation: Operation,
    offset: u64,
    bytes: u64,
    started: Instant,
    /// Its span, if it is exported.
    span: Option<Span>,
    /// How long it waited until it could begin.
    begun_us: Cell<Option<u64>>,
}

impl Request {
    fn lasted_us(&self, now: Instant) -> u64 {
        now.duration_since(self.started).as_micros() as u64
    }

    fn told(&self, duration_us: u64) -> SlowOperation {
        let begun = |after_us| SlowStep { name: "begun".into(), after_us, since_us: 0 };
        SlowOperation {
            begun_unix_ms: slow::begun_unix_ms(duration_us),
            duration_us,
            kind: OPERATIONS[self.operation as usize].into(),
            client: self.client.to_string(),
            object: Some(format!("{} at {}", self.series.image(), self.offset)),
            size_bytes: self.bytes,
            steps: self.begun_us.get().map(begun).into_iter().collect(),
            ..SlowOperation::default()
        }
    }
}

/// Requests by their numbers, which go up.
#[derive(Default)]
struct InFlight {
    next: u64,
    requests: BTreeMap<u64, Rc<Request>>,
}

thread_local! {
    static IN_FLIGHT: RefCell<InFlight> = RefCell::default();
}

/// A request that is not answered yet.
pub struct Running {
    number: u64,
    request: Rc<Request>,
}

impl Running {
    pub(crate) fn begin(
        series: Rc<Series>,
        client: Rc<str>,
        operation: Operation,
        offset: u64,
        bytes: u64,
    ) -> Self {
        let (started, span, begun_us) = (Instant::now(), traces::begin(), Cell::new(None));
        let request = Rc::new(Request { series, client, operation, offset, bytes, started, span, begun_us });
        let number = IN_FLIGHT.with_borrow_mut(|in_flight| {
            in_flight.next += 1;
            in_flight.requests.insert(in_flight.next, Rc::clone(&request));
            in_flight.next
        });
        Running { number, request }
    }

    /// It need not wait for others any longer.
    pub fn begun(&self) {
        self.request.begun_us.set(Some(self.request.lasted_us(Instant::now())));
    }

    /// Returns its span, if it is exported: work for it is part of that.
    pub fn span(&self) -> Option<TraceContext> {
        self.request.span.map(|span| span.context)
    }

    /// It is answered; `error` is why it failed.
    pub fn answered(self, error: Option<&str>) {
        let request = &self.request;
        let duration_us = request.lasted_us(Instant::now());
        request.series.answered(request.operation, request.bytes, duration_us, error.is_some());
        let is_slow = slow::is_slow(duration_us);
        if request.span.is_some() || is_slow {
            let told = SlowOperation { error: error.map(ToOwned::to_owned), ..request.told(duration_us) };
            traces::ended(told, request.span, None, is_slow.then_some(slow::Ring::Identified));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // When the thread ends, the list may be gone before its requests.
        let _ = IN_FLIGHT.try_with(|in_flight| in_flight.borrow_mut().requests.remove(&self.number));
    }
}

/// Reports slow pending requests, for as long as the runtime lives.
pub async fn follow_in_flight(runtime: LocalRuntime) {
    loop {
        runtime.sleep(IN_FLIGHT_PAUSE).await;
        tell_in_flight(Instant::now());
    }
}

/// Reports the oldest slow requests that are not answered.
fn tell_in_flight(now: Instant) {
    let told = IN_FLIGHT.with_borrow(|in_flight| {
        let oldest = in_flight.requests.values().map(|request| (request, request.lasted_us(now)));
        let slow = oldest.take_while(|(_, duration_us)| slow::is_slow(*duration_us)).take(IN_FLIGHT_MAX);
        let told = slow.map(|(request, duration_us)| {
            let waits_for = match request.begun_us.get() {
                Some(_) => "the cluster",
                None => "its share of the memory for requests",
            };
            SlowOperation { waits_for: Some(waits_for.into()), ..request.told(duration_us) }
        });
        told.collect()
    });
    slow::set_in_flight(told);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::ImageMetrics;

    fn waits_for(now: Instant) -> Vec<String> {
        tell_in_flight(now);
        let told = slow::slow_operations().into_iter();
        told.filter(|told| told.object.as_deref() == Some("told at 4096"))
            .filter_map(|told| told.waits_for)
            .collect()
    }

    #[test]
    fn requests_are_reported_while_they_take_long_and_not_after() {
        let metrics = ImageMetrics::of("told", "host 10.0.0.1");
        let running = metrics.begin(Operation::Read, 4096, 512);
        assert_eq!(waits_for(running.request.started), [""; 0], "it has just come");
        let later = running.request.started + slow::SLOW_MIN;
        assert_eq!(waits_for(later), ["its share of the memory for requests"]);
        running.begun();
        assert_eq!(waits_for(later), ["the cluster"]);
        std::thread::sleep(slow::SLOW_MIN);
        running.answered(Some("no"));
        assert_eq!(waits_for(later), [""; 0]);
        let kept = slow::slow_operations().into_iter().find(|told| told.object.as_deref() == Some("told at 4096"));
        let kept = kept.unwrap();
        assert_eq!((&kept.client[..], kept.error.as_deref()), ("host 10.0.0.1", Some("no")));

        let left = metrics.begin(Operation::Flush, 0, 0);
        drop(left);
        IN_FLIGHT.with_borrow(|in_flight| assert!(in_flight.requests.is_empty(), "its client has gone"));
    }
}
