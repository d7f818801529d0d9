"""A right that is taken away ends what it began: attachments of images, and requests for a bucket that is gone."""

import http.client
import json
import time
import urllib.parse

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from lib.identities import Account
from lib.nbd import NbdError
from lib.nvme import Controller, host_name, serving_cluster, status_of, subsystems
from lib.ports import free_port
from lib.waiting import wait_for

HOST, OTHER = map(host_name, "12")
INVALID_HOST = 0x184
# Cluster state tells servers of a change at once; on a busy machine that takes a moment.
SECONDS_MAX = 10


@pytest.fixture(scope="module")
def address():
    return "127.0.0.1", free_port()


@pytest.fixture(scope="module")
def cluster(scenario, address):
    return serving_cluster(scenario, address, {"disk": (HOST, OTHER), "shared": ()}, "64M", osds=1, osd_size="2G")


def is_cut_off(client):
    try:
        client.read(0, 4096)
    except OSError:
        return True
    return False


def lines_of(cluster, log, operation):
    text = (cluster.data / "log" / log).read_text()
    return [line for line in map(json.loads, text.splitlines()) if line["operation"] == operation]


def test_an_nvme_host_that_is_allowed_no_more_loses_its_image(cluster, address):
    subsystem = subsystems(cluster)("disk")
    with Controller(address, subsystem, HOST) as host:
        host.write(0, b"a" * 4096)
        cluster.cli("image", "access", "disk", "--allow", OTHER)
        wait_for("the host is cut off", lambda: is_cut_off(host), SECONDS_MAX)
    assert status_of(Controller, address, subsystem, HOST) == INVALID_HOST
    lost = lines_of(cluster, "nvme-audit.jsonl", "RevokeImage")
    assert [(line["image"], line["nvme_host"]) for line in lost] == [("disk", HOST)], lost
    with Controller(address, subsystem, OTHER) as other:
        cluster.cli("image", "access", "disk", "--allow", OTHER, "--allow", HOST)
        assert other.read(0, 4096) == b"a" * 4096, "a change that takes nothing from a host leaves it alone"


def test_an_nbd_client_that_is_allowed_no_more_loses_its_image(cluster):
    cluster.open_to_tcp("shared", "--access", "multi-attach")
    with cluster.nbd("shared", tcp=True) as client, cluster.nbd("shared") as local:
        client.write(0, b"b" * 4096)
        cluster.cli("image", "access", "shared", "--allow", "192.0.2.1")
        wait_for("the client is cut off", lambda: is_cut_off(client), SECONDS_MAX)
        assert local.read(0, 4096) == b"b" * 4096, "who can open the socket may use every image"
    with pytest.raises(NbdError, match="only to clients with a certificate"):
        cluster.nbd("shared", tcp=True)
    lost = lines_of(cluster, "nbd-audit.jsonl", "RevokeImage")
    assert [(line["image"], line["client"]) for line in lost] == [("shared", "127.0.0.1")], lost


@pytest.fixture(scope="module")
def owner(cluster):
    return Account(cluster, [cluster], "owner")


@pytest.fixture(scope="module")
def intruder(cluster):
    return Account(cluster, [cluster], "intruder")


class HeldRequest:
    """A signed request whose body is not sent yet."""

    def __init__(self, endpoint, key, target, body):
        request = AWSRequest("PUT", endpoint + target, data=body)
        S3SigV4Auth(Credentials(key.access, key.secret), "s3", "us-east-1").add_auth(request)
        self.connection = http.client.HTTPConnection(urllib.parse.urlparse(endpoint).netloc, timeout=20)
        self.connection.putrequest("PUT", target)
        for name, value in [*request.headers.items(), ("Content-Length", str(len(body)))]:
            self.connection.putheader(name, value)
        self.connection.endheaders()
        self.body = body

    def sent(self):
        self.connection.send(self.body)
        answer = self.connection.getresponse()
        return answer.status, answer.read()


def test_a_request_changes_no_bucket_that_took_the_name_of_its_own(cluster, owner, intruder):
    """It was let in when the name was the intruder's, who sends the body when it is the owner's."""
    resources = ["arn:aws:s3:::wanted", "arn:aws:s3:::wanted/*"]
    give = {"Effect": "Allow", "Principal": {"AWS": intruder.id}, "Action": "s3:*", "Resource": resources}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [give]}).encode()
    tags = b"<Tagging><TagSet><Tag><Key>of</Key><Value>intruder</Value></Tag></TagSet></Tagging>"
    intruder.root.s3.create_bucket(Bucket="wanted")
    endpoint = cluster.credentials()["endpoint"]
    held = [
        HeldRequest(endpoint, intruder.root, f"/wanted?{name}", body)
        for name, body in {"policy": policy, "tagging": tags}.items()
    ]
    # They are let in, or refused, before their bodies are read.
    time.sleep(2)
    intruder.root.s3.delete_bucket(Bucket="wanted")
    owner.root.s3.create_bucket(Bucket="wanted")
    for request in held:
        status, answer = request.sent()
        assert status == 404 and b"NoSuchBucket" in answer, (status, answer)
    for read in (owner.root.s3.get_bucket_policy, owner.root.s3.get_bucket_tagging):
        with pytest.raises(ClientError, match="NoSuch"):
            read(Bucket="wanted")
    with pytest.raises(ClientError, match="AccessDenied"):
        intruder.root.s3.list_objects_v2(Bucket="wanted")
