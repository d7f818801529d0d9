//! Shared resources of all components of an OSD.

use std::collections::BTreeMap;

use atoll_cluster::ClusterMap;
use atoll_reactor::Reactor;
use atoll_types::records::{OsdRecord, PgTargetRecord, PoolRecord};
use atoll_types::{OsdId, PgId};

use crate::config::OsdConfig;
use crate::control::ControlRequest;
use crate::invariants;

/// The OSD's configuration, its event loop, the cluster map as this OSD knows it, and the time of this turn.
pub(crate) struct Context {
    pub config: OsdConfig,
    pub reactor: Reactor,
    pub map: ClusterMap,
    requests: tokio::sync::mpsc::UnboundedSender<ControlRequest>,
    now_us: u64,
}

impl Context {
    pub fn new(
        config: OsdConfig,
        reactor: Reactor,
        requests: tokio::sync::mpsc::UnboundedSender<ControlRequest>,
    ) -> Self {
        Context { config, reactor, map: ClusterMap::default(), requests, now_us: 0 }
    }

    /// The number of this OSD.
    pub fn me(&self) -> OsdId {
        self.config.id
    }

    /// Since the start, as of this turn of the loop. Events of a turn came in before, so a lease that holds now
    /// held then.
    pub fn now_ms(&self) -> u64 {
        self.now_us / 1_000
    }

    /// The same in microseconds.
    pub fn now_us(&self) -> u64 {
        self.now_us
    }

    /// A turn of the loop begins.
    pub fn begin_turn(&mut self, now_us: u64) {
        invariants::time_goes_on(self.now_us, now_us);
        self.now_us = now_us;
    }

    /// Hands a request to the control thread.
    pub fn ask_control(&self, request: ControlRequest) {
        // The control thread ends only with the process.
        let _ = self.requests.send(request);
    }

    /// The members that a PG should have.
    pub fn target(&self, pg: PgId, pool: &PoolRecord) -> Vec<OsdId> {
        let osds: &BTreeMap<OsdId, OsdRecord> = &self.map.osds;
        let wanted: Option<&PgTargetRecord> = self.map.pg_targets.get(&pg);
        atoll_placement::target(pg, pool, osds, wanted)
    }
}
