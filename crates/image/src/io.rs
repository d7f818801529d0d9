//! Reading and writing an attached image: cutting ranges into objects.

use atoll_buffers::BLOCK_BYTES;
use atoll_client::{ClientError, ObjectClient};
use atoll_types::{Condition, Mutation, Refusal, WriteRequest};
use bytes::{Bytes, BytesMut};
use futures::future::try_join_all;

use crate::admin::{ignore_absent, object_name};
use crate::{AttachedImage, ImageError};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A range of one object of the image, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    object: u64,
    offset: u64,
    length: u64,
}

/// Cuts a range of the image at object boundaries.
fn pieces(offset: u64, length: u64, object_bytes: u64) -> Vec<Piece> {
    let end = offset + length;
    let mut pieces = Vec::new();
    let mut position = offset;
    while position < end {
        let within = position % object_bytes;
        let length = (object_bytes - within).min(end - position);
        pieces.push(Piece { object: position / object_bytes, offset: within, length });
        position += length;
    }
    pieces
}

impl AttachedImage {
    fn check(&self, offset: u64, length: u64) -> Result<(), ImageError> {
        if self.is_lost.get() {
            return Err(ImageError::Lost(self.record.name.clone()));
        }
        match offset.checked_add(length) {
            Some(end) if end <= self.size_bytes() => Ok(()),
            _ => Err(ImageError::Invalid(format!(
                "{length} bytes at {offset} are beyond the image's {} bytes",
                self.size_bytes()
            ))),
        }
    }

    /// Reads a range, aligned or not.
    pub async fn read(&self, offset: u64, length: u32) -> Result<Bytes, ImageError> {
        self.check(offset, u64::from(length))?;
        let start = offset / BLOCK * BLOCK;
        let end = (offset + u64::from(length)).next_multiple_of(BLOCK);
        let pieces = pieces(start, end - start, self.record.object_bytes);
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
        let name = object_name(&self.record.id, piece.object);
        match self.client.read(self.record.pool, name, piece.offset, piece.length as u32).await {
            Ok(extent) => self.sealing.open(self.first_block(piece), piece.length as usize, extent),
            Err(error) if error.is_no_such_object() => Ok(BytesMut::zeroed(piece.length as usize).freeze()),
            Err(error) => Err(self.explain(error)),
        }
    }

    /// The image's block with which a piece begins.
    fn first_block(&self, piece: Piece) -> u64 {
        (piece.object * self.record.object_bytes + piece.offset) / BLOCK
    }

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

    async fn read_block(&self, block: u64) -> Result<Bytes, ImageError> {
        let offset = block * BLOCK;
        let (object, offset) = (offset / self.record.object_bytes, offset % self.record.object_bytes);
        self.read_piece(Piece { object, offset, length: BLOCK }).await
    }

    async fn write_blocks(&self, offset: u64, data: &Bytes) -> Result<(), ImageError> {
        let mut position = 0;
        let mut writes = Vec::new();
        for piece in pieces(offset, data.len() as u64, self.record.object_bytes) {
            let end = position + piece.length as usize;
            writes.push(self.write_piece(piece, data.slice(position..end))?);
            position = end;
        }
        try_join_all(writes).await.map(|_| ())
    }

    fn write_piece(
        &self,
        piece: Piece,
        plaintext: Bytes,
    ) -> Result<impl Future<Output = Result<(), ImageError>> + '_, ImageError> {
        let (payload, seals) = self.sealing.close(self.first_block(piece), plaintext)?;
        let payload_sealed = seals.is_some();
        let write = Mutation::Write { offset: piece.offset, length: piece.length as u32, seals };
        let request = WriteRequest {
            object: object_name(&self.record.id, piece.object),
            conditions: vec![self.not_fenced()],
            mutations: vec![write],
            payload,
            payload_sealed,
        };
        Ok(
            async move { self.client.send_write(self.record.pool, request).await.map_err(|error| self.explain(error)) },
        )
    }

    fn not_fenced(&self) -> Condition {
        Condition::NotFenced { name: self.fence_name.clone(), generation: self.generation }
    }

    /// A writer that was fenced off must not go on.
    fn explain(&self, error: ClientError) -> ImageError {
        if let Some(Refusal::Fenced { .. }) = error.refusal() {
            self.is_lost.set(true);
            return ImageError::Lost(self.record.name.clone());
        }
        error.into()
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
        if end == self.size_bytes() { end.next_multiple_of(BLOCK) } else { end / BLOCK * BLOCK }
    }

    async fn discard(&self, offset: u64, length: u64) -> Result<(), ImageError> {
        let _guard = self.locks.lock(offset / BLOCK..(offset + length) / BLOCK, false).await;
        let changes = pieces(offset, length, self.record.object_bytes).into_iter().map(|piece| {
            let mutation = if piece.length == self.record.object_bytes {
                Mutation::Remove
            } else {
                Mutation::Zero { offset: piece.offset, length: piece.length }
            };
            let conditions = vec![self.not_fenced(), Condition::ObjectExists];
            let object = object_name(&self.record.id, piece.object);
            self.client.change(self.record.pool, object, conditions, vec![mutation])
        });
        // A few at a time: a trim may cover the whole image.
        let mut changes = changes.peekable();
        while changes.peek().is_some() {
            let batch: Vec<_> = changes.by_ref().take(32).collect();
            for result in futures::future::join_all(batch).await {
                ignore_absent(result).map_err(|error| match error {
                    ImageError::Client(error) => self.explain(error),
                    other => other,
                })?;
            }
        }
        Ok(())
    }

    /// Which parts of a range were never written, at the grain of objects: length in bytes and
    /// whether it is a hole, from `offset` on.
    pub async fn extents(&self, offset: u64, length: u64) -> Result<Vec<(u64, bool)>, ImageError> {
        const OBJECTS_MAX: usize = 64;
        self.check(offset, length)?;
        let pieces = pieces(offset, length, self.record.object_bytes);
        let stats = pieces.into_iter().take(OBJECTS_MAX).map(|piece| async move {
            match self.client.stat(self.record.pool, object_name(&self.record.id, piece.object)).await {
                Ok(_) => Ok((piece.length, false)),
                Err(error) if error.is_no_such_object() => Ok((piece.length, true)),
                Err(error) => Err(self.explain(error)),
            }
        });
        let mut extents: Vec<(u64, bool)> = Vec::new();
        for (length, is_hole) in try_join_all(stats).await? {
            match extents.last_mut() {
                Some(last) if last.1 == is_hole => last.0 += length,
                _ => extents.push((length, is_hole)),
            }
        }
        Ok(extents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_cover_the_range_in_order(offset in 0u64..100_000, length in 0u64..100_000) {
            let mut position = offset;
            for piece in pieces(offset, length, 4096) {
                prop_assert_eq!(piece.object * 4096 + piece.offset, position);
                prop_assert!(piece.length > 0 && piece.offset + piece.length <= 4096);
                position += piece.length;
            }
            prop_assert_eq!(position, offset + length);
        }
    }
}
