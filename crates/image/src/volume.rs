//! Reading and writing the blocks of an image: by its one writer, which keeps states for snapshots, and over a
//! parent if it is a clone.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use atoll_buffers::BLOCK_BYTES;
use atoll_client::{ClientError, PoolClient, visit_objects};
use atoll_types::{Condition, Mutation, PoolId, ReadRequest, Refusal, WriteRequest};
use bytes::{Bytes, BytesMut};
use futures::future::{join_all, try_join_all};

use crate::ImageError;
use crate::ahead::Ahead;
use crate::extents::gather;
use crate::index_set::IndexSet;
use crate::keeping::{InFlight, Keeping};
use crate::moved_states::MovedState;
use crate::names::{image_prefix, object_name, parse};
use crate::objects::ignore_absent;
use crate::pieces::{BLOCK, Piece, pieces};
use crate::range_locks::RangeLocks;
use crate::sealing::Sealing;
use crate::state::{Parent, below, mapped_in_object, open_over_parent, or_in_parent, read_to_open};

/// Objects that a trim or a look at extents asks for at once.
const OBJECTS_AT_ONCE: usize = 32;

/// How often one looks whether the parent is still being read.
const PARENT_POLL: Duration = Duration::from_millis(10);

/// Largest write that OSDs carry out in place.
const SMALL_WRITE_BYTES_MAX: u64 = 64 << 10;

/// An image as its writer has it.
pub(crate) struct Volume<C> {
    pub client: C,
    /// Its name, for messages.
    pub name: String,
    pub image_id: String,
    pub pool: PoolId,
    pub object_bytes: u64,
    pub size_bytes: Cell<u64>,
    pub sealing: Sealing,
    pub fence: Condition,
    pub keeping: Keeping,
    /// If it is being moved with snapshots: the states of its previous place, the oldest first, and the image
    /// itself last.
    pub moved_states: Vec<MovedState>,
    /// Shared with pending operations.
    parent: RefCell<Option<Rc<Parent<C>>>>,
    /// Bytes that read from the parent by the record in cluster state, for the next reader of the image.
    overlap_bytes: Cell<u64>,
    /// If it returns to its old place: the writes that are not here yet.
    ahead: RefCell<Option<Rc<Ahead<C>>>>,
    /// Set when another writer has taken over. Losing the lease alone does not stop a writer: without
    /// cluster state no other writer can take the image, and one that takes it fences this writer off.
    pub is_lost: Cell<bool>,
    pub locks: RangeLocks,
    /// Which objects may exist, once that was looked at: those that did, and those written since.
    objects: OnceCell<()>,
    may_exist: RefCell<IndexSet>,
}

/// Properties of a [`Volume`].
pub(crate) struct VolumeOf<C> {
    pub client: C,
    pub name: String,
    pub image_id: String,
    pub pool: PoolId,
    pub object_bytes: u64,
    pub size_bytes: u64,
    pub sealing: Sealing,
    pub fence: Condition,
    pub kept_number: Option<u64>,
    pub parent: Option<Parent<C>>,
    pub moved_states: Vec<MovedState>,
    pub ahead: Option<Ahead<C>>,
}

impl<C: PoolClient> Volume<C> {
    pub fn new(of: VolumeOf<C>) -> Self {
        Volume {
            client: of.client,
            name: of.name,
            image_id: of.image_id,
            pool: of.pool,
            object_bytes: of.object_bytes,
            size_bytes: Cell::new(of.size_bytes),
            sealing: of.sealing,
            fence: of.fence,
            keeping: Keeping::new(of.kept_number),
            moved_states: of.moved_states,
            overlap_bytes: Cell::new(of.parent.as_ref().map_or(0, |parent| parent.overlap_bytes)),
            parent: RefCell::new(of.parent.map(Rc::new)),
            ahead: RefCell::new(of.ahead.map(Rc::new)),
            is_lost: Cell::new(false),
            locks: RangeLocks::default(),
            objects: OnceCell::new(),
            may_exist: RefCell::default(),
        }
    }

    /// Returns the source of unwritten blocks. Callers get it before they look at the volume's own objects.
    pub fn parent(&self) -> Option<Rc<Parent<C>>> {
        self.parent.borrow().clone()
    }

    /// Returns the writes made in the other place, if this image returns to its old place.
    pub fn ahead(&self) -> Option<Rc<Ahead<C>>> {
        self.ahead.borrow().clone()
    }

    pub fn take_ahead(&self) -> Option<Rc<Ahead<C>>> {
        self.ahead.take()
    }

    /// The same, if an object of it is not here yet.
    pub fn ahead_of(&self, object: u64) -> Option<Rc<Ahead<C>>> {
        self.ahead.borrow().as_ref().filter(|ahead| ahead.is_pending(object)).cloned()
    }

    /// Everything was copied: from now on the parent is not read any more. Returns when it has no reader. The
    /// next attachment of the image still shows it, until [`Volume::parent_is_hidden`].
    pub async fn drop_parent(&self) {
        let Some(parent) = self.parent.borrow_mut().take() else { return };
        while Rc::strong_count(&parent) > 1 {
            self.client.sleep(PARENT_POLL).await;
        }
    }

    /// Cluster state says that nothing shows the parent any more: holes may be made.
    pub fn parent_is_hidden(&self) {
        self.overlap_bytes.set(0);
    }

    fn check(&self, offset: u64, length: u64) -> Result<(), ImageError> {
        if self.is_lost.get() {
            return Err(ImageError::Lost(self.name.clone()));
        }
        match offset.checked_add(length) {
            Some(end) if end <= self.size_bytes.get() => Ok(()),
            _ => Err(ImageError::Invalid(format!(
                "{length} bytes at {offset} are beyond the image's {} bytes",
                self.size_bytes.get()
            ))),
        }
    }

    fn pieces(&self, offset: u64, length: u64) -> impl Iterator<Item = Piece> + use<C> {
        pieces(offset, length, self.object_bytes)
    }

    /// A writer that was fenced off must stop.
    fn explain(&self, error: ClientError) -> ImageError {
        if let Some(Refusal::Fenced { .. }) = error.refusal() {
            self.is_lost.set(true);
            return ImageError::Lost(self.name.clone());
        }
        error.into()
    }

    pub(crate) fn explain_image(&self, error: ImageError) -> ImageError {
        match error {
            ImageError::Client(error) => self.explain(error),
            other => other,
        }
    }

    // ---- reading ----------------------------------------------------------------------------

    /// Reads a range, aligned or not.
    pub async fn read(&self, offset: u64, length: u32) -> Result<Bytes, ImageError> {
        self.check(offset, u64::from(length))?;
        let start = offset / BLOCK * BLOCK;
        let end = (offset + u64::from(length)).next_multiple_of(BLOCK);
        // Of a list it is known that it is short, which makes joining cheap.
        let pieces: Vec<Piece> = self.pieces(start, end - start).collect();
        let mut parts = try_join_all(pieces.into_iter().map(|piece| self.read_piece(piece))).await?;
        let whole = match parts.len() {
            0 => Bytes::new(),
            1 => parts.remove(0),
            _ => parts
                .iter()
                .fold(BytesMut::with_capacity((end - start) as usize), |mut whole, part| {
                    whole.extend_from_slice(part);
                    whole
                })
                .freeze(),
        };
        let skip = (offset - start) as usize;
        Ok(whole.slice(skip..skip + length as usize))
    }

    async fn read_piece(&self, piece: Piece) -> Result<Bytes, ImageError> {
        if let Some(ahead) = self.ahead_of(piece.object) {
            let start = piece.start(self.object_bytes);
            let read = Box::pin(async { ahead.state().read_blocks(start, piece.length).await }).await;
            if !has_been_brought(&ahead, piece, &read) {
                return read;
            }
        }
        read_to_open(&self.image_id, piece, async |request| self.read_here(piece, request).await).await
    }

    async fn read_here(&self, piece: Piece, request: fn(u64, u32) -> ReadRequest) -> Result<Bytes, ImageError> {
        let parent = self.parent();
        let stored = if self.is_known_absent(piece.object) {
            None
        } else {
            let name = object_name(&self.image_id, piece.object);
            match self.client.read_data(self.pool, name, request(piece.offset, piece.length as u32)).await {
                Ok(extent) => Some(extent),
                Err(error) if error.is_no_such_object() => None,
                Err(error) => return Err(self.explain(error)),
            }
        };
        if parent.is_some() {
            // Boxed, so that reads of other images do not carry what this takes.
            return Box::pin(open_over_parent(&self.sealing, parent.as_deref(), self.object_bytes, piece, stored))
                .await;
        }
        let length = piece.length as usize;
        match stored {
            Some(extent) => self.sealing.open(piece.start(self.object_bytes) / BLOCK, length, extent),
            None => Ok(BytesMut::zeroed(length).freeze()),
        }
    }

    // ---- which objects there are ------------------------------------------------------------

    pub(crate) fn is_known_absent(&self, object: u64) -> bool {
        self.objects.get().is_some() && !self.may_exist.borrow().contains(object)
    }

    fn is_known_hole(&self, piece: Piece) -> bool {
        let parent = self.parent.borrow();
        let below = below(parent.as_deref(), piece.start(self.object_bytes));
        let is_here = self.is_known_absent(piece.object) && self.ahead_of(piece.object).is_none();
        is_here && below.is_none_or(|parent| parent.state.is_known_empty(piece))
    }

    /// An object is about to be made otherwise than by a write.
    pub(crate) fn expect_object(&self, object: u64) {
        self.may_exist.borrow_mut().insert(object);
    }

    /// Lists the objects, so that those that were never written need not be asked for. This is the only writer,
    /// so the list stays right.
    pub async fn list_objects(&self) -> Result<(), ImageError> {
        if self.objects.get().is_some() {
            return Ok(());
        }
        let prefix = image_prefix(&self.image_id);
        visit_objects::<ImageError>(&self.client, self.pool, &prefix, false, async |objects| {
            let parts = objects.iter().filter_map(|object| parse(&self.image_id, &object.name));
            let heads = parts.filter(|part| part.kept_for.is_none());
            heads.for_each(|part| self.may_exist.borrow_mut().insert(part.index));
            Ok(())
        })
        .await?;
        // Another task may have listed them, too.
        let _ = self.objects.set(());
        Ok(())
    }

    /// Which parts of a range hold no data: length in bytes and whether it is a hole, from `offset` on. It may
    /// end early.
    pub async fn extents(&self, offset: u64, length: u64) -> Result<Vec<(u64, bool)>, ImageError> {
        self.check(offset, length)?;
        self.list_objects().await?;
        if let Some(parent) = self.parent() {
            parent.state.list_all().await?;
        }
        let start = offset / BLOCK * BLOCK;
        let end = (offset + length).next_multiple_of(BLOCK);
        let extents = gather(
            self.pieces(start, end - start),
            OBJECTS_AT_ONCE,
            |piece| self.is_known_hole(piece),
            async |piece| self.mapped(piece).await,
        );
        Ok(extents.await?.cut(offset - start, length))
    }

    async fn mapped(&self, piece: Piece) -> Result<Vec<bool>, ImageError> {
        if let Some(ahead) = self.ahead_of(piece.object) {
            let mapped = ahead.state().mapped(piece).await;
            if !has_been_brought(&ahead, piece, &mapped) {
                return mapped;
            }
        }
        let parent = self.parent();
        let name = object_name(&self.image_id, piece.object);
        let found = match self.is_known_absent(piece.object) {
            true => None,
            false => Some(mapped_in_object(&self.client, self.pool, name, piece).await),
        };
        let own = match found {
            Some(Ok((_, mapped))) => mapped,
            Some(Err(error)) if !error.is_no_such_object() => return Err(self.explain(error)),
            Some(Err(_)) | None => vec![false; piece.block_count()],
        };
        or_in_parent(own, parent.as_deref(), self.object_bytes, piece).await
    }

    // ---- writing ----------------------------------------------------------------------------

    /// Writes a range, aligned or not; it is durable on all members when this returns.
    pub async fn write(&self, offset: u64, data: &Bytes) -> Result<(), ImageError> {
        let length = data.len() as u64;
        self.check(offset, length)?;
        let end = offset + length;
        let (start_block, end_block) = (offset / BLOCK, end.div_ceil(BLOCK));
        let is_aligned = offset.is_multiple_of(BLOCK) && end.is_multiple_of(BLOCK);
        let _guard = self.locks.lock(start_block..end_block, !is_aligned).await;
        if is_aligned {
            return self.write_blocks(offset, data).await;
        }
        // The image's last block may reach beyond its end; what is there is zeros.
        let (start, whole_end) = (start_block * BLOCK, end_block * BLOCK);
        let mut whole = BytesMut::zeroed((whole_end - start) as usize);
        let last = whole.len() - BLOCK_BYTES;
        let head = self.read_block(start_block).await?;
        whole[..BLOCK_BYTES].copy_from_slice(&head);
        if last > 0 {
            let tail = self.read_block(end_block - 1).await?;
            whole[last..].copy_from_slice(&tail);
        }
        let skip = (offset - start) as usize;
        whole[skip..skip + data.len()].copy_from_slice(data);
        self.write_blocks(start, &whole.freeze()).await
    }

    /// Writes a range if it has the expected data, without another write in between. Returns true if it had.
    pub async fn compare_and_write(
        &self,
        offset: u64,
        expected: &Bytes,
        data: &Bytes,
    ) -> Result<bool, ImageError> {
        assert_eq!(expected.len(), data.len(), "the expected data is as long as the new data");
        let length = data.len() as u64;
        self.check(offset, length)?;
        let (start_block, end_block) = (offset / BLOCK, (offset + length).div_ceil(BLOCK));
        let _guard = self.locks.lock(start_block..end_block, true).await;
        let (start, skip) = (start_block * BLOCK, (offset % BLOCK) as usize);
        let there = self.read(start, ((end_block - start_block) * BLOCK) as u32).await?;
        if there[skip..skip + data.len()] != expected[..] {
            return Ok(false);
        }
        let mut whole = BytesMut::from(&there[..]);
        whole[skip..skip + data.len()].copy_from_slice(data);
        self.write_blocks(start, &whole.freeze()).await.map(|()| true)
    }

    async fn read_block(&self, block: u64) -> Result<Bytes, ImageError> {
        let offset = block * BLOCK;
        let (object, offset) = (offset / self.object_bytes, offset % self.object_bytes);
        self.read_piece(Piece { object, offset, length: BLOCK }).await
    }

    /// Writes whole blocks, under the caller's lock.
    pub(crate) async fn write_blocks(&self, offset: u64, data: &Bytes) -> Result<(), ImageError> {
        let mut position = 0;
        let mut writes = Vec::new();
        let _in_flight = self.begin().await?;
        for piece in self.pieces(offset, data.len() as u64) {
            // Before anything is written: what is brought must not overwrite that.
            if self.ahead_of(piece.object).is_some() {
                Box::pin(self.bring(piece.object)).await?;
            }
        }
        for piece in self.pieces(offset, data.len() as u64) {
            let end = position + piece.length as usize;
            writes.push(self.write_piece(piece, data.slice(position..end))?);
            position = end;
        }
        // None is dropped when another one fails: what was sent of it could be done after what the client sends then.
        join_all(writes).await.into_iter().fold(Ok(()), first_error)
    }

    fn write_piece(
        &self,
        piece: Piece,
        plaintext: Bytes,
    ) -> Result<impl Future<Output = Result<(), ImageError>> + '_, ImageError> {
        let put = self.put_piece(piece, plaintext)?;
        Ok(async move {
            self.keep(piece.object).await?;
            put.await
        })
    }

    /// Writes a piece of an object whose state is kept.
    pub(crate) fn put_piece(
        &self,
        piece: Piece,
        plaintext: Bytes,
    ) -> Result<impl Future<Output = Result<(), ImageError>> + '_, ImageError> {
        let first_block = piece.start(self.object_bytes) / BLOCK;
        let (payload, seals) = self.sealing.close(first_block, plaintext.clone())?;
        let payload_sealed = seals.as_ref().is_some_and(|seals| seals.are_of_ciphertext());
        let write = Mutation::Write { offset: piece.offset, length: piece.length as u32, seals };
        let request = WriteRequest {
            object: object_name(&self.image_id, piece.object),
            conditions: vec![self.fence.clone()],
            mutations: vec![write],
            payload,
            payload_sealed,
        };
        Ok(async move {
            self.may_exist.borrow_mut().insert(piece.object);
            let sent = self.client.send_write(self.pool, request).await.map_err(|error| self.explain(error));
            match sent {
                Err(error) if error.is_no_space() && piece.length > SMALL_WRITE_BYTES_MAX => {
                    Box::pin(self.write_in_small_pieces(piece, plaintext)).await
                }
                sent => sent,
            }
        })
    }

    /// On a full cluster small overwrites of existing blocks succeed, and large ones do not.
    async fn write_in_small_pieces(&self, piece: Piece, plaintext: Bytes) -> Result<(), ImageError> {
        let mut at = 0;
        while at < piece.length {
            let length = (piece.length - at).min(SMALL_WRITE_BYTES_MAX);
            let data = plaintext.slice(at as usize..(at + length) as usize);
            self.put_piece(Piece { offset: piece.offset + at, length, ..piece }, data)?.await?;
            at += length;
        }
        Ok(())
    }

    /// A write begins, unless the image is somewhere else now.
    pub(crate) async fn begin(&self) -> Result<InFlight<'_>, ImageError> {
        self.keeping.begin().await.ok_or_else(|| ImageError::Moved(self.name.clone()))
    }

    pub(crate) async fn keep(&self, object: u64) -> Result<(), ImageError> {
        if !self.keeping.must_keep(object) {
            return Ok(());
        }
        let kept = self.keeping.keep(&self.client, self.pool, &self.image_id, object, &self.fence);
        Box::pin(kept).await.map_err(|error| self.explain_image(error))
    }

    /// Makes a range read as zeros and frees its space where it covers whole blocks.
    pub async fn write_zeroes(&self, offset: u64, length: u64) -> Result<(), ImageError> {
        self.check(offset, length)?;
        let end = offset + length;
        // Blocks that are covered only partly are written with zeros where the range is.
        let (inner_start, inner_end) = (offset.next_multiple_of(BLOCK), self.block_end(end));
        if inner_start >= inner_end {
            return self.write(offset, &Bytes::from(vec![0; length as usize])).await;
        }
        if offset < inner_start {
            self.write(offset, &Bytes::from(vec![0; (inner_start - offset) as usize])).await?;
        }
        self.discard(inner_start, inner_end - inner_start).await?;
        if inner_end < end {
            self.write(inner_end, &Bytes::from(vec![0; (end - inner_end) as usize])).await?;
        }
        Ok(())
    }

    /// Frees the whole blocks within a range; they read as zeros afterwards. Blocks at the ends
    /// that are covered only partly stay as they are.
    pub async fn trim(&self, offset: u64, length: u64) -> Result<(), ImageError> {
        self.check(offset, length)?;
        let (start, end) = (offset.next_multiple_of(BLOCK), self.block_end(offset + length));
        if start < end { self.discard(start, end - start).await } else { Ok(()) }
    }

    /// The end of the last whole block before `end`; the image's own end ends a block.
    fn block_end(&self, end: u64) -> u64 {
        if end == self.size_bytes.get() { end.next_multiple_of(BLOCK) } else { end / BLOCK * BLOCK }
    }

    async fn discard(&self, offset: u64, length: u64) -> Result<(), ImageError> {
        let _guard = self.locks.lock(offset / BLOCK..(offset + length) / BLOCK, false).await;
        if self.keeping.is_needed() {
            // The state of an object that does not exist need not be kept for this.
            self.list_objects().await?;
        }
        // A few at a time: a trim may cover the whole image, and snapshots wait for what is in flight.
        let mut pieces = self.pieces(offset, length).peekable();
        while pieces.peek().is_some() {
            let _in_flight = self.begin().await?;
            if self.is_lost.get() {
                return Err(ImageError::Lost(self.name.clone()));
            }
            let batch = pieces.by_ref().take(OBJECTS_AT_ONCE).map(|piece| self.discard_piece(piece));
            join_all(batch).await.into_iter().fold(Ok(()), first_error)?;
        }
        Ok(())
    }

    /// Returns true if the parent's data is visible in holes of a piece: to this volume, or to the next one that
    /// attaches the image.
    async fn shows_parent(&self, piece: Piece) -> Result<bool, ImageError> {
        if piece.start(self.object_bytes) >= self.overlap_bytes.get() {
            return Ok(false);
        }
        match self.parent() {
            Some(parent) => Ok(!parent.state.is_empty(piece).await?),
            None => Ok(true),
        }
    }

    async fn discard_piece(&self, piece: Piece) -> Result<(), ImageError> {
        self.bring(piece.object).await?;
        if self.shows_parent(piece).await? {
            // A hole would show what the parent has there.
            let zeros = Bytes::from(vec![0; piece.length as usize]);
            return self.write_piece(piece, zeros)?.await;
        }
        if self.is_known_absent(piece.object) {
            return Ok(());
        }
        self.keep(piece.object).await?;
        let mutation = if piece.length == self.object_bytes {
            Mutation::Remove
        } else {
            Mutation::Zero { offset: piece.offset, length: piece.length }
        };
        let conditions = vec![self.fence.clone(), Condition::ObjectExists];
        let object = object_name(&self.image_id, piece.object);
        let discarded = self.client.change(self.pool, object, conditions, vec![mutation]).await;
        ignore_absent(discarded).map_err(|error| self.explain_image(error))
    }
}

/// Returns true if an object was not found ahead because it was brought meanwhile, and changed.
fn has_been_brought<C: PoolClient, T>(ahead: &Ahead<C>, piece: Piece, read: &Result<T, ImageError>) -> bool {
    matches!(read, Err(error) if error.is_vanished()) && !ahead.is_pending(piece.object)
}

/// Returns the error of an operation in parts. If it is unknown of one whether it was done, it is unknown of the
/// whole.
fn first_error(before: Result<(), ImageError>, next: Result<(), ImageError>) -> Result<(), ImageError> {
    match (before, next) {
        (Err(before), Err(next)) if next.is_undecided() && !before.is_undecided() => Err(next),
        (Err(before), _) => Err(before),
        (Ok(()), next) => next,
    }
}

#[cfg(test)]
mod tests;
