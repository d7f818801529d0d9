//! Decisions about a request when a bucket has just changed.

use atoll_s3::BucketDirectory;
use atoll_types::access::{Acl, BucketAccess, ObjectOwnership};
use atoll_types::records::{BucketRecord, PublicAccessBlock};

use crate::support::{TestGateway, ask, start, step};

/// Changes the bucket as another gateway would.
async fn change(gateway: &TestGateway, change: impl FnOnce(&mut BucketRecord)) {
    let old = gateway.directory.bucket("bucket").await.unwrap().unwrap();
    let mut new = old.clone();
    change(&mut new);
    new.settle_format();
    assert!(gateway.directory.update_bucket(&old, &new).await.unwrap());
}

async fn acl(gateway: &TestGateway) -> Option<Acl> {
    gateway.directory.bucket("bucket").await.unwrap().unwrap().access.unwrap().acl
}

#[tokio::test(flavor = "multi_thread")]
async fn a_public_acl_set_beside_a_block_of_public_acls_is_refused() {
    let gateway = start(|_| {}).await;
    step(&gateway, "faults", &["create_bucket"]).await;
    change(&gateway, |record| {
        let allowed = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":"*",
            "Action":["s3:PutBucketAcl","s3:ListBucket"],"Resource":"arn:aws:s3:::bucket"}]}"#;
        record.access = Some(BucketAccess {
            ownership: ObjectOwnership::ObjectWriter,
            policy: Some(allowed.into()),
            ..BucketAccess::default()
        });
    })
    .await;
    let url = format!("http://{}/bucket", gateway.address);
    let put = async |acl| ask(&gateway, "PUT", &format!("{url}?acl"), &[("x-amz-acl", acl)]).await.0;
    assert_eq!(put("private").await, 200);
    // The gateway has the bucket in its cache when another gateway changes it.
    assert_eq!(ask(&gateway, "GET", &url, &[]).await.0, 200);
    change(&gateway, |record| {
        record.public_access_block = Some(PublicAccessBlock { block_public_acls: true, ..Default::default() });
    })
    .await;
    assert_eq!(put("public-read").await, 403);
    assert_eq!(acl(&gateway).await, None);
}
