//! Which copies of an object are good, by the findings of all members.

use std::collections::BTreeMap;

use atoll_types::{OsdId, Version};
use atoll_wire::ScrubFinding;

/// The result of a comparison of all copies.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Members with a good copy. Empty if it is not clear which copies are good.
    pub good: Vec<OsdId>,
    /// All other members.
    pub bad: Vec<OsdId>,
}

/// The state of an object by one copy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    Absent,
    Present { version: Version, size_bytes: u64, digest: u64 },
}

fn state_of(finding: &ScrubFinding) -> Option<State> {
    match finding {
        ScrubFinding::Absent => Some(State::Absent),
        ScrubFinding::Present { version, size_bytes, digest, .. } => {
            Some(State::Present { version: *version, size_bytes: *size_bytes, digest: *digest })
        }
        ScrubFinding::Unreadable | ScrubFinding::Busy => None,
    }
}

fn is_healthy(finding: &ScrubFinding) -> bool {
    match finding {
        ScrubFinding::Absent => true,
        ScrubFinding::Present { bad_block_count, .. } => *bad_block_count == 0,
        ScrubFinding::Unreadable | ScrubFinding::Busy => false,
    }
}

/// The right state is that of most copies whose metadata can be read, those with damaged blocks
/// included; without such a majority, the primary's if its copy is healthy. Good are the healthy
/// copies with that state.
///
/// That an object is absent is not taken from one copy: a device that forgets may say so, and the good copy would
/// be removed. It is right only if most of all members say it.
pub(super) fn judge(findings: &BTreeMap<OsdId, ScrubFinding>, primary: OsdId) -> Verdict {
    let mut votes: BTreeMap<State, usize> = BTreeMap::new();
    for state in findings.values().filter_map(state_of) {
        *votes.entry(state).or_default() += 1;
    }
    let cast: usize = votes.values().sum();
    let of_votes = |state: &State| if *state == State::Absent { findings.len() } else { cast };
    let majority = votes.iter().find(|(state, count)| **count * 2 > of_votes(state)).map(|(state, _)| *state);
    let of_primary = findings.get(&primary).filter(|finding| is_healthy(finding)).and_then(state_of);
    let of_primary = of_primary.filter(|state| *state != State::Absent);
    let right = majority.or(of_primary);
    let is_good = |finding: &ScrubFinding| right.is_some() && state_of(finding) == right && is_healthy(finding);
    let members = findings.iter();
    let (good, bad): (Vec<_>, Vec<_>) = members.partition(|(_, finding)| is_good(finding));
    let names = |members: Vec<(&OsdId, &ScrubFinding)>| members.into_iter().map(|(osd, _)| *osd).collect();
    Verdict { good: names(good), bad: names(bad) }
}

/// The findings in words, for warnings.
pub(super) fn describe(findings: &BTreeMap<OsdId, ScrubFinding>) -> String {
    let describe = |(osd, finding): (&OsdId, &ScrubFinding)| match finding {
        ScrubFinding::Absent => format!("{osd} has none"),
        ScrubFinding::Unreadable => format!("{osd} cannot read its metadata"),
        ScrubFinding::Busy => format!("{osd} is busy"),
        ScrubFinding::Present { version, size_bytes, digest, bad_block_count, .. } => {
            let damage = match bad_block_count {
                0 => String::new(),
                count => format!(", {count} damaged blocks"),
            };
            format!("{osd} has version {version}, {size_bytes} bytes, digest {digest:016x}{damage}")
        }
    };
    findings.iter().map(describe).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ScrubFinding::{Absent, Unreadable};
    use atoll_types::Epoch;

    fn copy(sequence: u64, bad_block_count: u32) -> ScrubFinding {
        let version = Version { epoch: Epoch(1), sequence };
        ScrubFinding::Present { version, size_bytes: 4096, digest: sequence, bad_block_count, shard_of: None }
    }

    /// The good copies, if the first member is the primary.
    fn good(findings: &[ScrubFinding]) -> Vec<u32> {
        let findings = (1..).map(OsdId).zip(findings.iter().cloned()).collect();
        let verdict = judge(&findings, OsdId(1));
        assert_eq!(verdict.good.len() + verdict.bad.len(), findings.len());
        verdict.good.iter().map(|osd| osd.0).collect()
    }

    #[test]
    fn most_copies_are_right() {
        assert_eq!(good(&[copy(5, 0), copy(5, 0), copy(5, 0)]), [1, 2, 3]);
        assert_eq!(good(&[copy(4, 0), copy(5, 0), copy(5, 0)]), [2, 3]);
        assert_eq!(good(&[copy(5, 0), Absent, Absent]), [2, 3]);
        assert_eq!(good(&[Unreadable, copy(5, 0), copy(5, 0)]), [2, 3]);
    }

    #[test]
    fn without_a_majority_the_primary_is_right_if_it_is_healthy() {
        assert_eq!(good(&[copy(5, 0), copy(4, 0)]), [1]);
        assert_eq!(good(&[copy(5, 0), copy(4, 0), Absent]), [1]);
        assert_eq!(good(&[copy(5, 1), copy(4, 0)]), [0u32; 0]);
        assert_eq!(good(&[Unreadable, copy(4, 0)]), [2]);
    }

    #[test]
    fn one_absent_copy_removes_no_other() {
        assert_eq!(good(&[Absent, copy(5, 0)]), [0u32; 0]);
        assert_eq!(good(&[copy(5, 0), Absent]), [1]);
        assert_eq!(good(&[Absent, copy(5, 0), Unreadable]), [0u32; 0]);
        assert_eq!(good(&[Absent, copy(5, 0), copy(4, 0)]), [0u32; 0]);
        assert_eq!(good(&[Absent, Unreadable, Unreadable]), [0u32; 0]);
        assert_eq!(good(&[Absent, Absent]), [1, 2]);
        assert_eq!(good(&[Absent, Absent, copy(5, 0)]), [1, 2]);
    }

    #[test]
    fn a_copy_with_damaged_blocks_says_what_is_right_and_is_not_good() {
        assert_eq!(good(&[copy(5, 1), copy(5, 0)]), [2]);
        assert_eq!(good(&[copy(4, 0), copy(5, 1), copy(5, 0)]), [3]);
        assert_eq!(good(&[copy(5, 1), copy(5, 2), copy(5, 1)]), [0u32; 0]);
        assert_eq!(good(&[Unreadable, Unreadable]), [0u32; 0]);
    }
}
