//! Health problems of the hosts' credentials for cluster state.

use atoll_cluster::{ClusterClient, keys};
use atoll_coordinator::health::{Problem, Severity};

/// Reports that every client has all rights in cluster state, or that hosts have the same rights there because
/// they log in as one user. An unreadable record is no problem of logins.
pub async fn login_problems(state: &ClusterClient) -> Vec<Problem> {
    let problem = |code, summary: String, subjects: Vec<String>, action: &str| Problem {
        code,
        severity: Severity::Warning,
        summary,
        subjects,
        action: action.into(),
        since_unix_ms: None,
    };
    // Who manages users without being one may do everything.
    if state.user().is_none() && state.users().await.is_ok() {
        let summary =
            "cluster state requires no password: every client that reaches it may change all of it".to_owned();
        let action = "make a user for each host ('atoll host add' on a host whose user has the role root), then enable \
                      authentication in etcd ('etcdctl auth enable')";
        return vec![problem("STATE_WITHOUT_LOGIN", summary, Vec::new(), action)];
    }
    let Ok(hosts) = atoll_admin::hosts::list(state).await else { return Vec::new() };
    // OSDs may name any host as their failure domain; processes run where there is an admin server.
    let Ok(servers) = state.list_raw(keys::ADMIN_SERVERS).await else { return Vec::new() };
    let is_real = |host: &str| servers.entries.iter().any(|(key, ..)| *key == keys::admin_server(host));
    let share = |host: &atoll_admin::hosts::Host| host.user.is_none() && !host.is_revoked && is_real(&host.host);
    let sharing: Vec<String> = hosts.into_iter().filter(share).map(|host| host.host).collect();
    // The host that made the cluster has no other user than the first.
    if sharing.len() < 2 {
        return Vec::new();
    }
    let summary =
        format!("{} hosts log in to cluster state as one user, and each may change all of it", sharing.len());
    let action = "give each host a user of its own: 'atoll host rotate' on it, or 'atoll host add' with an etcd";
    vec![problem("HOSTS_SHARE_LOGIN", summary, sharing, action)]
}
