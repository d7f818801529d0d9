//! Certificates that do not fit are named as such, and soon.

use std::time::Duration;

use atoll_cluster::{ClusterClient, ConnectOptions, TlsFiles};

use crate::certificates::Certificates;
use crate::servers::Server;

async fn refused(options: ConnectOptions) -> String {
    let refused = tokio::time::timeout(Duration::from_secs(4), ClusterClient::connect(&options)).await;
    refused.expect("it is refused soon").unwrap_err().to_string()
}

async fn wrong_trust(server: &Server) {
    let with = |tls: TlsFiles| ConnectOptions::new([server.endpoint()]).with_tls(tls);
    let right = server.certificates().client_files();
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Certificates::new(elsewhere.path());
    let cases = [
        (TlsFiles::default(), "--etcd-ca"),
        (TlsFiles { ca: Some(other.path("ca.pem")), ..right.clone() }, "another authority"),
        (TlsFiles { ca: Some(other.path("none.pem")), ..right.clone() }, "none.pem"),
        (TlsFiles { ca: Some(other.path("server.key")), ..right.clone() }, "no PEM CERTIFICATE"),
        (TlsFiles { key: None, ..right.clone() }, "needs its key"),
        (TlsFiles { server_name: Some("elsewhere".into()), ..right.clone() }, "another name"),
    ];
    for (tls, words) in cases {
        let error = refused(with(tls)).await;
        assert!(error.contains(words) && error.contains(&server.endpoint()), "{words}: {error}");
    }
    let mut plain = ConnectOptions::new([server.endpoint().replace("https", "http")]);
    plain.request_timeout = Duration::from_secs(1);
    let error = refused(plain.clone()).await;
    assert!(error.contains("does it want https"), "{error}");
    let error = refused(plain.with_tls(right)).await;
    assert!(error.contains("for https endpoints only"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_server_must_be_trusted() {
    wrong_trust(&Server::embedded_with_tls().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_must_be_trusted_and_must_trust() {
    let server = Server::etcd_with_tls().await;
    wrong_trust(&server).await;
    let right = server.certificates().client_files();
    let elsewhere = tempfile::tempdir().unwrap();
    let other = Certificates::new(elsewhere.path());
    let nobody = TlsFiles { certificate: None, key: None, ..right.clone() };
    let stranger =
        TlsFiles { certificate: Some(other.path("client.pem")), key: Some(other.path("client.key")), ..right };
    for tls in [nobody, stranger] {
        let mut options = ConnectOptions::new([server.endpoint()]).with_tls(tls);
        options.request_timeout = Duration::from_secs(1);
        let error = refused(options).await;
        assert!(error.contains("--etcd-cert"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_to_a_plain_server_is_named() {
    let server = Server::embedded().await;
    let elsewhere = tempfile::tempdir().unwrap();
    let tls = Certificates::new(elsewhere.path()).client_files();
    let options = ConnectOptions::new([server.endpoint().replace("http", "https")]).with_tls(tls);
    let error = refused(options).await;
    assert!(error.contains("does it want http,"), "{error}");
}
