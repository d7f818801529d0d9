//! The parents of an image for its readers: their records and keys, read from cluster state and the key service,
//! and states made of them.

use std::rc::Rc;

use atoll_client::PoolClient;
use atoll_keys::SecretKey;
use atoll_seal::{AttachId, SealError};
use atoll_types::records::{ImageRecord, ParentRecord};

use crate::ImageError;
use crate::admin::{ImageAdmin, image_key_context};
use crate::sealing::Sealing;
use crate::state::{Parent, Places, State};

/// An image at a snapshot, and the key to read it.
pub(crate) struct Generation {
    pub record: ImageRecord,
    pub key: SecretKey,
    /// The snapshot; `None` for the image itself.
    pub number: Option<u64>,
    pub size_bytes: u64,
    /// Bytes that are read from the previous generation.
    pub overlap_bytes: u64,
}

impl ImageAdmin {
    /// The secret that an image's record has wrapped. Also of an image that is not sealed: a forged record must
    /// not open.
    pub(crate) async fn unwrapped_key(&self, record: &ImageRecord) -> Result<SecretKey, ImageError> {
        if record.key.wrapped().is_empty() {
            return Err(ImageError::KeyDestroyed(record.name.clone()));
        }
        Ok(self.keys.unwrap(&image_key_context(record), record.key.wrapped()).await?)
    }

    /// The snapshot that an image is a clone of, that one's, and so on.
    pub(crate) async fn ancestors(&self, parent: Option<ParentRecord>) -> Result<Vec<Generation>, ImageError> {
        let mut generations = Vec::new();
        let mut next = parent;
        while let Some(parent) = next {
            let (record, _) = self.find(&parent.image_id, &parent.image_name).await?;
            let snapshot = record.snapshots().iter().find(|snapshot| snapshot.number == parent.number).cloned();
            let snapshot = snapshot.ok_or_else(|| ImageError::NoSuchSnapshot {
                name: record.name.clone(),
                snapshot: format!("number {}", parent.number),
            })?;
            let key = self.unwrapped_key(&record).await?;
            // Other snapshots may show more of it than this one: whoever copies them all asks for those, too.
            next = record.parent_at(&snapshot);
            let (number, size_bytes, overlap_bytes) =
                (Some(snapshot.number), snapshot.size_bytes, parent.overlap_bytes);
            generations.push(Generation { record, key, number, size_bytes, overlap_bytes });
        }
        Ok(generations)
    }
}

pub(crate) fn parse_image_id(record: &ImageRecord) -> Result<u64, ImageError> {
    u64::from_str_radix(&record.id, 16)
        .map_err(|_| ImageError::Invalid(format!("image id '{}' is not hexadecimal", record.id)))
}

pub(crate) fn parse_attach_ids(record: &ImageRecord) -> Result<Vec<AttachId>, SealError> {
    let parse = |text: &String| {
        let mut id = AttachId::default();
        hex::decode_to_slice(text, &mut id).map(|()| id).map_err(|error| SealError::Malformed {
            what: format!("the header of image '{}'", record.name),
            detail: error.to_string(),
        })
    };
    record.attach_ids.iter().map(parse).collect()
}

/// How blocks of an image that is not sealed are stored.
pub(crate) fn unsealed(record: &ImageRecord) -> Sealing {
    match record.states.as_ref().is_some_and(|states| states.is_marked) {
        true => Sealing::Marked,
        false => Sealing::Off,
    }
}

/// The state that a generation shows, above those behind it.
pub(crate) fn state_of<C: PoolClient>(
    client: &C,
    generation: Generation,
    above: Option<Parent<C>>,
) -> Result<State<C>, ImageError> {
    let Generation { record, key, number, size_bytes, .. } = generation;
    let sealing = match record.key.is_sealed() {
        true => Sealing::reading(key, parse_image_id(&record)?, parse_attach_ids(&record)?),
        false => unsealed(&record),
    };
    Ok(State {
        client: client.clone(),
        image_id: record.id,
        pool: record.pool,
        object_bytes: record.object_bytes,
        size_bytes,
        number,
        sealing: sealing.into(),
        parent: above,
        places: Places::default(),
    })
}

/// Returns the chain that an image reads while it returns to its old place: the place that it leaves, this place,
/// and its parents.
pub(crate) fn over_here(
    left: Generation,
    record: &ImageRecord,
    key: SecretKey,
    ancestors: Vec<Generation>,
) -> Vec<Generation> {
    let (size_bytes, overlap_bytes) = (record.size_bytes, left.size_bytes);
    let here = Generation { record: record.clone(), key, number: None, size_bytes, overlap_bytes };
    let left = Generation { size_bytes, ..left };
    [left, here].into_iter().chain(ancestors).collect()
}

/// The parent that these generations make, the nearest first.
pub(crate) fn parent_of<C: PoolClient>(
    client: &C,
    generations: Vec<Generation>,
) -> Result<Option<Parent<C>>, ImageError> {
    let mut parent = None;
    for generation in generations.into_iter().rev() {
        let overlap_bytes = generation.overlap_bytes;
        let state = Rc::new(state_of(client, generation, parent)?);
        parent = Some(Parent { state, overlap_bytes });
    }
    Ok(parent)
}
