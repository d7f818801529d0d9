//! multipart/form-data while it arrives: bytes in, events out, and nothing read or waited for here.
//!
//! Written by hand: multer, the well-kept crate for this, takes in whatever the connection has at hand
//! before it gives anything out, and has no limit for the headers of a part or the number of fields.

use bytes::{Buf, Bytes, BytesMut};
use memchr::{memmem, memrchr};

use super::part_head::PartHead;

/// Longest boundary, by RFC 2046.
const BOUNDARY_BYTES_MAX: usize = 70;
/// Headers of one part.
const HEADERS_BYTES_MAX: usize = 8 << 10;
/// Names and values of all fields together, as in S3.
const FIELDS_BYTES_MAX: usize = 20 << 10;
const FIELDS_MAX: usize = 100;
/// White space between a boundary and the end of its line.
const PADDING_BYTES_MAX: usize = 64;
/// Most bytes behind the file, which are passed over.
const REST_BYTES_MAX: usize = 20 << 10;

const HEADERS_END: &[u8] = b"\r\n\r\n";

/// Why a form cannot be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FormError {
    #[error("{0}")]
    Malformed(&'static str),
    #[error("it ends before its last boundary")]
    Truncated,
    #[error("the fields before the file may have {FIELDS_BYTES_MAX} bytes and be {FIELDS_MAX}")]
    TooManyFields,
    #[error("it has no file")]
    NoFile,
}

/// Parts of a form, in its order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    Field {
        name: String,
        value: String,
    },
    /// The file begins; its bytes follow.
    File {
        file_name: Option<String>,
    },
    Data(Bytes),
    /// The file is whole, and so is the form.
    End,
}

#[derive(Debug)]
enum State {
    Start,
    /// Behind a boundary.
    Boundary,
    Headers,
    Value {
        name: String,
    },
    File,
    /// Another part behind the file.
    Skipped,
    /// Behind the last boundary.
    Epilogue,
}

enum Step {
    Event(Event),
    Go,
    /// More bytes are needed.
    Wait,
}

/// The machine. Bytes are [pushed](Parser::push), then events are taken until there are none.
#[derive(Debug)]
pub(super) struct Parser {
    /// Finds a boundary with the line end before it.
    delimiter: memmem::Finder<'static>,
    state: State,
    buffer: Bytes,
    has_ended: bool,
    has_file: bool,
    fields: usize,
    fields_bytes: usize,
    rest_bytes: usize,
}

impl Parser {
    /// For the `Content-Type` of a request.
    pub(super) fn new(content_type: &str) -> Result<Self, FormError> {
        let boundary = boundary(content_type)?;
        let delimiter = format!("\r\n--{boundary}");
        Ok(Parser {
            delimiter: memmem::Finder::new(delimiter.as_bytes()).into_owned(),
            state: State::Start,
            buffer: Bytes::new(),
            has_ended: false,
            has_file: false,
            fields: 0,
            fields_bytes: 0,
            rest_bytes: 0,
        })
    }

    /// Takes more of the form in.
    pub(super) fn push(&mut self, bytes: Bytes) {
        if self.buffer.is_empty() {
            self.buffer = bytes;
            return;
        }
        let mut joined = BytesMut::with_capacity(self.buffer.len() + bytes.len());
        joined.extend_from_slice(&self.buffer);
        joined.extend_from_slice(&bytes);
        self.buffer = joined.freeze();
    }

    /// No more is pushed.
    pub(super) fn end(&mut self) {
        self.has_ended = true;
    }

    /// The next event, if the bytes so far have one.
    pub(super) fn next(&mut self) -> Result<Option<Event>, FormError> {
        loop {
            let step = match &mut self.state {
                State::Start => self.start(),
                State::Boundary => self.behind_boundary(),
                State::Headers => self.headers(),
                State::Value { name } => {
                    let name = std::mem::take(name);
                    self.value(name)
                }
                State::File => Ok(self.file()),
                State::Skipped => self.skip(),
                State::Epilogue => self.epilogue(),
            };
            match step? {
                Step::Event(event) => return Ok(Some(event)),
                Step::Go => {}
                Step::Wait if self.has_ended => return Err(FormError::Truncated),
                Step::Wait => return Ok(None),
            }
        }
    }

    fn start(&mut self) -> Result<Step, FormError> {
        // Some clients begin with a line end.
        let delimiter = self.delimiter.needle();
        for first in [delimiter, &delimiter[2..]] {
            if self.buffer.starts_with(first) {
                self.buffer.advance(first.len());
                self.state = State::Boundary;
                return Ok(Step::Go);
            }
        }
        let may_begin = delimiter.starts_with(&self.buffer) || delimiter[2..].starts_with(&self.buffer);
        if may_begin { Ok(Step::Wait) } else { Err(FormError::Malformed("it does not begin with its boundary")) }
    }

    fn behind_boundary(&mut self) -> Result<Step, FormError> {
        if self.buffer.starts_with(b"--") {
            if !self.has_file {
                return Err(FormError::NoFile);
            }
            self.buffer.advance(2);
            self.state = State::Epilogue;
            return Ok(Step::Go);
        }
        let padding = self.buffer.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let rest = &self.buffer[padding..];
        if padding > PADDING_BYTES_MAX {
            Err(FormError::Malformed("too much white space stands behind a boundary"))
        } else if rest.starts_with(b"\r\n") {
            self.buffer.advance(padding + 2);
            self.state = if self.has_file { State::Skipped } else { State::Headers };
            Ok(Step::Go)
        } else if rest.is_empty() || rest == b"\r" || *self.buffer == *b"-" {
            Ok(Step::Wait)
        } else {
            Err(FormError::Malformed("a boundary is not at the end of its line"))
        }
    }

    fn headers(&mut self) -> Result<Step, FormError> {
        let limit = HEADERS_BYTES_MAX + HEADERS_END.len();
        let window = &self.buffer[..self.buffer.len().min(limit)];
        let Some(end) = memmem::find(window, HEADERS_END) else {
            let is_full = window.len() == limit;
            return if is_full {
                Err(FormError::Malformed("the headers of a part are too long"))
            } else {
                Ok(Step::Wait)
            };
        };
        let head = PartHead::parse(&self.buffer.split_to(end))?;
        self.buffer.advance(HEADERS_END.len());
        if head.name.eq_ignore_ascii_case("file") {
            self.has_file = true;
            self.state = State::File;
            return Ok(Step::Event(Event::File { file_name: head.file_name }));
        }
        self.fields += 1;
        self.fields_bytes += head.name.len();
        if self.fields > FIELDS_MAX || self.fields_bytes > FIELDS_BYTES_MAX {
            return Err(FormError::TooManyFields);
        }
        self.state = State::Value { name: head.name };
        Ok(Step::Go)
    }

    fn value(&mut self, name: String) -> Result<Step, FormError> {
        let limit = FIELDS_BYTES_MAX - self.fields_bytes + self.delimiter.needle().len();
        let window = &self.buffer[..self.buffer.len().min(limit)];
        let Some(end) = self.delimiter.find(window) else {
            let is_full = window.len() == limit;
            self.state = State::Value { name };
            return if is_full { Err(FormError::TooManyFields) } else { Ok(Step::Wait) };
        };
        let value = self.take_to_boundary(end);
        self.fields_bytes += value.len();
        let value = String::from_utf8(value.into()).map_err(|_| FormError::Malformed("a field is no UTF-8"))?;
        Ok(Step::Event(Event::Field { name, value }))
    }

    fn file(&mut self) -> Step {
        match self.delimiter.find(&self.buffer) {
            // The boundary is looked at again when its turn comes, and found at once.
            Some(end) if end > 0 => Step::Event(Event::Data(self.buffer.split_to(end))),
            Some(end) => {
                self.take_to_boundary(end);
                Step::Go
            }
            None => match self.buffer.split_to(self.certain_bytes()) {
                data if data.is_empty() => Step::Wait,
                data => Step::Event(Event::Data(data)),
            },
        }
    }

    fn skip(&mut self) -> Result<Step, FormError> {
        match self.delimiter.find(&self.buffer) {
            Some(end) => {
                let skipped = self.take_to_boundary(end);
                self.count_rest(skipped.len())?;
                Ok(Step::Go)
            }
            None => {
                let skipped = self.buffer.split_to(self.certain_bytes());
                self.count_rest(skipped.len())?;
                Ok(Step::Wait)
            }
        }
    }

    fn epilogue(&mut self) -> Result<Step, FormError> {
        let skipped = std::mem::take(&mut self.buffer);
        self.count_rest(skipped.len())?;
        Ok(if self.has_ended { Step::Event(Event::End) } else { Step::Wait })
    }

    fn count_rest(&mut self, bytes: usize) -> Result<(), FormError> {
        self.rest_bytes += bytes;
        if self.rest_bytes > REST_BYTES_MAX {
            return Err(FormError::Malformed("too much stands behind the file"));
        }
        Ok(())
    }

    /// Returns the data before a boundary, which is removed.
    fn take_to_boundary(&mut self, end: usize) -> Bytes {
        let taken = self.buffer.split_to(end);
        self.buffer.advance(self.delimiter.needle().len());
        self.state = State::Boundary;
        taken
    }

    /// How many bytes of the buffer, which has no boundary, cannot be the begin of one. A boundary has
    /// its only carriage return in front.
    fn certain_bytes(&self) -> usize {
        let delimiter = self.delimiter.needle();
        let tail = self.buffer.len().saturating_sub(delimiter.len() - 1);
        let found = memrchr(b'\r', &self.buffer[tail..]).map(|at| tail + at);
        found.filter(|&at| delimiter.starts_with(&self.buffer[at..])).unwrap_or(self.buffer.len())
    }
}

/// The boundary that a `Content-Type` names.
fn boundary(content_type: &str) -> Result<&str, FormError> {
    let mut parameters = content_type.split(';').skip(1).filter_map(|parameter| parameter.split_once('='));
    let found = parameters.find(|(name, _)| name.trim().eq_ignore_ascii_case("boundary"));
    let value = found.map(|(_, value)| value.trim()).unwrap_or_default();
    let unquoted = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"'()+_,-./:=? ".contains(&byte);
    let is_good = (1..=BOUNDARY_BYTES_MAX).contains(&unquoted.len())
        && unquoted.bytes().all(is_allowed)
        && !unquoted.ends_with(' ');
    if is_good { Ok(unquoted) } else { Err(FormError::Malformed("its Content-Type has no proper boundary")) }
}

#[cfg(test)]
mod tests;
