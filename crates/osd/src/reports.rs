//! Reports of an OSD: figures to cluster state, and a line in its log when all PGs that it leads serve.

use std::collections::BTreeMap;

use atoll_pg::{Pg, PgState};
use atoll_store::{BackingRoom, PoolUsage, Store};
use atoll_types::PoolId;
use atoll_types::records::{OsdPoolUsage, OsdStoreRecord, OsdUsageRecord, RECORD_FORMAT};

use crate::context::Context;
use crate::control::ControlRequest;
use crate::links::LinkCounts;
use crate::pgs::Pgs;

pub(crate) struct Reports {
    pg_states: BTreeMap<String, u32>,
    /// Bytes in use, and whether the OSD is full.
    space: (u64, bool),
    /// The generation of the store that was reported.
    generation: u64,
    /// Since when a PG that this OSD leads has not served; at first none does.
    not_serving_since_ms: Option<u64>,
}

impl Reports {
    pub fn new() -> Self {
        Reports { pg_states: BTreeMap::new(), space: (0, false), generation: 0, not_serving_since_ms: Some(0) }
    }

    /// Logs when all PGs serve that this OSD leads.
    pub fn note_serving(&mut self, context: &Context, pgs: &Pgs) {
        // A PG whose primary does not serve is not idle.
        let all_serve = pgs.busy().all(|(_, pg)| matches!(pg.state(), PgState::Member | PgState::Active));
        match self.not_serving_since_ms {
            Some(since_ms) if all_serve => {
                let led = pgs.all().filter(|pg| *pg.state() == PgState::Active).count();
                if led > 0 {
                    self.not_serving_since_ms = None;
                    let ms = context.now_ms() - since_ms;
                    tracing::info!("all {led} PGs that {} leads serve, after {ms} ms", context.me());
                }
            }
            None if !all_serve => self.not_serving_since_ms = Some(context.now_ms()),
            _ => {}
        }
    }

    /// Reports how old the device is, if that has changed.
    pub fn store(&mut self, context: &Context, store: &Store) {
        let generation = store.generation();
        if self.generation != generation {
            self.generation = generation;
            let store_id = hex::encode(store.id());
            context.ask_control(ControlRequest::Store(OsdStoreRecord {
                format: RECORD_FORMAT,
                store_id,
                generation,
            }));
        }
    }

    /// Returns true if the space in use differs noticeably from the reported one.
    fn has_changed(&self, (used_bytes, is_full): (u64, bool), total_bytes: u64) -> bool {
        let (used_before, was_full) = self.space;
        is_full != was_full || used_bytes.abs_diff(used_before) > total_bytes / 200
    }

    /// Reports figures if that `is_due`, and at once when the state of a PG or the space in use has changed.
    pub fn usage(
        &mut self,
        context: &Context,
        pgs: &Pgs,
        store: &Store,
        recovery_read_bytes: u64,
        links: LinkCounts,
        is_due: bool,
    ) {
        let primary_pg_states = primary_pg_states(pgs);
        let usage = store.usage();
        let noted = (usage.used_bytes, store.is_full());
        let is_news = primary_pg_states != self.pg_states || self.has_changed(noted, usage.total_bytes);
        if !is_due && !is_news {
            return;
        }
        self.pg_states = primary_pg_states.clone();
        self.space = noted;
        context.ask_control(ControlRequest::Usage(OsdUsageRecord {
            format: RECORD_FORMAT,
            total_bytes: usage.total_bytes,
            used_bytes: usage.used_bytes,
            is_full: store.is_full(),
            is_file_system_full: store.backing_room() != BackingRoom::Enough,
            object_count: usage.object_count,
            primary_pg_states,
            corrupt_block_count: usage.corrupt_block_count,
            recovery_read_bytes,
            recovery_bytes_per_second: context.config.recovery_bytes_per_second,
            links_in_other_mode: links.in_other_mode,
            links_by_transport: links.by_transport,
            pools: store.pool_usage().map(|pools| pools.into_iter().map(of_pool).collect()),
        }));
    }
}

fn of_pool((pool, usage): (PoolId, PoolUsage)) -> (PoolId, OsdPoolUsage) {
    (pool, OsdPoolUsage { used_bytes: usage.used_bytes, object_count: usage.object_count })
}

/// How many of the PGs that this OSD leads are in each state.
pub(crate) fn primary_pg_states(pgs: &Pgs) -> BTreeMap<String, u32> {
    let mut states = BTreeMap::new();
    for name in pgs.all().filter_map(state_name) {
        *states.entry(name.to_owned()).or_default() += 1;
    }
    states
}

/// The state of a PG that this OSD leads.
fn state_name(pg: &Pg) -> Option<&'static str> {
    Some(match pg.state() {
        PgState::Member => return None,
        PgState::Inactive => "inactive",
        PgState::Peering => "peering",
        PgState::Recovering => "recovering",
        PgState::Active if pg.learners().next().is_some() => "active+backfilling",
        PgState::Active if pg.record().members.len() < pg.size() => "active+degraded",
        PgState::Active if !pg.is_on_target() => "active+remapped",
        PgState::Active => "active",
    })
}
