//! Connections: accepting them, TLS, limits.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use atoll_metrics::tls as tls_metrics;
use atoll_s3::Tls;
use atoll_security_log::{SecurityEvent, note};
use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::TlsStream;
use tower_service::Service;

use crate::hosts::{self, HostKey};
use crate::server::Shared;

/// Operators' tools and browsers are few.
const CONNECTIONS_MAX: usize = 256;
/// A handshake, and the headers of a request, must be there within this time; a connection may be idle for it.
const HEADER_LIMIT: Duration = Duration::from_secs(30);
/// Requests of one HTTP/2 connection at once.
const STREAMS_MAX: u32 = 32;
/// Pause after accept failed, most likely for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Who is at the other end; travels with each request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer(pub SocketAddr);

/// What is served to whom.
#[derive(Clone)]
pub(crate) struct Routers {
    /// Operators, programs and Prometheus.
    pub everyone: Router,
    /// Other hosts, which ask for their own protocol.
    pub hosts: Router,
}

pub(crate) async fn serve(socket: TcpListener, tls: Arc<Tls>, shared: Arc<Shared>, routers: Routers) {
    tokio::spawn(Arc::clone(&tls).follow());
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Without a free slot the connection waits in the kernel's queue.
        let slot = Arc::clone(&slots).acquire_owned().await;
        match socket.accept().await {
            Ok((stream, peer)) => {
                let (tls, shared, routers) = (Arc::clone(&tls), Arc::clone(&shared), routers.clone());
                tokio::spawn(async move {
                    serve_connection(stream, Peer(peer), &tls, shared, routers).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!("a connection cannot be accepted: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, peer: Peer, tls: &Tls, shared: Arc<Shared>, routers: Routers) {
    let (stream, key) = match tokio::time::timeout(HEADER_LIMIT, handshake(stream, tls)).await {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => {
            tls_metrics::handshake(false);
            return note(SecurityEvent::FailedTls, peer.0.ip(), error);
        }
        Err(_) => return tls_metrics::handshake(false),
    };
    tls_metrics::handshake(true);
    let answer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer);
        let (key, shared, routers) = (key.clone(), Arc::clone(&shared), routers.clone());
        async move {
            let Some(key) = key else { return answer(routers.everyone, request).await };
            match shared.host_keys.check(&key, peer, &shared.state).await {
                Ok(()) => answer(routers.hosts, request).await,
                Err(refusal) => Ok(refusal.into_response()),
            }
        }
    });
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_LIMIT);
    let mut http_2 = server.http2();
    http_2.timer(TokioTimer::new()).max_concurrent_streams(STREAMS_MAX);
    http_2.keep_alive_interval(HEADER_LIMIT).keep_alive_timeout(HEADER_LIMIT);
    let served = server.serve_connection(TokioIo::new(stream), answer).await;
    let Err(error) = served else { return };
    if error.downcast_ref().is_some_and(hyper::Error::is_parse) {
        return note(SecurityEvent::MalformedInput, peer.0.ip(), error);
    }
    tracing::debug!("a connection to the admin server ends: {error}");
}

/// The handshake. Who asks for the protocol of hosts has to show a key, and that is given.
async fn handshake(stream: TcpStream, tls: &Tls) -> io::Result<(TlsStream<TcpStream>, Option<HostKey>)> {
    let begun = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
    let is_host = begun.client_hello().alpn().is_some_and(|mut asked| asked.any(|name| name == hosts::ALPN));
    if !is_host {
        return Ok((begun.into_stream(tls.current()).await?, None));
    }
    let config = hosts::server_config(&tls.current()).map_err(io::Error::other)?;
    let stream = begun.into_stream(Arc::new(config)).await?;
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| HostKey::of(chain.first()?));
    let key = shown.ok_or_else(|| io::Error::other("the other side has shown no key"))?;
    Ok((stream, Some(key)))
}

async fn answer(mut router: Router, request: Request<Incoming>) -> Result<Response, Infallible> {
    // A router is always ready.
    router.call(request.map(Body::new)).await
}
