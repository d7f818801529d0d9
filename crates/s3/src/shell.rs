//! The HTTP shell around s3s: connections, TLS, limits, time-outs, health, orderly shutdown.

mod admission;
mod answer;
mod arrival;
mod certificates;
mod connection;
mod cross_origin;
mod document;
mod guarded_body;
mod guarded_socket;
mod measured_body;
mod pace;
mod presigned;
mod proxy_header;
mod request;
mod streams;
mod tls;
mod unsigned_chunks;
mod workers;

pub(crate) use admission::Refused;
pub(crate) use answer::{REQUEST_ID, request_id};
pub(crate) use arrival::Arrival;
pub(crate) use arrival::TrustedProxies;
pub use arrival::TrustedProxy;
pub(crate) use document::Document;
pub(crate) use guarded_body::{BODY_STALLED, CHUNK_TOO_LARGE};
pub(crate) use request::is_aws_chunked;
pub use tls::{ClientAuthority, Tls, TlsError, TlsSettings};
pub use workers::Workers;

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
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
    let slots = Arc::new(Semaphore::new(gateway.config.connections_max.max(1)));
    let (stop, stopped) = watch::channel(false);
    let mut followers = JoinSet::new();
    for tls in listeners.iter().filter_map(|listener| listener.tls.clone()) {
        followers.spawn(tls.follow());
    }
    let mut first = 0;
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = async {
            // Without a free slot the connection waits in the kernel's queue.
            let slot = slots.clone().acquire_owned().await;
            (slot, accept(&listeners, first).await)
        };
        let (slot, accepted) = tokio::select! {
            () = &mut shutdown => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((index, socket, peer)) => {
                first = index + 1;
                let (gateway, tls, stopped) = (gateway.clone(), listeners[index].tls.clone(), stopped.clone());
                workers.spawn(socket, move |socket| async move {
                    connection::serve(gateway, tls, socket, peer, stopped).await;
                    drop(slot);
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
    let all = u32::try_from(gateway.config.connections_max.max(1)).unwrap_or(u32::MAX);
    let ended = tokio::time::timeout(gateway.config.shutdown_timeout, slots.acquire_many(all)).await;
    if ended.is_err() {
        tracing::warn!("some requests did not end in time; their connections are cut");
    }
}

/// The next connection, of which listener it may be. They are asked in turn, so that a busy one does
/// not keep the others waiting.
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
