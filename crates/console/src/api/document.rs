//! The API's document, `openapi.json`: it says which calls there are, who may make them, and what they take. What it
//! does not say is refused.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::{Map, Value};

use super::refusal::Refusal;

/// The document as clients get it.
pub(crate) const TEXT: &str = include_str!("../../openapi.json");

/// Who may make a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Needs {
    Nothing,
    ReadOnly,
    Admin,
}

/// A call.
pub(crate) struct Operation {
    pub id: String,
    method: String,
    segments: Vec<Segment>,
    pub needs: Needs,
    /// What its query may have, and the type of each.
    query: BTreeMap<String, Value>,
    /// Of its body.
    body: Option<Value>,
    /// Whether it is in the audit log although it changes nothing.
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

/// What a call was given.
#[derive(Debug, Default)]
pub(crate) struct Given {
    /// Of the path.
    pub names: BTreeMap<String, String>,
    /// Of the query; a name may come several times.
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

    /// Whether a field of the body is there and true.
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

/// What a reference stands for.
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
        needs: match operation["x-atoll-role"].as_str() {
            Some("none") => Needs::Nothing,
            Some("read-only") => Needs::ReadOnly,
            _ => Needs::Admin,
        },
        query: query.collect(),
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

impl Operation {
    /// Refuses what the document does not have.
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
            items.iter().all(|item| schema["items"].is_null() || is_of_type(item, resolved(&schema["items"])))
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
        assert_eq!(found("GET", "/api/v1/status").unwrap().needs, Needs::ReadOnly);
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
    fn every_call_has_a_role_and_a_status() {
        assert!(operations().len() > 60);
        for operation in operations() {
            assert!(!operation.id.is_empty() && (200..300).contains(&operation.status), "{}", operation.id);
            assert!(operation.needs != Needs::Nothing || operation.id == "createSession", "{}", operation.id);
            assert!(
                operation.method == "GET" || operation.needs == Needs::Admin || operation.id.ends_with("Session")
            );
        }
    }
}
