//! Bodies in aws-chunked framing of unsigned requests. s3s decodes the framing only where it verifies a signature.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use http_body::{Body as HttpBody, Frame};
use s3s::{Body, S3Error, S3Result, s3_error};

use super::guarded_body::{BodyError, CHUNK_BYTES_MAX, CHUNK_LINE_BYTES_MAX, GuardedBody};
use crate::trailers::ArrivingTrailers;

/// The only kind of framing in which nothing is signed.
const UNSIGNED_KIND: &[u8] = b"STREAMING-UNSIGNED-PAYLOAD-TRAILER";
const TRAILER_LINES_MAX: usize = 16;
const TRAILER_BYTES_MAX: usize = 4_096;

/// The next part of the framing.
#[derive(Clone, Copy)]
enum State {
    Size,
    /// Remaining bytes of a chunk.
    Data(usize),
    /// The line end behind a chunk.
    DataEnd,
    Trailers,
    Nothing,
}

/// Parts of a body.
enum Event {
    Data(Bytes),
    /// All of them; the body ends here.
    Trailers(HeaderMap),
}

/// Takes the framing off.
struct Decoder {
    state: State,
    line: Vec<u8>,
    trailers: HeaderMap,
    trailer_bytes: usize,
}

impl Decoder {
    fn new() -> Self {
        Decoder { state: State::Size, line: Vec::new(), trailers: HeaderMap::new(), trailer_bytes: 0 }
    }

    /// Takes from the input up to the next event; `None` if all of it was taken before one.
    fn next(&mut self, input: &mut Bytes) -> Result<Option<Event>, BodyError> {
        while !input.is_empty() {
            match self.state {
                State::Data(left) => {
                    let data = input.split_to(left.min(input.len()));
                    let left = left - data.len();
                    self.state = if left == 0 { State::DataEnd } else { State::Data(left) };
                    return Ok(Some(Event::Data(data)));
                }
                State::Nothing => return Err(BodyError::Malformed("bytes follow its end")),
                State::Size | State::DataEnd | State::Trailers => {
                    let Some(line) = self.take_line(input)? else { return Ok(None) };
                    if self.read_line(&line)? {
                        return Ok(Some(Event::Trailers(std::mem::take(&mut self.trailers))));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Returns an error if the body must not end here.
    fn end(&self) -> Result<(), BodyError> {
        if matches!(self.state, State::Nothing) { Ok(()) } else { Err(BodyError::Incomplete) }
    }

    /// The next line, without its end, if all of it is there.
    fn take_line(&mut self, input: &mut Bytes) -> Result<Option<Vec<u8>>, BodyError> {
        let max = match self.state {
            State::Trailers => TRAILER_BYTES_MAX - self.trailer_bytes,
            State::DataEnd => b"\r\n".len(),
            _ => CHUNK_LINE_BYTES_MAX,
        };
        let end = input.iter().position(|&byte| byte == b'\n').map_or(input.len(), |end| end + 1);
        if self.line.len() + end > max {
            return Err(BodyError::Malformed("a line is too long"));
        }
        self.line.extend_from_slice(&input.split_to(end));
        if !self.line.ends_with(b"\n") {
            return Ok(None);
        }
        let mut line = std::mem::take(&mut self.line);
        if !line.ends_with(b"\r\n") {
            return Err(BodyError::Malformed("a line does not end as it must"));
        }
        line.truncate(line.len() - b"\r\n".len());
        Ok(Some(line))
    }

    /// Returns true after the last line.
    fn read_line(&mut self, line: &[u8]) -> Result<bool, BodyError> {
        self.state = match self.state {
            State::Trailers if line.is_empty() => State::Nothing,
            State::Trailers => {
                self.add_trailer(line)?;
                State::Trailers
            }
            State::DataEnd if line.is_empty() => State::Size,
            State::DataEnd => return Err(BodyError::Malformed("a chunk is longer than it should be")),
            _ => match chunk_bytes(line)? {
                0 => State::Trailers,
                bytes => State::Data(bytes),
            },
        };
        Ok(matches!(self.state, State::Nothing))
    }

    fn add_trailer(&mut self, line: &[u8]) -> Result<(), BodyError> {
        let malformed = || BodyError::Malformed("a trailer is malformed");
        self.trailer_bytes += line.len() + b"\r\n".len();
        if self.trailers.len() == TRAILER_LINES_MAX {
            return Err(BodyError::Malformed("it has too many trailers"));
        }
        let colon = line.iter().position(|&byte| byte == b':').ok_or_else(malformed)?;
        let name = HeaderName::from_bytes(&line[..colon]).map_err(|_| malformed())?;
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).map_err(|_| malformed())?;
        match self.trailers.insert(name, value) {
            Some(_) => Err(BodyError::Malformed("a trailer is there twice")),
            None => Ok(()),
        }
    }
}

/// The size of a chunk, from the line before it.
fn chunk_bytes(line: &[u8]) -> Result<usize, BodyError> {
    if line.contains(&b';') {
        return Err(BodyError::Malformed("its chunks are signed, and the request is not"));
    }
    let digits = std::str::from_utf8(line).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
    let digits = digits.filter(|digits| !digits.is_empty());
    let digits = digits.ok_or(BodyError::Malformed("the size of a chunk is no number"))?;
    let bytes = usize::from_str_radix(digits, 16).ok().filter(|bytes| *bytes <= CHUNK_BYTES_MAX as usize);
    bytes.ok_or(BodyError::ChunkTooLarge)
}

/// A body without its framing.
struct UnsignedChunks {
    inner: GuardedBody,
    input: Bytes,
    decoder: Decoder,
    trailers: ArrivingTrailers,
}

impl HttpBody for UnsignedChunks {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = &mut *self;
        loop {
            match this.decoder.next(&mut this.input)? {
                Some(Event::Data(data)) => return Poll::Ready(Some(Ok(Frame::data(data)))),
                Some(Event::Trailers(trailers)) => this.trailers.set(trailers),
                None => match ready!(Pin::new(&mut this.inner).poll_frame(context)) {
                    None => return Poll::Ready(this.decoder.end().err().map(Err)),
                    Some(frame) => this.input = frame?.into_data().unwrap_or_default(),
                },
            }
        }
    }
}

/// Decodes an unsigned request with a body in aws-chunked framing into one whose body is data. The operations find
/// its trailers in the extensions.
pub(super) fn decoded(parts: &mut Parts, body: GuardedBody) -> S3Result<Body> {
    let kind = parts.headers.get("x-amz-content-sha256").map(HeaderValue::as_bytes).unwrap_or_default();
    if kind != UNSIGNED_KIND {
        let kind = String::from_utf8_lossy(kind);
        return Err(s3_error!(InvalidRequest, "A body of the kind {kind} needs a request that is signed"));
    }
    let length = decoded_length(&parts.headers)?;
    parts.headers.insert(header::CONTENT_LENGTH, length.into());
    let trailers = ArrivingTrailers::default();
    parts.extensions.insert(trailers.clone());
    let (input, decoder) = (Bytes::new(), Decoder::new());
    Ok(Body::http_body_unsync(UnsignedChunks { inner: body, input, decoder, trailers }))
}

fn decoded_length(headers: &HeaderMap) -> Result<u64, S3Error> {
    let Some(value) = headers.get("x-amz-decoded-content-length") else {
        return Err(s3_error!(
            MissingContentLength,
            "You must provide the x-amz-decoded-content-length HTTP header"
        ));
    };
    let length = value.to_str().ok().and_then(|text| text.parse().ok());
    length.ok_or_else(|| s3_error!(InvalidRequest, "The header x-amz-decoded-content-length is no number"))
}

#[cfg(test)]
mod tests;
