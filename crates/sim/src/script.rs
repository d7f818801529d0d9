//! Scenarios: the same world without faults by chance, driven by a script. OSDs are numbered from
//! 0.

use std::ops::{Deref, DerefMut};

use atoll_pg::{ClientId, PgState, Progress};
use atoll_types::{Condition, Epoch, Mutation, PgId, ReadRequest, Refusal, RequestId};
use atoll_wire::Message;

use crate::check::check;
use crate::clients::{Answer, Kind};
use crate::options::Options;
use crate::random::Random;
use crate::state::{PG, pg_of};
use crate::view::View;
use crate::workload::{BLOCK, block_of, key, object_name, write};
use crate::world::{Event, World};

/// Longer than anything takes that happens at all, in simulated microseconds.
const PATIENCE: u64 = 60_000_000;

/// A world driven by a script.
pub struct Script(World);

impl Deref for Script {
    type Target = World;

    fn deref(&self) -> &World {
        &self.0
    }
}

impl DerefMut for Script {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.0
    }
}

impl Script {
    /// All OSDs start, and the PG becomes active.
    pub fn new(options: Options) -> Self {
        let verbose = std::env::var("ATOLL_SIM_TRACE").is_ok();
        let mut script = Script(World::with_options(options, Random::new(1), verbose));
        script.run_while("the PG is not clean", |world| {
            let is_active = |at: usize| world.state_of(at) == Some(PgState::Active);
            !world.cluster.is_clean() || !is_active(world.primary())
        });
        script
    }

    pub fn run_until(&mut self, time: u64) {
        while self.next_time() <= time {
            self.next_step();
        }
        self.now = time;
    }

    pub fn run_for(&mut self, microseconds: u64) {
        self.run_until(self.now + microseconds);
    }

    /// Runs until an OSD has just had a tick, so that the next one is a whole pause away.
    pub fn run_past_tick(&mut self, at: usize) {
        let is_tick = |event: &Event| matches!(event, Event::Tick { at: of, .. } if *of == at);
        let tick = self.queue.iter().find(|(_, event)| is_tick(event)).map(|((time, _), _)| *time);
        // The answers to the pings that it sends tick, too.
        self.run_until(tick.expect("the OSD is up") + 2_000);
    }

    /// Runs event by event while a condition holds. Panics, with `what`, if it holds for too long.
    pub fn run_while(&mut self, what: &str, holds: impl Fn(&World) -> bool) {
        let end = self.now + PATIENCE;
        while holds(&self.0) {
            assert!(self.next_step() && self.now < end, "{what} for too long");
        }
    }

    /// Cuts an OSD off from all others for a while.
    pub fn cut_off(&mut self, at: usize, microseconds: u64) {
        let until = self.now + microseconds;
        for other in (0..self.members.len()).filter(|other| *other != at) {
            self.network.block(other, at, until);
            self.network.block(at, other, until);
        }
    }

    /// Cuts the way from one OSD to another for a while.
    pub fn cut_one_way(&mut self, from: usize, to: usize, microseconds: u64) {
        let until = self.now + microseconds;
        self.network.block(from, to, until);
    }

    /// Pauses an OSD's process for a while; its clock runs.
    pub fn stand_still(&mut self, at: usize, microseconds: u64) {
        self.members[at].paused_until = self.now + microseconds;
    }

    /// Cuts an OSD off from cluster state for a while.
    pub fn keep_from_state(&mut self, at: usize, microseconds: u64) {
        self.members[at].state_blocked_until = self.now + microseconds;
    }

    /// The stores that read a block look at it again before they answer.
    pub fn look_again(&mut self, object: u64, block: u64) {
        for event in self.0.queue.values_mut() {
            if let Event::ReadDone { looks_again, .. } = event {
                let request = ReadRequest::checked_data(block * BLOCK, BLOCK as u32);
                *looks_again = Some((object_name(object), request));
            }
        }
    }

    /// An OSD says something to another one that no PG of it has said.
    pub fn says(&mut self, from: usize, to: usize, message: Message) {
        self.peer_message(from, to, message);
    }

    /// An OSD sees only the newest of the records that are on their way to it, as a watch may do.
    pub fn miss_old_records(&mut self, at: usize) {
        let newest = self.cluster.record.epoch;
        self.0.queue.retain(|_, event| {
            !matches!(event, Event::Record { at: to, record, .. } if *to == at && record.epoch < newest)
        });
    }

    /// The PG should have these members, the first as primary.
    pub fn plan(&mut self, target: &[usize]) {
        self.cluster.target = target.iter().map(|at| crate::world::osd(*at)).collect();
        for at in 0..self.members.len() {
            let incarnation = self.members[at].incarnation;
            self.after(3_000, Event::Target { at, incarnation });
        }
    }

    /// A late copy of a request, of an old epoch, arrives at an OSD. Returns its connection.
    pub fn arrives_late(&mut self, op: usize, at: usize, epoch: Epoch) -> ClientId {
        let request = match &self.clients.ops[op].kind {
            Kind::Write(request) => request.clone(),
            Kind::Read(..) => panic!("only writes are checked for late copies"),
        };
        let (id, session) = (self.id_of(op), self.clients.ops[op].session);
        let known = self.clients.ops[op].known.expect("it was sent");
        let conn = self.clients.conn_id(session, PG);
        self.request(conn, at, Message::Write { id, answered_below: 0, known, pg: PG, epoch, request });
        conn
    }

    /// How a late copy of a write was answered.
    pub fn answer_to_copy(&self, conn: ClientId) -> Option<&Result<(), Refusal>> {
        match self.clients.missed.get(&conn)? {
            Message::WriteReply { result, .. } => Some(result),
            other => panic!("a write is answered {other:?}"),
        }
    }

    /// Ends all faults, waits until everything has settled, and checks the answers that clients
    /// saw.
    pub fn finish(mut self) -> World {
        self.options.quiet_at = self.now;
        self.heal();
        self.run();
        check(&self.0);
        self.0
    }
}

impl World {
    pub fn state_of(&self, at: usize) -> Option<PgState> {
        self.members[at].pgs.get(&PG).map(|pg| pg.state().clone())
    }

    /// The epoch in force as an OSD knows it.
    pub fn epoch_at(&self, at: usize) -> Option<Epoch> {
        self.members[at].pgs.get(&PG).map(|pg| pg.record().epoch)
    }

    /// Returns true if a store reads data.
    pub fn is_reading(&self) -> bool {
        self.queue.values().any(|event| matches!(event, Event::ReadDone { .. }))
    }

    /// The answer to a request, if it has come.
    pub fn answer_of(&self, op: usize) -> Option<&Answer> {
        self.clients.ops[op].answered.as_ref().map(|(_, answer)| answer)
    }

    pub fn id_of(&self, op: usize) -> RequestId {
        self.clients.ops[op].id
    }

    /// How far a request has come at the primary.
    pub fn progress(&self, op: usize) -> Option<Progress> {
        let at = self.primary();
        let member = &self.members[at];
        let view =
            View { store: &member.store, leases: &member.leases, full: &member.full, now_ms: self.local_ms(at) };
        member.pgs[&PG].progress(self.clients.conn_of(op, PG), self.id_of(op).sequence, &view)
    }

    /// Returns true if a write is durable on an OSD, or was.
    pub fn was_durable(&self, op: usize, at: usize) -> bool {
        self.members[at].store.requests.contains(&self.id_of(op))
    }

    /// Returns true if a write is in the log that an OSD's store shows.
    pub fn shows(&self, op: usize, at: usize) -> bool {
        self.members[at].store.visible.of(PG).log.iter().any(|entry| entry.request == Some(self.id_of(op)))
    }
}

/// Writes one block full of a number.
pub fn write_block(object: u64, block: u64, value: u64) -> Kind {
    let mutation = Mutation::Write { offset: block * BLOCK, length: BLOCK as u32, seals: None };
    write(object_name(object), vec![], vec![mutation], block_of(value))
}

/// Writes blocks from the object's beginning on, each full of a number.
pub fn write_blocks(object: u64, count: u64, value: u64) -> Kind {
    let mutation = Mutation::Write { offset: 0, length: (count * BLOCK) as u32, seals: None };
    write(object_name(object), vec![], vec![mutation], block_of(value).repeat(count as usize))
}

/// Creates an object that must not exist.
pub fn create(object: u64) -> Kind {
    write(object_name(object), vec![Condition::ObjectAbsent], vec![Mutation::Create], vec![])
}

/// Removes an object.
pub fn remove(object: u64) -> Kind {
    write(object_name(object), vec![], vec![Mutation::Remove], vec![])
}

/// Makes an object a clone of another.
pub fn clone_of(object: u64, source: u64) -> Kind {
    write(object_name(object), vec![], vec![Mutation::CloneFrom { source: object_name(source) }], vec![])
}

/// The PG of an object when there are two.
pub fn half_of(object: u64) -> PgId {
    pg_of(&object_name(object), 2)
}

/// Sets an omap entry.
pub fn write_key(object: u64, value: &'static str) -> Kind {
    write(object_name(object), vec![], vec![Mutation::OmapSet { key: key(0), value: value.into() }], vec![])
}

/// Reads one block.
pub fn read_block(object: u64, block: u64) -> Kind {
    Kind::Read(object_name(object), ReadRequest::checked_data(block * BLOCK, BLOCK as u32))
}

/// The contents of a block that was written as `value`.
pub fn block(value: u64) -> Vec<u8> {
    block_of(value)
}

/// The data of a read that was answered.
pub fn data_of(answer: Option<&Answer>) -> Option<&[u8]> {
    match answer {
        Some(Answer::Found(Ok(_), data)) => Some(data),
        _ => None,
    }
}

/// Sets an omap entry, if another object exists.
pub fn write_key_if(other: u64, object: u64, value: &'static str) -> Kind {
    let exists = Condition::OtherExists { object: object_name(other) };
    write(object_name(object), vec![exists], vec![Mutation::OmapSet { key: key(0), value: value.into() }], vec![])
}
