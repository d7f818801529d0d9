//! Attacks of strangers on the ports of Atoll's processes, as lines in the log: the kind of the attempt, its
//! source, and the reason of its refusal. Attempts are free for those who make them, so lines are limited for each
//! kind, and the rest is counted; a metric counts all of them.
//!
//! This crate knows kinds of attempts, the log and metrics. It does not know protocols, and the tried secret must
//! never be in a note: a password that is almost right is as secret as the right one.

use std::fmt::Display;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_metrics::{Counter, Family, register};

/// Lines of one kind in one window; one more may report the number of further attempts.
const LINES_MAX: u32 = 4;
/// How long a window is.
const WINDOW: Duration = Duration::from_secs(5);
/// Lines of one kind that may come without a pause. A source that continues for days gets one line each
/// [`REFILL`], so that the lines of strangers do not push everything else out of the log of a process.
const BURST_MAX: u32 = 256;
/// Time after which a kind may have one line more.
const REFILL: Duration = Duration::from_secs(30);

/// A kind of attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecurityEvent {
    /// A static key that cluster state does not authorise, or a key of TLS that belongs to no host.
    RefusedKey,
    /// A handshake of Atoll's own protocol that failed.
    FailedHandshake,
    /// Bytes that violate the protocol.
    MalformedInput,
    /// A TLS handshake that failed.
    FailedTls,
    /// A request that was signed with another secret.
    BadSignature,
    /// A request of an access key that there is not.
    UnknownAccessKey,
    /// A wrong password of cluster state.
    BadPassword,
    /// A request to cluster state without a token, or with one that does not hold.
    BadToken,
    /// A request to cluster state for keys, or for users and roles, that its sender has no right to.
    RefusedRight,
    /// An NVMe host that could not prove itself.
    FailedNvmeAuthentication,
    /// A client of images that may not use the requested one, holds resources that others need, or whose TLS was
    /// broken.
    RefusedClient,
    /// A connection that was closed, or not taken, because strangers have too many.
    TooManyConnections,
    /// A record of cluster state that no holder of the key service has written.
    RefusedRecord,
    /// A request that is refused because the audit log takes no lines.
    Unaudited,
}

impl SecurityEvent {
    const ALL: [SecurityEvent; 14] = [
        SecurityEvent::RefusedKey,
        SecurityEvent::FailedHandshake,
        SecurityEvent::MalformedInput,
        SecurityEvent::FailedTls,
        SecurityEvent::BadSignature,
        SecurityEvent::UnknownAccessKey,
        SecurityEvent::BadPassword,
        SecurityEvent::BadToken,
        SecurityEvent::RefusedRight,
        SecurityEvent::FailedNvmeAuthentication,
        SecurityEvent::RefusedClient,
        SecurityEvent::TooManyConnections,
        SecurityEvent::RefusedRecord,
        SecurityEvent::Unaudited,
    ];

    /// Its name in the log.
    pub fn name(self) -> &'static str {
        match self {
            SecurityEvent::RefusedKey => "refused_key",
            SecurityEvent::FailedHandshake => "failed_handshake",
            SecurityEvent::MalformedInput => "malformed_input",
            SecurityEvent::FailedTls => "failed_tls",
            SecurityEvent::BadSignature => "bad_signature",
            SecurityEvent::UnknownAccessKey => "unknown_access_key",
            SecurityEvent::BadPassword => "bad_password",
            SecurityEvent::BadToken => "bad_token",
            SecurityEvent::RefusedRight => "refused_right",
            SecurityEvent::FailedNvmeAuthentication => "failed_nvme_authentication",
            SecurityEvent::RefusedClient => "refused_client",
            SecurityEvent::TooManyConnections => "too_many_connections",
            SecurityEvent::RefusedRecord => "refused_record",
            SecurityEvent::Unaudited => "unaudited",
        }
    }
}

/// Number of recent attempts of a kind, and of their lines.
#[derive(Clone, Copy, Default)]
struct Window {
    began: Option<Instant>,
    lines: u32,
    /// Attempts that no line has reported yet.
    unsaid: u64,
    /// Lines that are taken from the burst, and until when that was counted.
    spent: u32,
    refilled: Option<Instant>,
}

/// Handling of an attempt.
#[derive(Debug, PartialEq, Eq)]
enum Said {
    /// A line, which also reports `more` earlier attempts.
    Line { more: u64 },
    /// Nothing now; the first such attempt of a window must have its number said when that is over.
    Nothing { is_first: bool },
}

impl Window {
    fn note(&mut self, now: Instant) -> Said {
        if self.began.is_none_or(|began| now.duration_since(began) >= WINDOW) {
            (self.began, self.lines) = (Some(now), 0);
        }
        if self.lines < LINES_MAX && self.spend(now) {
            self.lines += 1;
            return Said::Line { more: std::mem::take(&mut self.unsaid) };
        }
        self.unsaid += 1;
        Said::Nothing { is_first: self.unsaid == 1 }
    }

    /// Takes a line from the burst, if there is one left.
    fn spend(&mut self, now: Instant) -> bool {
        let refilled = *self.refilled.get_or_insert(now);
        let earned = (now.duration_since(refilled).as_secs() / REFILL.as_secs()) as u32;
        self.refilled = Some(refilled + REFILL * earned);
        self.spent = self.spent.saturating_sub(earned);
        let is_left = self.spent < BURST_MAX;
        self.spent += u32::from(is_left);
        is_left
    }

    /// Returns the number of attempts to report now, if there is a line for that; `None`: later.
    fn say_the_rest(&mut self, now: Instant) -> Option<u64> {
        if self.unsaid == 0 { Some(0) } else { self.spend(now).then(|| std::mem::take(&mut self.unsaid)) }
    }
}

const KINDS: usize = SecurityEvent::ALL.len();

static WINDOWS: Mutex<[Window; KINDS]> =
    Mutex::new([Window { began: None, lines: 0, unsaid: 0, spent: 0, refilled: None }; KINDS]);

fn with_window<T>(event: SecurityEvent, call: impl FnOnce(&mut Window) -> T) -> T {
    // Numbers are right whatever has panicked elsewhere.
    let mut windows = WINDOWS.lock().unwrap_or_else(PoisonError::into_inner);
    call(&mut windows[event as usize])
}

static COUNTERS: LazyLock<Family<1, Counter>> = LazyLock::new(|| {
    register("atoll_security_events", "Refused attempts of strangers, by kind", Family::default())
});

fn counter(event: SecurityEvent) -> Counter {
    COUNTERS.get_or_create_owned(&[("event", event.name().to_owned())])
}

/// Makes the counters of all kinds known before there is an attempt: a first one is then seen as a change.
pub fn register_metrics() {
    SecurityEvent::ALL.into_iter().for_each(|event| drop(counter(event)));
}

/// Notes an attempt of a peer. `detail` must not contain the tried secret.
pub fn note(event: SecurityEvent, peer: impl Display, detail: impl Display) {
    counter(event).inc();
    match with_window(event, |window| window.note(Instant::now())) {
        Said::Line { more: 0 } => tracing::warn!(target: "security", "{}: {peer}: {detail}", event.name()),
        Said::Line { more } => tracing::warn!(target: "security", more, "{}: {peer}: {detail}", event.name()),
        Said::Nothing { is_first: true } => say_the_rest_later(event),
        Said::Nothing { is_first: false } => {}
    }
}

/// Reports after the window the number of attempts without a line. A thread of its own does, since processes have
/// no tick in common, and there is one only while attempts are many.
fn say_the_rest_later(event: SecurityEvent) {
    let say = move || {
        let more = loop {
            std::thread::sleep(WINDOW);
            if let Some(more) = with_window(event, |window| window.say_the_rest(Instant::now())) {
                break more;
            }
        };
        if more > 0 {
            // The line itself tells of one.
            tracing::warn!(target: "security", more = more - 1, "{}: many peers: further attempts", event.name());
        }
    };
    let thread = std::thread::Builder::new().name("security-log".into()).spawn(say);
    if let Err(error) = thread {
        tracing::debug!("attempts of strangers are counted, and not said: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_few_and_no_attempt_is_forgotten() {
        let (mut window, begun) = (Window::default(), Instant::now());
        let (mut lines, mut told) = (0, 0);
        for attempt in 0..1_000_u32 {
            if let Said::Line { more } = window.note(begun + Duration::from_millis(u64::from(attempt) * 20)) {
                lines += 1;
                told += 1 + more;
            }
        }
        assert_eq!(lines, 16, "four windows of four lines");
        assert_eq!(told + window.unsaid, 1_000);
    }

    #[test]
    fn attempts_over_days_do_not_fill_a_log() {
        let (mut window, begun) = (Window::default(), Instant::now());
        let (mut lines, mut told) = (0, 0);
        for second in 0..u64::from(24 * 3_600_u32) {
            if let Said::Line { more } = window.note(begun + Duration::from_secs(second)) {
                lines += 1;
                told += 1 + more;
            }
        }
        let in_a_day = 24 * 3_600 / REFILL.as_secs() + u64::from(BURST_MAX);
        assert!((in_a_day - 10..=in_a_day).contains(&lines), "{lines} lines");
        assert_eq!(told + window.unsaid, 24 * 3_600, "the others are counted");
        let (unsaid, later) = (window.unsaid, begun + Duration::from_secs(25 * 3_600));
        assert_eq!(window.say_the_rest(later), Some(unsaid), "the last ones are told of when it is over");
    }

    #[test]
    fn only_the_first_that_is_not_said_begins_a_thread() {
        let (mut window, begun) = (Window::default(), Instant::now());
        (0..LINES_MAX).for_each(|_| assert_eq!(window.note(begun), Said::Line { more: 0 }));
        assert_eq!(window.note(begun), Said::Nothing { is_first: true });
        assert_eq!(window.note(begun), Said::Nothing { is_first: false });
    }
}
