//! One connection's TLS: records on one side, their content on the other.

use std::io::{BufRead, ErrorKind, IoSlice, Write};
use std::sync::Arc;

use atoll_exports::Channel;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use rustls::pki_types::CertificateDer;
use rustls::{ServerConfig, ServerConnection};

use super::ChannelError;

/// Most bytes that a record adds to at most 16 KiB of content: header, tag, explicit nonce or type.
const RECORD_CONTENT_BYTES: usize = 16 << 10;
const RECORD_OVERHEAD_BYTES: usize = 32;

/// The server's end of one TLS connection. Its memory is bounded by the bytes of one call, and by the bytes that
/// its user leaves in [`TlsChannel::opened`].
pub(crate) struct TlsChannel {
    connection: ServerConnection,
    opened: BytesMut,
    to_seal: Vec<Bytes>,
    has_peer_closed: bool,
}

impl TlsChannel {
    /// A channel on which the client is about to begin the handshake.
    pub fn new(config: Arc<ServerConfig>) -> Result<Self, ChannelError> {
        Ok(TlsChannel {
            connection: ServerConnection::new(config)?,
            opened: BytesMut::new(),
            to_seal: Vec::new(),
            has_peer_closed: false,
        })
    }

    fn take_opened(&mut self) -> Result<(), ChannelError> {
        let mut reader = self.connection.reader();
        loop {
            match reader.fill_buf() {
                Ok([]) => {
                    self.has_peer_closed = true;
                    return Ok(());
                }
                Ok(content) => {
                    self.opened.extend_from_slice(content);
                    let length = content.len();
                    reader.consume(length);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(ChannelError::Records(error)),
            }
        }
    }

    /// Returns true if the handshake has not ended.
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// The client's certificate, if it has shown one, which an authority has signed then.
    pub fn client_certificate(&self) -> Option<CertificateDer<'static>> {
        let chain = self.connection.peer_certificates()?;
        chain.first().map(|certificate| certificate.clone().into_owned())
    }

    fn take_sealed(&mut self, records: &mut BytesMut) {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut records.writer()).expect("a buffer in memory takes everything");
        }
    }
}

impl Channel for TlsChannel {
    type Error = ChannelError;

    fn receive(&mut self, records: &mut BytesMut) -> Result<(), ChannelError> {
        // What is in records is shorter than they are, so this grows once and not record by record.
        self.opened.reserve(records.len());
        while !records.is_empty() && !self.has_peer_closed {
            self.connection.read_tls(&mut (&mut *records).reader()).map_err(ChannelError::Records)?;
            self.connection.process_new_packets()?;
            self.take_opened()?;
        }
        // What follows an orderly end is dropped.
        records.clear();
        Ok(())
    }

    fn opened(&mut self) -> &mut BytesMut {
        &mut self.opened
    }

    fn has_peer_closed(&self) -> bool {
        self.has_peer_closed
    }

    fn send(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.to_seal.push(bytes);
        }
    }

    fn take_records(&mut self) -> Result<Bytes, ChannelError> {
        let queued = std::mem::take(&mut self.to_seal);
        let length: usize = queued.iter().map(Bytes::len).sum();
        let record_count = length.div_ceil(RECORD_CONTENT_BYTES) + 1;
        let mut records =
            BytesMut::with_capacity(if length > 0 { length + record_count * RECORD_OVERHEAD_BYTES } else { 0 });
        self.take_sealed(&mut records);
        let mut slices: Vec<IoSlice<'_>> = queued.iter().map(|bytes| IoSlice::new(bytes)).collect();
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            // The library takes some records' worth at a time, so they are copied out of the cache.
            let taken = self.connection.writer().write_vectored(rest).map_err(ChannelError::Records)?;
            if taken == 0 {
                return Err(ChannelError::Records(ErrorKind::WriteZero.into()));
            }
            IoSlice::advance_slices(&mut rest, taken);
            self.take_sealed(&mut records);
        }
        Ok(records.freeze())
    }

    fn close(&mut self) -> Result<Bytes, ChannelError> {
        let mut records = BytesMut::from(self.take_records()?);
        self.connection.send_close_notify();
        self.take_sealed(&mut records);
        Ok(records.freeze())
    }
}
