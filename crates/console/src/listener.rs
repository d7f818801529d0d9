//! Connections: accepting them, TLS, limits.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use atoll_metrics::tls as tls_metrics;
use atoll_s3::Tls;
use atoll_security_log::{SecurityEvent, note};
use axum::Router;
use axum::body::Body;
use axum::response::Response;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

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

pub(crate) async fn serve(socket: TcpListener, tls: Arc<Tls>, router: Router) {
    tokio::spawn(Arc::clone(&tls).follow());
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // Without a free slot the connection waits in the kernel's queue.
        let slot = Arc::clone(&slots).acquire_owned().await;
        match socket.accept().await {
            Ok((stream, peer)) => {
                let (tls, router) = (Arc::clone(&tls), router.clone());
                tokio::spawn(async move {
                    serve_connection(stream, peer, &tls, router).await;
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

async fn serve_connection(stream: TcpStream, peer: SocketAddr, tls: &Tls, router: Router) {
    let acceptor = TlsAcceptor::from(tls.current());
    let stream = match tokio::time::timeout(HEADER_LIMIT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tls_metrics::handshake(false);
            return note(SecurityEvent::FailedTls, peer.ip(), error);
        }
        Err(_) => return tls_metrics::handshake(false),
    };
    tls_metrics::handshake(true);
    let answer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(Peer(peer));
        answer(router.clone(), request)
    });
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_LIMIT);
    let mut http_2 = server.http2();
    http_2.timer(TokioTimer::new()).max_concurrent_streams(STREAMS_MAX);
    http_2.keep_alive_interval(HEADER_LIMIT).keep_alive_timeout(HEADER_LIMIT);
    let served = server.serve_connection(TokioIo::new(stream), answer).await;
    let Err(error) = served else { return };
    if error.downcast_ref().is_some_and(hyper::Error::is_parse) {
        return note(SecurityEvent::MalformedInput, peer.ip(), error);
    }
    tracing::debug!("a connection to the admin server ends: {error}");
}

async fn answer(mut router: Router, request: Request<Incoming>) -> Result<Response, Infallible> {
    // A router is always ready.
    router.call(request.map(Body::new)).await
}
