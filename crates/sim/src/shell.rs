//! The shell of a member: gives its PGs events and performs their actions.

use std::fmt::Write;

use atoll_pg::{Action, ClientId, Leases, Lookup, Pg, PgState, ReadFailure, Sender, Token};
use atoll_storage::RecoveryRead;
use atoll_terminal::print_line;
use atoll_types::operation::PG_META_OBJECT;
use atoll_types::records::PgRecord;
use atoll_types::{ObjectName, OsdId, PgId, ReadRequest, Refusal, RequestId, Room, Touched, Transaction, Version};
use atoll_wire::Message;
use bytes::Bytes;

use crate::device::Memory;
use crate::state::name;
use crate::store::clone_source;
use crate::view::View;
use crate::world::{Event, SILENCE, Swap, TICK, World, osd};

/// Largest number of actions for one event.
const ACTIONS_MAX: usize = 10_000;

impl World {
    /// Gives an event to a PG, if the member has it.
    pub fn with_pg(&mut self, at: usize, pg: PgId, event: impl FnOnce(&mut Pg, &View)) {
        let now_ms = self.local_ms(at);
        let member = &mut self.members[at];
        if let Some(found) = member.pgs.get_mut(&pg) {
            event(found, &View { store: &member.store, leases: &member.leases, full: &member.full, now_ms });
            self.one_primary_reads(pg, at);
            self.members_of_an_active_pg_have_promised(pg, at);
            // Now and then several events come before the actions are taken.
            self.turns.insert(at);
            if self.mishap(15) {
                self.members[at].not_run.insert(pg);
                self.after(100, Event::Run { at });
            } else {
                self.run_pg(at, pg);
            }
        }
    }

    pub fn with_each_pg(&mut self, at: usize, event: impl Fn(&mut Pg, &View)) {
        for pg in self.members[at].pgs.keys().copied().collect::<Vec<_>>() {
            self.with_pg(at, pg, &event);
        }
    }

    /// Time has passed, or a lease was renewed. Half of the members skip idle PGs, as an OSD does;
    /// the others show that a tick does nothing to them.
    pub fn tick_pgs(&mut self, at: usize) {
        let leaves_alone = at % 2 == 1;
        let now_ms = self.local_ms(at);
        for pg in self.members[at].pgs.keys().copied().collect::<Vec<_>>() {
            let member = &self.members[at];
            let is_idle = member.pgs[&pg].is_idle(&View {
                store: &member.store,
                leases: &member.leases,
                full: &member.full,
                now_ms,
            });
            if is_idle && leaves_alone {
                continue;
            }
            self.with_pg(at, pg, |pg, view| {
                pg.tick(view);
                if is_idle {
                    pg.proceed(view);
                    assert!(pg.is_idle(view), "a tick does nothing to an idle PG");
                }
            });
        }
    }

    pub fn run_pgs(&mut self, at: usize) {
        for pg in self.members[at].pgs.keys().copied().collect::<Vec<_>>() {
            self.run_pg(at, pg);
        }
    }

    pub fn request(&mut self, conn: ClientId, to: usize, message: Message) {
        let member = &mut self.members[to];
        match message {
            Message::Read { id, pg, object, request, .. } => {
                if !member.pgs.contains_key(&pg) {
                    let result = Err(Refusal::NotPrimary);
                    let reply = Message::ReadReply {
                        sequence: id.sequence,
                        opens_seals: false,
                        result,
                        payload: Bytes::new(),
                    };
                    return self.send_answer(conn, reply);
                }
                *member.owed_reads.entry((conn, id.sequence)).or_insert(0) += 1;
                self.note("request read", &[id.session, id.sequence, pg.index.into(), to as u64]);
                self.with_pg(to, pg, |pg, view| pg.client_read(conn, id, object, request, view));
            }
            Message::Write { id, answered_below, known, pg, epoch, request } => {
                if !member.pgs.contains_key(&pg) {
                    let (sequence, committed, result) =
                        (id.sequence, Version::default(), Err(Refusal::NotPrimary));
                    let reply = Message::WriteReply { sequence, pg, committed, result };
                    return self.send_answer(conn, reply);
                }
                // A request that was answered is owed nothing.
                if id.sequence >= self.clients.answered_below(id.session, pg, &self.cluster) {
                    member.owed_writes.insert(id);
                }
                self.note("request write", &[id.session, id.sequence, pg.index.into(), to as u64]);
                self.members[to].write_comes_in(pg, id, &request.object);
                let sender = Sender { client: conn, id, answered_below, known, epoch };
                self.with_pg(to, pg, |pg, view| pg.client_write(sender, request, view));
            }
            _ => unreachable!("clients send nothing else"),
        }
    }

    pub fn peer_message(&mut self, from: usize, to: usize, message: Message) {
        match message {
            Message::Ping { tag } => {
                // Messages of PGs go first: one of them may end a lease.
                self.run_pgs(to);
                let now_ms = self.local_ms(to);
                self.members[to].leases.granted(osd(from), now_ms);
                let room = if self.is_full(to) { Room::Overwrites } else { Room::Enough };
                self.send(to, from, Message::Pong { tag, room });
            }
            Message::Pong { tag, room } => {
                self.hears_of_full(to, from, room.is_full());
                let now_ms = self.local_ms(to);
                self.members[to].leases.renewed(osd(from), tag, now_ms);
                self.tick_pgs(to);
            }
            message => {
                let Some(pg) = message.pg() else { return };
                if matches!(message, Message::PeerQuery { .. }) {
                    self.add_pg(to, pg);
                }
                if let (Message::Fenced { epoch, .. }, false) = (&message, self.members[to].pgs.contains_key(&pg))
                {
                    return self.send(to, from, Message::FencedAck { pg, epoch: *epoch });
                }
                self.note(&kind_of(&message), &[from as u64, to as u64]);
                if self.verbose && matches!(message, Message::PeerQuery { .. } | Message::PeerInfo { .. }) {
                    print_line!("         {message:?}");
                }
                self.with_pg(to, pg, |pg, view| pg.message(osd(from), message, view));
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
        self.tick_pgs(at);
    }

    pub fn run_pg(&mut self, at: usize, pg: PgId) {
        let now_ms = self.local_ms(at);
        self.turns.insert(at);
        self.members[at].not_run.remove(&pg);
        for _ in 0..ACTIONS_MAX {
            let member = &mut self.members[at];
            let Some(running) = member.pgs.get_mut(&pg) else { return };
            let action = running.next_action().or_else(|| {
                running.proceed(&View {
                    store: &member.store,
                    leases: &member.leases,
                    full: &member.full,
                    now_ms,
                });
                running.next_action()
            });
            let Some(action) = action else {
                self.let_copy(at, pg);
                return self.evict(at, pg);
            };
            self.perform(at, pg, action);
        }
        panic!("PG {pg} on member {at} does not run out of actions");
    }

    /// Sooner or later the shell lets the PG copy another object.
    fn let_copy(&mut self, at: usize, pg: PgId) {
        let member = &mut self.members[at];
        if member.pgs.get(&pg).is_some_and(Pg::wants_to_backfill) && member.may_copy_soon.insert(pg) {
            let incarnation = member.incarnation;
            self.after(2_000, Event::MayCopy { at, incarnation, pg });
        }
    }

    /// Now and then evicts metadata; never between an event and the actions that rely on it.
    fn evict(&mut self, at: usize, pg: PgId) {
        if self.random.chance(self.options.eviction_percent) {
            let loaded = &mut self.members[at].store.loaded;
            let of_pg: Vec<_> = loaded.iter().filter(|(of, _)| *of == pg).cloned().collect();
            if !of_pg.is_empty() {
                loaded.remove(&of_pg[self.random.below(of_pg.len() as u64) as usize]);
            }
            self.members[at].store.lists_loaded.remove(&pg);
        }
    }

    pub fn loaded(&mut self, at: usize, pg: PgId, token: Token, lookup: &Lookup) {
        // It may be evicted again before its turn.
        if !self.random.chance(self.options.eviction_percent) {
            self.members[at].store.load(pg, lookup);
        }
        self.with_pg(at, pg, |pg, view| pg.loaded(token, view));
    }

    fn perform(&mut self, at: usize, pg: PgId, action: Action) {
        let incarnation = self.members[at].incarnation;
        match action {
            Action::Submit { token, transaction } => {
                assert_eq!(transaction.pg, pg);
                self.writes_start_in_order(at, &transaction);
                if self.has_real_store(at) {
                    if self.is_refused_by_chance(at, &transaction) {
                        self.refuse(at, pg, token);
                    } else {
                        self.submit_to_device(at, token, transaction);
                    }
                } else if self.members[at].store.has_room(pg) {
                    self.submit(at, token, Transaction::clone(&transaction));
                } else {
                    self.statistics.backlogged += 1;
                    self.members[at].store.backlog.push_back((token, Transaction::clone(&transaction)));
                }
            }
            Action::Load { token, lookup } => {
                self.statistics.loads += 1;
                if self.has_real_store(at) {
                    return self.load_from_device(at, pg, token, lookup);
                }
                self.after(300 + self.store_pause, Event::Loaded { at, incarnation, pg, token, lookup });
            }
            Action::Read { token, object, request } if self.has_real_store(at) => {
                self.read_device(at, pg, token, object, request);
            }
            Action::Read { token, object, request } => self.read(at, pg, token, &object, &request),
            Action::ListObjects { token, after } => {
                self.statistics.lists += 1;
                if self.has_real_store(at) {
                    return self.list_device(at, pg, token, after);
                }
                let (objects, more) = self.members[at].store.objects(pg, after.as_ref(), self.objects_listed_max);
                self.after(1_000, Event::Listed { at, incarnation, pg, token, objects, more });
            }
            Action::ReadObject { token, object, touched, from, .. } => {
                self.read_for_backfill(at, pg, token, object, &touched, from);
            }
            Action::Scrub { token, object, deep } if self.has_real_store(at) => {
                self.scrub_device(at, pg, token, object, deep);
            }
            Action::Scrub { token, object, deep } => {
                let finding = self.members[at].store.scrub(pg, &object, deep);
                self.after(300, Event::Scrubbed { at, incarnation, pg, token, finding });
            }
            Action::ScrubDone { report } => self.scrub_done(at, pg, report),
            Action::Send { to, message } => {
                let to = to.0 as usize - 1;
                self.count(&message);
                self.note_ordered(at, to, &message);
                self.send(at, to, message);
            }
            Action::ReadTookLong { reached, .. } => {
                let times = reached.iter().map(|(_, reached_us)| *reached_us);
                let all = times.chain([self.local_ms(at) * 1_000]);
                assert!(all.is_sorted(), "a read had come to this by now: {reached:?}");
                self.slow_reads.push(reached);
            }
            Action::Durable { ordered_us, late, .. } => self.told_times_are_true(at, ordered_us, &late),
            Action::Reply { client, message } => self.reply(at, pg, client, message),
            Action::Propose { expected, record, split_off } => {
                let split_off = split_off.map(|off| off.1);
                self.propose(at, pg, Swap { expected: *expected, record: *record, split_off });
            }
            Action::ReadForBackfill { begins, bytes } => self.note("read to backfill", &[begins.into(), bytes]),
            Action::ForgetPreImages { through } => {
                // Not durable: a crash may bring the pre-images back.
                let store = &mut self.members[at].store;
                store.visible.of_mut(pg).forget_pre_images(through);
                if let Some(device) = &mut store.device {
                    device.storage.forget_pre_images(pg, through);
                }
            }
            Action::Warn { text } => {
                if self.verbose {
                    print_line!("{:>8} {text}", self.now);
                }
            }
        }
    }

    fn read(&mut self, at: usize, pg: PgId, token: Token, object: &ObjectName, request: &ReadRequest) {
        let incarnation = self.members[at].incarnation;
        let answer = self.members[at].store.read(pg, object, request);
        if let Err(ReadFailure::Corrupt { blocks }) = &answer {
            self.read_meets_damage(pg, at, object, blocks);
        }
        let may_look_again = matches!(request, ReadRequest::Data { .. }) && token.0.is_multiple_of(3);
        let looks_again = may_look_again.then(|| (object.clone(), request.clone()));
        self.after(150 + self.store_pause, Event::ReadDone { at, incarnation, pg, token, answer, looks_again });
    }

    /// Sometimes an operator repairs an object that a read of a shard has found damaged: with other shards away or
    /// incomplete, too, it may be lost.
    pub fn read_meets_damage(&mut self, pg: PgId, at: usize, object: &ObjectName, blocks: &[u32]) {
        let Some(shape) = self.options.shape else { return };
        let state = self.cluster.of(pg).expect("the PG exists");
        let is_incomplete = |osd: &OsdId| self.members[osd.0 as usize - 1].store.is_incomplete(pg);
        // While the PG peers, members that lack the last writes lack shards.
        let lacks_shards = state.shards() < shape.shards().into()
            || state.record.members.iter().any(is_incomplete)
            || state.record.activated_epoch != state.record.epoch;
        if lacks_shards && self.random.chance(50) {
            let bad = &mut self.members[at].store.bad;
            bad.retain(|(other, block)| other != object || !blocks.contains(block));
        }
    }

    fn read_for_backfill(
        &mut self,
        at: usize,
        pg: PgId,
        token: Token,
        object: ObjectName,
        touched: &Touched,
        from: Option<u64>,
    ) {
        let incarnation = self.members[at].incarnation;
        let is_first = from.unwrap_or(0) == 0;
        self.statistics.backfill_reads += u64::from(is_first);
        self.statistics.whole_backfill_reads += u64::from(is_first && touched.whole);
        self.statistics.further_parts += u64::from(!is_first);
        if self.has_real_store(at) {
            let read = RecoveryRead { pg, token, object, touched: touched.clone(), from };
            return self.read_device_for_backfill(at, read);
        }
        let is_small = self.random.chance(50);
        let member = &mut self.members[at];
        let result = member.store.read_for_backfill(pg, &object, touched, from, is_small);
        let result = result.map_err(|block| self.backfill_read_meets_damage(at, pg, object, block));
        self.after(300, Event::BackfillRead { at, incarnation, pg, token, result });
    }

    /// A damaged block keeps an object from being read for another OSD. Returns the refusal. Sometimes an operator
    /// repairs objects that the PG will not.
    pub fn backfill_read_meets_damage(&mut self, at: usize, pg: PgId, object: ObjectName, block: u32) -> String {
        self.statistics.unreadable_backfill_reads += 1;
        if !self.will_repair(at, pg, &object) && self.random.chance(50) {
            self.members[at].store.bad.remove(&(object, block));
        }
        format!("block {block} is damaged")
    }

    fn propose(&mut self, at: usize, pg: PgId, swap: Swap) {
        let record = &swap.record;
        self.note("propose", &[record.epoch.0, record.activated_epoch.0]);
        if record.activated_epoch == record.epoch {
            let pending = &self.members[at].store.pending;
            let is_cut =
                pending.iter().any(|(_, transaction)| transaction.pg == pg && transaction.reset_head().is_some());
            assert!(!is_cut, "active, and a crash may bring back writes that were rolled back");
        }
        if self.is_quiet() || !self.mishap(15) {
            let reached_at = self.now.max(self.members[at].state_blocked_until);
            let delay = self.random.delay(1_000);
            self.at(reached_at + delay, Event::Swap { at, pg, swap: Box::new(swap) });
        }
    }

    /// Returns true if a PG will repair the copy of an object: it serves, and another member has a good one.
    fn will_repair(&self, at: usize, pg: PgId, object: &ObjectName) -> bool {
        let running = &self.members[at].pgs[&pg];
        let is_good = |member: &OsdId| {
            let other = member.0 as usize - 1;
            other != at && !self.members[other].store.damaged_objects(pg).contains(&object)
        };
        *running.state() == PgState::Active && running.record().members.iter().any(is_good)
    }

    fn count(&mut self, message: &Message) {
        self.statistics.copy_reads += u64::from(matches!(message, Message::CopyRead { .. }));
        self.statistics.overwrites += u64::from(matches!(message, Message::Overwrite { .. }));
        let is_unreadable = matches!(message, Message::PeerInfo { unreadable: Some(_), .. });
        self.statistics.unreadable_overwrites += u64::from(is_unreadable);
        if let Message::PeerPush { transaction, .. } = message {
            self.statistics.learners += u64::from(transaction.reset_head().is_some());
        }
    }

    fn submit(&mut self, at: usize, token: Token, transaction: Transaction) {
        if self.refuses(at, &transaction) || !self.members[at].store.takes(&transaction) {
            return self.refuse(at, transaction.pg, token);
        }
        self.count_submission(at, token, &transaction);
        let incarnation = self.members[at].incarnation;
        let usual = if self.now < self.members[at].slow_until { 5_000 } else { 300 };
        let time = (self.now + self.random.delay(usual)).max(self.members[at].last_commit);
        let member = &mut self.members[at];
        member.store.submit(token, transaction);
        member.last_commit = time;
        self.at(time, Event::Commit { at, incarnation });
    }

    /// Returns true if a fault makes the store refuse a change that it would take at once.
    fn is_refused_by_chance(&self, at: usize, transaction: &Transaction) -> bool {
        let store = &self.members[at].store;
        store.has_room(transaction.pg) && store.takes(transaction) && self.refuses(at, transaction)
    }

    fn refuse(&mut self, at: usize, pg: PgId, token: Token) {
        self.statistics.refused += 1;
        self.note("refuse", &[at as u64, token.0]);
        let now_ms = self.local_ms(at);
        let member = &mut self.members[at];
        let view = View { store: &member.store, leases: &member.leases, full: &member.full, now_ms };
        member.pgs.get_mut(&pg).unwrap().submit_failed(token, "it says so", &view);
    }

    /// A store takes a submission.
    pub fn count_submission(&mut self, at: usize, token: Token, transaction: &Transaction) {
        self.needs_no_space(at, transaction);
        if let Some(source) = clone_source(&transaction.mutations)
            && self.damaged.contains(source)
        {
            self.damaged.insert(transaction.object.clone());
        }
        let head = self.members[at].store.visible.of(transaction.pg).head;
        self.statistics.rollbacks += u64::from(transaction.reset_head().is_some_and(|to| to < head));
        let sequence = transaction.log.last().map_or(0, |entry| entry.version.sequence);
        self.note("submit", &[at as u64, token.0, sequence]);
    }

    pub fn set_room(&mut self, at: usize, out_of_room: bool) {
        if let Some(device) = &mut self.members[at].store.device {
            device.set_memory(if out_of_room { Memory::None } else { Memory::Budget });
            return self.run_pgs(at);
        }
        self.members[at].store.out_of_room = out_of_room;
        while !self.members[at].store.out_of_room {
            let Some((token, transaction)) = self.members[at].store.backlog.pop_front() else { break };
            self.submit(at, token, transaction);
        }
        self.run_pgs(at);
    }

    /// Checks the reported times of a durable write: each member had it after it was ordered, and not after now.
    fn told_times_are_true(&self, at: usize, ordered_us: u64, late: &[(OsdId, u64)]) {
        let times: Vec<u64> = late.iter().map(|(_, durable_us)| *durable_us).collect();
        assert!(times.is_sorted(), "members are reported in the order in which they had it: {late:?}");
        let all = std::iter::once(ordered_us).chain(times).chain([self.local_ms(at) * 1_000]);
        assert!(all.is_sorted(), "ordered at {ordered_us} us, durable at {late:?}");
    }

    fn reply(&mut self, at: usize, pg: PgId, client: ClientId, message: Message) {
        let owed_reads = &mut self.members[at].owed_reads;
        match &message {
            Message::ReadReply { sequence, .. } => {
                let owed = owed_reads.get_mut(&(client, *sequence)).expect("a read is answered once");
                *owed -= 1;
                if *owed == 0 {
                    owed_reads.remove(&(client, *sequence));
                }
            }
            Message::WriteReply { sequence, result, .. } => {
                let session = self.clients.session_of(client);
                let request = RequestId { session, sequence: *sequence };
                self.members[at].owed_writes.remove(&request);
                self.members[at].waiting_writes.retain(|(_, waiting, _)| *waiting != request);
                self.members[at].answered_writes.insert(request);
                if *result == Err(Refusal::OutcomeUnknown) {
                    self.unknown_outcome_is_older_than_the_log(pg, at, request);
                }
                if result.is_ok() {
                    self.acknowledged_write_is_durable(pg, at, request);
                }
            }
            _ => unreachable!("clients get only replies"),
        }
        self.send_answer(client, message);
    }

    /// The process starts, with records that may lag.
    pub fn restart_member(&mut self, at: usize, records: Vec<(PgId, PgRecord)>) {
        let now_ms = self.local_ms(at);
        let member = &mut self.members[at];
        member.is_up = true;
        member.leases = Leases::new(now_ms);
        member.records = records.iter().cloned().collect();
        let incarnation = member.incarnation;
        self.at(self.now + TICK, Event::Tick { at, incarnation });
        for (pg, _) in records {
            self.add_pg(at, pg);
        }
    }

    /// Adds a PG with a copy in the store.
    pub fn add_stray_pg(&mut self, at: usize, pg: PgId) {
        if self.members[at].store.visible.of(pg).head != Version::default() {
            self.add_pg(at, pg);
        }
    }

    /// Adds a PG, if the member has its record.
    pub fn add_pg(&mut self, at: usize, pg: PgId) {
        let now_ms = self.local_ms(at);
        let member = &self.members[at];
        let Some(record) = member.records.get(&pg).cloned().filter(|_| !member.pgs.contains_key(&pg)) else {
            return;
        };
        let Some(target) = self.cluster.of(pg).map(|state| state.target.clone()) else { return };
        if !self.is_new_pg_loaded(at, pg) {
            return;
        }
        let policy = self.policy;
        let member = &mut self.members[at];
        member.store.loaded.insert((pg, name(PG_META_OBJECT)));
        let view = View { store: &member.store, leases: &member.leases, full: &member.full, now_ms };
        let mut started = Pg::new(pg, osd(at), policy, target, record, &view);
        if let Some(bytes) = self.options.retry_memory_bytes {
            started.limit_retry_memory(bytes);
        }
        member.pgs.insert(pg, started);
        self.run_pg(at, pg);
        for other in (0..self.members.len()).filter(|other| *other != at) {
            if self.network.is_up(at, other) {
                self.with_pg(at, pg, |pg, view| pg.peer_up(osd(other), view));
            }
        }
    }

    /// The process at `at` is gone.
    pub fn stop_member(&mut self, at: usize) {
        let now = self.now;
        let member = &mut self.members[at];
        member.is_up = false;
        member.pgs.clear();
        member.records.clear();
        member.incarnation += 1;
        member.may_copy_soon.clear();
        member.paused_until = 0;
        member.clock.go_on(now);
        member.store.crash(&mut self.random);
        member.not_run.clear();
        member.will_fail.clear();
        member.scrubs.clear();
        member.last_commit = 0;
        member.owed_reads.clear();
        member.owed_writes.clear();
        member.waiting_writes.clear();
        member.answered_writes.clear();
    }
}

/// The name of a message's kind, without its fields, which may be long.
fn kind_of(message: &Message) -> String {
    struct FirstWord(String);
    impl Write for FirstWord {
        fn write_str(&mut self, text: &str) -> std::fmt::Result {
            let end = text.find([' ', '{']);
            self.0.push_str(&text[..end.unwrap_or(text.len())]);
            if end.is_some() { Err(std::fmt::Error) } else { Ok(()) }
        }
    }
    let mut word = FirstWord(String::new());
    // Formatting stops with an error at the first field.
    _ = write!(word, "{message:?}");
    word.0
}
