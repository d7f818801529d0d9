//! MD5 (RFC 1321) of many bodies at once. S3 makes it the ETag. One stream of it is bound by the chain of its own
//! steps and would be most of the cost of a PUT; but a processor's vector unit takes as many streams side by side
//! as it has lanes. Threads of this crate hash bodies (`hashers`), while later data is received and sealed.
//!
//! This crate knows bytes and digests. It may not know whose they are: it uses no other crate of the
//! workspace.

mod compress;
mod hashers;

use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use tokio::sync::oneshot;

use crate::compress::{BLOCK_BYTES, State, compress_one};
use crate::hashers::{Job, OpenBody};

/// Bytes of a body that are handed to the hashers at once.
const JOB_BYTES: usize = 256 << 10;
/// Less than this is hashed where it is: a hand-over to another thread would cost more.
const HERE_BYTES_MAX: usize = 4 << 10;

/// The state of one stream between pieces.
#[derive(Default)]
struct Stream {
    state: State,
    /// The begin of a block whose end has not come yet.
    partial: Vec<u8>,
    length_bytes: u64,
}

impl Stream {
    /// Takes whole blocks off the front of `pieces`; `None` when less than a block is left.
    fn next_blocks(&mut self, pieces: &mut VecDeque<Bytes>) -> Option<Bytes> {
        while let Some(piece) = pieces.front_mut() {
            if self.partial.is_empty() && piece.len() >= BLOCK_BYTES {
                let blocks = piece.split_to(piece.len() / BLOCK_BYTES * BLOCK_BYTES);
                return Some(blocks);
            }
            let taken = piece.split_to(piece.len().min(BLOCK_BYTES - self.partial.len()));
            self.partial.extend_from_slice(&taken);
            if !piece.has_remaining() {
                pieces.pop_front();
            }
            if self.partial.len() == BLOCK_BYTES {
                let block = Bytes::copy_from_slice(&self.partial);
                self.partial.clear();
                return Some(block);
            }
        }
        None
    }

    fn update_here(&mut self, mut pieces: VecDeque<Bytes>) {
        while let Some(blocks) = self.next_blocks(&mut pieces) {
            compress_one(&mut self.state, &blocks);
        }
    }

    fn finish(mut self) -> [u8; 16] {
        let mut end = std::mem::take(&mut self.partial);
        end.push(0x80);
        let padded_bytes = (end.len() + 8).next_multiple_of(BLOCK_BYTES);
        end.resize(padded_bytes - 8, 0);
        end.extend_from_slice(&(self.length_bytes * 8).to_le_bytes());
        compress_one(&mut self.state, &end);
        let mut digest = [0; 16];
        for (bytes, word) in digest.chunks_exact_mut(4).zip(self.state.0) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        digest
    }
}

enum Place {
    Here(Stream),
    AtHashers(oneshot::Receiver<Stream>),
}

/// The MD5 of a body that arrives in pieces.
pub struct Md5 {
    place: Place,
    /// Pieces that are not hashed yet; they are the body's own memory.
    pieces: VecDeque<Bytes>,
    pieces_bytes: usize,
    _open: OpenBody,
}

impl Default for Md5 {
    fn default() -> Self {
        Md5::new()
    }
}

impl Md5 {
    /// Nothing is added yet.
    pub fn new() -> Self {
        let place = Place::Here(Stream::default());
        Md5 { place, pieces: VecDeque::new(), pieces_bytes: 0, _open: OpenBody::new() }
    }

    /// Adds a piece; waits for the hashers if they are behind.
    pub async fn update(&mut self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        self.pieces_bytes += piece.len();
        self.pieces.push_back(piece);
        if self.pieces_bytes >= JOB_BYTES {
            self.hand_over().await;
        }
    }

    async fn stream(place: Place) -> Stream {
        match place {
            Place::Here(stream) => stream,
            Place::AtHashers(mut answer) => {
                if let Ok(stream) = answer.try_recv() {
                    return stream;
                }
                hashers::hurry();
                answer.await.expect("hashers answer as long as the process lives")
            }
        }
    }

    async fn hand_over(&mut self) {
        let place = std::mem::replace(&mut self.place, Place::Here(Stream::default()));
        let mut stream = Self::stream(place).await;
        stream.length_bytes += self.pieces_bytes as u64;
        self.pieces_bytes = 0;
        let (answer, receiver) = oneshot::channel();
        hashers::add(Job { stream, pieces: std::mem::take(&mut self.pieces), answer });
        self.place = Place::AtHashers(receiver);
    }

    /// Nothing more is added: the rest may be hashed from now on, in parallel until [`Md5::finish`].
    pub async fn end(&mut self) {
        if self.pieces_bytes > HERE_BYTES_MAX {
            self.hand_over().await;
        }
    }

    /// The digest of everything added.
    pub async fn finish(mut self) -> [u8; 16] {
        self.end().await;
        let mut stream = Self::stream(self.place).await;
        stream.length_bytes += self.pieces_bytes as u64;
        stream.update_here(self.pieces);
        stream.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use md5::Digest;
    use proptest::prelude::*;

    async fn digest(pieces: Vec<Bytes>) -> [u8; 16] {
        let mut md5 = Md5::new();
        for piece in pieces {
            md5.update(piece).await;
        }
        md5.finish().await
    }

    fn body(seed: usize, length_bytes: usize) -> Bytes {
        (0..length_bytes).map(|at| (at * 31 + seed * 7 + at / 255) as u8).collect::<Vec<u8>>().into()
    }

    fn cut(body: &Bytes, step: usize) -> Vec<Bytes> {
        (0..body.len()).step_by(step).map(|at| body.slice(at..body.len().min(at + step))).collect()
    }

    /// The test suite of RFC 1321, appendix A.5.
    #[tokio::test]
    async fn known_digests() {
        for (text, expected) in [
            ("", "d41d8cd98f00b204e9800998ecf8427e"),
            ("message digest", "f96b697d7cb7938d525a2f31aaf161d0"),
            (
                "12345678901234567890123456789012345678901234567890123456789012345678901234567890",
                "57edf4a22be3c955ac49da2e2107b67a",
            ),
        ] {
            assert_eq!(hex::encode(digest(vec![text.into()]).await), expected);
        }
    }

    /// A job waits for those of other bodies only until its answer is needed.
    #[tokio::test]
    async fn a_body_that_stalls_holds_up_no_other() {
        let mut stalled = Md5::new();
        stalled.update(body(1, 100_000)).await;
        let whole = body(2, 100_000);
        let found = tokio::time::timeout(Duration::from_secs(60), digest(cut(&whole, 30_000))).await;
        assert_eq!(found.expect("its answer is needed")[..], md5::Md5::digest(&whole)[..]);
        assert_eq!(stalled.finish().await[..], md5::Md5::digest(body(1, 100_000))[..]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        /// Against another implementation, however many bodies of whatever lengths share the lanes.
        #[test]
        fn bodies_side_by_side_keep_apart(
            bodies in proptest::collection::vec((0usize..700_000, 1usize..90_000), 1..24), short in 0usize..300,
        ) {
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
            let found = runtime.block_on(async {
                let tasks: Vec<_> = bodies.iter().enumerate().map(|(seed, &(length, step))| {
                    tokio::spawn(digest(cut(&body(seed, length + short), step.max(length / 50))))
                }).collect();
                futures::future::join_all(tasks).await
            });
            for (seed, (found, (length, _))) in found.into_iter().zip(bodies).enumerate() {
                let expected: [u8; 16] = md5::Md5::digest(body(seed, length + short)).into();
                prop_assert_eq!(found.unwrap(), expected);
            }
        }
    }
}
