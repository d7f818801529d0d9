//! A request while it is served: its operation, its caller, and its progress. Its metrics, its line in the audit
//! log, and its report if it is slow or traced are made from that.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use atoll_audit::{
    AGENT_BYTES_MAX, AuditLog, Bounded, DocumentChange, METHOD_BYTES_MAX, PATH_BYTES_MAX, Stranger, cut_fields,
};
use atoll_connection_limits::Place;
use atoll_iam::Caller;
use atoll_metrics::current_span::change_span;
use atoll_metrics::slow::{self, IN_FLIGHT_MAX, Ring, SlowOperation, SlowStep};
use atoll_metrics::traces::{self, Span, TraceParent};
use atoll_types::TraceContext;
use http::header::USER_AGENT;
use http::{HeaderMap, HeaderValue, Method, Request, Uri};

use crate::arrival::Arrival;
use crate::audit::{AuditRecord, AuditedDeletion, AuditedDeletions, AuditedSetting};
use crate::metrics;
use crate::query::parameter;

/// The operation of requests that were refused before it was known which they are.
const NO_OPERATION: &str = "Unknown";
/// Name of requests to a gateway in audit logs.
pub const SOURCE: &str = "s3";
const COPY_SOURCE: &str = "x-amz-copy-source";
/// Bytes of a version id in the audit log.
pub(crate) const VERSION_BYTES_MAX: usize = 128;
/// Pending requests of strangers that are reported beside those of others.
const STRANGERS_IN_FLIGHT_MAX: usize = IN_FLIGHT_MAX / 4;
/// The header that names the parent of a request, <https://www.w3.org/TR/trace-context/>.
const TRACE_PARENT: &str = "traceparent";

/// The request, and its caller.
struct Asked {
    method: Method,
    uri: Uri,
    arrival: Arrival,
    user_agent: Option<HeaderValue>,
    part_of: Option<PartOf>,
}

/// Parent that a request names.
struct PartOf {
    parent: TraceParent,
    /// Its span there, if the parent is exported.
    span: Option<Span>,
}

/// A request while it is served: it is in the request's extensions, so that each part of the gateway can set its
/// facts. It is measured when the last of its holders lets go of it.
pub(crate) struct Observed {
    number: u64,
    started: Instant,
    /// The span that it has if it is part of nothing and is exported.
    own_span: Option<Span>,
    operation: OnceLock<&'static str>,
    bucket: OnceLock<String>,
    caller: OnceLock<Arc<Caller>>,
    /// The action of IAM or STS.
    action: OnceLock<String>,
    /// The ARN that the action is about.
    subject: OnceLock<String>,
    /// The source of a copy.
    copy_source: OnceLock<HeaderValue>,
    /// The version that was made, or that the answer is about.
    version_id: OnceLock<String>,
    deleted: OnceLock<AuditedDeletions>,
    /// Settings of buckets that it has changed.
    settings: OnceLock<Vec<AuditedSetting>>,
    /// Changes of policies.
    policies: OnceLock<Vec<DocumentChange>>,
    /// It changes buckets or identities, and may.
    is_change: AtomicBool,
    request_id: OnceLock<String>,
    audit: Option<AuditLog>,
    /// The place of its connection, which logs in with the first request that is signed.
    place: Option<Arc<Place>>,
    status: OnceLock<u16>,
    /// When the answer's head was there, in microseconds after the start.
    answered_us: OnceLock<u64>,
    asked: OnceLock<Asked>,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

/// Requests by their numbers, which go up.
static IN_FLIGHT: Mutex<BTreeMap<u64, Weak<Observed>>> = Mutex::new(BTreeMap::new());

impl Observed {
    /// A request has come; its record goes into the audit log, if there is one.
    pub(crate) fn begin(audit: Option<AuditLog>, place: Option<Arc<Place>>) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        metrics::request_begun();
        let observed = Arc::new(Observed {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            started: Instant::now(),
            own_span: traces::begin(),
            audit,
            place,
            request_id: OnceLock::new(),
            operation: OnceLock::new(),
            bucket: OnceLock::new(),
            caller: OnceLock::new(),
            action: OnceLock::new(),
            subject: OnceLock::new(),
            copy_source: OnceLock::new(),
            version_id: OnceLock::new(),
            deleted: OnceLock::new(),
            settings: OnceLock::new(),
            policies: OnceLock::new(),
            is_change: AtomicBool::new(false),
            status: OnceLock::new(),
            answered_us: OnceLock::new(),
            asked: OnceLock::new(),
            received_bytes: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
        });
        let weak = Arc::downgrade(&observed);
        IN_FLIGHT.lock().unwrap_or_else(PoisonError::into_inner).insert(observed.number, weak);
        observed
    }

    /// Sets its operation; the first value counts.
    pub(crate) fn set_operation(&self, operation: &'static str) {
        let _ = self.operation.set(operation);
    }

    /// Sets the bucket, which exists, of a request that is allowed: so strangers cannot make up names of series.
    pub(crate) fn set_bucket(&self, bucket: &str) {
        let _ = self.bucket.set(bucket.to_owned());
    }

    /// Sets the signer.
    pub(crate) fn set_caller(&self, caller: &Arc<Caller>) {
        let _ = self.caller.set(Arc::clone(caller));
        self.place.iter().for_each(|place| place.log_in());
        change_span(self.traced());
    }

    /// The action of IAM or STS, which exists.
    pub(crate) fn set_action(&self, action: String) {
        let _ = self.action.set(action);
    }

    /// The ARN that the action is about.
    pub(crate) fn set_subject(&self, subject: &str) {
        let _ = self.subject.set(subject.to_owned());
    }

    /// Sets the source of a copy that these headers name, if none did before.
    pub(crate) fn copies_from(&self, headers: &HeaderMap) {
        if let Some(source) = headers.get(COPY_SOURCE) {
            let _ = self.copy_source.set(source.clone());
        }
    }

    /// Which version the answer is about.
    pub(crate) fn set_version(&self, version_id: &str) {
        let _ = self.version_id.set(version_id.to_owned());
    }

    /// Sets the deletions of one request with many keys.
    pub(crate) fn deletes(&self, deleted: Vec<AuditedDeletion>) {
        let _ = self.deleted.set(AuditedDeletions::new(deleted));
    }

    /// Sets the settings of buckets that it has changed.
    pub(crate) fn changes_settings(&self, changes: Vec<AuditedSetting>) {
        if !changes.is_empty() {
            let _ = self.settings.set(changes);
        }
    }

    /// Sets the changes of policies.
    pub(crate) fn changes_policies(&self, changes: Vec<DocumentChange>) {
        let _ = self.policies.set(changes);
    }

    /// It is allowed, and changes buckets or identities.
    pub(crate) fn note_allowed_change(&self) {
        self.is_change.store(true, Ordering::Relaxed);
    }

    /// Sets the request, and its caller.
    pub(crate) fn set_request<B>(&self, request: &Request<B>, arrival: Arrival) {
        let trace_parent = || TraceParent::parse(request.headers().get(TRACE_PARENT)?.to_str().ok()?);
        self.copies_from(request.headers());
        let _ = self.asked.set(Asked {
            method: request.method().clone(),
            uri: request.uri().clone(),
            arrival,
            user_agent: request.headers().get(USER_AGENT).cloned(),
            part_of: traces::is_on()
                .then(trace_parent)
                .flatten()
                .map(|parent| PartOf { span: traces::begin_in(&parent), parent }),
        });
    }

    /// Returns its parent. A stranger's header is ignored: a stranger could have all own requests exported in
    /// place of others.
    fn part_of(&self) -> Option<&PartOf> {
        self.asked.get()?.part_of.as_ref().filter(|_| self.caller.get().is_some())
    }

    /// Its span, if it is exported.
    fn span(&self) -> Option<Span> {
        self.part_of().map_or(self.own_span, |part_of| part_of.span)
    }

    /// Returns true if it may turn out to be exported.
    pub(crate) fn may_be_traced(&self, headers: &HeaderMap) -> bool {
        self.own_span.is_some() || (traces::is_on() && headers.contains_key(TRACE_PARENT))
    }

    /// Returns the span that work for it is a part of, if it is exported.
    pub(crate) fn traced(&self) -> Option<TraceContext> {
        self.span().map(|span| span.context)
    }

    pub(crate) fn set_request_id(&self, request_id: &str) {
        let _ = self.request_id.set(request_id.to_owned());
    }

    pub(crate) fn set_status(&self, status: u16) {
        let _ = self.status.set(status);
        let _ = self.answered_us.set(self.started.elapsed().as_micros() as u64);
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.received_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// Returns a header's value, which need not be text.
fn text_of(value: &HeaderValue) -> Cow<'_, str> {
    String::from_utf8_lossy(value.as_bytes())
}

/// Rate of transfers above which a request is not slow: the client's time for its data does not count.
const NOT_SLOW_BYTES_PER_US: u64 = 20;

fn is_slow(duration_us: u64, size_bytes: u64) -> bool {
    slow::is_slow(duration_us.saturating_sub(size_bytes / NOT_SLOW_BYTES_PER_US))
}

impl Observed {
    /// The query of a presigned URL is a secret.
    fn path(&self) -> &str {
        self.asked.get().map_or("", |asked| asked.uri.path())
    }

    fn operation(&self) -> &'static str {
        self.operation.get().copied().unwrap_or(NO_OPERATION)
    }

    fn transferred_bytes(&self) -> (u64, u64) {
        (self.received_bytes.load(Ordering::Relaxed), self.sent_bytes.load(Ordering::Relaxed))
    }

    fn audit(&self, duration: Duration, (received_bytes, sent_bytes): (u64, u64)) {
        let Some(log) = &self.audit else { return };
        let (asked, caller) = (self.asked.get(), self.caller.get());
        let duration_us = duration.as_micros() as u64;
        let client = asked.and_then(|asked| asked.arrival.client).map(|client| client.ip());
        let method = asked.map(|asked| Bounded::new(asked.method.as_str(), METHOD_BYTES_MAX));
        let path = Bounded::new(self.path(), PATH_BYTES_MAX);
        let user_agent = asked.and_then(|asked| asked.user_agent.as_ref()).map(text_of);
        let user_agent = user_agent.as_deref().map(|agent| Bounded::new(agent, AGENT_BYTES_MAX));
        let copy_source = self.copy_source.get().map(text_of);
        let copy_source = copy_source.as_deref().map(|source| Bounded::new(source, PATH_BYTES_MAX));
        let named_version = asked.and_then(|asked| parameter(&asked.uri, "versionId"));
        let version_id = self.version_id.get().map(String::as_str).or(named_version.as_deref());
        let version_id = version_id.map(|id| Bounded::new(id, VERSION_BYTES_MAX));
        let subject = self.subject.get().map(|subject| Bounded::new(subject, PATH_BYTES_MAX));
        let record = AuditRecord {
            source: SOURCE,
            time_unix_ms: slow::begun_unix_ms(duration_us),
            request_id: self.request_id.get().map(|id| &id[..]),
            operation: self.operation(),
            action: self.action.get().map(|action| &action[..]),
            subject,
            method,
            path,
            bucket: self.bucket.get().map(|bucket| &bucket[..]),
            version_id,
            copy_source,
            deleted: self.deleted.get().map(|deleted| &deleted.listed[..]),
            deleted_unlisted: self.deleted.get().map(|deleted| deleted.unlisted).filter(|count| *count > 0),
            settings: self.settings.get().map(|settings| &settings[..]),
            policies: self.policies.get().map(|policies| &policies[..]),
            account: caller.map(|caller| &caller.account.id[..]),
            principal: caller.map(|caller| &***caller),
            access_key: caller.map(|caller| &caller.access_key[..]),
            client,
            is_encrypted: asked.map(|asked| asked.arrival.is_encrypted),
            user_agent,
            status: self.status.get().copied(),
            received_bytes,
            sent_bytes,
            duration_us,
            cut: cut_fields(&[
                ("method", method.unwrap_or_default()),
                ("path", path),
                ("user_agent", user_agent.unwrap_or_default()),
                ("version_id", version_id.unwrap_or_default()),
                ("copy_source", copy_source.unwrap_or_default()),
                ("subject", subject.unwrap_or_default()),
            ]),
        };
        match caller {
            Some(_) if self.may_have_changed() => log.add_change(&record),
            Some(_) => log.add(&record),
            None => log.add_of_stranger(Stranger { address: client, is_refused: self.is_refused() }, &record),
        }
    }

    /// Returns true for an allowed change that was not refused afterwards. Without an answer the outcome is unknown.
    fn may_have_changed(&self) -> bool {
        let is_refused = self.status.get().is_some_and(|status| (400..500).contains(status));
        self.is_change.load(Ordering::Relaxed) && !is_refused
    }

    /// Returns true if it was answered with an error, or not at all.
    fn is_refused(&self) -> bool {
        let is_error = self.status.get().is_none_or(|status| *status >= 400);
        is_error || self.deleted.get().is_some_and(|deleted| deleted.are_refused)
    }

    /// Returns the group of slow operations that it belongs to.
    fn ring(&self) -> Ring {
        if self.caller.get().is_some() { Ring::Identified } else { Ring::Strangers }
    }

    /// Returns the report of it, over or not.
    fn told(&self, duration_us: u64) -> SlowOperation {
        let client = self.asked.get().and_then(|asked| asked.arrival.client);
        let (received_bytes, sent_bytes) = self.transferred_bytes();
        let answered = |after_us: &u64| SlowStep { name: "answer begun".into(), after_us: *after_us, since_us: 0 };
        SlowOperation {
            begun_unix_ms: slow::begun_unix_ms(duration_us),
            duration_us,
            kind: self.operation().to_owned(),
            client: client.map(|client| client.ip().to_string()).unwrap_or_default(),
            object: Some(Bounded::new(self.path(), PATH_BYTES_MAX).text().to_owned()),
            size_bytes: received_bytes + sent_bytes,
            steps: self.answered_us.get().map(answered).into_iter().collect(),
            ..SlowOperation::default()
        }
    }

    /// Ends it: reports it if it was slow or is traced.
    fn tell(&self, duration_us: u64) {
        let (received_bytes, sent_bytes) = self.transferred_bytes();
        let (span, is_slow) = (self.span(), is_slow(duration_us, received_bytes + sent_bytes));
        if span.is_none() && !is_slow {
            return;
        }
        let error = match self.status.get() {
            Some(status) if *status >= 400 => Some(format!("status {status}")),
            Some(_) => None,
            None => Some("the client left".into()),
        };
        let told = SlowOperation { error, ..self.told(duration_us) };
        let parent = self.part_of().map(|part_of| part_of.parent.context);
        traces::ended(told, span, parent, is_slow.then(|| self.ring()));
    }

    /// Returns its reason for waiting, if it has taken long.
    fn in_flight(&self, now: Instant) -> Option<SlowOperation> {
        let duration_us = now.duration_since(self.started).as_micros() as u64;
        let (received_bytes, sent_bytes) = self.transferred_bytes();
        let waits_for = match self.status.get() {
            Some(_) => "its client to take the answer",
            None if received_bytes > 0 => "the rest of its body, or the cluster",
            None => "the cluster",
        };
        is_slow(duration_us, received_bytes + sent_bytes)
            .then(|| SlowOperation { waits_for: Some(waits_for.into()), ..self.told(duration_us) })
    }
}

/// Requests that have taken long and are not over: the oldest.
pub(crate) fn slow_in_flight() -> Vec<SlowOperation> {
    slow_in_flight_at(Instant::now())
}

fn slow_in_flight_at(now: Instant) -> Vec<SlowOperation> {
    let in_flight = IN_FLIGHT.lock().unwrap_or_else(PoisonError::into_inner);
    let held: Vec<Arc<Observed>> = in_flight.values().filter_map(Weak::upgrade).collect();
    // What is dropped here may be the last that holds a request, which takes it from the list.
    drop(in_flight);
    let of = |ring: Ring| held.iter().filter(move |observed| observed.ring() == ring);
    let identified = of(Ring::Identified).filter_map(|observed| observed.in_flight(now));
    let strangers = of(Ring::Strangers).filter_map(|observed| observed.in_flight(now));
    identified
        .take(IN_FLIGHT_MAX - STRANGERS_IN_FLIGHT_MAX)
        .chain(strangers.take(STRANGERS_IN_FLIGHT_MAX))
        .collect()
}

impl Drop for Observed {
    fn drop(&mut self) {
        IN_FLIGHT.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
        let duration = self.started.elapsed();
        let (received_bytes, sent_bytes) = self.transferred_bytes();
        self.audit(duration, (received_bytes, sent_bytes));
        self.tell(duration.as_micros() as u64);
        metrics::request_ended(&metrics::Ended {
            operation: self.operation(),
            status: self.status.get().copied(),
            duration,
            received_bytes,
            sent_bytes,
            account: self.caller.get().map(|caller| &caller.account.id[..]),
            bucket: self.bucket.get().map(|bucket| &bucket[..]),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        atoll_metrics::encode(atoll_metrics::TextFormat::OpenMetrics).unwrap()
    }

    #[test]
    fn a_request_is_measured_when_it_is_over() {
        let observed = Observed::begin(None, None);
        observed.set_operation("PutTestObject");
        observed.set_bucket("measured");
        observed.received(1_000);
        observed.sent(10);
        observed.set_status(200);
        let held = Arc::clone(&observed);
        drop(observed);
        assert!(!text().contains("PutTestObject"), "a body is still being sent");
        drop(held);
        // Who looks at what is in flight holds all of it for a moment: the other test does.
        for _ in 0..100 {
            if text().contains("PutTestObject") {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let text = text();
        for line in [
            r#"atoll_s3_requests_total{operation="PutTestObject",status="200"} 1"#,
            r#"atoll_s3_request_duration_seconds_count{operation="PutTestObject"} 1"#,
            r#"atoll_s3_bucket_received_bytes_total{bucket="measured"} 1000"#,
            r#"atoll_s3_bucket_sent_bytes_total{bucket="measured"} 10"#,
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

    #[test]
    fn requests_in_flight_are_told_while_they_take_long() {
        let observed = Observed::begin(None, None);
        observed.set_operation("GetSlowObject");
        let waits_for = |lasted| {
            let now = observed.started + lasted;
            let told = slow_in_flight_at(now).into_iter().find(|told| told.kind == "GetSlowObject");
            told.and_then(|told| told.waits_for)
        };
        assert_eq!(waits_for(Duration::ZERO), None, "it has just come");
        assert_eq!(waits_for(slow::SLOW_MIN).as_deref(), Some("the cluster"));
        observed.set_status(200);
        assert_eq!(waits_for(slow::SLOW_MIN).as_deref(), Some("its client to take the answer"));
        let later = observed.started + slow::SLOW_MIN;
        drop(observed);
        assert!(slow_in_flight_at(later).iter().all(|told| told.kind != "GetSlowObject"));
    }
}
