"""What strangers can make grow: their requests leave bounded lines in a room of their own, and push out no line of
somebody who is known."""

import json
import socket
import ssl

import boto3
import pytest
from lib.console import Caller
from lib.identities import Account, code_of
from lib.logs import audit_lines, changes_of, request_lines
from lib.waiting import wait_for

# A flood of a second or two. Unbounded, it would be 60 MB of lines.
REQUESTS, CONNECTION_REQUESTS, PATH_BYTES = 1_000, 100, 60_000
# Fewer bytes than the admin server takes from a connection without a log-in.
STRANGER_BYTES = 400_000
GROWTH_BYTES_MAX = 256 << 10


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster("logs", osds=1, osd_size="2G")
    cluster.variables["ATOLL_S3_AUDIT_LOG"] = str(cluster.data / "log" / "s3-audit.jsonl")
    cluster.variables["ATOLL_AUDIT_REQUESTS_ROOM"] = "1M"
    cluster.up()
    return cluster


def audit_files(cluster, door):
    return sorted((cluster.data / "log").glob(f"{door}-audit*.jsonl*"))


def size_bytes(cluster, door):
    return sum(path.stat().st_size for path in audit_files(cluster, door))


def flood(port, head, context=None):
    """Requests without any login, and their answers. A connection may not send more before it has logged in."""
    requests = min(CONNECTION_REQUESTS, STRANGER_BYTES // len(head))
    for _ in range(-(-REQUESTS // requests)):
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context:
                connection = context.wrap_socket(connection, server_hostname="127.0.0.1")
            for _ in range(requests):
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


def query_client(cluster, service, access=None, secret=None, **more):
    credentials = cluster.credentials()
    return boto3.client(
        service,
        endpoint_url=credentials["endpoint"],
        region_name="us-east-1",
        aws_access_key_id=access or credentials["access_key"],
        aws_secret_access_key=secret or credentials["secret_key"],
        config=boto3.session.Config(retries={"total_max_attempts": 1}),
        **more,
    )


@pytest.fixture(scope="module")
def low(cluster):
    """A user of another account without any right."""
    account = Account(cluster, [cluster], "other")
    return account, account.user("low")


def test_refused_lines_of_iam_and_sts_say_who_was_to_do_what(cluster, low):
    account, user = low
    known, strangers = (cluster.data / "log" / name for name in ("s3-audit.jsonl", "s3-audit-strangers.jsonl"))
    who = f"arn:aws:iam::{account.id}:user/low"
    role = f"arn:aws:iam::{account.id}:role/any"
    iam = query_client(cluster, "iam", user.access, user.secret)
    sts = query_client(cluster, "sts", user.access, user.secret)
    assert code_of(iam.create_user, UserName="eve") == "AccessDenied"
    assert code_of(sts.assume_role, RoleArn=role, RoleSessionName="job") == "AccessDenied"
    session = sts.get_session_token()["Credentials"]
    keys = (session["AccessKeyId"], session["SecretAccessKey"])
    of_session = query_client(cluster, "iam", *keys, aws_session_token=session["SessionToken"])
    assert code_of(of_session.delete_user, UserName="low") == "AccessDenied"
    wrong = query_client(cluster, "iam", user.access, "wrong")
    assert code_of(wrong.create_user, UserName="eve") == "SignatureDoesNotMatch"
    token = {"RoleArn": role, "RoleSessionName": "job", "WebIdentityToken": "made.up.token"}
    assert code_of(sts.assume_role_with_web_identity, **token) != "ok"
    user_arn = lambda name: f"arn:aws:iam::{account.id}:user/{name}"
    for path, action, subject, principal in (
        (known, "iam:CreateUser", user_arn("eve"), who),
        (known, "sts:AssumeRole", role, who),
        (known, "iam:DeleteUser", who, who),
        (strangers, "iam:CreateUser", None, None),
        (strangers, "sts:AssumeRoleWithWebIdentity", role, None),
    ):
        found = lambda path=path, action=action: [
            line for line in audit_lines(path) if line.get("action") == action and line["status"] >= 400
        ]
        line = wait_for(f"{action} in {path.name}", found, 10)[-1]
        assert (line["subject"], line["principal"]) == (subject, principal), line


def test_who_may_change_nothing_pushes_out_no_change(cluster, low):
    """Neither by reads and writes, nor by changes that are refused. The room of requests has 1 MiB here."""
    _, user = low
    cluster.s3().create_bucket(Bucket="before")
    known = cluster.data / "log" / "s3-audit.jsonl"
    made = lambda: [line for line in audit_lines(changes_of(known)) if line.get("bucket") == "before"]
    wait_for("the line of the change", made, 10)
    size_bytes = changes_of(known).stat().st_size
    s3, iam = user.s3, query_client(cluster, "iam", user.access, user.secret)
    for number in range(1_500):
        assert code_of(s3.get_object, Bucket="before", Key="k" * 900) == "AccessDenied"
        if number % 50 == 0:
            assert code_of(iam.create_user, UserName="eve") == "AccessDenied"
            assert code_of(s3.put_bucket_tagging, Bucket="before", Tagging={"TagSet": []}) == "AccessDenied"
    wait_for("older requests are gone", lambda: known.with_name(f"{known.name}.8").exists(), 20)
    assert made(), "the change is there"
    # Nothing but uses of keys and signatures has come.
    assert changes_of(known).stat().st_size - size_bytes < 16 << 10
