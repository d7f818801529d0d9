//! Clients that run during all phases.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use crate::{Counts, Pace, Random};
use atoll_image::AttachedImage;
use atoll_reactor::LocalRuntime;
use bytes::Bytes;
use tokio::time::Instant;

use super::ClientLoad;
use crate::error::BenchError;

const PAYLOADS: usize = 16;
/// An image that is lost gives errors at once; do not spin on them.
const ERROR_PAUSE: Duration = Duration::from_millis(100);

/// Random operations on an image, counted by phase.
pub(super) struct Load {
    runtime: LocalRuntime,
    image: Rc<AttachedImage>,
    settings: Option<ClientLoad>,
    slots: u64,
    payloads: Vec<Bytes>,
    random: RefCell<Random>,
    counts: RefCell<Counts>,
    has_ended: Cell<bool>,
}

impl Load {
    pub fn new(
        runtime: LocalRuntime,
        image: Rc<AttachedImage>,
        size_bytes: u64,
        settings: Option<ClientLoad>,
    ) -> Result<Self, BenchError> {
        let mut random = Random::new(13);
        let block_bytes = settings.map_or(1, |load| load.block_bytes);
        let slots = size_bytes.checked_div(block_bytes).unwrap_or(0);
        let is_possible = settings.is_none_or(|load| load.depth > 0 && load.rate_per_second != Some(0));
        if slots == 0 || !is_possible || block_bytes > 32 << 20 {
            return Err(BenchError::Invalid(format!("{settings:?} on {size_bytes} bytes makes no load")));
        }
        Ok(Load {
            runtime,
            image,
            settings,
            slots,
            payloads: (0..PAYLOADS).map(|_| random.fill(block_bytes as usize).into()).collect(),
            random: RefCell::new(random),
            counts: RefCell::default(),
            has_ended: Cell::new(false),
        })
    }

    /// Works until it is stopped.
    pub async fn run(&self) {
        let Some(settings) = self.settings else { return };
        let pace = settings.rate_per_second.map(|rate| Pace::new(f64::from(rate)));
        futures::future::join_all((0..settings.depth).map(|_| self.worker(settings, pace.as_ref()))).await;
    }

    pub fn stop(&self) {
        self.has_ended.set(true);
    }

    /// Drops the counts so far.
    pub fn begin_phase(&self) {
        self.counts.take();
    }

    /// Returns the counts since the phase began.
    pub fn end_phase(&self) -> Counts {
        self.counts.take()
    }

    async fn worker(&self, settings: ClientLoad, pace: Option<&Pace>) {
        while !self.has_ended.get() {
            let begun = match pace {
                Some(pace) => {
                    let due = pace.next();
                    let delay = due.saturating_duration_since(Instant::now());
                    if !delay.is_zero() {
                        self.runtime.sleep(delay).await;
                    }
                    due
                }
                None => Instant::now(),
            };
            match self.operation(settings).await {
                Ok(()) => self.counts.borrow_mut().done(begun.elapsed()),
                Err(error) => {
                    self.counts.borrow_mut().failed(error.to_string());
                    self.runtime.sleep(ERROR_PAUSE).await;
                }
            }
        }
    }

    async fn operation(&self, settings: ClientLoad) -> Result<(), atoll_image::ImageError> {
        let (slot, is_read) = {
            let mut random = self.random.borrow_mut();
            (random.below(self.slots), random.below(100) < u64::from(settings.read_percent))
        };
        let offset = slot * settings.block_bytes;
        if is_read {
            self.image.read(offset, settings.block_bytes as u32).await.map(drop)
        } else {
            self.image.write(offset, &self.payloads[slot as usize % PAYLOADS]).await
        }
    }
}
