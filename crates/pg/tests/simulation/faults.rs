//! Faults: broken connections, crashes and restarts, a replaced device, full stores, bad blocks.

use atoll_pg::PgState;

use crate::network::pairs;
use crate::store::Store;
use crate::world::{Event, MEMBERS, World};

impl World {
    pub fn fault(&mut self) {
        if self.is_quiet() {
            return;
        }
        self.after(self.fault_pace, Event::Fault);
        match self.random.below(100) {
            0..20 => {
                let (a, b) = pairs().nth(self.random.below(3) as usize).unwrap();
                self.break_link(a, b);
            }
            20..32 => {
                let at = self.random.below(MEMBERS as u64) as usize;
                self.crash(at);
            }
            32..34 => self.replace_device(),
            34..54 => {
                let at = self.random.below(MEMBERS as u64) as usize;
                self.set_room(at, true);
                self.after(2_000, Event::Room { at, out_of_room: false });
            }
            54..62 => {
                let session = self.random.below(self.clients.sessions.len() as u64) as usize;
                self.break_client(session);
            }
            62..72 => {
                let at = self.random.below(MEMBERS as u64) as usize;
                self.members[at].slow_until = self.now + self.random.delay(3_000);
            }
            72..78 => self.cut_off(),
            _ => self.damage_block(),
        }
    }

    fn break_link(&mut self, a: usize, b: usize) {
        self.statistics.breaks += 1;
        self.note("break", &[a as u64, b as u64]);
        for (at, time, generation) in self.network.break_link(a, b, self.now, &mut self.random) {
            self.at(time, Event::PeerDown { at, other: a + b - at, generation });
        }
        self.connect(a, b);
    }

    /// The primary talks to nobody for a while, with a slow disk, and is then gone.
    fn cut_off(&mut self) {
        self.members[0].slow_until = self.now + 10_000;
        self.break_link(0, 1);
        self.break_link(0, 2);
        self.after(2_000, Event::Crash { at: 0 });
    }

    pub fn connect(&mut self, a: usize, b: usize) {
        if self.members[a].pg.is_none() || self.members[b].pg.is_none() {
            return;
        }
        let (low, high) = (a.min(b), a.max(b));
        if let Some((times, generation)) = self.network.connect(low, high, self.now + 100, &mut self.random) {
            self.at(times[0], Event::PeerUp { at: low, other: high, generation });
            self.at(times[1], Event::PeerUp { at: high, other: low, generation });
        }
    }

    pub fn crash(&mut self, at: usize) {
        if self.members[at].pg.is_none() || self.is_quiet() {
            return;
        }
        self.statistics.crashes += 1;
        self.note("crash", &[at as u64]);
        self.stop_member(at);
        for other in (0..MEMBERS).filter(|other| *other != at) {
            self.break_link(at, other);
            self.network.forget_end(at, other);
        }
        self.after(3_000, Event::Restart { at });
    }

    pub fn restart(&mut self, at: usize) {
        if self.members[at].pg.is_some() {
            return;
        }
        self.note("restart", &[at as u64]);
        let lags = self.random.chance(30);
        let record = if lags { &self.cluster.previous } else { &self.cluster.record }.clone();
        self.restart_member(at, record);
        let incarnation = self.members[at].incarnation;
        let record = self.cluster.record.clone();
        self.after(1_000, Event::Record { at, incarnation, record });
        for other in (0..MEMBERS).filter(|other| *other != at) {
            self.connect(at, other);
        }
    }

    /// Once in a while, and only while every member is level, a member loses its device.
    fn replace_device(&mut self) {
        let is_active = self.members[0].pg.as_ref().is_some_and(|pg| *pg.state() == PgState::Active);
        if !is_active || self.statistics.wipes > 0 {
            return;
        }
        let at = self.random.below(MEMBERS as u64) as usize;
        self.crash(at);
        self.statistics.wipes += 1;
        self.note("wipe", &[at as u64]);
        let store = &mut self.members[at].store;
        let history = std::mem::take(&mut store.history);
        let requests = std::mem::take(&mut store.requests);
        *store = Store { history, requests, ..Store::new(store.ring_entries) };
    }

    /// Damages one block of an object that is whole on every other member: a read of a range is
    /// answered from one copy, so damage spread over all copies is beyond repair.
    fn damage_block(&mut self) {
        // Only the primary reads for clients.
        let at = if self.random.chance(70) { 0 } else { self.random.below(MEMBERS as u64) as usize };
        let objects = &self.members[at].store.visible.objects;
        let all: Vec<_> = objects
            .iter()
            .flat_map(|(name, object)| object.blocks.keys().map(move |block| (name.clone(), *block)))
            .collect();
        if all.is_empty() {
            return;
        }
        let chosen = all[self.random.below(all.len() as u64) as usize].clone();
        let is_damaged = |store: &Store| store.bad.iter().any(|(object, _)| *object == chosen.0);
        if !self.members.iter().enumerate().any(|(other, member)| other != at && is_damaged(&member.store)) {
            self.note("damage", &[at as u64, chosen.1.into()]);
            // Often all of the object: then a bad sector meets requests that race with each other.
            let whole = self.random.chance(50);
            let bad =
                all.into_iter().filter(|(object, block)| *object == chosen.0 && (whole || *block == chosen.1));
            self.members[at].store.bad.extend(bad);
        }
    }

    /// The end of all faults but damaged blocks.
    pub fn heal(&mut self) {
        for at in 0..MEMBERS {
            self.restart(at);
            self.set_room(at, false);
        }
        for (a, b) in pairs() {
            self.connect(a, b);
        }
    }
}
