//! Credentials with which an operator looks into a bucket, whichever account owns it.

use std::time::Duration;

use atoll_cluster::{ClusterClient, keys};
use atoll_coordinator::unix_ms;
use atoll_credentials::Credentials;
use atoll_iam::{Session, SessionPrincipal};
use atoll_identities::IdentityStore;
use atoll_keys::KeyService;
use atoll_types::records::BucketRecord;

use crate::error::AdminError;
use crate::sts_key::sts_key;

/// Credentials of the account that owns a bucket, which end soon, and may list that bucket and do nothing else. Gateways
/// may take a moment to know them if they are the first temporary credentials of the cluster.
pub async fn listing_credentials(
    state: &ClusterClient,
    service: &dyn KeyService,
    bucket: &str,
    lifetime: Duration,
) -> Result<Credentials, AdminError> {
    let found = state.get::<BucketRecord>(&keys::bucket(bucket)).await?;
    let (record, _) = found.ok_or_else(|| AdminError::NoSuchBucket(bucket.to_owned()))?;
    let store = IdentityStore::new(state.clone());
    let identities = store.current().await?;
    let Some(account) = identities.account_by_canonical_id(&record.owner) else {
        return AdminError::refused(format!("the account that owns bucket '{bucket}' is gone"));
    };
    let now_ms = unix_ms();
    let session = listing_session(&account.id, bucket, now_ms, now_ms + lifetime.as_millis() as u64);
    Ok(Credentials::new(&sts_key(&store, &identities, service).await?, session))
}

fn listing_session(account: &str, bucket: &str, issued_unix_ms: u64, expires_unix_ms: u64) -> Session {
    Session {
        // Who seals it gives it one.
        access_key: String::new(),
        account: account.to_owned(),
        principal: SessionPrincipal::Root,
        policies: vec![listing_policy(bucket)],
        policy_arns: Vec::new(),
        key_policy: None,
        issued_unix_ms,
        expires_unix_ms,
    }
}

fn listing_policy(bucket: &str) -> String {
    // A name of a bucket has no letter that is special in a policy or in JSON.
    format!(
        r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"Allow","Action":"s3:ListBucket","Resource":"arn:aws:s3:::{bucket}"}}]}}"#
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use atoll_iam::{Identities, Question, Record, ResourceSide, decide};
    use atoll_types::identities::AccountRecord;
    use atoll_types::records::RECORD_FORMAT;

    use super::*;
    use crate::identities::GivenConditions;

    #[test]
    fn credentials_may_list_one_bucket_and_do_nothing_else() {
        let account = AccountRecord {
            format: RECORD_FORMAT,
            id: "200000000000".into(),
            canonical_id: "owner".into(),
            name: "other".into(),
            email: None,
            created_unix_ms: 1,
        };
        let identities = Identities::from_records([Record::Account(account)]);
        let caller = identities.session_caller(&listing_session("200000000000", "photos", 0, 5)).unwrap();
        let may = |action: &str, resource: &str| {
            let side = ResourceSide {
                bucket_owner: "owner",
                object_owner: None,
                policy: None,
                acl: None,
                public_access_block: Default::default(),
            };
            let conditions = GivenConditions(BTreeMap::new());
            let resource_side = resource.starts_with("arn:aws:s3").then_some(side);
            decide(&Question { caller: Some(&caller), action, resource, resource_side, conditions: &conditions })
                .is_allowed
        };
        assert!(may("s3:ListBucket", "arn:aws:s3:::photos"));
        for (action, resource) in [
            ("s3:ListBucket", "arn:aws:s3:::photos2"),
            ("s3:ListBucketVersions", "arn:aws:s3:::photos"),
            ("s3:GetBucketPolicy", "arn:aws:s3:::photos"),
            ("s3:GetObject", "arn:aws:s3:::photos/a"),
            ("s3:PutObject", "arn:aws:s3:::photos/a"),
            ("s3:DeleteObject", "arn:aws:s3:::photos/a"),
            ("s3:DeleteBucket", "arn:aws:s3:::photos"),
            ("s3:ListAllMyBuckets", "*"),
            ("iam:CreateAccessKey", "*"),
            ("sts:AssumeRole", "arn:aws:iam::200000000000:role/r"),
        ] {
            assert!(!may(action, resource), "{action} {resource}");
        }
    }
}
