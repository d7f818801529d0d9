"""Accounts, users and their keys, made by the command line, and clients that sign with them."""

import json
import time

import boto3
from botocore import UNSIGNED
from botocore.client import Config

from lib.s3 import error_of
from lib.waiting import wait_for

# A change of identities or of a bucket's policy counts at all gateways after so long.
EFFECT_SECONDS_MAX = 1.5


class Key:
    """An access key, and clients of both gateways that sign with it."""

    def __init__(self, gateways, access, secret):
        self.access, self.secret = access, secret
        self.clients = [gateway.s3(access=access, secret=secret) for gateway in gateways]

    @property
    def s3(self):
        return self.clients[0]


class Nobody:
    """Clients that do not sign."""

    def __init__(self, endpoints):
        self.clients = [unsigned(endpoint) for endpoint in endpoints]

    @property
    def s3(self):
        return self.clients[0]


def unsigned(endpoint):
    config = Config(signature_version=UNSIGNED, s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
    return boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", config=config)


class Account:
    """An account of a cluster. `gateways` have `s3(access=, secret=)`."""

    def __init__(self, cluster, gateways, name, *more):
        self.cluster, self.gateways, self.name = cluster, gateways, name
        made = cluster.json("account", "create", name, *more)
        self.id, self.canonical_id = made["Account"]["Id"], made["Account"]["CanonicalId"]
        self.root = self.key_of(made)

    def key_of(self, made):
        return Key(self.gateways, made["AccessKey"]["AccessKeyId"], made["AccessKey"]["SecretAccessKey"])

    def cli(self, *arguments, **options):
        return self.cluster.cli(*arguments, "--account", self.name, **options)

    def json(self, *arguments):
        return self.cluster.json(*arguments, "--account", self.name)

    def user(self, name):
        """A new user with a key."""
        self.cli("user", "create", name)
        return self.user_key(name)

    def user_key(self, name, *more):
        return self.key_of(self.json("user", "key", "create", name, *more))

    def file(self, name, document):
        path = self.cluster.scenario.directory / f"{name}.json"
        path.write_text(json.dumps(document))
        return path


class FirstAccount(Account):
    """The one that a cluster begins with."""

    def __init__(self, cluster):
        self.cluster, self.gateways, self.name = cluster, [cluster], "100000000000"


def policy(*statements):
    """A policy document; each statement is an effect, actions, resources, and more."""
    made = []
    for effect, actions, resources, *more in statements:
        resources = [resources] if isinstance(resources, str) else resources
        arns = [f"arn:aws:s3:::{resource}" for resource in resources]
        made.append({"Effect": effect, "Action": actions, "Resource": arns} | (more[0] if more else {}))
    return {"Version": "2012-10-17", "Statement": made}


def code_of(call, *arguments, **named):
    """The code of an S3 error, 'ok' if there is none."""
    error = error_of(call, *arguments, **named)
    return error[1] if error else "ok"


def counts_everywhere(request, clients, wanted):
    """Seconds until a request is answered with this code by each client, and then again and again."""
    began = time.monotonic()
    for client in clients:
        found = []
        is_so = lambda client=client, found=found: found.append(code_of(request, client)) or found[-1] == wanted
        left = max(began + EFFECT_SECONDS_MAX - time.monotonic(), 0)
        wait_for(f"the answer is {wanted}, not {found[-1:]}", is_so, left, pause=0.02)
    seconds = time.monotonic() - began
    answers = [code_of(request, client) for client in clients * 5]
    assert answers == [wanted] * len(answers), f"it flaps: {answers}"
    return seconds
