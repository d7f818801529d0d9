//! A stream of changes of an image, for backups and copies elsewhere: the image's data, or its differences from an
//! earlier snapshot. Each part has a CRC-32C, and the end says how many parts there were, so a stream that is
//! damaged or cut off is noticed. docs/reference/formats.md describes the bytes.

use std::io::{self, Read, Write};

use atoll_codec::crc32c;
use bytes::Bytes;

const MAGIC: &[u8; 8] = b"ATOLLIMG";
const VERSION: u32 = 1;
const END: u8 = 0;
const DATA: u8 = 1;
const ZEROS: u8 = 2;
const NAME_BYTES_MAX: usize = 512;
/// Data of one part, at most.
pub const PART_BYTES_MAX: usize = 4 << 20;

/// Why a stream cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// Reading or writing has failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It does not begin like such a stream.
    #[error("this is no stream of changes of an image")]
    Foreign,
    /// A later release has written it.
    #[error("the stream has version {0}, and this release reads version {VERSION}")]
    LaterVersion(u32),
    /// A part differs from the written one.
    #[error("the stream is damaged: {0}")]
    Damaged(&'static str),
}

/// Header of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamHeader {
    /// Size of the image, in bytes.
    pub size_bytes: u64,
    /// The snapshot that the changes are since; empty if the stream has everything.
    pub from: String,
    /// The snapshot that the image is like afterwards; empty if it was none.
    pub to: String,
}

/// A part of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamPart {
    /// These bytes are there now.
    Data {
        /// Where, in bytes.
        offset: u64,
        /// At most 4 MiB.
        data: Bytes,
    },
    /// Zeros are there now.
    Zeros {
        /// Where, in bytes.
        offset: u64,
        /// How many.
        length: u64,
    },
}

/// Writes a stream.
pub struct StreamWriter<W> {
    output: W,
    count: u64,
}

impl<W: Write> StreamWriter<W> {
    /// Begins a stream.
    pub fn new(mut output: W, header: &StreamHeader) -> Result<Self, StreamError> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(header.size_bytes.to_le_bytes());
        for name in [&header.from, &header.to] {
            assert!(name.len() <= NAME_BYTES_MAX, "names of snapshots are short");
            bytes.extend((name.len() as u16).to_le_bytes());
            bytes.extend(name.as_bytes());
        }
        bytes.extend(crc32c(&bytes).to_le_bytes());
        output.write_all(&bytes)?;
        Ok(StreamWriter { output, count: 0 })
    }

    /// Appends data, as zeros if it is nothing else.
    pub fn data(&mut self, offset: u64, data: &[u8]) -> Result<(), StreamError> {
        for (index, part) in data.chunks(PART_BYTES_MAX).enumerate() {
            let offset = offset + (index * PART_BYTES_MAX) as u64;
            if part.iter().all(|byte| *byte == 0) {
                self.zeros(offset, part.len() as u64)?;
                continue;
            }
            let mut bytes = Vec::with_capacity(17 + part.len());
            bytes.push(DATA);
            bytes.extend(offset.to_le_bytes());
            bytes.extend((part.len() as u32).to_le_bytes());
            bytes.extend_from_slice(part);
            self.part(bytes)?;
        }
        Ok(())
    }

    /// Appends zeros.
    pub fn zeros(&mut self, offset: u64, length: u64) -> Result<(), StreamError> {
        let mut bytes = vec![ZEROS];
        bytes.extend(offset.to_le_bytes());
        bytes.extend(length.to_le_bytes());
        self.part(bytes)
    }

    fn part(&mut self, mut bytes: Vec<u8>) -> Result<(), StreamError> {
        bytes.extend(crc32c(&bytes).to_le_bytes());
        self.count += 1;
        Ok(self.output.write_all(&bytes)?)
    }

    /// Ends the stream.
    pub fn finish(mut self) -> Result<W, StreamError> {
        let mut bytes = vec![END];
        bytes.extend(self.count.to_le_bytes());
        self.part(bytes)?;
        self.output.flush()?;
        Ok(self.output)
    }
}

/// Reads a stream.
pub struct StreamReader<R> {
    input: R,
    header: StreamHeader,
    count: u64,
    is_over: bool,
}

/// Reads bytes whose checksum follows later.
struct Checked<'a, R> {
    input: &'a mut R,
    bytes: Vec<u8>,
}

impl<R: Read> Checked<'_, R> {
    fn take(&mut self, count: usize) -> Result<&[u8], StreamError> {
        let from = self.bytes.len();
        self.bytes.resize(from + count, 0);
        self.input.read_exact(&mut self.bytes[from..]).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => StreamError::Damaged("it ends early"),
            _ => StreamError::Io(error),
        })?;
        Ok(&self.bytes[from..])
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], StreamError> {
        Ok(self.take(N)?.try_into().expect("this many bytes were taken"))
    }

    /// Everything that was taken, if the checksum fits.
    fn end(mut self) -> Result<Vec<u8>, StreamError> {
        let computed = crc32c(&self.bytes);
        let length = self.bytes.len();
        if u32::from_le_bytes(self.number()?) != computed {
            return Err(StreamError::Damaged("a checksum does not fit"));
        }
        self.bytes.truncate(length);
        Ok(self.bytes)
    }
}

impl<R: Read> StreamReader<R> {
    /// Returns true if bytes begin like a stream.
    pub fn is_stream(first_bytes: &[u8]) -> bool {
        first_bytes.starts_with(MAGIC)
    }

    /// Reads the beginning of a stream.
    pub fn new(mut input: R) -> Result<Self, StreamError> {
        let mut checked = Checked { input: &mut input, bytes: Vec::new() };
        if checked.take(MAGIC.len())? != MAGIC {
            return Err(StreamError::Foreign);
        }
        let version = u32::from_le_bytes(checked.number()?);
        if version != VERSION {
            return Err(StreamError::LaterVersion(version));
        }
        let size_bytes = u64::from_le_bytes(checked.number()?);
        let mut names = [String::new(), String::new()];
        for name in &mut names {
            let length = usize::from(u16::from_le_bytes(checked.number()?));
            if length > NAME_BYTES_MAX {
                return Err(StreamError::Damaged("the name of a snapshot is too long"));
            }
            let bytes = checked.take(length)?.to_vec();
            *name =
                String::from_utf8(bytes).map_err(|_| StreamError::Damaged("the name of a snapshot is no text"))?;
        }
        checked.end()?;
        let [from, to] = names;
        Ok(StreamReader { input, header: StreamHeader { size_bytes, from, to }, count: 0, is_over: false })
    }

    /// Returns the stream's header.
    pub fn header(&self) -> &StreamHeader {
        &self.header
    }

    /// The next part; `None` after the last one of a stream that is whole.
    pub fn next_part(&mut self) -> Result<Option<StreamPart>, StreamError> {
        if self.is_over {
            return Ok(None);
        }
        let mut checked = Checked { input: &mut self.input, bytes: Vec::new() };
        let [kind] = checked.number()?;
        let first = u64::from_le_bytes(checked.number()?);
        match kind {
            END => {
                checked.end()?;
                if first != self.count {
                    return Err(StreamError::Damaged("parts are missing"));
                }
                self.is_over = true;
                Ok(None)
            }
            DATA => {
                let length = u32::from_le_bytes(checked.number()?) as usize;
                if length > PART_BYTES_MAX {
                    return Err(StreamError::Damaged("a part is too long"));
                }
                checked.take(length)?;
                let bytes = Bytes::from(checked.end()?);
                self.count += 1;
                self.check_range(first, length as u64)?;
                Ok(Some(StreamPart::Data { offset: first, data: bytes.slice(13..) }))
            }
            ZEROS => {
                let length = u64::from_le_bytes(checked.number()?);
                checked.end()?;
                self.count += 1;
                self.check_range(first, length)?;
                Ok(Some(StreamPart::Zeros { offset: first, length }))
            }
            _ => Err(StreamError::Damaged("a part is of no known kind")),
        }
    }

    fn check_range(&self, offset: u64, length: u64) -> Result<(), StreamError> {
        match offset.checked_add(length) {
            Some(end) if end <= self.header.size_bytes => Ok(()),
            _ => Err(StreamError::Damaged("a part is beyond the image's end")),
        }
    }
}

#[cfg(test)]
mod fuzz;

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> StreamHeader {
        StreamHeader { size_bytes: 1 << 20, from: "monday".into(), to: String::new() }
    }

    fn stream() -> Vec<u8> {
        let mut writer = StreamWriter::new(Vec::new(), &header()).unwrap();
        writer.data(4096, &[7; 5000]).unwrap();
        writer.data(40_960, &[0; 4096]).unwrap();
        writer.zeros(0, 4096).unwrap();
        writer.finish().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Vec<StreamPart>, StreamError> {
        let mut reader = StreamReader::new(bytes)?;
        assert_eq!(*reader.header(), header());
        let mut parts = Vec::new();
        while let Some(part) = reader.next_part()? {
            parts.push(part);
        }
        Ok(parts)
    }

    #[test]
    fn a_stream_comes_back() {
        let parts = read(&stream()).unwrap();
        let data = StreamPart::Data { offset: 4096, data: Bytes::from(vec![7; 5000]) };
        let zeros = |offset| StreamPart::Zeros { offset, length: 4096 };
        assert_eq!(parts, [data, zeros(40_960), zeros(0)]);
    }

    #[test]
    fn a_stream_that_is_cut_off_or_changed_is_noticed() {
        let whole = stream();
        for length in 0..whole.len() {
            assert!(
                StreamReader::new(&whole[..length]).is_err() || read(&whole[..length]).is_err(),
                "{length} bytes"
            );
        }
        for at in (0..whole.len()).step_by(7) {
            let mut changed = whole.clone();
            changed[at] ^= 4;
            let is_noticed = StreamReader::new(&changed[..]).is_err() || read(&changed).is_err();
            assert!(is_noticed, "byte {at}");
        }
    }
}
