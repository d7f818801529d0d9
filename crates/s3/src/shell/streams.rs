//! State of the streams of one HTTP/2 connection. An idle connection is ended, and so is one whose client requests
//! an answer and does not take it: the answer holds memory, and the socket does not show it, since the client
//! still reads from that.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

/// An answer is handed on in such pieces, so that each shows that the client takes something.
const PIECE_BYTES_MAX: usize = 64 << 10;

/// Side that has to act on a stream.
#[derive(Clone, Copy)]
enum Turn {
    Ours,
    /// We have handed on a piece, and nothing has asked for the next since then.
    Client(Instant),
}

struct State {
    next: u64,
    open: BTreeMap<u64, Turn>,
    idle_since: Instant,
}

/// The streams of a connection.
pub(super) struct Streams(Mutex<State>);

impl Streams {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Streams(Mutex::new(State { next: 0, open: BTreeMap::new(), idle_since: Instant::now() })))
    }

    /// A request has come in.
    pub(super) fn open(self: &Arc<Self>) -> Stream {
        let mut state = self.lock();
        let id = state.next;
        state.next += 1;
        state.open.insert(id, Turn::Ours);
        Stream { streams: self.clone(), id }
    }

    /// Returns true if there has been no request for `for_time`.
    pub(super) fn are_idle(&self, for_time: Duration) -> bool {
        let state = self.lock();
        state.open.is_empty() && state.idle_since.elapsed() >= for_time
    }

    /// Returns true if an answer has not been taken for `for_time`.
    pub(super) fn is_one_stalled(&self, for_time: Duration) -> bool {
        let is_stalled = |turn: &Turn| matches!(turn, Turn::Client(since) if since.elapsed() >= for_time);
        self.lock().open.values().any(is_stalled)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of them, until it is dropped.
pub(super) struct Stream {
    streams: Arc<Streams>,
    id: u64,
}

impl Stream {
    fn set(&self, turn: Turn) {
        self.streams.lock().open.insert(self.id, turn);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut state = self.streams.lock();
        state.open.remove(&self.id);
        state.idle_since = Instant::now();
    }
}

/// The body of an answer, which reports the progress of its stream.
pub(super) struct Watched<B> {
    body: B,
    rest: Bytes,
    stream: Stream,
}

impl<B> Watched<B> {
    pub(super) fn new(body: B, stream: Stream) -> Self {
        Watched { body, rest: Bytes::new(), stream }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Watched<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        if this.rest.is_empty() {
            this.stream.set(Turn::Ours);
            match ready!(Pin::new(&mut this.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => this.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                ended => return Poll::Ready(ended),
            }
        }
        this.stream.set(Turn::Client(Instant::now()));
        let piece = this.rest.split_to(this.rest.len().min(PIECE_BYTES_MAX));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(inner.lower() + rest);
        hint
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt, Full};

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn idle_and_stalled() {
        let streams = Streams::new();
        assert!(!streams.are_idle(MINUTE));
        tokio::time::advance(MINUTE).await;
        assert!(streams.are_idle(MINUTE), "no request has ever come");

        let large = Bytes::from(vec![7; PIECE_BYTES_MAX + 1]);
        let mut body = Watched::new(Full::new(large), streams.open());
        tokio::time::advance(2 * MINUTE).await;
        assert!(!streams.are_idle(MINUTE) && !streams.is_one_stalled(MINUTE), "the answer is being made");

        assert_eq!(body.size_hint().exact(), Some(PIECE_BYTES_MAX as u64 + 1));
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!((first.len(), body.size_hint().exact()), (PIECE_BYTES_MAX, Some(1)));
        tokio::time::advance(MINUTE - Duration::from_secs(1)).await;
        assert!(!streams.is_one_stalled(MINUTE));
        let other = streams.open();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(streams.is_one_stalled(MINUTE), "another stream does not hide it");
        drop(other);

        assert!(!body.is_end_stream());
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap().len(), 1);
        assert!(!streams.is_one_stalled(MINUTE) && body.is_end_stream() && body.frame().await.is_none());
        drop(body);
        assert!(!streams.are_idle(MINUTE));
        tokio::time::advance(MINUTE).await;
        assert!(streams.are_idle(MINUTE));
    }
}
