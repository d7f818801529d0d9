//! A gateway whose clock is ahead of the cluster's does not let retention lapse by it, and one whose clock is behind
//! makes no retention shorter, and no session longer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_credentials::{Credentials, STS_KEY_CONTEXT};
use atoll_iam::{Record, Session, SessionPrincipal};
use atoll_keys::{KeyService, SecretKey};
use atoll_types::identities::StsKeyRecord;
use atoll_types::records::RECORD_FORMAT;

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_retention_is_not_shortened_by_a_clock_that_is_behind() {
    const DAY_MS: u64 = 24 * 60 * 60 * 1_000;
    let gateway = start(|_| ()).await;
    let caller = Caller { address: gateway.address, user: gateway.users[0].clone() };
    caller.expect(200, Request::new("PUT", "bucket").header("x-amz-bucket-object-lock-enabled", "true")).await;
    let document = "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention>\
                    <Mode>COMPLIANCE</Mode><Days>1</Days></DefaultRetention></Rule></ObjectLockConfiguration>";
    caller.expect(200, Request::new("PUT", "bucket").query("object-lock", "").body(document)).await;
    // By the cluster's clock it is a year later.
    let cluster_unix_ms = unix_ms() + 365 * DAY_MS;
    gateway.directory.set_cluster_unix_ms(Some(cluster_unix_ms));
    caller.expect(200, Request::new("PUT", "bucket/key").body("kept")).await;
    let retention = caller.expect(200, Request::new("GET", "bucket/key").query("retention", "")).await;
    let until: jiff::Timestamp = crate::support::caller::element(&retention, "RetainUntilDate").parse().unwrap();
    let least_unix_ms = cluster_unix_ms + DAY_MS;
    assert!(until.as_millisecond() as u64 >= least_unix_ms, "{until}: other gateways would let it lapse at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn temporary_credentials_do_not_last_longer_by_a_clock_that_is_behind() {
    let gateway = start(|_| ()).await;
    let owner = Caller { address: gateway.address, user: gateway.users[1].clone() };
    owner.expect(200, Request::new("PUT", "bucket")).await;
    let key = SecretKey::random();
    let wrapped_key = gateway.keys.wrap(STS_KEY_CONTEXT, &key).await.unwrap();
    let record = StsKeyRecord { format: RECORD_FORMAT, wrapped_key, made_unix_ms: None, previous: None };
    gateway.directory.add_identity(Record::StsKey(record));
    let session = Session {
        access_key: String::new(),
        account: "200000000000".into(),
        principal: SessionPrincipal::Root,
        policies: Vec::new(),
        policy_arns: Vec::new(),
        key_policy: None,
        issued_unix_ms: unix_ms(),
        expires_unix_ms: unix_ms() + 3_600_000,
    };
    let Credentials { access_key, secret, session_token, .. } = Credentials::new(&key, session);
    let caller = Caller { address: gateway.address, user: (access_key, secret) };
    let list = || Request::new("GET", "bucket").query("X-Amz-Security-Token", &session_token);
    for cluster_unix_ms in [None, Some(unix_ms()), Some(0)] {
        gateway.directory.set_cluster_unix_ms(cluster_unix_ms);
        caller.expect(200, list()).await;
    }
    gateway.directory.set_cluster_unix_ms(Some(unix_ms() + 3_600_001));
    let answer = caller.expect(400, list()).await;
    assert_eq!(crate::support::caller::element(&answer, "Code"), "ExpiredToken");
}
