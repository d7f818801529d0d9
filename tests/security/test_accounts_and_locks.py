"""What an account cannot do to another, to a version that is locked, and after its rights were taken away.

crates/s3/tests/s3_credentials.py has every operation of S3 on the bucket of another account; here are those of IAM.
"""

import datetime
import json
import time

import boto3
import botocore.session
import pytest
from botocore.exceptions import ClientError
from lib.console import Caller
from lib.identities import Account, FirstAccount, code_of
from lib.waiting import wait_for

MODEL = botocore.session.get_session().get_service_model("iam")
TRUST = '{"Version":"2012-10-17","Statement":{"Effect":"Allow","Principal":{"AWS":"*"},"Action":"sts:TagSession"}}'
READS = '{"Version":"2012-10-17","Statement":{"Effect":"Allow","Action":"s3:GetObject","Resource":"*"}}'
# What is taken away ends after so long at most while cluster state answers; without it after 30 s.
TAKEN_SECONDS_MAX = 5
UNTIL = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=2)
SOONER = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=1)
COMPLIANCE = {"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": UNTIL}
GOVERNANCE = {"ObjectLockMode": "GOVERNANCE", "ObjectLockRetainUntilDate": UNTIL}
HELD = {"ObjectLockLegalHoldStatus": "ON"}


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster("accounts", osds=1, osd_size="2G")
    cluster.up()
    return cluster


def iam_of(cluster, key):
    return boto3.client(
        "iam",
        endpoint_url=cluster.credentials()["endpoint"],
        region_name="us-east-1",
        aws_access_key_id=key.access,
        aws_secret_access_key=key.secret,
    )


class Owner(Account):
    """An account that has one of each kind."""

    def __init__(self, cluster):
        super().__init__(cluster, [cluster], "owner")
        self.iam = iam_of(cluster, self.root)
        self.iam.create_user(UserName="ann")
        self.key = self.iam.create_access_key(UserName="ann")["AccessKey"]["AccessKeyId"]
        self.iam.create_group(GroupName="staff")
        self.iam.create_role(RoleName="reader", AssumeRolePolicyDocument=TRUST)
        self.policy = self.iam.create_policy(PolicyName="reads", PolicyDocument=READS)["Policy"]["Arn"]
        provider = self.iam.create_open_id_connect_provider(Url="https://issuer.example.com", ClientIDList=["a"])
        self.provider = provider["OpenIDConnectProviderArn"]
        for kind, name in (("User", "ann"), ("Group", "staff"), ("Role", "reader")):
            put = getattr(self.iam, f"put_{kind.lower()}_policy")
            put(**{f"{kind}Name": name}, PolicyName="own", PolicyDocument=READS)

    def names(self):
        """The parameters that name what is the account's."""
        return {
            "UserName": "ann",
            "GroupName": "staff",
            "RoleName": "reader",
            "PolicyArn": self.policy,
            "AccessKeyId": self.key,
            "OpenIDConnectProviderArn": self.provider,
        }

    def state(self):
        """All that an intruder could change."""
        found = self.iam.get_paginator("list_users").paginate().build_full_result()["Users"]
        keys = self.iam.list_access_keys(UserName="ann")["AccessKeyMetadata"]
        roles = self.iam.list_roles()["Roles"]
        version = self.iam.get_policy(PolicyArn=self.policy)["Policy"]["DefaultVersionId"]
        own = self.iam.list_user_policies(UserName="ann")["PolicyNames"]
        groups = [self.iam.list_groups()["Groups"], self.iam.list_groups_for_user(UserName="ann")["Groups"]]
        tags = self.iam.list_user_tags(UserName="ann")["Tags"]
        provider = self.iam.get_open_id_connect_provider(OpenIDConnectProviderArn=self.provider)["ClientIDList"]
        return [found, keys, roles, version, own, groups, tags, provider]


@pytest.fixture(scope="module")
def owner(cluster):
    return Owner(cluster)


@pytest.fixture(scope="module")
def intruder(cluster):
    return Account(cluster, [cluster], "intruder")


GIVEN = {
    "PolicyDocument": READS,
    "AssumeRolePolicyDocument": TRUST,
    "PolicyName": "own",
    "VersionId": "v1",
    "Status": "Inactive",
    "Tags": [{"Key": "a", "Value": "b"}],
    "TagKeys": ["a"],
    "ClientID": "b",
    "ThumbprintList": ["0" * 40],
    "NewUserName": "eve",
    "Description": "mine",
}


def operations(names):
    """Operations of IAM about something that has a name, and their parameters."""
    for operation in MODEL.operation_names:
        shape = MODEL.operation_model(operation).input_shape
        members = set(shape.members if shape else ())
        about = {name: value for name, value in names.items() if name in members}
        # A name in the intruder's account that is to be made is nobody's.
        if not about or operation.startswith("Create") and operation not in ("CreateAccessKey", "CreatePolicyVersion"):
            continue
        made = about | {name: value for name, value in GIVEN.items() if name in members}
        if set(shape.required_members) <= set(made):
            yield operation, made


def answer(client, operation, parameters):
    try:
        getattr(client, botocore.xform_name(operation))(**parameters)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return "ok"


def test_no_operation_reaches_another_account(cluster, owner, intruder):
    """By its root, by name and by ARN: what is another account's is not there, or forbidden."""
    before, client = owner.state(), iam_of(cluster, intruder.root)
    found = {operation: answer(client, operation, made) for operation, made in operations(owner.names())}
    served = {operation: code for operation, code in found.items() if code != "InvalidAction"}
    assert len(served) > 45, sorted(served)
    # The last use of a key that is unknown is said to be none, and that tells nothing.
    let_in = {name: code for name, code in served.items() if code not in ("NoSuchEntity", "AccessDenied")}
    assert not let_in, let_in
    assert owner.state() == before
    # The same questions let the owner's root in, so they were good ones.
    own = {name: answer(owner.iam, name, made) for name, made in operations(owner.names()) if name.startswith("Get")}
    assert {name: code for name, code in own.items() if code not in ("ok", "InvalidAction")} == {}, own


def test_a_role_of_another_account_is_assumed_by_nobody_unasked(cluster, owner, intruder):
    sts = boto3.client(
        "sts",
        endpoint_url=cluster.credentials()["endpoint"],
        region_name="us-east-1",
        aws_access_key_id=intruder.root.access,
        aws_secret_access_key=intruder.root.secret,
    )
    arn = f"arn:aws:iam::{owner.id}:role/reader"
    assert code_of(sts.assume_role, RoleArn=arn, RoleSessionName="eve") == "AccessDenied"


@pytest.fixture(scope="module")
def locked(cluster):
    """A user who may do everything but pass over governance and take legal holds off, and versions that are locked."""
    account = FirstAccount(cluster)
    user = account.user("locksmith")
    statements = [
        {"Effect": "Allow", "Action": "s3:*", "Resource": "*"},
        {"Effect": "Deny", "Action": ["s3:BypassGovernanceRetention", "s3:PutObjectLegalHold"], "Resource": "*"},
    ]
    document = account.file("locksmith", {"Version": "2012-10-17", "Statement": statements})
    account.cli("policy", "put", "all", document, "--user", "locksmith")
    s3 = cluster.s3()
    s3.create_bucket(Bucket="locked", ObjectLockEnabledForBucket=True)
    versions = {}
    for key, lock in (("compliance", COMPLIANCE), ("governance", GOVERNANCE), ("held", HELD)):
        versions[key] = s3.put_object(Bucket="locked", Key=key, Body=key.encode(), **lock)["VersionId"]
    wait_for("the user may list", lambda: code_of(user.s3.list_objects_v2, Bucket="locked") == "ok", 5)
    return s3, user.s3, versions


def retention(mode, until):
    return {"Retention": {"Mode": mode, "RetainUntilDate": until}}


def deleted(client, place, **more):
    """The code of a deletion of several."""
    done = client.delete_objects(Bucket=place.pop("Bucket"), Delete={"Objects": [place]}, **more)
    return done["Errors"][0]["Code"] if done.get("Errors") else "ok"


def completed(client, key):
    upload = client.create_multipart_upload(Bucket="locked", Key=key)["UploadId"]
    place = {"Bucket": "locked", "Key": key, "UploadId": upload}
    part = client.upload_part(**place, PartNumber=1, Body=b"other")
    parts = [{"PartNumber": 1, "ETag": part["ETag"]}]
    return code_of(client.complete_multipart_upload, **place, MultipartUpload={"Parts": parts})


EXPIRING = {"Rules": [{"ID": "x", "Status": "Enabled", "Filter": {}, "Expiration": {"Days": 1}}]}
SUSPENDED = {"VersioningConfiguration": {"Status": "Suspended"}}
BYPASS = {"BypassGovernanceRetention": True}
# Ways to be rid of a version, and what is said to them: "ok" where something else is done than what is wanted.
WAYS = {
    "deletion": (lambda client, place: code_of(client.delete_object, **place), "AccessDenied"),
    "deletion that bypasses": (lambda client, place: code_of(client.delete_object, **place, **BYPASS), "AccessDenied"),
    "deletion of several": (lambda client, place: deleted(client, dict(place)), "AccessDenied"),
    "deletion of several that bypasses": (lambda client, place: deleted(client, dict(place), **BYPASS), "AccessDenied"),
    "shorter retention": (
        lambda client, place: code_of(client.put_object_retention, **place, **retention("GOVERNANCE", SOONER)),
        "AccessDenied",
    ),
    "shorter retention that bypasses": (
        lambda client, place: code_of(
            client.put_object_retention, **place, **retention("GOVERNANCE", SOONER), **BYPASS
        ),
        "AccessDenied",
    ),
    "no retention": (
        lambda client, place: code_of(client.put_object_retention, **place, Retention={}),
        "AccessDenied",
    ),
    "no hold": (
        lambda client, place: code_of(client.put_object_legal_hold, **place, LegalHold={"Status": "OFF"}),
        "AccessDenied",
    ),
    "a marker": (lambda client, place: code_of(client.delete_object, Bucket="locked", Key=place["Key"]), "ok"),
    "another version": (
        lambda client, place: code_of(client.put_object, Bucket="locked", Key=place["Key"], Body=b"other"),
        "ok",
    ),
    "a copy over it": (
        lambda client, place: code_of(
            client.copy_object, Bucket="locked", Key=place["Key"], CopySource="locked/other", MetadataDirective="COPY"
        ),
        "ok",
    ),
    "an upload over it": (lambda client, place: completed(client, place["Key"]), "ok"),
    "no bucket": (lambda client, place: code_of(client.delete_bucket, Bucket="locked"), "BucketNotEmpty"),
    "no versions": (
        lambda client, place: code_of(client.put_bucket_versioning, Bucket="locked", **SUSPENDED),
        "InvalidBucketState",
    ),
    "expiry": (
        lambda client, place: code_of(
            client.put_bucket_lifecycle_configuration, Bucket="locked", LifecycleConfiguration=EXPIRING
        ),
        "NotImplemented",
    ),
    "no default": (
        lambda client, place: code_of(
            client.put_object_lock_configuration,
            Bucket="locked",
            ObjectLockConfiguration={"ObjectLockEnabled": "Enabled"},
        ),
        "ok",
    ),
}


# What changes retention is about versions that have one; what takes a hold off, about one that has it.
def is_about(way, key):
    return key != "held" if "retention" in way else key == "held" if way == "no hold" else True


@pytest.mark.parametrize("way", WAYS)
def test_no_way_removes_a_locked_version(locked, way):
    """Neither by a user without the right to bypass, nor, of compliance, by the root of the account."""
    root, user, versions = locked
    root.put_object(Bucket="locked", Key="other", Body=b"other")
    call, expected = WAYS[way]
    for key, version in versions.items():
        place = {"Bucket": "locked", "Key": key, "VersionId": version}
        for client in (user, root) if key == "compliance" else (user,):
            if is_about(way, key):
                assert call(client, place) == expected, (way, key)
            assert root.get_object(**place)["Body"].read() == key.encode(), (way, key)
    kept = root.get_object_retention(Bucket="locked", Key="compliance", VersionId=versions["compliance"])["Retention"]
    assert kept["Mode"] == "COMPLIANCE" and abs((kept["RetainUntilDate"] - UNTIL).total_seconds()) < 1, kept


# --- what was taken away


@pytest.fixture(scope="module")
def sealed(cluster):
    """A user with S3 rights, and an object that is sealed with a key of the account."""
    account = FirstAccount(cluster)
    cluster.cli("key", "create", "project")
    user = account.user("reader")
    allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    account.cli("policy", "put", "own", account.file("reader", allowed), "--user", "reader")
    s3 = cluster.s3()
    s3.create_bucket(Bucket="sealed")
    s3.put_object(Bucket="sealed", Key="k", Body=b"x", ServerSideEncryption="aws:kms", SSEKMSKeyId="project")
    read = lambda: code_of(user.s3.get_object, Bucket="sealed", Key="k")
    within("the user reads", read, "ok")
    return account, user, read


def within(what, ask, wanted):
    began = time.monotonic()
    wait_for(f"{what}: {wanted}", lambda: ask() == wanted, TAKEN_SECONDS_MAX, pause=0.05)
    return time.monotonic() - began


def test_a_key_policy_takes_a_right_away_and_gives_it_back(cluster, sealed, note):
    account, user, read = sealed
    simulated = lambda: cluster.cli(
        "policy", "simulate", "--access-key", user.access, "kms:Decrypt", "project", ok=None
    )
    assert simulated().returncode == 0
    cluster.cli("key", "policy", "set", "project", "--default")
    note(f"a key policy counts after {within('a key policy', read, 'AccessDenied'):.2f} s")
    assert simulated().returncode == 1
    assert cluster.s3().get_object(Bucket="sealed", Key="k")["Body"].read() == b"x", "the root decides"
    statement = {"Effect": "Allow", "Action": "kms:Decrypt", "Resource": "arn:aws:kms:*:100000000000:key/project"}
    right = account.file("right", {"Version": "2012-10-17", "Statement": [statement]})
    account.cli("policy", "put", "keys", right, "--user", "reader")
    within("a right", read, "ok")
    assert simulated().returncode == 0
    account.cli("policy", "drop", "keys", "--user", "reader")
    within("no right", read, "AccessDenied")
    shown = json.loads(cluster.cli("key", "policy", "get", "project").stdout)
    assert shown["Statement"][0]["Principal"] == {"AWS": "arn:aws:iam::100000000000:root"}, shown
    (key,) = [key for key in cluster.json("key", "ls") if key["name"] == "project"]
    assert (key["account"], key["has_policy"]) == ("100000000000", True), key
    cluster.cli("key", "policy", "rm", "project")
    within("no key policy", read, "ok")


def test_what_is_wrong_in_a_key_policy_is_refused(cluster, sealed):
    account, _, _ = sealed
    statement = {"Effect": "Allow", "Action": "kms:*", "Resource": "*", "Principal": {"AWS": "*"}}
    for wrong in (
        {"Action": "s3:GetObject"},
        {"Action": "kms:Decript"},
        {"Principal": {"AWS": "arn:aws:iam::100000000000:user/nobody"}},
        {"Condition": {"Bool": {"kms:GrantIsForAWSResource": "true"}}},
    ):
        document = account.file("wrong", {"Version": "2012-10-17", "Statement": [statement | wrong]})
        done = cluster.cli("key", "policy", "set", "project", document, ok=None)
        assert done.returncode != 0, wrong
    assert cluster.cli("key", "policy", "set", "missing", "--default", ok=None).returncode != 0
    assert cluster.cli("key", "policy", "get", "project", ok=None).returncode != 0, "it has none"


def test_a_key_policy_by_calls_as_by_commands(cluster, sealed, admin, reader):
    _, _, read = sealed
    path = "/api/v1/keys/project/policy"
    principal = {"AWS": "arn:aws:iam::100000000000:root"}
    statement = {"Effect": "Allow", "Action": "kms:*", "Resource": "*", "Principal": principal}
    document = {"Version": "2012-10-17", "Statement": [statement]}
    assert reader.call("PUT", path, {"document": document}).status == 403
    assert admin.call("GET", path).status == 404
    assert admin.call("PUT", path, {"document": document}).status == 200
    within("a key policy", read, "AccessDenied")
    assert reader.call("GET", path).document == document
    assert admin.call("POST", f"{path}/remove", {"confirm": "another"}).status == 403
    assert admin.call("POST", f"{path}/remove", {"confirm": "project"}).status == 200
    within("no key policy", read, "ok")


def test_what_is_taken_away_ends_within_its_bound(cluster, sealed, address, note):
    """Keys, users and operators; tests of hosts and of keys of processes are in tests/e2e."""
    account, user, read = sealed
    account.cli("user", "key", "disable", user.access)
    note(f"a key that is disabled ends after {within('a key', read, 'InvalidAccessKeyId'):.2f} s")
    account.cli("user", "key", "enable", user.access)
    within("the key", read, "ok")
    account.cli("policy", "drop", "own", "--user", "reader")
    note(f"a policy that is taken away ends after {within('a policy', read, 'AccessDenied'):.2f} s")
    account.cli("user", "key", "rm", user.access)
    note(f"a key that is removed ends after {within('a key', read, 'InvalidAccessKeyId'):.2f} s")
    operator = Caller.logged_in(address, address.reader)
    assert operator.call("GET", "/api/v1/status").status == 200
    cluster.cli("operator", "rm", address.reader.name)
    asked = lambda: operator.call("GET", "/api/v1/status").status
    note(f"a session ends with its operator after {within('an operator', asked, 401):.2f} s")
