//! Connections between members: each keeps the order of its messages until it breaks. Both ends
//! learn of a break at times of their own; before that, some of what was in flight still arrives.

use std::collections::BTreeMap;

use crate::random::Random;

#[derive(Default)]
pub struct Link {
    pub generation: u64,
    broken: bool,
    /// The generation that each end knows as up; the lower-numbered member first.
    ends: [Option<u64>; 2],
    up_at: [u64; 2],
    /// Nothing sent to this end arrives after this time.
    cut_at: [u64; 2],
    last_arrival: [u64; 2],
}

/// All connections between members, numbered 0 to 2.
pub struct Network {
    links: BTreeMap<(usize, usize), Link>,
}

pub fn pairs() -> impl Iterator<Item = (usize, usize)> {
    [(0, 1), (0, 2), (1, 2)].into_iter()
}

fn pair(a: usize, b: usize) -> (usize, usize) {
    (a.min(b), a.max(b))
}

impl Network {
    pub fn new() -> Self {
        let link = || Link { broken: true, ..Link::default() };
        Network { links: pairs().map(|pair| (pair, link())).collect() }
    }

    fn link(&mut self, a: usize, b: usize) -> &mut Link {
        self.links.get_mut(&pair(a, b)).unwrap()
    }

    /// Makes a new connection if both ends know that the old one is gone: the times at which the
    /// ends learn of it, and its generation.
    pub fn connect(&mut self, a: usize, b: usize, now: u64, random: &mut Random) -> Option<([u64; 2], u64)> {
        let link = self.link(a, b);
        if !link.broken || link.ends != [None, None] {
            return None;
        }
        link.broken = false;
        link.generation += 1;
        link.up_at = [now + random.delay(500), now + random.delay(500)];
        link.last_arrival = link.up_at;
        link.cut_at = [u64::MAX; 2];
        Some((link.up_at, link.generation))
    }

    /// Breaks the connection: the ends that must be told, and when.
    pub fn break_link(&mut self, a: usize, b: usize, now: u64, random: &mut Random) -> Vec<(usize, u64, u64)> {
        let link = self.link(a, b);
        if link.broken {
            return Vec::new();
        }
        link.broken = true;
        link.cut_at = [now + random.below(400), now + random.below(400)];
        let told = [(a.min(b), link.ends[0]), (a.max(b), link.ends[1])].into_iter();
        told.filter_map(|(end, up)| up.map(|generation| (end, now + random.delay(1500), generation))).collect()
    }

    /// Whether `at` shall be told that its connection is up.
    pub fn comes_up(&mut self, at: usize, other: usize, generation: u64) -> bool {
        let link = self.link(at, other);
        let is_up = !link.broken && link.generation == generation;
        if is_up {
            link.ends[usize::from(at > other)] = Some(generation);
        }
        is_up
    }

    /// Whether `at` shall be told that its connection is down.
    pub fn goes_down(&mut self, at: usize, other: usize, generation: u64) -> bool {
        let end = &mut self.link(at, other).ends[usize::from(at > other)];
        let was_up = *end == Some(generation);
        if was_up {
            *end = None;
        }
        was_up
    }

    /// The process at an end is gone, and what it knew.
    pub fn forget_end(&mut self, at: usize, other: usize) {
        self.link(at, other).ends[usize::from(at > other)] = None;
    }

    /// When a message sent now arrives, and over which connection; `None` if it is lost at once.
    pub fn send(&mut self, from: usize, to: usize, now: u64, random: &mut Random) -> Option<(u64, u64)> {
        let link = self.link(from, to);
        let generation = link.ends[usize::from(from > to)]?;
        let end = usize::from(to > from);
        let arrival = (now + random.delay(250)).max(link.last_arrival[end] + 1);
        link.last_arrival[end] = arrival;
        Some((arrival, generation))
    }

    pub fn arrives(&mut self, to: usize, from: usize, now: u64, generation: u64) -> bool {
        let link = self.link(from, to);
        let end = usize::from(to > from);
        link.ends[end] == Some(generation) && (link.generation != generation || now <= link.cut_at[end])
    }
}
