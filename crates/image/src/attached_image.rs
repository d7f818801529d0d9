//! An image that is open for writing: its interface for clients, through all changes of the image.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use atoll_client::LocalClient;
use atoll_types::records::ImageRecord;
use bytes::Bytes;

use crate::admin::ImageAdmin;
use crate::attach::{Attachment, Check, open, settle_move, take};
use crate::audit;
use crate::background_flatten::BackgroundFlatten;
use crate::fill::refuse_to_fill;
use crate::follow::Follower;
use crate::held_lock::{Acknowledger, HeldLock};
use crate::lock::Purpose;
use crate::resize::refuse_unfinished;
use crate::volume::Volume;
use crate::{Bridge, ImageError};

/// An image open for reading and writing; this is its only writer.
pub struct AttachedImage(Rc<Writer>);

/// Shared state of the tasks of one attached image.
pub(crate) struct Writer {
    pub client: LocalClient,
    pub bridge: Bridge,
    pub admin: ImageAdmin,
    pub purpose: Purpose,
    /// The name of the image.
    pub name: String,
    place: RefCell<Place>,
    pub is_detached: Cell<bool>,
    pub flattening: BackgroundFlatten,
}

/// Where the image is; that changes when it is moved.
struct Place {
    record: Rc<ImageRecord>,
    volume: Rc<Volume<LocalClient>>,
    lock: Option<HeldLock>,
}

impl Writer {
    pub fn record(&self) -> Rc<ImageRecord> {
        Rc::clone(&self.place.borrow().record)
    }

    pub fn volume(&self) -> Rc<Volume<LocalClient>> {
        Rc::clone(&self.place.borrow().volume)
    }

    /// Returns the handle for reports of this writer; `None` when it has given the image back.
    pub fn acknowledger(&self) -> Option<Acknowledger> {
        self.place.borrow().lock.as_ref().map(HeldLock::acknowledger)
    }

    /// The image is in another place from now on. Returns the lock of the old one.
    pub fn go_to(&self, record: ImageRecord, volume: Volume<LocalClient>, lock: HeldLock) -> Option<HeldLock> {
        let place = Place { record: Rc::new(record), volume: Rc::new(volume), lock: Some(lock) };
        self.place.replace(place).lock
    }

    /// Does something with the image where it is, again if it is somewhere else meanwhile.
    async fn change<T, F: Future<Output = Result<T, ImageError>>>(
        &self,
        change: impl Fn(Rc<Volume<LocalClient>>) -> F,
    ) -> Result<T, ImageError> {
        loop {
            let volume = self.volume();
            match change(Rc::clone(&volume)).await {
                Err(ImageError::Moved(_)) if !Rc::ptr_eq(&volume, &self.volume()) => {}
                Err(ImageError::Moved(name)) => return Err(ImageError::Lost(name)),
                done => return done,
            }
        }
    }
}

impl AttachedImage {
    /// Takes the image for writing. `purpose` describes the writer, for operators at least.
    ///
    /// ```no_run
    /// use atoll_client::LocalClient;
    /// use atoll_image::{AttachedImage, Bridge, ImageAdmin, ImageError};
    ///
    /// /// Adds one to the number in the first block; it is durable when this returns.
    /// async fn count(client: &LocalClient, bridge: &Bridge, admin: &ImageAdmin) -> Result<(), ImageError> {
    ///     let image = AttachedImage::attach(client, bridge, admin, "numbers", "counter").await?;
    ///     let mut block = image.read(0, 4096).await?.to_vec();
    ///     block[0] = block[0].wrapping_add(1);
    ///     image.write(0, &block.into()).await?;
    ///     image.detach().await
    /// }
    /// ```
    pub async fn attach(
        client: &LocalClient,
        bridge: &Bridge,
        admin: &ImageAdmin,
        name: &str,
        purpose: impl Into<Purpose>,
    ) -> Result<Self, ImageError> {
        Self::attach_as(client, bridge, admin, name, purpose.into(), refuse_unfinished).await
    }

    /// Takes an image that was made to be filled.
    pub async fn attach_to_fill(
        client: &LocalClient,
        bridge: &Bridge,
        admin: &ImageAdmin,
        name: &str,
        purpose: &str,
    ) -> Result<Self, ImageError> {
        Self::attach_as(client, bridge, admin, name, purpose.into(), refuse_to_fill).await
    }

    /// Takes an image without a writer only for copying the blocks that it reads from its parent. A later writer
    /// gets the image, and continues the copying.
    pub async fn attach_to_flatten(
        client: &LocalClient,
        bridge: &Bridge,
        admin: &ImageAdmin,
        name: &str,
    ) -> Result<Self, ImageError> {
        let purpose = Purpose::copier("copying from its parent");
        Self::attach_as(client, bridge, admin, name, purpose, refuse_unfinished).await
    }

    async fn attach_as(
        client: &LocalClient,
        bridge: &Bridge,
        admin: &ImageAdmin,
        name: &str,
        purpose: Purpose,
        check: Check,
    ) -> Result<Self, ImageError> {
        let text = purpose.text.clone();
        let attached = Self::attach_unaudited(client, bridge, admin, name, purpose, check).await;
        audit::opened(name, true, &text, &attached);
        attached
    }

    async fn attach_unaudited(
        client: &LocalClient,
        bridge: &Bridge,
        admin: &ImageAdmin,
        name: &str,
        purpose: Purpose,
        check: Check,
    ) -> Result<Self, ImageError> {
        settle_move(client, bridge, admin, name).await?;
        let taken = {
            let (admin, name, purpose) = (admin.clone(), name.to_owned(), purpose.clone());
            bridge.run(async move { take(&admin, &name, &purpose, check).await }).await?
        };
        let Attachment { record, key, ancestors, left, lock } = taken;
        let volume = match open(client, &record, key, ancestors, left).await {
            Ok(volume) => volume,
            Err(error) => {
                bridge.run(lock.release()).await?;
                return Err(error);
            }
        };
        let changes = lock.changes();
        let writer = Rc::new(Writer {
            client: client.clone(),
            bridge: bridge.clone(),
            admin: admin.clone(),
            purpose,
            name: name.to_owned(),
            place: RefCell::new(Place { record: Rc::new(record), volume: Rc::new(volume), lock: Some(lock) }),
            is_detached: Cell::new(false),
            flattening: BackgroundFlatten::default(),
        });
        client.runtime().spawn(Follower::new(Rc::clone(&writer)).follow(changes));
        Ok(AttachedImage(writer))
    }

    /// The image's record when it was attached, or when it was moved since.
    pub fn record(&self) -> Rc<ImageRecord> {
        self.0.record()
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.0.volume().size_bytes.get()
    }

    /// Returns true if another writer has taken the image over, or it was detached.
    pub fn is_lost(&self) -> bool {
        self.0.volume().is_lost.get()
    }

    /// Notes that the image has grown to `size_bytes` since it was attached. It cannot shrink while it is
    /// attached.
    pub fn grow(&self, size_bytes: u64) {
        self.0.volume().size_bytes.set(self.size_bytes().max(size_bytes));
    }

    /// Reads a range, aligned or not.
    pub async fn read(&self, offset: u64, length: u32) -> Result<Bytes, ImageError> {
        self.0.volume().read(offset, length).await
    }

    /// Writes a range, aligned or not; it is durable on all members when this returns.
    pub async fn write(&self, offset: u64, data: &Bytes) -> Result<(), ImageError> {
        self.0.change(async |volume| volume.write(offset, data).await).await
    }

    /// Writes a range if it has the expected data, without another write in between. Returns true if it had. The
    /// range is bounded as a read and a write are, and `expected` as long as `data`.
    pub async fn compare_and_write(
        &self,
        offset: u64,
        expected: &Bytes,
        data: &Bytes,
    ) -> Result<bool, ImageError> {
        self.0.change(async |volume| volume.compare_and_write(offset, expected, data).await).await
    }

    /// Makes a range read as zeros and frees its space where it covers whole blocks.
    pub async fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), ImageError> {
        self.0.change(async |volume| volume.write_zeroes(offset, length).await).await
    }

    /// Frees the whole blocks within a range; they read as zeros afterwards. Blocks at the ends
    /// that are covered only partly stay as they are.
    pub async fn trim(&self, offset: u64, length: u64) -> Result<(), ImageError> {
        self.0.change(async |volume| volume.trim(offset, length).await).await
    }

    /// Which parts of a range hold no data, by blocks of 4 KiB: length in bytes and whether it is a hole, from
    /// `offset` on. It may end early.
    pub async fn extents(&self, offset: u64, length: u64) -> Result<Vec<(u64, bool)>, ImageError> {
        self.0.volume().extents(offset, length).await
    }

    /// Gives the image back. Everything acknowledged is durable already.
    pub async fn detach(&self) -> Result<(), ImageError> {
        let writer = &self.0;
        if !writer.is_detached.replace(true) {
            audit::closed(&writer.name, true, &writer.purpose.text);
        }
        writer.volume().is_lost.set(true);
        let lock = writer.place.borrow_mut().lock.take();
        match lock {
            Some(lock) => Ok(writer.bridge.run(lock.release()).await?),
            None => Ok(()),
        }
    }
}
