//! An image, or one of its snapshots, open for reading only.

use std::cell::RefCell;
use std::rc::Rc;

use atoll_client::LocalClient;
use atoll_seal::SealError;
use atoll_types::records::{ExportAccess, ImageRecord};
use bytes::Bytes;

use crate::admin::ImageAdmin;
use crate::ahead::Ahead;
use crate::ancestry::{Generation, over_here, parent_of, parse_attach_ids, state_of};
use crate::changes::{Change, changed_objects, changes_of};
use crate::lock::in_use;
use crate::pieces::{BLOCK, pieces};
use crate::resize::refuse_unfinished;
use crate::state::State;
use crate::watcher::Watcher;
use crate::{Bridge, ImageError};

/// Objects whose extents are asked for at once.
const OBJECTS_AT_ONCE: usize = 32;

/// A snapshot, or an image that nobody writes.
pub struct ReadOnlyImage {
    name: String,
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
        (name, snapshot): (&str, Option<&str>),
        purpose: &str,
    ) -> Result<Self, ImageError> {
        let watched = {
            let (admin, name, purpose) = (admin.clone(), name.to_owned(), purpose.to_owned());
            let snapshot = snapshot.map(ToOwned::to_owned);
            bridge.run(async move { watch(&admin, &name, snapshot.as_deref(), &purpose).await }).await?
        };
        let Watched { generation, ancestors, back_at, watcher } = watched;
        let state = Rc::new(state_of(client, generation, parent_of(client, ancestors)?)?);
        if let Some(number) = back_at {
            Ahead::find(Rc::clone(&state), number).await?;
        }
        let name = snapshot.map_or_else(|| name.to_owned(), |snapshot| format!("{name}@{snapshot}"));
        Ok(ReadOnlyImage {
            name,
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
        // Its states may go, and then others would be taken for them.
        if self.watcher.borrow().as_ref().is_none_or(Watcher::is_gone) {
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
        let whole = self.read_blocks(start, end - start).await?;
        let skip = (offset - start) as usize;
        Ok(whole.slice(skip..skip + length as usize))
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
        self.state.list_all().await?;
        let start = offset / BLOCK * BLOCK;
        let end = (offset + length).next_multiple_of(BLOCK);
        let pieces = pieces(start, end - start, self.state.object_bytes);
        let extents = crate::extents::gather(
            pieces,
            OBJECTS_AT_ONCE,
            |piece| self.state.is_known_empty(piece),
            async |piece| self.state.mapped(piece).await,
        );
        Ok(extents.await?.cut(offset - start, length))
    }

    /// What this one has otherwise than an older snapshot of the same image, in order and as `visit` takes it.
    /// `progress` is told the numbers of objects looked at and of all that may be different.
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
        let objects = changed_objects(&older.state, &self.state).await?;
        let all = objects.len() as u64;
        for (done, object) in objects.into_iter().enumerate() {
            for change in changes_of(&older.state, &self.state, object).await? {
                visit(change)?;
            }
            progress(done as u64 + 1, all);
        }
        Ok(())
    }

    /// Stops watching, so that the snapshot can be removed.
    pub async fn close(&self) -> Result<(), ImageError> {
        let Some(watcher) = self.watcher.borrow_mut().take() else { return Ok(()) };
        Ok(self.bridge.run(watcher.end()).await?)
    }
}

struct Watched {
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
) -> Result<Watched, ImageError> {
    let (record, number, size_bytes, parent) = match snapshot {
        Some(snapshot) => {
            let (record, found) = admin.get_snapshot(name, snapshot).await?;
            let parent = record.shown_parent_at(&found);
            (record, Some(found.number), found.size_bytes, parent)
        }
        None => {
            let (record, _) = admin.get(name).await?;
            refuse_unfinished(&record)?;
            refuse_written(admin, &record).await?;
            let (size_bytes, parent) = (record.size_bytes, record.shown_parent());
            (record, None, size_bytes, parent)
        }
    };
    let key = admin.unwrapped_key(&record).await?;
    let parent_id = parent.as_ref().map(|parent| parent.image_id.clone());
    let mut ancestors = admin.ancestors(parent).await?;
    let watcher = Watcher::begin(admin, &record, (number, parent_id), purpose).await?;
    // Until an image is moved, its snapshots are read where it was: later writers, whose attachments are not in the
    // record yet, copy their states.
    if record.shows_moved_snapshots() && number.is_some() && !ancestors.is_empty() {
        return Ok(Watched { generation: ancestors.remove(0), ancestors, back_at: None, watcher });
    }
    if number.is_none()
        && let Some(left) = admin.left_place(&record).await?
    {
        let back_at = record.states.as_ref().map(|states| states.newest);
        let mut generations = over_here(left, &record, key, ancestors);
        return Ok(Watched { generation: generations.remove(0), ancestors: generations, back_at, watcher });
    }
    let generation = Generation { record, key, number, size_bytes, overlap_bytes: 0 };
    Ok(Watched { generation, ancestors, back_at: None, watcher })
}

/// Without a snapshot, only what nobody writes can be read as a whole.
async fn refuse_written(admin: &ImageAdmin, record: &ImageRecord) -> Result<(), ImageError> {
    if record.export.as_ref().is_some_and(|export| export.access == ExportAccess::ReadOnly) {
        return Ok(());
    }
    match admin.lock(&record.id).await? {
        Some((lock, _)) => Err(in_use(&record.name, lock)),
        None => Ok(()),
    }
}
