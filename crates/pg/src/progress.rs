//! How far clients' requests have come, in words, for reports of slow ones. Nothing is decided by it.

use atoll_types::OsdId;

use crate::actions::{Action, ClientId, ObjectView};
use crate::group::Pg;
use crate::replication::log::{InFlight, LATE_US};
use crate::replication::queue::WaitingRequest;

/// Something that a request has come to, and when: in microseconds of the view's clock.
pub type Reached = (String, u64);

/// How far a client's request has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// In the order of time.
    pub reached: Vec<Reached>,
    /// Reason for waiting.
    pub waits_for: String,
}

/// Times of a read's stages, in microseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadTimes {
    /// Its metadata was asked for, if it was not in memory.
    pub asked_us: Option<u64>,
    /// Its metadata was loaded.
    pub loaded_us: Option<u64>,
    /// It left the queue.
    pub started_us: u64,
}

impl ReadTimes {
    /// The same for reports. `source` is the source of the data.
    fn reached(&self, source: &str, answered_us: Option<u64>) -> Vec<Reached> {
        let started_us = (self.started_us > 0).then_some(self.started_us);
        let all = [
            ("metadata asked for".to_owned(), self.asked_us),
            ("metadata loaded".to_owned(), self.loaded_us),
            (format!("{source} asked"), started_us),
            (format!("{source} answered"), answered_us),
        ];
        all.into_iter().filter_map(|(name, us)| Some((name, us?))).collect()
    }
}

/// Source of clients' data: this OSD's store, or shards.
pub(crate) const DEVICE: &str = "device";
pub(crate) const SHARDS: &str = "members with shards";

fn list(osds: impl IntoIterator<Item = OsdId>) -> String {
    osds.into_iter().map(|osd| osd.to_string()).collect::<Vec<_>>().join(", ")
}

impl Pg {
    /// A client's read is answered now. Reports where its time went, if that was not in the queue or all of it is
    /// to be reported.
    pub(crate) fn tell_read(
        &mut self,
        (client, sequence): (ClientId, u64),
        times: &ReadTimes,
        source: &str,
        view: &impl ObjectView,
    ) {
        let now_us = view.now_us();
        let is_late = now_us >= times.asked_us.unwrap_or(times.started_us) + LATE_US;
        if is_late || view.is_traced(client, sequence) {
            let reached = times.reached(source, Some(now_us));
            self.outbox.push(Action::ReadTookLong { client, sequence, reached });
        }
    }

    /// How far a client's request has come. `None` if it is not here any more: its answer is on the way.
    pub fn progress(&self, client: ClientId, sequence: u64, view: &impl ObjectView) -> Option<Progress> {
        if let Some(request) = self.queue.find(client, sequence) {
            let waits_for = self.queued_waits_for(request, view);
            return Some(Progress { reached: request.times.reached(DEVICE, None), waits_for });
        }
        let is_it = |write: &&InFlight| {
            write.client_request.is_some_and(|(of, request)| of == client && request.sequence == sequence)
        };
        if let Some(write) = self.log.in_flight().find(is_it) {
            return Some(write_progress(write));
        }
        if let Some(times) = self.reads.of_client(client, sequence) {
            return Some(Progress { reached: times.reached(DEVICE, None), waits_for: "the device".into() });
        }
        if self.reads.is_of_copy(client, sequence) {
            let waits_for = "the copy of another member, because its own is damaged".into();
            return Some(Progress { reached: Vec::new(), waits_for });
        }
        let (times, asked) = self.erasure.as_ref()?.of_client(client, sequence)?;
        let waits_for = match &asked[..] {
            [] => "its turn, with all shards read".into(),
            osds => format!("shards of {}", list(osds.iter().copied())),
        };
        Some(Progress { reached: times.reached(SHARDS, None), waits_for })
    }

    fn queued_waits_for(&self, request: &WaitingRequest, view: &impl ObjectView) -> String {
        if !self.config.is_active() {
            let reason = self.waits_for(view).into_iter().next();
            return format!("its PG to serve: {}", reason.unwrap_or_else(|| "it has just begun".into()));
        }
        if request.loading.is_some() {
            return "its metadata".into();
        }
        if let Some(write) = self.log.in_flight().find(|write| write.object == request.object) {
            return format!("an earlier write of its object, which {} lack", list(write.missing.iter().copied()));
        }
        if self.queue.has_earlier(request) {
            return "an earlier operation on its object".into();
        }
        if !request.is_write() && !self.config.holds_leases(view) {
            return "leases of the other members".into();
        }
        if self.log.is_full() {
            return "earlier writes of its PG, whose number in flight is at its limit".into();
        }
        if !view.has_room(self.config.id) {
            return "room in the log of the store".into();
        }
        if self.scrub_holds_write(&request.object, view) {
            return "a scrub of its object".into();
        }
        "its turn in its PG".into()
    }
}

fn write_progress(write: &InFlight) -> Progress {
    let durable = write.late.iter().map(|(osd, us)| (format!("durable on {osd}"), *us));
    Progress {
        reached: std::iter::once(("ordered".to_owned(), write.ordered_us)).chain(durable).collect(),
        waits_for: match list(write.missing.iter().copied()) {
            osds if osds.is_empty() => "its PG to serve".into(),
            osds => format!("{osds} to have it durable"),
        },
    }
}
