"""The audit log: a line of JSON for each request to a gateway and for each call of the admin API that may change
something, in a file or at a collector; no secret is in it."""

import http.server
import json
import threading
import urllib.error
import urllib.request

import pytest
from lib.logs import audit_lines, audited, changes_of, known_lines
from lib.nbd import NbdError
from lib.ports import free_port
from lib.verdicts import intact
from lib.waiting import wait_for


class Collector(http.server.BaseHTTPRequestHandler):
    """Takes lines, but not at first."""

    lines, refused, is_away = [], 0, False

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if Collector.refused < 2 or Collector.is_away:
            Collector.refused += 1
            self.send_response(503)
        else:
            Collector.lines += [json.loads(line) for line in body.splitlines()]
            self.send_response(204)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def collector():
    Collector.lines, Collector.refused, Collector.is_away = [], 0, False
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
    lines = lambda: known_lines(path) + audit_lines(strangers)
    wait_for("all lines", lambda: {line["status"] for line in lines()} >= {200, 403, 404}, 10)
    check(cluster, lines())
    assert all(line["principal"] for line in known_lines(path)), "strangers have a file of their own"
    assert {line["operation"] for line in audit_lines(changes_of(path))} == {"CreateBucket"}
    for file in (path, changes_of(path), strangers):
        assert file.stat().st_mode & 0o777 == 0o600
        assert cluster.credentials()["secret_key"] not in file.read_text()


def test_a_collector_gets_what_it_refused_at_first(scenario, collector):
    cluster = start(scenario, "collector", ATOLL_S3_AUDIT_LOG=collector)
    use(cluster)
    wait_for("all lines", lambda: {line["status"] for line in audited(Collector.lines)} >= {200, 403, 404}, 30)
    check(cluster, audited(Collector.lines))
    assert Collector.refused == 2


def test_a_collector_gets_lines_of_commands(scenario, collector):
    """Also those of commands that ended while it was away."""
    Collector.refused = 2
    cluster = start(scenario, "commands", ATOLL_COMMAND_AUDIT_LOG=collector)
    ended = lambda name: [
        line
        for line in once_each(Collector.lines)
        if line["operation"] == "CommandEnded" and line["command"] == f"atoll image create {name} --size 1M"
    ]
    cluster.create_image("one", "1M")
    wait_for("the line of a command", lambda: ended("one"), 10)
    Collector.is_away = True
    cluster.create_image("two", "1M")
    assert not ended("two")
    Collector.is_away = False
    wait_for("the line of the other", lambda: ended("two"), 30)
    assert ended("two")[0]["succeeded"] is True and not list((cluster.data / "log").glob("command-audit*"))


def once_each(lines):
    """The records by their places, each once: what was sent when a process was killed may come again."""
    return list({(line["run"], line["number"]): line for line in lines}.values())


def test_lines_outlive_a_gateway_that_is_killed_while_the_collector_is_away(scenario, collector):
    cluster = start(scenario, "spool", ATOLL_S3_AUDIT_LOG=collector)
    client = cluster.s3()
    client.create_bucket(Bucket="bucket")
    puts = lambda: [line["path"] for line in once_each(Collector.lines) if line["operation"] == "PutObject"]
    Collector.is_away = True
    for number in range(50):
        client.put_object(Bucket="bucket", Key=f"{number:02}", Body=b"")
    spool = cluster.data / "audit-spool" / "s3"
    written = lambda: sum(path.read_text().count('"PutObject"') for path in spool.glob("*.jsonl")) == 50
    wait_for("the lines on disk", written, 10)
    cluster.restarted("gateway", cluster.kill("gateway"))
    assert not puts()
    Collector.is_away = False
    wait_for("the lines at the collector", lambda: len(puts()) == 50, 30)
    assert puts() == [f"/bucket/{number:02}" for number in range(50)], "in order"


def problems(cluster):
    return {problem["code"] for problem in json.loads(cluster.cli("health", "--json", ok=None).stdout)["problems"]}


def test_requests_are_refused_when_the_spool_is_full_if_that_is_chosen(scenario, collector):
    """And with nothing lost they are served again when the collector has taken what waits."""
    chosen = {"ATOLL_AUDIT_ON_FAILURE": "refuse", "ATOLL_AUDIT_SPOOL": "1M"}
    cluster = start(scenario, "refuse", ATOLL_S3_AUDIT_LOG=collector, **chosen)
    client = cluster.s3()
    Collector.is_away = True

    def refusal():
        try:
            client.list_buckets()
        except client.exceptions.ClientError as error:
            return error.response["ResponseMetadata"]["HTTPStatusCode"]
        return None

    served = 0
    while not (refused := refusal()) and served < 10_000:
        served += 1
    assert refused == 503, f"{refused} after {served} requests"
    assert "AUDIT_REFUSING" in problems(cluster)
    Collector.is_away = False
    wait_for("requests are served", lambda: refusal() is None, 60)
    listed = lambda: [line for line in once_each(Collector.lines) if line["operation"] == "ListBuckets"]
    wait_for("no line is lost", lambda: len([line for line in listed() if line["status"] == 200]) > served, 30)
    assert not problems(cluster) & {"AUDIT_REFUSING", "AUDIT_LOST"}


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
    return wait_for(operation, lambda: [line for line in known_lines(path) if line["operation"] == operation], 10)


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


def sent(method, url, body=None, **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(url, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def add_copy_source(request, **_):
    request.params["X-Amz-Copy-Source"] = "versions/a"


def test_a_line_says_what_was_done_however_it_was_asked_for(kept):
    """A name of a parameter can be spelled otherwise, a copy's source be in a URL, and a key in a form."""
    client = kept.s3()
    made = client.put_object(Bucket="versions", Key="a", Body=b"a")["VersionId"]
    place = {"Bucket": "versions", "Key": "a"}
    url = client.generate_presigned_url("get_object_retention", place | {"VersionId": made})
    sent("GET", url.replace("versionId=", "version%49d="))
    assert of_operation(kept, "GetObjectRetention")[-1]["version_id"] == made
    client.meta.events.register("before-sign.s3.PutObject", add_copy_source)
    copied = len(of_operation(kept, "CopyObject"))
    assert sent("PUT", client.generate_presigned_url("put_object", place | {"Key": "c"})) == 200
    wait_for("the copy's line", lambda: len(of_operation(kept, "CopyObject")) > copied, 10)
    assert of_operation(kept, "CopyObject")[-1]["copy_source"] == "versions/a"
    form = client.generate_presigned_post("versions", "of a form/${filename}")
    fields = [f'name="{name}"\r\n\r\n{value}' for name, value in form["fields"].items()]
    parts = [*fields, 'name="file"; filename="x"\r\n\r\nbytes']
    body = "".join(f"--end\r\nContent-Disposition: form-data; {part}\r\n" for part in parts) + "--end--\r\n"
    assert sent("POST", form["url"], body.encode(), content_type="multipart/form-data; boundary=end") == 204
    assert of_operation(kept, "PostObject")[-1]["subject"] == "arn:aws:s3:::versions/of a form/x"


def test_the_logs_of_a_host_are_whole(kept):
    """Also after a gateway was killed, whose successor begins another chain."""
    kept.restarted("gateway", kept.kill("gateway"))
    begun = lambda: kept.json("audit", "verify")["logs"]
    wait_for("another chain", lambda: any(len(log["runs"]) > 1 for log in begun()), 30)
    found = kept.json("audit", "verify")
    assert found["is_whole"] and {log["file"].rsplit("/", 1)[-1] for log in found["logs"]} >= {
        "admin-audit.jsonl",
        "admin-audit-changes.jsonl",
        "s3-audit.jsonl",
        "s3-audit-changes.jsonl",
        "s3-audit-strangers.jsonl",
    }, found
    assert all(run["has_beginning"] and run["key"] for log in found["logs"] for run in log["runs"]), found


def test_a_line_that_was_changed_or_taken_out_is_found(kept, scenario):
    """In a copy of the log, as somebody who may write it would leave it."""
    lines = (kept.data / "log" / "s3-audit-changes.jsonl").read_text().splitlines(keepends=True)
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


def of_log(cluster, name, operation, **expected):
    """Lines of a log of the host that have these fields."""
    has = lambda line: line["operation"] == operation and expected.items() <= line.items()
    logs = lambda: [line for path in (cluster.data / "log").glob(f"{name}-audit*.jsonl") for line in audit_lines(path)]
    return wait_for(f"{operation} {expected}", lambda: [line for line in logs() if has(line)], 30)


def test_commands_are_in_the_log_with_their_users_and_ends(kept):
    kept.create_image("disk", "1M")
    [begun] = of_log(kept, "command", "CommandBegun", command="atoll image create disk --size 1M")
    [ended] = of_log(kept, "command", "CommandEnded", command="atoll image create disk --size 1M")
    assert begun["user"] and ended["user"] == begun["user"] and ended["succeeded"] is True, ended
    assert kept.cli("image", "rm", "nothing", ok=None).returncode == 1
    [failed] = of_log(kept, "command", "CommandEnded", command="atoll image rm nothing")
    assert failed["succeeded"] is False and "nothing" in failed["error"], failed
    kept.cli("image", "ls")
    lines = [line for path in (kept.data / "log").glob("command-audit*.jsonl") for line in audit_lines(path)]
    assert not [line for line in lines if line.get("command") == "atoll image ls"]


def test_who_tries_names_of_images_is_in_the_log(kept):
    for name in ("of-nobody", "x" * 2_000):
        with pytest.raises(NbdError):
            kept.nbd(name)
    [refused] = of_log(kept, "nbd", "AttachImage", image="of-nobody")
    assert "of-nobody" in refused["error"] and refused["access"] is None, refused
    [cut] = of_log(kept, "nbd", "AttachImage", image="x" * 1_024)
    assert "image" in cut["cut"] and len(cut["error"]) <= 1_024, cut


@pytest.mark.needs("nbdinfo")
def test_attachments_of_images_are_in_the_log(kept, scenario):
    kept.create_image("attached", "1M")
    scenario.run("nbdinfo", "--map", kept.nbd_uri("attached"))
    attached = of_log(kept, "nbd", "AttachImage", image="attached")
    assert attached[0]["access"] == "write" and attached[0]["client"].startswith("process "), attached
    of_log(kept, "nbd", "DetachImage", image="attached")
    of_log(kept, "nbd", "OpenImage", image="attached", access="write")
    of_log(kept, "nbd", "CloseImage", image="attached")
    kept.cli("image", "export", "attached", scenario.directory / "attached.raw")
    [taken] = of_log(kept, "command", "OpenImage", image="attached")
    assert taken["process"] == "command" and taken["user"] and taken["error"] is None, taken


def test_uses_of_keys_are_in_the_log(kept):
    kept.create_image("sealed", "1M")
    [wrapped] = [
        line
        for line in of_log(kept, "command", "UseKey", use_of_key="wrap")
        if line["purpose"].startswith("atoll image ") and line["uses"] == 1
    ][-1:]
    assert wrapped["key"].startswith("local:") and wrapped["failures"] == 0, wrapped
    kept.s3().put_object(Bucket="versions", Key="sealed", Body=b"x")
    of_log(kept, "s3", "UseKey", use_of_key="unwrap", process="gateway")


def test_changes_of_policies_are_in_the_log(kept):
    client = kept.s3()
    allow = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::versions/*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [allow]})
    client.delete_public_access_block(Bucket="versions")
    client.put_bucket_policy(Bucket="versions", Policy=policy)
    client.delete_bucket_policy(Bucket="versions")
    [line] = of_operation(kept, "PutBucketPolicy")
    [change] = line["policies"]
    assert change["document"] == "bucket versions" and change["added"] == [allow] and not change["removed"], change
    assert change["before_sha256"] is None and len(change["after_sha256"]) == 64
    [line] = of_operation(kept, "DeleteBucketPolicy")
    assert line["policies"][0]["removed"] == [allow] and line["policies"][0]["after_sha256"] is None, line


def test_changes_of_buckets_are_in_the_log(kept):
    client = kept.s3()
    client.put_public_access_block(Bucket="versions", PublicAccessBlockConfiguration={"BlockPublicPolicy": True})
    client.put_bucket_ownership_controls(
        Bucket="versions", OwnershipControls={"Rules": [{"ObjectOwnership": "ObjectWriter"}]}
    )
    client.put_bucket_acl(Bucket="versions", ACL="authenticated-read")
    [change] = of_operation(kept, "PutPublicAccessBlock")[-1]["settings"]
    assert change["setting"] == "public_access_block" and change["after"]["block_public_policy"] is True, change
    [change] = of_operation(kept, "PutBucketAcl")[-1]["settings"]
    assert change["setting"] == "access" and "acl" not in change["before"] and change["after"]["acl"], change


def test_another_host_finds_a_log_that_was_made_anew(kept, scenario):
    """By what cluster state knows: the lines fit each other."""
    kept.create_image("known", "1M")
    name = "command-audit.jsonl"
    lines = (kept.data / "log" / name).read_text().splitlines(keepends=True)
    directory = scenario.directory / "copies"
    directory.mkdir()

    def verify(changed):
        (directory / name).write_text("".join(changed))
        found = kept.cli("audit", "verify", directory / name, "--json", ok=None)
        return found.returncode, json.loads(found.stdout)

    code, found = verify(lines)
    assert code == 0 and found["is_compared"] and found["logs"][0]["known_lines"] > 0, found
    code, found = verify(lines[:-2])
    assert code == 1 and "cut off" in str(found["logs"][0]["problems"]), found
    last_run = json.loads(lines[-1])["run"]
    code, found = verify([line for line in lines if json.loads(line)["run"] != last_run])
    assert code == 1 and "is missing" in str(found["logs"][0]["problems"]), found
    heads = kept.json("audit", "heads")
    assert name in {head["log"] for head in heads}, heads
