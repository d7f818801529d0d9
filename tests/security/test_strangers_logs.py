"""What strangers can make grow: their requests leave bounded lines in a room of their own, and push out no line of
somebody who is known."""

import json
import socket
import ssl

import boto3
import pytest
from lib.console import Caller
from lib.logs import request_lines
from lib.waiting import wait_for

# A flood of a second or two. Unbounded, it would be 60 MB of lines.
REQUESTS, CONNECTION_REQUESTS, PATH_BYTES = 1_000, 100, 60_000
GROWTH_BYTES_MAX = 256 << 10


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster("logs", osds=1, osd_size="2G")
    cluster.variables["ATOLL_S3_AUDIT_LOG"] = str(cluster.data / "log" / "s3-audit.jsonl")
    cluster.up()
    return cluster


def audit_files(cluster, door):
    return sorted((cluster.data / "log").glob(f"{door}-audit*.jsonl*"))


def size_bytes(cluster, door):
    return sum(path.stat().st_size for path in audit_files(cluster, door))


def flood(port, head, context=None):
    """Requests without any login, and their answers."""
    for _ in range(REQUESTS // CONNECTION_REQUESTS):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context:
                connection = context.wrap_socket(connection, server_hostname="127.0.0.1")
            for _ in range(CONNECTION_REQUESTS):
                ask(connection, head)
            connection.close()


def ask(connection, head):
    connection.sendall(head)
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += received(connection, 65536)
    head_part, _, body = answer.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b": ", 1) for line in head_part.split(b"\r\n")[1:])
    left = int(fields.get(b"content-length", b"0")) - len(body)
    while left > 0:
        left -= len(received(connection, min(left, 65536)))


def received(connection, length):
    part = connection.recv(length)
    assert part, "the connection was closed"
    return part


def refused_in_lines(path):
    lines = request_lines(path)
    return sum(line.get("refusals", 1) for line in lines)


def test_a_name_at_the_log_in_is_no_identity(cluster, address):
    """Whoever tries a password under an operator's name stays among strangers."""
    answer = Caller(address).call("POST", "/api/v1/session", {"user": "ann", "password": "wrong"}, csrf="login")
    assert answer.status == 401, answer
    strangers = cluster.data / "log" / "admin-audit-strangers.jsonl"
    tried = lambda: [line for line in request_lines(strangers) if line.get("user") == "ann"]
    wait_for("the attempt", tried, 10)
    known = request_lines(cluster.data / "log" / "admin-audit.jsonl")
    assert not [line for line in known if line["status"] == 401], known


def test_the_admin_audit_log_keeps_operators(cluster, address, admin):
    """A flood of calls without a session do not erase what an operator has done."""
    assert admin.call("PUT", "/api/v1/flags/nodeepscrub", {}).status == 200
    known = cluster.data / "log" / "admin-audit.jsonl"
    of_ann = lambda: [line for line in request_lines(known) if line["user"] == "ann" and line["method"] == "PUT"]
    wait_for("the operator's line", of_ann, 10)
    before, context = size_bytes(cluster, "admin"), ssl.create_default_context(cafile=address.ca_file)
    flood(cluster.admin_port, b"DELETE /api/v1/%s HTTP/1.1\r\nHost: x\r\n\r\n" % (b"a" * PATH_BYTES), context)
    strangers = cluster.data / "log" / "admin-audit-strangers.jsonl"
    wait_for("all refusals are counted", lambda: refused_in_lines(strangers) >= REQUESTS, 30)
    assert size_bytes(cluster, "admin") - before < GROWTH_BYTES_MAX
    assert of_ann()
    cut = [line for line in request_lines(strangers) if line.get("path", "").startswith("/api/v1/aaa")]
    assert cut and all(line["cut"] == ["path"] and len(line["path"]) == 1024 for line in cut), json.dumps(cut)[:500]


def test_the_s3_audit_log_keeps_those_who_sign(cluster):
    """Anonymous requests do not erase signed ones."""
    cluster.s3().create_bucket(Bucket="kept")
    known = cluster.data / "log" / "s3-audit.jsonl"
    signed = lambda: [line for line in request_lines(known) if line["operation"] == "CreateBucket"]
    wait_for("the signed request's line", signed, 10)
    before = size_bytes(cluster, "s3")
    flood(cluster.s3_port, b"GET /kept/%s HTTP/1.1\r\nHost: x\r\nUser-Agent: %s\r\n\r\n" % (b"b" * 900, b"u" * 9_000))
    strangers = cluster.data / "log" / "s3-audit-strangers.jsonl"
    wait_for("all refusals are counted", lambda: refused_in_lines(strangers) >= REQUESTS, 30)
    assert size_bytes(cluster, "s3") - before < GROWTH_BYTES_MAX
    assert signed() and all(line["principal"] for line in request_lines(known))
    cut = [line for line in request_lines(strangers) if line.get("path", "").startswith("/kept/bbb")]
    assert cut and all(line["cut"] == ["user_agent"] and len(line["user_agent"]) == 256 for line in cut), cut


def test_changes_of_identities_are_lines_of_who_made_them(cluster):
    """A line of IAM says who has done what to whom."""
    credentials = cluster.credentials()
    iam = boto3.client(
        "iam",
        endpoint_url=credentials["endpoint"],
        region_name="us-east-1",
        aws_access_key_id=credentials["access_key"],
        aws_secret_access_key=credentials["secret_key"],
    )
    iam.create_user(UserName="dora")
    known = cluster.data / "log" / "s3-audit.jsonl"
    made = lambda: [line for line in request_lines(known) if line["action"] == "iam:CreateUser"]
    [line] = wait_for("the line", made, 10)
    assert line["principal"].endswith(":root") and line["subject"].endswith(":user/dora"), line
    assert line["access_key"] == credentials["access_key"] and line["operation"] == "Iam", line
