//! Made-up names cost cluster state few look-ups by any door; new buckets are found at once.

use std::sync::Arc;

use crate::support::caller::{Caller, Request};
use crate::support::{POOL, Store, TestGateway, ask, serve, start};
use atoll_s3::{Gateway, GatewayConfig};

/// Requests by each door.
const REQUESTS: u32 = 300;
/// A budget, with the look-ups that are regained during the requests of all doors.
const LOOK_UPS_MAX: u64 = 250;

/// Another gateway of the same cluster.
async fn another(gateway: &TestGateway) -> Caller {
    let store = Arc::new(Store(gateway.client.clone()));
    let (directory, keys) = (gateway.directory.clone(), gateway.keys.clone());
    let mut config = GatewayConfig::new(POOL);
    config.collect_interval = None;
    let other = Gateway::new(config, store, directory, keys).unwrap();
    let (address, stop, _) = serve(&other).await;
    // It serves until the test is over.
    std::mem::forget(stop);
    Caller { address, user: gateway.users[0].clone() }
}

/// One request by each door with unknown names.
async fn knock(gateway: &TestGateway, number: u32) {
    let name = format!("made-up-{number}");
    let path = format!("/{name}/key");
    assert_eq!(ask(gateway, "GET", &path, &[]).await.0, 404);
    let preflight = [("origin", "https://a.example"), ("access-control-request-method", "GET")];
    assert_eq!(ask(gateway, "OPTIONS", &format!("/preflight-{name}"), &preflight).await.0, 403);
    let owner = [("x-amz-expected-bucket-owner", "100000000000")];
    assert_eq!(ask(gateway, "GET", &format!("/owner-{name}"), &owner).await.0, 404);
    let source = format!("/source-{name}/key");
    let copy = [("x-amz-copy-source", &source[..]), ("x-amz-source-expected-bucket-owner", "100000000000")];
    assert_eq!(ask(gateway, "PUT", &path, &copy).await.0, 404);
    let nobody = Caller { address: gateway.address, user: (format!("AKIA{number:016}"), "secret".into()) };
    nobody.expect(403, Request::new("GET", "bucket")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_are_made_up_cost_few_look_ups() {
    let gateway = start(|_| ()).await;
    let alice = Caller { address: gateway.address, user: gateway.users[0].clone() };
    alice.expect(200, Request::new("PUT", "bucket")).await;
    let before = gateway.directory.looked_up();
    for number in 0..REQUESTS {
        knock(&gateway, number).await;
    }
    let looked_up = gateway.directory.looked_up() - before;
    assert!(looked_up < LOOK_UPS_MAX, "{looked_up} look-ups for {REQUESTS} requests by each door");

    // What is made elsewhere is there at once, for everybody.
    let other = another(&gateway).await;
    assert_eq!(alice.ask(Request::new("GET", "late")).await.0, 404);
    other.expect(200, Request::new("PUT", "late")).await;
    alice.expect(200, Request::new("GET", "late")).await;
    other.expect(204, Request::new("DELETE", "late")).await;
    alice.expect(200, Request::new("PUT", "late")).await;
    alice.expect(200, Request::new("GET", "late")).await;
    alice.expect(200, Request::new("GET", "bucket")).await;
}
