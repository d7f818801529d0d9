//! The shell of a member: gives its group events and does what it asks for.

use atoll_base::operation::PG_META_OBJECT;
use atoll_base::records::PgRecord;
use atoll_base::{Mutation, RequestId, Transaction};
use atoll_pg::{Action, ClientId, Leases, Lookup, Pg, Token};
use atoll_wire::Message;

use crate::state::{PG, name};
use crate::store::clone_source;
use crate::view::View;
use crate::world::{Event, Member, SILENCE, TICK, World, osd};

/// More actions in a row than any event gives cause for.
const ACTIONS_MAX: usize = 10_000;

impl World {
    pub fn with_pg(&mut self, at: usize, event: impl FnOnce(&mut Pg, &View)) {
        let now_ms = self.local_ms(at);
        let member = &mut self.members[at];
        if let Some(pg) = &mut member.pg {
            event(pg, &View { store: &member.store, leases: &member.leases, now_ms });
            // Now and then several events come before the actions are taken.
            if self.mishap(15) {
                self.after(100, Event::Run { at });
            } else {
                self.run_pg(at);
            }
        }
    }

    pub fn request(&mut self, conn: ClientId, to: usize, message: Message) {
        let member = &mut self.members[to];
        match message {
            Message::Read { id, object, request, .. } => {
                *member.owed_reads.entry((conn, id.sequence)).or_insert(0) += 1;
                self.note("request read", &[id.session, id.sequence]);
                self.with_pg(to, |pg, view| pg.client_read(conn, id, object, request, view));
            }
            Message::Write { id, answered_below, request, .. } => {
                // What the client has been answered is owed nothing.
                if id.sequence >= self.clients.answered_below(id.session) {
                    member.owed_writes.insert(id);
                }
                self.note("request write", &[id.session, id.sequence]);
                self.with_pg(to, |pg, view| pg.client_write(conn, id, answered_below, request, view));
            }
            _ => unreachable!("clients send nothing else"),
        }
    }

    pub fn peer_message(&mut self, from: usize, to: usize, message: Message) {
        match message {
            Message::Ping { tag } => {
                // Whatever the group has to say goes first: it may take a lease away.
                self.run_pg(to);
                let now_ms = self.local_ms(to);
                self.members[to].leases.granted(osd(from), now_ms);
                self.send(to, from, Message::Pong { tag, is_full: false });
            }
            Message::Pong { tag, .. } => {
                let now_ms = self.local_ms(to);
                self.members[to].leases.renewed(osd(from), tag, now_ms);
                self.with_pg(to, |pg, view| pg.tick(view));
            }
            message => {
                let kind = format!("{message:?}");
                self.note(kind.split([' ', '{']).next().unwrap(), &[from as u64, to as u64]);
                if self.verbose && matches!(message, Message::PeerQuery { .. } | Message::PeerInfo { .. }) {
                    println!("         {kind}");
                }
                self.with_pg(to, |pg, view| pg.message(osd(from), message, view));
            }
        }
    }

    fn send(&mut self, from: usize, to: usize, message: Message) {
        if let Some((time, generation)) = self.network.send(from, to, self.now, &mut self.random) {
            self.at(time, Event::PeerMessage { from, to, generation, message });
        }
    }

    pub fn tick(&mut self, at: usize) {
        for other in (0..self.members.len()).filter(|other| *other != at) {
            if let Some(generation) = self.network.silent(at, other, self.now, SILENCE) {
                self.break_link(at, other);
                self.at(self.now, Event::PeerDown { at, other, generation });
            } else if !self.network.is_up(at, other) {
                self.connect(at, other);
            } else if !self.mishap(50) {
                let tag = self.local_ms(at);
                self.send(at, other, Message::Ping { tag });
            }
        }
        self.with_pg(at, |pg, view| pg.tick(view));
    }

    pub fn run_pg(&mut self, at: usize) {
        let now_ms = self.local_ms(at);
        for _ in 0..ACTIONS_MAX {
            let member = &mut self.members[at];
            let Some(pg) = &mut member.pg else { return };
            let action = pg.next_action().or_else(|| {
                pg.proceed(&View { store: &member.store, leases: &member.leases, now_ms });
                pg.next_action()
            });
            let Some(action) = action else { return self.evict(at) };
            self.perform(at, action);
        }
        panic!("the group on member {at} does not come to rest");
    }

    /// Now and then memory is needed for something else; never between what the group was told and
    /// the actions that rest on it.
    fn evict(&mut self, at: usize) {
        if self.random.chance(self.options.eviction_percent) {
            let loaded = &mut self.members[at].store.loaded;
            let chosen = self.random.below(loaded.len().max(1) as u64) as usize;
            if let Some(object) = loaded.iter().nth(chosen).cloned() {
                loaded.remove(&object);
            }
        }
    }

    pub fn loaded(&mut self, at: usize, token: Token, lookup: &Lookup) {
        // What has come may be gone again before its turn.
        if !self.random.chance(self.options.eviction_percent) {
            self.members[at].store.load(lookup);
        }
        self.with_pg(at, |pg, view| pg.loaded(token, view));
    }

    fn perform(&mut self, at: usize, action: Action) {
        let incarnation = self.members[at].incarnation;
        match action {
            Action::Submit { token, transaction } => {
                assert_eq!(transaction.pg, PG);
                if self.members[at].store.has_room() {
                    self.submit(at, token, transaction);
                } else {
                    self.statistics.backlogged += 1;
                    self.members[at].store.backlog.push_back((token, transaction));
                }
            }
            Action::Load { token, lookup } => {
                self.statistics.loads += 1;
                self.after(300, Event::Loaded { at, incarnation, token, lookup });
            }
            Action::Read { token, object, request } => {
                let answer = self.members[at].store.read(&object, &request);
                self.after(150, Event::ReadDone { at, incarnation, token, answer });
            }
            Action::ListObjects { token, after } => {
                self.statistics.lists += 1;
                let (objects, more) = self.members[at].store.objects(after.as_ref(), self.objects_listed_max);
                self.after(1_000, Event::Listed { at, incarnation, token, objects, more });
            }
            Action::ReadForSync { token, object, touched, .. } => {
                self.statistics.syncs += 1;
                self.statistics.whole_syncs += u64::from(touched.whole);
                let store = &mut self.members[at].store;
                let result = store.read_for_sync(&object, &touched);
                if let Err(block) = result
                    && self.random.chance(50)
                {
                    // Stands for a scrub.
                    store.bad.remove(&(object, block));
                }
                let result = result.map_err(|block| format!("block {block} is damaged"));
                self.after(300, Event::SyncRead { at, incarnation, token, result });
            }
            Action::Scrub { token, object, deep } => {
                let finding = self.members[at].store.scrub(&object, deep);
                self.after(300, Event::Scrubbed { at, incarnation, token, finding });
            }
            Action::ScrubDone { report } => self.scrub_done(at, report),
            Action::Send { to, message } => {
                let to = to.0 as usize - 1;
                self.count(&message);
                self.send(at, to, message);
            }
            Action::Reply { client, message } => self.reply(at, client, message),
            Action::Propose { expected, record } => {
                self.note("propose", &[record.epoch.0, record.activated_epoch.0]);
                if self.is_quiet() || !self.mishap(15) {
                    let reached_at = self.now.max(self.members[at].state_blocked_until);
                    let delay = self.random.delay(1_000);
                    self.at(reached_at + delay, Event::Swap { at, expected, record });
                }
            }
            Action::Warn { text } => {
                if self.verbose {
                    println!("{:>8} {text}", self.now);
                }
            }
        }
    }

    fn count(&mut self, message: &Message) {
        self.statistics.copy_reads += u64::from(matches!(message, Message::CopyRead { .. }));
        if let Message::PeerSync { transaction, .. } = message {
            for mutation in &transaction.mutations {
                self.statistics.learners += u64::from(matches!(mutation, Mutation::ResetLog { .. }));
            }
        }
    }

    fn submit(&mut self, at: usize, token: Token, transaction: Transaction) {
        let refuses_data = self.now < self.members[at].refuses_until;
        if !self.members[at].store.takes(&transaction, refuses_data) {
            self.statistics.refused += 1;
            self.note("refuse", &[at as u64, token.0]);
            let now_ms = self.local_ms(at);
            let member = &mut self.members[at];
            let view = View { store: &member.store, leases: &member.leases, now_ms };
            return member.pg.as_mut().unwrap().submit_failed(token, "it says so", &view);
        }
        if let Some(source) = clone_source(&transaction.mutations)
            && self.damaged.contains(source)
        {
            self.damaged.insert(transaction.object.clone());
        }
        let head = self.members[at].store.visible.head;
        let cuts = |mutation: &Mutation| matches!(mutation, Mutation::ResetLog { head: to } if *to < head);
        self.statistics.rollbacks += u64::from(transaction.mutations.iter().any(cuts));
        let incarnation = self.members[at].incarnation;
        let sequence = transaction.log.last().map_or(0, |entry| entry.version.sequence);
        self.note("submit", &[at as u64, token.0, sequence]);
        let usual = if self.now < self.members[at].slow_until { 5_000 } else { 300 };
        let time = (self.now + self.random.delay(usual)).max(self.members[at].last_commit);
        let member = &mut self.members[at];
        member.store.submit(token, transaction);
        member.last_commit = time;
        self.at(time, Event::Commit { at, incarnation });
    }

    pub fn set_room(&mut self, at: usize, out_of_room: bool) {
        self.members[at].store.out_of_room = out_of_room;
        while !self.members[at].store.out_of_room {
            let Some((token, transaction)) = self.members[at].store.backlog.pop_front() else { break };
            self.submit(at, token, transaction);
        }
        self.run_pg(at);
    }

    fn reply(&mut self, at: usize, client: ClientId, message: Message) {
        let owed_reads = &mut self.members[at].owed_reads;
        match &message {
            Message::ReadReply { sequence, .. } => {
                let owed = owed_reads.get_mut(&(client, *sequence)).expect("a read is answered once");
                *owed -= 1;
                if *owed == 0 {
                    owed_reads.remove(&(client, *sequence));
                }
            }
            Message::WriteReply { sequence, result } => {
                let session = self.clients.session_of(client);
                let request = RequestId { session, sequence: *sequence };
                self.members[at].owed_writes.remove(&request);
                let is_durable = |member: &Member| member.store.requests.contains(&request);
                let record = self.members[at].pg.as_ref().unwrap().record();
                let is_everywhere =
                    record.last_active_members.iter().all(|osd| is_durable(&self.members[osd.0 as usize - 1]));
                assert!(is_everywhere || result.is_err(), "{request:?} acknowledged before all members have it");
            }
            _ => unreachable!("clients get nothing else"),
        }
        self.send_answer(client, message);
    }

    pub fn restart_member(&mut self, at: usize, record: PgRecord) {
        let now_ms = self.local_ms(at);
        let (policy, target) = (self.policy, self.cluster.target.clone());
        let member = &mut self.members[at];
        member.store.loaded.insert(name(PG_META_OBJECT));
        member.leases = Leases::new(now_ms);
        let view = View { store: &member.store, leases: &member.leases, now_ms };
        member.pg = Some(Pg::new(PG, osd(at), policy, target, record, &view));
        let incarnation = member.incarnation;
        self.at(self.now + TICK, Event::Tick { at, incarnation });
        self.run_pg(at);
    }

    /// The process at `at` is gone.
    pub fn stop_member(&mut self, at: usize) {
        let member = &mut self.members[at];
        member.pg = None;
        member.incarnation += 1;
        member.paused_until = 0;
        member.store.crash();
        member.last_commit = 0;
        member.owed_reads.clear();
        member.owed_writes.clear();
    }
}
