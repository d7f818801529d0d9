//! Connections to the server: a connection that has shown a token keeps its place, and strangers have few places,
//! for a while, and send few bytes.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use atoll_connection_limits::{Evicted, Limits, Place, Places};
use atoll_security_log::{SecurityEvent, note};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::limits;

const LIMITS: Limits = Limits { strangers_max: 256, address_max: 128, members_max: 4_096 };

/// All connections. Clones share them.
#[derive(Clone)]
pub struct Connections {
    places: Places,
    /// By the address and port of the peer, as requests name it.
    by_peer: Arc<Mutex<HashMap<SocketAddr, Arc<Place>>>>,
}

impl Connections {
    pub fn new() -> Self {
        Connections { places: Places::new(LIMITS), by_peer: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Arc<Place>>> {
        // Each change of the map is one statement.
        self.by_peer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a connection its place.
    pub fn guard(&self, stream: TcpStream) -> io::Result<GuardedStream> {
        let peer = stream.peer_addr()?;
        let place = Arc::new(self.places.enter(Some(peer.ip())));
        if place.has_taken_another() {
            let detail = "the oldest connection without a token is closed for a new one";
            note(SecurityEvent::TooManyConnections, peer.ip(), detail);
        }
        self.lock().insert(peer, Arc::clone(&place));
        let evicted = Some(place.evicted());
        let login_limit = Box::pin(tokio::time::sleep(limits::LOGIN));
        let (connections, allowed_bytes) = (self.clone(), limits::STRANGER_BYTES);
        Ok(GuardedStream { stream, peer, place, connections, evicted, login_limit, allowed_bytes })
    }

    /// A request of this peer has shown a token.
    pub fn log_in(&self, peer: SocketAddr) {
        let place = self.lock().get(&peer).cloned();
        if let Some(place) = place {
            place.log_in();
        }
    }
}

/// A connection that fails when it has lost its place, or has had its time or its bytes without a token.
pub struct GuardedStream {
    stream: TcpStream,
    peer: SocketAddr,
    place: Arc<Place>,
    connections: Connections,
    /// Until the connection has logged in.
    evicted: Option<Evicted>,
    login_limit: Pin<Box<Sleep>>,
    /// Bytes that it may still send until then.
    allowed_bytes: u64,
}

fn closed(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, why)
}

impl GuardedStream {
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(evicted) = &mut self.evicted else { return Ok(()) };
        match Pin::new(evicted).poll(context) {
            Poll::Ready(true) => return Err(closed("the place is another connection's")),
            Poll::Ready(false) => self.evicted = None,
            Poll::Pending if self.login_limit.as_mut().poll(context).is_ready() => {
                return Err(closed("no request has shown a token in time"));
            }
            Poll::Pending => {}
        }
        Ok(())
    }

    /// Counts received bytes. The server keeps a request until it is whole, so strangers could fill the memory by
    /// requests that they do not end.
    fn count(&mut self, bytes: usize) -> io::Result<()> {
        if self.evicted.is_none() {
            return Ok(());
        }
        let Some(left) = self.allowed_bytes.checked_sub(bytes as u64) else {
            let detail = "a connection without a token has sent too much";
            note(SecurityEvent::TooManyConnections, self.peer.ip(), detail);
            return Err(closed(detail));
        };
        self.allowed_bytes = left;
        Ok(())
    }
}

impl Drop for GuardedStream {
    fn drop(&mut self) {
        let mut by_peer = self.connections.lock();
        // The system may have given the port to another connection already.
        if by_peer.get(&self.peer).is_some_and(|place| Arc::ptr_eq(place, &self.place)) {
            by_peer.remove(&self.peer);
        }
    }
}

impl Connected for GuardedStream {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for GuardedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
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
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// A connection over which twice the bytes of a stranger come.
    async fn connection(connections: &Connections) -> GuardedStream {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        tokio::spawn(async move {
            // It may be cut off.
            let _ = sender.write_all(&vec![0; 2 * limits::STRANGER_BYTES as usize]).await;
        });
        connections.guard(stream).unwrap()
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
    async fn a_connection_without_a_token_sends_few_bytes() {
        let connections = Connections::new();
        let mut stranger = connection(&connections).await;
        let (bytes, error) = received(&mut stranger).await;
        assert_eq!(error, Some(io::ErrorKind::ConnectionAborted));
        assert!(bytes <= limits::STRANGER_BYTES, "{bytes}");
        let mut member = connection(&connections).await;
        connections.log_in(member.peer);
        assert_eq!(received(&mut member).await, (2 * limits::STRANGER_BYTES, None));
    }
}
