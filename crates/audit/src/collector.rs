//! A collector that takes lines over HTTP.

use std::time::Duration;

use atoll_outgoing::header::CONTENT_TYPE;
use atoll_outgoing::{Caller, CallerSettings, Chooser, Method, OutgoingError};
use tokio::runtime::Runtime;

use crate::Sink;

const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Pauses before what could not be sent is sent again. While that goes on, requests come to wait.
const PAUSES: [Duration; 6] = [
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(10),
];

pub(crate) struct Collector {
    url: String,
    caller: Caller,
    runtime: Runtime,
}

impl Collector {
    pub fn new(url: &str) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // Who starts the process has chosen it.
        let settings = CallerSettings { time: ANSWER_LIMIT, ..CallerSettings::of(Chooser::Host) };
        Ok(Collector { url: url.to_owned(), caller: Caller::new(settings), runtime })
    }

    fn send(&self, lines: &str) -> Result<(), String> {
        let failed = |error: OutgoingError| error.to_string();
        let request = self.caller.request(Method::POST, &self.url).map_err(failed)?;
        let request = request.header(CONTENT_TYPE, "application/x-ndjson").body(lines.to_owned());
        let status = self.runtime.block_on(self.caller.send(request)).map_err(failed)?.status;
        if status.is_success() { Ok(()) } else { Err(format!("status {status}")) }
    }
}

impl Sink for Collector {
    fn write(&mut self, lines: &str) -> Result<(), String> {
        let mut last = match self.send(lines) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        for pause in PAUSES {
            tracing::warn!("the collector of the audit log does not take lines: {last}; trying again");
            std::thread::sleep(pause);
            match self.send(lines) {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(format!("the collector does not take them: {last}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn lines_are_sent_again_until_they_are_taken() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/in", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            ["503 Service Unavailable", "204 No Content"].map(|status| {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"{\"a\":1}\n") {
                    let mut buffer = [0; 1024];
                    let read = stream.read(&mut buffer).unwrap();
                    assert!(read > 0);
                    request.extend_from_slice(&buffer[..read]);
                }
                write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
                String::from_utf8(request).unwrap()
            })
        });
        let mut collector = Collector::new(&url).unwrap();
        collector.write("{\"a\":1}\n").unwrap();
        for request in server.join().unwrap() {
            assert!(
                request.starts_with("POST /in HTTP/1.1\r\n") && request.contains("application/x-ndjson"),
                "{request}"
            );
        }
    }

    #[test]
    fn lines_do_not_travel_in_clear_to_networks_that_are_not_named() {
        let refused = Collector::new("http://[fd00::1]/in").unwrap().send("{}\n").unwrap_err();
        assert!(refused.contains("https://") && refused.contains("outgoing_networks"), "{refused}");
    }
}
