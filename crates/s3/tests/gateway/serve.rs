//! A gateway for trying clients by hand.

use atoll_keys::KeyService;

use crate::support::{start_with_tls, tls_settings, write_pair};

/// Serves over TLS; `/tmp/s3-gateway` has the address, and the users with their secrets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "serves until it is killed"]
async fn serve_until_killed() {
    let directory = tempfile::tempdir().unwrap();
    write_pair(directory.path(), "server", &["127.0.0.1"]);
    let settings = tls_settings(directory.path());
    let gateway = start_with_tls(settings, |config| config.garbage_grace = std::time::Duration::ZERO).await;
    for name in ["testkey-1", "testkey-2"] {
        gateway.keys.create(name).await.unwrap();
    }
    let text: String = gateway.users.iter().map(|(key, secret)| format!("{key} {secret}\n")).collect();
    std::fs::write("/tmp/s3-gateway", format!("https://{}\n{text}", gateway.address)).unwrap();
    std::future::pending::<()>().await;
}
