//! Doing what placement groups ask for, until none of them has anything left to do.

use std::collections::BTreeSet;

use atoll_base::{PgId, Transaction};
use atoll_pg::{Action, ClientId, Pg, Token};
use atoll_store::StoreEvent;
use atoll_wire::Message;

use crate::control::ControlRequest;
use crate::daemon::{Osd, ReadOwner};
use crate::view::StoreView;

macro_rules! view {
    ($osd:expr) => {
        StoreView {
            store: &$osd.store,
            me: $osd.config.id,
            full: &$osd.peers.full,
            has_backlog: !$osd.backlog.is_empty(),
        }
    };
}

impl Osd {
    /// Gives an event to a placement group, if it is here.
    pub(crate) fn with_group(&mut self, pg: PgId, event: impl FnOnce(&mut Pg, &StoreView<'_>)) {
        let view = view!(self);
        if let Some(group) = self.pgs.get_mut(&pg) {
            event(group, &view);
            self.dirty.insert(pg);
        }
    }

    /// Gives an event to all placement groups.
    pub(crate) fn with_all_groups(&mut self, event: impl Fn(&mut Pg, &StoreView<'_>)) {
        let view = view!(self);
        for (pg, group) in &mut self.pgs {
            event(group, &view);
            self.dirty.insert(*pg);
        }
    }

    /// Makes a group that cluster state has put here.
    pub(crate) fn new_group(&self, pg: PgId, pg_num: u32, record: atoll_base::records::PgRecord) -> Pg {
        Pg::new(pg, self.config.id, pg_num, record, &view!(self))
    }

    /// Runs groups and store until both are quiet, then hands what they want to the device.
    pub(crate) fn settle(&mut self) {
        loop {
            while let Some(event) = self.store.next_event() {
                self.store_event(event);
            }
            self.submit_backlog();
            if self.dirty.is_empty() {
                break;
            }
            for pg in std::mem::take(&mut self.dirty) {
                self.run_group(pg);
            }
        }
        self.store.flush();
        while let Some(request) = self.store.next_request() {
            let operation = crate::device::file_operation(request.operation);
            self.reactor.start_file(self.devices.file(request.device), request.id, operation);
        }
    }

    fn run_group(&mut self, pg: PgId) {
        loop {
            let Some(group) = self.pgs.get_mut(&pg) else { return };
            match group.next_action() {
                Some(action) => self.perform(pg, action),
                None => {
                    let view = view!(self);
                    let group = self.pgs.get_mut(&pg).expect("looked up above");
                    group.proceed(&view);
                    match group.next_action() {
                        Some(action) => self.perform(pg, action),
                        None => return,
                    }
                }
            }
        }
    }

    fn perform(&mut self, pg: PgId, action: Action) {
        match action {
            Action::Submit { token, transaction } => {
                if self.backlog.is_empty() && self.store.has_log_room() {
                    self.submit(pg, token, &transaction);
                } else {
                    self.backlog.push_back((pg, token, transaction));
                }
            }
            Action::Read { token, object, request } => self.start_object_read(pg, token, object, request),
            Action::ReadForSync { token, object, touched } => self.start_sync_read(pg, token, object, touched),
            Action::Send { to, mut message } => {
                if let Message::ReplicateAck { is_full, .. } = &mut message {
                    *is_full = self.store.is_full();
                }
                self.send_to_peer(to, message);
            }
            Action::Reply { client: ClientId(connection), message } => self.reply(connection, message),
            Action::Propose { expected, record } => {
                let known = self.map.pgs.get(&pg).filter(|(known, _)| *known == expected);
                if let Some((_, expected_revision)) = known {
                    let request = ControlRequest::Propose {
                        pg,
                        expected_revision: *expected_revision,
                        record: Box::new(record),
                    };
                    // The control thread ends only with the process.
                    let _ = self.control.requests.send(request);
                }
            }
            Action::Warn { text } => tracing::warn!("{text}"),
        }
    }

    fn submit(&mut self, pg: PgId, token: Token, transaction: &Transaction) {
        match self.store.submit(transaction) {
            Ok(id) => drop(self.submitted.insert(id, (pg, token))),
            Err(error) => {
                self.with_group(pg, |group, view| group.submit_failed(token, &error.to_string(), view));
            }
        }
    }

    /// Submits what waited for room in the log. When the last of it is gone, everybody who waited
    /// for room gets another chance.
    fn submit_backlog(&mut self) {
        let was_waiting = self.waits_for_room;
        while self.store.has_log_room() {
            let Some((pg, token, transaction)) = self.backlog.pop_front() else { break };
            self.submit(pg, token, &transaction);
        }
        self.waits_for_room = !self.backlog.is_empty() || !self.store.has_log_room();
        if was_waiting && !self.waits_for_room {
            let all: BTreeSet<PgId> = self.pgs.keys().copied().collect();
            self.dirty.extend(all);
        }
    }

    fn store_event(&mut self, event: StoreEvent) {
        match event {
            StoreEvent::Committed(id) => {
                let (pg, token) = self.submitted.remove(&id).expect("commits belong to submissions");
                self.with_group(pg, |group, view| group.committed(token, view));
            }
            StoreEvent::Read { id, result } => match self.reads.remove(&id).expect("results belong to reads") {
                ReadOwner::Group { pg, token } => self.object_read_done(pg, token, result),
                ReadOwner::Sync(read) => self.sync_data_read(*read, result),
            },
            StoreEvent::Poisoned { cause } => self.failure = Some(cause),
        }
    }
}
