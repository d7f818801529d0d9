//! The two servers under test: ours, in this process, and a real etcd in a process of its own.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use atoll_cluster::{ClusterClient, ConnectOptions, EmbeddedServer, Protection};
use tempfile::TempDir;

use crate::certificates::Certificates;

pub const ETCD: &str = "/usr/bin/etcd";
pub const ETCDCTL: &str = "/usr/bin/etcdctl";

/// A running server with a directory of its own.
pub struct Server {
    kind: Kind,
    /// For servers that speak TLS. The etcd wants a client certificate, too.
    certificates: Option<Certificates>,
    directory: TempDir,
}

enum Kind {
    Embedded(Option<EmbeddedServer>),
    Etcd { child: Child, endpoint: String },
}

impl Server {
    pub async fn embedded() -> Server {
        let directory = tempfile::tempdir().unwrap();
        let server = start(directory.path()).await;
        Server { kind: Kind::Embedded(Some(server)), certificates: None, directory }
    }

    pub async fn embedded_with_tls() -> Server {
        let directory = tempfile::tempdir().unwrap();
        let certificates = Certificates::new(directory.path());
        let protection = Protection { tls: Some(certificates.server_pem()), ..Protection::default() };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = EmbeddedServer::start(listener, directory.path(), protection).await.unwrap();
        Server { kind: Kind::Embedded(Some(server)), certificates: Some(certificates), directory }
    }

    pub async fn etcd() -> Server {
        Server::spawn_etcd(tempfile::tempdir().unwrap(), None).await
    }

    pub async fn etcd_with_tls() -> Server {
        let directory = tempfile::tempdir().unwrap();
        let certificates = Certificates::new(directory.path());
        Server::spawn_etcd(directory, Some(certificates)).await
    }

    async fn spawn_etcd(directory: TempDir, certificates: Option<Certificates>) -> Server {
        let scheme = if certificates.is_some() { "https" } else { "http" };
        let endpoint = format!("{scheme}://127.0.0.1:{}", free_port());
        let peer = format!("http://127.0.0.1:{}", free_port());
        let child =
            etcd_process("conformance", directory.path(), &endpoint, &peer, &format!("conformance={peer}"))
                .args(certificates.iter().flat_map(Certificates::etcd_arguments))
                .spawn()
                .unwrap();
        let server = Server { kind: Kind::Etcd { child, endpoint }, certificates, directory };
        let begun = Instant::now();
        while ClusterClient::connect(&server.connect_options()).await.is_err() {
            assert!(begun.elapsed() < Duration::from_secs(15), "etcd does not answer");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        server
    }

    /// Returns the options of our client.
    pub fn connect_options(&self) -> ConnectOptions {
        let tls = self.certificates.as_ref().map(Certificates::client_files).unwrap_or_default();
        ConnectOptions::new([self.endpoint()]).with_tls(tls)
    }

    pub fn certificates(&self) -> &Certificates {
        self.certificates.as_ref().unwrap()
    }

    pub fn endpoint(&self) -> String {
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        match &self.kind {
            Kind::Embedded(server) => format!("{scheme}://{}", server.as_ref().unwrap().local_addr()),
            Kind::Etcd { endpoint, .. } => endpoint.clone(),
        }
    }

    /// Returns the TLS options of the plain etcd client.
    pub fn tls_options(&self) -> Option<etcd_client::TlsOptions> {
        self.certificates.as_ref().map(Certificates::etcd_client_options)
    }

    pub fn is_embedded(&self) -> bool {
        matches!(self.kind, Kind::Embedded(_))
    }

    /// The plain etcd client.
    pub async fn etcd_client(&self) -> etcd_client::Client {
        let options = self.tls_options().map(|tls| etcd_client::ConnectOptions::new().with_tls(tls));
        etcd_client::Client::connect([self.endpoint()], options).await.unwrap()
    }

    /// Our client.
    pub async fn client(&self) -> ClusterClient {
        ClusterClient::connect(&self.connect_options()).await.unwrap()
    }

    /// Stops the embedded server and starts it at the same address from the same directory.
    pub async fn restart_embedded(&mut self) {
        let Server { kind: Kind::Embedded(server), directory, .. } = self else {
            panic!("only the embedded server")
        };
        let old = server.take().unwrap();
        let address = old.local_addr();
        old.shutdown().await;
        *server = Some(EmbeddedServer::start(address, directory.path(), None).await.unwrap());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Kind::Etcd { child, .. } = &mut self.kind {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The command of an etcd member, with its log in its directory.
pub fn etcd_process(name: &str, directory: &Path, client: &str, peer: &str, members: &str) -> Command {
    assert!(Path::new(ETCD).exists(), "{ETCD} is missing: install etcd-server (apt install etcd-server)");
    let log = std::fs::File::create(directory.join("log")).unwrap();
    let mut command = Command::new(ETCD);
    command
        .args(["--name", name, "--data-dir"])
        .arg(directory.join("data"))
        .args(["--listen-client-urls", client, "--advertise-client-urls", client])
        .args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer])
        .args(["--initial-cluster", members])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    command
}

pub async fn start(directory: &Path) -> EmbeddedServer {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    EmbeddedServer::start(listener, directory, None).await.unwrap()
}

/// Returns a free port, which this process gives out once. It is below those that the kernel gives to sockets of
/// its choice, so none of them can take it before the server that it is meant for.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(20_000);
    loop {
        let port = NEXT.fetch_add(1, Ordering::Relaxed);
        assert!(port < 32_000, "no port is free");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
