//! TLS and HTTP/2 of the gateway as clients see them: certificates, changes of them, and clients that
//! do not do their part.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::support::memory_client::Fault;
use crate::support::{serve_on, start, start_with_tls, tls_settings, write_pair};
use atoll_s3::{Gateway, Listener};
use atoll_tls::{ClientAuthority, Tls, TlsSettings};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rusty_s3::{Bucket, Credentials, S3Action, UrlStyle};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, SignatureScheme};

/// Takes any certificate: the tests look at which it is.
#[derive(Debug)]
struct Anything;

impl ServerCertVerifier for Anything {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

async fn connect(address: SocketAddr, name: &str, protocol: &str) -> TlsStream<TcpStream> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let mut config =
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anything)).with_no_client_auth();
    config.alpn_protocols = vec![protocol.into()];
    let socket = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, socket).await.unwrap()
}

async fn shown(address: SocketAddr, name: &str) -> Vec<u8> {
    let connection = connect(address, name, "h2").await;
    connection.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

async fn http_2(address: SocketAddr) -> (SendRequest<Full<Bytes>>, tokio::task::JoinHandle<hyper::Result<()>>) {
    let connection = connect(address, "localhost", "h2").await;
    assert_eq!(connection.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(10_000)
        .handshake(TokioIo::new(connection))
        .await
        .unwrap();
    (sender, tokio::spawn(connection))
}

fn get(path: &str) -> http::Request<Full<Bytes>> {
    http::Request::get(format!("https://localhost{path}")).body(Full::default()).unwrap()
}

#[tokio::test]
async fn each_name_has_its_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let default = write_pair(directory.path(), "server", &["localhost"]);
    let one = write_pair(directory.path(), "one", &["one.example", "*.one.example"]);
    write_pair(directory.path(), "ca", &["two.example"]);
    std::fs::write(directory.path().join("some.crt"), "no pair, and not looked at").unwrap();
    let gateway = start_with_tls(tls_settings(directory.path()), |_| {}).await;
    for (name, certificate) in [
        ("localhost", &default),
        ("one.example", &one),
        ("ONE.example", &one),
        ("bucket.one.example", &one),
        ("a.b.one.example", &default),
        ("two.example", &default),
        ("127.0.0.1", &default),
    ] {
        assert!(shown(gateway.address, name).await == *certificate, "{name}");
    }
}

#[tokio::test]
async fn changed_certificates_are_taken_and_broken_ones_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let first = write_pair(directory.path(), "server", &["localhost"]);
    let gateway = start_with_tls(tls_settings(directory.path()), |_| {}).await;
    let (mut sender, _connection) = http_2(gateway.address).await;
    assert_eq!(sender.send_request(get("/-/health")).await.unwrap().status(), 200);

    std::fs::write(directory.path().join("server.crt"), "-----BEGIN CERTIFICATE-----\nbroken").unwrap();
    // The gateway looks at the files every 2 s.
    let time = StandingTime::begin();
    for _ in 0..25 {
        assert!(shown(gateway.address, "localhost").await == first, "a broken file is not used");
        time.pass(Duration::from_millis(100)).await;
    }
    time.end();

    let second = write_pair(directory.path(), "server", &["localhost"]);
    crate::support::eventually("the new certificate", async || {
        shown(gateway.address, "localhost").await == second
    })
    .await;
    assert_eq!(sender.send_request(get("/-/health")).await.unwrap().status(), 200, "connections go on");
}

#[test]
fn what_cannot_be_used_is_said() {
    let refused = |directory: &Path, authority: Option<&Path>| {
        let client_authority = authority.map(|file| ClientAuthority { file: file.to_owned(), is_required: true });
        let settings = TlsSettings { client_authority, ..tls_settings(directory) };
        Tls::load(settings).unwrap_err().to_string()
    };
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    assert!(refused(&path("nowhere"), None).contains("nowhere"));
    assert!(refused(directory.path(), None).contains("no server.key"));
    write_pair(directory.path(), "server", &["localhost"]);
    assert!(refused(directory.path(), Some(&path("server.key"))).contains("no certificate"));
    std::fs::write(path("empty"), "").unwrap();
    assert!(refused(directory.path(), Some(&path("empty"))).contains("empty"));
    write_pair(directory.path(), "other", &["other"]);
    std::fs::copy(path("other.key"), path("server.key")).unwrap();
    assert!(refused(directory.path(), None).contains("cannot be used together"));
    std::fs::remove_file(path("server.crt")).unwrap();
    assert!(refused(directory.path(), None).contains("server.crt"));
}

/// The clock of a test's runtime, which only the test moves. (Tokio's own paused clock runs ahead as soon as all wait
/// for sockets, unless a blocking task is under way.)
struct StandingTime(std::sync::mpsc::Sender<()>);

impl StandingTime {
    fn begin() -> Self {
        let (sender, held) = std::sync::mpsc::channel::<()>();
        tokio::task::spawn_blocking(move || held.recv().is_ok());
        tokio::time::pause();
        StandingTime(sender)
    }

    async fn pass(&self, time: Duration) {
        tokio::time::advance(time).await;
    }

    fn end(self) {
        tokio::time::resume();
        drop(self.0);
    }
}

/// The gateway of a test, over TLS, with an object that is read with a presigned URL.
async fn with_short_times() -> (crate::support::TestGateway, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    write_pair(directory.path(), "server", &["localhost"]);
    let gateway = start_with_tls(tls_settings(directory.path()), |config| {
        config.header_timeout = Duration::from_millis(1_500);
        config.stall_timeout = Duration::from_millis(1_500);
    })
    .await;
    (gateway, directory)
}

#[tokio::test]
async fn http_2_that_asks_for_nothing_is_ended() {
    let (gateway, _directory) = with_short_times().await;
    let time = StandingTime::begin();
    let (mut sender, connection) = http_2(gateway.address).await;
    for _ in 0..4 {
        let answer = sender.send_request(get("/-/health")).await;
        assert_eq!(answer.expect("each request is a new beginning").status(), 200);
        time.pass(Duration::from_millis(1_000)).await;
    }
    time.pass(Duration::from_millis(600)).await;
    time.end();
    tokio::time::timeout(Duration::from_secs(10), connection).await.expect("it is ended").unwrap().unwrap();

    // Never more than the preface and half of a header block: nothing that answers pings.
    let mut connection = connect(gateway.address, "localhost", "h2").await;
    let half = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x01\x01\0\0\0\0\x01\x82";
    connection.write_all(half).await.unwrap();
    let ended = tokio::time::timeout(Duration::from_secs(15), connection.read_to_end(&mut Vec::new())).await;
    assert!(ended.is_ok(), "it is cut");
}

#[tokio::test]
async fn http_2_that_does_not_take_its_answer_is_cut() {
    let (gateway, _directory) = with_short_times().await;
    let data = Bytes::from(vec![7; 1 << 20]);
    let (mut sender, _connection) = http_2(gateway.address).await;
    for (path, body) in [("bucket", Bytes::new()), ("bucket/key", data.clone())] {
        let request = http::Request::put(presigned(&gateway, "PUT", path)).body(Full::new(body)).unwrap();
        assert_eq!(sender.send_request(request).await.unwrap().status(), 200, "{path}");
    }
    let read = || http::Request::get(presigned(&gateway, "GET", "bucket/key")).body(Full::default()).unwrap();
    let time = StandingTime::begin();
    let (mut sender, connection) = http_2(gateway.address).await;
    let answer = sender.send_request(read()).await.unwrap();
    assert_eq!(answer.status(), 200);
    // The same connection goes on asking, so it is never idle.
    let (mut passed, pause) = (Duration::ZERO, Duration::from_millis(100));
    while sender.send_request(get("/-/health")).await.is_ok() {
        assert!(passed < Duration::from_secs(8), "a connection whose answer nobody takes is cut");
        time.pass(pause).await;
        passed += pause;
    }
    assert!(passed > Duration::from_millis(1_400), "but not at once");
    time.end();
    assert!(tokio::time::timeout(Duration::from_secs(8), connection).await.is_ok(), "it is cut");
    drop(answer);

    // Who takes it slowly gets all of it.
    let (mut sender, _connection) = http_2(gateway.address).await;
    let mut body = sender.send_request(read()).await.unwrap().into_body();
    let mut taken = Vec::new();
    while let Some(frame) = body.frame().await {
        taken.extend_from_slice(&frame.unwrap().into_data().unwrap());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(taken == data);
}

#[tokio::test]
async fn http_2_requests_at_once_have_a_bound() {
    let (gateway, _directory) = with_short_times().await;
    let (mut sender, _connection) = http_2(gateway.address).await;
    let request = http::Request::put(presigned(&gateway, "PUT", "bucket")).body(Full::default()).unwrap();
    assert_eq!(sender.send_request(request).await.unwrap().status(), 200);
    gateway.client.set_fault("s3i/", Fault::Slow(Duration::from_millis(700)));
    let asked = (0..300).map(|_| {
        let request = http::Request::get(presigned(&gateway, "GET", "bucket/key")).body(Full::default()).unwrap();
        sender.send_request(request)
    });
    for answer in futures::future::join_all(asked.collect::<Vec<_>>()).await {
        assert_eq!(answer.unwrap().status(), 404);
    }
    assert!((100..=128).contains(&gateway.client.slow_at_once()), "{}", gateway.client.slow_at_once());
}

/// A URL with a signature in it.
fn presigned(gateway: &crate::support::TestGateway, method: &str, path: &str) -> String {
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    let endpoint = format!("https://localhost:{}", gateway.address.port()).parse().unwrap();
    let bucket = Bucket::new(endpoint, UrlStyle::Path, bucket.to_owned(), "us-east-1").unwrap();
    let (access_key, secret_key) = &gateway.users[0];
    let credentials = Credentials::new(access_key, secret_key);
    let expires = Duration::from_secs(60);
    let url = match (method, key) {
        ("PUT", "") => bucket.create_bucket(&credentials).sign(expires),
        ("PUT", key) => bucket.put_object(Some(&credentials), key).sign(expires),
        (_, key) => bucket.get_object(Some(&credentials), key).sign(expires),
    };
    url.to_string()
}

#[tokio::test]
async fn http_2_headers_have_a_limit() {
    let (gateway, _directory) = with_short_times().await;
    let (mut sender, _connection) = http_2(gateway.address).await;
    for (bytes, status) in [(10_000, 404), (20_000, 431), (40_000, 431)] {
        let mut request = get("/bucket/key");
        request.headers_mut().insert("x-long", "a".repeat(bytes).parse().unwrap());
        let found = sender.send_request(request).await.map(|answer| answer.status().as_u16());
        assert!(found.as_ref().is_ok_and(|found| *found == status), "{bytes} bytes: {found:?}");
    }
}

/// First a PROXY header, then a request; the answer of the plain listener.
async fn say(gateway: &Gateway, text: &str) -> String {
    let (address, _stop, _served) = serve_on(gateway, Listener::plain).await;
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let read = socket.read_to_end(&mut answer);
    let _ = tokio::time::timeout(Duration::from_secs(5), read).await.expect("an answer, and an end");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn proxy_headers_are_for_trusted_proxies() {
    let request = "GET /-/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    let header = "PROXY TCP4 192.0.2.7 127.0.0.1 12345 9000\r\n";
    let stranger = start(|_| {}).await;
    assert!(say(&stranger.gateway, request).await.starts_with("HTTP/1.1 200 "));
    assert!(say(&stranger.gateway, &format!("{header}{request}")).await.starts_with("HTTP/1.1 400 "));
    let trusted = start(|config| config.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()]).await;
    assert!(say(&trusted.gateway, request).await.starts_with("HTTP/1.1 200 "));
    assert!(say(&trusted.gateway, &format!("{header}{request}")).await.starts_with("HTTP/1.1 200 "));
    assert_eq!(say(&trusted.gateway, &format!("PROXY TCP4 nonsense\r\n{request}")).await, "");
}
