//! An image, or one of its snapshots, open for reading only.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use atoll_client::LocalClient;
use atoll_seal::SealError;
use bytes::Bytes;

use crate::admin::ImageAdmin;
use crate::ahead::Ahead;
use crate::ancestry::{Generation, over_here, parent_of, parse_attach_ids, state_of};
use crate::attach::fence_within_limit;
use crate::audit;
use crate::changes::{Change, changed_objects, changes_of};
use crate::pieces::{BLOCK, pieces};
use crate::resize::refuse_unfinished;
use crate::state::State;
use crate::watcher::{Watched, Watcher};
use crate::{Bridge, ImageError};

/// Objects whose extents are asked for at once.
const OBJECTS_AT_ONCE: usize = 32;

/// How long a read waits for cluster state to answer when it did not for longer than the reader's lease.
const CUT_OFF_LIMIT_MS: u64 = 10_000;
const CUT_OFF_POLL: Duration = Duration::from_millis(50);

/// A snapshot, or an image without a writer.
pub struct ReadOnlyImage {
    name: String,
    purpose: String,
    state: Rc<State<LocalClient>>,
    bridge: Bridge,
    admin: ImageAdmin,
    watcher: RefCell<Option<Watcher>>,
}

impl ReadOnlyImage {
    /// Opens a snapshot of an image; without one the image itself, which must be exported for reading only.
    pub async fn open(
        client: &LocalClient,
        bridge: &Bridge,
        admin: &ImageAdmin,
        name: &str,
        snapshot: Option<&str>,
        purpose: &str,
    ) -> Result<Self, ImageError> {
        let opened = Self::open_unaudited(client, bridge, admin, name, snapshot, purpose).await;
        let shown = snapshot.map_or_else(|| name.to_owned(), |snapshot| format!("{name}@{snapshot}"));
        audit::opened(&shown, false, purpose, &opened);
        opened
    }

    async fn open_unaudited(
        client: &LocalClient,
        bridge: &Bridge,
        admin: &ImageAdmin,
        name: &str,
        snapshot: Option<&str>,
        purpose: &str,
    ) -> Result<Self, ImageError> {
        let watched = {
            let (admin, name, purpose) = (admin.clone(), name.to_owned(), purpose.to_owned());
            let snapshot = snapshot.map(ToOwned::to_owned);
            bridge.run(async move { watch(&admin, &name, snapshot.as_deref(), &purpose).await }).await?
        };
        let Opened { generation, ancestors, back_at, watcher } = watched;
        if let Some(record) = watcher.raised()
            && let Err(error) = fence_within_limit(client, &record).await
        {
            bridge.run(watcher.end()).await?;
            return Err(error);
        }
        let state = Rc::new(state_of(client, generation, parent_of(client, ancestors)?)?);
        if let Some(number) = back_at {
            Ahead::find(Rc::clone(&state), number).await?;
        }
        let name = snapshot.map_or_else(|| name.to_owned(), |snapshot| format!("{name}@{snapshot}"));
        Ok(ReadOnlyImage {
            name,
            purpose: purpose.to_owned(),
            state,
            bridge: bridge.clone(),
            admin: admin.clone(),
            watcher: Some(watcher).into(),
        })
    }

    /// Its name, as `IMAGE` or `IMAGE@SNAPSHOT`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Size in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.state.size_bytes
    }

    fn check(&self, offset: u64, length: u64) -> Result<(), ImageError> {
        if self.is_gone() {
            return Err(ImageError::Lost(self.name.clone()));
        }
        match offset.checked_add(length) {
            Some(end) if end <= self.size_bytes() => Ok(()),
            _ => Err(ImageError::Invalid(format!(
                "{length} bytes at {offset} are beyond the {} bytes of '{}'",
                self.size_bytes(),
                self.name
            ))),
        }
    }

    /// Reads a range, aligned or not.
    pub async fn read(&self, offset: u64, length: u32) -> Result<Bytes, ImageError> {
        self.check(offset, length.into())?;
        if length == 0 {
            return Ok(Bytes::new());
        }
        let start = offset / BLOCK * BLOCK;
        let end = (offset + u64::from(length)).next_multiple_of(BLOCK);
        let whole = self.watched(async || self.read_blocks(start, end - start).await).await?;
        let skip = (offset - start) as usize;
        Ok(whole.slice(skip..skip + length as usize))
    }

    /// Returns true if its data was removed or changed: it cannot be read any more, only opened again.
    pub fn is_gone(&self) -> bool {
        self.watcher.borrow().as_ref().is_none_or(Watcher::is_gone)
    }

    fn is_entered(&self) -> bool {
        self.watcher.borrow().as_ref().is_some_and(Watcher::is_entered)
    }

    /// Reads while the entries of this reader are in cluster state. Without them its data may be removed, and
    /// other data would be taken for it: it is read again when they are there, or was not read.
    async fn watched<T>(&self, read: impl AsyncFn() -> Result<T, ImageError>) -> Result<T, ImageError> {
        let runtime = self.state.client.runtime();
        let deadline_ms = runtime.now_ms() + CUT_OFF_LIMIT_MS;
        loop {
            if self.is_entered() {
                let found = read().await;
                if self.is_entered() {
                    return found;
                }
            }
            if self.is_gone() {
                return Err(ImageError::Lost(self.name.clone()));
            }
            if runtime.now_ms() > deadline_ms {
                return Err(ImageError::CutOff(self.name.clone()));
            }
            runtime.sleep(CUT_OFF_POLL).await;
        }
    }

    /// Reads whole blocks, also those that were copied from the parent since this was opened, by a writer that came
    /// later.
    async fn read_blocks(&self, start: u64, length: u64) -> Result<Bytes, ImageError> {
        match self.state.read_blocks(start, length).await {
            Err(ImageError::Seal(SealError::UnknownAttachment { .. })) => {}
            read => return read,
        }
        let (admin, image_id, name) = (self.admin.clone(), self.state.image_id.clone(), self.name.clone());
        let (record, _) = self.bridge.run(async move { admin.find(&image_id, &name).await }).await?;
        self.state.sealing.learn(parse_attach_ids(&record)?);
        self.state.read_blocks(start, length).await
    }

    /// Which parts of a range hold no data, by blocks of 4 KiB: length in bytes and whether it is a hole, from
    /// `offset` on. It may end early.
    pub async fn extents(&self, offset: u64, length: u64) -> Result<Vec<(u64, bool)>, ImageError> {
        self.check(offset, length)?;
        let start = offset / BLOCK * BLOCK;
        let end = (offset + length).next_multiple_of(BLOCK);
        let look = async || {
            self.state.list_all().await?;
            let extents = crate::extents::gather(
                pieces(start, end - start, self.state.object_bytes),
                OBJECTS_AT_ONCE,
                |piece| self.state.is_known_empty(piece),
                async |piece| self.state.mapped(piece).await,
            );
            Ok(extents.await?.cut(offset - start, length))
        };
        self.watched(look).await
    }

    /// Visits the differences from an older snapshot of the same image, in order and as `visit` takes them.
    /// `progress` gets the numbers of examined objects and of all that may be different.
    pub async fn changes_since(
        &self,
        older: &ReadOnlyImage,
        progress: &dyn Fn(u64, u64),
        mut visit: impl FnMut(Change) -> Result<(), ImageError>,
    ) -> Result<(), ImageError> {
        if older.state.image_id != self.state.image_id {
            return Err(ImageError::Invalid(format!(
                "'{}' is no snapshot of the image of '{}', or the image is being moved; between two snapshots there is no \
                 need to wait for that",
                older.name, self.name
            )));
        }
        let both = async || changed_objects(&older.state, &self.state).await;
        let objects = older.watched(async || self.watched(&both).await).await?;
        let all = objects.len() as u64;
        for (done, object) in objects.into_iter().enumerate() {
            let both = async || changes_of(&older.state, &self.state, object).await;
            for change in older.watched(async || self.watched(&both).await).await? {
                visit(change)?;
            }
            progress(done as u64 + 1, all);
        }
        Ok(())
    }

    /// Stops watching, so that the snapshot can be removed.
    pub async fn close(&self) -> Result<(), ImageError> {
        let Some(watcher) = self.watcher.borrow_mut().take() else { return Ok(()) };
        audit::closed(&self.name, false, &self.purpose);
        Ok(self.bridge.run(watcher.end()).await?)
    }
}

struct Opened {
    generation: Generation,
    ancestors: Vec<Generation>,
    /// The number of its going back, if it does.
    back_at: Option<u64>,
    watcher: Watcher,
}

async fn watch(
    admin: &ImageAdmin,
    name: &str,
    snapshot: Option<&str>,
    purpose: &str,
) -> Result<Opened, ImageError> {
    let (record, number, size_bytes, parent) = match snapshot {
        Some(snapshot) => {
            let (record, found) = admin.get_snapshot(name, snapshot).await?;
            let parent = record.shown_parent_at(&found);
            (record, Some(found.number), found.size_bytes, parent)
        }
        None => {
            let (record, _) = admin.get(name).await?;
            refuse_unfinished(&record)?;
            let (size_bytes, parent) = (record.size_bytes, record.shown_parent());
            (record, None, size_bytes, parent)
        }
    };
    let key = admin.unwrapped_key(&record).await?;
    let mut watched = vec![Watched::new(&record, number, parent.as_ref())];
    let mut ancestors = admin.ancestors(parent).await?;
    watched.extend(ancestors.iter().map(|generation| {
        let shown =
            generation.record.snapshots().iter().find(|snapshot| Some(snapshot.number) == generation.number);
        let parent = shown.and_then(|snapshot| generation.record.shown_parent_at(snapshot));
        Watched::new(&generation.record, generation.number, parent.as_ref())
    }));
    let watcher = Watcher::begin(admin, watched, purpose).await?;
    // Until an image is moved, its snapshots are read where it was: later writers, whose attachments are not in the
    // record yet, copy their states.
    if record.shows_moved_snapshots() && number.is_some() && !ancestors.is_empty() {
        return Ok(Opened { generation: ancestors.remove(0), ancestors, back_at: None, watcher });
    }
    if number.is_none()
        && let Some(left) = admin.left_place(&record).await?
    {
        let back_at = record.states.as_ref().map(|states| states.newest);
        let mut generations = over_here(left, &record, key, ancestors);
        return Ok(Opened { generation: generations.remove(0), ancestors: generations, back_at, watcher });
    }
    let generation = Generation { record, key, number, size_bytes, overlap_bytes: 0 };
    Ok(Opened { generation, ancestors, back_at: None, watcher })
}
