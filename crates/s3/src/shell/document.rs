//! Bodies that are documents. s3s collects them before it calls their operation, which sees neither the bytes nor
//! why they did not come: so they are checked on the way, and errors are kept.

use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{HeaderMap, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use s3s::{S3Error, S3Result, StdError, s3_error};

use crate::data::{Budget, Share};
use crate::digest::Expected;
use crate::error::GatewayError;
use crate::known_documents::{check_elements, has_document};
use crate::ops::body_error;

/// Largest XML document that a request may carry, in bytes: a completion of 10,000 parts with checksums.
pub(crate) const XML_BYTES_MAX: usize = 4 << 20;

fn too_large() -> S3Error {
    s3_error!(MaxMessageLengthExceeded, "Your request was too big: a document may have {XML_BYTES_MAX} bytes")
}

/// Returns true if a request declares a body larger than a document may be.
fn is_said_to_be_too_large(headers: &HeaderMap) -> bool {
    let bytes = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    bytes.is_some_and(|bytes| bytes > XML_BYTES_MAX as u64)
}

/// Requirements for a document.
struct Wanted {
    operation: &'static str,
    digests: Expected,
}

#[derive(Default)]
struct Shared {
    wanted: OnceLock<Wanted>,
    failure: Mutex<Option<S3Error>>,
}

/// The body of a request, in its extensions, as far as it is a document.
#[derive(Clone, Default)]
pub(crate) struct Document(Arc<Shared>);

impl Document {
    /// Sets the operation of an admitted request. Its body was not read yet.
    pub(crate) fn set_operation(&self, operation: &'static str, headers: &HeaderMap) -> S3Result<()> {
        if has_document(operation) {
            if is_said_to_be_too_large(headers) {
                return Err(too_large());
            }
            // The checksums of a completion are those of the object.
            let digests = match operation {
                "CompleteMultipartUpload" => Expected::md5_of(headers)?,
                _ => Expected::from_headers(headers)?,
            };
            self.0.wanted.get_or_init(|| Wanted { operation, digests });
        }
        Ok(())
    }

    /// The body with its check, and with memory of the budget if it is a document.
    pub(super) fn watch<B>(&self, body: B, budget: Budget) -> WatchedBody<B> {
        let room = Room { budget, bytes: 0, _share: None, taking: None };
        WatchedBody { inner: body, read: Vec::new(), document: self.clone(), room }
    }

    /// Returns the error of the document, if there was one.
    pub(super) fn failure(&self) -> Option<S3Error> {
        self.0.failure.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn fail(&self, error: S3Error) -> StdError {
        let text = error.to_string();
        *self.0.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        text.into()
    }
}

/// See [`Document::watch`].
pub(super) struct WatchedBody<B> {
    inner: B,
    /// The read part of a document.
    read: Vec<u8>,
    document: Document,
    room: Room,
}

/// Memory for a document, taken as it comes.
struct Room {
    budget: Budget,
    bytes: u64,
    _share: Option<Share>,
    taking: Option<BoxFuture<'static, Result<Share, GatewayError>>>,
}

impl Room {
    /// Ready when there is room for `bytes` bytes.
    fn poll(&mut self, context: &mut Context<'_>, bytes: u64) -> Poll<Result<(), GatewayError>> {
        while self.bytes < bytes {
            let step = Budget::write_step(bytes, u64::MAX);
            let budget = &self.budget;
            let taking = self.taking.get_or_insert_with(|| {
                let budget = budget.clone();
                async move { budget.for_write(step).await }.boxed()
            });
            let taken = ready!(taking.as_mut().poll(context));
            self.taking = None;
            (self._share, self.bytes) = (Some(taken?), step.max(bytes));
        }
        Poll::Ready(Ok(()))
    }
}

impl<B> HttpBody for WatchedBody<B>
where
    B: HttpBody<Data = Bytes> + Unpin,
    B::Error: Into<StdError>,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let this = &mut *self;
        if this.document.0.wanted.get().is_some() {
            let room = ready!(this.room.poll(context, this.read.len() as u64 + 1));
            if let Err(error) = room {
                return Poll::Ready(Some(Err(this.document.fail(error.into()))));
            }
        }
        let frame = ready!(Pin::new(&mut this.inner).poll_frame(context)).transpose().map_err(Into::into);
        let Some(wanted) = this.document.0.wanted.get() else { return Poll::Ready(frame.transpose()) };
        let checked = match &frame {
            Ok(Some(frame)) => {
                this.read.extend_from_slice(frame.data_ref().map_or(&[], |data| data));
                if this.read.len() > XML_BYTES_MAX { Err(too_large()) } else { Ok(()) }
            }
            Ok(None) => {
                let digests = wanted.digests.check_document(&this.read);
                digests.and_then(|()| check_elements(wanted.operation, &this.read))
            }
            Err(_) => Ok(()),
        };
        let frame = match (frame, checked) {
            (Err(error), _) => Err(body_error(error)),
            (Ok(_), Err(error)) => Err(error),
            (Ok(frame), Ok(())) => Ok(frame),
        };
        Poll::Ready(frame.map_err(|error| this.document.fail(error)).transpose())
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
