//! Writing data: a body of unknown length is cut into chunks, sealed (unless sealing is off) and
//! written while it is still arriving. A small one is only sealed, and handed to the index, which it goes into or
//! beside.

use std::sync::Arc;
use std::time::Duration;

use atoll_buffers::{BLOCK_BYTES, BlockBuffer};
use atoll_keys::{SecretKey, random_bytes};
use atoll_metrics::current_span::carry;
use atoll_objects::ClientError;
use atoll_seal::{SEGMENT_BYTES, SegmentCipher};
use atoll_types::{Condition, Mutation, ObjectName, PoolId, Seals, WriteRequest};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::task::JoinHandle;

use super::budget::{Budget, Share};
use super::intent::unclear_record;
use super::{CHUNK_BYTES, Intent, SEAL_BYTES, SEAL_UNIT_BYTES, SEGMENTS_PER_CHUNK, inline};
use crate::DataStore;
use crate::data::removal::remove_chunks;
use crate::encryption::WrappingKey;
use crate::error::GatewayError;
use crate::index::{BesideIndex, Index};
use crate::names::{beside_object, chunk_object, inline_key, intent_key};
use crate::record::{Piece, Place};

/// Chunks of one request that may be on their way at once; with the one being filled this bounds
/// the memory of a request.
const CHUNKS_IN_FLIGHT: usize = 4;

/// Data that was written, or is ready to be, but that no index names yet. Unless
/// [`Unfinished::keep`] is called its objects are removed again, also when the request is dropped because
/// its client went away.
pub(crate) struct Unfinished {
    store: Arc<dyn DataStore>,
    pool: PoolId,
    data_id: [u8; 16],
    chunks: u64,
    // What goes into the index.
    inline: Option<Bytes>,
    beside: Option<Beside>,
    intent: Option<Intent>,
    // All of it, unless it goes into the index.
    piece: Option<Piece>,
    // Of the budget, for what is not written yet.
    share: Option<Share>,
    // Writes run as tasks of their own: were they dropped with the request, a write could reach
    // the cluster after the removal that is meant to undo it.
    in_flight: FuturesUnordered<JoinHandle<Result<(), ClientError>>>,
}

/// Data that goes beside the index, in the pool of the index.
struct Beside {
    object: ObjectName,
    /// The write that makes the object; `None` once it is there.
    write: Option<WriteRequest>,
    is_sent: bool,
}

impl Unfinished {
    /// Returns the mutation that must happen together with the entry: puts small data into the index, and ends the
    /// intent.
    pub(crate) fn index_change(&self) -> Option<Mutation> {
        if let Some(value) = self.inline.clone() {
            return Some(Mutation::OmapSet { key: inline_key(&self.data_id), value });
        }
        self.intent().map(Intent::removal)
    }

    fn intent(&self) -> Option<&Intent> {
        self.intent.as_ref().filter(|intent| intent.has_begun())
    }

    /// Returns the condition of the change that names the data: that the data was not given up.
    pub(crate) fn condition(&self) -> Option<Condition> {
        match self.intent() {
            Some(intent) => Some(intent.condition()),
            None => self.piece.as_ref().map(|_| Condition::OmapAbsent { key: intent_key(&self.data_id) }),
        }
    }

    /// It is not certain whether the change happened that names the data: the collector will look.
    pub(crate) fn keep_unclear(self, index: &Index, object_key: &str) {
        if let Some(piece) = self.piece.as_ref().filter(|_| self.intent().is_none()) {
            let set =
                Mutation::OmapSet { key: intent_key(&self.data_id), value: unclear_record(object_key, piece) };
            let (index, shard) = (index.clone(), index.shard_of(object_key));
            tokio::spawn(async move {
                if let Err(error) = index.change_shard(shard, vec![Condition::ObjectExists], vec![set]).await {
                    tracing::warn!(%error, "data beside the index may stay behind");
                }
            });
        }
        self.keep();
    }

    /// The data now belongs to the index, or it is not certain that it does not.
    pub(crate) fn keep(mut self) {
        (self.chunks, self.beside, self.intent) = (0, None, None);
    }
}

impl BesideIndex for Unfinished {
    fn beside(&self) -> Option<&ObjectName> {
        self.beside.as_ref().map(|beside| &beside.object)
    }

    fn write_beside(&mut self) -> Option<WriteRequest> {
        let beside = self.beside.as_mut()?;
        let write = beside.write.clone()?;
        beside.is_sent = true;
        Some(write)
    }

    fn note_beside(&mut self) {
        if let Some(beside) = &mut self.beside {
            beside.write = None;
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let sent_beside = self.beside.take().filter(|beside| beside.is_sent).map(|beside| beside.object);
        let intent = self.intent.take().filter(Intent::has_begun);
        if self.chunks == 0 && intent.is_none() && sent_beside.is_none() {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut in_flight = std::mem::take(&mut self.in_flight);
        let (store, pool, data_id, chunks) = (self.store.clone(), self.pool, self.data_id, self.chunks);
        runtime.spawn(async move {
            while in_flight.next().await.is_some() {}
            let removed = match sent_beside {
                Some(object) => {
                    let removed = store.change(pool, object, Vec::new(), vec![Mutation::Remove]).await;
                    removed.map_err(GatewayError::from)
                }
                None => remove_chunks(&store, pool, &data_id, chunks).await,
            };
            let done = match intent {
                Some(mut intent) if removed.is_ok() => {
                    // Whatever became of it, it is not under way any more.
                    drop(intent.durable().await);
                    intent.withdraw().await
                }
                _ => removed,
            };
            if let Err(error) = done {
                tracing::warn!(data_id = hex::encode(data_id), %error, "data of a failed upload stays behind");
            }
        });
    }
}

/// A chunk that is being filled.
#[derive(Default)]
struct Buffer {
    blocks: BlockBuffer,
    filled_bytes: usize,
    room_bytes: usize,
}

impl Buffer {
    fn push(&mut self, bytes: &[u8]) {
        let end = self.filled_bytes + bytes.len();
        self.blocks.as_mut_slice()[self.filled_bytes..end].copy_from_slice(bytes);
        self.filled_bytes = end;
    }

    /// Moves to a buffer with `room_bytes` of room.
    fn grow(&mut self, room_bytes: usize) {
        let mut blocks = BlockBuffer::for_overwriting(room_bytes.div_ceil(BLOCK_BYTES));
        blocks.as_mut_slice()[..self.filled_bytes].copy_from_slice(self.filled());
        (self.blocks, self.room_bytes) = (blocks, room_bytes);
    }

    fn filled(&mut self) -> &mut [u8] {
        &mut self.blocks.as_mut_slice()[..self.filled_bytes]
    }
}

/// Takes plaintext in any pieces and writes it under a fresh data id and key.
pub(crate) struct DataWriter {
    place: Place,
    /// The index object that will name the data.
    index: ObjectName,
    /// None if the data is not sealed.
    cipher: Option<SegmentCipher>,
    wrapped_key: [u8; atoll_keys::WRAPPED_KEY_BYTES],
    buffer: Buffer,
    buffer_bytes: u64,
    budget: Budget,
    // Of the budget, for the buffer; a write takes it along.
    share: Option<Share>,
    total: u64,
    unfinished: Unfinished,
}

impl DataWriter {
    /// A writer of data that a record of `object_key` will name. No more than `bytes_max` may be pushed. Data for the
    /// index or beside it must be small ([`Place::of_object`]). Data for chunks has an intent, which is renewed at
    /// this interval.
    pub(crate) fn new(
        index: &Index,
        object_key: &str,
        budget: Budget,
        key: &WrappingKey,
        place: Place,
        bytes_max: u64,
        renewal_interval: Duration,
    ) -> Self {
        let (data_id, data_key) = (random_bytes::<16>(), SecretKey::random());
        let wrapped_key = key.wrap(&data_id, &data_key);
        let all = Piece { place, data_id, wrapped_key, bytes: bytes_max };
        let intent = || Intent::new(index, object_key, all, renewal_interval);
        DataWriter {
            place,
            index: index.object(index.shard_of(object_key)),
            cipher: key.cipher(&data_id, &data_key),
            wrapped_key,
            buffer: Buffer::default(),
            buffer_bytes: bytes_max.min(CHUNK_BYTES),
            budget,
            share: None,
            total: 0,
            unfinished: Unfinished {
                store: index.store.clone(),
                pool: index.bucket.record.data_pool(),
                data_id,
                chunks: 0,
                inline: None,
                beside: None,
                intent: (place == Place::Chunks).then(intent),
                piece: None,
                share: None,
                in_flight: FuturesUnordered::new(),
            },
        }
    }

    /// Adds plaintext; waits when too many chunks are on their way.
    pub(crate) async fn push(&mut self, mut bytes: &[u8]) -> Result<(), GatewayError> {
        // So it is durable, usually, by the time that there is a chunk to be written.
        if let Some(intent) = &mut self.unfinished.intent {
            intent.tend().await?;
        }
        while !bytes.is_empty() {
            // A full chunk is sealed only when more follows: its last segment would otherwise
            // need the mark of the final one.
            if self.buffer.filled_bytes as u64 == CHUNK_BYTES {
                self.write_chunk(false).await?;
            }
            if self.buffer.filled_bytes == self.buffer.room_bytes {
                self.grow(bytes.len() as u64).await?;
            }
            let room = self.buffer.room_bytes - self.buffer.filled_bytes;
            assert!(room > 0, "no more is pushed than was announced");
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer.push(now);
            self.total += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    /// Takes memory for `bytes` more bytes, as far as they belong to this chunk, and no more than they need.
    async fn grow(&mut self, bytes: u64) -> Result<(), GatewayError> {
        let wanted = (self.buffer.filled_bytes as u64 + bytes).min(self.buffer_bytes);
        let room = Budget::write_step(wanted, self.buffer_bytes);
        // What is held goes back when the greater share is there.
        self.share = Some(self.budget.for_write(room).await?);
        self.buffer.grow(usize::try_from(room).expect("a chunk fits into memory"));
        Ok(())
    }

    /// Begins to write the rest, or prepares it to be written with the entry: no more is pushed.
    pub(crate) async fn write_rest(&mut self) -> Result<(), GatewayError> {
        if self.buffer.filled_bytes == 0 {
            return Ok(());
        }
        match self.place {
            Place::Chunks => self.write_chunk(true).await,
            Place::Index => {
                // Taken away, so that nothing is sealed twice.
                let mut buffer = std::mem::take(&mut self.buffer);
                self.unfinished.inline = Some(inline::seal(self.cipher.as_ref(), buffer.filled()));
                self.unfinished.share = self.share.take();
                Ok(())
            }
            Place::Beside => {
                let (write, payload) = self.sealed(0, true);
                let object = beside_object(&self.index, &self.unfinished.data_id);
                let write = WriteRequest {
                    object: object.clone(),
                    // Data that comes after the end of its bucket would be found by nobody.
                    conditions: vec![Condition::OtherExists { object: self.index.clone() }],
                    mutations: vec![write],
                    payload,
                    payload_sealed: self.cipher.is_some(),
                };
                self.unfinished.beside = Some(Beside { object, write: Some(write), is_sent: false });
                self.unfinished.share = self.share.take();
                Ok(())
            }
        }
    }

    /// Seals the collected data and takes it away: returns its write, as a chunk of this number, and the payload.
    fn sealed(&mut self, chunk: u64, is_final: bool) -> (Mutation, Bytes) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let seals = self.cipher.as_ref().map(|cipher| seal(cipher, chunk, is_final, buffer.filled()));
        let length = u32::try_from(buffer.filled_bytes).expect("a chunk has at most 4 MiB");
        (Mutation::Write { offset: 0, length, seals }, buffer.blocks.into_bytes(buffer.filled_bytes))
    }

    /// Writes the rest and waits until everything is durable, except the data that is written with the entry. No
    /// data makes no piece.
    pub(crate) async fn finish(mut self) -> Result<(Option<Piece>, Unfinished), GatewayError> {
        self.write_rest().await?;
        while let Some(written) = self.unfinished.in_flight.next().await {
            chunk_result(written)?;
        }
        let piece = (self.total > 0).then(|| self.piece());
        self.unfinished.piece = piece.clone().filter(|piece| piece.place != Place::Index);
        Ok((piece, self.unfinished))
    }

    fn piece(&self) -> Piece {
        Piece {
            place: self.place,
            data_id: self.unfinished.data_id,
            wrapped_key: self.wrapped_key,
            bytes: self.total,
        }
    }

    async fn write_chunk(&mut self, is_final: bool) -> Result<(), GatewayError> {
        if let Some(intent) = &mut self.unfinished.intent {
            intent.durable().await?;
        }
        let share = self.share.take();
        let number = self.unfinished.chunks;
        let (write, payload) = self.sealed(number, is_final);
        let request = WriteRequest {
            object: chunk_object(&self.unfinished.data_id, number),
            conditions: Vec::new(),
            mutations: vec![write],
            payload,
            payload_sealed: self.cipher.is_some(),
        };
        while self.unfinished.in_flight.len() >= CHUNKS_IN_FLIGHT {
            if let Some(written) = self.unfinished.in_flight.next().await {
                chunk_result(written)?;
            }
        }
        let (store, pool) = (self.unfinished.store.clone(), self.unfinished.pool);
        self.unfinished.chunks += 1;
        self.unfinished.in_flight.push(tokio::spawn(carry(async move {
            let written = store.send_write(pool, request).await;
            drop(share);
            written
        })));
        Ok(())
    }
}

/// Encrypts a chunk's segments in place.
fn seal(cipher: &SegmentCipher, chunk: u64, is_final: bool, data: &mut [u8]) -> Seals {
    let count = data.len().div_ceil(SEGMENT_BYTES);
    let mut seals = Vec::with_capacity(count * usize::from(SEAL_BYTES));
    for (index, segment) in data.chunks_mut(SEGMENT_BYTES).enumerate() {
        let number = chunk * SEGMENTS_PER_CHUNK + index as u64;
        seals.extend_from_slice(&cipher.seal(number, is_final && index + 1 == count, segment));
    }
    Seals { unit_bytes: SEAL_UNIT_BYTES, seal_bytes: SEAL_BYTES, bytes: Bytes::from(seals) }
}

fn chunk_result(written: Result<Result<(), ClientError>, tokio::task::JoinError>) -> Result<(), GatewayError> {
    match written {
        Ok(result) => Ok(result?),
        // The task cannot be cancelled, so it panicked or the runtime is going down.
        Err(_) => Err(ClientError::ShutDown.into()),
    }
}
