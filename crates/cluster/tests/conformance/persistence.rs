//! Acknowledged changes are there after the server is killed without warning.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use etcd_client::{Client, GetOptions, LeaseGrantOptions, PutOptions};

use crate::servers::start;

const DIRECTORY: &str = "ATOLL_CONFORMANCE_DIRECTORY";

/// Not a test: the server process that the test below kills. The binary of the tests is the only program that has
/// their server, and its harness runs nothing but tests. Without `ignore` it would count as one that always passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by another test in a process of its own"]
async fn server_process() {
    let directory = std::env::var(DIRECTORY).expect("acknowledged_writes_survive_a_kill starts it, nobody else");
    let server = start(&Path::new(&directory).join("data")).await;
    let address = Path::new(&directory).join("address");
    std::fs::write(address.with_extension("new"), server.local_addr().to_string()).unwrap();
    std::fs::rename(address.with_extension("new"), address).unwrap();
    std::future::pending::<()>().await;
}

struct Process(std::process::Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn spawn(directory: &Path) -> (Process, Client) {
    let address = directory.join("address");
    let _ = std::fs::remove_file(&address);
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "persistence::server_process", "--ignored"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let process = Process(child);
    for _ in 0..200 {
        if let Ok(address) = std::fs::read_to_string(&address) {
            return (process, Client::connect([format!("http://{address}")], None).await.unwrap());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the server process does not start");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_a_kill() {
    let directory = tempfile::tempdir().unwrap();
    let mut written = std::collections::BTreeMap::new();
    let mut newest = 1;
    let mut cluster = None;
    for round in 0..3 {
        let (process, mut client) = spawn(directory.path()).await;
        let all = client.get("k", Some(GetOptions::new().with_prefix())).await.unwrap();
        let header = all.header().unwrap();
        assert!(header.revision() >= newest, "revisions never go back");
        assert_eq!(*cluster.get_or_insert(header.cluster_id()), header.cluster_id());
        let found: std::collections::BTreeMap<_, _> =
            all.kvs().iter().map(|entry| (entry.key_str().unwrap().to_owned(), entry.mod_revision())).collect();
        for (key, revision) in &written {
            assert_eq!(found.get(key), Some(revision), "{key}");
        }
        if round == 0 {
            let id = client.lease_grant(3600, Some(LeaseGrantOptions::new().with_id(9))).await.unwrap().id();
            client.put("leased", "", Some(PutOptions::new().with_lease(id))).await.unwrap();
        } else {
            assert!(client.lease_time_to_live(9, None).await.unwrap().ttl() > 3500);
            assert_eq!(client.get("leased", None).await.unwrap().kvs()[0].lease(), 9);
        }
        let (first, mut firsts) = tokio::sync::mpsc::channel(4);
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let (mut client, first) = (client.clone(), first.clone());
                tokio::spawn(async move {
                    let mut acknowledged = Vec::new();
                    for index in 0.. {
                        let key = format!("k{round}-{writer}-{index}");
                        match client.put(key.as_str(), "v", None).await {
                            Ok(response) => {
                                acknowledged.push((key, response.header().unwrap().revision()));
                                if index == 0 {
                                    first.try_send(()).expect("there is room for each writer's");
                                }
                            }
                            Err(_) => break,
                        }
                    }
                    acknowledged
                })
            })
            .collect();
        drop(first);
        for _ in 0..4 {
            firsts.recv().await.expect("each writer writes");
        }
        tokio::time::sleep(Duration::from_millis(400)).await;
        drop(process);
        for writer in writers {
            let acknowledged = writer.await.unwrap();
            assert!(!acknowledged.is_empty());
            newest = newest.max(acknowledged.last().unwrap().1);
            written.extend(acknowledged);
        }
    }
}

#[tokio::test]
async fn a_directory_in_use_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let server = start(directory.path()).await;
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let error = atoll_cluster::EmbeddedServer::start(listener, directory.path(), None).await.unwrap_err();
    assert!(error.to_string().contains("in use"), "{error}");
    server.shutdown().await;
    start(directory.path()).await.shutdown().await;
}
