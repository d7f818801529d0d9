#!/usr/bin/env python3
"""Checks IAM and STS with boto3: users, groups, keys, policies, roles, and temporary credentials.

Like s3_conformance.py, whose helpers it uses. S3_ACCESS_KEY is of the root of an account, S3_OTHER_ACCESS_KEY
of the root of another. --service-account=KEY:SECRET is a key of the root that may only do s3:GetObject.
"""

import contextlib
import datetime
import hashlib
import hmac
import json
import os
import secrets
import sys
import urllib.parse

import boto3
import s3_conformance as base
from botocore.client import Config
from s3_conformance import ENDPOINT, Bucket, check, refused, s3

base.CHECKS.clear()
OWN = os.environ["S3_ACCESS_KEY"], os.environ["S3_SECRET_KEY"]
OTHER = os.environ["S3_OTHER_ACCESS_KEY"], os.environ["S3_OTHER_SECRET_KEY"]
SERVICE_OPTION = "--service-account="
SERVICE_ACCOUNTS = [option.removeprefix(SERVICE_OPTION) for option in sys.argv if option.startswith(SERVICE_OPTION)]
sys.argv = [option for option in sys.argv if not option.startswith(SERVICE_OPTION)]
ACCOUNT, OTHER_ACCOUNT = "100000000000", "200000000000"
READ_ONLY = "arn:aws:iam::aws:policy/AmazonS3ReadOnlyAccess"
FULL_ACCESS = "arn:aws:iam::aws:policy/AmazonS3FullAccess"


def client(service, access, secret, token=None, region="us-east-1", **config):
    # Not only what boto3 lets through is to be refused.
    settings = Config(
        retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, parameter_validation=False, **config
    )
    return boto3.client(
        service,
        endpoint_url=ENDPOINT,
        region_name=region,
        aws_access_key_id=access,
        aws_secret_access_key=secret,
        aws_session_token=token,
        config=settings,
    )


def of_session(service, credentials):
    return client(service, credentials["AccessKeyId"], credentials["SecretAccessKey"], credentials.get("SessionToken"))


iam, sts = client("iam", *OWN), client("sts", *OWN)
other_iam, other_sts = client("iam", *OTHER), client("sts", *OTHER)


def document(*statements, **more):
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)} | more)


def allow(actions, resource="*", **more):
    return {"Effect": "Allow", "Action": actions, "Resource": resource} | more


def deny(actions, resource="*", **more):
    return allow(actions, resource, **more) | {"Effect": "Deny"}


def trust(principal, action="sts:AssumeRole", **more):
    return document({"Effect": "Allow", "Principal": principal, "Action": action} | more)


def empty_holder(kind, name):
    """Deletes the policies of a user, group or role."""
    named = {f"{kind}Name": name}
    lower = kind.lower()
    for policy in getattr(iam, f"list_{lower}_policies")(**named)["PolicyNames"]:
        getattr(iam, f"delete_{lower}_policy")(**named, PolicyName=policy)
    for policy in getattr(iam, f"list_attached_{lower}_policies")(**named)["AttachedPolicies"]:
        getattr(iam, f"detach_{lower}_policy")(**named, PolicyArn=policy["PolicyArn"])


@contextlib.contextmanager
def user(name=None, **more):
    """A user with an access key: its name and the key."""
    name = name or "user-" + secrets.token_hex(4)
    iam.create_user(UserName=name, **more)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    yield name, key
    for group in iam.list_groups_for_user(UserName=name)["Groups"]:
        iam.remove_user_from_group(UserName=name, GroupName=group["GroupName"])
    for found in iam.list_access_keys(UserName=name)["AccessKeyMetadata"]:
        iam.delete_access_key(UserName=name, AccessKeyId=found["AccessKeyId"])
    empty_holder("User", name)
    iam.delete_user(UserName=name)


@contextlib.contextmanager
def role(policy, **more):
    """A role with a trust policy: its name and its ARN."""
    name = "role-" + secrets.token_hex(4)
    made = iam.create_role(RoleName=name, AssumeRolePolicyDocument=policy, **more)["Role"]
    yield name, made["Arn"]
    with contextlib.suppress(iam.exceptions.NoSuchEntityException):
        empty_holder("Role", name)
        iam.delete_role(RoleName=name)


def can_read(client, bucket):
    assert client.get_object(Bucket=bucket, Key="a")["Body"].read() == b"a"


def cannot_write(client, bucket):
    refused("AccessDenied", client.put_object, Bucket=bucket, Key="b", Body=b"b")


@contextlib.contextmanager
def full_bucket():
    with Bucket() as name:
        s3.put_object(Bucket=name, Key="a", Body=b"a")
        yield name


def signed(
    action, service="iam", version="2010-05-08", secret=OWN[1], region="us-east-1", age=0, token=None, body=None
):
    """A request signed by hand: its status and its document."""
    now = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=age)
    time, date = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    form = urllib.parse.urlencode({"Action": action, "Version": version}).encode()
    host = urllib.parse.urlsplit(ENDPOINT).netloc
    headers = {"host": host, "x-amz-date": time} | ({"x-amz-security-token": token} if token else {})
    lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
    names, digest = ";".join(headers), hashlib.sha256(form).hexdigest()
    scope = f"{date}/{region}/{service}/aws4_request"
    canonical = hashlib.sha256(f"POST\n/\n\n{lines}\n{names}\n{digest}".encode()).hexdigest()
    key = ("AWS4" + secret).encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), "sha256").digest()
    signature = hmac.new(key, f"AWS4-HMAC-SHA256\n{time}\n{scope}\n{canonical}".encode(), "sha256").hexdigest()
    credential = f"Credential={OWN[0]}/{scope}, SignedHeaders={names}, Signature={signature}"
    headers |= {"authorization": "AWS4-HMAC-SHA256 " + credential, "content-type": "application/x-www-form-urlencoded"}
    status, _, answer = base.send("POST", "/", body or form, headers)
    return status, answer.decode()


def says(answer, status, code):
    assert answer[0] == status and f"<Code>{code}</Code>" in answer[1], answer


@check
def who_signs_is_told():
    assert sts.get_caller_identity()["Arn"] == f"arn:aws:iam::{ACCOUNT}:root"
    other = other_sts.get_caller_identity()
    assert (other["Account"], other["UserId"]) == (OTHER_ACCOUNT, OTHER_ACCOUNT)
    with user(Path="/team/") as (name, key):
        told = of_session("sts", key).get_caller_identity()
        assert told["Arn"] == f"arn:aws:iam::{ACCOUNT}:user/team/{name}"
        assert told["UserId"] == iam.get_user(UserName=name)["User"]["UserId"]
    told = sts.get_caller_identity()["ResponseMetadata"]
    assert told["RequestId"] == told["HTTPHeaders"]["x-amz-request-id"]


@check
def wrong_signatures_are_refused():
    assert signed("ListUsers")[0] == 200
    assert signed("GetCallerIdentity", "sts", "2011-06-15", region="aws-global")[0] == 200
    says(signed("ListUsers", secret="wrong"), 403, "SignatureDoesNotMatch")
    says(signed("ListUsers", region="eu-west-9"), 403, "SignatureDoesNotMatch")
    says(signed("ListUsers", service="s3"), 403, "SignatureDoesNotMatch")
    says(signed("ListUsers", service="sts"), 403, "SignatureDoesNotMatch")
    says(signed("ListUsers", body=b"Action=ListRoles&Version=2010-05-08"), 403, "SignatureDoesNotMatch")
    for age in (16, -16):
        says(signed("ListUsers", age=age), 403, "SignatureDoesNotMatch")
    says(signed("ListUsers", token="nonsense"), 403, "InvalidClientTokenId")
    refused("InvalidClientTokenId", client("iam", "AKIANOBODY", "secret").list_users)
    nobody = {"content-type": "application/x-www-form-urlencoded"}
    for headers, code in (({}, "MissingAuthenticationToken"), ({"authorization": "Bearer x"}, "IncompleteSignature")):
        status, _, answer = base.send("POST", "/", b"Action=ListUsers&Version=2010-05-08", nobody | headers)
        assert f"<Code>{code}</Code>".encode() in answer, (status, answer)


@check
def what_is_no_action_is_refused():
    says(signed("LaunchRocket"), 400, "InvalidAction")
    says(signed("CreateAccount"), 400, "InvalidAction")
    says(signed("ListUsers", version="2011-06-15", service="sts"), 400, "InvalidAction")
    says(signed("ListUsers", version="1999-01-01"), 400, "InvalidAction")
    form = {"content-type": "application/x-www-form-urlencoded"}
    twice = b"Action=ListUsers&Action=ListUsers&Version=2010-05-08"
    assert b"<Code>ValidationError</Code>" in base.send("POST", "/", twice, form)[2]
    large = b"Action=ListUsers&Version=2010-05-08&X=" + b"x" * (256 << 10)
    assert base.send("POST", "/", large, form)[0] == 413
    # Without an action it is a request to S3.
    assert b"<ErrorResponse" not in base.send("POST", "/", b"a=b", form)[2]
    refused("ValidationError", sts.get_session_token, SerialNumber="arn:aws:iam::1:mfa/x", TokenCode="123456")


@check
def users_come_and_go():
    with user(Path="/a/", Tags=[{"Key": "team", "Value": "light blue = +1"}]) as (name, _):
        told = iam.get_user(UserName=name)["User"]
        assert told["Arn"] == f"arn:aws:iam::{ACCOUNT}:user/a/{name}" and told["UserId"].startswith("AIDA")
        assert told["Tags"] == [{"Key": "team", "Value": "light blue = +1"}]
        age = datetime.datetime.now(datetime.UTC) - told["CreateDate"]
        assert abs(age.total_seconds()) < 300
        refused("EntityAlreadyExists", iam.create_user, UserName=name.upper())
        refused("DeleteConflict", iam.delete_user, UserName=name)
        refused("ValidationError", iam.create_user, UserName="a b")
        iam.tag_user(UserName=name, Tags=[{"Key": "x", "Value": "y"}])
        iam.untag_user(UserName=name, TagKeys=["team"])
        assert iam.list_user_tags(UserName=name)["Tags"] == [{"Key": "x", "Value": "y"}]
        iam.update_user(UserName=name, NewUserName=name + "2")
        refused("NoSuchEntity", iam.get_user, UserName=name)
        iam.update_user(UserName=name + "2", NewUserName=name)
    refused("NoSuchEntity", iam.get_user, UserName=name)
    summary = iam.get_account_summary()["SummaryMap"]
    assert summary["Users"] == 0, summary


@check
def listings_come_in_pages():
    names = sorted(f"page-{number}" for number in range(5))
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(user(name, Path="/pages/"))
        first = iam.list_users(MaxItems=2)
        assert first["IsTruncated"] and len(first["Users"]) == 2
        pages = iam.get_paginator("list_users").paginate(PathPrefix="/pages/", PaginationConfig={"PageSize": 2})
        assert [told["UserName"] for page in pages for told in page["Users"]] == names
        assert iam.list_users(PathPrefix="/none/")["Users"] == []


@check
def accounts_do_not_see_each_other():
    with user() as (name, key):
        assert other_iam.list_users()["Users"] == []
        refused("NoSuchEntity", other_iam.get_user, UserName=name)
        refused("NoSuchEntity", other_iam.delete_access_key, AccessKeyId=key["AccessKeyId"])
        refused("NoSuchEntity", other_iam.get_access_key_last_used, AccessKeyId=key["AccessKeyId"])


@check
def keys_can_be_disabled():
    with user() as (name, key), full_bucket() as bucket:
        iam.attach_user_policy(UserName=name, PolicyArn=READ_ONLY)
        reader, asking = of_session("s3", key), of_session("sts", key)
        can_read(reader, bucket)
        used = iam.get_access_key_last_used(AccessKeyId=key["AccessKeyId"])
        assert used["UserName"] == name and used["AccessKeyLastUsed"]["ServiceName"] == "s3", used
        named = {"UserName": name, "AccessKeyId": key["AccessKeyId"]}
        iam.update_access_key(**named, Status="Inactive")
        refused("InvalidAccessKeyId", reader.get_object, Bucket=bucket, Key="a")
        refused("InvalidClientTokenId", asking.get_caller_identity)
        assert iam.list_access_keys(UserName=name)["AccessKeyMetadata"][0]["Status"] == "Inactive"
        iam.update_access_key(**named, Status="Active")
        can_read(reader, bucket)
        second = iam.create_access_key(UserName=name)["AccessKey"]
        iam.delete_access_key(**named)
        refused("InvalidAccessKeyId", reader.get_object, Bucket=bucket, Key="a")
        can_read(of_session("s3", second), bucket)


@check
def policies_of_users_count_at_once():
    with user() as (name, key), full_bucket() as bucket:
        own = of_session("s3", key)
        refused("AccessDenied", own.get_object, Bucket=bucket, Key="a")
        text = document(allow(["s3:GetObject", "s3:ListBucket"]))
        iam.put_user_policy(UserName=name, PolicyName="read", PolicyDocument=text)
        assert iam.get_user_policy(UserName=name, PolicyName="read")["PolicyDocument"] == json.loads(text)
        can_read(own, bucket)
        cannot_write(own, bucket)
        iam.delete_user_policy(UserName=name, PolicyName="read")
        refused("AccessDenied", own.get_object, Bucket=bucket, Key="a")
        refused("MalformedPolicyDocument", iam.put_user_policy, UserName=name, PolicyName="x", PolicyDocument="{}")
        refused("NoSuchEntity", iam.get_user_policy, UserName=name, PolicyName="read")


@check
def groups_give_their_users_rights():
    with user() as (name, key), full_bucket() as bucket:
        own, group = of_session("s3", key), "group-" + secrets.token_hex(4)
        iam.create_group(GroupName=group)
        iam.attach_group_policy(GroupName=group, PolicyArn=FULL_ACCESS)
        iam.add_user_to_group(GroupName=group, UserName=name)
        assert [told["UserName"] for told in iam.get_group(GroupName=group)["Users"]] == [name]
        can_read(own, bucket)
        own.put_object(Bucket=bucket, Key="b", Body=b"b")
        iam.put_group_policy(GroupName=group, PolicyName="no", PolicyDocument=document(deny("s3:PutObject")))
        cannot_write(own, bucket)
        iam.remove_user_from_group(GroupName=group, UserName=name)
        refused("AccessDenied", own.get_object, Bucket=bucket, Key="a")
        empty_holder("Group", group)
        iam.delete_group(GroupName=group)


@check
def managed_policies_have_versions():
    with user() as (name, key), full_bucket() as bucket:
        own = of_session("s3", key)
        made = iam.create_policy(
            PolicyName="versions", PolicyDocument=document(allow("s3:GetObject")), Description="<a> & 'b'\r\n"
        )["Policy"]
        named = {"PolicyArn": made["Arn"]}
        assert iam.get_policy(**named)["Policy"]["Description"] == "<a> & 'b'\r\n"
        iam.attach_user_policy(UserName=name, **named)
        can_read(own, bucket)
        refused("DeleteConflict", iam.delete_policy, **named)
        version = iam.create_policy_version(**named, PolicyDocument=document(deny("s3:*")), SetAsDefault=True)
        assert version["PolicyVersion"]["VersionId"] == "v2"
        refused("AccessDenied", own.get_object, Bucket=bucket, Key="a")
        iam.set_default_policy_version(**named, VersionId="v1")
        can_read(own, bucket)
        told = iam.get_policy_version(**named, VersionId="v2")["PolicyVersion"]
        assert told["Document"]["Statement"][0]["Effect"] == "Deny" and not told["IsDefaultVersion"]
        assert [one["VersionId"] for one in iam.list_policy_versions(**named)["Versions"]] == ["v2", "v1"]
        refused("DeleteConflict", iam.delete_policy_version, **named, VersionId="v1")
        for _ in range(3):
            iam.create_policy_version(**named, PolicyDocument=document(allow("s3:*")))
        refused("LimitExceeded", iam.create_policy_version, **named, PolicyDocument=document(allow("s3:*")))
        for number in (2, 3, 4, 5):
            iam.delete_policy_version(**named, VersionId=f"v{number}")
        assert iam.list_entities_for_policy(**named)["PolicyUsers"][0]["UserName"] == name
        iam.detach_user_policy(UserName=name, **named)
        assert iam.get_policy(**named)["Policy"]["AttachmentCount"] == 0
        assert made["Arn"] in [one["Arn"] for one in iam.list_policies(Scope="Local")["Policies"]]
        iam.delete_policy(**named)


@check
def users_do_in_iam_what_policies_allow():
    with user() as (name, key), user() as (second, _):
        own = of_session("iam", key)
        error = refused("AccessDenied", own.list_users)
        arn = f"arn:aws:iam::{ACCOUNT}:user/{name}"
        assert error["Error"]["Message"].startswith(f"User: {arn} is not authorized to perform: iam:ListUsers on")
        assert error["ResponseMetadata"]["HTTPStatusCode"] == 403
        text = document(
            allow(["iam:GetUser", "iam:*AccessKey*"], "arn:aws:iam::*:user/${aws:username}"),
            allow("iam:AttachUserPolicy", Condition={"ArnEquals": {"iam:PolicyARN": READ_ONLY}}),
            allow(["iam:CreateUser", "iam:TagUser"], Condition={"StringEquals": {"aws:RequestTag/team": "blue"}}),
            allow(["iam:DeleteUser", "iam:ListUsers"]),
            allow("iam:UpdateUser", f"arn:aws:iam::*:user/{second}*"),
            deny("iam:ListUsers", Condition={"IpAddress": {"aws:SourceIp": "127.0.0.0/8"}}),
        )
        iam.put_user_policy(UserName=name, PolicyName="own", PolicyDocument=text)
        assert own.get_user()["User"]["UserName"] == name
        refused("AccessDenied", own.get_user, UserName=second)
        made = own.create_access_key()["AccessKey"]
        assert made["UserName"] == name
        own.delete_access_key(AccessKeyId=made["AccessKeyId"])
        refused("AccessDenied", own.create_access_key, UserName=second)
        refused("AccessDenied", own.put_user_policy, UserName=name, PolicyName="x", PolicyDocument=text)
        refused("AccessDenied", own.attach_user_policy, UserName=second, PolicyArn=FULL_ACCESS)
        own.attach_user_policy(UserName=second, PolicyArn=READ_ONLY)
        refused("AccessDenied", own.list_users)
        refused("AccessDenied", own.create_user, UserName="tagged")
        refused("AccessDenied", own.create_user, UserName="tagged", Tags=[{"Key": "team", "Value": "red"}])
        own.create_user(UserName="tagged", Tags=[{"Key": "team", "Value": "blue"}])
        own.delete_user(UserName="tagged")
        refused("AccessDenied", own.update_user, UserName=second, NewUserName="boss")
        refused("AccessDenied", own.update_user, UserName=second, NewPath="/admin/")
        own.update_user(UserName=second, NewUserName=second + "2")
        own.update_user(UserName=second + "2", NewUserName=second)


@check
def roles_are_assumed():
    everybody = trust({"AWS": f"arn:aws:iam::{ACCOUNT}:root"})
    with user() as (name, key), role(everybody) as (named, arn), full_bucket() as bucket:
        iam.attach_role_policy(RoleName=named, PolicyArn=FULL_ACCESS)
        own = of_session("sts", key)
        asked = {"RoleArn": arn, "RoleSessionName": "session"}
        error = refused("AccessDenied", own.assume_role, **asked)
        assert "is not authorized to perform: sts:AssumeRole on resource: " + arn in error["Error"]["Message"]
        missing = refused("AccessDenied", own.assume_role, RoleArn=arn + "x", RoleSessionName="session")
        # Who may not assume a role does not learn whether it is there.
        assert missing["Error"]["Message"] == error["Error"]["Message"] + "x"
        statement = document(allow("sts:AssumeRole", arn))
        iam.put_user_policy(UserName=name, PolicyName="assume", PolicyDocument=statement)
        assumed = own.assume_role(**asked)
        expected = f"arn:aws:sts::{ACCOUNT}:assumed-role/{named}/session"
        assert assumed["AssumedRoleUser"]["Arn"] == expected
        credentials = assumed["Credentials"]
        left = credentials["Expiration"] - datetime.datetime.now(datetime.UTC)
        assert 3_500 < left.total_seconds() < 3_700
        session = of_session("s3", credentials)
        assert of_session("sts", credentials).get_caller_identity()["Arn"] == expected
        can_read(session, bucket)
        session.put_object(Bucket=bucket, Key="b", Body=b"b")
        refused("AccessDenied", of_session("iam", credentials).list_users)
        refused("AccessDenied", of_session("sts", credentials).get_session_token)
        # The role's rights are looked at with every request.
        iam.detach_role_policy(RoleName=named, PolicyArn=FULL_ACCESS)
        iam.attach_role_policy(RoleName=named, PolicyArn=READ_ONLY)
        can_read(session, bucket)
        cannot_write(session, bucket)
        token = credentials["SessionToken"]
        without = client("s3", credentials["AccessKeyId"], credentials["SecretAccessKey"])
        refused("InvalidToken", without.get_object, Bucket=bucket, Key="a")
        forged = dict(credentials, SessionToken=token[:-4] + "AAAA")
        refused("InvalidClientTokenId", of_session("sts", forged).get_caller_identity)
        empty_holder("Role", named)
        iam.delete_role(RoleName=named)
        refused("InvalidToken", session.get_object, Bucket=bucket, Key="a")
        refused("InvalidClientTokenId", of_session("sts", credentials).get_caller_identity)


@check
def session_policies_narrow():
    with user() as (name, key), full_bucket() as bucket:
        who = {"AWS": f"arn:aws:iam::{ACCOUNT}:user/{name}"}
        with role(trust(who)) as (named, arn):
            iam.attach_role_policy(RoleName=named, PolicyArn=FULL_ACCESS)
            own, asked = of_session("sts", key), {"RoleArn": arn, "RoleSessionName": "session"}
            narrow = own.assume_role(**asked, Policy=document(allow("s3:GetObject", f"arn:aws:s3:::{bucket}/*")))
            assert narrow["PackedPolicySize"] > 0
            session = of_session("s3", narrow["Credentials"])
            can_read(session, bucket)
            cannot_write(session, bucket)
            managed = own.assume_role(**asked, PolicyArns=[{"arn": READ_ONLY}])
            session = of_session("s3", managed["Credentials"])
            can_read(session, bucket)
            cannot_write(session, bucket)
            refused("MalformedPolicyDocument", own.assume_role, **asked, Policy="{}")
            missing = [{"arn": f"arn:aws:iam::{ACCOUNT}:policy/missing"}]
            refused("MalformedPolicyDocument", own.assume_role, **asked, PolicyArns=missing)
            large = document(allow([f"s3:Get{number}" for number in range(300)]))
            refused("PackedPolicyTooLarge", own.assume_role, **asked, Policy=large)


@check
def older_sessions_are_revoked_by_their_age():
    """As AWS's console revokes sessions of a role; and sessions here never have a second factor."""
    everybody = trust({"AWS": f"arn:aws:iam::{ACCOUNT}:root"})
    with user() as (name, key), full_bucket() as bucket, role(everybody) as (named, arn):
        statement = document(allow("sts:AssumeRole", arn))
        iam.put_user_policy(UserName=name, PolicyName="assume", PolicyDocument=statement)
        iam.attach_role_policy(RoleName=named, PolicyArn=READ_ONLY)
        assumed = of_session("sts", key).assume_role(RoleArn=arn, RoleSessionName="session")
        session = of_session("s3", assumed["Credentials"])
        can_read(session, bucket)
        now = datetime.datetime.now(datetime.UTC)
        for condition, is_denied in (
            ({"DateLessThan": {"aws:TokenIssueTime": (now - datetime.timedelta(hours=1)).isoformat()}}, False),
            ({"DateLessThan": {"aws:TokenIssueTime": (now + datetime.timedelta(hours=1)).isoformat()}}, True),
            ({"Bool": {"aws:MultiFactorAuthPresent": "false"}}, True),
            ({"Bool": {"aws:MultiFactorAuthPresent": "true"}}, False),
            ({"Null": {"aws:MultiFactorAuthAge": "true"}}, True),
        ):
            statement = document(deny("s3:GetObject", Condition=condition))
            iam.put_role_policy(RoleName=named, PolicyName="revoke", PolicyDocument=statement)
            if is_denied:
                refused("AccessDenied", session.get_object, Bucket=bucket, Key="a")
            else:
                can_read(session, bucket)


@check
def a_name_does_not_inherit_rights():
    """Who gets the name of a removed user or role gets none of its rights; who keeps its id keeps them."""
    name, named = "heir-" + secrets.token_hex(4), "role-" + secrets.token_hex(4)
    who = {"AWS": f"arn:aws:iam::{ACCOUNT}:user/{name}"}
    arn = f"arn:aws:iam::{ACCOUNT}:role/{named}"
    assume = lambda key: of_session("sts", key).assume_role(RoleArn=arn, RoleSessionName="session")
    with full_bucket() as bucket:
        statement = {"Effect": "Allow", "Principal": who, "Action": "s3:GetObject"}
        statement["Resource"] = f"arn:aws:s3:::{bucket}/*"
        # Nobody has the name yet.
        refused("MalformedPolicy", s3.put_bucket_policy, Bucket=bucket, Policy=document(statement))
        put = {"RoleName": named, "AssumeRolePolicyDocument": trust(who)}
        refused("MalformedPolicyDocument", iam.create_role, **put)
        with user(name) as (_, key):
            s3.put_bucket_policy(Bucket=bucket, Policy=document(statement))
            iam.create_role(**put)
            can_read(of_session("s3", key), bucket)
            assume(key)
            iam.update_user(UserName=name, NewUserName=name + "2")
            can_read(of_session("s3", key), bucket)
            assume(key)
            iam.update_user(UserName=name + "2", NewUserName=name)
        with user(name) as (_, key):
            refused("AccessDenied", of_session("s3", key).get_object, Bucket=bucket, Key="a")
            refused("AccessDenied", assume, key)
            # Given anew, it counts.
            s3.put_bucket_policy(Bucket=bucket, Policy=document(statement))
            can_read(of_session("s3", key), bucket)
        iam.delete_role(RoleName=named)


@check
def misspelled_names_are_refused():
    with user() as (name, _):
        for statement in (
            deny("s3:GetObjct"),
            deny("iam:DeleteUsers"),
            deny("s33:*"),
            deny("s3:*", Condition={"Bool": {"aws:SecureTransprt": "false"}}),
            deny("kms:Decript"),
            deny("kms:*", Condition={"Bool": {"kms:GrantIsForAWSResource": "true"}}),
        ):
            put = {"UserName": name, "PolicyName": "wrong", "PolicyDocument": document(statement)}
            refused("MalformedPolicyDocument", iam.put_user_policy, **put)
        allowed = document(allow(["ec2:*", "kms:Decrypt"]), deny(["s3:Put*", "kms:*"]))
        iam.put_user_policy(UserName=name, PolicyName="right", PolicyDocument=allowed)


@check
def sessions_have_limits():
    everybody = {"AWS": "*"}
    with role(trust(everybody), MaxSessionDuration=7_200) as (named, arn):
        iam.put_role_policy(RoleName=named, PolicyName="chain", PolicyDocument=document(allow("sts:AssumeRole")))
        asked = {"RoleArn": arn, "RoleSessionName": "session"}
        with user() as (_, key):
            own = of_session("sts", key)
            own.assume_role(**asked, DurationSeconds=7_200)
            for seconds in (899, 7_201, 43_201):
                refused("ValidationError", own.assume_role, **asked, DurationSeconds=seconds)
            refused("ValidationError", own.assume_role, **asked, Tags=[{"Key": "a", "Value": "b"}])
            refused("ValidationError", own.assume_role, RoleArn=arn, RoleSessionName="a b")
            chained = of_session("sts", own.assume_role(**asked)["Credentials"])
            chained.assume_role(**asked, DurationSeconds=3_600)
            refused("ValidationError", chained.assume_role, **asked, DurationSeconds=3_601)


@check
def other_accounts_need_both_sides():
    condition = {"StringEquals": {"sts:ExternalId": "secret"}}
    with role(trust({"AWS": f"arn:aws:iam::{OTHER_ACCOUNT}:root"}, Condition=condition)) as (named, arn):
        asked = {"RoleArn": arn, "RoleSessionName": "stranger"}
        refused("AccessDenied", other_sts.assume_role, **asked)
        refused("AccessDenied", other_sts.assume_role, **asked, ExternalId="guess")
        credentials = other_sts.assume_role(**asked, ExternalId="secret")["Credentials"]
        told = of_session("sts", credentials).get_caller_identity()
        assert told["Arn"] == f"arn:aws:sts::{ACCOUNT}:assumed-role/{named}/stranger"
    with role(trust({"AWS": f"arn:aws:iam::{ACCOUNT}:root"})) as (_, arn):
        refused("AccessDenied", other_sts.assume_role, RoleArn=arn, RoleSessionName="stranger")


@check
def session_tokens_stand_for_their_users():
    with user() as (name, key), full_bucket() as bucket:
        iam.attach_user_policy(UserName=name, PolicyArn=READ_ONLY)
        credentials = of_session("sts", key).get_session_token(DurationSeconds=900)["Credentials"]
        session = of_session("s3", credentials)
        assert of_session("sts", credentials).get_caller_identity()["Arn"] == f"arn:aws:iam::{ACCOUNT}:user/{name}"
        can_read(session, bucket)
        cannot_write(session, bucket)
        iam.detach_user_policy(UserName=name, PolicyArn=READ_ONLY)
        refused("AccessDenied", session.get_object, Bucket=bucket, Key="a")
        refused("AccessDenied", of_session("sts", credentials).get_session_token)
        refused("AccessDenied", of_session("iam", credentials).get_user)
        for seconds in (899, 129_601):
            refused("ValidationError", of_session("sts", key).get_session_token, DurationSeconds=seconds)
        of_root = sts.get_session_token()["Credentials"]
        can_read(of_session("s3", of_root), bucket)
    refused("InvalidClientTokenId", of_session("sts", credentials).get_caller_identity)


@check
def service_accounts_do_no_more_in_their_sessions():
    for account in SERVICE_ACCOUNTS:
        key = dict(zip(("AccessKeyId", "SecretAccessKey"), account.split(":"), strict=True))
        with full_bucket() as bucket, role(trust({"AWS": f"arn:aws:iam::{ACCOUNT}:root"})) as (_, arn):
            asking = of_session("sts", key)
            assert asking.get_caller_identity()["Arn"] == f"arn:aws:iam::{ACCOUNT}:root"
            for credentials in (key, asking.get_session_token()["Credentials"]):
                session = of_session("s3", credentials)
                can_read(session, bucket)
                cannot_write(session, bucket)
            refused("AccessDenied", of_session("iam", key).create_access_key)
            refused("AccessDenied", asking.assume_role, RoleArn=arn, RoleSessionName="session")


if __name__ == "__main__":
    sys.exit(base.main())
