//! Events that follow from the changes between two rounds. Pure functions.

use std::collections::{BTreeMap, BTreeSet};

use atoll_types::coordination::CoordinatorNotesRecord;
use atoll_types::events::{EventKind, EventRecord, Severity};
use atoll_types::{OsdId, PgId};

use crate::health::{Health, Problem};

/// Subjects of one event; the summary has their number.
const SUBJECTS_MAX: usize = 16;

/// When events are noted.
pub(crate) struct Noting {
    pub unix_ms: u64,
}

impl Noting {
    /// Returns an event without an author.
    pub fn event(&self, kind: EventKind, code: &str, severity: Severity, summary: String) -> EventRecord {
        EventRecord::new(self.unix_ms, kind, code, severity, summary)
    }

    /// An event of one OSD.
    pub fn of_osd(&self, osd: OsdId, code: &str, severity: Severity, what: &str) -> EventRecord {
        let event = self.event(EventKind::Osd, code, severity, format!("{osd} {what}"));
        EventRecord { subjects: vec![osd.to_string()], ..event }
    }

    /// OSDs that went down or came back, and problems that have begun or ended, between two states of the notes.
    pub fn changes(
        &self,
        before: &CoordinatorNotesRecord,
        after: &CoordinatorNotesRecord,
        health: &Health,
    ) -> Vec<EventRecord> {
        let down = after.down_since_unix_ms.keys().filter(|osd| !before.down_since_unix_ms.contains_key(osd));
        let down = down.map(|osd| self.of_osd(*osd, "OSD_DOWN", Severity::Warning, "is down"));
        let back = before.down_since_unix_ms.iter().filter(|(osd, _)| !after.down_since_unix_ms.contains_key(osd));
        let back = back.map(|(osd, since)| {
            let what = format!("is up again, or removed, after {}", self.time_since(*since));
            self.of_osd(*osd, "OSD_UP", Severity::Note, &what)
        });
        let begun =
            health.problems.iter().filter(|problem| !before.problem_since_unix_ms.contains_key(problem.code));
        let begun = begun.map(|problem| self.begun(problem, after));
        let ended = before.problem_since_unix_ms.iter();
        let ended = ended.filter(|(code, _)| !after.problem_since_unix_ms.contains_key(*code));
        let ended = ended.map(|(code, since)| {
            let summary = format!("{code} is over, after {}", self.time_since(*since));
            self.event(EventKind::Health, &format!("{code}_OVER"), Severity::Note, summary)
        });
        down.chain(back).chain(begun).chain(ended).collect()
    }

    fn begun(&self, problem: &Problem, notes: &CoordinatorNotesRecord) -> EventRecord {
        EventRecord {
            subjects: first(problem.subjects.iter().cloned()),
            cause: problem.code.starts_with("PG_").then(|| cause_of_pgs(notes)).flatten(),
            ..self.event(EventKind::Health, problem.code, problem.severity, problem.summary.clone())
        }
    }

    /// PGs that have got another primary.
    pub fn failover(
        &self,
        before: &BTreeMap<PgId, OsdId>,
        now: &BTreeMap<PgId, OsdId>,
        up: &BTreeSet<OsdId>,
    ) -> Option<EventRecord> {
        let moved: Vec<(&PgId, &OsdId)> =
            before.iter().filter(|(pg, primary)| now.get(*pg).is_some_and(|now| now != *primary)).collect();
        if moved.is_empty() {
            return None;
        }
        let from: BTreeSet<OsdId> = moved.iter().map(|(_, primary)| **primary).collect();
        let lost: Vec<String> = from.difference(up).map(ToString::to_string).collect();
        let cause = match lost.is_empty() {
            true => "the members that they should have have changed, or an OSD is back".to_owned(),
            false => format!("{} down", list_is(&lost)),
        };
        let severity = if lost.is_empty() { Severity::Note } else { Severity::Warning };
        let summary = match moved.len() {
            1 => "1 PG has another primary".to_owned(),
            count => format!("{count} PGs have other primaries"),
        };
        Some(EventRecord {
            subjects: first(moved.iter().map(|(pg, _)| pg.to_string())),
            cause: Some(cause),
            ..self.event(EventKind::Failover, "PG_FAILOVER", severity, summary)
        })
    }

    fn time_since(&self, unix_ms: u64) -> String {
        format!("{} s", self.unix_ms.saturating_sub(unix_ms).div_ceil(1_000))
    }
}

fn first(subjects: impl Iterator<Item = String>) -> Vec<String> {
    subjects.take(SUBJECTS_MAX).collect()
}

/// Why PGs are not as they should be, if OSDs are down.
fn cause_of_pgs(notes: &CoordinatorNotesRecord) -> Option<String> {
    let down: Vec<String> = notes.down_since_unix_ms.keys().map(ToString::to_string).collect();
    (!down.is_empty()).then(|| format!("{} down", list_is(&down)))
}

fn list_is(names: &[String]) -> String {
    format!("{} {}", names.join(", "), if names.len() == 1 { "is" } else { "are" })
}

#[cfg(test)]
mod tests {
    use atoll_types::records::RECORD_FORMAT;

    use super::*;
    use crate::health::HealthStatus;
    use atoll_types::PoolId;

    fn noting() -> Noting {
        Noting { unix_ms: 10_000 }
    }

    fn notes(down: &[(u32, u64)], problems: &[(&str, u64)]) -> CoordinatorNotesRecord {
        CoordinatorNotesRecord {
            format: RECORD_FORMAT,
            down_since_unix_ms: down.iter().map(|(osd, since)| (OsdId(*osd), *since)).collect(),
            problem_since_unix_ms: problems.iter().map(|(code, since)| ((*code).to_owned(), *since)).collect(),
            ..CoordinatorNotesRecord::default()
        }
    }

    fn degraded() -> Health {
        let problem = Problem {
            code: "PG_DEGRADED",
            severity: Severity::Warning,
            summary: "3 PGs have a copy less".into(),
            subjects: (0..40).map(|index| format!("1.{index}")).collect(),
            action: String::new(),
            since_unix_ms: None,
        };
        Health { status: HealthStatus::Warning, problems: vec![problem] }
    }

    #[test]
    fn what_begins_and_ends_is_told_once() {
        let well = Health { status: HealthStatus::Ok, problems: Vec::new() };
        let (quiet, ill) = (notes(&[], &[]), notes(&[(2, 9_000)], &[("PG_DEGRADED", 9_500)]));
        let begun = noting().changes(&quiet, &ill, &degraded());
        let told: Vec<_> = begun.iter().map(|event| (&event.summary[..], event.cause.as_deref())).collect();
        let expected = [("osd.2 is down", None), ("3 PGs have a copy less", Some("osd.2 is down"))];
        assert_eq!(told, expected);
        assert_eq!(begun[1].subjects.len(), SUBJECTS_MAX);
        assert_eq!(noting().changes(&ill, &ill, &degraded()), []);
        let ended = noting().changes(&ill, &quiet, &well);
        let told: Vec<_> = ended.iter().map(|event| &event.summary[..]).collect();
        assert_eq!(told, ["osd.2 is up again, or removed, after 1 s", "PG_DEGRADED is over, after 1 s"]);
    }

    #[test]
    fn a_failover_names_its_cause() {
        let pg = |index| PgId { pool: PoolId(1), index };
        let before = BTreeMap::from([(pg(0), OsdId(0)), (pg(1), OsdId(1)), (pg(2), OsdId(2))]);
        let now = BTreeMap::from([(pg(0), OsdId(1)), (pg(1), OsdId(1))]);
        let up = BTreeSet::from([OsdId(1), OsdId(2)]);
        let event = noting().failover(&before, &now, &up).expect("a PG has moved");
        assert_eq!(event.summary, "1 PG has another primary");
        assert_eq!((event.subjects, event.cause.as_deref()), (vec!["1.0".to_owned()], Some("osd.0 is down")));
        assert_eq!(noting().failover(&now, &now, &up), None);
    }
}
