//! A collector that takes lines over HTTP.

use std::time::Duration;

use atoll_outgoing::header::CONTENT_TYPE;
use atoll_outgoing::{Caller, CallerSettings, Chooser, Method, OutgoingError, StatusCode};
use tokio::runtime::Runtime;

const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Why a collector has not taken lines.
#[derive(Debug)]
pub(crate) struct NotTaken {
    pub reason: String,
    /// Fewer at once might do.
    pub is_too_much: bool,
}

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

    /// Sends lines once. They are taken, or they are not: then they are to be sent again.
    pub fn send(&self, lines: &str) -> Result<(), NotTaken> {
        let failed = |error: OutgoingError| NotTaken { reason: error.to_string(), is_too_much: false };
        let request = self.caller.request(Method::POST, &self.url).map_err(failed)?;
        let request = request.header(CONTENT_TYPE, "application/x-ndjson").body(lines.to_owned());
        let status = self.runtime.block_on(self.caller.send(request)).map_err(failed)?.status;
        match status.is_success() {
            true => Ok(()),
            false => Err(NotTaken {
                reason: format!("status {status}"),
                is_too_much: status == StatusCode::PAYLOAD_TOO_LARGE,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_do_not_travel_in_clear_to_networks_that_are_not_named() {
        let refused = Collector::new("http://[fd00::1]/in").unwrap().send("{}\n").unwrap_err().reason;
        assert!(refused.contains("https://") && refused.contains("outgoing_networks"), "{refused}");
    }
}
