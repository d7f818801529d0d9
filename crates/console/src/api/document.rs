//! The API's document, `openapi.json`: it defines the calls, their roles, and their parameters. Everything else is
//! refused.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use atoll_types::operators::{OperatorRole, OperatorRoles};
use serde_json::{Map, Value};

use super::refusal::Refusal;

/// The document as clients get it.
pub(crate) const TEXT: &str = include_str!("../../openapi.json");

/// Condition for making a call, or for giving a field a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// No session is needed.
    Nothing,
    /// A session of any role.
    AnyRole,
    /// One of these roles, or the role admin.
    Roles(Vec<OperatorRole>),
}

impl Needs {
    /// As the document says it. A missing or wrong entry restricts the call to admins.
    fn read(listed: &Value) -> Needs {
        let names = listed.as_array().map(|all| all.iter().filter_map(Value::as_str).collect::<Vec<_>>());
        match names.as_deref() {
            Some(["none"]) => Needs::Nothing,
            Some(["any"]) => Needs::AnyRole,
            names => {
                let roles = names.into_iter().flatten().filter_map(|name| OperatorRole::find(name));
                Needs::Roles(roles.collect())
            }
        }
    }

    /// Returns true if a user with these roles may do it.
    pub fn are_met_by(&self, roles: &OperatorRoles) -> bool {
        match self {
            Needs::Nothing | Needs::AnyRole => true,
            Needs::Roles(listed) => {
                roles.has(OperatorRole::Admin) || listed.iter().any(|listed| roles.has(*listed))
            }
        }
    }

    /// Returns the roles in words, for a user without them.
    fn in_words(&self) -> String {
        let listed: &[OperatorRole] = if let Needs::Roles(listed) = self { listed } else { &[] };
        let names = listed.iter().chain([&OperatorRole::Admin]).map(|role| role.name());
        names.collect::<Vec<_>>().join(" or ")
    }
}

/// A call.
pub(crate) struct Operation {
    pub id: String,
    method: String,
    segments: Vec<Segment>,
    pub needs: Needs,
    /// Parameters of its query, with the type of each.
    query: BTreeMap<String, Value>,
    /// Schema of its body.
    body: Option<Value>,
    /// Only sessions make it, and no token.
    pub is_of_sessions: bool,
    /// True if it is in the audit log although it changes nothing.
    pub is_audited: bool,
    /// The command that does the same.
    #[cfg(test)]
    pub command: Option<String>,
    /// Why there is no such command.
    #[cfg(test)]
    pub no_command: Option<String>,
    /// The status of its success.
    pub status: u16,
}

enum Segment {
    Word(String),
    Name(String),
}

impl Operation {
    /// Returns true if it changes more than the sessions and enrolments of its caller, which every operator does at
    /// will.
    pub fn is_change(&self) -> bool {
        self.method != "GET" && !["createSession", "endSession", "enrolTotp"].contains(&&self.id[..])
    }
}

/// Parameters of a call.
#[derive(Debug, Default)]
pub(crate) struct Given {
    /// Parameters of the path.
    pub names: BTreeMap<String, String>,
    /// Parameters of the query; a name may come several times.
    pub query: Vec<(String, String)>,
    pub body: Map<String, Value>,
}

impl Given {
    /// A part of the path, which the document says there is.
    pub fn name(&self, name: &str) -> String {
        self.names.get(name).cloned().unwrap_or_default()
    }

    /// The last value of a name in the query.
    pub fn asked(&self, name: &str) -> Option<&str> {
        self.query.iter().rev().find(|(given, _)| given == name).map(|(_, value)| &value[..])
    }

    /// Returns true if a field of the body is there and true.
    pub fn is_true(&self, name: &str) -> bool {
        self.body.get(name) == Some(&Value::Bool(true))
    }

    /// A text in the body.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.body.get(name).and_then(Value::as_str)
    }
}

static DOCUMENT: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(TEXT).expect("the document is JSON; a test reads it"));

static OPERATIONS: LazyLock<Vec<Operation>> = LazyLock::new(|| {
    let paths = DOCUMENT["paths"].as_object().expect("the document has paths");
    let of_path = |(path, item): (&String, &Value)| {
        let methods = item.as_object().into_iter().flatten();
        let methods = methods.filter(|(_, operation)| operation["operationId"].is_string());
        methods.map(|(method, operation)| read_operation(path, method, operation)).collect::<Vec<_>>()
    };
    paths.iter().flat_map(of_path).collect()
});

/// Returns the target of a reference.
fn resolved(value: &Value) -> &Value {
    match value["$ref"].as_str().and_then(|reference| DOCUMENT.pointer(reference.trim_start_matches('#'))) {
        Some(found) => resolved(found),
        None => value,
    }
}

fn read_operation(path: &str, method: &str, operation: &Value) -> Operation {
    let segment = |text: &str| match text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) {
        Some(name) => Segment::Name(name.to_owned()),
        None => Segment::Word(text.to_owned()),
    };
    let parameters = operation["parameters"].as_array().into_iter().flatten().map(resolved);
    let query = parameters.filter(|parameter| parameter["in"] == "query").filter_map(|parameter| {
        Some((parameter["name"].as_str()?.to_owned(), resolved(&parameter["schema"]).clone()))
    });
    let statuses = operation["responses"].as_object().into_iter().flatten();
    let status = statuses.filter_map(|(status, _)| status.parse().ok()).find(|status| (200..300).contains(status));
    let body =
        operation.pointer("/requestBody/content/application~1json/schema").map(|body| resolved(body).clone());
    Operation {
        id: operation["operationId"].as_str().unwrap_or_default().to_owned(),
        method: method.to_uppercase(),
        segments: path.trim_start_matches('/').split('/').map(segment).collect(),
        needs: Needs::read(&operation["x-atoll-roles"]),
        query: query.collect(),
        is_of_sessions: operation["x-atoll-session-only"] == true,
        is_audited: operation["x-atoll-audited"] == true,
        #[cfg(test)]
        command: operation["x-atoll-command"].as_str().map(str::to_owned),
        #[cfg(test)]
        no_command: operation["x-atoll-no-command"].as_str().map(str::to_owned),
        body,
        status: status.unwrap_or(200),
    }
}

/// All calls.
pub(crate) fn operations() -> &'static [Operation] {
    &OPERATIONS
}

/// The call of a path, whose parts are decoded, and the names in it.
pub(crate) fn find(method: &str, parts: &[String]) -> Option<(&'static Operation, BTreeMap<String, String>)> {
    operations().iter().filter(|operation| operation.method == method).find_map(|operation| {
        if operation.segments.len() != parts.len() {
            return None;
        }
        let mut names = BTreeMap::new();
        for (segment, part) in operation.segments.iter().zip(parts) {
            match segment {
                Segment::Word(word) if word == part => {}
                Segment::Name(name) if !part.is_empty() => drop(names.insert(name.clone(), part.clone())),
                _ => return None,
            }
        }
        Some((operation, names))
    })
}

/// Returns the calls that a user with these roles may make.
pub(crate) fn calls_of(roles: &OperatorRoles) -> Vec<&'static str> {
    let open = operations().iter().filter(|operation| operation.needs.are_met_by(roles));
    open.map(|operation| &operation.id[..]).collect()
}

/// Returns whether a token may make a call of this name.
pub fn is_call_of_tokens(id: &str) -> bool {
    operations().iter().any(|operation| operation.id == id && !operation.is_of_sessions)
}

/// Returns the settings that a user with these roles may set.
pub(crate) fn settings_of(roles: &OperatorRoles) -> Vec<&'static str> {
    let body =
        operations().iter().find(|operation| operation.id == "setSetting").and_then(|set| set.body.as_ref());
    let fields = body.and_then(|schema| schema["properties"].as_object()).into_iter().flatten();
    let open = fields.filter(|(_, schema)| Needs::read(&schema["x-atoll-roles"]).are_met_by(roles));
    open.map(|(name, _)| &name[..]).collect()
}

impl Operation {
    /// Refuses who may not make the call.
    pub fn check_roles(&self, user: &str, roles: &OperatorRoles) -> Result<(), Refusal> {
        match self.needs.are_met_by(roles) {
            true => Ok(()),
            false => Err(Refusal::low_role(user, roles, "the call", &self.needs.in_words())),
        }
    }

    /// Refuses fields to a user that may make the call, and may not give them their values.
    pub fn check_fields_of_roles(&self, user: &str, roles: &OperatorRoles, given: &Given) -> Result<(), Refusal> {
        let fields = self.body.as_ref().and_then(|schema| schema["properties"].as_object());
        for (name, value) in &given.body {
            let Some(schema) = fields.and_then(|fields| fields.get(name)) else { continue };
            let is_harmless = schema["x-atoll-harmless"] == *value;
            let needs = schema.get("x-atoll-roles").map(Needs::read);
            if let Some(needs) = needs.filter(|needs| !is_harmless && !needs.are_met_by(roles)) {
                let what = format!("the field '{name}' with the value {value}");
                return Err(Refusal::low_role(user, roles, &what, &needs.in_words()));
            }
        }
        Ok(())
    }

    /// Refuses parameters that the document does not have.
    pub fn check(&self, given: &Given) -> Result<(), Refusal> {
        for (name, value) in &given.query {
            let Some(schema) = self.query.get(name) else {
                return Err(Refusal::invalid(format!("The call has no parameter '{name}'.")));
            };
            check_query(name, value, schema)?;
        }
        match &self.body {
            None if given.body.is_empty() => Ok(()),
            None => Err(Refusal::invalid("The call has no body.".into())),
            Some(schema) => check_fields(&given.body, schema),
        }
    }
}

fn check_query(name: &str, value: &str, schema: &Value) -> Result<(), Refusal> {
    let is_fit = match schema["type"].as_str() {
        Some("integer") => value.parse::<u64>().is_ok_and(|number| {
            let bound = |name: &str, otherwise: u64| schema[name].as_u64().unwrap_or(otherwise);
            (bound("minimum", 0)..=bound("maximum", u64::MAX)).contains(&number)
        }),
        Some("boolean") => ["true", "false"].contains(&value),
        // Each of several values comes by itself.
        _ => true,
    };
    if is_fit { Ok(()) } else { Err(Refusal::invalid(format!("The parameter '{name}' cannot be '{value}'."))) }
}

fn check_fields(body: &Map<String, Value>, schema: &Value) -> Result<(), Refusal> {
    let fields = schema["properties"].as_object();
    for (name, value) in body {
        let Some(field) = fields.and_then(|fields| fields.get(name)) else {
            return Err(Refusal::invalid(format!("The body has no field '{name}'.")));
        };
        if !is_of_type(value, resolved(field)) {
            return Err(Refusal::invalid(format!("The field '{name}' cannot be {value}.")));
        }
    }
    check_count(body, schema)?;
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    match required.into_iter().find(|name| !body.contains_key(*name)) {
        Some(name) => Err(Refusal::invalid(format!("The field '{name}' is missing."))),
        None => Ok(()),
    }
}

fn check_count(body: &Map<String, Value>, schema: &Value) -> Result<(), Refusal> {
    let bound = |name: &str| schema[name].as_u64();
    let (least, most) = (bound("minProperties").unwrap_or(0), bound("maxProperties").unwrap_or(u64::MAX));
    if (least..=most).contains(&(body.len() as u64)) {
        return Ok(());
    }
    let wanted = if least == most { least.to_string() } else { format!("at least {least}") };
    Err(Refusal::invalid(format!("The body has {} fields, and the call takes {wanted}.", body.len())))
}

fn is_of_type(value: &Value, schema: &Value) -> bool {
    let is = |name: &str| match name {
        "string" => value.is_string(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object() && (schema["properties"].is_null() || check_object(value, schema)),
        "array" => value.as_array().is_some_and(|items| {
            let is_enough = items.len() as u64 >= schema["minItems"].as_u64().unwrap_or(0);
            is_enough
                && items
                    .iter()
                    .all(|item| schema["items"].is_null() || is_of_type(item, resolved(&schema["items"])))
        }),
        "null" => value.is_null(),
        _ => false,
    };
    let is_listed = schema["enum"].as_array().is_none_or(|listed| listed.contains(value));
    let above = schema["minimum"].as_f64().is_none_or(|least| value.as_f64().is_none_or(|number| number >= least));
    let below = schema["maximum"].as_f64().is_none_or(|most| value.as_f64().is_none_or(|number| number <= most));
    let is_typed = match &schema["type"] {
        Value::String(name) => is(name),
        Value::Array(names) => names.iter().filter_map(Value::as_str).any(is),
        _ => true,
    };
    is_typed && is_listed && above && below
}

fn check_object(value: &Value, schema: &Value) -> bool {
    value.as_object().is_some_and(|fields| check_fields(fields, schema).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn found(method: &str, path: &str) -> Option<&'static Operation> {
        let parts: Vec<String> = path.trim_start_matches('/').split('/').map(str::to_owned).collect();
        find(method, &parts).map(|(operation, _)| operation)
    }

    fn checked(operation: &Operation, query: &[(&str, &str)], body: Value) -> Result<(), Refusal> {
        let query = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let body = body.as_object().cloned().unwrap_or_default();
        operation.check(&Given { names: BTreeMap::new(), query, body })
    }

    #[test]
    fn calls_are_found_by_their_paths() {
        assert_eq!(found("POST", "/api/v1/osds/3/out").unwrap().id, "markOsdOut");
        assert_eq!(found("GET", "/api/v1/keys").unwrap().id, "listKeys");
        assert_eq!(found("POST", "/api/v1/keys/rewrap").unwrap().id, "rewrapKeys");
        assert!(found("GET", "/api/v1/osds/3/out").is_none());
        assert!(found("GET", "/api/v1/nothing").is_none());
        assert_eq!(found("POST", "/api/v1/session").unwrap().needs, Needs::Nothing);
        assert_eq!(found("GET", "/api/v1/status").unwrap().needs, Needs::AnyRole);
    }

    #[test]
    fn what_the_document_does_not_have_is_refused() {
        let create = found("POST", "/api/v1/images").unwrap();
        assert_eq!(checked(create, &[], json!({ "name": "a", "size_bytes": 4096 })), Ok(()));
        for body in [
            json!({ "name": "a" }),
            json!({ "name": "a", "size_bytes": "4096" }),
            json!({ "name": "a", "size_bytes": 4096, "colour": "red" }),
            json!({ "name": "a", "size_bytes": -1 }),
        ] {
            assert!(checked(create, &[], body.clone()).is_err(), "{body}");
        }
        let set = found("PATCH", "/api/v1/pools/p").unwrap();
        assert_eq!(checked(set, &[], json!({ "size": 3 })), Ok(()));
        for body in [json!({}), json!({ "size": 3, "min_size": 2 })] {
            assert!(checked(set, &[], body.clone()).is_err(), "{body}");
        }
        let access = found("PUT", "/api/v1/images/i/access").unwrap();
        assert_eq!(checked(access, &[], json!({ "access": "read_only", "clients": ["vm1"] })), Ok(()));
        assert!(checked(access, &[], json!({ "access": "read_only", "clients": [1] })).is_err(), "a number");
        let list = found("GET", "/api/v1/events").unwrap();
        assert_eq!(checked(list, &[("limit", "10")], json!({})), Ok(()));
        for query in [("limit", "0"), ("limit", "many"), ("colour", "red")] {
            assert!(checked(list, &[query], json!({})).is_err(), "{query:?}");
        }
        assert!(checked(list, &[], json!({ "a": 1 })).is_err(), "it has no body");
    }

    #[test]
    fn every_call_has_roles_and_a_status() {
        assert!(operations().len() > 60);
        for operation in operations() {
            let id = &operation.id[..];
            assert!(!id.is_empty() && (200..300).contains(&operation.status), "{id}");
            assert!(operation.needs != Needs::Nothing || id == "createSession", "{id}");
            if let Needs::Roles(roles) = &operation.needs {
                assert!(!roles.is_empty(), "{id}");
                let is_reading = operation.method == "GET";
                assert!(is_reading || !roles.contains(&OperatorRole::ReadOnly), "{id}");
            }
            let own = ["endSession", "changePassword", "enrolTotp", "confirmTotp"];
            assert!(
                operation.method == "GET" || operation.needs != Needs::AnyRole || own.contains(&id),
                "{id} changes something"
            );
        }
    }

    #[test]
    fn no_token_makes_operators_or_tokens() {
        let begins =
            ["operator create", "operator set", "operator rm", "operator totp reset", "operator token create"];
        for operation in operations() {
            let is_making = operation.command.as_ref().is_some_and(|command| begins.contains(&&command[..]));
            let is_own =
                operation.segments.iter().any(|segment| matches!(segment, Segment::Word(w) if w == "session"));
            assert!(operation.is_of_sessions || !(is_making || is_own), "{}", operation.id);
        }
        assert!(
            is_call_of_tokens("listPools") && !is_call_of_tokens("createApiToken") && !is_call_of_tokens("no")
        );
    }

    /// Names of roles that the document misspells would be left out.
    #[test]
    fn the_document_names_no_other_role() {
        let known: Vec<&str> = OperatorRole::ALL.iter().map(|role| role.name()).chain(["none", "any"]).collect();
        let mut found = 0;
        let mut left = vec![&*DOCUMENT];
        while let Some(value) = left.pop() {
            for (name, inner) in value.as_object().into_iter().flatten() {
                if name == "x-atoll-roles" {
                    found += 1;
                    let roles = inner.as_array().unwrap();
                    assert!(roles.iter().all(|role| known.contains(&role.as_str().unwrap())), "{inner}");
                }
            }
            left.extend(value.as_object().into_iter().flat_map(|fields| fields.values()));
            left.extend(value.as_array().into_iter().flatten());
        }
        assert!(found > operations().len(), "{found}");
    }

    /// The areas do not overlap, by the commands of the calls.
    #[test]
    fn each_role_changes_its_own_area_only() {
        let areas: [(OperatorRole, &[&str]); 4] = [
            (OperatorRole::ReadOnly, &[]),
            (OperatorRole::Storage, &["osd", "pool", "pg", "flag", "settings", "image"]),
            (OperatorRole::S3Accounts, &["account", "user", "group", "role", "policy", "bucket"]),
            (OperatorRole::Security, &["key", "operator", "settings", "bucket", "image"]),
        ];
        for (role, area) in areas {
            let changing = operations().iter().filter(|operation| operation.method != "GET");
            for operation in changing.filter(|operation| operation.needs.are_met_by(&role.into())) {
                let Some(command) = &operation.command else { continue };
                let first = command.split(' ').next().unwrap();
                assert!(area.contains(&first), "{} may {}", role.name(), operation.id);
            }
        }
        let may = |role: OperatorRole, id: &str| calls_of(&role.into()).contains(&id);
        // Who may see what is in an image: a client that the image's access names.
        assert!(!may(OperatorRole::Storage, "setImageAccess") && may(OperatorRole::Security, "setImageAccess"));
        assert!(!may(OperatorRole::Storage, "listObjects") && may(OperatorRole::ReadOnly, "listObjects"));
        assert_eq!(calls_of(&OperatorRole::Admin.into()).len(), operations().len());
    }

    #[test]
    fn what_takes_protection_away_needs_the_role_security() {
        let refused = |method: &str, path: &str, roles: &[OperatorRole], body: Value| {
            let body = body.as_object().cloned().unwrap_or_default();
            let roles = OperatorRoles::new(roles.iter().copied()).unwrap();
            let operation = found(method, path).unwrap();
            let given = Given { body, ..Given::default() };
            operation.check_roles("eve", &roles).is_err()
                || operation.check_fields_of_roles("eve", &roles, &given).is_err()
        };
        let (storage, security) = (OperatorRole::Storage, OperatorRole::Security);
        let create = |is_sealed: bool| json!({ "name": "i", "size_bytes": 4096, "sealed": is_sealed });
        assert!(!refused("POST", "/api/v1/images", &[storage], create(true)));
        assert!(refused("POST", "/api/v1/images", &[storage], create(false)));
        assert!(!refused("POST", "/api/v1/images", &[storage, security], create(false)));
        let unsealed = json!({ "pool": "p", "sealed": false });
        assert!(refused("POST", "/api/v1/images/i/migrate", &[storage], unsealed));
        let settings = found("PATCH", "/api/v1/settings").unwrap();
        let fields = settings.body.as_ref().unwrap()["properties"].as_object().unwrap();
        let of = |name: &str| Needs::read(&fields[name]["x-atoll-roles"]);
        for name in fields.keys() {
            let is_protecting = ["frame_", "trace_", "session_", "api_token_", "totp_"]
                .iter()
                .any(|begin| name.starts_with(begin));
            let role = if is_protecting { security } else { storage };
            assert_eq!(of(name), Needs::Roles(vec![role]), "{name}");
        }
        assert!(refused("PATCH", "/api/v1/settings", &[storage], json!({ "frame_mode_client": "crc" })));
        let bucket = json!({ "new_objects_sealed": false });
        assert!(refused("PATCH", "/api/v1/buckets/b", &[OperatorRole::S3Accounts], bucket));
    }
}
