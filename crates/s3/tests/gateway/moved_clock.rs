//! A gateway whose clock is ahead of the cluster's does not let retention lapse by it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::caller::{Caller, Request};
use crate::support::start;

fn unix_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retention_does_not_lapse_by_a_clock_that_is_ahead() {
    let gateway = start(|_| ()).await;
    let caller = Caller { address: gateway.address, user: gateway.users[0].clone() };
    let locked = |request: Request| request.header("x-amz-bucket-object-lock-enabled", "true");
    caller.expect(200, locked(Request::new("PUT", "bucket"))).await;
    let until_unix_ms = unix_ms() + 2_000;
    let until = format!("{:.3}", jiff::Timestamp::from_millisecond(until_unix_ms as i64).unwrap());
    let put = Request::new("PUT", "bucket/key").body("kept");
    let put =
        put.header("x-amz-object-lock-mode", "COMPLIANCE").header("x-amz-object-lock-retain-until-date", &until);
    caller.expect(200, put).await;
    let listed = caller.expect(200, Request::new("GET", "bucket").query("versions", "")).await;
    let version = crate::support::caller::element(&listed, "VersionId");
    let delete = || Request::new("DELETE", "bucket/key").query("versionId", &version);
    caller.expect(403, delete()).await;
    tokio::time::sleep(Duration::from_secs(3)).await;

    // By the gateway's clock it is over, by the cluster's it is not for an hour.
    gateway.directory.set_cluster_unix_ms(Some(until_unix_ms - 3_600_000));
    caller.expect(403, delete()).await;
    let document =
        "<Retention><Mode>GOVERNANCE</Mode><RetainUntilDate>2100-01-01T00:00:00Z</RetainUntilDate></Retention>";
    let weaker =
        Request::new("PUT", "bucket/key").query("retention", "").query("versionId", &version).body(document);
    caller.expect(403, weaker).await;
    // As clocks differ.
    gateway.directory.set_cluster_unix_ms(Some(unix_ms() - 30_000));
    caller.expect(204, delete()).await;
}
