//! Rights that a record of cluster state grants, in a few words, for the operator who signs the record.

use atoll_cluster::keys;
use serde_json::Value;

/// Returns the rights that a record gives; an empty text for kinds that give none by themselves.
pub fn grants(key: &str, record: &Value) -> String {
    let text = |name: &str| record[name].as_str().unwrap_or_default().to_owned();
    type Describe = fn(&Value) -> String;
    let kinds: [(&str, Describe); 13] = [
        (keys::OPERATORS, |record| format!("logs in to the console as {}", names_of(&record["role"]))),
        (keys::API_TOKENS, |record| {
            let scope = &record["scope"];
            format!("calls the admin API: {}{}", names_of(&scope["roles"]), names_of(&scope["calls"]))
        }),
        (keys::OPERATOR_SESSIONS, |record| {
            format!("is logged in to the console as {}", record["user"].as_str().unwrap_or("?"))
        }),
        (keys::LOGIN_OIDC, provider),
        (keys::ACCESS_KEYS, access_key),
        (keys::BUCKETS, bucket),
        (keys::IMAGES, image),
        (keys::KMS_KEYS, kms_key),
        (keys::NVME_HOSTS, |_| "the host must prove itself".into()),
        (keys::NVME_TLS, |record| match record["is_plain_allowed"].as_bool() {
            Some(true) => "the host connects with TLS or without".into(),
            _ => "the host must connect with TLS".into(),
        }),
        (keys::FRAMES, modes),
        (keys::AUTHORIZED_KEYS, |record| {
            let text = |name: &str| record[name].as_str().unwrap_or("?").to_owned();
            format!("connects to OSDs as {} ({})", text("name"), text("role"))
        }),
        (keys::METRICS_TOKENS, |_| "reads metrics".into()),
    ];
    if let Some((_, describe)) = kinds.iter().find(|(prefix, _)| key.starts_with(prefix)) {
        return describe(record);
    }
    let documents = ["document", "policy", "trust_policy"];
    let everybody = documents.iter().any(|name| names_everybody(&text(name)));
    if everybody { "has a policy with '*'".into() } else { String::new() }
}

/// One name, or several.
fn names_of(value: &Value) -> String {
    match value {
        Value::String(name) => name.clone(),
        Value::Array(names) => names.iter().map(names_of).collect::<Vec<_>>().join(", "),
        Value::Null => String::new(),
        _ => "?".into(),
    }
}

fn provider(record: &Value) -> String {
    let groups = record["roles"].as_object().into_iter().flatten();
    let groups: Vec<String> = groups.map(|(group, roles)| format!("{group} as {}", names_of(roles))).collect();
    let issuer = record["issuer"].as_str().unwrap_or("?");
    format!("{issuer} logs people in to the console, by group: {}", groups.join("; "))
}

fn access_key(record: &Value) -> String {
    let account = record["account"].as_str().unwrap_or("the first one");
    let who = match record["user"].as_str() {
        Some(user) => format!("user {user}"),
        None => "ROOT".into(),
    };
    let disabled = if record["is_disabled"] == true { ", disabled" } else { "" };
    format!("{who} of account {account}{disabled}")
}

fn kms_key(record: &Value) -> String {
    let account = record["account"].as_str().unwrap_or("?");
    match record["policy"].as_str() {
        Some(policy) if names_everybody(policy) => format!("of account {account}, KEY POLICY WITH '*'"),
        Some(_) => format!("of account {account}, has a key policy"),
        None => format!("of account {account}, whose users may use it"),
    }
}

fn names_everybody(policy: &str) -> bool {
    policy.contains("\"*\"")
}

fn bucket(record: &Value) -> String {
    let mut said = vec![format!("owner {}", record["owner"].as_str().unwrap_or("?"))];
    let access = &record["access"];
    if names_everybody(access["policy"].as_str().unwrap_or_default()) {
        said.push("POLICY WITH '*'".into());
    } else if access["policy"].is_string() {
        said.push("has a policy".into());
    }
    let acl = access["acl"].to_string();
    if acl.contains("\"all_users\"") || acl.contains("\"authenticated_users\"") {
        said.push("ACL FOR EVERYONE".into());
    }
    if record["unsealed_permit"].is_string() {
        said.push("not sealed".into());
    }
    said.join(", ")
}

fn image(record: &Value) -> String {
    let clients = record["export"]["clients"].to_string();
    let open = if clients.contains("\"*\"") { ", OPEN TO '*'" } else { "" };
    let unsealed = if record["unsealed_permit"].is_string() { ", not sealed" } else { "" };
    match clients.as_str() {
        "null" | "[]" => format!("access: every client with a certificate{unsealed}"),
        clients => format!("access: {clients}{open}{unsealed}"),
    }
}

fn modes(record: &Value) -> String {
    let mode = |name: &str| format!("{name} {}", record[name].as_str().unwrap_or("secure"));
    ["cluster", "client", "gateway"].map(mode).join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_lets_somebody_in_stands_out() {
        let given = |key: &str, record: Value| grants(key, &record);
        assert_eq!(given("/atoll/users/A", json!({"access_key": "A"})), "ROOT of account the first one");
        let user = json!({"account": "2", "user": "u", "is_disabled": true});
        assert_eq!(given("/atoll/users/A", user), "user u of account 2, disabled");
        let policy = json!({"owner": "o", "access": {"policy": "{\"Principal\": \"*\"}"}});
        assert_eq!(given("/atoll/buckets/b", policy), "owner o, POLICY WITH '*'");
        let export = json!({"export": {"clients": ["*"]}, "unsealed_permit": "local:x"});
        assert_eq!(given("/atoll/images/i", export), "access: [\"*\"], OPEN TO '*', not sealed");
        assert!(given("/atoll/operators/o", json!({"role": "admin"})).ends_with("admin"));
        let two = json!({"role": ["storage", "security"]});
        assert!(given("/atoll/operators/o", two).ends_with("storage, security"));
        let provider =
            json!({"issuer": "https://i.example", "roles": {"sre": "admin", "disks": ["storage", "security"]}});
        assert!(given("/atoll/login_oidc", provider).ends_with("disks as storage, security; sre as admin"));
        assert_eq!(given("/atoll/frames", json!({"client": "crc"})), "cluster secure, client crc, gateway secure");
        assert_eq!(given("/atoll/iam/sts_key", json!({})), "");
        let key = json!({"name": "k", "account": "2"});
        assert_eq!(given("/atoll/iam/kms_keys/k", key), "of account 2, whose users may use it");
    }
}
