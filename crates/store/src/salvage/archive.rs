//! A file of salvaged objects: `"ATOLLPG1"`, then records, each `length u32 | CRC-32C of the body u32 | body`, numbers
//! little-endian. The first byte of a body is its kind: 1 a change (bytes of the transaction u32, the transaction as members
//! send it, its payload), 2 a loss (text), 3 the end (changes u64, losses u64).

use std::io::{self, Read, Write};

use atoll_codec::{CodecError, Reader, Writer, crc32c};
use atoll_types::Transaction;
use atoll_types::limits::{CONTROL_BYTES_MAX, PAYLOAD_BYTES_MAX};
use bytes::Bytes;

use super::Salvaged;

const MAGIC: &[u8; 8] = b"ATOLLPG1";
const CHANGE: u8 = 1;
const LOST: u8 = 2;
const END: u8 = 3;
/// Longest body.
const BODY_BYTES_MAX: usize = CONTROL_BYTES_MAX + PAYLOAD_BYTES_MAX + 64;
/// Longest text of a loss, in bytes.
const TEXT_BYTES_MAX: usize = 4_096;

/// Why a file cannot be read, or not to its end.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is no file of this kind.
    #[error("it is no file of 'atoll store export'")]
    Foreign,
    /// It ends before its last record.
    #[error("it is cut short: the export has not ended, or not all of the file was copied")]
    CutShort,
    /// A record does not fit its checksum, or makes no sense.
    #[error("record {number} is damaged: {detail}")]
    Damaged {
        /// The record's place among all, from 1.
        number: u64,
        /// The error.
        detail: String,
    },
}

/// Writes a file.
pub struct ArchiveWriter<W: Write> {
    output: W,
    changes: u64,
    losses: u64,
}

impl<W: Write> ArchiveWriter<W> {
    /// Begins a file.
    pub fn new(mut output: W) -> io::Result<Self> {
        output.write_all(MAGIC)?;
        Ok(ArchiveWriter { output, changes: 0, losses: 0 })
    }

    /// Adds a change or a loss.
    pub fn add(&mut self, found: &Salvaged) -> io::Result<()> {
        match found {
            Salvaged::Change(transaction) => {
                self.changes += 1;
                let mut control = Writer::with_capacity(transaction.encoded_bytes_expected());
                transaction.encode(&mut control);
                let control = control.finish();
                let mut body = Writer::with_capacity(control.len() + transaction.payload.len() + 5);
                body.u8(CHANGE);
                body.bytes(&control);
                body.raw(&transaction.payload);
                self.record(&body.finish())
            }
            Salvaged::Lost(what) => {
                self.losses += 1;
                let end = (0..=what.len().min(TEXT_BYTES_MAX)).rev().find(|end| what.is_char_boundary(*end));
                self.record(&[&[LOST][..], &what.as_bytes()[..end.unwrap_or(0)]].concat())
            }
        }
    }

    /// Ends the file, and returns its output.
    pub fn finish(mut self) -> io::Result<W> {
        let mut body = Writer::with_capacity(17);
        body.u8(END);
        body.u64(self.changes);
        body.u64(self.losses);
        self.record(&body.finish())?;
        self.output.flush()?;
        Ok(self.output)
    }

    fn record(&mut self, body: &[u8]) -> io::Result<()> {
        self.output.write_all(&(body.len() as u32).to_le_bytes())?;
        self.output.write_all(&crc32c(body).to_le_bytes())?;
        self.output.write_all(body)
    }
}

/// A record of a file.
#[derive(Clone, Debug)]
pub enum ArchiveRecord {
    /// A change or a loss.
    Found(Salvaged),
    /// The end: all records are there.
    End,
}

/// Reads a file.
pub struct ArchiveReader<R: Read> {
    input: R,
    number: u64,
    changes: u64,
    losses: u64,
}

impl<R: Read> ArchiveReader<R> {
    /// Reads the beginning.
    pub fn new(mut input: R) -> Result<Self, ArchiveError> {
        let mut magic = [0; 8];
        match input.read_exact(&mut magic) {
            Ok(()) if magic == *MAGIC => Ok(ArchiveReader { input, number: 0, changes: 0, losses: 0 }),
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error.into()),
            _ => Err(ArchiveError::Foreign),
        }
    }

    /// Reads the next record. Nothing follows the end.
    pub fn read(&mut self) -> Result<ArchiveRecord, ArchiveError> {
        self.number += 1;
        let mut header = [0; 8];
        self.fill(&mut header)?;
        let [l0, l1, l2, l3, checksum @ ..] = header;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > BODY_BYTES_MAX {
            return Err(self.damaged(format!("{length} bytes are too many")));
        }
        let mut body = vec![0; length];
        self.fill(&mut body)?;
        if crc32c(&body) != u32::from_le_bytes(checksum) {
            return Err(self.damaged("its checksum does not fit".into()));
        }
        self.decode(body.into()).map_err(|error| self.damaged(error.to_string()))
    }

    fn decode(&mut self, body: Bytes) -> Result<ArchiveRecord, CodecError> {
        let mut reader = Reader::new(body);
        Ok(match reader.u8("kind")? {
            CHANGE => {
                self.changes += 1;
                let mut control = Reader::new(reader.bytes(CONTROL_BYTES_MAX, "transaction")?);
                let transaction = Transaction::decode(&mut control, reader.rest())?;
                control.finish()?;
                ArchiveRecord::Found(Salvaged::Change(transaction))
            }
            LOST => {
                self.losses += 1;
                ArchiveRecord::Found(Salvaged::Lost(String::from_utf8_lossy(&reader.rest()).into_owned()))
            }
            END => {
                let (changes, losses) = (reader.u64("changes")?, reader.u64("losses")?);
                reader.finish()?;
                if (changes, losses) != (self.changes, self.losses) {
                    return Err(CodecError::Invalid { what: "number of changes", value: changes });
                }
                ArchiveRecord::End
            }
            kind => return Err(CodecError::Invalid { what: "kind", value: kind.into() }),
        })
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), ArchiveError> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => ArchiveError::CutShort,
            _ => error.into(),
        })
    }

    fn damaged(&self, detail: String) -> ArchiveError {
        ArchiveError::Damaged { number: self.number, detail }
    }
}
