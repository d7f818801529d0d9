//! The two servers under test: ours, in this process, and a real etcd in a process of its own.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use atoll_cluster::{ClusterClient, ConnectOptions, EmbeddedServer};
use tempfile::TempDir;

pub const ETCD: &str = "/usr/bin/etcd";
pub const ETCDCTL: &str = "/usr/bin/etcdctl";

/// A running server with a directory of its own.
pub enum Server {
    Embedded { server: Option<EmbeddedServer>, directory: TempDir },
    Etcd { child: Child, endpoint: String, _directory: TempDir },
}

impl Server {
    pub async fn embedded() -> Server {
        let directory = tempfile::tempdir().unwrap();
        let server = start(directory.path()).await;
        Server::Embedded { server: Some(server), directory }
    }

    pub async fn etcd() -> Server {
        assert!(Path::new(ETCD).exists(), "{ETCD} is missing: install etcd-server (apt install etcd-server)");
        let directory = tempfile::tempdir().unwrap();
        let (client, peer) = (free_port(), free_port());
        let endpoint = format!("http://127.0.0.1:{client}");
        let peer = format!("http://127.0.0.1:{peer}");
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let child = Command::new(ETCD)
            .args(["--name", "conformance", "--data-dir"])
            .arg(directory.path().join("data"))
            .args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("conformance={peer}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap();
        let server = Server::Etcd { child, endpoint, _directory: directory };
        let begun = Instant::now();
        loop {
            if let Ok(mut client) = etcd_client::Client::connect([server.endpoint()], None).await
                && let Ok(Ok(_)) = tokio::time::timeout(Duration::from_secs(1), client.get("x", None)).await
            {
                return server;
            }
            assert!(begun.elapsed() < Duration::from_secs(15), "etcd does not answer");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub fn endpoint(&self) -> String {
        match self {
            Server::Embedded { server, .. } => format!("http://{}", server.as_ref().unwrap().local_addr()),
            Server::Etcd { endpoint, .. } => endpoint.clone(),
        }
    }

    /// The plain etcd client.
    pub async fn etcd_client(&self) -> etcd_client::Client {
        etcd_client::Client::connect([self.endpoint()], None).await.unwrap()
    }

    /// Our client.
    pub async fn client(&self) -> ClusterClient {
        ClusterClient::connect(&ConnectOptions::new([self.endpoint()])).await.unwrap()
    }

    /// Stops the embedded server and starts it at the same address from the same directory.
    pub async fn restart_embedded(&mut self) {
        let Server::Embedded { server, directory } = self else { panic!("only the embedded server") };
        let old = server.take().unwrap();
        let address = old.local_addr();
        old.shutdown().await;
        *server = Some(EmbeddedServer::start(address, directory.path(), None).await.unwrap());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Server::Etcd { child, .. } = self {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub async fn start(directory: &Path) -> EmbeddedServer {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    EmbeddedServer::start(listener, directory, None).await.unwrap()
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
