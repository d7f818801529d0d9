//! Doing what placement groups ask for, until none of them has anything left to do.

use atoll_base::limits::OBJECTS_LISTED_MAX;
use atoll_base::{ObjectName, PgId, Transaction, Version};
use atoll_pg::{Action, ClientId, Lookup, Pg, Token};
use atoll_store::{LoadId, ObjectKey, StoreError, StoreEvent, Wish};
use atoll_wire::Message;

use crate::control::ControlRequest;
use crate::daemon::{LoadOwner, ObjectList, Osd, ReadOwner};
use crate::recovery::RecoveryRead;
use crate::view::StoreView;

/// Objects looked up at once when a group is listed.
const NAMES_AT_ONCE: usize = 256;

macro_rules! view {
    ($osd:expr) => {
        StoreView {
            store: &$osd.store,
            me: $osd.config.id,
            now_ms: $osd.now_ms,
            leases: &$osd.leases,
            full: &$osd.peers.full,
            backlog: &$osd.backlog,
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

    /// Some time has passed, or a lease was renewed. Who is at rest need not know.
    pub(crate) fn tick_restless_groups(&mut self) {
        for pg in self.restless.clone() {
            self.with_group(pg, |group, view| group.tick(view));
        }
    }

    pub(crate) fn view(&self) -> StoreView<'_> {
        view!(self)
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
                // Data of large writes need not wait for what else the turn brings.
                self.start_requests();
            }
        }
        self.store.flush();
        self.start_requests();
    }

    fn start_requests(&mut self) {
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
                        None => break,
                    }
                }
            }
        }
        if let Some(group) = self.pgs.get(&pg) {
            if group.is_at_rest(&view!(self)) {
                self.restless.remove(&pg);
            } else {
                self.restless.insert(pg);
            }
            self.recovery.note_group(pg, group.objects_on_their_way(), group.wants_to_copy());
            self.start_recovery();
        }
    }

    fn perform(&mut self, pg: PgId, action: Action) {
        match action {
            Action::Submit { token, transaction } => {
                let waits = self.backlog.contains_key(&pg) || !self.store.has_log_room();
                if waits || !self.submit(pg, token, &transaction) {
                    self.backlog.entry(pg).or_default().push_back((token, transaction));
                    self.waits_for_room |= !self.store.has_log_room();
                }
            }
            Action::Load { token, lookup } => {
                let wish = match lookup {
                    Lookup::Read { object, request } => Wish::Read { pg, object, request },
                    Lookup::Write { object, conditions, mutations } => {
                        Wish::Write { pg, object, conditions, mutations }
                    }
                };
                let load = self.store.load(wish);
                self.loads.insert(load, LoadOwner::Group { pg, token });
            }
            Action::ListObjects { token, after } => {
                self.list_objects(ObjectList { pg, token, after, objects: Vec::new() });
            }
            Action::Read { token, object, request } => self.start_object_read(pg, token, object, request),
            Action::ReadForSync { token, object, touched, from, is_urgent } => {
                let read = RecoveryRead { pg, token, object, touched, from };
                if is_urgent && !read.goes_on() {
                    self.recovery.add_urgent(read);
                    self.start_recovery();
                } else {
                    self.start_sync_read(read);
                }
            }
            Action::Scrub { token, object, deep } => self.start_object_scrub(pg, token, object, deep),
            Action::ScrubDone { report } => self.scrub_done(pg, report),
            Action::Send { to, mut message } => {
                if let Message::ReplicateAck { is_full, .. } = &mut message {
                    *is_full = self.store.is_full();
                }
                self.send_to_peer(to, message);
            }
            Action::Reply { client: ClientId(connection), message } => self.reply(connection, message),
            Action::Propose { expected, record, split_off } => {
                let known = self.map.pgs.get(&pg).filter(|(known, _)| *known == expected);
                if let Some((_, expected_revision)) = known {
                    let request = ControlRequest::Propose {
                        pg,
                        expected_revision: *expected_revision,
                        record: Box::new(record),
                        split_off: split_off.map(|off| Box::new(self.split_off(pg, off.0, off.1))),
                    };
                    // The control thread ends only with the process.
                    let _ = self.control.requests.send(request);
                }
            }
            Action::ReadToFill { begins, bytes } => self.recovery.read(begins, bytes),
            Action::ForgetUndo { through } => self.store.forget_undo(pg, through),
            Action::Warn { text } => tracing::warn!("{text}"),
        }
    }

    /// Submits to the store. False if metadata must be loaded first, which is then under way.
    fn submit(&mut self, pg: PgId, token: Token, transaction: &Transaction) -> bool {
        match self.store.submit(transaction) {
            Ok(id) => drop(self.submitted.insert(id, (pg, token))),
            Err(StoreError::Cold(cold)) => {
                let load = self.store.load(Wish::Pages(cold));
                self.loads.insert(load, LoadOwner::Submit(pg));
                self.loading_for_submit.insert(pg);
                return false;
            }
            Err(error) => {
                self.with_group(pg, |group, view| group.submit_failed(token, &error.to_string(), view));
            }
        }
        true
    }

    /// Submits what a group has waiting, in order, until the log has no room or metadata must be
    /// loaded first.
    fn submit_waiting(&mut self, pg: PgId) {
        self.dirty.insert(pg);
        if self.loading_for_submit.contains(&pg) {
            return;
        }
        let Some(mut queue) = self.backlog.remove(&pg) else { return };
        while self.store.has_log_room()
            && let Some((token, transaction)) = queue.front()
            && self.submit(pg, *token, transaction)
        {
            queue.pop_front();
        }
        if !queue.is_empty() {
            self.backlog.insert(pg, queue);
            self.waits_for_room |= !self.store.has_log_room();
        }
    }

    /// Once the log has room again, everybody who waited for it gets another chance.
    fn submit_backlog(&mut self) {
        if !self.store.has_log_room() {
            self.waits_for_room = true;
        } else if std::mem::take(&mut self.waits_for_room) {
            for pg in self.backlog.keys().copied().collect::<Vec<_>>() {
                self.submit_waiting(pg);
            }
            self.dirty.extend(&self.restless);
        }
    }

    fn load_done(&mut self, load: LoadId) {
        match self.loads.remove(&load).expect("loads have owners") {
            LoadOwner::Group { pg, token } => self.with_group(pg, |group, view| group.loaded(token, view)),
            LoadOwner::Submit(pg) => {
                self.loading_for_submit.remove(&pg);
                self.submit_waiting(pg);
            }
            LoadOwner::List(list) => self.list_objects(list),
            LoadOwner::Sync(read) => self.sync_data_ready(*read),
            LoadOwner::NewGroup(pg) => self.add_group(pg),
            LoadOwner::RemovedPool => self.removed_pools.loaded(),
        }
    }

    /// Collects some of a group's objects, with their versions.
    fn list_objects(&mut self, mut list: ObjectList) {
        let more = match self.collect_objects(&mut list) {
            Ok(more) => more,
            Err(StoreError::Cold(cold)) => {
                let load = self.store.load(Wish::Pages(cold));
                self.loads.insert(load, LoadOwner::List(list));
                return;
            }
            Err(error) => {
                self.failure = Some(error.to_string());
                return;
            }
        };
        let last = list.objects.last().map(|(name, _)| name.clone());
        list.objects.retain(|(name, _)| !atoll_pg::is_hidden(name));
        if more && list.objects.is_empty() {
            // Only the group's own object was among them.
            list.after = last;
            return self.list_objects(list);
        }
        if let Some(group) = self.pgs.get_mut(&list.pg) {
            group.objects_listed(list.token, list.objects, more);
            self.dirty.insert(list.pg);
        }
    }

    /// Goes on with a list. True if there is more behind it.
    fn collect_objects(&mut self, list: &mut ObjectList) -> Result<bool, StoreError> {
        while list.objects.len() < OBJECTS_LISTED_MAX {
            let after = list.objects.last().map(|(name, _)| name).or(list.after.as_ref());
            let wanted = OBJECTS_LISTED_MAX - list.objects.len();
            let names = self.store.names_after(list.pg, after, wanted.min(NAMES_AT_ONCE))?;
            if names.is_empty() {
                return Ok(false);
            }
            let version = |name: ObjectName| -> Result<(ObjectName, Version), StoreError> {
                let info = self.store.object(&ObjectKey { pg: list.pg, name: name.clone() })?;
                Ok((name, info.map_or(Version::default(), |info| info.version)))
            };
            // What is not in memory yet is looked at again from the last one that was.
            let found: Vec<_> = names.into_iter().map(version).take_while(Result::is_ok).flatten().collect();
            if found.is_empty() {
                let name = self.store.names_after(list.pg, after, 1)?.remove(0);
                version(name)?;
            }
            list.objects.extend(found);
        }
        Ok(true)
    }

    fn store_event(&mut self, event: StoreEvent) {
        match event {
            StoreEvent::Committed(id) => {
                if self.removed_pools.committed(id) {
                    return self.empty_removed_pools();
                }
                let (pg, token) = self.submitted.remove(&id).expect("commits belong to submissions");
                self.with_group(pg, |group, view| group.committed(token, view));
            }
            StoreEvent::Read { id, result } => match self.reads.remove(&id).expect("results belong to reads") {
                ReadOwner::Group { pg, token } => self.object_read_done(pg, token, result),
                ReadOwner::Sync(read) => self.sync_data_read(*read, result),
            },
            StoreEvent::Loaded(load) => self.load_done(load),
            StoreEvent::Scrubbed { id, result } => self.object_scrubbed(id, result),
            StoreEvent::Poisoned { cause } => self.failure = Some(cause),
        }
    }
}
