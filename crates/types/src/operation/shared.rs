//! Transactions that several take: each member, and the log of each.

use std::ops::Deref;
use std::sync::Arc;

use atoll_codec::{CodecError, Reader, Writer};
use bytes::Bytes;

use super::Transaction;

/// A transaction that is shared and encoded once: the same bytes go to members and into logs, and a member logs
/// those that it has received.
#[derive(Clone, Debug)]
pub struct SharedTransaction(Arc<Encoded>);

#[derive(Clone, Debug)]
struct Encoded {
    transaction: Transaction,
    /// Everything but the payload.
    bytes: Bytes,
}

impl SharedTransaction {
    /// The encoding, without the payload.
    pub fn encoded(&self) -> &Bytes {
        &self.0.bytes
    }

    /// Reads a transaction and keeps the bytes that it was read from. Its payload comes beside it.
    pub fn decode(reader: &mut Reader) -> Result<Self, CodecError> {
        let before = reader.rest();
        let transaction = Transaction::decode(reader, Bytes::new())?;
        let bytes = before.slice(..before.len() - reader.remaining());
        Ok(SharedTransaction(Arc::new(Encoded { transaction, bytes })))
    }

    /// Puts in the payload, which is not part of the encoding.
    pub fn put_payload(&mut self, payload: Bytes) {
        Arc::make_mut(&mut self.0).transaction.payload = payload;
    }
}

impl From<Transaction> for SharedTransaction {
    fn from(transaction: Transaction) -> Self {
        let mut writer = Writer::with_capacity(transaction.encoded_bytes_expected());
        transaction.encode(&mut writer);
        SharedTransaction(Arc::new(Encoded { transaction, bytes: writer.finish() }))
    }
}

impl Deref for SharedTransaction {
    type Target = Transaction;

    fn deref(&self) -> &Transaction {
        &self.0.transaction
    }
}

impl PartialEq for SharedTransaction {
    fn eq(&self, other: &Self) -> bool {
        self.0.transaction == other.0.transaction
    }
}

impl Eq for SharedTransaction {}
