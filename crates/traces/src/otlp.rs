//! Operations as OTLP in its JSON encoding, <https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding>: ids are
//! hexadecimal, numbers of 64 bits are texts, and enumerations are numbers.

use std::net::IpAddr;

use atoll_metrics::traces::{TracedOperation, random_id};
use serde::Serialize;

/// The process that exports, by OpenTelemetry's names for resources.
#[derive(Clone, Debug)]
pub struct Source {
    /// `service.name`: the role of the process, such as `atoll-osd`.
    pub service: String,
    /// `service.instance.id`: which of these it is.
    pub instance: String,
    /// `host.name`.
    pub host: String,
    /// `service.version`.
    pub version: String,
}

/// Source of these spans: its "instrumentation scope".
const SCOPE: &str = "atoll";
/// `SPAN_KIND_INTERNAL`: a part of a process' work.
const INTERNAL: u8 = 1;
/// `SPAN_KIND_SERVER`: a process answers a request of another.
const SERVER: u8 = 2;
/// `STATUS_CODE_ERROR`.
const FAILED: u8 = 2;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExportRequest {
    resource_spans: [ResourceSpans; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans {
    resource: Resource,
    scope_spans: [ScopeSpans; 1],
}

#[derive(Serialize)]
struct Resource {
    attributes: Vec<Attribute>,
}

#[derive(Serialize)]
struct ScopeSpans {
    scope: Scope,
    spans: Vec<Span>,
}

#[derive(Serialize)]
struct Scope {
    name: &'static str,
    version: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Span {
    trace_id: String,
    span_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_span_id: Option<String>,
    name: String,
    kind: u8,
    start_time_unix_nano: String,
    end_time_unix_nano: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attributes: Vec<Attribute>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
}

#[derive(Serialize)]
struct Status {
    code: u8,
    message: String,
}

#[derive(Serialize)]
struct Attribute {
    key: &'static str,
    value: Value,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum Value {
    StringValue(String),
    IntValue(String),
}

fn text(key: &'static str, value: &str) -> Attribute {
    Attribute { key, value: Value::StringValue(value.to_owned()) }
}

/// Returns the request with these operations.
pub(crate) fn request(source: &Source, operations: &[TracedOperation]) -> ExportRequest {
    let attributes = vec![
        text("service.namespace", "atoll"),
        text("service.name", &source.service),
        text("service.instance.id", &source.instance),
        text("service.version", &source.version),
        text("host.name", &source.host),
    ];
    let scope = Scope { name: SCOPE, version: source.version.clone() };
    let spans = operations.iter().flat_map(spans).collect();
    ExportRequest {
        resource_spans: [ResourceSpans {
            resource: Resource { attributes },
            scope_spans: [ScopeSpans { scope, spans }],
        }],
    }
}

/// The span of an operation, and those of its steps.
fn spans(traced: &TracedOperation) -> Vec<Span> {
    let TracedOperation { operation, ended_unix_us, span } = traced;
    let begun_unix_us = ended_unix_us.saturating_sub(operation.duration_us);
    let nanoseconds = |after_us: u64| (u128::from(begun_unix_us + after_us) * 1_000).to_string();
    let trace_id = hex::encode(span.context.trace_id);
    let whole = Span {
        trace_id: trace_id.clone(),
        span_id: hex::encode(span.context.span_id),
        parent_span_id: span.parent_id.map(hex::encode),
        name: operation.kind.clone(),
        kind: SERVER,
        start_time_unix_nano: nanoseconds(0),
        end_time_unix_nano: nanoseconds(operation.duration_us),
        attributes: attributes(traced),
        status: operation.error.clone().map(|message| Status { code: FAILED, message }),
    };
    let parent_id = whole.span_id.clone();
    let step = |step: &atoll_metrics::slow::SlowStep| Span {
        trace_id: trace_id.clone(),
        span_id: hex::encode(random_id::<8>()),
        parent_span_id: Some(parent_id.clone()),
        name: step.name.clone(),
        kind: INTERNAL,
        start_time_unix_nano: nanoseconds(step.since_us.min(step.after_us)),
        end_time_unix_nano: nanoseconds(step.after_us),
        attributes: Vec::new(),
        status: None,
    };
    let steps: Vec<Span> = operation.steps.iter().map(step).collect();
    std::iter::once(whole).chain(steps).collect()
}

fn attributes(TracedOperation { operation, .. }: &TracedOperation) -> Vec<Attribute> {
    // What is no address is who is at the other end, in words.
    let is_address = operation.client.parse::<IpAddr>().is_ok();
    let client = Some(&operation.client).filter(|client| !client.is_empty());
    let known = [
        (if is_address { "client.address" } else { "atoll.client" }, client),
        ("atoll.pool", operation.pool.as_ref()),
        ("atoll.pg", operation.pg.as_ref()),
        ("atoll.object", operation.object.as_ref()),
    ];
    let texts = known.into_iter().filter_map(|(key, value)| Some(text(key, value?)));
    let size = Attribute { key: "atoll.size_bytes", value: Value::IntValue(operation.size_bytes.to_string()) };
    texts.chain([size]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_metrics::slow::{SlowOperation, SlowStep};
    use atoll_metrics::traces::{Span, TraceParent};
    use serde_json::{Value as Json, json};

    fn told(traced: TracedOperation) -> Json {
        let source = Source {
            service: "atoll-osd".into(),
            instance: "one/osd.2".into(),
            host: "one".into(),
            version: "0.1.0".into(),
        };
        serde_json::to_value(request(&source, &[traced])).unwrap()
    }

    fn traced() -> TracedOperation {
        let step = |name: &str, since_us, after_us| SlowStep { name: name.into(), after_us, since_us };
        TracedOperation {
            operation: SlowOperation {
                duration_us: 500_000,
                kind: "write".into(),
                client: "client at 10.0.0.1".into(),
                pool: Some("images".into()),
                size_bytes: 4_096,
                steps: vec![step("ordered", 0, 1_000), step("durable on osd.1", 1_000, 400_000)],
                ..SlowOperation::default()
            },
            ended_unix_us: 1_700_000_000_500_000,
            span: Span::new(None),
        }
    }

    #[test]
    fn an_operation_is_a_span_with_its_steps_below() {
        let told = told(traced());
        let resource = &told["resourceSpans"][0]["resource"]["attributes"];
        assert_eq!(resource[1], json!({ "key": "service.name", "value": { "stringValue": "atoll-osd" } }));
        let scope = &told["resourceSpans"][0]["scopeSpans"][0];
        assert_eq!(scope["scope"]["name"], "atoll");
        let [whole, queue, member] = &scope["spans"].as_array().unwrap()[..] else { panic!("{scope}") };
        let id = |span: &Json, name: &str| span[name].as_str().unwrap().to_owned();
        assert_eq!((id(whole, "traceId").len(), id(whole, "spanId").len()), (32, 16));
        assert_eq!((&whole["name"], &whole["kind"], &whole["status"]), (&json!("write"), &json!(2), &Json::Null));
        assert_eq!(whole["parentSpanId"], Json::Null);
        assert_eq!(whole["startTimeUnixNano"], "1700000000000000000");
        assert_eq!(whole["endTimeUnixNano"], "1700000000500000000");
        let client = json!({ "key": "atoll.client", "value": { "stringValue": "client at 10.0.0.1" } });
        assert!(whole["attributes"].as_array().unwrap().contains(&client), "{whole}");
        let size = json!({ "key": "atoll.size_bytes", "value": { "intValue": "4096" } });
        assert!(whole["attributes"].as_array().unwrap().contains(&size), "{whole}");
        for step in [queue, member] {
            assert_eq!((&step["traceId"], &step["parentSpanId"]), (&whole["traceId"], &whole["spanId"]));
            assert_ne!(step["spanId"], whole["spanId"]);
        }
        assert_eq!(member["name"], "durable on osd.1");
        assert_eq!(member["startTimeUnixNano"], "1700000000001000000");
        assert_eq!(member["endTimeUnixNano"], "1700000000400000000");
    }

    #[test]
    fn a_part_of_something_else_is_in_its_trace_and_an_error_is_a_status() {
        let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let parent = TraceParent::parse(text).unwrap();
        let operation = SlowOperation { error: Some("status 503".into()), ..traced().operation };
        let below = Span::new(Some(parent.context));
        let told = told(TracedOperation { operation, span: below, ..traced() });
        let span = &told["resourceSpans"][0]["scopeSpans"][0]["spans"][0];
        assert_eq!(span["traceId"], "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(span["parentSpanId"], "00f067aa0ba902b7");
        assert_eq!(span["spanId"], hex::encode(below.context.span_id));
        assert_eq!(span["status"], json!({ "code": 2, "message": "status 503" }));
    }
}
