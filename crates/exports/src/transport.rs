//! A connection's socket and, for clients that use it, TLS between that and the protocol.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::net::SocketAddr;

use atoll_reactor::{PeerAddress, Stream};
use bytes::{Bytes, BytesMut};

/// Room for encrypted bytes of one receive. Long messages are assembled behind TLS, so there is no need for more,
/// and this bounds the bytes that one turn of the loop decrypts.
const RECORD_BYTES_AT_ONCE: usize = 256 << 10;

/// The server's end of one TLS connection, which sees no socket: records on one side, their content on the other.
pub trait Channel {
    /// Why TLS has failed.
    type Error: fmt::Display;

    /// Takes all bytes out of `records`. After an error there may be an alert to send, and nothing else may be done.
    fn receive(&mut self, records: &mut BytesMut) -> Result<(), Self::Error>;

    /// Returns the client's bytes, verified and not taken yet.
    fn opened(&mut self) -> &mut BytesMut;

    /// Makes room for at least this many more bytes in [`Channel::opened`].
    fn expect_bytes(&mut self, bytes: usize) {
        self.opened().reserve(bytes);
    }

    /// Returns true if the client has ended TLS in an orderly way.
    fn has_peer_closed(&self) -> bool;

    /// Queues bytes for the client. Those of one batch share records.
    fn send(&mut self, bytes: Bytes);

    /// Seals the queue; returns all records that have to be sent, also those of the handshake.
    fn take_records(&mut self) -> Result<Bytes, Self::Error>;

    /// Informs the client that nothing follows the queue.
    fn close(&mut self) -> Result<Bytes, Self::Error>;
}

/// Bytes of the protocol in both directions.
pub struct Transport<C> {
    stream: Stream,
    tls: RefCell<Option<C>>,
}

impl<C: Channel> Transport<C> {
    /// Without TLS so far.
    pub fn new(stream: Stream) -> Self {
        Transport { stream, tls: RefCell::default() }
    }

    /// From now on everything that arrives or is sent goes through TLS.
    pub fn secure(&self, channel: C) {
        assert!(self.tls.replace(Some(channel)).is_none(), "TLS begins once");
    }

    /// Waits until something has arrived, as [`Stream::receive`] does.
    pub async fn receive(&self) -> io::Result<()> {
        self.stream.receive().await
    }

    /// Waits for the first byte of the client. It stays where it is.
    pub async fn first_byte(&self) -> io::Result<u8> {
        loop {
            self.receive().await?;
            if let Some(byte) = self.stream.with_received(|received| received.first().copied()).flatten() {
                return Ok(byte);
            }
        }
    }

    /// Takes all bytes that have arrived. To be called only as long as there is no TLS.
    pub fn take_received(&self, bytes: &mut BytesMut) {
        self.stream.with_received(|received| bytes.unsplit(received.split()));
    }

    /// Takes the newly arrived bytes through TLS, if there is any TLS. To be called once after each
    /// [`Transport::receive`].
    pub fn open_received(&self) -> Result<(), C::Error> {
        let mut tls = self.tls.borrow_mut();
        let Some(channel) = tls.as_mut() else { return Ok(()) };
        self.stream.with_received(|records| channel.receive(records)).unwrap_or(Ok(()))?;
        self.stream.send([channel.take_records()?]);
        Ok(())
    }

    /// Has bytes of the client taken that were not taken yet; true if there were any that could be. Without TLS that is
    /// possible only right after [`Transport::receive`].
    pub fn take_unread(&self, take: impl FnOnce(&mut BytesMut)) -> bool {
        let take = |unread: &mut BytesMut| {
            let before = unread.len();
            take(unread);
            unread.len() < before
        };
        match self.tls.borrow_mut().as_mut() {
            None => self.stream.with_received(|received| take(received)).unwrap_or(false),
            Some(channel) => take(channel.opened()),
        }
    }

    /// Returns true if there are bytes that no receive will report, because TLS has opened them already.
    pub fn has_opened(&self) -> bool {
        self.tls.borrow_mut().as_mut().is_some_and(|channel| !channel.opened().is_empty())
    }

    /// Returns true if the client has ended TLS in an orderly way.
    pub fn has_peer_closed(&self) -> bool {
        self.tls.borrow().as_ref().is_some_and(C::has_peer_closed)
    }

    /// Looks at TLS, if there is any.
    pub fn with_tls<T>(&self, look: impl FnOnce(&C) -> T) -> Option<T> {
        self.tls.borrow().as_ref().map(look)
    }

    /// Makes room for at least this many more bytes of the client.
    pub fn expect_bytes(&self, bytes: usize) {
        match self.tls.borrow_mut().as_mut() {
            None => self.stream.expect_bytes(bytes),
            Some(channel) => {
                channel.expect_bytes(bytes);
                self.stream.expect_bytes(bytes.min(RECORD_BYTES_AT_ONCE));
            }
        }
    }

    /// Queues bytes for the client; they go with [`Transport::flush`] at the latest.
    pub fn send(&self, bytes: Bytes) {
        match self.tls.borrow_mut().as_mut() {
            None => self.stream.send([bytes]),
            Some(channel) => channel.send(bytes),
        }
    }

    /// Sends bytes as they are. To be called only as long as there is no TLS.
    pub fn send_records(&self, records: Bytes) {
        if !records.is_empty() {
            self.stream.send([records]);
        }
    }

    /// Seals the queue and hands it to the socket.
    pub fn flush(&self) {
        let mut tls = self.tls.borrow_mut();
        let Some(channel) = tls.as_mut() else { return };
        match channel.take_records() {
            Ok(records) => self.send_records(records),
            Err(error) => {
                tracing::warn!(
                    "the connection of {} ends because nothing can be sent: {error}",
                    self.peer_address()
                );
                self.stream.abort();
            }
        }
    }

    /// Returns the address of the other end.
    pub fn peer_address(&self) -> PeerAddress {
        self.stream.peer_address()
    }

    /// The address of this end.
    pub fn local_address(&self) -> Option<SocketAddr> {
        self.stream.local_address()
    }

    /// Bytes on their way to the client.
    pub fn unsent_bytes(&self) -> usize {
        self.stream.unsent_bytes()
    }

    /// Stops receiving: back-pressure.
    pub fn pause(&self) {
        self.stream.pause();
    }

    /// Receives again.
    pub fn resume(&self) {
        self.stream.resume();
    }

    /// Closes the connection now.
    pub fn abort(&self) {
        self.stream.abort();
    }

    /// Sends the queue, and the end of TLS or the reason of its failure, and closes.
    pub fn close(&self) {
        if let Some(channel) = self.tls.borrow_mut().as_mut()
            && let Ok(records) = channel.close()
        {
            self.stream.send([records]);
        }
        self.stream.close_after_send();
    }
}
