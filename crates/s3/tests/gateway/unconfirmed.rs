//! Identities that cluster state does not confirm count for a while, and the health of the gateway says so.

use std::time::Duration;

use crate::support::caller::{Caller, Request};
use crate::support::start;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn health(address: std::net::SocketAddr) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(b"GET /-/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unconfirmed_identities_count_for_their_lifetime_only() {
    let gateway = start(|config| config.identity_lifetime = Duration::from_secs(30)).await;
    let caller = Caller { address: gateway.address, user: gateway.users[0].clone() };
    caller.expect(200, Request::new("PUT", "bucket")).await;
    assert!(health(gateway.address).await.ends_with("\r\nok\n"));

    gateway.directory.set_unconfirmed_for(Duration::from_secs(29));
    caller.expect(200, Request::new("PUT", "bucket/key").body("x")).await;
    let told = health(gateway.address).await;
    assert!(told.starts_with("HTTP/1.1 200") && told.contains("not confirmed identities for 29 s"), "{told}");

    gateway.directory.set_unconfirmed_for(Duration::from_secs(31));
    for (method, path) in [("GET", "bucket/key"), ("PUT", "bucket/key"), ("GET", ""), ("DELETE", "bucket/key")] {
        caller.expect(503, Request::new(method, path)).await;
    }
    let told = health(gateway.address).await;
    assert!(told.starts_with("HTTP/1.1 503") && told.contains("has not confirmed rights for 31 s"), "{told}");

    gateway.directory.set_unconfirmed_for(Duration::ZERO);
    caller.expect(200, Request::new("GET", "bucket/key")).await;
}
