//! Stored policies with errors.

use atoll_cluster::{ClusterClient, ClusterError, keys};
use atoll_coordinator::health::{Problem, Severity};
use atoll_iam::{Policy, PolicyKind, StoredPolicy};
use atoll_types::records::BucketRecord;

use crate::error::AdminError;
use crate::identities::current;

/// Returns the errors in the policies of identities and buckets: an unknown name of an action or of a condition
/// key, with which a Deny denies nothing, or an unreadable document, which allows no request.
pub async fn policy_problems(state: &ClusterClient) -> Vec<Problem> {
    match survey(state).await {
        Ok(problems) => problems,
        // A host with OSDs alone may not look; others do.
        Err(AdminError::Cluster(ClusterError::Forbidden { .. })) => Vec::new(),
        Err(error) => vec![problem(
            "POLICIES_NOT_CHECKED",
            Severity::Warning,
            format!("the policies of identities and buckets cannot be looked at: {error}"),
            Vec::new(),
            "fix the other problems first: policies are records of cluster state",
        )],
    }
}

async fn survey(state: &ClusterClient) -> Result<Vec<Problem>, AdminError> {
    let identities = current(state).await?;
    let buckets = state.list::<BucketRecord>(keys::BUCKETS).await?.entries;
    let of_bucket = |bucket: &'_ BucketRecord| {
        let document = bucket.access.as_ref().and_then(|access| access.policy.clone());
        document.map(|document| (format!("policy of bucket {}", bucket.name), document))
    };
    let of_buckets: Vec<(String, String)> =
        buckets.iter().filter_map(|(_, bucket, _)| of_bucket(bucket)).collect();
    let of_buckets = of_buckets.iter().map(|(place, document)| StoredPolicy {
        place: place.clone(),
        document,
        kind: PolicyKind::Resource,
    });
    Ok(judge(identities.stored_policies().into_iter().chain(of_buckets)))
}

fn judge<'a>(policies: impl Iterator<Item = StoredPolicy<'a>>) -> Vec<Problem> {
    let (mut unknown, mut unreadable) = (Vec::new(), Vec::new());
    for StoredPolicy { place, document, kind } in policies {
        match Policy::parse(document, kind) {
            Ok(policy) => unknown.extend(policy.unknown_name().map(|name| format!("{place}: {name}"))),
            Err(error) => unreadable.push(format!("{place}: {error}")),
        }
    }
    let mut problems = Vec::new();
    if !unknown.is_empty() {
        problems.push(problem(
            "POLICY_NAMES_UNKNOWN",
            Severity::Warning,
            format!("{} policies have unknown names: a Deny with one denies nothing", unknown.len()),
            unknown,
            "put each policy again with the name corrected; new ones with such names are refused",
        ));
    }
    if !unreadable.is_empty() {
        problems.push(problem(
            "POLICIES_UNREADABLE",
            Severity::Warning,
            format!("{} policies cannot be read: they allow no request", unreadable.len()),
            unreadable,
            "put each policy again; the root of the account may always do so",
        ));
    }
    problems
}

fn problem(
    code: &'static str,
    severity: Severity,
    summary: String,
    subjects: Vec<String>,
    action: &str,
) -> Problem {
    Problem { code, severity, summary, subjects, action: action.into(), since_unix_ms: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_that_deny_nothing_are_named_with_their_place() {
        let policy = |statement: &str| format!(r#"{{"Version":"2012-10-17","Statement":[{statement}]}}"#);
        let right = policy(r#"{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"*"}"#);
        let action = policy(r#"{"Effect":"Deny","Principal":"*","Action":"s3:GetObjct","Resource":"*"}"#);
        let key = policy(
            r#"{"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"*","Condition":{"StringEquals":{"aws:SourceIpp":"x"}}}"#,
        );
        let documents = [("right", &right[..]), ("action", &action), ("key", &key), ("broken", "{}")];
        let stored = documents.map(|(place, document)| StoredPolicy {
            place: place.into(),
            document,
            kind: PolicyKind::Resource,
        });
        let problems = judge(stored.into_iter());
        let [unknown, unreadable] = &problems[..] else { panic!("{problems:?}") };
        assert_eq!((unknown.code, unreadable.code), ("POLICY_NAMES_UNKNOWN", "POLICIES_UNREADABLE"));
        let [action, key] = &unknown.subjects[..] else { panic!("{unknown:?}") };
        assert!(action.starts_with("action: ") && action.contains("s3:GetObjct"), "{action}");
        assert!(key.starts_with("key: ") && key.contains("aws:sourceipp"), "{key}");
        assert!(unreadable.subjects[0].starts_with("broken: "), "{unreadable:?}");
    }
}
