//! Metrics of the cluster as a whole (docs/reference/metrics.md). Every admin server exports them, so that none is
//! required.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use atoll_admin::pools::{stored_bytes, used_bytes};
use atoll_coordinator::health::{Health, HealthStatus, evaluate};
use atoll_coordinator::{PgAvailability, PgStatus, statuses};
use atoll_coordinator::{View, unix_ms};
use atoll_metrics::{Counter, Family, Gauge, register};
use atoll_node::{ClusterFile, DataDir, ProcessesFile, host_problems, process_problems, state_space_problem};
use tokio::sync::{Mutex, MutexGuard};

use crate::cluster_state::ClusterState;

/// Several scrapes at once get the same values.
const FRESH_FOR: Duration = Duration::from_millis(500);
const READ_LIMIT: Duration = Duration::from_secs(4);

pub(crate) struct ClusterMetrics {
    health_status: Gauge,
    health_problems: Family<2, Gauge>,
    osd_up: Family<2, Gauge>,
    osd_in: Family<2, Gauge>,
    pgs: Family<2, Gauge>,
    pool_used_bytes: Family<1, Gauge>,
    pool_stored_bytes: Family<1, Gauge>,
    size_bytes: Gauge,
    used_bytes: Gauge,
    restarts: Family<1, Counter>,
    refreshed_at: Mutex<Option<Instant>>,
}

impl ClusterMetrics {
    pub fn register() -> Self {
        ClusterMetrics {
            health_status: register(
                "atoll_health_status",
                "0 if all is well, 1 if something is wrong and all is served, 2 if something is not served",
                Gauge::default(),
            ),
            health_problems: register(
                "atoll_health_problems",
                "Health problems, with the number of subjects of each, at least 1",
                Family::default(),
            ),
            osd_up: register("atoll_osd_up", "Whether an OSD runs", Family::default()),
            osd_in: register("atoll_osd_in", "Whether an OSD holds data by plan", Family::default()),
            pgs: register("atoll_pgs", "PGs of a pool by their state", Family::default()),
            pool_used_bytes: register(
                "atoll_pool_used_bytes",
                "Space that the objects of a pool take on all OSDs",
                Family::default(),
            ),
            pool_stored_bytes: register(
                "atoll_pool_stored_bytes",
                "Stored bytes of a pool, without copies and parity",
                Family::default(),
            ),
            size_bytes: register("atoll_cluster_size_bytes", "Space of all OSDs", Gauge::default()),
            used_bytes: register("atoll_cluster_used_bytes", "Space in use on all OSDs", Gauge::default()),
            restarts: register(
                "atoll_process_restarts",
                "How often the supervisor has restarted a process of this host that had ended",
                Family::default(),
            ),
            refreshed_at: Mutex::default(),
        }
    }

    /// Reads the cluster's state, unless it was just read. Nothing changes while the guard is held.
    pub async fn refresh(
        &self,
        state: &ClusterState,
        directory: &DataDir,
        cluster: &ClusterFile,
    ) -> MutexGuard<'_, Option<Instant>> {
        let mut refreshed_at = self.refreshed_at.lock().await;
        if refreshed_at.is_some_and(|at| at.elapsed() < FRESH_FOR) {
            return refreshed_at;
        }
        match state.read(READ_LIMIT, |client| async move { View::read(&client).await }).await {
            Ok(view) => {
                let problems = host_problems(directory, cluster);
                let health = evaluate(&view, unix_ms()).and(problems);
                self.set_health(&health.and(process_problems(directory).await));
                self.set_osds(&view);
                self.set_pgs(&view);
                self.set_pools(&view);
            }
            Err(error) => {
                let space = state_space_problem(directory, cluster);
                self.set_health(&Health::unreachable(&error).and(space.into_iter().collect()));
                // What is not known is not told.
                self.osd_up.clear();
                self.osd_in.clear();
                self.pgs.clear();
                self.pool_used_bytes.clear();
                self.pool_stored_bytes.clear();
            }
        }
        for child in ProcessesFile::read(directory).unwrap_or_default().children {
            let counter = self.restarts.get_or_create_owned(&[("process", child.name)]);
            counter.inner().store(u64::from(child.restarts), std::sync::atomic::Ordering::Relaxed);
        }
        *refreshed_at = Some(Instant::now());
        refreshed_at
    }

    fn set_health(&self, health: &Health) {
        self.health_status.set(match health.status {
            HealthStatus::Ok => 0,
            HealthStatus::Warning => 1,
            HealthStatus::Error => 2,
        });
        self.health_problems.clear();
        for problem in &health.problems {
            let labels = [("code", problem.code.to_owned()), ("severity", problem.severity.name().to_owned())];
            self.health_problems.get_or_create(&labels).inc_by(problem.subjects.len().max(1) as i64);
        }
    }

    fn set_osds(&self, view: &View) {
        self.osd_up.clear();
        self.osd_in.clear();
        for (id, record) in &view.map.osds {
            let labels = [("host", record.host.clone()), ("osd", id.to_string())];
            self.osd_up.get_or_create(&labels).set(i64::from(view.map.up.contains_key(id)));
            self.osd_in.get_or_create(&labels).set(i64::from(!record.is_out));
        }
        let sum = |values: &mut dyn Iterator<Item = u64>| signed(values.sum());
        self.size_bytes.set(sum(&mut view.usage.values().map(|usage| usage.total_bytes)));
        self.used_bytes.set(sum(&mut view.usage.values().map(|usage| usage.used_bytes)));
    }

    fn set_pools(&self, view: &View) {
        self.pool_used_bytes.clear();
        self.pool_stored_bytes.clear();
        for (id, pool) in &view.map.pools {
            let Some(used_bytes) = used_bytes(view.usage.values(), *id) else { continue };
            let labels = [("pool", pool.name.clone())];
            self.pool_used_bytes.get_or_create(&labels).set(signed(used_bytes));
            self.pool_stored_bytes.get_or_create(&labels).set(signed(stored_bytes(used_bytes, pool)));
        }
    }

    fn set_pgs(&self, view: &View) {
        let mut counts: BTreeMap<(String, &str), i64> = BTreeMap::new();
        for status in statuses(&view.map) {
            let pool = view.map.pools.get(&status.pg.pool).map_or_else(String::new, |pool| pool.name.clone());
            for state in states(&status) {
                *counts.entry((pool.clone(), state)).or_default() += 1;
            }
        }
        self.pgs.clear();
        for ((pool, state), count) in counts {
            self.pgs.get_or_create(&[("pool", pool), ("state", state.to_owned())]).set(count);
        }
    }
}

/// For a gauge.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// All states that a PG is in: it may be active and degraded.
fn states(status: &PgStatus) -> impl Iterator<Item = &'static str> {
    let availability = match status.state {
        PgAvailability::Active => "active",
        PgAvailability::Peering => "peering",
        PgAvailability::Inactive => "inactive",
    };
    let others = [
        (status.is_clean(), "clean"),
        (status.is_degraded, "degraded"),
        (status.is_undersized, "undersized"),
        (status.is_misplaced, "misplaced"),
    ];
    std::iter::once(availability).chain(others.into_iter().filter(|(is_so, _)| *is_so).map(|(_, state)| state))
}
