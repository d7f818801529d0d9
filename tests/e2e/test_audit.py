"""The audit log: a line of JSON for each request to a gateway and for each call of the admin API that may change
something, in a file or at a collector; no secret is in it."""

import http.server
import json
import threading

import pytest
from lib.logs import audit_lines, audited
from lib.ports import free_port
from lib.verdicts import intact
from lib.waiting import wait_for


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes lines, but not at first."""

    lines, refused = [], 0

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if Collector.refused < 2:
            Collector.refused += 1
            self.send_response(503)
        else:
            Collector.lines += [json.loads(line) for line in body.splitlines()]
            self.send_response(204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def collector():
    Collector.lines, Collector.refused = [], 0
    server = http.server.ThreadingHTTPServer(("127.0.0.1", free_port()), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/audit"
    server.shutdown()


def start(scenario, name, **variables):
    cluster = scenario.cluster(name, osds=1, osd_size="2G")
    cluster.variables.update(variables)
    cluster.up()
    return cluster


def use(cluster):
    """A bucket, an object, a question for what is not there, and one that is signed wrongly."""
    client = cluster.s3()
    client.create_bucket(Bucket="bucket")
    client.put_object(Bucket="bucket", Key="one two", Body=b"x" * 5000)
    intact(client.get_object(Bucket="bucket", Key="one two")["Body"].read() == b"x" * 5000, "other bytes")
    with pytest.raises(client.exceptions.ClientError):
        client.get_object(Bucket="bucket", Key="nothing")
    wrong = cluster.s3(secret="wrong")
    with pytest.raises(client.exceptions.ClientError):
        wrong.list_buckets()


def check(cluster, lines):
    by_operation = {}
    for line in lines:
        by_operation.setdefault(line["operation"], []).append(line)
    [put] = by_operation["PutObject"]
    key = cluster.credentials()["access_key"]
    expected = {"source": "s3", "status": 200, "bucket": "bucket", "path": "/bucket/one%20two", "access_key": key}
    assert {name: put[name] for name in expected} == expected, f"{put}"
    assert put["received_bytes"] >= 5000 and put["principal"].endswith(":root") and put["client"] == "127.0.0.1"
    assert put["method"] == "PUT" and put["request_id"] and put["duration_us"] > 0 and "Boto3" in put["user_agent"]
    assert sorted(line["status"] for line in by_operation["GetObject"]) == [200, 404]
    refused = [line for line in lines if line["status"] == 403]
    assert refused and all(line["principal"] is None and line["bucket"] is None for line in refused), f"{refused}"


def test_each_request_is_a_line_of_a_file(scenario):
    path = scenario.directory / "s3-audit.jsonl"
    strangers = scenario.directory / "s3-audit-strangers.jsonl"
    cluster = start(scenario, "file", ATOLL_S3_AUDIT_LOG=str(path))
    use(cluster)
    lines = lambda: audit_lines(path) + audit_lines(strangers)
    wait_for("all lines", lambda: {line["status"] for line in lines()} >= {200, 403, 404}, 10)
    check(cluster, lines())
    assert all(line["principal"] for line in audit_lines(path)), "strangers have a file of their own"
    for file in (path, strangers):
        assert file.stat().st_mode & 0o777 == 0o600
        assert cluster.credentials()["secret_key"] not in file.read_text()


def test_a_collector_gets_what_it_refused_at_first(scenario, collector):
    cluster = start(scenario, "collector", ATOLL_S3_AUDIT_LOG=collector)
    use(cluster)
    wait_for("all lines", lambda: {line["status"] for line in audited(Collector.lines)} >= {200, 403, 404}, 30)
    check(cluster, audited(Collector.lines))
    assert Collector.refused == 2


@pytest.fixture(scope="module")
def kept(scenario):
    """The log that a gateway keeps by default."""
    cluster = start(scenario, "default")
    client = cluster.s3()
    client.create_bucket(Bucket="versions")
    client.put_bucket_versioning(Bucket="versions", VersioningConfiguration={"Status": "Enabled"})
    return cluster


def of_operation(cluster, operation):
    path = cluster.data / "log" / "s3-audit.jsonl"
    return wait_for(operation, lambda: [line for line in audit_lines(path) if line["operation"] == operation], 10)


def test_a_line_says_what_was_done(kept):
    """Which version was made, what was copied, and each key of a request with many."""
    client = kept.s3()
    made = client.put_object(Bucket="versions", Key="a", Body=b"a")["VersionId"]
    client.copy_object(Bucket="versions", Key="b", CopySource={"Bucket": "versions", "Key": "a"})
    client.delete_objects(
        Bucket="versions", Delete={"Objects": [{"Key": "a", "VersionId": made}, {"Key": "b"}, {"Key": "x" * 1025}]}
    )
    assert of_operation(kept, "PutObject")[-1]["version_id"] == made
    assert of_operation(kept, "CopyObject")[-1]["copy_source"] == "versions/a"
    [line] = of_operation(kept, "DeleteObjects")
    first, second, third = line["deleted"]
    assert first == {"key": "a", "version_id": made} and second == {"key": "b"}, line
    assert len(third["key"]) == 1024 and third["error"], line


def test_the_logs_of_a_host_are_whole(kept):
    """Also after a gateway was killed, whose successor begins another chain."""
    kept.restarted("gateway", kept.kill("gateway"))
    begun = lambda: kept.json("audit", "verify")["logs"]
    wait_for("another chain", lambda: any(len(log["runs"]) > 1 for log in begun()), 30)
    found = kept.json("audit", "verify")
    assert found["is_whole"] and {log["file"].rsplit("/", 1)[-1] for log in found["logs"]} >= {
        "admin-audit.jsonl",
        "s3-audit.jsonl",
        "s3-audit-strangers.jsonl",
    }, found
    assert all(run["has_beginning"] and run["key"] for log in found["logs"] for run in log["runs"]), found


def test_a_line_that_was_changed_or_taken_out_is_found(kept, scenario):
    """In a copy of the log, as somebody who may write it would leave it."""
    lines = (kept.data / "log" / "s3-audit.jsonl").read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if '"CreateBucket"' in line)
    copy = scenario.directory / "copy.jsonl"

    def verify(changed):
        copy.write_text("".join(changed))
        return scenario.run(scenario.atoll, "audit", "verify", copy, ok=None, env=scenario.environment)

    assert verify(lines).returncode == 0
    changed = verify([*lines[:at], lines[at].replace(":root", ":user/eve"), *lines[at + 1 :]])
    assert changed.returncode == 1 and f"line {at} of run" in changed.stdout, changed.stdout
    assert verify(lines[:at] + lines[at + 1 :]).returncode == 1
    assert verify([*lines[:at], *lines[at + 1 :], lines[at]]).returncode == 1
