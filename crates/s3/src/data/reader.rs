//! Reading data: a byte range of an object becomes reads of chunk objects, each opened segment by
//! segment, or one of the index. Nothing leaves here that did not authenticate in its place, but for
//! data that was never sealed.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_objects::{ClientError, Extent};
use atoll_seal::{SEGMENT_BYTES, SealError, SegmentCipher};
use atoll_types::{ObjectName, PoolId, ReadRequest, Refusal};
use bytes::Bytes;
use futures::{Stream, StreamExt};

use super::budget::{Budget, Share};
use super::inline::{self, INLINE_BYTES_MAX};
use super::{CHUNK_BYTES, SEAL_BYTES, SEAL_UNIT_BYTES};
use crate::DataStore;
use crate::bucket::Bucket;
use crate::encryption::WrappingKey;
use crate::error::GatewayError;
use crate::names::{beside_object, chunk_object, inline_key};
use crate::record::{Piece, Place};

/// Chunk reads of one request that run ahead of its client.
const READS_AHEAD: usize = 2;
const SEGMENT: u64 = SEGMENT_BYTES as u64;

/// A read of consecutive bytes within one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkRead {
    /// Which of the object's pieces.
    pub piece: usize,
    /// Bytes of that piece.
    pub range: Range<u64>,
}

/// Cuts `range` of the object made of `pieces` at piece and chunk boundaries.
pub(crate) fn plan_reads(pieces: &[Piece], range: Range<u64>) -> Vec<ChunkRead> {
    let mut reads = Vec::new();
    let mut piece_start = 0;
    for (index, piece) in pieces.iter().enumerate() {
        let piece_end = piece_start + piece.bytes;
        let mut from = range.start.clamp(piece_start, piece_end) - piece_start;
        let until = range.end.clamp(piece_start, piece_end) - piece_start;
        while from < until {
            let chunk_end = (from / CHUNK_BYTES + 1) * CHUNK_BYTES;
            let end = chunk_end.min(until);
            reads.push(ChunkRead { piece: index, range: from..end });
            from = end;
        }
        piece_start = piece_end;
    }
    reads
}

/// Opens ranges of one object's data.
pub(crate) struct DataReader {
    store: Arc<dyn DataStore>,
    budget: Option<Budget>,
    pool: PoolId,
    /// Holds the pieces that are in the index; others are beside it.
    index: (PoolId, ObjectName),
    pieces: Vec<OpenPiece>,
}

/// Plaintext on its way to a client, and its part of the memory budget.
struct Plaintext {
    bytes: Bytes,
    _share: Option<Share>,
}

impl AsRef<[u8]> for Plaintext {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

struct OpenPiece {
    piece: Piece,
    /// None if it is not sealed.
    cipher: Option<SegmentCipher>,
}

impl DataReader {
    /// Unwraps the data keys of the pieces that `reads` touches. `index_object` is where their record
    /// is. Without a budget the caller answers for the memory.
    pub(crate) fn new(
        store: Arc<dyn DataStore>,
        budget: Option<Budget>,
        bucket: &Bucket,
        index_object: ObjectName,
        key: &WrappingKey,
        pieces: &[Piece],
        reads: Vec<ChunkRead>,
    ) -> Result<(Self, Vec<ChunkRead>), GatewayError> {
        let first = reads.first().map_or(0, |read| read.piece);
        let end = reads.last().map_or(0, |read| read.piece + 1);
        let open = |piece: &Piece| {
            let data_key = key.unwrap(&piece.data_id, &piece.wrapped_key)?;
            Ok(OpenPiece { piece: piece.clone(), cipher: key.cipher(&piece.data_id, &data_key) })
        };
        let pieces = pieces[first..end].iter().map(open).collect::<Result<_, GatewayError>>()?;
        let reads =
            reads.into_iter().map(|read| ChunkRead { piece: read.piece - first, range: read.range }).collect();
        let (pool, index) = (bucket.record.data_pool(), (bucket.record.pool, index_object));
        Ok((DataReader { store, budget, pool, index, pieces }, reads))
    }

    /// The plaintext of `reads`, in order, a few reads ahead.
    pub(crate) fn stream(
        self,
        reads: Vec<ChunkRead>,
    ) -> impl Stream<Item = Result<Bytes, GatewayError>> + Send + 'static {
        let reader = Arc::new(self);
        let whole = reads.iter().map(|read| read.range.end - read.range.start).sum();
        // Memory is taken in the order of the answer: what is behind never keeps what is before from going on.
        let begin = {
            let reader = reader.clone();
            move |mut reads: VecDeque<ChunkRead>| {
                let reader = reader.clone();
                async move {
                    let read = reads.pop_front()?;
                    let begun = reader.begin(read, whole, &mut reads).await;
                    Some((begun, reads))
                }
            }
        };
        let read = move |begun: Result<(ChunkRead, Option<Share>), GatewayError>| {
            let reader = reader.clone();
            async move {
                let (read, share) = begun?;
                reader.read(&read, share).await
            }
        };
        futures::stream::unfold(VecDeque::from(reads), begin).map(read).buffered(READS_AHEAD)
    }

    /// Takes memory for a read. If that is not enough for all of it, the rest becomes the next one.
    async fn begin(
        &self,
        read: ChunkRead,
        whole: u64,
        reads: &mut VecDeque<ChunkRead>,
    ) -> Result<(ChunkRead, Option<Share>), GatewayError> {
        let Some(budget) = &self.budget else { return Ok((read, None)) };
        let piece = &self.pieces[read.piece].piece;
        let (first, length) = segments_of(&read);
        let start = first * SEGMENT;
        let needed = match piece.place {
            Place::Index => INLINE_BYTES_MAX,
            Place::Chunks | Place::Beside => (start + u64::from(length)).min(piece.bytes) - start,
        };
        let (share, bytes) = budget.for_read(needed, whole).await?;
        if bytes >= needed {
            return Ok((read, Some(share)));
        }
        let end = (start + bytes).clamp(read.range.start, read.range.end);
        if end < read.range.end {
            reads.push_front(ChunkRead { piece: read.piece, range: end..read.range.end });
        }
        Ok((ChunkRead { piece: read.piece, range: read.range.start..end }, Some(share)))
    }

    async fn read(&self, read: &ChunkRead, share: Option<Share>) -> Result<Bytes, GatewayError> {
        match self.pieces[read.piece].piece.place {
            Place::Chunks | Place::Beside => self.read_chunk(read, share).await,
            Place::Index => self.read_inline(read, share).await,
        }
    }

    async fn read_inline(&self, read: &ChunkRead, share: Option<Share>) -> Result<Bytes, GatewayError> {
        let OpenPiece { piece, cipher } = &self.pieces[read.piece];
        let (pool, object) = self.index.clone();
        let value = match self.store.omap_get(pool, object, inline_key(&piece.data_id)).await {
            // The whole index is gone.
            Err(error) if error.is_no_such_object() => None,
            other => other?,
        };
        let value = value.ok_or_else(|| vanished(piece))?;
        let bytes = inline::open(cipher.as_ref(), piece, value)?;
        let (from, until) = (read.range.start as usize, read.range.end as usize);
        Ok(Bytes::from_owner(Plaintext { bytes, _share: share }).slice(from..until))
    }

    /// The share is enough for both attempts: the reads ahead of others may not come between them.
    async fn read_chunk(&self, read: &ChunkRead, share: Option<Share>) -> Result<Bytes, GatewayError> {
        let bytes = match self.open_chunk(read, ReadRequest::data_to_open).await {
            // Nothing has checked it on its way, so that may be where it was changed.
            Err(GatewayError::Seal(error @ SealError::NotAuthentic { .. })) => {
                let data_id = hex::encode(self.pieces[read.piece].piece.data_id);
                tracing::warn!("data '{data_id}': {error}; reading it again with a check on its way");
                self.open_chunk(read, ReadRequest::checked_data).await?
            }
            done => done?,
        };
        Ok(Bytes::from_owner(Plaintext { bytes, _share: share }))
    }

    async fn open_chunk(
        &self,
        read: &ChunkRead,
        request: impl Fn(u64, u32) -> ReadRequest,
    ) -> Result<Bytes, GatewayError> {
        let open = &self.pieces[read.piece];
        let chunk = read.range.start / CHUNK_BYTES;
        let chunk_start = chunk * CHUNK_BYTES;
        let (pool, object) = match open.piece.place {
            Place::Beside => (self.index.0, beside_object(&self.index.1, &open.piece.data_id)),
            _ => (self.pool, chunk_object(&open.piece.data_id, chunk)),
        };
        let damaged = |detail: String| ClientError::Refused {
            pool,
            object: object.clone(),
            refusal: Refusal::Corrupt { detail },
        };

        let (first, length) = segments_of(read);
        let end = first + u64::from(length) / SEGMENT;
        let request = request(first * SEGMENT - chunk_start, length);
        let extent = match self.store.read(pool, object.clone(), request).await {
            Err(error) if error.is_no_such_object() => return Err(vanished(&open.piece)),
            other => other?,
        };

        let wanted = (end * SEGMENT).min(open.piece.bytes) - first * SEGMENT;
        let bytes = match &open.cipher {
            Some(cipher) => {
                let seals = checked_seals(&extent, wanted).ok_or_else(|| {
                    damaged(format!(
                        "{} bytes came back where {wanted} sealed bytes were written",
                        extent.data.len()
                    ))
                })?;
                open_segments(cipher, first, open.piece.bytes.div_ceil(SEGMENT) - 1, &extent.data, seals)?
            }
            None if extent.data.len() as u64 == wanted && extent.seals.is_none() => extent.data,
            None => {
                let found = if extent.seals.is_some() { "sealed bytes" } else { "bytes" };
                let length = extent.data.len();
                return Err(damaged(format!(
                    "{length} {found} came back where {wanted} unsealed bytes were written"
                ))
                .into());
            }
        };
        let from = (read.range.start - first * SEGMENT) as usize;
        let until = (read.range.end - first * SEGMENT) as usize;
        Ok(bytes.slice(from..until))
    }
}

/// The first segment of a read, and the length in bytes of all.
fn segments_of(read: &ChunkRead) -> (u64, u32) {
    let first = read.range.start / SEGMENT;
    let length = (read.range.end.div_ceil(SEGMENT) - first) * SEGMENT;
    (first, u32::try_from(length).expect("a read stays within one chunk"))
}

fn vanished(piece: &Piece) -> GatewayError {
    GatewayError::Vanished { data_id: hex::encode(piece.data_id) }
}

/// Returns the plaintext of consecutive segments, all but the last of which are whole.
fn open_segments(
    cipher: &SegmentCipher,
    first: u64,
    last_of_piece: u64,
    sealed: &[u8],
    seals: &[u8],
) -> Result<Bytes, GatewayError> {
    let mut plain = BlockBuffer::for_overwriting(sealed.len().div_ceil(BLOCK_BYTES));
    let targets = plain.as_mut_slice()[..sealed.len()].chunks_mut(SEGMENT_BYTES);
    let segments = sealed.chunks(SEGMENT_BYTES).zip(seals.chunks_exact(usize::from(SEAL_BYTES)));
    for ((number, (sealed, seal)), target) in (first..).zip(segments).zip(targets) {
        cipher.open(number, number == last_of_piece, seal, sealed, target)?;
    }
    Ok(plain.into_bytes(sealed.len()))
}

/// The seals of an extent that has exactly the length and the seals that it must have.
fn checked_seals(extent: &Extent, wanted: u64) -> Option<&Bytes> {
    let seals = extent.seals.as_ref()?;
    let count = wanted.div_ceil(SEGMENT) * u64::from(SEAL_BYTES);
    let fits = extent.data.len() as u64 == wanted
        && seals.unit_bytes == SEAL_UNIT_BYTES
        && seals.seal_bytes == SEAL_BYTES
        && seals.bytes.len() as u64 == count;
    fits.then_some(&seals.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn piece(bytes: u64) -> Piece {
        Piece { place: Place::Chunks, data_id: [0; 16], wrapped_key: [0; atoll_keys::WRAPPED_KEY_BYTES], bytes }
    }

    proptest! {
        /// The reads of a plan cover exactly the range, in order, each within one chunk.
        #[test]
        fn plans_cover_the_range(
            sizes in prop::collection::vec(1..3 * CHUNK_BYTES, 1..5),
            a in 0..12 * CHUNK_BYTES,
            b in 0..12 * CHUNK_BYTES,
        ) {
            let total: u64 = sizes.iter().sum();
            let range = a.min(b).min(total)..a.max(b).min(total);
            let pieces: Vec<Piece> = sizes.iter().map(|&bytes| piece(bytes)).collect();
            let mut position = range.start;
            for read in plan_reads(&pieces, range.clone()) {
                let before: u64 = sizes[..read.piece].iter().sum();
                prop_assert_eq!(before + read.range.start, position);
                prop_assert!(read.range.start < read.range.end && read.range.end <= sizes[read.piece]);
                prop_assert_eq!(read.range.start / CHUNK_BYTES, (read.range.end - 1) / CHUNK_BYTES);
                position = before + read.range.end;
            }
            prop_assert_eq!(position, range.end.max(range.start));
        }
    }
}
