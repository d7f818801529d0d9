//! The byte encoding shared by wire messages and store records: little-endian fixed-width integers
//! and length-prefixed byte strings. A [`Reader`] never panics and never allocates more than the
//! input holds, whatever the input.

use bytes::Bytes;

/// Why an encoded value could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CodecError {
    /// The input ended inside a value.
    #[error("input ends inside {what}")]
    Truncated {
        /// The value being read.
        what: &'static str,
    },
    /// A value is outside the range of its type.
    #[error("{what} has the invalid value {value}")]
    Invalid {
        /// The value being read.
        what: &'static str,
        /// The invalid value.
        value: u64,
    },
    /// A byte string that must be text is not UTF-8.
    #[error("{what} is not valid UTF-8")]
    NotText {
        /// The value being read.
        what: &'static str,
    },
    /// Bytes are left over after the last value.
    #[error("{count} bytes left over")]
    LeftOver {
        /// How many.
        count: usize,
    },
}

/// Appends values to a growing buffer.
#[derive(Default)]
pub struct Writer {
    buffer: Vec<u8>,
}

impl Writer {
    /// An empty writer with room for `capacity_bytes`.
    pub fn with_capacity(capacity_bytes: usize) -> Self {
        Writer { buffer: Vec::with_capacity(capacity_bytes) }
    }

    /// Appends one byte.
    pub fn u8(&mut self, value: u8) {
        self.buffer.push(value);
    }

    /// Appends a 16-bit integer.
    pub fn u16(&mut self, value: u16) {
        self.buffer.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a 32-bit integer.
    pub fn u32(&mut self, value: u32) {
        self.buffer.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a 64-bit integer.
    pub fn u64(&mut self, value: u64) {
        self.buffer.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends a `u32` length and the bytes.
    pub fn bytes(&mut self, value: &[u8]) {
        let length = u32::try_from(value.len()).expect("encoded byte strings are bounded by the frame limits");
        self.u32(length);
        self.raw(value);
    }

    /// Appends the bytes without a length.
    pub fn raw(&mut self, value: &[u8]) {
        self.buffer.extend_from_slice(value);
    }

    /// Appends a presence byte and, when present, the byte string.
    pub fn optional_bytes(&mut self, value: Option<&[u8]>) {
        self.u8(u8::from(value.is_some()));
        if let Some(value) = value {
            self.bytes(value);
        }
    }

    /// Returns the bytes written from `position` on, and removes them here.
    pub fn split_off(&mut self, position: usize) -> Vec<u8> {
        self.buffer.split_off(position)
    }

    /// Removes the written bytes and keeps the memory.
    pub fn clear(&mut self) {
        self.buffer.clear();
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.buffer.len()
    }

    /// Returns true if nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }

    /// The bytes written so far.
    pub fn as_slice(&self) -> &[u8] {
        &self.buffer
    }

    /// The bytes written.
    pub fn finish(self) -> Bytes {
        Bytes::from(self.buffer)
    }
}

/// Reads values from a byte string without copying byte strings out of it.
pub struct Reader {
    input: Bytes,
}

impl Reader {
    /// Reads from the start of `input`.
    pub fn new(input: Bytes) -> Self {
        Reader { input }
    }

    /// Returns the unread bytes.
    pub fn rest(&self) -> Bytes {
        self.input.clone()
    }

    /// How many bytes are not read yet.
    pub fn remaining(&self) -> usize {
        self.input.len()
    }

    /// Takes exactly `length` bytes.
    pub fn raw(&mut self, length: usize, what: &'static str) -> Result<Bytes, CodecError> {
        if self.input.len() < length {
            return Err(CodecError::Truncated { what });
        }
        Ok(self.input.split_to(length))
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], CodecError> {
        let Some(head) = self.input.first_chunk::<N>().copied() else {
            return Err(CodecError::Truncated { what });
        };
        bytes::Buf::advance(&mut self.input, N);
        Ok(head)
    }

    /// Reads one byte.
    pub fn u8(&mut self, what: &'static str) -> Result<u8, CodecError> {
        Ok(u8::from_le_bytes(self.array(what)?))
    }

    /// Reads a 16-bit integer.
    pub fn u16(&mut self, what: &'static str) -> Result<u16, CodecError> {
        Ok(u16::from_le_bytes(self.array(what)?))
    }

    /// Reads a 32-bit integer.
    pub fn u32(&mut self, what: &'static str) -> Result<u32, CodecError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// Reads a 64-bit integer.
    pub fn u64(&mut self, what: &'static str) -> Result<u64, CodecError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Reads a count that is at most `max`.
    pub fn count(&mut self, max: usize, what: &'static str) -> Result<usize, CodecError> {
        let value = self.u32(what)?;
        if value as usize > max {
            return Err(CodecError::Invalid { what, value: u64::from(value) });
        }
        Ok(value as usize)
    }

    /// Reads a byte string of at most `max` bytes.
    pub fn bytes(&mut self, max: usize, what: &'static str) -> Result<Bytes, CodecError> {
        let length = self.count(max, what)?;
        self.raw(length, what)
    }

    /// Reads a text of at most `max` bytes.
    pub fn text(&mut self, max: usize, what: &'static str) -> Result<String, CodecError> {
        let bytes = self.bytes(max, what)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| CodecError::NotText { what })
    }

    /// Reads a presence byte and, when present, a byte string of at most `max` bytes.
    pub fn optional_bytes(&mut self, max: usize, what: &'static str) -> Result<Option<Bytes>, CodecError> {
        match self.u8(what)? {
            0 => Ok(None),
            1 => self.bytes(max, what).map(Some),
            value => Err(CodecError::Invalid { what, value: u64::from(value) }),
        }
    }

    /// Confirms that everything was read.
    pub fn finish(self) -> Result<(), CodecError> {
        match self.input.len() {
            0 => Ok(()),
            count => Err(CodecError::LeftOver { count }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn values_round_trip(a: u8, b: u16, c: u32, d: u64, e: Vec<u8>, f: Option<Vec<u8>>) {
            let mut writer = Writer::default();
            writer.u8(a);
            writer.u16(b);
            writer.u32(c);
            writer.u64(d);
            writer.bytes(&e);
            writer.optional_bytes(f.as_deref());
            let mut reader = Reader::new(writer.finish());
            prop_assert_eq!(reader.u8("a").unwrap(), a);
            prop_assert_eq!(reader.u16("b").unwrap(), b);
            prop_assert_eq!(reader.u32("c").unwrap(), c);
            prop_assert_eq!(reader.u64("d").unwrap(), d);
            prop_assert_eq!(reader.bytes(1 << 20, "e").unwrap(), e);
            prop_assert_eq!(reader.optional_bytes(1 << 20, "f").unwrap().map(|v| v.to_vec()), f);
            prop_assert!(reader.finish().is_ok());
        }
    }

    #[test]
    fn a_length_beyond_the_input_is_an_error() {
        let mut writer = Writer::default();
        writer.u32(u32::MAX);
        let bytes = writer.finish();
        assert!(matches!(Reader::new(bytes.clone()).bytes(usize::MAX, "x"), Err(CodecError::Truncated { .. })));
        assert!(matches!(Reader::new(bytes).bytes(10, "x"), Err(CodecError::Invalid { .. })));
    }
}
