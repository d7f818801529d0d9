//! One connection, from its first byte to its last.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use atoll_connection_limits::Place;
use atoll_metrics::tls as tls_metrics;
use atoll_security_log::{SecurityEvent, note};
use atoll_tls::{ALPN_HTTP_2, Tls};
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ProtocolVersion;

use super::client_keys::{ClientKeys, Whose};
use super::guarded_socket::GuardedSocket;
use super::proxy_header::{Source, read_header};
use super::request;
use super::streams::{Streams, Watched};
use crate::arrival::Origin;
use crate::gateway::Gateway;
use crate::metrics::Connection;

/// hyper's buffer of one connection: bounds the headers before anything looks at them, and the
/// pieces in which a body arrives.
const BUFFER_BYTES_MAX: usize = 256 << 10;
/// Headers of one request that hyper parses at all.
const HEADERS_MAX: usize = 256;

/// rustls reads 4 KiB at a time. Through this, one system call brings several records.
const TLS_READ_BYTES: usize = 32 << 10;
/// Bytes that rustls encrypts before they are written: their records leave with one system call.
const TLS_WRITE_BYTES_MAX: usize = 256 << 10;

/// Requests of one HTTP/2 connection at once.
const STREAMS_MAX: u32 = 128;
/// Most bytes that a client may send of one body, and of all, before we have taken them.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 2 << 20;
/// Larger frames than the usual 16 KiB cost less each byte, where clients make use of it.
const FRAME_BYTES_MAX: u32 = 64 << 10;
/// Most bytes of one answer that are buffered beyond the client's room.
const SEND_BYTES_MAX: usize = 256 << 10;
/// HTTP/2 counts 32 bytes more for each header. The library refuses larger ones, and the gateway those in between,
/// in S3's own words.
const HEADER_LIST_FACTOR: usize = 2;
/// How long a client may take to end a connection after we said that it ends.
const GOODBYE_TIME: Duration = Duration::from_secs(2);
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Returns when another stranger has taken the place of a connection.
pub(super) async fn evicted(place: &Place) {
    if !place.evicted().await {
        std::future::pending::<()>().await;
    }
}

/// Serves a connection to its end. `stopped` turns true when the gateway shuts down.
pub(super) async fn serve(
    gateway: Gateway,
    tls: Option<Arc<Tls>>,
    mut socket: TcpStream,
    peer: SocketAddr,
    place: Arc<Place>,
    stopped: watch::Receiver<bool>,
) {
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "TCP_NODELAY cannot be set");
    }
    if peer.ip().is_loopback() {
        // As between Atoll's own processes: what a system has chosen for its network does harm here.
        let _ = rustix::net::sockopt::set_tcp_congestion(&socket, "reno");
    }
    // Dropped after all that has read from the connection.
    let keys = Arc::new(ClientKeys::default());
    let header_timeout = gateway.config.header_timeout;
    let mut unread = bytes::BytesMut::new();
    let mut source = Source::Itself;
    if gateway.trusted_proxies.contain(peer.ip()) {
        match timeout(header_timeout, read_header(&mut socket)).await {
            Ok(Ok(read)) => (source, unread) = read,
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::InvalidData => {
                return tracing::warn!(%peer, %error, "a trusted proxy sends a malformed PROXY header");
            }
            // It looked whether the port is open.
            Ok(Err(_)) | Err(_) => return,
        }
    }
    let speaker = match source {
        Source::Itself => Some(peer),
        Source::Client(client) => Some(client),
        Source::Unknown => None,
    };
    let mut origin = Origin { is_tls: tls.is_some(), tls_version: None, speaker };
    let _open = Connection::open();
    let socket = GuardedSocket::new(socket, unread.freeze(), gateway.config.stall_timeout);
    let Some(tls) = tls else {
        return serve_http_1(gateway, socket, (origin, place, keys.clone()), stopped).await;
    };
    let acceptor = TlsAcceptor::from(tls.current());
    let buffered = BufReader::with_capacity(TLS_READ_BYTES, socket);
    let handshake = acceptor.accept_with(buffered, |session| session.set_buffer_limit(Some(TLS_WRITE_BYTES_MAX)));
    match timeout(header_timeout, handshake).await {
        Ok(Ok(socket)) => {
            tls_metrics::handshake(true);
            origin.tls_version = match socket.get_ref().1.protocol_version() {
                Some(ProtocolVersion::TLSv1_2) => Some("1.2"),
                Some(ProtocolVersion::TLSv1_3) => Some("1.3"),
                _ => None,
            };
            if socket.get_ref().1.alpn_protocol() == Some(ALPN_HTTP_2) {
                serve_http_2(gateway, socket, (origin, place, keys.clone()), stopped).await;
            } else {
                serve_http_1(gateway, socket, (origin, place, keys.clone()), stopped).await;
            }
        }
        Ok(Err(error)) => {
            tls_metrics::handshake(false);
            note(SecurityEvent::FailedTls, peer.ip(), error);
        }
        Err(_) => {
            tls_metrics::handshake(false);
            tracing::debug!(%peer, "TLS handshake did not end in time");
        }
    }
}

async fn serve_http_1<S>(gateway: Gateway, socket: S, whose: Whose, mut stopped: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let header_timeout = gateway.config.header_timeout;
    let (origin, ..) = whose;
    let service = service_fn(move |request| {
        let (gateway, whose) = (gateway.clone(), whose.clone());
        async move { Ok::<_, Infallible>(request::answer(&gateway, whose, request).await) }
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
    report(result, origin);
}

async fn serve_http_2<S>(gateway: Gateway, socket: S, whose: Whose, mut stopped: watch::Receiver<bool>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (header_timeout, stall_timeout) = (gateway.config.header_timeout, gateway.config.stall_timeout);
    let header_bytes_max = gateway.config.header_bytes_max.saturating_mul(HEADER_LIST_FACTOR);
    let streams = Streams::new();
    let (origin, ..) = whose;
    let service = {
        let streams = streams.clone();
        service_fn(move |request: Request<Incoming>| {
            let (gateway, whose, stream) = (gateway.clone(), whose.clone(), streams.open());
            async move {
                let response = request::answer(&gateway, whose, request).await;
                Ok::<_, Infallible>(response.map(|body| Watched::new(body, stream)))
            }
        })
    };
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES_MAX)
        .max_send_buf_size(SEND_BYTES_MAX)
        .max_header_list_size(u32::try_from(header_bytes_max).unwrap_or(u32::MAX))
        .serve_connection(TokioIo::new(socket), service);
    let mut connection = std::pin::pin!(connection);
    let mut said_goodbye: Option<Instant> = None;
    let look_pause = (header_timeout.min(stall_timeout) / 4).min(LOOK_PAUSE_MAX);
    loop {
        tokio::select! {
            result = connection.as_mut() => return report(result, origin),
            _ = stopped.wait_for(|stopped| *stopped), if said_goodbye.is_none() => {
                connection.as_mut().graceful_shutdown();
                said_goodbye = Some(Instant::now());
            }
            () = tokio::time::sleep(look_pause) => {
                if streams.is_one_stalled(stall_timeout) {
                    return tracing::debug!("an answer was not taken in time; its connection is cut");
                }
                match said_goodbye {
                    None if streams.are_idle(header_timeout) => {
                        connection.as_mut().graceful_shutdown();
                        said_goodbye = Some(Instant::now());
                    }
                    Some(since) if since.elapsed() >= GOODBYE_TIME && streams.are_idle(GOODBYE_TIME) => return,
                    _ => {}
                }
            }
        }
    }
}

fn report(result: hyper::Result<()>, origin: Origin) {
    let Err(error) = result else { return };
    if error.is_parse() {
        let client = origin.speaker.map_or_else(|| "an unknown peer".into(), |peer| peer.ip().to_string());
        return note(SecurityEvent::MalformedInput, client, error);
    }
    tracing::debug!(%error, "a connection ended badly");
}
