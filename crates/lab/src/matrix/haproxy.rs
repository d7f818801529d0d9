//! A HAProxy that ends TLS in front of a cluster's gateway: the setup of docs/guide/ingress.md, without the checks
//! and retries that matter only with several gateways.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::cluster::Stops;
use super::command::free_port;
use crate::error::LabError;

const START_MAX: Duration = Duration::from_secs(10);

/// Where it listens, and its process.
pub(super) struct Haproxy {
    pub endpoint: String,
    pub process_id: u32,
}

fn configuration(port: u16, pair: &Path, gateway: &str) -> String {
    format!(
        "global
    maxconn 4000
    ssl-default-bind-options ssl-min-ver TLSv1.2
defaults
    mode http
    timeout connect 2s
    timeout queue 10s
    timeout http-request 30s
    timeout http-keep-alive 30s
    timeout client 90s
    timeout server 90s
frontend s3
    bind 127.0.0.1:{port} ssl crt {} alpn h2,http/1.1
    http-request set-header X-Forwarded-Proto https
    http-request del-header X-Forwarded-For
    option forwardfor
    default_backend gateways
backend gateways
    balance leastconn
    http-reuse safe
    server gateway-1 {gateway}
",
        pair.display()
    )
}

/// Starts it in front of `gateway` (HOST:PORT), with the certificate of the cluster in `data`.
pub(super) fn start(data: &Path, gateway: &str, stops: &Stops) -> Result<Haproxy, LabError> {
    let failed = |detail: String| LabError::Process { what: "haproxy".into(), detail };
    let (pair, file) = (data.join("haproxy.pem"), data.join("haproxy.cfg"));
    let write = || -> std::io::Result<u16> {
        let mut text = std::fs::read_to_string(data.join("tls/server.crt"))?;
        text.push_str(&std::fs::read_to_string(data.join("tls/server.key"))?);
        std::fs::write(&pair, text)?;
        let port = free_port().map_err(std::io::Error::other)?;
        std::fs::write(&file, configuration(port, &pair, gateway))?;
        Ok(port)
    };
    let port = write().map_err(|error| failed(error.to_string()))?;
    let mut command = Command::new("haproxy");
    command.args(["-db", "-f"]).arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command
        .spawn()
        .map_err(|error| failed(format!("cannot be started ({error}); install it: apt-get install haproxy")))?;
    let process_id = child.id();
    let mut kill = Command::new("kill");
    kill.arg(process_id.to_string());
    stops.add(vec![kill], None);
    let begun = Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        if begun.elapsed() > START_MAX {
            return Err(failed(format!("does not listen; 'haproxy -c -f {}' says why", file.display())));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(Haproxy { endpoint: format!("https://127.0.0.1:{port}"), process_id })
}
