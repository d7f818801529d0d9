//! The HTTP shell around s3s: connections, limits, time-outs, health, orderly shutdown.

mod arrival;
mod guarded_body;
mod guarded_socket;
mod request;
mod tls;

#[allow(unused_imports)]
pub(crate) use arrival::Arrival;
pub(crate) use guarded_body::{BODY_STALLED, CHUNK_TOO_LARGE};
pub(crate) use request::is_aws_chunked;
pub use tls::{TlsError, tls_server_config};

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;

use crate::gateway::Gateway;
use guarded_socket::GuardedSocket;

/// hyper's buffer of one connection: bounds the headers before anything looks at them, and the
/// pieces in which a body arrives.
const BUFFER_BYTES_MAX: usize = 256 << 10;
/// Headers of one request that hyper parses at all.
const HEADERS_MAX: usize = 256;
/// Pause after accept failed, most likely for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts and serves connections until `shutdown` resolves.
pub(crate) async fn serve(gateway: &Gateway, listener: TcpListener, shutdown: impl Future<Output = ()>) {
    let slots = Arc::new(Semaphore::new(gateway.config.connections_max.max(1)));
    let (stop, stopped) = watch::channel(false);
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = async {
            // Without a free slot the connection waits in the kernel's queue.
            let slot = slots.clone().acquire_owned().await;
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            () = &mut shutdown => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((socket, peer)) => {
                let (gateway, stopped) = (gateway.clone(), stopped.clone());
                tokio::spawn(async move {
                    serve_socket(gateway, socket, peer, stopped).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection cannot be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    stop.send_replace(true);
    let all = u32::try_from(gateway.config.connections_max.max(1)).unwrap_or(u32::MAX);
    let ended = tokio::time::timeout(gateway.config.shutdown_timeout, slots.acquire_many(all)).await;
    if ended.is_err() {
        tracing::warn!("some requests did not end in time; their connections are cut");
    }
}

async fn serve_socket(gateway: Gateway, socket: TcpStream, peer: SocketAddr, stopped: watch::Receiver<bool>) {
    let arrival = Arrival { is_encrypted: gateway.config.tls.is_some(), client: Some(peer) };
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY cannot be set");
    }
    let socket = GuardedSocket::new(socket, gateway.config.stall_timeout);
    let Some(tls) = gateway.config.tls.clone() else {
        return serve_connection(gateway, socket, arrival, stopped).await;
    };
    let handshake = TlsAcceptor::from(tls).accept(socket);
    match tokio::time::timeout(gateway.config.header_timeout, handshake).await {
        Ok(Ok(socket)) => serve_connection(gateway, socket, arrival, stopped).await,
        Ok(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        Err(_) => tracing::debug!("TLS handshake did not end in time"),
    }
}

async fn serve_connection<S>(gateway: Gateway, socket: S, arrival: Arrival, mut stopped: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let header_timeout = gateway.config.header_timeout;
    let service = service_fn(move |request| {
        let gateway = gateway.clone();
        async move { Ok::<_, Infallible>(request::answer(&gateway, arrival, request).await) }
    });
    // hyper counts the time until a next request begins as header time, too: this also bounds how
    // long a kept-alive connection may be idle.
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_buf_size(BUFFER_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        .serve_connection(TokioIo::new(socket), service);
    let mut connection = std::pin::pin!(connection);
    let stopping = async move { stopped.wait_for(|stopped| *stopped).await.is_ok() };
    let result = tokio::select! {
        result = connection.as_mut() => result,
        _ = stopping => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection ended badly");
    }
}
