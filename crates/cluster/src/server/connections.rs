//! Connections to the server: a connection that has shown a token keeps its place, and strangers have few places,
//! for a while.

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
        Ok(GuardedStream { stream, peer, place, connections: self.clone(), evicted, login_limit })
    }

    /// A request of this peer has shown a token.
    pub fn log_in(&self, peer: SocketAddr) {
        let place = self.lock().get(&peer).cloned();
        if let Some(place) = place {
            place.log_in();
        }
    }
}

/// A connection that fails when it has lost its place, or has had its time without a token.
pub struct GuardedStream {
    stream: TcpStream,
    peer: SocketAddr,
    place: Arc<Place>,
    connections: Connections,
    /// Until the connection has logged in.
    evicted: Option<Evicted>,
    login_limit: Pin<Box<Sleep>>,
}

impl GuardedStream {
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(evicted) = &mut self.evicted else { return Ok(()) };
        let closed = |why: &str| Err(io::Error::new(io::ErrorKind::ConnectionAborted, why));
        match Pin::new(evicted).poll(context) {
            Poll::Ready(true) => return closed("the place is another connection's"),
            Poll::Ready(false) => self.evicted = None,
            Poll::Pending if self.login_limit.as_mut().poll(context).is_ready() => {
                return closed("no request has shown a token in time");
            }
            Poll::Pending => {}
        }
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
        Pin::new(&mut self.stream).poll_read(context, buffer)
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
