//! Connections: accepting them, TLS, limits.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use atoll_connection_limits::{Limits, Place, Places};
use atoll_metrics::tls as tls_metrics;
use atoll_security_log::{SecurityEvent, note};
use atoll_tls::Tls;
use axum::Router;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::rustls::server::Acceptor;
use tokio_rustls::server::TlsStream;
use tower_service::Service;

use crate::guarded_stream::GuardedStream;
use crate::hosts::{self, HostKey};
use crate::peer::Peer;
use crate::shared::Shared;

/// Operators' tools and browsers are few. Those that have logged in have places that strangers cannot take.
const LIMITS: Limits = Limits { strangers_max: 128, address_max: 32, members_max: 256 };
/// Time after which a connection without a log-in is closed, active or not.
const LOGIN_LIMIT: Duration = Duration::from_secs(30);
/// A handshake, and the headers of a request, must be there within this time; a connection may be idle for it.
const HEADER_LIMIT: Duration = Duration::from_secs(30);
/// Requests of one HTTP/2 connection at once.
const STREAMS_MAX: u32 = 32;
/// Pause after accept failed, most likely for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Routes for each kind of caller.
#[derive(Clone)]
pub(crate) struct Routers {
    /// Operators, programs and Prometheus.
    pub everyone: Router,
    /// Other hosts, which ask for their own protocol.
    pub hosts: Router,
}

pub(crate) async fn serve(socket: TcpListener, tls: Arc<Tls>, shared: Arc<Shared>, routers: Routers) {
    tokio::spawn(Arc::clone(&tls).follow());
    let places = Places::new(LIMITS);
    loop {
        match socket.accept().await {
            Ok((stream, address)) => {
                let (tls, shared, routers) = (Arc::clone(&tls), Arc::clone(&shared), routers.clone());
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!("TCP_NODELAY cannot be set: {error}");
                }
                let place = Arc::new(places.enter(Some(address.ip())));
                if place.has_taken_another() {
                    let detail = "the oldest connection without a log-in is closed for a new one";
                    note(SecurityEvent::TooManyConnections, address.ip(), detail);
                }
                tokio::spawn(async move {
                    let peer = Peer::new(address, Arc::clone(&place));
                    tokio::select! {
                        () = serve_connection(stream, peer, &tls, shared, routers) => {}
                        () = ends_early(&place) => {}
                    }
                });
            }
            Err(error) => {
                tracing::warn!("a connection cannot be accepted: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Returns when a connection has lost its place, or has had its time without a log-in. It does not apply to
/// logged-in callers.
async fn ends_early(place: &Place) {
    let is_over = match tokio::time::timeout(LOGIN_LIMIT, place.evicted()).await {
        Ok(is_evicted) => is_evicted,
        Err(_) => !place.is_member(),
    };
    if !is_over {
        std::future::pending::<()>().await;
    }
}

async fn serve_connection(stream: TcpStream, peer: Peer, tls: &Tls, shared: Arc<Shared>, routers: Routers) {
    let stream = GuardedStream::new(stream, peer.clone());
    let (stream, key) = match tokio::time::timeout(HEADER_LIMIT, handshake(stream, tls)).await {
        Ok(Ok(accepted)) => accepted,
        Ok(Err(error)) => {
            tls_metrics::handshake(false);
            return note(SecurityEvent::FailedTls, peer.address.ip(), error);
        }
        Err(_) => return tls_metrics::handshake(false),
    };
    tls_metrics::handshake(true);
    let address = peer.address;
    let answer = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        let (key, shared, routers, peer) = (key.clone(), Arc::clone(&shared), routers.clone(), peer.clone());
        async move {
            let Some(key) = key else { return answer(routers.everyone, request).await };
            match shared.host_keys.check(&key, &peer, &shared.state).await {
                Ok(()) => {
                    peer.log_in();
                    answer(routers.hosts, request).await
                }
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
        return note(SecurityEvent::MalformedInput, address.ip(), error);
    }
    tracing::debug!("a connection to the admin server ends: {error}");
}

/// The handshake. A caller that asks for the protocol of hosts has to show a key, which is returned.
async fn handshake(stream: GuardedStream, tls: &Tls) -> io::Result<(TlsStream<GuardedStream>, Option<HostKey>)> {
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
