//! One round of the coordinator: read, decide, and change by compare-and-swap.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use atoll_cluster::{ClusterClient, ClusterError, ClusterMap, MapChange, RefusedChange, Transaction, keys};
use atoll_placement::balance;
use atoll_types::coordination::{AutoOutRecord, ClockRecord, CoordinatorNotesRecord};
use atoll_types::events::{EventRecord, Severity};
use atoll_types::records::{ClusterFlag, OsdRecord, PgTargetRecord, RECORD_FORMAT};
use atoll_types::{OsdId, PgId};

use crate::events::Noting;
use crate::membership::{MembershipChange, membership_changes, track_down};
use crate::pgs::{is_settled, missing_pgs};
use crate::presence::{Presence, track_failures};
use crate::upkeep::Compaction;
use crate::{View, health, invariants, refused_changes, unix_ms};

/// Changes in one transaction; etcd takes 128 by default.
const BATCH: usize = 32;
/// Events that are kept.
const EVENTS_KEPT: usize = 2_000;
/// How often those that are too many are removed.
const TRIM_PAUSE: Duration = Duration::from_secs(300);
/// Interval of the writes of the current time.
const TIME_PAUSE: Duration = Duration::from_secs(10);
/// Share of all copies that move in one step of the balancer; the next waits until they have.
const MOVES_PERCENT_MAX: usize = 5;

pub(crate) struct Rounds {
    client: ClusterClient,
    balanced: Option<Instant>,
    trimmed: Option<Instant>,
    compaction: Compaction,
    /// Time of the last write of the current time.
    told_time: Option<Instant>,
    /// As of the last round; none before the first.
    primaries: Option<BTreeMap<PgId, OsdId>>,
    started: Instant,
    presence: Presence,
    /// Refused changes of PGs that are in no notes yet.
    refused: Vec<RefusedChange>,
}

impl Rounds {
    pub fn new(client: ClusterClient) -> Self {
        Rounds {
            client,
            balanced: None,
            trimmed: None,
            compaction: Compaction::default(),
            told_time: None,
            primaries: None,
            started: Instant::now(),
            presence: Presence::default(),
            refused: Vec::new(),
        }
    }

    /// Notes refused changes of PGs.
    pub fn note_refused(&mut self, changes: Vec<MapChange>) {
        let refused = changes.into_iter().filter_map(|change| match change {
            MapChange::Refused(refused) => Some(refused),
            _ => None,
        });
        self.refused.extend(refused);
    }

    pub async fn round(&mut self, map: &ClusterMap) -> Result<(), ClusterError> {
        let mut view = View::read_around(&self.client, map.clone()).await?;
        let noting = Noting { unix_ms: unix_ms() };
        let failed = self.presence.look(map, self.started.elapsed().as_millis() as u64);
        self.keep_notes(&mut view, &failed, &noting).await?;
        self.put_targets_back(map).await?;
        self.note_failover(map, &noting).await?;
        self.tell_time().await?;
        self.trim_events().await?;
        self.compact(&view).await;
        for change in membership_changes(&view, &self.presence) {
            self.change_membership(change, &noting).await?;
        }
        self.make_pgs(map).await?;
        let is_due =
            self.balanced.is_none_or(|last| last.elapsed() >= Duration::from_secs(view.settings.balance_seconds));
        if is_due && !map.flags.flags.contains_key(&ClusterFlag::NoRebalance) && is_settled(map) {
            self.balanced = Some(Instant::now());
            self.balance(map).await?;
        }
        Ok(())
    }

    /// Puts targets back after changes that were refused.
    async fn put_targets_back(&self, map: &ClusterMap) -> Result<(), ClusterError> {
        for (key, revision) in &map.refused {
            let Some(pg) = keys::parse_pg_target(key) else { continue };
            let transaction = Transaction::new().check(key, *revision);
            let transaction = match map.pg_targets.get(&pg) {
                Some(record) => transaction.put(key, record)?,
                None => transaction.delete(key),
            };
            tracing::warn!("pg {pg}: puts its target back, which another process has changed");
            match self.client.transact(&transaction).await {
                // It was changed once more.
                Ok(_) | Err(ClusterError::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn keep_notes(
        &mut self,
        view: &mut View,
        failed: &BTreeSet<OsdId>,
        noting: &Noting,
    ) -> Result<(), ClusterError> {
        let now_unix_ms = noting.unix_ms;
        let health = health::evaluate(view, now_unix_ms);
        let notes = CoordinatorNotesRecord {
            format: RECORD_FORMAT,
            down_since_unix_ms: track_down(&view.map, &view.notes.down_since_unix_ms, now_unix_ms),
            problem_since_unix_ms: health::since(&health, now_unix_ms),
            failures_unix_ms: track_failures(&view.map, &view.notes.failures_unix_ms, failed, now_unix_ms),
            refused_changes: refused_changes::note(
                view.notes.refused_changes.as_ref(),
                &self.refused,
                now_unix_ms,
            ),
        };
        if notes != view.notes {
            let with_notes = Transaction::new()
                .check(keys::COORDINATOR_NOTES, view.notes_revision)
                .put(keys::COORDINATOR_NOTES, &notes)?;
            let events = noting.changes(&view.notes, &notes, &health);
            // Events come with or after the notes, so that each change is told once.
            let (first, rest) = events.split_at(events.len().min(BATCH));
            self.client.transact(&with_events(with_notes, first)?).await?;
            for batch in rest.chunks(BATCH) {
                self.client.transact(&with_events(Transaction::new(), batch)?).await?;
            }
            view.notes = notes;
        }
        self.refused.clear();
        Ok(())
    }

    async fn note_failover(&mut self, map: &ClusterMap, noting: &Noting) -> Result<(), ClusterError> {
        let now: BTreeMap<PgId, OsdId> = map.pgs.iter().map(|(pg, (record, _))| (*pg, record.primary)).collect();
        let up = map.up.keys().copied().collect();
        let event = self.primaries.as_ref().and_then(|before| noting.failover(before, &now, &up));
        self.primaries = Some(now);
        match event {
            Some(event) => self.client.put(&keys::new_event(event.unix_ms), &event).await.map(drop),
            None => Ok(()),
        }
    }

    /// Writes the current time: processes whose clocks are far from it do not act by their own.
    async fn tell_time(&mut self) -> Result<(), ClusterError> {
        if self.told_time.is_some_and(|last| last.elapsed() < TIME_PAUSE) {
            return Ok(());
        }
        let clock = ClockRecord { format: RECORD_FORMAT, unix_ms: unix_ms() };
        self.client.put(keys::CLOCK, &clock).await?;
        self.told_time = Some(Instant::now());
        Ok(())
    }

    /// Compacts the history of cluster state.
    async fn compact(&mut self, view: &View) {
        let revision = view.state_size.map(|size| size.revision);
        let Some(revision) = revision.and_then(|newest| self.compaction.due(Instant::now(), newest)) else {
            return;
        };
        match self.client.compact(revision).await {
            Ok(()) => tracing::debug!("compacted cluster state to revision {revision}"),
            // An etcd may compact itself; health says when it has too much.
            Err(error) => tracing::warn!("cannot compact cluster state: {error}"),
        }
    }

    /// Removes the oldest events when there are too many.
    async fn trim_events(&mut self) -> Result<(), ClusterError> {
        if self.trimmed.is_some_and(|last| last.elapsed() < TRIM_PAUSE) {
            return Ok(());
        }
        self.trimmed = Some(Instant::now());
        let events = self.client.list_raw(keys::EVENTS).await?.entries;
        let surplus = events.len().saturating_sub(EVENTS_KEPT);
        for batch in events[..surplus].chunks(BATCH) {
            let delete = |transaction: Transaction, (key, ..): &(String, Vec<u8>, i64)| transaction.delete(key);
            self.client.transact(&batch.iter().fold(Transaction::new(), delete)).await?;
        }
        Ok(())
    }

    /// Makes a change, unless an operator or another coordinator has changed the OSD meanwhile.
    pub async fn change_membership(&self, change: MembershipChange, noting: &Noting) -> Result<(), ClusterError> {
        let now_unix_ms = noting.unix_ms;
        let (id, is_out) = match change {
            MembershipChange::Out(id) => (id, true),
            MembershipChange::In(id) => (id, false),
        };
        let Some((record, revision)) = self.client.get::<OsdRecord>(&keys::osd(id)).await? else { return Ok(()) };
        let mark = self.client.get::<AutoOutRecord>(&keys::auto_out(id)).await?;
        if record.is_out == is_out || mark.is_some() == is_out {
            return Ok(());
        }
        let mark_key = keys::auto_out(id);
        let transaction = Transaction::new()
            .check(&keys::osd(id), revision)
            .check(&mark_key, mark.map_or(0, |(_, revision)| revision))
            .put(&keys::osd(id), &OsdRecord { is_out, ..record })?;
        let transaction = if is_out {
            transaction.put(&mark_key, &AutoOutRecord { format: RECORD_FORMAT, since_unix_ms: now_unix_ms })?
        } else {
            transaction.delete(&mark_key)
        };
        let event = match change {
            MembershipChange::Out(_) => {
                noting.of_osd(id, "OSD_OUT", Severity::Warning, "was down for too long and is marked out")
            }
            MembershipChange::In(_) => noting.of_osd(id, "OSD_IN", Severity::Note, "is back and marked in"),
        };
        self.client.transact(&transaction.put(&keys::new_event(event.unix_ms), &event)?).await?;
        match change {
            MembershipChange::Out(_) => tracing::warn!("{id} was down for too long and is marked out"),
            MembershipChange::In(_) => tracing::info!("{id} is back and marked in"),
        }
        Ok(())
    }

    async fn make_pgs(&self, map: &ClusterMap) -> Result<(), ClusterError> {
        let missing = missing_pgs(map);
        for batch in missing.chunk_by(|(one, _), (other, _)| one.pool == other.pool) {
            // Only while the pool is there: it may be removed at this moment.
            let pool_key = keys::pool(batch[0].0.pool);
            let Some((_, revision)) = self.client.get::<serde::de::IgnoredAny>(&pool_key).await? else { continue };
            for batch in batch.chunks(BATCH) {
                invariants::batch_is_bounded(batch.len(), BATCH);
                let mut transaction = Transaction::new().check(&pool_key, revision);
                for (pg, record) in batch {
                    invariants::pg_has_no_record(map, *pg);
                    invariants::first_record_is_fresh(record);
                    let key = keys::pg(*pg);
                    // What stands there was refused.
                    let replaced = map.refused.get(&key).copied().unwrap_or(0);
                    transaction = transaction.check(&key, replaced).put(&key, record)?;
                }
                self.client.transact(&transaction).await?;
            }
            tracing::info!("made {} PGs of pool {}", batch.len(), batch[0].0.pool);
        }
        Ok(())
    }

    async fn balance(&self, map: &ClusterMap) -> Result<(), ClusterError> {
        let listing = self.client.list::<PgTargetRecord>(keys::PG_TARGETS).await?;
        let entries = listing.entries.into_iter();
        let entries: BTreeMap<PgId, (PgTargetRecord, i64)> = entries
            .filter_map(|(key, record, revision)| Some((keys::parse_pg_target(&key)?, (record, revision))))
            .collect();
        let present = entries.iter().map(|(pg, (record, _))| (*pg, record.clone())).collect();
        let (pools, osds) = (map.pools.clone(), map.osds.clone());
        let copies = pools.values().map(|pool| {
            let size = pool.redundancy.size();
            (size * pool.pg_num) as usize
        });
        let moves_max = (copies.sum::<usize>() * MOVES_PERCENT_MAX / 100).max(1);
        let proposal = tokio::task::spawn_blocking(move || balance(&pools, &osds, &present, moves_max)).await;
        let proposal = proposal.expect("the balancer does not panic");
        if proposal.changes.is_empty() {
            return Ok(());
        }
        let changes: Vec<_> = proposal.changes.into_iter().collect();
        for batch in changes.chunks(BATCH) {
            invariants::batch_is_bounded(batch.len(), BATCH);
            let mut transaction = Transaction::new();
            for (pg, change) in batch {
                let key = keys::pg_target(*pg);
                transaction = transaction.check(&key, entries.get(pg).map_or(0, |(_, revision)| *revision));
                transaction = match change {
                    Some(record) => transaction.put(&key, record)?,
                    None => transaction.delete(&key),
                };
            }
            self.client.transact(&transaction).await?;
        }
        tracing::info!(
            "the balancer has changed {} targets: {} copies move, {} PGs get another primary",
            changes.len(),
            proposal.moved_copies,
            proposal.moved_primaries
        );
        Ok(())
    }
}

fn with_events(transaction: Transaction, events: &[EventRecord]) -> Result<Transaction, ClusterError> {
    events
        .iter()
        .try_fold(transaction, |transaction, event| transaction.put(&keys::new_event(event.unix_ms), event))
}
