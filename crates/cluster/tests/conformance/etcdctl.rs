//! Debian's `etcdctl` against the embedded server.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use atoll_cluster::{EmbeddedServer, verify_snapshot};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use crate::servers::{ETCDCTL, Server};

fn command(endpoint: &str, arguments: &[&str]) -> Command {
    assert!(Path::new(ETCDCTL).exists(), "{ETCDCTL} is missing: install etcd-client (apt install etcd-client)");
    // With a scheme, etcdctl 3.4 sends some requests with an invalid `:authority`, which Go's HTTP/2
    // accepts and ours does not.
    let endpoint = endpoint.trim_start_matches("http://");
    let mut command = Command::new(ETCDCTL);
    command.env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", endpoint).args(arguments).kill_on_drop(true);
    command
}

async fn run(endpoint: &str, arguments: &[&str]) -> String {
    let output = command(endpoint, arguments).output().await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "etcdctl {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_works() {
    let server = Server::embedded().await;
    let endpoint = server.endpoint();
    assert_eq!(run(&endpoint, &["put", "a/1", "one"]).await, "OK\n");
    assert_eq!(run(&endpoint, &["put", "a/2", "two"]).await, "OK\n");
    assert_eq!(run(&endpoint, &["put", "--prev-kv", "a/2", "zwei"]).await, "OK\na/2\ntwo\n");
    assert_eq!(run(&endpoint, &["get", "--prefix", "a/"]).await, "a/1\none\na/2\nzwei\n");
    let descending = ["get", "--prefix", "--keys-only", "--order=DESCEND", "--sort-by=KEY", "a/"];
    assert_eq!(run(&endpoint, &descending).await, "a/2\n\na/1\n\n");
    assert!(run(&endpoint, &["get", "-w", "json", "a/1"]).await.contains("\"mod_revision\":2"));

    let mut watch = command(&endpoint, &["watch", "--rev=2", "--prefix", "a/"])
        .stdout(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    for expected in ["PUT", "a/1", "one", "PUT", "a/2", "two", "PUT", "a/2", "zwei"] {
        assert_eq!(lines.next_line().await.unwrap().unwrap(), expected);
    }
    assert_eq!(run(&endpoint, &["del", "a/1"]).await, "1\n");
    assert_eq!(lines.next_line().await.unwrap().unwrap(), "DELETE");
    watch.kill().await.unwrap();

    let mut txn = command(&endpoint, &["txn"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let script = b"value(\"a/2\") = \"zwei\"\n\nput a/3 three\nget a/3\n\nget a/2\n\n";
    txn.stdin.take().unwrap().write_all(script).await.unwrap();
    let output = txn.wait_with_output().await.unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "SUCCESS\n\nOK\n\na/3\nthree\n");

    let granted = run(&endpoint, &["lease", "grant", "60"]).await;
    let id = granted.split_whitespace().nth(1).unwrap().to_owned();
    assert_eq!(run(&endpoint, &["put", &format!("--lease={id}"), "l", "leased"]).await, "OK\n");
    assert!(run(&endpoint, &["lease", "keep-alive", "--once", &id]).await.contains("keepalived with TTL(60)"));
    assert!(run(&endpoint, &["lease", "timetolive", "--keys", &id]).await.contains("attached keys([l])"));
    assert!(run(&endpoint, &["lease", "list"]).await.contains(&id));
    assert!(run(&endpoint, &["lease", "revoke", &id]).await.contains("revoked"));
    assert_eq!(run(&endpoint, &["get", "l"]).await, "");

    assert!(run(&endpoint, &["member", "list"]).await.contains("embedded"));
    assert!(run(&endpoint, &["endpoint", "status"]).await.contains("3.4"));
    run(&endpoint, &["endpoint", "health"]).await;
    assert!(run(&endpoint, &["compaction", "3"]).await.contains("compacted revision 3"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_brings_credentials() {
    let directory = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let credentials = Some(("root".to_owned(), "secret".to_owned()));
    let server = EmbeddedServer::start(listener, directory.path(), credentials).await.unwrap();
    let endpoint = format!("http://{}", server.local_addr());
    assert_eq!(run(&endpoint, &["--user=root:secret", "put", "a", "1"]).await, "OK\n");
    let refused = command(&endpoint, &["--user=root:wrong", "get", "a"]).output().await.unwrap();
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("authentication failed"));
    let nobody = command(&endpoint, &["get", "a"]).output().await.unwrap();
    assert!(!nobody.status.success());
    server.shutdown().await;
}

/// Debian's etcdctl checks the digest; its snapshot is served again, with all keys, leases and revisions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_saves_a_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = EmbeddedServer::start(listener, directory.path(), None).await.unwrap();
    let endpoint = format!("http://{}", server.local_addr());
    for number in 0..30 {
        run(&endpoint, &["put", &format!("key-{number:03}"), &"v".repeat(number * 100)]).await;
    }
    let granted = run(&endpoint, &["lease", "grant", "600"]).await;
    let id = granted.split_whitespace().nth(1).unwrap().to_owned();
    run(&endpoint, &["put", &format!("--lease={id}"), "leased", "1"]).await;
    let all = run(&endpoint, &["get", "", "--from-key", "--write-out=json"]).await;
    let saved = directory.path().join("saved");
    run(&endpoint, &["snapshot", "save", saved.to_str().unwrap()]).await;
    // What comes afterwards is not in it.
    run(&endpoint, &["put", "later", "1"]).await;
    server.shutdown().await;
    assert!(!directory.path().join("state.snapshot").exists());

    let state_bytes = verify_snapshot(&saved).unwrap().expect("it is whole");
    let restored = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(&saved).unwrap();
    std::fs::write(restored.path().join("state.redb"), &bytes[..state_bytes as usize]).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = EmbeddedServer::start(listener, restored.path(), None).await.unwrap();
    let endpoint = format!("http://{}", server.local_addr());
    assert_eq!(run(&endpoint, &["get", "", "--from-key", "--write-out=json"]).await, all);
    assert!(run(&endpoint, &["lease", "timetolive", "--keys", &id]).await.contains("attached keys([leased])"));
    server.shutdown().await;

    // Who watches from what it has seen of the state that was lost is told so, and reads all anew.
    EmbeddedServer::pass_over_revisions(restored.path(), 1_000).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = EmbeddedServer::start(listener, restored.path(), None).await.unwrap();
    let endpoint = format!("http://{}", server.local_addr());
    let watch = command(&endpoint, &["watch", "--rev=100", "leased"]).output();
    let watch = tokio::time::timeout(Duration::from_secs(20), watch).await.expect("it ends").unwrap();
    assert!(String::from_utf8_lossy(&watch.stderr).contains("required revision has been compacted"), "{watch:?}");
    assert_eq!(run(&endpoint, &["get", "leased", "--print-value-only"]).await, "1\n");
    assert_eq!(run(&endpoint, &["put", "next", "1"]).await, "OK\n");
    server.shutdown().await;

    let mut damaged = bytes.clone();
    damaged[5000] ^= 1;
    for wrong in [&damaged[..], &bytes[..bytes.len() - 512], &bytes[..10], b""] {
        std::fs::write(&saved, wrong).unwrap();
        assert_eq!(verify_snapshot(&saved).unwrap(), None);
    }
}
