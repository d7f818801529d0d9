//! Faults that stand: once everything has settled, one begins and stays, and clients must be served all the same. Only
//! then does everything heal.

use crate::world::{Event, World, osd};

/// Simulated time within which requests must be answered while a fault stands.
const PATIENCE: u64 = 60_000_000;
/// It stands for longer than that.
const STANDS: u64 = 2 * PATIENCE;
/// Delay of pending messages that wait at a blocked link.
const LATE: u64 = 1_000_000;
/// Requests that begin with it.
const REQUESTS: usize = 8;

/// How far the standing fault of a run is.
#[derive(Clone, Copy, Debug, Default)]
pub enum Standing {
    /// There will be none, or it is over.
    #[default]
    Over,
    /// It begins when everything has settled.
    Ahead,
    /// It stands.
    Since { fault: StandingFault, begun: u64, first_request: usize },
}

#[derive(Clone, Copy, Debug)]
pub enum StandingFault {
    /// The primary is dead.
    DeadPrimary,
    /// A member is dead.
    DeadMember,
    /// The primary does not reach cluster state, and a member is dead.
    DeadMemberAndNoState,
    /// Nothing that the primary sends arrives at a member.
    DeafMember,
    /// Nothing that a member sends arrives at the primary.
    MuteMember,
    /// The store of a member refuses all data, of the primary or another one.
    RefusingStore,
    /// The same, but only for additions to one object, or for one write.
    RefusingForGood,
}

impl World {
    /// Everything has settled. False if a fault begins now that will stand.
    pub fn standing_fault_is_over(&mut self) -> bool {
        if !matches!(self.standing, Standing::Ahead) {
            return true;
        }
        use StandingFault::*;
        let all = [
            DeadPrimary,
            DeadMember,
            DeadMemberAndNoState,
            DeafMember,
            MuteMember,
            RefusingStore,
            RefusingForGood,
        ];
        let fault = self.random.one_of(all);
        if self.options.size() - 1 < self.options.min_size as usize {
            // Without one member nothing need be served.
            self.standing = Standing::Over;
            return true;
        }
        let primary = self.primary();
        let members = self.cluster.record.members.clone();
        let others: Vec<usize> = members.iter().map(|member| member.0 as usize - 1).collect();
        let others: Vec<usize> = others.into_iter().filter(|at| *at != primary).collect();
        let member = others[self.random.below(others.len() as u64) as usize];
        self.note("a fault stands", &[fault as u64, primary as u64, member as u64]);
        self.statistics.standing += 1;
        let until = self.now + STANDS;
        match fault {
            DeadPrimary => self.kill(primary),
            DeadMember => self.kill(member),
            DeadMemberAndNoState => {
                self.members[primary].state_blocked_until = until;
                self.kill(member);
            }
            DeafMember => self.network.block(primary, member, until),
            MuteMember => self.network.block(member, primary, until),
            RefusingStore => {
                let at = if self.random.chance(50) { primary } else { member };
                self.members[at].refuses_until = until;
            }
            RefusingForGood => {}
        }
        let first_request = self.clients.ops.len();
        self.standing = Standing::Since { fault, begun: self.now, first_request };
        self.options.quiet_at = self.now;
        for _ in 0..REQUESTS {
            let session = self.random.below(self.clients.sessions.len() as u64) as usize;
            self.start_any(session);
        }
        if matches!(fault, RefusingForGood) {
            // Of those, perhaps, one.
            let at = if self.random.chance(50) { primary } else { member };
            self.refuse_for_good(at);
        }
        false
    }

    /// Messages that wait at a blocked link arrive now, in their order.
    fn release_blocked(&mut self) {
        let is_blocked = |event: &Event| matches!(event, Event::PeerMessage { .. } | Event::PeerDown { .. });
        let late = self.queue.split_off(&(self.now + LATE, 0));
        let (blocked, others): (Vec<_>, Vec<_>) = late.into_iter().partition(|(_, event)| is_blocked(event));
        self.queue.extend(others);
        for (number, (_, event)) in blocked.into_iter().enumerate() {
            self.at(self.now + number as u64, event);
        }
        self.network.arrives_by(self.now + LATE);
    }

    /// Ends a fault that stands when clients have been served.
    pub fn judge_standing_fault(&mut self) {
        let Standing::Since { fault, begun, first_request } = self.standing else { return };
        if self.clients.ops[first_request..].iter().all(|op| op.answered.is_some()) {
            self.note("no fault stands", &[]);
            self.standing = Standing::Over;
            self.options.quiet_at = self.now;
            self.release_blocked();
            return self.heal();
        }
        assert!(
            self.now < begun + PATIENCE,
            "clients are not served while {fault:?} stands, {} was primary: {}",
            osd(self.primary()),
            self.what_is_not_settled()
        );
    }
}
