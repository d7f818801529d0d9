//! The client side.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::Request;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

use crate::place::Place;

/// A process that takes longer hangs.
const ASK_LIMIT: Duration = Duration::from_secs(5);
/// Metrics of a thousand buckets and images are a tenth of it.
const BODY_BYTES_MAX: usize = 64 << 20;

/// Answer of a process.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Its `Content-Type` header, or nothing.
    pub content_type: String,
    /// The body.
    pub body: Bytes,
}

/// Reasons why a process did not answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It is not there, or another user's.
    #[error("{}: {reason}", path.display())]
    NotReached {
        /// The admin socket.
        path: PathBuf,
        /// Why.
        reason: io::Error,
    },
    /// It does not have the requested route.
    #[error("{}: status {status}", path.display())]
    Refused {
        /// The admin socket.
        path: PathBuf,
        /// The HTTP status.
        status: u16,
    },
    /// It gave no whole answer in time.
    #[error("{}: no answer: {reason}", path.display())]
    NoAnswer {
        /// The admin socket.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// Asks the process of an admin socket for the answer at `route`.
pub async fn ask(path: &Path, route: &str, accept: Option<&str>) -> Result<Answer, AskError> {
    let no_answer = |reason: String| AskError::NoAnswer { path: path.to_owned(), reason };
    match tokio::time::timeout(ASK_LIMIT, ask_for(path, route, accept)).await {
        Ok(answer) => answer,
        Err(_) => Err(no_answer(format!("nothing for {} s", ASK_LIMIT.as_secs()))),
    }
}

async fn ask_for(path: &Path, route: &str, accept: Option<&str>) -> Result<Answer, AskError> {
    let not_reached = |reason| AskError::NotReached { path: path.to_owned(), reason };
    let place = Place::open(path).map_err(not_reached)?;
    let stream = UnixStream::connect(&place.address).await.map_err(not_reached)?;
    match exchange(stream, route, accept).await {
        Ok((200..300, answer)) => Ok(answer),
        Ok((status, _)) => Err(AskError::Refused { path: path.to_owned(), status }),
        Err(reason) => Err(AskError::NoAnswer { path: path.to_owned(), reason }),
    }
}

/// Makes one GET request over a connection of any kind. Gives the status and the answer, or why there is none.
pub async fn exchange<S>(stream: S, route: &str, accept: Option<&str>) -> Result<(u16, Answer), String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
    let request = Request::get(route).header(HOST, "localhost").header(ACCEPT, accept.unwrap_or("*/*"));
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| error.to_string())?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let content_type = content_type.unwrap_or_default().to_owned();
        let body = Limited::new(response.into_body(), BODY_BYTES_MAX).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        Ok((status, Answer { content_type, body }))
    };
    let mut connection = std::pin::pin!(connection);
    let mut exchange = std::pin::pin!(exchange);
    tokio::select! {
        answer = &mut exchange => answer,
        ended = &mut connection => match ended {
            // What was received before the end may be all of it.
            Ok(()) => exchange.await,
            Err(error) => Err(error.to_string()),
        },
    }
}
