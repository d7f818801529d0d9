//! The PGs of this OSD, and which of them have something to do.

use std::collections::{BTreeMap, BTreeSet};

use atoll_pg::{Action, Pg};
use atoll_types::{PgId, PoolId};

use crate::invariants;
use crate::view::StoreView;

#[derive(Default)]
pub(crate) struct Pgs {
    here: BTreeMap<PgId, Pg>,
    /// PGs that may have something to do.
    dirty: BTreeSet<PgId>,
    /// PGs that wait for time to pass, for room or for leases: all that are not idle.
    busy: BTreeSet<PgId>,
}

impl Pgs {
    pub fn contains(&self, pg: PgId) -> bool {
        self.here.contains_key(&pg)
    }

    pub fn get(&self, pg: PgId) -> Option<&Pg> {
        self.here.get(&pg)
    }

    pub fn ids(&self) -> impl Iterator<Item = PgId> {
        self.here.keys().copied()
    }

    pub fn all(&self) -> impl Iterator<Item = &Pg> {
        self.here.values()
    }

    /// PGs that are not idle.
    pub fn busy(&self) -> impl Iterator<Item = (PgId, &Pg)> {
        self.busy.iter().filter_map(|pg| Some((*pg, self.here.get(pg)?)))
    }

    /// Clients' requests that wait in PGs: all of them, and those of the PG that has most.
    pub fn waiting(&self) -> (usize, usize) {
        let counts = self.busy().map(|(_, pg)| pg.waiting_count());
        counts.fold((0, 0), |(sum, max), count| (sum + count, max.max(count)))
    }

    /// Adds a PG that was not here.
    pub fn add(&mut self, id: PgId, pg: Pg) {
        let before = self.here.insert(id, pg);
        invariants::pg_is_added_once(id, before.is_some());
        self.dirty.insert(id);
    }

    /// Gives an event to a PG, if it is here.
    pub fn with(&mut self, id: PgId, view: &StoreView<'_>, event: impl FnOnce(&mut Pg, &StoreView<'_>)) {
        if let Some(pg) = self.here.get_mut(&id) {
            event(pg, view);
            self.dirty.insert(id);
        }
    }

    /// Gives an event to all PGs.
    pub fn with_all(&mut self, view: &StoreView<'_>, event: impl Fn(&mut Pg, &StoreView<'_>)) {
        for (id, pg) in &mut self.here {
            event(pg, view);
            self.dirty.insert(*id);
        }
    }

    /// Some time has passed, or a lease was renewed. Idle PGs need not know.
    pub fn tick(&mut self, view: &StoreView<'_>) {
        for id in &self.busy {
            if let Some(pg) = self.here.get_mut(id) {
                pg.tick(view);
                self.dirty.insert(*id);
            }
        }
    }

    /// Marks a PG that may have work.
    pub fn wake(&mut self, pg: PgId) {
        self.dirty.insert(pg);
    }

    /// The same for all that are not idle.
    pub fn wake_busy(&mut self) {
        self.dirty.extend(&self.busy);
    }

    /// Returns true if no PG has anything to do.
    pub fn are_quiet(&self) -> bool {
        self.dirty.is_empty()
    }

    /// Takes the PGs that may have something to do.
    pub fn take_dirty(&mut self) -> BTreeSet<PgId> {
        std::mem::take(&mut self.dirty)
    }

    /// Returns the next action of a PG; none if it has no more now.
    pub fn next_action(&mut self, id: PgId, view: &StoreView<'_>) -> Option<Action> {
        let pg = self.here.get_mut(&id)?;
        pg.next_action().or_else(|| {
            pg.proceed(view);
            pg.next_action()
        })
    }

    /// Notes whether a PG that wants nothing now is idle.
    pub fn note_idle(&mut self, id: PgId, view: &StoreView<'_>) -> Option<&Pg> {
        let pg = self.here.get(&id)?;
        if pg.is_idle(view) {
            self.busy.remove(&id);
        } else {
            self.busy.insert(id);
        }
        Some(pg)
    }

    /// Takes out the PGs of a pool.
    pub fn remove_pool(&mut self, pool: PoolId) -> Vec<(PgId, Pg)> {
        self.dirty.retain(|pg| pg.pool != pool);
        self.busy.retain(|pg| pg.pool != pool);
        self.here.extract_if(.., |pg, _| pg.pool == pool).collect()
    }
}
