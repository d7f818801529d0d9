//! Levelling: moving whole things from holders that have too many to holders that have too few, as
//! few as possible, where not everything may move everywhere.

use crate::invariants;

/// Possible moves.
pub(crate) trait Moves {
    /// Something that may move from one holder to another, the best if there are several.
    fn find(&self, from: usize, to: usize) -> Option<usize>;

    /// Moves it. The way back must be open.
    fn apply(&mut self, thing: usize, from: usize, to: usize);
}

/// Distances of holders from their fair numbers.
pub(crate) struct Level {
    /// Each holder's PGs above (or below, if negative) its fair number.
    pub surplus: Vec<f64>,
    /// How much above or below is level, at least 1.
    pub tolerance: Vec<f64>,
}

/// Longest chain of moves that together take one thing from where there are too many to where
/// there are too few.
const CHAIN_MAX: usize = 4;
/// Shares are sums of fractions; differences below this are none.
const EPSILON: f64 = 1e-6;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    /// From one that has too many.
    Away,
    /// To one that has too few.
    Towards,
}

impl Level {
    /// Moves until all are level, or nothing helps any more, or `moves_max` moves were made. Returns
    /// how many were made.
    ///
    /// Each chain lowers the sum of the squares of all surpluses, so this ends; and where it has
    /// ended of itself, starting it again does nothing.
    pub fn run(&mut self, moves: &mut impl Moves, moves_max: usize) -> usize {
        let (mut made, mut stuck) = (0, vec![false; self.surplus.len()]);
        while made < moves_max {
            let worst = (0..self.surplus.len())
                .filter(|holder| !stuck[*holder] && self.excess(*holder) > 0.0)
                .max_by(|one, other| self.excess(*one).total_cmp(&self.excess(*other)));
            let Some(worst) = worst else { break };
            match self.help(worst, moves) {
                0 => stuck[worst] = true,
                count => {
                    made += count;
                    stuck.fill(false);
                }
            }
        }
        invariants::moves_are_bounded(made, moves_max, CHAIN_MAX);
        made
    }

    /// How far a holder is outside its tolerance.
    fn excess(&self, holder: usize) -> f64 {
        self.surplus[holder].abs() - self.tolerance[holder] - EPSILON
    }

    /// Brings a holder nearer to its fair number. Returns the number of moves, 0 if none helps.
    fn help(&mut self, worst: usize, moves: &mut impl Moves) -> usize {
        let direction = if self.surplus[worst] > 0.0 { Direction::Away } else { Direction::Towards };
        let Some(chain) = self.chain(worst, direction, moves) else { return 0 };
        let mut done: Vec<(usize, usize, usize)> = Vec::new();
        // Room first, so that what moves on is not what has just come.
        let ordered: Vec<(usize, usize)> = match direction {
            Direction::Away => chain.iter().rev().copied().collect(),
            Direction::Towards => chain,
        };
        for &(from, to) in &ordered {
            let Some(thing) = moves.find(from, to) else {
                done.into_iter().rev().for_each(|(thing, from, to)| moves.apply(thing, to, from));
                return 0;
            };
            moves.apply(thing, from, to);
            done.push((thing, from, to));
        }
        self.surplus[ordered[ordered.len() - 1].0] -= 1.0;
        self.surplus[ordered[0].1] += 1.0;
        ordered.len()
    }

    /// Returns true if a holder may be the other end: it stays level, and both together get more level.
    fn may_end(&self, worst: usize, direction: Direction, end: usize) -> bool {
        let (from, to) = if direction == Direction::Away { (worst, end) } else { (end, worst) };
        let stays_level = match direction {
            Direction::Away => self.surplus[end] + 1.0 <= self.tolerance[end] + EPSILON,
            Direction::Towards => self.surplus[end] - 1.0 >= -self.tolerance[end] - EPSILON,
        };
        stays_level && self.surplus[from] - self.surplus[to] > 1.0 + EPSILON
    }

    /// The shortest chain from or to a holder; its moves in the order of the search.
    fn chain(&self, worst: usize, direction: Direction, moves: &impl Moves) -> Option<Vec<(usize, usize)>> {
        let step = |near, far| if direction == Direction::Away { (near, far) } else { (far, near) };
        // Where it helps most first.
        let mut holders: Vec<usize> = (0..self.surplus.len()).filter(|holder| *holder != worst).collect();
        holders.sort_by(|one, other| match direction {
            Direction::Away => self.surplus[*one].total_cmp(&self.surplus[*other]),
            Direction::Towards => self.surplus[*other].total_cmp(&self.surplus[*one]),
        });
        let mut reached: Vec<Option<usize>> = vec![None; self.surplus.len()];
        reached[worst] = Some(worst);
        let mut front = vec![worst];
        for _ in 0..CHAIN_MAX {
            let ends = holders.iter().filter(|end| reached[**end].is_none());
            let ends = ends.filter(|end| self.may_end(worst, direction, **end));
            for &end in ends {
                let open = |near: &&usize| {
                    let (from, to) = step(**near, end);
                    moves.find(from, to).is_some()
                };
                let Some(&near) = front.iter().find(open) else { continue };
                let mut chain = vec![step(near, end)];
                let mut at = near;
                while at != worst {
                    let before = reached[at].expect("every holder of the front was reached");
                    chain.push(step(before, at));
                    at = before;
                }
                chain.reverse();
                return Some(chain);
            }
            let mut next = Vec::new();
            for &near in &front {
                for &far in &holders {
                    let (from, to) = step(near, far);
                    if reached[far].is_none() && moves.find(from, to).is_some() {
                        reached[far] = Some(near);
                        next.push(far);
                    }
                }
            }
            front = next;
        }
        None
    }
}
