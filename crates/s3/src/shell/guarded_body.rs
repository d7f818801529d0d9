//! A request body on its way to s3s: a client that stops sending is given up, and an aws-chunked
//! body may not have large chunks, since s3s collects each chunk in memory before it passes it on.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;

use super::pace::Pace;
use crate::observed::Observed;

/// Largest chunk of an aws-chunked body. The AWS SDKs send at most this much.
pub(super) const CHUNK_BYTES_MAX: u64 = 1 << 20;
/// Longest line before a chunk: its size and its signature.
pub(super) const CHUNK_LINE_BYTES_MAX: usize = 1_024;

/// How much of a refused request's body is taken in and thrown away, and for how long.
const DRAIN_BYTES_MAX: usize = 16 << 20;
const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);

/// By this text the operations recognise [`BodyError::ChunkTooLarge`] through s3s's wrappings.
pub(crate) const CHUNK_TOO_LARGE: &str = "a chunk of the aws-chunked body is too large";
/// By this text the operations recognise [`BodyError::Stalled`] through s3s's wrappings.
pub(crate) const BODY_STALLED: &str = "the request body stopped arriving";

/// Why a body is cut off.
#[derive(Debug, thiserror::Error)]
pub(super) enum BodyError {
    #[error("{CHUNK_TOO_LARGE}: at most {CHUNK_BYTES_MAX} bytes are allowed")]
    ChunkTooLarge,
    #[error("{BODY_STALLED}")]
    Stalled,
    #[error("the aws-chunked body is malformed: {0}")]
    Malformed(&'static str),
    #[error("the aws-chunked body is incomplete")]
    Incomplete,
    #[error("{0}")]
    Connection(#[from] hyper::Error),
}

/// Follows the framing of an aws-chunked body without changing it.
#[derive(Default)]
struct ChunkScanner {
    /// Bytes of the current chunk, and of the line end behind it, that are still to come.
    skip: u64,
    line: Vec<u8>,
    is_last_seen: bool,
}

impl ChunkScanner {
    fn scan(&mut self, mut bytes: &[u8]) -> Result<(), BodyError> {
        // Behind the last chunk come trailers, which s3s bounds itself.
        while !bytes.is_empty() && !self.is_last_seen {
            if self.skip > 0 {
                let now = self.skip.min(bytes.len() as u64);
                self.skip -= now;
                bytes = &bytes[now as usize..];
                continue;
            }
            let end = bytes.iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |end| end + 1);
            self.line.extend_from_slice(&bytes[..end]);
            bytes = &bytes[end..];
            if self.line.len() > CHUNK_LINE_BYTES_MAX {
                return Err(BodyError::ChunkTooLarge);
            }
            if self.line.ends_with(b"\n") {
                self.begin_chunk()?;
            }
        }
        Ok(())
    }

    fn begin_chunk(&mut self) -> Result<(), BodyError> {
        let line = std::mem::take(&mut self.line);
        let digits = line.split(|byte| matches!(byte, b';' | b'\r' | b'\n')).next().unwrap_or_default();
        // s3s refuses a line that is no number; here it only must not let anything through.
        let size = std::str::from_utf8(digits).ok().and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        match size {
            Some(0) => self.is_last_seen = true,
            Some(size) if size <= CHUNK_BYTES_MAX => self.skip = size + 2,
            _ => return Err(BodyError::ChunkTooLarge),
        }
        Ok(())
    }
}

/// True while the client may still have to send some of a request's body.
#[derive(Clone)]
pub(super) struct Unread(Arc<AtomicBool>);

impl Unread {
    pub(super) fn is_some_left(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The guarded body.
pub(super) struct GuardedBody {
    // None only while dropping.
    inner: Option<Incoming>,
    scanner: Option<ChunkScanner>,
    pace: Pace,
    unread: Unread,
    observed: Arc<Observed>,
    // The client holds the body back until it is asked for it, by the first poll.
    is_held_back: bool,
}

impl GuardedBody {
    pub(super) fn new(
        inner: Incoming,
        is_decoded_by_s3s: bool,
        expects_continue: bool,
        stall_timeout: Duration,
        observed: Arc<Observed>,
    ) -> (Self, Unread) {
        let unread = Unread(Arc::new(AtomicBool::new(!inner.is_end_stream())));
        let body = GuardedBody {
            inner: Some(inner),
            scanner: is_decoded_by_s3s.then(ChunkScanner::default),
            pace: Pace::new(stall_timeout),
            unread: unread.clone(),
            observed,
            is_held_back: expects_continue,
        };
        (body, unread)
    }
}

impl Body for GuardedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        let Some(inner) = &mut this.inner else { return Poll::Ready(None) };
        this.is_held_back = false;
        let Poll::Ready(frame) = Pin::new(&mut *inner).poll_frame(context) else {
            return this.pace.wait(context).map(|()| Some(Err(BodyError::Stalled)));
        };
        if frame.is_none() || inner.is_end_stream() {
            this.unread.0.store(false, Ordering::Release);
        }
        let frame = match frame {
            None => return Poll::Ready(None),
            Some(frame) => frame?,
        };
        if let Some(data) = frame.data_ref() {
            this.pace.went_on(data.len());
            this.observed.received(data.len());
            if let Some(scanner) = &mut this.scanner {
                scanner.scan(data)?;
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map(Incoming::size_hint).unwrap_or_default()
    }
}

impl Drop for GuardedBody {
    /// A request was refused before its body was read. Closing the socket now would reset the
    /// connection, and a client that is still sending might never see why it was refused: so some
    /// more is taken in and thrown away.
    fn drop(&mut self) {
        let Some(mut inner) = self.inner.take() else { return };
        let runtime = tokio::runtime::Handle::try_current();
        let (true, false, Ok(runtime)) = (self.unread.is_some_left(), self.is_held_back, runtime) else { return };
        runtime.spawn(async move {
            let drain = async {
                let mut drained = 0;
                while let Some(Ok(frame)) = inner.frame().await {
                    drained += frame.data_ref().map_or(0, Bytes::len);
                    if drained > DRAIN_BYTES_MAX {
                        break;
                    }
                }
            };
            drop(tokio::time::timeout(DRAIN_TIME_MAX, drain).await);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn chunked(sizes: &[usize]) -> Vec<u8> {
        let mut body = Vec::new();
        for &size in sizes {
            body.extend_from_slice(format!("{size:x};chunk-signature={}\r\n", "a".repeat(64)).as_bytes());
            body.extend(std::iter::repeat_n(b'\n', size));
            body.extend_from_slice(b"\r\n");
        }
        body.extend_from_slice(b"0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n");
        body
    }

    proptest! {
        #[test]
        fn small_chunks_pass_however_the_body_is_cut(
            sizes in prop::collection::vec(1usize..300, 0..8),
            cut in 1usize..50,
        ) {
            let mut scanner = ChunkScanner::default();
            for piece in chunked(&sizes).chunks(cut) {
                prop_assert!(scanner.scan(piece).is_ok());
            }
            prop_assert!(scanner.is_last_seen);
        }
    }

    #[test]
    fn large_chunks_and_endless_lines_are_refused() {
        assert!(ChunkScanner::default().scan(b"100001\r\n").is_err());
        assert!(ChunkScanner::default().scan(b"100000\r\n").is_ok());
        assert!(ChunkScanner::default().scan(b"ffffffffffffffffff\r\n").is_err());
        assert!(ChunkScanner::default().scan(&[b'0'; 2_000]).is_err());
        assert!(ChunkScanner::default().scan(b"nonsense\r\n").is_err());
    }
}
