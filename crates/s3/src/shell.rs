//! The HTTP shell around s3s: connections, TLS, limits, time-outs, health, orderly shutdown.

mod admission;
mod answer;
mod client_keys;
mod connection;
mod cross_origin;
mod document;
mod guarded_body;
mod guarded_socket;
mod measured_body;
mod pace;
mod presigned;
mod proxy_header;
mod refused;
mod request;
mod streams;
mod unsigned_chunks;
mod workers;

pub(crate) use answer::{REQUEST_ID, request_id};
pub(crate) use document::{Document, XML_BYTES_MAX};
pub(crate) use guarded_body::{BODY_STALLED, CHUNK_TOO_LARGE};
pub(crate) use refused::{Refused, Suspicion};
pub use workers::Workers;

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use atoll_connection_limits::{Limits, Place, Places};
use atoll_security_log::{SecurityEvent, note};
use atoll_tls::Tls;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::gateway::Gateway;

/// Pause after accept failed, most likely for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Where clients come in.
pub struct Listener {
    socket: TcpListener,
    tls: Option<Arc<Tls>>,
}

impl Listener {
    /// For HTTP.
    pub fn plain(socket: TcpListener) -> Self {
        Listener { socket, tls: None }
    }

    /// For HTTPS.
    pub fn tls(socket: TcpListener, tls: Arc<Tls>) -> Self {
        Listener { socket, tls: Some(tls) }
    }
}

/// Accepts and serves connections until `shutdown` resolves.
pub(crate) async fn serve(
    gateway: &Gateway,
    workers: &Workers,
    listeners: Vec<Listener>,
    shutdown: impl Future<Output = ()>,
) {
    let places = Places::new(limits(gateway.config.connections_max));
    // Each connection holds a sender, and nothing is sent: the channel ends with the last of them.
    let (open, mut all_ended) = mpsc::channel::<()>(1);
    let (stop, stopped) = watch::channel(false);
    let mut followers = JoinSet::new();
    for tls in listeners.iter().filter_map(|listener| listener.tls.clone()) {
        followers.spawn(tls.follow());
    }
    let mut first = 0;
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = accept(&listeners, first) => accepted,
        };
        match accepted {
            Ok((index, socket, peer)) => {
                first = index + 1;
                let (gateway, tls, stopped) = (gateway.clone(), listeners[index].tls.clone(), stopped.clone());
                let (open, place) = (open.clone(), enter(&places, &gateway, peer));
                workers.spawn(socket, move |socket| async move {
                    tokio::select! {
                        () = connection::serve(gateway, tls, socket, peer, Arc::clone(&place), stopped) => {}
                        () = connection::evicted(&place) => {}
                    }
                    drop(open);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listeners);
    stop.send_replace(true);
    drop(open);
    let ended = tokio::time::timeout(gateway.config.shutdown_timeout, all_ended.recv()).await;
    if ended.is_err() {
        tracing::warn!("some requests did not end in time; their connections are cut");
    }
}

/// Beside connections of those who sign there may be half as many of strangers, and half of these of one address.
fn limits(connections_max: usize) -> Limits {
    let strangers_max = (connections_max / 2).max(1);
    Limits { strangers_max, address_max: (strangers_max / 2).max(1), members_max: connections_max.max(1) }
}

/// A place for a connection. Of a trusted proxy all clients have one address, so only the limit of all holds.
fn enter(places: &Places, gateway: &Gateway, peer: SocketAddr) -> Arc<Place> {
    let address = (!gateway.trusted_proxies.contain(peer.ip())).then(|| peer.ip());
    let place = places.enter(address);
    if place.has_taken_another() {
        let detail = "the oldest connection without a signed request is closed for a new one";
        note(SecurityEvent::TooManyConnections, peer.ip(), detail);
    }
    Arc::new(place)
}

/// Returns the next connection of any listener. They are asked in turn, so that a busy one does not keep the
/// others waiting.
async fn accept(listeners: &[Listener], first: usize) -> io::Result<(usize, TcpStream, SocketAddr)> {
    poll_fn(|context| {
        for index in (first..first + listeners.len()).map(|index| index % listeners.len()) {
            if let Poll::Ready(accepted) = listeners[index].socket.poll_accept(context) {
                return Poll::Ready(accepted.map(|(socket, peer)| (index, socket, peer)));
            }
        }
        Poll::Pending
    })
    .await
}
