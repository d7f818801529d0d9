//! A form on its way in: first its fields, then its file as a stream that is read only as fast as it is
//! stored.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::Stream;
use http_body::Body as _;
use s3s::stream::ByteStream;
use s3s::{Body, S3Error, S3Result, StdError, s3_error};

use super::fields::Fields;
use super::parser::{Event, FormError, Parser};
use super::policy::LengthRange;
use crate::ops::{BODY_BYTES_MAX, BodyLength, body_error};
use crate::record::Place;

impl From<FormError> for S3Error {
    fn from(error: FormError) -> Self {
        match error {
            FormError::TooManyFields => s3_error!(
                MaxPostPreDataLengthExceededError,
                "Your POST request fields preceding the upload file were too large: {error}"
            ),
            FormError::NoFile => s3_error!(
                IncorrectNumberOfFilesInPostRequest,
                "POST requires exactly one file upload per request: {error}"
            ),
            FormError::Malformed(_) | FormError::Truncated => s3_error!(
                MalformedPOSTRequest,
                "The body of your POST request is not well-formed multipart/form-data: {error}"
            ),
        }
    }
}

/// More than a form can have beside its file.
const BESIDE_FILE_BYTES_MAX: u64 = 1 << 20;

/// The whole form.
pub(super) struct Form {
    body: Body,
    parser: Parser,
}

impl Form {
    pub(super) fn new(body: Body, parser: Parser) -> Self {
        Form { body, parser }
    }

    /// Reads up to the file; the fields, and the name of the file.
    pub(super) async fn read_fields(&mut self) -> S3Result<(Fields, Option<String>)> {
        let mut fields = Fields::default();
        loop {
            match poll_fn(|context| self.poll_event(context)).await? {
                Event::Field { name, value } => fields.add(&name, value)?,
                Event::File { file_name } => return Ok((fields, file_name)),
                Event::Data(_) | Event::End => return Err(FormError::NoFile.into()),
            }
        }
    }

    /// Returns the data behind the fields, of an allowed length.
    pub(super) fn into_file(self, allowed: LengthRange) -> File {
        File { form: self, allowed, bytes: 0, ready: VecDeque::new(), has_ended: false }
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<S3Result<Event>> {
        loop {
            if let Some(event) = self.parser.next()? {
                return Poll::Ready(Ok(event));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                None => self.parser.end(),
                Some(Err(error)) => return Poll::Ready(Err(body_error(error))),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.parser.push(bytes);
                    }
                }
            }
        }
    }
}

/// The file of a form. It ends well only if the form does.
pub(super) struct File {
    form: Form,
    allowed: LengthRange,
    bytes: u64,
    // Read already, and not yet given out.
    ready: VecDeque<Bytes>,
    has_ended: bool,
}

impl File {
    /// Reads on until it is certain that the file is no small one, or how long it is. Forms do not say that, and
    /// small files are kept elsewhere. `form_bytes` is the size of the whole form.
    pub(super) async fn length(&mut self, form_bytes: Option<u64>) -> S3Result<BodyLength> {
        let max = self.allowed.max.min(BODY_BYTES_MAX);
        // Better before the file is taken in than after it.
        if form_bytes.is_some_and(|bytes| bytes > max.saturating_add(BESIDE_FILE_BYTES_MAX)) {
            return Err(too_large(max));
        }
        while Place::of_object(self.bytes, false) == Place::Index {
            match poll_fn(|context| self.poll_piece(context)).await? {
                Some(piece) => self.ready.push_back(piece),
                None => return Ok(BodyLength::Exactly(self.bytes)),
            }
        }
        Ok(BodyLength::AtMost(form_bytes.unwrap_or(max).min(max)))
    }

    fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<S3Result<Option<Bytes>>> {
        if self.has_ended {
            return Poll::Ready(Ok(None));
        }
        loop {
            match ready!(self.form.poll_event(context))? {
                Event::Data(piece) => {
                    self.bytes += piece.len() as u64;
                    return Poll::Ready(self.check_not_too_large().map(|()| Some(piece)));
                }
                Event::End => {
                    self.has_ended = true;
                    return Poll::Ready(self.check_not_too_small().map(|()| None));
                }
                Event::Field { .. } | Event::File { .. } => {}
            }
        }
    }

    fn check_not_too_large(&self) -> S3Result<()> {
        let max = self.allowed.max.min(BODY_BYTES_MAX);
        if self.bytes <= max { Ok(()) } else { Err(too_large(max)) }
    }

    fn check_not_too_small(&self) -> S3Result<()> {
        let (bytes, min) = (self.bytes, self.allowed.min);
        if bytes >= min {
            return Ok(());
        }
        Err(s3_error!(
            EntityTooSmall,
            "Your proposed upload of {bytes} bytes is smaller than the minimum of {min}"
        ))
    }
}

fn too_large(max: u64) -> S3Error {
    s3_error!(EntityTooLarge, "Your proposed upload exceeds the maximum allowed size of {max} bytes")
}

impl Stream for File {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(piece) = self.ready.pop_front() {
            return Poll::Ready(Some(Ok(piece)));
        }
        self.poll_piece(context).map(|piece| piece.map_err(Into::into).transpose())
    }
}

impl ByteStream for File {}
