//! The one place where effects of components reach other components: messages and changes of links,
//! results of the store, and actions of PGs.

use atoll_metrics::{slow, traces};
use atoll_pg::{Action, ClientId, Lookup, Pg, Sender};
use atoll_reactor::ConnectionId;
use atoll_storage::{ObjectList, RecoveryRead, StorageEvent};
use atoll_store::LoadRequest;
use atoll_types::{OsdId, PgId, ReadRequest, Refusal, RequestId, TraceContext, Version};
use atoll_wire::Message;
use bytes::Bytes;

use crate::control::ControlRequest;
use crate::daemon::Osd;
use crate::links::{Incoming, LinkEvent, Peer};
use crate::metrics::Metrics;
use crate::operation_kind::OperationKind;
use crate::operations::{self, Late, Operation};
use crate::recovery::RecoveryStep;
use crate::view::StoreView;

/// Memory that a request takes without its data, roughly, in bytes.
const REQUEST_BYTES: u64 = 1024;

impl Osd {
    /// Gives an event to a PG, if it is here.
    pub(crate) fn with_pg(&mut self, pg: PgId, event: impl FnOnce(&mut Pg, &StoreView<'_>)) {
        self.pgs.with(pg, &StoreView::new(&self.storage, &self.links, &self.context), event);
    }

    /// Gives an event to all PGs.
    fn with_all_pgs(&mut self, event: impl Fn(&mut Pg, &StoreView<'_>)) {
        self.pgs.with_all(&StoreView::new(&self.storage, &self.links, &self.context), event);
    }

    /// Some time has passed, or a lease was renewed.
    pub(crate) fn tick_pgs(&mut self) {
        self.pgs.tick(&StoreView::new(&self.storage, &self.links, &self.context));
    }

    /// Bytes have come on a connection.
    pub(crate) fn received(&mut self, connection: ConnectionId) {
        let number = connection.number();
        while let Some(incoming) = self.links.receive(&mut self.context, connection) {
            self.link_events();
            self.message(number, incoming);
            self.link_events();
            // The rest may be many small requests for much data.
            if self.links.pace(&mut self.context, number) {
                return;
            }
        }
        self.link_events();
    }

    /// Informs PGs of connected OSDs, and of lost ones.
    pub(crate) fn link_events(&mut self) {
        while let Some(event) = self.links.next_event() {
            match event {
                LinkEvent::Up(osd) => self.with_all_pgs(|pg, view| pg.peer_up(osd, view)),
                LinkEvent::Down(osd) => {
                    self.traced_copies.lost(osd);
                    self.with_all_pgs(|pg, view| pg.peer_down(osd, view));
                }
            }
        }
    }

    fn message(&mut self, number: u64, Incoming { peer, message, part_of }: Incoming) {
        let client = ClientId(number);
        match (message, peer) {
            (Message::Read { id, pg, object, request, .. }, _) => {
                // Only data counts: an answer from metadata is made when it is sent.
                let bytes = REQUEST_BYTES + request.data_bytes_bound();
                let (kind, arrived_us) = (OperationKind::Read, self.context.now_us());
                let opens_seals = matches!(request, ReadRequest::Data { opens_seals: true, .. });
                let object_read = object.clone();
                let operation =
                    Operation { kind, pg, object: object_read, written_bytes: 0, arrived_us, opens_seals };
                self.request_arrived(number, id, bytes, operation, part_of);
                if !self.pgs.contains(pg) {
                    let (sequence, result) = (id.sequence, Err(Refusal::NotPrimary));
                    let refusal =
                        Message::ReadReply { sequence, opens_seals: false, result, payload: Bytes::new() };
                    return self.links.reply(&mut self.context, number, refusal);
                }
                self.with_pg(pg, |pg, view| pg.client_read(client, id, object, request, view));
            }
            (Message::Write { id, answered_below, known, pg, epoch, request }, _) => {
                let written_bytes = request.payload.len() as u64;
                let bytes = request.control_bytes_bound() as u64 + written_bytes;
                let (object, arrived_us) = (request.object.clone(), self.context.now_us());
                let (kind, opens_seals) = (OperationKind::Write, false);
                let operation = Operation { kind, pg, object, written_bytes, arrived_us, opens_seals };
                self.request_arrived(number, id, bytes, operation, part_of);
                if !self.pgs.contains(pg) {
                    let (sequence, committed, result) =
                        (id.sequence, Version::default(), Err(Refusal::NotPrimary));
                    let refusal = Message::WriteReply { sequence, pg, committed, result };
                    return self.links.reply(&mut self.context, number, refusal);
                }
                let sender = Sender { client, id, answered_below, known, epoch };
                self.with_pg(pg, |pg, view| pg.client_write(sender, request, view));
            }
            (Message::Ping { tag }, _) => self.links.pinged(number, tag),
            (Message::Pong { tag, room }, Peer::Osd(osd)) => {
                self.links.note_room(osd, room);
                if self.links.ponged(&self.context, osd, tag) {
                    // Reads may have waited for it.
                    self.tick_pgs();
                }
            }
            (message, Peer::Osd(osd)) => self.message_of_member(number, osd, message, part_of),
            (_, Peer::Client | Peer::Gateway) => {
                tracing::warn!("closing a client's connection: it sent a message that only OSDs may send");
                self.links.close(&mut self.context, number);
            }
        }
    }

    fn request_arrived(
        &mut self,
        number: u64,
        id: RequestId,
        bytes: u64,
        operation: Operation,
        part_of: Option<TraceContext>,
    ) {
        self.links.request_arrived(number, id, bytes, operation, part_of);
        self.recovery.client_request(self.context.now_ms());
        self.scrubs.client_request();
    }

    fn message_of_member(&mut self, number: u64, osd: OsdId, message: Message, part_of: Option<TraceContext>) {
        if let Message::ReplicateAck { room, .. } = &message {
            self.links.note_room(osd, *room);
        }
        if let Message::Replicate { epoch, transaction, .. } | Message::Overwrite { epoch, transaction, .. } =
            &message
        {
            self.recovery.client_request(self.context.now_ms());
            if let Some(span) = part_of.filter(|_| traces::is_on()) {
                self.traced_copies.arrived(osd, *epoch, transaction, span, self.context.now_us());
            }
        }
        let Some(pg) = message.pg() else { return };
        if matches!(message, Message::PeerQuery { .. }) {
            // Perhaps this OSD is to become a member. If its map lags it is asked again.
            self.add_pg(pg);
        }
        if let (Message::Fenced { epoch, .. }, false) = (&message, self.pgs.contains(pg)) {
            // A process that has no such PG serves nothing of it.
            let answer = Message::FencedAck { pg, epoch: *epoch };
            return self.links.send_on(&mut self.context, number, answer);
        }
        self.with_pg(pg, |pg, view| pg.message(osd, message, view));
    }

    /// Runs PGs and store until both are quiet, then hands their requests to the device.
    pub(crate) fn settle(&mut self) {
        loop {
            while let Some(event) = self.storage.next_event() {
                self.storage_event(event);
            }
            self.link_events();
            if self.storage.submit_backlog() {
                self.pgs.wake_busy();
            }
            if self.pgs.are_quiet() && !self.storage.has_events() {
                break;
            }
            for pg in self.pgs.take_dirty() {
                self.run_pg(pg);
                // Data of large writes need not wait for what else the turn brings.
                self.storage.start_requests(&mut self.context);
            }
        }
        self.storage.flush();
        self.storage.start_requests(&mut self.context);
    }

    fn storage_event(&mut self, event: StorageEvent) {
        match event {
            StorageEvent::Committed { pg, token } => {
                self.with_pg(pg, |pg, view| pg.committed(token, view));
            }
            StorageEvent::SubmitFailed { pg, token, error } => {
                self.with_pg(pg, |pg, view| pg.submit_failed(token, &error, view));
            }
            StorageEvent::MayGoOn(pg) => self.pgs.wake(pg),
            StorageEvent::RemovalCommitted => {
                self.removed_pools.committed();
                self.removed_pools.go_on(&mut self.storage);
            }
            StorageEvent::Loaded { pg, token } => self.with_pg(pg, |pg, view| pg.loaded(token, view)),
            StorageEvent::Read { pg, token, result } => {
                self.with_pg(pg, |pg, view| pg.read_done(token, result, view));
            }
            StorageEvent::Listed { pg, token, objects, more } => {
                self.with_pg(pg, |pg, _| pg.objects_listed(token, objects, more));
            }
            StorageEvent::RecoveryRead { read, answer } => {
                let parts = answer.iter().flat_map(|parts| &parts.transactions);
                self.recovery.done(&read, parts.map(|part| part.payload.len() as u64).sum());
                self.with_pg(read.pg, |pg, view| pg.object_read(read.token, answer, view));
                self.start_recovery();
            }
            StorageEvent::Scrubbed { pg, token, result } => {
                let finding = crate::scrubs::finding(pg, result);
                self.with_pg(pg, |pg, view| pg.scrubbed(token, finding, view));
            }
            StorageEvent::NewPgLoaded(pg) => self.add_pg(pg),
            StorageEvent::RemovedPoolLoaded => self.removed_pools.loaded(),
        }
    }

    /// Once a second: reports the reasons for which slow operations wait.
    pub(crate) fn tell_in_flight(&mut self) {
        let found = self.links.slow_in_flight(&self.context);
        if found.is_empty() && !self.has_told_in_flight {
            return;
        }
        let view = StoreView::new(&self.storage, &self.links, &self.context);
        let tell = |((number, sequence), operation): ((u64, u64), &Operation)| {
            let pg = self.pgs.get(operation.pg);
            let progress = pg.and_then(|pg| pg.progress(ClientId(number), sequence, &view));
            let asker = self.links.asker(&self.context, number, operation);
            operations::in_flight(operation, progress, self.context.now_us(), asker)
        };
        let told: Vec<_> = found.into_iter().map(tell).collect();
        self.has_told_in_flight = !told.is_empty();
        slow::set_in_flight(told);
    }

    /// Carries out a PG's actions until it has no more now.
    fn run_pg(&mut self, pg: PgId) {
        loop {
            let view = StoreView::new(&self.storage, &self.links, &self.context);
            let Some(action) = self.pgs.next_action(pg, &view) else { break };
            self.perform(pg, action);
        }
        let view = StoreView::new(&self.storage, &self.links, &self.context);
        if let Some(noted) = self.pgs.note_idle(pg, &view) {
            self.recovery.note_pg(pg, noted.objects_in_transit(), noted.wants_to_backfill());
            self.start_recovery();
        }
    }

    fn perform(&mut self, pg: PgId, action: Action) {
        match action {
            Action::Submit { token, transaction } => {
                self.traced_copies.submitted(&transaction, self.context.now_us());
                self.storage.submit(pg, token, transaction);
            }
            Action::Load { token, lookup } => {
                let request = match lookup {
                    Lookup::Read { object, request } => LoadRequest::Read { pg, object, request },
                    Lookup::Write { object, conditions, mutations } => {
                        LoadRequest::Write { pg, object, conditions, mutations }
                    }
                };
                self.storage.load_for_pg(pg, token, request);
            }
            Action::ListObjects { token, after } => {
                self.storage.list_objects(ObjectList { pg, token, after, objects: Vec::new() });
            }
            Action::Read { token, object, request } => self.storage.read_object(pg, token, object, request),
            Action::ReadObject { token, object, touched, from, is_urgent } => {
                let read = RecoveryRead { pg, token, object, touched, from };
                if is_urgent && !read.goes_on() {
                    self.recovery.add_urgent(read);
                    self.start_recovery();
                } else {
                    self.storage.read_for_recovery(read);
                }
            }
            Action::Scrub { token, object, deep } => self.storage.scrub(pg, token, object, deep),
            Action::ScrubDone { report } => self.scrub_done(pg, report),
            Action::Send { to, mut message } => {
                match &mut message {
                    Message::Replicate { transaction, .. } | Message::Overwrite { transaction, .. } => {
                        self.links.tell_span(&mut self.context, to, transaction);
                    }
                    Message::ReplicateAck { pg, epoch, version, room } => {
                        *room = self.storage.store().room();
                        self.traced_copies.durable(&self.context, *pg, *epoch, *version);
                    }
                    _ => {}
                }
                self.links.send_to_osd(&mut self.context, to, message);
            }
            Action::ReadTookLong { client: ClientId(number), sequence, reached } => {
                self.links.took_long(number, sequence, reached);
            }
            Action::Durable { client: ClientId(number), sequence, ordered_us, late } => {
                let durable_us = self.context.now_us();
                let duration_us = durable_us.saturating_sub(ordered_us);
                self.metrics.replicated(pg.pool, duration_us);
                if !late.is_empty() || slow::is_slow(duration_us) {
                    self.links.took_long(
                        number,
                        sequence,
                        Late { ordered_us, members: late, durable_us }.reached(),
                    );
                }
            }
            Action::Reply { client: ClientId(number), message } => {
                self.links.reply(&mut self.context, number, message);
            }
            Action::Propose { expected, record, split_off } => {
                let known = self.context.map.pgs.get(&pg).filter(|(known, _)| *known == *expected);
                if let Some((_, expected_revision)) = known {
                    let request = ControlRequest::Propose {
                        pg,
                        expected_revision: *expected_revision,
                        record,
                        split_off: split_off.map(|off| Box::new(self.split_off(pg, off.0, off.1))),
                    };
                    self.context.ask_control(request);
                }
            }
            Action::ReadForBackfill { begins, bytes } => self.recovery.read(begins, bytes),
            Action::ForgetPreImages { through } => self.storage.forget_pre_images(pg, through),
            Action::Warn { text } => tracing::warn!("{text}"),
        }
    }

    /// Starts the allowed steps of recovery.
    pub(crate) fn start_recovery(&mut self) {
        while let Some(step) = self.recovery.next(self.context.now_ms()) {
            match step {
                RecoveryStep::Read(wanted) => self.storage.read_for_recovery(wanted),
                RecoveryStep::Next(pg) => {
                    let mut has_begun = false;
                    self.with_pg(pg, |pg, view| has_begun = pg.backfill_next(view));
                    if !has_begun {
                        self.recovery.declined();
                    }
                }
            }
        }
    }

    /// A PG that this OSD leads has been scrubbed.
    fn scrub_done(&mut self, pg: PgId, report: atoll_pg::ScrubReport) {
        Metrics::scrubbed(report.is_deep, report.errors);
        let members = self.pgs.get(pg).map_or_else(Vec::new, |pg| pg.record().members.clone());
        if self.scrubs.done(&mut self.context, pg, members, report) {
            let next = self.scrubs.asked_for(&self.context, &self.pgs);
            self.start_scrub(next);
        }
    }

    /// Once a second: starts the next scrub if there is none and one is due.
    pub(crate) fn look_after_scrubs(&mut self) {
        let next = self.scrubs.next(&self.context, &self.pgs);
        self.start_scrub(next);
    }

    fn start_scrub(&mut self, next: Option<crate::scrubs::Wanted>) {
        let Some(wanted) = next else { return };
        let mut has_started = false;
        self.with_pg(wanted.pg, |pg, _| has_started = pg.start_scrub(wanted.is_deep));
        if has_started {
            self.scrubs.started(wanted);
        }
    }
}
