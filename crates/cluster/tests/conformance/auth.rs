//! Users and passwords.

use atoll_cluster::{ClusterClient, ClusterError, ConnectOptions, EmbeddedServer};
use tonic::Code;

use crate::keys::code;
use crate::servers::Server;

async fn only_with_credentials(endpoint: String) {
    let with = |user: &str, password: &str| ConnectOptions::new([endpoint.clone()]).with_user(user, password);
    let client = ClusterClient::connect(&with("root", "secret")).await.unwrap();
    client.put("/a", &1).await.unwrap();
    assert_eq!(client.get::<u8>("/a").await.unwrap().unwrap().0, 1);
    let lease = client.grant_lease(std::time::Duration::from_secs(5)).await.unwrap();
    lease.revoke().await.unwrap();
    for (user, password) in [("root", "wrong"), ("root", ""), ("other", "secret")] {
        let error = ClusterClient::connect(&with(user, password)).await.unwrap_err();
        assert!(matches!(error, ClusterError::Authentication { .. }), "{error:?}");
    }
    let error = ClusterClient::connect(&ConnectOptions::new([endpoint.clone()])).await.unwrap_err();
    assert!(matches!(error, ClusterError::Authentication { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_wants_credentials() {
    let server = Server::etcd().await;
    let mut admin = server.etcd_client().await;
    admin.user_add("root", "secret", None).await.unwrap();
    admin.user_grant_role("root", "root").await.unwrap();
    admin.auth_enable().await.unwrap();
    only_with_credentials(server.endpoint()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_embedded_server_wants_credentials() {
    let directory = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let credentials = Some(("root".to_owned(), "secret".to_owned()));
    let server = EmbeddedServer::start(listener, directory.path(), credentials).await.unwrap();
    let endpoint = format!("http://{}", server.local_addr());
    only_with_credentials(endpoint.clone()).await;

    let mut nobody = etcd_client::Client::connect([&endpoint], None).await.unwrap();
    assert_eq!(code(nobody.get("/a", None).await).0, Code::Unauthenticated);
    assert_eq!(code(nobody.put("/a", "", None).await).0, Code::Unauthenticated);
    assert_eq!(code(nobody.delete("/a", None).await).0, Code::Unauthenticated);
    assert_eq!(code(nobody.lease_grant(9, None).await).0, Code::Unauthenticated);
    assert_eq!(code(nobody.status().await).0, Code::Unauthenticated);
    assert_eq!(code(nobody.member_list().await).0, Code::Unauthenticated);
    assert_eq!(code(nobody.watch("/a", None).await).0, Code::Unauthenticated);
    assert!(nobody.lease_keep_alive(1).await.is_err());
    server.shutdown().await;
}

#[tokio::test]
async fn a_server_without_users_gives_no_tokens() {
    let server = Server::embedded().await;
    let options = etcd_client::ConnectOptions::new().with_user("root", "secret");
    let refused = etcd_client::Client::connect([server.endpoint()], Some(options)).await.map(drop);
    let reason = "etcdserver: authentication is not enabled".to_owned();
    assert_eq!(code(refused), (Code::FailedPrecondition, reason));
}
