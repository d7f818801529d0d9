//! Stored documents as policies.

use std::sync::{Arc, LazyLock};

use crate::policy::Policy;
use crate::policy_kind::PolicyKind;

/// A policy that denies everything.
pub(super) static DENY_ALL: LazyLock<Arc<Policy>> = LazyLock::new(|| {
    let document = r#"{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Action":"*","Resource":"*"}]}"#;
    Arc::new(Policy::parse(document, PolicyKind::Identity).expect("a policy that denies everything parses"))
});

/// A policy, or one that denies everything if the document does not parse.
pub(crate) fn compiled(document: &str, kind: PolicyKind) -> Arc<Policy> {
    match Policy::parse(document, kind) {
        Ok(policy) => Arc::new(policy),
        Err(_) => DENY_ALL.clone(),
    }
}
