//! Reading an image as it was at a snapshot. An object's state at snapshot N is the state that is kept for the
//! lowest number from N on; if none is, the object has not changed since, and is the state itself. A writer keeps a
//! state before it changes the object, so a state that a reader has found in the object itself is right as long as
//! the object has the version that it had when nothing was kept.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use atoll_client::{ClientError, Extent, PoolClient, visit_objects};
use atoll_types::operation::ReadOutcome;
use atoll_types::{ListedObject, ObjectName, PoolId, ReadRequest, Version};
use bytes::{Bytes, BytesMut};
use futures::future::try_join_all;

use crate::ImageError;
use crate::names::{image_prefix, kept_name, object_name, parse};
use crate::pieces::{BLOCK, Piece, pieces, runs};
use crate::sealing::{Sealing, written_blocks};

/// Places that are remembered while they were found one by one.
const PLACES_MAX: usize = 1 << 20;

/// Where the state of an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// There was no object then.
    Nowhere,
    /// It is kept for this number.
    Kept(u64),
    /// In the object itself, as long as that has this version.
    Object(Version),
}

/// An image at one of its snapshots.
pub(crate) struct State<C> {
    pub client: C,
    pub image_id: String,
    pub pool: PoolId,
    pub object_bytes: u64,
    pub size_bytes: u64,
    /// The snapshot; `None` for the image itself, which must have no writer meanwhile.
    pub number: Option<u64>,
    pub sealing: Rc<Sealing>,
    pub parent: Option<Parent<C>>,
    /// Nothing is known at first.
    pub places: Places,
}

/// Where objects of a [`State`] are, as far as that is known.
#[derive(Default)]
pub(crate) struct Places {
    known: RefCell<HashMap<u64, Place>>,
    /// All objects were listed: those that are not known are nowhere.
    is_listed: Cell<bool>,
}

/// Source of a clone's unwritten blocks.
pub(crate) struct Parent<C> {
    pub state: Rc<State<C>>,
    /// Largest part of the clone that reads from it, in bytes.
    pub overlap_bytes: u64,
}

impl<C: PoolClient> State<C> {
    /// Returns the same image at another of its snapshots, which reads `overlap_bytes` bytes from the parent.
    pub fn at(&self, number: u64, overlap_bytes: u64) -> State<C> {
        State {
            client: self.client.clone(),
            image_id: self.image_id.clone(),
            pool: self.pool,
            object_bytes: self.object_bytes,
            size_bytes: self.size_bytes,
            number: Some(number),
            sealing: Rc::clone(&self.sealing),
            parent: self.parent.as_ref().map(|parent| Parent { state: Rc::clone(&parent.state), overlap_bytes }),
            places: Places::default(),
        }
    }

    /// Reads whole blocks from `offset` on; data behind the end is zeros.
    pub async fn read_blocks(&self, offset: u64, length: u64) -> Result<Bytes, ImageError> {
        let pieces: Vec<Piece> = pieces(offset, length, self.object_bytes).collect();
        let mut parts = try_join_all(pieces.into_iter().map(|piece| self.read_piece(piece))).await?;
        Ok(if parts.len() == 1 { parts.remove(0) } else { parts.concat().into() })
    }

    async fn read_piece(&self, piece: Piece) -> Result<Bytes, ImageError> {
        read_to_open(&self.image_id, piece, async |request| self.read_here(piece, request).await).await
    }

    async fn read_here(&self, piece: Piece, request: fn(u64, u32) -> ReadRequest) -> Result<Bytes, ImageError> {
        let stored = self.found(piece.object, async |name| {
            let request = request(piece.offset, piece.length as u32);
            let extent = self.client.read_data(self.pool, name, request).await?;
            Ok((extent.version, extent))
        });
        let stored = stored.await?;
        open_over_parent(&self.sealing, self.parent.as_ref(), self.object_bytes, piece, stored).await
    }

    /// Returns the result of `read` in an object of this state, with the version that it comes from; `None` if
    /// there is no object.
    async fn found<T>(
        &self,
        object: u64,
        read: impl AsyncFn(ObjectName) -> Result<(Version, T), ClientError>,
    ) -> Result<Option<T>, ImageError> {
        let mut has_changed = false;
        loop {
            let place = self.place(object).await?;
            // Before an object changes, its state is kept, and as long as there is the snapshot it stays.
            if has_changed && !matches!(place, Place::Kept(_)) {
                return Err(self.vanished(object));
            }
            let name = match place {
                Place::Nowhere => return Ok(None),
                Place::Kept(number) => kept_name(&self.image_id, object, number),
                Place::Object(_) => object_name(&self.image_id, object),
            };
            match (place, read(name).await) {
                (Place::Object(version), Ok((found, _))) if found != version && self.number.is_some() => {}
                (_, Ok((_, found))) => return Ok(Some(found)),
                (Place::Object(_), Err(error)) if error.is_no_such_object() && self.number.is_some() => {}
                (_, Err(error)) if error.is_no_such_object() => return Err(self.vanished(object)),
                (_, Err(error)) => return Err(error.into()),
            }
            self.forget(object);
            has_changed = true;
        }
    }

    fn vanished(&self, object: u64) -> ImageError {
        ImageError::Vanished { image_id: self.image_id.clone(), object }
    }

    fn forget(&self, object: u64) {
        self.places.known.borrow_mut().remove(&object);
        // Another look at the object itself must follow.
        self.places.is_listed.set(false);
    }

    /// Where an object's state is.
    async fn place(&self, object: u64) -> Result<Place, ImageError> {
        if let Some(place) = self.places.known.borrow().get(&object) {
            return Ok(*place);
        }
        if self.places.is_listed.get() {
            return Ok(Place::Nowhere);
        }
        let name = object_name(&self.image_id, object);
        let prefix = Bytes::copy_from_slice(name.as_str().as_bytes());
        let (mut listed, mut after) = (Vec::new(), None);
        loop {
            let request =
                ReadRequest::ObjectList { prefix: prefix.clone(), after, counts_blocks: false, pg_num: None };
            match self.client.send_read(self.pool, name.clone(), request).await? {
                (ReadOutcome::ObjectPage { objects, next }, _) => {
                    listed.extend(objects);
                    after = next;
                }
                _ => return Err(ClientError::UnexpectedAnswer { object: name }.into()),
            }
            if after.is_none() {
                break;
            }
        }
        let mut places = self.places.known.borrow_mut();
        if places.len() >= PLACES_MAX {
            places.clear();
        }
        let mut place = Place::Nowhere;
        listed.iter().for_each(|found| place = self.closer(place, found));
        places.insert(object, place);
        Ok(place)
    }

    /// The better of a place that is known and an object that was found.
    fn closer(&self, known: Place, found: &ListedObject) -> Place {
        let Some(part) = parse(&self.image_id, &found.name) else { return known };
        match (self.number, part.kept_for, known) {
            (Some(number), Some(kept_for), _) if kept_for < number => known,
            (Some(_), Some(kept_for), Place::Kept(nearer)) if nearer <= kept_for => known,
            (Some(_), Some(kept_for), _) => Place::Kept(kept_for),
            (_, None, Place::Nowhere) => Place::Object(found.version),
            _ => known,
        }
    }

    /// Lists all objects, so that those that are nowhere need not be looked for.
    pub async fn list(&self) -> Result<(), ImageError> {
        if self.places.is_listed.get() {
            return Ok(());
        }
        let mut all: HashMap<u64, Place> = HashMap::new();
        let prefix = image_prefix(&self.image_id);
        visit_objects::<ImageError>(&self.client, self.pool, &prefix, false, async |objects| {
            for found in objects {
                let Some(part) = parse(&self.image_id, &found.name) else { continue };
                let place = all.entry(part.index).or_insert(Place::Nowhere);
                *place = self.closer(*place, &found);
            }
            Ok(())
        })
        .await?;
        all.retain(|_, place| *place != Place::Nowhere);
        *self.places.known.borrow_mut() = all;
        self.places.is_listed.set(true);
        Ok(())
    }

    /// Lists all objects, the parents' included.
    pub async fn list_all(&self) -> Result<(), ImageError> {
        self.list().await?;
        match &self.parent {
            Some(parent) => Box::pin(parent.state.list_all()).await,
            None => Ok(()),
        }
    }

    /// From now on only these of the objects that were listed are here.
    pub fn show_only(&self, objects: &BTreeSet<u64>) {
        self.places.known.borrow_mut().retain(|object, _| objects.contains(object));
    }

    /// Returns true if it is known without a request that there is no object here and in the parents.
    pub fn is_known_empty(&self, piece: Piece) -> bool {
        let below = below(self.parent.as_ref(), piece.start(self.object_bytes));
        self.places.is_listed.get()
            && !self.places.known.borrow().contains_key(&piece.object)
            && below.is_none_or(|parent| parent.state.is_known_empty(piece))
    }

    /// Where the state of an object was when they were listed.
    pub fn known_place(&self, object: u64) -> Place {
        self.places.known.borrow().get(&object).copied().unwrap_or(Place::Nowhere)
    }

    /// The objects that this state is known to have, its parent's not included.
    pub fn known_objects(&self) -> BTreeSet<u64> {
        self.places
            .known
            .borrow()
            .iter()
            .filter(|(_, place)| **place != Place::Nowhere)
            .map(|(object, _)| *object)
            .collect()
    }

    /// Which blocks of a piece hold data, here or in the parent. Holes read as zeros.
    pub async fn mapped(&self, piece: Piece) -> Result<Vec<bool>, ImageError> {
        let found =
            self.found(piece.object, async |name| mapped_in_object(&self.client, self.pool, name, piece).await);
        let own = found.await?.unwrap_or_else(|| vec![false; piece.block_count()]);
        or_in_parent(own, self.parent.as_ref(), self.object_bytes, piece).await
    }

    /// Returns true if no part of a piece holds data, here or in the parents, by whole objects.
    pub async fn is_empty(&self, piece: Piece) -> Result<bool, ImageError> {
        if self.place(piece.object).await? != Place::Nowhere {
            return Ok(false);
        }
        match below(self.parent.as_ref(), piece.start(self.object_bytes)) {
            Some(parent) => Box::pin(parent.state.is_empty(piece)).await,
            None => Ok(true),
        }
    }
}

/// Returns the parent at an offset of an image, if it reaches as far.
pub(crate) fn below<C>(parent: Option<&Parent<C>>, start: u64) -> Option<&Parent<C>> {
    parent.filter(|parent| start < parent.overlap_bytes)
}

/// Which blocks of a piece of an object hold data, and the version that says so.
pub(crate) async fn mapped_in_object<C: PoolClient>(
    client: &C,
    pool: PoolId,
    name: ObjectName,
    piece: Piece,
) -> Result<(Version, Vec<bool>), ClientError> {
    let request = ReadRequest::Extents { offset: piece.offset, length: piece.length as u32 };
    match client.send_read(pool, name.clone(), request).await? {
        (ReadOutcome::Extents { version, blocks, .. }, _) => {
            let bit = |block: usize| blocks.get(block / 8).is_some_and(|byte| byte & 1 << (block % 8) != 0);
            Ok((version, (0..piece.block_count()).map(bit).collect()))
        }
        _ => Err(ClientError::UnexpectedAnswer { object: name }),
    }
}

/// Adds the blocks that the parent has.
pub(crate) async fn or_in_parent<C: PoolClient>(
    mut mapped: Vec<bool>,
    parent: Option<&Parent<C>>,
    object_bytes: u64,
    piece: Piece,
) -> Result<Vec<bool>, ImageError> {
    let start = piece.start(object_bytes);
    let Some(parent) = below(parent, start) else { return Ok(mapped) };
    let length = piece.length.min(parent.overlap_bytes - start);
    let below = Box::pin(parent.state.mapped(Piece { length, ..piece })).await?;
    mapped.iter_mut().zip(below).for_each(|(mapped, below)| *mapped |= below);
    Ok(mapped)
}

/// Reads a piece by requests of data to open. Data that does not open is read once more, with a check on its way,
/// to distinguish a change on the way from wrong data on the device.
pub(crate) async fn read_to_open(
    image_id: &str,
    piece: Piece,
    read: impl AsyncFn(fn(u64, u32) -> ReadRequest) -> Result<Bytes, ImageError>,
) -> Result<Bytes, ImageError> {
    match read(ReadRequest::data_to_open).await {
        Err(error) if error.is_not_authentic() => {
            let object = object_name(image_id, piece.object);
            tracing::warn!("object '{object}': {error}; reading it again with a check on its way");
            read(ReadRequest::checked_data).await
        }
        done => done,
    }
}

/// Returns the plain bytes of a piece: its stored data, and its parent's where it was not written.
pub(crate) async fn open_over_parent<C: PoolClient>(
    sealing: &Sealing,
    parent: Option<&Parent<C>>,
    object_bytes: u64,
    piece: Piece,
    stored: Option<Extent>,
) -> Result<Bytes, ImageError> {
    let (start, length) = (piece.start(object_bytes), piece.length as usize);
    let first_block = start / BLOCK;
    let Some(parent) = below(parent, start) else {
        return match stored {
            Some(extent) => sealing.open(first_block, length, extent),
            None => Ok(BytesMut::zeroed(length).freeze()),
        };
    };
    let Some(extent) = stored else {
        let shared = piece.length.min((parent.overlap_bytes - start).next_multiple_of(BLOCK));
        let below = Box::pin(parent.state.read_blocks(start, shared)).await?;
        if below.len() == length {
            return Ok(below);
        }
        let mut whole = BytesMut::zeroed(length);
        whole[..below.len()].copy_from_slice(&below);
        return Ok(whole.freeze());
    };
    let written = written_blocks(piece.block_count(), &extent);
    let own = sealing.open(first_block, length, extent)?;
    let holes = runs(&written, false).filter(|(first, _)| start + *first as u64 * BLOCK < parent.overlap_bytes);
    let holes: Vec<_> = holes.collect();
    let read = holes.into_iter().map(|(first, count)| async move {
        let from = start + first as u64 * BLOCK;
        let shared = (count as u64 * BLOCK).min((parent.overlap_bytes - from).next_multiple_of(BLOCK));
        Ok::<_, ImageError>((first, Box::pin(parent.state.read_blocks(from, shared)).await?))
    });
    let below = try_join_all(read).await?;
    if below.is_empty() {
        return Ok(own);
    }
    let mut whole = BytesMut::from(&own[..]);
    for (first, bytes) in below {
        let at = first * BLOCK as usize;
        let end = (at + bytes.len()).min(length);
        whole[at..end].copy_from_slice(&bytes[..end - at]);
    }
    Ok(whole.freeze())
}

#[cfg(test)]
mod tests;
