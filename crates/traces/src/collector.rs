//! A collector that takes OTLP as JSON over HTTP, <https://opentelemetry.io/docs/specs/otlp/#otlphttp>.

use std::time::Duration;

use atoll_outgoing::header::CONTENT_TYPE;
use atoll_outgoing::{Caller, CallerSettings, Chooser, Method, OutgoingError, StatusCode};
use serde::Serialize;
use tokio::runtime::Runtime;

const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Pauses before failed deliveries are repeated. Later operations wait, as far as there is room.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// Where a collector takes traces, below its address.
const TRACES_PATH: &str = "/v1/traces";

/// Made when something is sent for the first time: most processes never do.
#[derive(Default)]
pub(crate) struct Collector(Option<(Runtime, Caller)>);

/// Why a collector did not take something.
struct Refusal {
    cause: String,
    /// True if the collector may accept it later.
    is_passing: bool,
}

impl Collector {
    /// Sends something to a collector, again if it can be hoped that it is taken then.
    pub fn send(&mut self, endpoint: &str, request: &impl Serialize) -> Result<(), String> {
        let (runtime, caller) = match &mut self.0 {
            Some(made) => made,
            none => none.insert(make()?),
        };
        let url = format!("{}{TRACES_PATH}", endpoint.trim_end_matches('/'));
        let body = serde_json::to_string(request).map_err(|error| error.to_string())?;
        let mut pauses = PAUSES.iter();
        loop {
            let Err(refusal) = runtime.block_on(post(caller, &url, body.clone())) else { return Ok(()) };
            match pauses.next() {
                Some(pause) if refusal.is_passing => std::thread::sleep(*pause),
                _ => return Err(refusal.cause),
            }
        }
    }
}

fn make() -> Result<(Runtime, Caller), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let settings = CallerSettings { time: ANSWER_LIMIT, ..CallerSettings::of(Chooser::Operator) };
    Ok((runtime.map_err(|error| error.to_string())?, Caller::new(settings)))
}

async fn post(caller: &Caller, url: &str, body: String) -> Result<(), Refusal> {
    let refused = |error: OutgoingError| Refusal {
        is_passing: matches!(error, OutgoingError::NoAnswer(_) | OutgoingError::Late(_)),
        cause: error.to_string(),
    };
    let request = caller.request(Method::POST, url).map_err(refused)?;
    let request = request.header(CONTENT_TYPE, "application/json").body(body);
    let status = caller.send(request).await.map_err(refused)?.status;
    let is_passing = matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT
    );
    if status.is_success() { Ok(()) } else { Err(Refusal { cause: format!("status {status}"), is_passing }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// Answers one request after the other with these statuses, and returns the requests. Its network is named.
    fn server(statuses: &'static [&'static str]) -> (String, std::thread::JoinHandle<Vec<String>>) {
        atoll_outgoing::configure("127.0.0.1", "");
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}/", listener.local_addr().unwrap());
        let answer = move |status: &&str| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\"spans\"") {
                let mut buffer = [0; 1024];
                let read = stream.read(&mut buffer).unwrap();
                assert!(read > 0);
                request.extend_from_slice(&buffer[..read]);
            }
            write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
            String::from_utf8(request).unwrap()
        };
        (endpoint, std::thread::spawn(move || statuses.iter().map(answer).collect()))
    }

    #[test]
    fn temporary_refusals_are_retried() {
        let (endpoint, server) = server(&["503 Service Unavailable", "200 OK"]);
        assert_eq!(Collector::default().send(&endpoint, &"spans"), Ok(()));
        for request in server.join().unwrap() {
            assert!(request.starts_with("POST /v1/traces HTTP/1.1\r\n"), "{request}");
            assert!(request.contains("content-type: application/json\r\n"), "{request}");
        }
    }

    #[test]
    fn nothing_is_sent_to_networks_that_are_not_named() {
        let listener = TcpListener::bind("127.0.0.2:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let refused = Collector::default().send(&endpoint, &"spans").unwrap_err();
        assert!(refused.contains("outgoing_networks"), "{refused}");
        assert!(listener.accept().is_err(), "it was connected to");
    }

    #[test]
    fn permanent_refusals_are_not_retried() {
        let (endpoint, server) = server(&["400 Bad Request"]);
        let refused = Collector::default().send(&endpoint, &"spans");
        assert!(refused.is_err_and(|cause| cause.contains("400")));
        assert_eq!(server.join().unwrap().len(), 1);
    }
}
