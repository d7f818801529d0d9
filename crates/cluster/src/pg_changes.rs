//! Changes of PGs that count, where the cluster wants them signed: those by a member, and those by a host that decides. Any
//! other writer of cluster state changes nothing for the processes of the cluster.
//!
//! A process takes the oldest records that cluster state remembers as they are. From there on it judges each change. A
//! change is signed for the revision that it replaces, so no older record can be put back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use atoll_types::PgId;
use atoll_types::record_json::read_record;
use atoll_types::records::{AuthorizedKeyRecord, PeerRole, PgRecord};

use crate::client::proposals::Proposal;
use crate::keys;
use crate::map::ClusterMap;

/// Time after which a refused change counts all the same. Members put their PG's record back at once. So all members are
/// gone, or this process alone does not know them.
const STANDS_MAX: Duration = Duration::from_secs(600);

/// A PG's record or its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Record(PgId),
    Target(PgId),
}

impl Subject {
    /// Returns the subject of a key in cluster state, if it is one.
    pub fn of(key: &str) -> Option<Subject> {
        keys::parse_pg(key).map(Subject::Record).or_else(|| keys::parse_pg_target(key).map(Subject::Target))
    }

    pub fn pg(self) -> PgId {
        match self {
            Subject::Record(pg) | Subject::Target(pg) => pg,
        }
    }

    fn key(self) -> String {
        match self {
            Subject::Record(pg) => keys::pg(pg),
            Subject::Target(pg) => keys::pg_target(pg),
        }
    }
}

/// A change that was refused, and stands in cluster state.
#[derive(Debug)]
struct Refused {
    /// The value; `None` if the key is gone.
    value: Option<Vec<u8>>,
    /// The revision of the value.
    revision: i64,
    /// The revision that it has replaced.
    replaced: i64,
    since: Instant,
}

/// A value and its revision, or `None` if the key is gone, which now count for a key.
pub(crate) type Counting = (String, Option<(Vec<u8>, i64)>);

/// The refused changes that stand.
#[derive(Debug, Default)]
pub(crate) struct PgChanges {
    refused: BTreeMap<Subject, Refused>,
}

impl PgChanges {
    /// Judges a change; an error is why it is refused.
    pub fn judge(
        &mut self,
        map: &ClusterMap,
        subject: Subject,
        value: Option<&[u8]>,
        revision: i64,
    ) -> Result<(), String> {
        let replaced = match (subject, self.refused.get(&subject)) {
            (_, Some(refused)) => refused.revision,
            (Subject::Record(pg), None) => map.pgs.get(&pg).map_or(0, |(_, revision)| *revision),
            (Subject::Target(_), None) => 0,
        };
        let judged = check(map, subject, value, replaced);
        match &judged {
            Ok(()) => drop(self.refused.remove(&subject)),
            Err(_) => {
                let revision = if value.is_some() { revision } else { 0 };
                let value = value.map(<[u8]>::to_vec);
                self.refused.insert(subject, Refused { value, revision, replaced, since: Instant::now() });
            }
        }
        judged
    }

    /// All that is there was read again, and counts as it is.
    pub fn clear(&mut self) {
        self.refused.clear();
    }

    /// Returns the changes that count by the keys and settings that are known now.
    pub fn counting_now(&mut self, map: &ClusterMap) -> Vec<Counting> {
        self.take(|subject, refused| check(map, subject, refused.value.as_deref(), refused.replaced).is_ok())
    }

    /// Returns the changes that have stood for so long that they count.
    pub fn adopted(&mut self, now: Instant) -> Vec<Counting> {
        self.take(|_, refused| now.saturating_duration_since(refused.since) >= STANDS_MAX)
    }

    /// Time when the next refused change counts.
    pub fn next_adoption(&self) -> Option<Instant> {
        self.refused.values().map(|refused| refused.since + STANDS_MAX).min()
    }

    fn take(&mut self, is_wanted: impl Fn(Subject, &Refused) -> bool) -> Vec<Counting> {
        let wanted = self.refused.extract_if(.., |subject, refused| is_wanted(*subject, refused));
        let counting = |(subject, refused): (Subject, Refused)| {
            (subject.key(), refused.value.map(|value| (value, refused.revision)))
        };
        wanted.map(counting).collect()
    }
}

/// Returns why a change that replaces the one of a revision does not count.
fn check(map: &ClusterMap, subject: Subject, value: Option<&[u8]>, replaced: i64) -> Result<(), String> {
    if !map.settings.pg_signatures_required {
        return Ok(());
    }
    let Some(value) = value else { return check_removal(map, subject) };
    let proposal = Proposal::of(value).ok_or("it has no signature of its proposer")?;
    if !proposal.is_signed(&subject.key()) {
        return Err("its signature is not of this content under this name".into());
    }
    let proposer = map.authorized_keys.get(&proposal.public_key);
    let proposer = proposer.ok_or("this cluster does not have the key that has signed it")?;
    if !is_member(map, subject.pg(), proposer) && !decides(proposer) {
        return Err(format!("{} has signed it, which is no member of the PG", proposer.name));
    }
    let Subject::Record(pg) = subject else { return Ok(()) };
    if proposal.replaced != replaced {
        return Err("its signature is for a change of another state: it was put back".into());
    }
    let record: PgRecord = read_record(&proposal.record).map_err(|error| error.to_string())?;
    match map.pgs.get(&pg) {
        Some((before, _)) if record.epoch < before.epoch => {
            Err(format!("it goes back from epoch {} to epoch {}", before.epoch, record.epoch))
        }
        _ => Ok(()),
    }
}

/// A record goes with its pool. Without a target the CRUSH tree decides.
fn check_removal(map: &ClusterMap, subject: Subject) -> Result<(), String> {
    match subject {
        Subject::Record(pg) if map.pools.contains_key(&pg.pool) && map.pgs.contains_key(&pg) => {
            Err("it was removed by hand: its pool is there".into())
        }
        Subject::Record(_) | Subject::Target(_) => Ok(()),
    }
}

/// Those who propose are members, or were when the PG was last active. Members split others off.
fn is_member(map: &ClusterMap, pg: PgId, proposer: &AuthorizedKeyRecord) -> bool {
    let (PeerRole::Osd, Some(osd)) = (proposer.role, proposer.osd) else { return false };
    let is_in = |record: &PgRecord| record.members.contains(&osd) || record.last_active_members.contains(&osd);
    match map.pgs.get(&pg) {
        Some((record, _)) => is_in(record),
        None => {
            let is_split_off = map.pools.get(&pg.pool).is_some_and(|pool| pg.index >= pool.pg_num_first());
            let parent = split_from(pg).filter(|_| is_split_off).and_then(|parent| map.pgs.get(&parent));
            parent.is_some_and(|(record, _)| is_in(record))
        }
    }
}

/// Hosts with the key service decide for the cluster: by commands of operators, and as coordinators. Both have the key of
/// their host's clients, which no host with OSDs only has.
fn decides(proposer: &AuthorizedKeyRecord) -> bool {
    proposer.role == PeerRole::Client
}

/// The PG that one is split off from.
pub(crate) fn split_from(pg: PgId) -> Option<PgId> {
    Some(PgId { index: pg.index - (1 << pg.index.checked_ilog2()?), ..pg })
}

#[cfg(test)]
mod tests;
