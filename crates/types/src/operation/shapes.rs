//! How the fields of mutations and messages are encoded.

use bytes::Bytes;

use super::table::Shape;
use super::{LogEntry, Mutation, ReadOutcome, ReadRequest, Refusal, Seals, SharedTransaction, Transaction};
use crate::ids::{Epoch, ObjectName, PgId, RequestId, Version};
use crate::limits;
use atoll_codec::{CodecError, Reader, Writer};

macro_rules! integer {
    ($type:ident, $words:literal) => {
        impl Shape for $type {
            type Value = $type;
            const WORDS: &'static str = $words;

            fn encode(value: &$type, writer: &mut Writer) {
                writer.$type(*value);
            }

            fn decode(reader: &mut Reader, what: &'static str) -> Result<$type, CodecError> {
                reader.$type(what)
            }
        }
    };
}

integer!(u16, "`u16`");
integer!(u32, "`u32`");
integer!(u64, "`u64`");

impl Shape for bool {
    type Value = bool;
    const WORDS: &'static str = "`u8`";

    fn encode(value: &bool, writer: &mut Writer) {
        writer.u8(u8::from(*value));
    }

    fn decode(reader: &mut Reader, what: &'static str) -> Result<bool, CodecError> {
        match reader.u8(what)? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(CodecError::Invalid { what, value: u64::from(value) }),
        }
    }
}

impl Shape for Epoch {
    type Value = Epoch;
    const WORDS: &'static str = "`u64`";

    fn encode(value: &Epoch, writer: &mut Writer) {
        writer.u64(value.0);
    }

    fn decode(reader: &mut Reader, what: &'static str) -> Result<Epoch, CodecError> {
        let value = reader.u64(what)?;
        if value > limits::EPOCH_MAX { Err(CodecError::Invalid { what, value }) } else { Ok(Epoch(value)) }
    }
}

/// Types whose encoding is a pair of methods.
macro_rules! by_methods {
    ($($type:ident $words:literal),+ $(,)?) => {$(
        impl Shape for $type {
            type Value = $type;
            const WORDS: &'static str = $words;

            fn encode(value: &$type, writer: &mut Writer) {
                value.encode(writer);
            }

            fn decode(reader: &mut Reader, _what: &'static str) -> Result<$type, CodecError> {
                <$type>::decode(reader)
            }
        }
    )+};
}

by_methods! {
    Version "(version)",
    PgId "",
    RequestId "(request id)",
    LogEntry "(log entry)",
    ReadRequest "(read request)",
    ReadOutcome "(read outcome)",
    Refusal "(refusal)",
}

impl Shape for ObjectName {
    type Value = ObjectName;
    const WORDS: &'static str = "(object name)";

    fn encode(value: &ObjectName, writer: &mut Writer) {
        value.encode(writer);
    }

    fn decode(reader: &mut Reader, _what: &'static str) -> Result<ObjectName, CodecError> {
        ObjectName::decode(reader)
    }

    fn variable_bytes(value: &ObjectName) -> usize {
        value.as_str().len()
    }
}

impl Shape for Option<Seals> {
    type Value = Option<Seals>;
    const WORDS: &'static str = "(optional seals)";

    fn encode(value: &Option<Seals>, writer: &mut Writer) {
        Seals::encode_optional(value.as_ref(), writer);
    }

    fn decode(reader: &mut Reader, _what: &'static str) -> Result<Option<Seals>, CodecError> {
        Seals::decode_optional(reader)
    }

    fn variable_bytes(value: &Option<Seals>) -> usize {
        value.as_ref().map_or(0, |seals| seals.bytes.len())
    }
}

/// A transaction without its payload, which travels beside it and is put in afterwards.
impl Shape for SharedTransaction {
    type Value = SharedTransaction;
    const WORDS: &'static str = <Transaction as Shape>::WORDS;

    fn encode(value: &SharedTransaction, writer: &mut Writer) {
        writer.raw(value.encoded());
    }

    fn decode(reader: &mut Reader, _what: &'static str) -> Result<SharedTransaction, CodecError> {
        SharedTransaction::decode(reader)
    }

    fn variable_bytes(value: &SharedTransaction) -> usize {
        value.encoded().len()
    }
}

impl Shape for Transaction {
    type Value = Transaction;
    const WORDS: &'static str = "";

    fn encode(value: &Transaction, writer: &mut Writer) {
        value.encode(writer);
    }

    fn decode(reader: &mut Reader, _what: &'static str) -> Result<Transaction, CodecError> {
        Transaction::decode(reader, Bytes::new())
    }

    fn variable_bytes(value: &Transaction) -> usize {
        value.encoded_bytes_expected()
    }
}

/// An omap key. It is in the log, too.
pub struct OmapKey;

impl Shape for OmapKey {
    type Value = Bytes;
    const WORDS: &'static str = "(byte string)";

    fn encode(value: &Bytes, writer: &mut Writer) {
        writer.bytes(value);
    }

    fn decode(reader: &mut Reader, _what: &'static str) -> Result<Bytes, CodecError> {
        reader.bytes(limits::OMAP_KEY_BYTES_MAX, "omap key")
    }

    fn variable_bytes(value: &Bytes) -> usize {
        2 * value.len()
    }
}

/// The value of an omap entry.
pub struct OmapValue;

impl Shape for OmapValue {
    type Value = Bytes;
    const WORDS: &'static str = "(byte string)";

    fn encode(value: &Bytes, writer: &mut Writer) {
        writer.bytes(value);
    }

    fn decode(reader: &mut Reader, _what: &'static str) -> Result<Bytes, CodecError> {
        reader.bytes(limits::OMAP_VALUE_BYTES_MAX, "omap value")
    }

    fn variable_bytes(value: &Bytes) -> usize {
        value.len()
    }
}

/// The value of an omap entry, or none.
pub struct OptionalOmapValue;

impl Shape for OptionalOmapValue {
    type Value = Option<Bytes>;
    const WORDS: &'static str = "(optional byte string)";

    fn encode(value: &Option<Bytes>, writer: &mut Writer) {
        writer.optional_bytes(value.as_deref());
    }

    fn decode(reader: &mut Reader, _what: &'static str) -> Result<Option<Bytes>, CodecError> {
        reader.optional_bytes(limits::OMAP_VALUE_BYTES_MAX, "omap value")
    }

    fn variable_bytes(value: &Option<Bytes>) -> usize {
        value.as_ref().map_or(0, Bytes::len)
    }
}

/// Mutations one after the other, behind their number.
impl Shape for Vec<Mutation> {
    type Value = Vec<Mutation>;
    const WORDS: &'static str = "(list of mutations)";

    fn encode(value: &Vec<Mutation>, writer: &mut Writer) {
        super::codec::encode_mutations(value, writer);
    }

    fn decode(reader: &mut Reader, _what: &'static str) -> Result<Vec<Mutation>, CodecError> {
        super::codec::decode_mutations(reader)
    }
}
