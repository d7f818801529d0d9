//! Connections between OSDs: in order and reliable while they last, with everything in flight lost
//! when they break. A direction can be blocked for a while: then nothing arrives until it opens
//! again, as with a network that drops packets, which are sent again.

use std::collections::BTreeMap;

use crate::random::Random;

#[derive(Default)]
struct Link {
    generation: u64,
    broken: bool,
    /// The generation that each end knows as up; the lower-numbered OSD first.
    ends: [Option<u64>; 2],
    /// Messages to this end that would arrive after this time are lost.
    cut_at: [u64; 2],
    last_arrival: [u64; 2],
    /// Messages to this end are delayed until this time.
    blocked_until: [u64; 2],
    heard_at: [u64; 2],
}

/// All connections between OSDs, numbered from 0.
pub struct Network {
    links: BTreeMap<(usize, usize), Link>,
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

fn end(at: usize, other: usize) -> usize {
    usize::from(at > other)
}

impl Network {
    pub fn new(osds: usize) -> Self {
        let link = || Link { broken: true, ..Link::default() };
        let pairs = (0..osds).flat_map(|a| (a + 1..osds).map(move |b| (a, b)));
        Network { links: pairs.map(|pair| (pair, link())).collect() }
    }

    fn link(&mut self, a: usize, b: usize) -> &mut Link {
        self.links.get_mut(&pair(a, b)).unwrap()
    }

    /// Makes a new connection if both ends know that the old one is gone and the network is open.
    /// Returns the times at which the ends learn of it, the lower-numbered first, and its
    /// generation.
    pub fn connect(&mut self, a: usize, b: usize, now: u64, random: &mut Random) -> Option<([u64; 2], u64)> {
        let link = self.link(a, b);
        let is_blocked = link.blocked_until.iter().any(|until| now < *until);
        if !link.broken || link.ends != [None, None] || is_blocked {
            return None;
        }
        link.broken = false;
        link.generation += 1;
        let up_at = [now + random.delay(500), now + random.delay(500)];
        link.last_arrival = up_at;
        link.heard_at = up_at;
        link.cut_at = [u64::MAX; 2];
        Some((up_at, link.generation))
    }

    /// Breaks the connection. Returns the ends that hear of it, the times, and its generation.
    pub fn break_link(&mut self, a: usize, b: usize, now: u64, random: &mut Random) -> Vec<(usize, u64, u64)> {
        let link = self.link(a, b);
        if link.broken {
            return Vec::new();
        }
        link.broken = true;
        link.cut_at = [now + random.below(400), now + random.below(400)];
        let told = [(a.min(b), link.ends[0]), (a.max(b), link.ends[1])].into_iter().zip(link.blocked_until);
        told.filter_map(|((end, up), blocked_until)| Some((end, now.max(blocked_until) + random.delay(1500), up?)))
            .collect()
    }

    /// Nothing that `from` sends arrives at `to` before a time.
    pub fn block(&mut self, from: usize, to: usize, until: u64) {
        self.link(from, to).blocked_until[end(to, from)] = until;
    }

    /// The network is open everywhere.
    pub fn unblock_all(&mut self) {
        self.links.values_mut().for_each(|link| link.blocked_until = [0; 2]);
    }

    /// Nothing is under way for longer than until a time.
    pub fn arrives_by(&mut self, time: u64) {
        let arrivals = self.links.values_mut().flat_map(|link| &mut link.last_arrival);
        arrivals.for_each(|arrival| *arrival = time.min(*arrival));
    }

    /// The connection that `at` knows as up, if it has heard nothing on it for longer than
    /// `patience`.
    pub fn silent(&mut self, at: usize, other: usize, now: u64, patience: u64) -> Option<u64> {
        let link = self.link(at, other);
        link.ends[end(at, other)].filter(|_| now > link.heard_at[end(at, other)] + patience)
    }

    /// `at` hears that its connection is up. False if it has broken since.
    pub fn comes_up(&mut self, at: usize, other: usize, generation: u64) -> bool {
        let link = self.link(at, other);
        let is_up = !link.broken && link.generation == generation;
        if is_up {
            link.ends[end(at, other)] = Some(generation);
        }
        is_up
    }

    /// `at` hears that its connection is down. False if it knew already.
    pub fn goes_down(&mut self, at: usize, other: usize, generation: u64) -> bool {
        let up = &mut self.link(at, other).ends[end(at, other)];
        let was_up = *up == Some(generation);
        if was_up {
            *up = None;
        }
        was_up
    }

    /// The process at an end is gone.
    pub fn forget_end(&mut self, at: usize, other: usize) {
        self.link(at, other).ends[end(at, other)] = None;
    }

    pub fn is_up(&mut self, at: usize, other: usize) -> bool {
        self.link(at, other).ends[end(at, other)].is_some()
    }

    /// Returns true if both ends know the connection as up, and nothing delays their messages.
    pub fn is_open(&self, a: usize, b: usize, now: u64) -> bool {
        let link = &self.links[&pair(a, b)];
        !link.broken
            && link.ends == [Some(link.generation); 2]
            && link.blocked_until.iter().all(|until| *until <= now)
    }

    /// When a message sent now arrives, and over which connection; `None` if it is lost at once.
    pub fn send(&mut self, from: usize, to: usize, now: u64, random: &mut Random) -> Option<(u64, u64)> {
        let link = self.link(from, to);
        let generation = link.ends[end(from, to)]?;
        let to_end = end(to, from);
        let arrival = now.max(link.blocked_until[to_end]) + random.delay(250);
        let arrival = arrival.max(link.last_arrival[to_end] + 1);
        link.last_arrival[to_end] = arrival;
        Some((arrival, generation))
    }

    pub fn arrives(&mut self, to: usize, from: usize, now: u64, generation: u64) -> bool {
        let link = self.link(from, to);
        let to_end = end(to, from);
        let is_cut = link.generation == generation && now > link.cut_at[to_end];
        let arrives = link.ends[to_end] == Some(generation) && !is_cut;
        if arrives {
            link.heard_at[to_end] = now;
        }
        arrives
    }
}
