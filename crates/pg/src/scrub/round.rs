//! One object on its way through a scrub, step by step.

use std::collections::BTreeMap;

use atoll_types::{OsdId, Transaction};
use atoll_wire::ScrubFinding;

use crate::actions::Token;

/// Writes wait no longer than this for the examination of their object.
const HOLD_MAX_MS: u64 = 500;
/// If an object has been written without a pause for this long, new writes wait.
const PAUSE_PATIENCE_MS: u64 = 2_000;

/// An object on its way through the scrub.
pub(super) struct Round {
    pub(super) step: Step,
    /// Which of the objects under way it is: good copies of them are staged under different names.
    pub(super) place: usize,
    pub(super) examinations: u32,
    pub(super) repairs: u32,
    pub(super) has_error: bool,
}

pub(super) enum Step {
    /// Waits until no write is in flight.
    Waiting { since_ms: u64 },
    /// All members examine their copies.
    Examining { tag: u64, since_ms: u64, findings: BTreeMap<OsdId, ScrubFinding>, is_spoiled: bool },
    /// The primary's good copy is read, for the members with bad ones.
    Reading { token: Token, bad: Vec<OsdId> },
    /// It is sent to these members, each with the number of parts that it has yet to acknowledge; and the later
    /// transactions.
    Sending { tag: u64, parts_left: BTreeMap<OsdId, usize>, then: Vec<Transaction> },
    /// The primary gets a good copy.
    Fetching { tag: u64, from: OsdId, parts: Vec<Transaction> },
    /// Shards are read, to rebuild one or to verify parity.
    Computing { tag: u64 },
    /// The primary's store writes the good copy; and the later transactions.
    Rewriting { tag: u64, then: Vec<Transaction> },
}

impl Step {
    pub(super) fn tag(&self) -> Option<u64> {
        match self {
            Step::Waiting { .. } => None,
            Step::Reading { token, .. } => Some(token.0),
            Step::Examining { tag, .. }
            | Step::Sending { tag, .. }
            | Step::Fetching { tag, .. }
            | Step::Computing { tag }
            | Step::Rewriting { tag, .. } => Some(*tag),
        }
    }
}

impl Round {
    pub(super) fn new(place: usize, now_ms: u64) -> Self {
        Round { step: Step::Waiting { since_ms: now_ms }, place, examinations: 0, repairs: 0, has_error: false }
    }

    pub(super) fn holds_writes(&self, now_ms: u64) -> bool {
        match &self.step {
            Step::Waiting { since_ms } => now_ms >= since_ms + PAUSE_PATIENCE_MS,
            Step::Examining { since_ms, .. } => now_ms < since_ms + HOLD_MAX_MS,
            Step::Reading { .. } | Step::Fetching { .. } | Step::Computing { .. } | Step::Rewriting { .. } => true,
            // Later writes follow on the same connection, behind the last part.
            Step::Sending { then, .. } => !then.is_empty(),
        }
    }
}
