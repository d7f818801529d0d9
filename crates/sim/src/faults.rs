//! Faults: broken connections, one-way and whole partitions, paused processes, crashes and
//! restarts, replaced devices, full stores, bad blocks, cluster state out of reach, and plans to
//! move the PG.

use std::collections::BTreeSet;

use atoll_pg::is_hidden;
use atoll_types::{ObjectName, OsdId, PgId, Version};

use crate::cluster::ClusterState;
use crate::options::Fault;
use crate::store::Store;
use crate::world::{Event, World, osd};

/// Devices lost in one run.
const WIPES_MAX: u64 = 3;

impl World {
    fn any_osd(&mut self) -> usize {
        self.random.below(self.members.len() as u64) as usize
    }

    /// Often the primary, where most can go wrong.
    pub fn interesting_osd(&mut self) -> usize {
        let primary = self.cluster.record.primary.0 as usize - 1;
        if self.random.chance(50) { primary } else { self.any_osd() }
    }

    fn any_pair(&mut self) -> (usize, usize) {
        let a = self.interesting_osd();
        let b = self.any_osd();
        if a == b { (a, (a + 1) % self.members.len()) } else { (a, b) }
    }

    fn draw_fault(&mut self) -> Fault {
        let all: u64 = self.options.faults.iter().map(|(_, weight)| weight).sum();
        let mut chosen = self.random.below(all);
        let fault = self.options.faults.iter().find(|(_, weight)| {
            let is_it = chosen < *weight;
            chosen = chosen.saturating_sub(*weight);
            is_it
        });
        fault.unwrap().0
    }

    pub fn fault(&mut self) {
        if self.is_quiet() {
            return;
        }
        self.after(self.options.fault_pace, Event::Fault);
        let fault = self.draw_fault();
        if self.is_beyond_redundancy(fault) || self.has_open_restore() {
            return;
        }
        match fault {
            Fault::BreakLink => {
                let (a, b) = self.any_pair();
                self.break_link(a, b);
            }
            Fault::Crash => {
                let at = self.interesting_osd();
                self.crash(at);
            }
            Fault::ReplaceDevice => self.replace_device(),
            Fault::OutOfRoom => {
                let at = self.any_osd();
                self.set_room(at, true);
                self.after(50_000, Event::Room { at, out_of_room: false });
            }
            Fault::RefuseWrites => {
                let at = self.interesting_osd();
                self.members[at].refuses_until = self.now + self.random.delay(200_000);
            }
            Fault::Fill => {
                let at = self.any_osd();
                self.set_full(at, true);
                self.after(8_000_000, Event::Emptied { at });
            }
            Fault::BreakClient => {
                let session = self.random.below(self.clients.sessions.len() as u64) as usize;
                self.break_client(session);
            }
            Fault::SlowDevice => {
                let at = self.any_osd();
                self.members[at].slow_until = self.now + self.random.delay(300_000);
            }
            Fault::Partition => self.partition(),
            Fault::Pause => self.pause(),
            Fault::StopClock => self.stop_clock(),
            Fault::BlockState => {
                let at = self.interesting_osd();
                self.members[at].state_blocked_until = self.now + self.random.delay(8_000_000);
            }
            Fault::StateOutage => {
                self.statistics.outages += 1;
                let until = self.now + self.random.delay(4_000_000);
                self.members.iter_mut().for_each(|member| member.state_blocked_until = until);
            }
            Fault::Move => self.plan_move(),
            Fault::Forget => self.forget(),
            Fault::CopyDevice => self.copy_device(),
            Fault::PutBack => self.put_back(),
            Fault::Decide => self.lose_trust(),
            Fault::RefuseForGood => {
                // One at a time: with two, nobody might be left to take what is written.
                if self.members.iter().all(|member| member.refused.is_none()) {
                    let at = self.interesting_osd();
                    self.refuse_for_good(at);
                }
            }
            Fault::SaveState => self.save_state(),
            Fault::RestoreState => self.restore_state_by_chance(),
            Fault::DamageBlock => self.damage_block(),
            Fault::Split => self.split(),
            Fault::Scrub => {
                let pgs = self.cluster.pgs();
                let pg = pgs[self.random.below(pgs.len() as u64) as usize];
                let is_deep = self.random.chance(60);
                self.scrub(pg, is_deep);
            }
        }
    }

    pub fn break_link(&mut self, a: usize, b: usize) {
        self.statistics.breaks += 1;
        self.note("break", &[a as u64, b as u64]);
        for (at, time, generation) in self.network.break_link(a, b, self.now, &mut self.random) {
            self.at(time, Event::PeerDown { at, other: a + b - at, generation });
        }
    }

    /// One OSD is cut off from others for a while: from all or some, in both directions or in one.
    fn partition(&mut self) {
        let at = self.interesting_osd();
        let until = self.now + self.random.between(200_000, 8_000_000);
        let (incoming, outgoing) = [(true, true), (true, false), (false, true)][self.random.below(3) as usize];
        let is_whole = self.random.chance(50);
        self.statistics.partitions += 1;
        self.note("partition", &[at as u64, until, incoming.into(), outgoing.into()]);
        for other in (0..self.members.len()).filter(|other| *other != at) {
            if is_whole || self.random.chance(50) {
                if incoming {
                    self.network.block(other, at, until);
                }
                if outgoing {
                    self.network.block(at, other, until);
                }
            }
        }
    }

    /// A process stands still while its clock runs.
    fn pause(&mut self) {
        let at = self.interesting_osd();
        if !self.members[at].is_up || self.members[at].paused_until > self.now {
            return;
        }
        self.statistics.pauses += 1;
        self.members[at].paused_until = self.now + self.random.between(100_000, 6_000_000);
        self.note("pause", &[at as u64, self.members[at].paused_until]);
    }

    /// A virtual machine is paused: its process stands still, and its clock, too.
    fn stop_clock(&mut self) {
        let at = self.interesting_osd();
        if !self.members[at].is_up || self.members[at].paused_until > self.now {
            return;
        }
        self.statistics.stopped_clocks += 1;
        let microseconds = self.random.between(100_000, 6_000_000);
        self.stand_still_with_clock(at, microseconds);
        self.note("stop the clock", &[at as u64, self.members[at].paused_until]);
    }

    /// The same, of a certain OSD and for a certain time.
    pub fn stand_still_with_clock(&mut self, at: usize, microseconds: u64) {
        let until = self.now + microseconds;
        let member = &mut self.members[at];
        member.paused_until = until;
        member.clock.stop(self.now, until);
    }

    /// The target changes: other members, or another primary.
    fn plan_move(&mut self) {
        let mut osds: Vec<usize> = (0..self.members.len()).collect();
        let mut target = Vec::new();
        let pgs = self.cluster.pgs();
        let pg = pgs[self.random.below(pgs.len() as u64) as usize];
        while target.len() < self.cluster.target.len() {
            let chosen = self.random.below(osds.len() as u64) as usize;
            target.push(osd(osds.remove(chosen)));
        }
        self.statistics.moves += 1;
        self.note("move", &target.iter().map(|osd| osd.0.into()).collect::<Vec<_>>());
        self.cluster.of_mut(pg).expect("it is listed").target = target;
        for at in 0..self.members.len() {
            let incarnation = self.members[at].incarnation;
            self.after(3_000, Event::Target { at, incarnation });
        }
    }

    /// The pool should have twice as many PGs as it began with.
    pub fn split(&mut self) {
        self.note("split", &[]);
        self.policy.pg_num = 2 * self.policy.pg_num_first;
        for at in 0..self.members.len() {
            let incarnation = self.members[at].incarnation;
            self.after(3_000, Event::Target { at, incarnation });
        }
    }

    pub fn connect(&mut self, a: usize, b: usize) {
        if !self.members[a].is_up || !self.members[b].is_up {
            return;
        }
        let (low, high) = (a.min(b), a.max(b));
        if let Some((times, generation)) = self.network.connect(low, high, self.now + 100, &mut self.random) {
            self.at(times[0], Event::PeerUp { at: low, other: high, generation });
            self.at(times[1], Event::PeerUp { at: high, other: low, generation });
        }
    }

    pub fn crash(&mut self, at: usize) {
        if !self.members[at].is_up || self.is_quiet() {
            return;
        }
        self.kill(at);
        let usual = if self.random.chance(30) { 8_000_000 } else { 300_000 };
        self.after(usual, Event::Restart { at });
    }

    /// The process dies and is not restarted by itself.
    pub fn kill(&mut self, at: usize) {
        self.statistics.crashes += 1;
        self.note("crash", &[at as u64]);
        self.stop_member(at);
        for other in (0..self.members.len()).filter(|other| *other != at) {
            self.break_link(at, other);
            self.network.forget_end(at, other);
        }
    }

    pub fn restart(&mut self, at: usize) {
        if self.members[at].is_up {
            return;
        }
        self.note("restart", &[at as u64]);
        let lags = self.mishap(30);
        let pgs = self.cluster.pgs().into_iter().filter_map(|pg| Some((pg, self.cluster.of(pg)?)));
        let seen = |state: &ClusterState| if lags { &state.previous } else { &state.record }.clone();
        let records = pgs.clone().map(|(pg, state)| (pg, seen(state))).collect();
        let newest: Vec<_> = pgs.map(|(pg, state)| (pg, state.record.clone())).collect();
        self.restart_member(at, records);
        let incarnation = self.members[at].incarnation;
        for (pg, record) in newest {
            self.after(1_000, Event::Record { at, incarnation, pg, record });
        }
        for other in (0..self.members.len()).filter(|other| *other != at) {
            self.connect(at, other);
        }
    }

    /// An OSD loses its device, unless the PG has as few copies as it needs.
    fn replace_device(&mut self) {
        let may_lose_one = |pg: &PgId| {
            let state = self.cluster.of(*pg).expect("it is listed");
            let record = &state.record;
            let is_active = record.activated_epoch == record.epoch;
            let is_over = self.wiped.is_none_or(|wiped| !record.members.contains(&wiped));
            // A copy that is incomplete is lost as well, although the record does not say so yet.
            let is_complete = |osd: &OsdId| !self.members[osd.0 as usize - 1].store.is_incomplete(*pg);
            let are_complete = record.members.iter().all(is_complete);
            // As few as there must be cannot lose one.
            let needed = self.options.shape.map_or(1, |shape| usize::from(shape.data));
            let copies = if needed > 1 { state.shards() } else { record.members.len() };
            is_active && is_over && are_complete && copies > needed
        };
        // A split under way may be on one device only.
        let is_splitting = self.cluster.pgs().len() < self.policy.pg_num as usize;
        let may_lose_one = !is_splitting && self.cluster.pgs().iter().all(may_lose_one);
        if !may_lose_one || self.statistics.wipes == WIPES_MAX {
            return;
        }
        let at = self.any_osd();
        if !self.members[at].is_up {
            return;
        }
        self.crash(at);
        self.wipe(at);
    }

    /// The device is replaced by an empty one.
    pub fn wipe(&mut self, at: usize) {
        self.statistics.wipes += 1;
        self.wiped = Some(osd(at));
        self.note_loss(at);
        self.note("wipe", &[at as u64]);
        self.members[at].refused = None;
        let store = &mut self.members[at].store;
        let history = std::mem::take(&mut store.history);
        let requests = std::mem::take(&mut store.requests);
        let promised = std::mem::take(&mut store.promised);
        let device = store.device.as_ref().map(|device| device.replaced(&mut self.random));
        let keeps_past = store.past.is_some();
        let pgs = store.visible.first();
        *store = Store { history, requests, promised, ..Store::new(store.ring_entries, pgs, device) };
        store.keep_past(keeps_past);
    }

    /// Damages an object that has no damage on any other OSD: damage spread over all copies would
    /// be beyond repair.
    fn damage_block(&mut self) {
        // Only the primary reads for clients.
        let at = self.interesting_osd();
        let is_whole = |pg: &PgId| {
            let state = self.cluster.of(*pg).expect("it is listed");
            let record = &state.record;
            let least = self.options.shape.map_or(2, |shape| usize::from(shape.shards()));
            let copies = if self.options.shape.is_some() { state.shards() } else { record.members.len() };
            record.activated_epoch == record.epoch && copies >= least
        };
        if !self.cluster.pgs().iter().all(is_whole) {
            return;
        }
        let all: Vec<_> = self.members[at]
            .store
            .visible
            .objects()
            .flat_map(|(name, object)| object.blocks.keys().map(move |block| (name.clone(), *block)))
            .collect();
        if all.is_empty() {
            return;
        }
        let chosen = all[self.random.below(all.len() as u64) as usize].clone();
        // Writes that some members lack may be clones, which spread damage to other objects.
        let heads = |pg: &PgId| -> BTreeSet<Version> {
            let members = &self.cluster.of(*pg).expect("it is listed").record.members;
            members.iter().map(|osd| self.members[osd.0 as usize - 1].store.visible.of(*pg).head).collect()
        };
        if self.cluster.pgs().iter().any(|pg| heads(pg).len() > 1) {
            return;
        }
        // A roll back brings the damage of a pre-image into the object that it is one of.
        let may_meet = |object: &ObjectName| *object == chosen.0 || is_hidden(object) || is_hidden(&chosen.0);
        let is_damaged = |store: &Store| store.bad.iter().any(|(object, _)| may_meet(object));
        if !self.members.iter().enumerate().any(|(other, member)| other != at && is_damaged(&member.store)) {
            self.note("damage", &[at as u64, chosen.1.into()]);
            self.damaged.insert(chosen.0.clone());
            // Often all blocks of the object, so damage meets requests that race with each other.
            let whole = self.random.chance(50);
            let bad =
                all.into_iter().filter(|(object, block)| *object == chosen.0 && (whole || *block == chosen.1));
            self.members[at].store.bad.extend(bad);
        }
    }

    /// The end of all faults but damaged blocks.
    pub fn heal(&mut self) {
        self.network.unblock_all();
        for at in 0..self.members.len() {
            self.members[at].state_blocked_until = self.now;
            self.members[at].refuses_until = 0;
            self.members[at].refused = None;
            self.set_full(at, false);
            self.restart(at);
            self.set_room(at, false);
            let incarnation = self.members[at].incarnation;
            self.after(3_000, Event::Target { at, incarnation });
        }
        for pg in self.cluster.pgs() {
            let record = self.cluster.of(pg).expect("it is listed").record.clone();
            self.tell_record(pg, &record);
        }
    }
}
