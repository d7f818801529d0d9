//! The process' end.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use atoll_metrics::TextFormat;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;

use crate::place::Place;

/// Largest number of connections: the admin server and the command line need few.
const CONNECTIONS_MAX: usize = 32;
/// A request has to come within this time.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Content of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// For the `Content-Type` header.
    pub content_type: &'static str,
    /// The body.
    pub text: String,
}

type Route = Box<dyn Fn() -> Reply + Send + Sync>;

/// Answers of a process beside its metrics, by path.
#[derive(Default)]
pub struct Routes(BTreeMap<&'static str, Route>);

impl Routes {
    /// Adds the answer at a path, such as `/slow`. It must not wait.
    pub fn with(mut self, path: &'static str, route: impl Fn() -> Reply + Send + Sync + 'static) -> Self {
        self.0.insert(path, Box::new(route));
        self
    }

    fn reply(&self, path: &str, accept: Option<&str>) -> Option<Reply> {
        if path != "/metrics" {
            return self.0.get(path).map(|route| route());
        }
        let format = TextFormat::accepted(accept);
        let text = atoll_metrics::encode(format).expect("writing to a string does not fail");
        Some(Reply { content_type: format.content_type(), text })
    }
}

/// Serves at a path from now on, in a thread of its own, for as long as the process lives. A socket that a process
/// has left there is replaced; one that answers is not.
pub fn serve_in_thread(path: &Path, routes: Routes) -> io::Result<()> {
    let listener = listen(path)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let serve = move || runtime.block_on(serve(listener, Arc::new(routes)));
    std::thread::Builder::new().name("admin-socket".into()).spawn(serve)?;
    Ok(())
}

fn listen(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    use std::os::unix::net;
    let place = Place::make(path)?;
    if net::UnixStream::connect(&place.address).is_ok() {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process of this name serves there"));
    }
    match std::fs::remove_file(&place.address) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = net::UnixListener::bind(&place.address)?;
    std::fs::set_permissions(&place.address, std::fs::Permissions::from_mode(0o600))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

async fn serve(listener: std::os::unix::net::UnixListener, routes: Arc<Routes>) {
    let listener = match UnixListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!("the admin socket cannot be served: {error}"),
    };
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let slot = Arc::clone(&slots).acquire_owned().await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let routes = Arc::clone(&routes);
                tokio::spawn(async move {
                    serve_connection(stream, routes).await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!("a connection to the admin socket cannot be accepted: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(stream: UnixStream, routes: Arc<Routes>) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let answer = answer(&request, &routes);
        async move { Ok::<_, Infallible>(answer) }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    let server = server.timer(TokioTimer::new()).header_read_timeout(REQUEST_LIMIT);
    if let Err(error) = server.serve_connection(TokioIo::new(stream), answer).await {
        tracing::debug!("a connection to the admin socket ends: {error}");
    }
}

fn answer(request: &Request<Incoming>, routes: &Routes) -> Response<Full<Bytes>> {
    let accept = request.headers().get(ACCEPT).and_then(|value| value.to_str().ok());
    let mut response = Response::new(Full::default());
    if request.method() != Method::GET {
        *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return response;
    }
    match routes.reply(request.uri().path(), accept) {
        Some(reply) => {
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(reply.content_type));
            *response.body_mut() = Full::new(Bytes::from(reply.text));
        }
        None => *response.status_mut() = StatusCode::NOT_FOUND,
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AskError, ask};

    fn routes() -> Routes {
        Routes::default().with("/slow", || Reply { content_type: "application/json", text: "[]".into() })
    }

    #[tokio::test]
    async fn a_process_reports_at_a_path_of_any_length() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("d".repeat(200)).join("osd.0.sock");
        serve_in_thread(&path, routes()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let slow = ask(&path, "/slow", None).await.unwrap();
        assert_eq!((&slow.content_type[..], &slow.body[..]), ("application/json", &b"[]"[..]));
        let metrics = ask(&path, "/metrics", Some("application/openmetrics-text")).await.unwrap();
        assert!(metrics.body.ends_with(b"# EOF\n"));
        assert!(matches!(ask(&path, "/other", None).await, Err(AskError::Refused { status: 404, .. })));
    }

    #[tokio::test]
    async fn a_dead_socket_is_replaced_and_a_live_one_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run/nbd.sock");
        drop(listen(&path).unwrap());
        serve_in_thread(&path, routes()).unwrap();
        assert_eq!(serve_in_thread(&path, routes()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        assert!(ask(&path, "/slow", None).await.is_ok(), "the first still serves");
    }

    #[tokio::test]
    async fn invalid_http_ends_its_own_connection_only() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("osd.1.sock");
        serve_in_thread(&path, routes()).unwrap();
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(&[0xff; 4096]).await.unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
        assert!(rest.starts_with(b"HTTP/1.1 400"), "{rest:?}");
        assert!(ask(&path, "/slow", None).await.is_ok());
    }
}
