"""A low user gains no rights by the letters of a name: rights are asked of ARNs. An ARN in other letters names nothing.
Only who may tag gives tags, and a session keeps the policy of the key that began it."""

import json

import boto3
import pytest
from botocore.client import Config
from botocore.exceptions import ClientError

ALL = {"Effect": "Allow", "Action": "*", "Resource": "*"}


def document(*statements):
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


class World:
    def __init__(self, cluster):
        self.cluster, self.s3 = cluster, cluster.s3()
        self.iam = self.client("iam")
        self.account = self.client("sts").get_caller_identity()["Account"]

    def client(self, service, key=None):
        own = self.cluster.credentials()
        key = key or {"AccessKeyId": own["access_key"], "SecretAccessKey": own["secret_key"]}
        return boto3.client(
            service,
            endpoint_url=own["endpoint"],
            region_name="us-east-1",
            aws_access_key_id=key["AccessKeyId"],
            aws_secret_access_key=key["SecretAccessKey"],
            aws_session_token=key.get("SessionToken"),
            config=Config(retries={"max_attempts": 1}),
        )

    def arn(self, resource):
        return f"arn:aws:iam::{self.account}:{resource}"

    def user(self, name, *statements):
        """A new user with a policy; returns its key."""
        self.iam.create_user(UserName=name)
        self.iam.put_user_policy(UserName=name, PolicyName="own", PolicyDocument=document(*statements))
        return self.iam.create_access_key(UserName=name)["AccessKey"]


@pytest.fixture(scope="module")
def world(scenario):
    cluster = scenario.cluster("escalation", osds=1, osd_size="2G")
    cluster.up()
    return World(cluster)


def refused(call, *codes, **parameters):
    with pytest.raises(ClientError) as refusal:
        call(**parameters)
    assert refusal.value.response["Error"]["Code"] in codes, refusal.value


def test_a_denied_role_is_not_assumed_in_other_letters(world):
    trust = {"Effect": "Allow", "Principal": {"AWS": world.account}, "Action": "sts:AssumeRole"}
    world.iam.create_role(RoleName="Admin", Path="/Ops/", AssumeRolePolicyDocument=document(trust))
    world.iam.put_role_policy(RoleName="Admin", PolicyName="all", PolicyDocument=document(ALL))
    role = world.arn("role/Ops/Admin")
    assume = {"Action": "sts:AssumeRole"}
    deny = {"Effect": "Deny", "Resource": role} | assume
    low = world.client("sts", world.user("assumer", {"Effect": "Allow", "Resource": "*"} | assume, deny))
    for arn in (role, role.replace("Admin", "admin"), role.replace("Admin", "ADMIN"), role.replace("/Ops/", "/ops/")):
        refused(low.assume_role, "AccessDenied", RoleArn=arn, RoleSessionName="session")


def test_a_denied_policy_is_neither_attached_nor_changed_in_other_letters(world):
    strong = world.iam.create_policy(PolicyName="Strong", PolicyDocument=document(ALL))["Policy"]["Arn"]
    allowed = {
        "Effect": "Allow",
        "Action": ["iam:AttachUserPolicy", "iam:CreatePolicyVersion", "iam:DeletePolicy"],
        "Resource": "*",
    }
    denied = {"Effect": "Deny", "Action": "iam:*", "Resource": strong}
    condition = {"Condition": {"ArnEquals": {"iam:PolicyARN": [strong]}}}
    not_attached = {"Effect": "Deny", "Action": "iam:AttachUserPolicy", "Resource": "*"} | condition
    low = world.client("iam", world.user("attacher", allowed, denied, not_attached))
    for arn in (strong.replace("Strong", "strong"), strong.replace("Strong", "sTRONG")):
        refused(low.attach_user_policy, "NoSuchEntity", UserName="attacher", PolicyArn=arn)
        refused(low.create_policy_version, "NoSuchEntity", PolicyArn=arn, PolicyDocument=document(ALL))
        refused(low.delete_policy, "NoSuchEntity", PolicyArn=arn)
    refused(low.attach_user_policy, "AccessDenied", UserName="attacher", PolicyArn=strong)
    refused(low.list_users, "AccessDenied")


def test_a_denied_issuer_is_not_changed_in_other_letters(world):
    made = world.iam.create_open_id_connect_provider(Url="https://idp.example/Good", ClientIDList=["a"])
    arn = made["OpenIDConnectProviderArn"]
    allowed = {"Effect": "Allow", "Action": "iam:*OpenIDConnect*", "Resource": "*"}
    low = world.client("iam", world.user("issuer", allowed, {"Effect": "Deny", "Action": "iam:*", "Resource": arn}))
    add = low.add_client_id_to_open_id_connect_provider
    refused(add, "AccessDenied", OpenIDConnectProviderArn=arn, ClientID="evil")
    for other in (arn.replace("Good", "good"), arn.replace("idp", "IDP")):
        refused(add, "NoSuchEntity", OpenIDConnectProviderArn=other, ClientID="evil")


def test_who_may_not_tag_makes_nothing_with_tags(world):
    making = {
        "Effect": "Allow",
        "Action": ["iam:CreateUser", "iam:CreateRole", "iam:CreatePolicy"],
        "Resource": "*",
    }
    key = world.user("maker", making)
    low = world.client("iam", key)
    tags = [{"Key": "team", "Value": "payroll"}]
    trust = document({"Effect": "Allow", "Principal": {"AWS": world.account}, "Action": "sts:AssumeRole"})
    calls = [
        (low.create_user, {"UserName": "sock"}),
        (low.create_role, {"RoleName": "sock", "AssumeRolePolicyDocument": trust}),
        (low.create_policy, {"PolicyName": "sock", "PolicyDocument": document(ALL)}),
    ]
    for call, parameters in calls:
        refused(call, "AccessDenied", **parameters, Tags=tags)
    may_tag = {"Effect": "Allow", "Action": "iam:Tag*", "Resource": "*"}
    world.iam.put_user_policy(UserName="maker", PolicyName="tags", PolicyDocument=document(may_tag))
    for call, parameters in calls:
        call(**parameters, Tags=tags)


def test_the_policy_of_a_key_holds_in_every_session_that_it_begins(world, tmp_path):
    world.iam.create_user(UserName="ann")
    world.iam.put_user_policy(UserName="ann", PolicyName="all", PolicyDocument=document(ALL))
    file = tmp_path / "key.json"
    file.write_text(document({"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": "*"}))
    made = json.loads(world.cluster.cli("user", "key", "create", "ann", "--policy", file, "--json").stdout)
    key = made["AccessKey"]
    trust = {"Effect": "Allow", "Principal": {"AWS": world.arn("user/ann")}, "Action": "sts:AssumeRole"}
    world.iam.create_role(RoleName="jobs", AssumeRolePolicyDocument=document(trust))
    world.s3.create_bucket(Bucket="nightly")
    world.s3.put_object(Bucket="nightly", Key="plan", Body=b"plan")
    session = f"arn:aws:sts::{world.account}:assumed-role/jobs/nightly"
    opened = {"Principal": {"AWS": session}, "Effect": "Allow", "Action": "s3:*"}
    resources = {"Resource": ["arn:aws:s3:::nightly", "arn:aws:s3:::nightly/*"]}
    world.s3.put_bucket_policy(Bucket="nightly", Policy=document(opened | resources))
    sts = world.client("sts", key)
    begun = sts.assume_role(RoleArn=world.arn("role/jobs"), RoleSessionName="nightly")["Credentials"]
    refused(world.client("s3", begun).get_object, "AccessDenied", Bucket="nightly", Key="plan")
    # A key without a policy begins a session that may.
    free = world.iam.create_access_key(UserName="ann")["AccessKey"]
    begun = world.client("sts", free).assume_role(RoleArn=world.arn("role/jobs"), RoleSessionName="nightly")
    read = world.client("s3", begun["Credentials"]).get_object(Bucket="nightly", Key="plan")
    assert read["Body"].read() == b"plan"
