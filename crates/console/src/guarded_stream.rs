//! A connection below TLS. A request is kept until it is whole, so strangers could fill the memory by requests that
//! they do not end: a connection without a log-in sends few bytes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use atoll_security_log::{SecurityEvent, note};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::peer::Peer;

/// Bytes that a connection may send until it has logged in: a handshake, pages, a log-in and a call with a body.
pub(crate) const STRANGER_BYTES: u64 = 512 << 10;

/// A connection that fails when it has sent too much without a log-in.
pub(crate) struct GuardedStream {
    stream: TcpStream,
    peer: Peer,
    allowed_bytes: u64,
}

impl GuardedStream {
    pub fn new(stream: TcpStream, peer: Peer) -> Self {
        GuardedStream { stream, peer, allowed_bytes: STRANGER_BYTES }
    }

    fn count(&mut self, bytes: usize) -> io::Result<()> {
        if bytes == 0 || self.peer.is_member() {
            return Ok(());
        }
        let Some(left) = self.allowed_bytes.checked_sub(bytes as u64) else {
            let detail = "a connection without a log-in has sent too much";
            note(SecurityEvent::TooManyConnections, self.peer.address.ip(), detail);
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, detail));
        };
        self.allowed_bytes = left;
        Ok(())
    }
}

impl AsyncRead for GuardedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.count(buffer.filled().len() - before)?;
        read
    }
}

impl AsyncWrite for GuardedStream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use atoll_connection_limits::{Limits, Places};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    const LIMITS: Limits = Limits { strangers_max: 4, address_max: 4, members_max: 4 };

    /// A connection over which twice the bytes of a stranger come.
    async fn connection(places: &Places) -> GuardedStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, address) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            // It may be cut off.
            let _ = sender.write_all(&vec![0; 2 * STRANGER_BYTES as usize]).await;
        });
        GuardedStream::new(stream, Peer::new(address, Arc::new(places.enter(Some(address.ip())))))
    }

    async fn received(stream: &mut GuardedStream) -> (u64, Option<io::ErrorKind>) {
        let (mut bytes, mut buffer) = (0, vec![0; 64 << 10]);
        loop {
            match stream.read(&mut buffer).await {
                Ok(0) => return (bytes, None),
                Ok(read) => bytes += read as u64,
                Err(error) => return (bytes, Some(error.kind())),
            }
        }
    }

    #[tokio::test]
    async fn a_connection_without_a_log_in_sends_few_bytes() {
        let places = Places::new(LIMITS);
        let mut stranger = connection(&places).await;
        let (bytes, error) = received(&mut stranger).await;
        assert_eq!(error, Some(io::ErrorKind::ConnectionAborted));
        assert!(bytes <= STRANGER_BYTES, "{bytes}");
        let mut member = connection(&places).await;
        member.peer.log_in();
        assert_eq!(received(&mut member).await, (2 * STRANGER_BYTES, None));
    }
}
