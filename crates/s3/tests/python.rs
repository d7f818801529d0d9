//! The gateway through HTTP with a real S3 client: boto3.

mod support;

use support::{python, require_boto3, start};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn boto3_conformance() {
    require_boto3().await;
    let gateway = start(|config| config.garbage_grace = std::time::Duration::ZERO).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/s3_conformance.py");
    let said = python(&gateway, &[script]).await;
    assert!(said.contains(" passed, 0 failed"), "the script did not come to its end");

    // All buckets were deleted, and with them everything they held.
    let left = gateway.client.names("");
    assert!(left.is_empty(), "objects stay behind: {left:?}");
}
