//! The few policies of AWS that can be attached by their ARNs without being made first.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use super::compiled::compiled;
use crate::policy::Policy;
use crate::policy_kind::PolicyKind;

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct AwsManagedPolicy {
    /// Its name, which ends its ARN.
    pub name: &'static str,
    /// As AWS gives it out.
    pub id: &'static str,
    /// For people.
    pub description: &'static str,
    /// JSON.
    pub document: &'static str,
}

impl AwsManagedPolicy {
    /// Its ARN.
    pub fn arn(&self) -> String {
        format!("{ARN_PREFIX}{}", self.name)
    }
}

const ARN_PREFIX: &str = "arn:aws:iam::aws:policy/";

/// All of them, by name.
pub const AWS_MANAGED_POLICIES: &[AwsManagedPolicy] = &[
    AwsManagedPolicy {
        name: "AdministratorAccess",
        id: "ANPAIWMBCKSKIEE64ZLYK",
        description: "Provides full access to AWS services and resources.",
        document: r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}"#,
    },
    AwsManagedPolicy {
        name: "AmazonS3FullAccess",
        id: "ANPAIFIR6V6BVTRAHWINE",
        description: "Provides full access to all buckets via the AWS Management Console.",
        document: r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:*","s3-object-lambda:*"],"Resource":"*"}]}"#,
    },
    AwsManagedPolicy {
        name: "AmazonS3ReadOnlyAccess",
        id: "ANPAIZTJ4DXE7G6AGAE6M",
        description: "Provides read only access to all buckets via the AWS Management Console.",
        document: r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:Get*","s3:List*","s3:Describe*","s3-object-lambda:Get*","s3-object-lambda:List*"],"Resource":"*"}]}"#,
    },
    AwsManagedPolicy {
        name: "IAMFullAccess",
        id: "ANPAI7XKCFMBPM3QQRRVQ",
        description: "Provides full access to IAM via the AWS Management Console.",
        document: r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["iam:*"],"Resource":"*"}]}"#,
    },
    AwsManagedPolicy {
        name: "IAMReadOnlyAccess",
        id: "ANPAJKSO7NDY4T57MWDSQ",
        description: "Provides read only access to IAM via the AWS Management Console.",
        document: r#"{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["iam:GenerateCredentialReport","iam:GenerateServiceLastAccessedDetails","iam:Get*","iam:List*","iam:SimulateCustomPolicy","iam:SimulatePrincipalPolicy"],"Resource":"*"}]}"#,
    },
];

static COMPILED: LazyLock<BTreeMap<&'static str, Arc<Policy>>> = LazyLock::new(|| {
    let all = AWS_MANAGED_POLICIES.iter();
    all.map(|policy| (policy.name, compiled(policy.document, PolicyKind::Identity))).collect()
});

/// The policy with this ARN.
pub fn aws_managed_policy(arn: &str) -> Option<&'static AwsManagedPolicy> {
    let name = arn.strip_prefix(ARN_PREFIX)?;
    AWS_MANAGED_POLICIES.iter().find(|policy| policy.name == name)
}

/// The same, compiled.
pub(crate) fn compiled_aws_managed(arn: &str) -> Option<Arc<Policy>> {
    COMPILED.get(arn.strip_prefix(ARN_PREFIX)?).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_them_parse() {
        for policy in AWS_MANAGED_POLICIES {
            assert!(Policy::parse(policy.document, PolicyKind::Identity).is_ok(), "{}", policy.name);
            assert!(compiled_aws_managed(&policy.arn()).is_some());
        }
        assert!(aws_managed_policy("arn:aws:iam::aws:policy/Other").is_none());
    }
}
