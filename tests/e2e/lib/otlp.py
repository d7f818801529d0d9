"""A collector of OpenTelemetry that takes traces as JSON over HTTP, and refuses what OTLP has no such field for."""

import contextlib
import http.server
import json
import re
import threading

# Fields of OTLP's messages, as their JSON names: opentelemetry/proto/collector/trace/v1/trace_service.proto and what it
# imports. Those that Atoll never sends are left out.
INT64 = re.compile(r"-?\d+")
HEX = {"traceId": re.compile(r"[0-9a-f]{32}"), "spanId": re.compile(r"[0-9a-f]{16}")}
SPAN_NEEDED = {"traceId", "spanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano"}
SPAN_FIELDS = SPAN_NEEDED | {"parentSpanId", "attributes", "status"}


def attributes(found):
    values = {}
    for attribute in found:
        assert set(attribute) == {"key", "value"} and len(attribute["value"]) == 1, attribute
        [(kind, value)] = attribute["value"].items()
        assert isinstance(value, str), attribute
        assert kind == "stringValue" or (kind == "intValue" and INT64.fullmatch(value)), attribute
        assert attribute["key"] not in values, attribute
        values[attribute["key"]] = value
    return values


def span(found, resource):
    """A span with its times as numbers, its attributes and those of its process as dictionaries."""
    assert SPAN_NEEDED <= set(found) <= SPAN_FIELDS, found
    for name, pattern in {**HEX, "parentSpanId": HEX["spanId"]}.items():
        assert name not in found or pattern.fullmatch(found[name]), found
    assert found["kind"] in (1, 2), found
    status = found.get("status", {"code": 0, "message": ""})
    assert set(status) == {"code", "message"} and status["code"] in (0, 2), found
    times = {name: int(found[name]) for name in ("startTimeUnixNano", "endTimeUnixNano")}
    assert all(isinstance(found[name], str) for name in times), found
    assert times["startTimeUnixNano"] <= times["endTimeUnixNano"], found
    return found | times | {"attributes": attributes(found.get("attributes", [])), "resource": resource}


def spans(request):
    assert set(request) == {"resourceSpans"}, request
    for of_resource in request["resourceSpans"]:
        assert set(of_resource) == {"resource", "scopeSpans"} and set(of_resource["resource"]) == {"attributes"}
        resource = attributes(of_resource["resource"]["attributes"])
        for of_scope in of_resource["scopeSpans"]:
            assert set(of_scope) == {"scope", "spans"} and set(of_scope["scope"]) == {"name", "version"}, of_scope
            yield from (span(found, resource) for found in of_scope["spans"])


class TraceCollector:
    """Holds the spans that have come, and what was wrong with them."""

    def __init__(self):
        collector = self
        self.bodies, self.spans, self.wrong, self.status = [], [], [], 200

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.take(self.path, self.headers["Content-Type"], body)
                answer = b'{"partialSuccess":{}}'
                self.send_response(collector.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def take(self, path, content_type, body):
        if self.status != 200:
            return
        try:
            assert (path, content_type) == ("/v1/traces", "application/json"), (path, content_type)
            self.bodies.append(body)
            self.spans += spans(json.loads(body))
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            self.wrong.append(repr(error))

    def found(self, **wanted):
        """Spans whose fields are these."""
        return [one for one in list(self.spans) if all(one.get(name) == value for name, value in wanted.items())]

    def below(self, parent):
        return self.found(parentSpanId=parent["spanId"], traceId=parent["traceId"])

    @contextlib.contextmanager
    def serving(self):
        thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            self.server.server_close()
            thread.join(10)
