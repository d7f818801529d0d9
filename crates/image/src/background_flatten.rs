//! Copying the blocks that an image reads from its parent, while it is in use.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use atoll_client::LocalClient;
use atoll_types::records::ImageFlattening;

use crate::ImageError;
use crate::attached_image::Writer;
use crate::flatten::CopyControl;
use crate::volume::Volume;

/// Pause after an error.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// How often the record says how far it is.
const NOTED_EVERY: Duration = Duration::from_secs(2);

/// The copying of a writer, if there is one.
#[derive(Default)]
pub(crate) struct BackgroundFlatten {
    wanted: RefCell<Option<ImageFlattening>>,
    is_running: Cell<bool>,
    done_bytes: Cell<u64>,
    all_bytes: Cell<u64>,
}

impl BackgroundFlatten {
    fn goes_back(&self) -> bool {
        let wanted = self.wanted.borrow();
        wanted.as_ref().and_then(|wanted| wanted.moving.as_ref()).is_some_and(|moving| moving.goes_back)
    }
}

/// The copying of one place of an image.
struct Copying<'a> {
    writer: &'a Writer,
    volume: &'a Rc<Volume<LocalClient>>,
}

impl CopyControl for Copying<'_> {
    fn is_wanted(&self) -> bool {
        self.writer.may_flatten(self.volume)
    }

    fn bytes_per_second(&self) -> Option<u64> {
        self.writer.flattening.wanted.borrow().as_ref().and_then(|wanted| wanted.bytes_per_second)
    }

    fn looked_at(&self, done_bytes: u64, all_bytes: u64) {
        self.writer.flattening.done_bytes.set(done_bytes);
        self.writer.flattening.all_bytes.set(all_bytes);
    }
}

impl Writer {
    /// Begins, changes or ends the copying, as the record says.
    pub fn flatten(self: &Rc<Self>, wanted: Option<ImageFlattening>) {
        let is_wanted = wanted.is_some();
        self.flattening.wanted.replace(wanted);
        if is_wanted && !self.flattening.is_running.replace(true) {
            let writer = Rc::clone(self);
            self.client.runtime().spawn(async move {
                writer.flatten_until_done().await;
                writer.flattening.is_running.set(false);
            });
        }
    }

    fn may_flatten(&self, volume: &Rc<Volume<LocalClient>>) -> bool {
        let is_here = Rc::ptr_eq(volume, &self.volume()) && !volume.is_lost.get();
        self.flattening.wanted.borrow().is_some() && !self.is_detached.get() && is_here
    }

    async fn flatten_until_done(self: &Rc<Self>) {
        loop {
            let volume = self.volume();
            if !self.may_flatten(&volume) {
                return;
            }
            match self.flatten_once(&volume).await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!("image '{}' cannot be flattened now: {error}", self.name);
                    self.client.runtime().sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    /// False if it was stopped.
    async fn flatten_once(self: &Rc<Self>, volume: &Rc<Volume<LocalClient>>) -> Result<bool, ImageError> {
        let is_over = Rc::new(Cell::new(false));
        self.client.runtime().spawn(Rc::clone(self).note(volume.image_id.clone(), Rc::clone(&is_over)));
        let (copying, goes_back) = (Copying { writer: self, volume }, self.flattening.goes_back());
        let copied = match goes_back {
            true => volume.bring_all(&copying).await,
            false => volume.copy_from_parent(&copying).await,
        };
        is_over.set(true);
        if !copied? {
            return Ok(false);
        }
        let (admin, name, image_id) = (self.admin.clone(), self.name.clone(), volume.image_id.clone());
        if goes_back {
            volume.drop_ahead().await;
            self.bridge.run(async move { admin.end_going_back(&name, &image_id).await }).await?;
            return Ok(true);
        }
        volume.drop_parent().await;
        if self.bridge.run(async move { admin.end_flatten(&name, &image_id).await }).await? {
            volume.parent_is_hidden();
        }
        Ok(true)
    }

    /// Says in the record how far it is.
    async fn note(self: Rc<Self>, image_id: String, is_over: Rc<Cell<bool>>) {
        loop {
            self.client.runtime().sleep(NOTED_EVERY).await;
            if is_over.get() {
                return;
            }
            let (done, all) = (self.flattening.done_bytes.get(), self.flattening.all_bytes.get());
            let (admin, name, image_id) = (self.admin.clone(), self.name.clone(), image_id.clone());
            let noted = async move { admin.note_flattened(&name, &image_id, done, all).await };
            if let Err(error) = self.bridge.run(noted).await {
                tracing::debug!("cannot say how far image '{}' is: {error}", self.name);
            }
        }
    }
}
