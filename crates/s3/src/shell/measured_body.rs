//! Counts the sent bytes of an answer. The request ends for metrics when its body does, or when the client is
//! gone.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use atoll_metrics::current_span::enter;
use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::observed::Observed;

pub(super) struct MeasuredBody<B> {
    body: B,
    observed: Arc<Observed>,
}

impl<B> MeasuredBody<B> {
    pub(super) fn new(body: B, observed: Arc<Observed>) -> Self {
        MeasuredBody { body, observed }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for MeasuredBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        // What is read for it is read while it is sent.
        let entered = enter(self.observed.traced());
        let polled = Pin::new(&mut self.body).poll_frame(context);
        drop(entered);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.observed.sent(frame.data_ref().map_or(0, Bytes::len));
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
