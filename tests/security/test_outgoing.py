"""Where processes call because an account or an operator says so: to no private address, unless an operator has named
its network by the command line of a host."""

import base64
import json
import socket
import threading
import time

import boto3
import pytest
from botocore import UNSIGNED
from botocore.client import Config
from botocore.exceptions import ClientError
from lib.console import Caller, with_operators
from lib.waiting import wait_for

# An issuer that has failed is not asked again for so long.
FAILURE_PAUSE_SECONDS = 5


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster("outgoing", osds=1, osd_size="2G")
    cluster.up()
    return cluster


class Inside:
    """Something that listens on loopback, and notes who comes."""

    def __init__(self):
        self.socket, self.reached = socket.create_server(("127.0.0.1", 0)), 0
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            stream, _ = self.socket.accept()
            self.reached += 1
            stream.close()


def token(issuer):
    part = lambda value: base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()
    claims = {"iss": issuer, "sub": "job", "aud": "atoll", "iat": int(time.time()), "exp": int(time.time()) + 300}
    return ".".join([part({"alg": "RS256", "kid": "a"}), part(claims), "c2lnbmF0dXJl"])


def test_issuers_of_accounts_are_asked_in_named_networks_only(cluster):
    inside = Inside()
    iam = client(cluster, "iam")
    provider = iam.create_open_id_connect_provider(Url=inside.url, ClientIDList=["atoll"])["OpenIDConnectProviderArn"]
    trust = {"Effect": "Allow", "Action": "sts:AssumeRoleWithWebIdentity", "Principal": {"Federated": provider}}
    document = json.dumps({"Version": "2012-10-17", "Statement": trust})
    role = iam.create_role(RoleName="job", AssumeRolePolicyDocument=document)["Role"]["Arn"]
    sts = client(cluster, "sts", signature_version=UNSIGNED)

    def assume():
        """Who bears a token always gets the same answer, after the same time."""
        started = time.monotonic()
        with pytest.raises(ClientError) as refused:
            sts.assume_role_with_web_identity(
                RoleArn=role, RoleSessionName="session", WebIdentityToken=token(inside.url)
            )
        return refused.value.response["Error"], time.monotonic() - started

    wait_for("the gateway knows the issuer", lambda: assume()[0]["Code"] == "IDPCommunicationError", 30)
    time.sleep(FAILURE_PAUSE_SECONDS + 1)
    before, seconds = assume()
    assert inside.reached == 0, "a stranger has made the gateway call its own host"
    assert seconds > 4.5, f"{seconds} s"
    cluster.cli("settings", "set", "outgoing_networks_of_accounts", "127.0.0.1")
    time.sleep(FAILURE_PAUSE_SECONDS + 1)
    after, seconds = assume()
    assert inside.reached > 0, "the network is named"
    assert after == before and seconds > 4.5, f"{after} after {seconds} s, and {before} before"


def client(cluster, service, **config):
    credentials = cluster.credentials()
    return boto3.client(
        service,
        endpoint_url=credentials["endpoint"],
        region_name="us-east-1",
        config=Config(retries={"total_max_attempts": 1}, **config),
        aws_access_key_id=credentials["access_key"],
        aws_secret_access_key=credentials["secret_key"],
    )


def test_collectors_of_traces_are_called_in_named_networks_only(cluster):
    inside = Inside()
    refused = cluster.cli("settings", "set", "trace_endpoint", inside.url, ok=(1,)).stderr
    assert "outgoing_networks" in refused and "127.0.0.1 is of loopback" in refused, refused
    assert inside.reached == 0
    for wrong in ("10.0.0.1/8", "everywhere"):
        cluster.cli("settings", "set", "outgoing_networks", wrong, ok=(1,))


def test_no_operator_of_the_console_names_a_network(cluster):
    address = with_operators(cluster)
    admin = Caller.logged_in(address, address.admin)
    for setting in ("outgoing_networks", "outgoing_networks_of_accounts"):
        assert admin.call("PATCH", "/api/v1/settings", {setting: "0.0.0.0/0"}).status == 400
