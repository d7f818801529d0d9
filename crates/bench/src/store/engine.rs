//! The store on its event loop, joined as the OSD joins them: requests of a turn go to the ring
//! together, completions of a turn go to the store together.

use atoll_osd::{BlockingDevice, RingDevice, file_operation};
use atoll_reactor::{Event, Reactor};
use atoll_store::{DiskOperation, Store, StoreEvent};

use crate::error::BenchError;

/// Bytes written to the device.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Traffic {
    /// By durable writes, for which acknowledgements wait: the log, and the data of large writes.
    pub durable_bytes: u64,
    /// By all others, which checkpoints make: small writes applied to their places, and metadata.
    pub later_bytes: u64,
}

impl Traffic {
    fn count(&mut self, operation: &DiskOperation) {
        let Some((_, pieces)) = operation.written() else { return };
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        let is_later = matches!(operation, DiskOperation::Write { durable: false, .. });
        *(if !is_later { &mut self.durable_bytes } else { &mut self.later_bytes }) += bytes as u64;
    }
}

pub(super) struct Engine {
    pub store: Store,
    pub traffic: Traffic,
    reactor: Reactor,
    device: RingDevice,
    requests_in_flight: u64,
    events: Vec<Event>,
    /// Counts the beginnings and ends of checkpoints; odd while one runs.
    checkpoint_edges: u64,
}

impl Engine {
    pub fn new(device: BlockingDevice, store: Store) -> Result<Self, BenchError> {
        let mut reactor = Reactor::new()?;
        let device = device.into_ring(&mut reactor);
        let traffic = Traffic::default();
        let events = Vec::new();
        Ok(Engine { store, traffic, reactor, device, requests_in_flight: 0, events, checkpoint_edges: 0 })
    }

    /// One turn of the loop: starts the store's requests and waits until some of them are done.
    pub fn turn(&mut self) -> Result<(), BenchError> {
        self.start_requests();
        if self.requests_in_flight == 0 {
            return Err(BenchError::Store("it waits for nothing and does not continue".into()));
        }
        let mut events = std::mem::take(&mut self.events);
        self.reactor.poll(None, &mut events)?;
        for event in events.drain(..) {
            if let Event::File { tag, result } = event {
                self.requests_in_flight -= 1;
                self.store.complete(tag, result);
                self.note_checkpoint();
            }
        }
        self.events = events;
        Ok(())
    }

    fn note_checkpoint(&mut self) {
        let is_noted = !self.checkpoint_edges.is_multiple_of(2);
        if is_noted != self.store.is_checkpointing() {
            self.checkpoint_edges += 1;
        }
    }

    /// Names the moment, for [`Engine::was_beside_checkpoint`].
    pub fn moment(&self) -> u64 {
        self.checkpoint_edges
    }

    /// Returns true if a checkpoint ran at any time since `moment`. Asking only whether one runs at the end would
    /// miss operations that waited for its end.
    pub fn was_beside_checkpoint(&self, moment: u64) -> bool {
        self.checkpoint_edges != moment || !moment.is_multiple_of(2)
    }

    fn start_requests(&mut self) {
        self.store.flush();
        self.note_checkpoint();
        self.hand_over();
    }

    /// Hands the store's requests to the loop.
    pub fn hand_over(&mut self) {
        while let Some(request) = self.store.next_request() {
            self.traffic.count(&request.operation);
            self.requests_in_flight += 1;
            self.reactor.start_file(
                self.device.file(request.device),
                request.id,
                file_operation(request.operation),
            );
        }
    }

    /// Waits until the device has nothing left to do, a checkpoint that runs included: the next run
    /// must not find a write of this one under way.
    pub fn finish(mut self) -> Result<(), BenchError> {
        loop {
            while let Some(event) = self.store.next_event() {
                if let StoreEvent::Poisoned { cause } = event {
                    return Err(BenchError::Store(cause));
                }
            }
            self.start_requests();
            if self.requests_in_flight == 0 {
                return Ok(());
            }
            self.turn()?;
        }
    }
}
