#!/usr/bin/env python3
"""Rights to keys of the key service: every operation on objects with SSE-KMS x no right, a Deny, the right x keys with
and without an account and a policy x key named in the request or by the bucket's default.

Like s3_conformance.py, whose helpers it uses. The gateway must have these keys: 'free', without an account; 'owned', of
the first account and without a policy; 'asked', of the first account with AWS's default policy; 'shared', with a
statement for account 200000000000 as well; 'pairs', open to everybody with the pair team=blue in the encryption
context. The rows follow "Using server-side encryption with AWS KMS keys" and the permissions of operations in the S3
documentation.
"""

import base64
import contextlib
import json
import os
import secrets
import sys

import boto3
import s3_conformance as base
from botocore.exceptions import ClientError
from s3_conformance import ACCESS, ENDPOINT, SECRET, check, refused

base.CHECKS.clear()
OTHER = os.environ["S3_OTHER_ACCESS_KEY"], os.environ["S3_OTHER_SECRET_KEY"]
FIRST_ACCOUNT, OTHER_ACCOUNT = "100000000000", "200000000000"
CHECKSUMS = {"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required"}
s3 = base.client(**CHECKSUMS)
GENERATE, DECRYPT = "kms:GenerateDataKey", "kms:Decrypt"
DENY = {"Effect": "Deny", "Action": "kms:*", "Resource": "*"}
S3 = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}


def query_api(service, access=ACCESS, secret=SECRET):
    return boto3.client(
        service,
        endpoint_url=ENDPOINT,
        region_name="us-east-1",
        aws_access_key_id=access,
        aws_secret_access_key=secret,
    )


iam, other_iam = query_api("iam"), query_api("iam", *OTHER)


def policy(*statements):
    return json.dumps({"Version": "2012-10-17", "Statement": list(statements)})


def right(actions, key="*", **more):
    return {"Effect": "Allow", "Action": actions, "Resource": f"arn:aws:kms:us-east-1:{FIRST_ACCOUNT}:key/{key}"} | more


class User:
    """A user with one policy, and a client that signs as it."""

    def __init__(self, api=iam):
        self.api = api

    def __enter__(self):
        self.name = "of-" + secrets.token_hex(8)
        self.api.create_user(UserName=self.name)
        made = self.api.create_access_key(UserName=self.name)["AccessKey"]
        self.key = made["AccessKeyId"]
        self.s3 = base.client(made["AccessKeyId"], made["SecretAccessKey"], **CHECKSUMS)
        return self

    def may(self, *statements):
        self.api.put_user_policy(UserName=self.name, PolicyName="row", PolicyDocument=policy(S3, *statements))

    def __exit__(self, *_):
        self.api.delete_access_key(UserName=self.name, AccessKeyId=self.key)
        for name in self.api.list_user_policies(UserName=self.name)["PolicyNames"]:
            self.api.delete_user_policy(UserName=self.name, PolicyName=name)
        self.api.delete_user(UserName=self.name)


def named(key):
    return {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key}


def set_default(bucket, key):
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}}
    s3.put_bucket_encryption(Bucket=bucket, ServerSideEncryptionConfiguration={"Rules": [rule]})


class World:
    """A bucket where objects are sealed with a key, by the request or by default."""

    def __init__(self, key, is_default):
        self.key, self.is_default = key, is_default

    def __enter__(self):
        self.bucket = base.Bucket()
        self.name = self.bucket.__enter__()
        s3.put_object(Bucket=self.name, Key="plain", Body=b"x", ServerSideEncryption="AES256")
        if self.is_default:
            set_default(self.name, self.key)
        self.sse = {} if self.is_default else named(self.key)
        s3.put_object(Bucket=self.name, Key="k", Body=b"sealed", ChecksumAlgorithm="CRC32", **self.sse)
        return self

    def __exit__(self, *_):
        self.bucket.__exit__()

    def upload(self, **more):
        return s3.create_multipart_upload(Bucket=self.name, Key="new", **self.sse, **more)["UploadId"]

    def part(self, client, upload, **more):
        place = {"Bucket": self.name, "Key": "new", "UploadId": upload}
        return client.upload_part(**place, PartNumber=1, Body=b"x", **more)

    def completed(self, client, **more):
        upload = self.upload(**more)
        part = self.part(s3, upload, **more)
        listed = {name: part[name] for name in ("ETag", "ChecksumCRC32") if name in part} | {"PartNumber": 1}
        place = {"Bucket": self.name, "Key": "new", "UploadId": upload}
        client.complete_multipart_upload(**place, MultipartUpload={"Parts": [listed]})

    def copied_part(self, client, source):
        place = {"Bucket": self.name, "Key": "new", "UploadId": self.upload(), "PartNumber": 1}
        client.upload_part_copy(**place, CopySource={"Bucket": self.name, "Key": source})

    def form(self, client):
        fields = {}
        if not self.is_default:
            fields = {
                "x-amz-server-side-encryption": "aws:kms",
                "x-amz-server-side-encryption-aws-kms-key-id": self.key,
            }
        conditions = [{name: value} for name, value in fields.items()]
        post = client.generate_presigned_post(self.name, "new", Fields=dict(fields), Conditions=conditions)
        part = '--x\r\nContent-Disposition: form-data; name="{}"\r\n\r\n{}\r\n'
        form = "".join(part.format(*field) for field in [*post["fields"].items(), ("file", "x")]) + "--x--\r\n"
        head = {"Content-Type": "multipart/form-data; boundary=x"}
        status, _, answer = base.send("POST", f"/{self.name}", form.encode(), head)
        if status != 204:
            assert b"<Code>AccessDenied</Code>" in answer, answer
            raise ClientError({"Error": {"Code": "AccessDenied"}}, "PostObject")


def copied(world, client, source):
    place = {"Bucket": world.name, "Key": "new"}
    client.copy_object(**place, CopySource={"Bucket": world.name, "Key": source}, **world.sse)


def on(operation, key="k", **more):
    """An operation of boto3 on an object of the bucket."""
    return lambda world, client: getattr(client, operation)(Bucket=world.name, Key=key, **more)


def attributes(*names):
    return on("get_object_attributes", ObjectAttributes=list(names))


CRC = {"ChecksumAlgorithm": "CRC32"}
# Operation, and the actions on the key that it needs.
ROWS = {
    "PutObject": (lambda world, client: on("put_object", "new", Body=b"x", **world.sse)(world, client), [GENERATE]),
    "PostObject": (World.form, [GENERATE]),
    "GetObject": (on("get_object"), [DECRYPT]),
    "GetObject, a range": (on("get_object", Range="bytes=1-2"), [DECRYPT]),
    "HeadObject": (on("head_object"), []),
    "HeadObject, checksums": (on("head_object", ChecksumMode="ENABLED"), [DECRYPT]),
    "GetObjectAttributes": (attributes("ETag", "ObjectSize"), []),
    "GetObjectAttributes, checksums": (attributes("Checksum"), [DECRYPT]),
    "CopyObject": (lambda world, client: copied(world, client, "k"), [DECRYPT, GENERATE]),
    "CopyObject, of SSE-S3": (lambda world, client: copied(world, client, "plain"), [GENERATE]),
    "CreateMultipartUpload": (
        lambda world, client: on("create_multipart_upload", "new", **world.sse)(world, client),
        [GENERATE],
    ),
    "UploadPart": (lambda world, client: world.part(client, world.upload()), [DECRYPT]),
    "UploadPartCopy": (lambda world, client: world.copied_part(client, "k"), [DECRYPT]),
    "UploadPartCopy, of SSE-S3": (lambda world, client: world.copied_part(client, "plain"), [DECRYPT]),
    "CompleteMultipartUpload": (World.completed, []),
    "CompleteMultipartUpload, checksums": (lambda world, client: world.completed(client, **CRC), [DECRYPT]),
    "GetObjectTagging": (on("get_object_tagging"), []),
    "ListObjectsV2": (lambda world, client: client.list_objects_v2(Bucket=world.name), []),
    "DeleteObject": (on("delete_object", "nothing"), []),
}


def outcome(call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except ClientError as error:
        return error.response["Error"]["Code"]
    return "ok"


# AccessDenied has no body where the method is HEAD.
DENIED = ("AccessDenied", "403")


def expect(said, is_allowed, *what):
    assert (said == "ok") if is_allowed else (said in DENIED), (*what, said, is_allowed)


def each_world():
    for key in ("free", "owned", "asked"):
        for is_default in (False, True):
            with World(key, is_default) as world:
                yield world


@check
def each_operation_needs_its_rights():
    with User() as user:
        for world in each_world():
            has_policy = world.key == "asked"
            for name, (call, needed) in ROWS.items():
                about = (name, world.key, world.is_default)
                user.may()
                expect(outcome(call, world, user.s3), not (has_policy and needed), *about, "no right")
                user.may(right("kms:*"), DENY)
                expect(outcome(call, world, user.s3), not needed, *about, "Deny")
                for missing in needed if has_policy else ():
                    user.may(right([action for action in (GENERATE, DECRYPT) if action != missing], world.key))
                    expect(outcome(call, world, user.s3), False, *about, "without", missing)
                if needed:
                    user.may(right(needed, world.key))
                    expect(outcome(call, world, user.s3), True, *about, "right")


@check
def a_denial_may_name_the_key():
    with User() as user, World("free", False) as free, World("owned", False) as owned:
        user.may({"Effect": "Deny", "Action": DECRYPT, "Resource": f"arn:aws:kms:*:{FIRST_ACCOUNT}:key/owned"})
        expect(outcome(on("get_object"), free, user.s3), True, "free")
        expect(outcome(on("get_object"), owned, user.s3), False, "owned")
        answer = refused("AccessDenied", user.s3.get_object, Bucket=owned.name, Key="k")
        said = answer["Error"]["Message"]
        assert f"user/{user.name} is not authorized to perform: kms:Decrypt" in said and "key/owned" in said, said


@check
def without_a_key_of_its_own_a_bucket_has_that_of_the_service():
    with User() as user, base.Bucket() as name:
        put = {"Bucket": name, "Key": "k", "Body": b"x"}
        user.may(DENY)
        user.s3.put_object(**put)
        refused("AccessDenied", user.s3.put_object, **put, ServerSideEncryption="aws:kms")
        user.may()
        user.s3.put_object(**put, ServerSideEncryption="aws:kms")
        user.s3.get_object(Bucket=name, Key="k")


@check
def groups_count():
    group = "of-" + secrets.token_hex(8)
    with User() as user, World("free", True) as world:
        user.may()
        iam.create_group(GroupName=group)
        iam.put_group_policy(GroupName=group, PolicyName="row", PolicyDocument=policy(DENY))
        expect(outcome(on("get_object"), world, user.s3), True, "not in the group")
        iam.add_user_to_group(GroupName=group, UserName=user.name)
        expect(outcome(on("get_object"), world, user.s3), False, "in the group")
        iam.remove_user_from_group(GroupName=group, UserName=user.name)
        iam.delete_group_policy(GroupName=group, PolicyName="row")
        iam.delete_group(GroupName=group)


@check
def sessions_are_narrowed():
    role = "of-" + secrets.token_hex(8)
    trust = policy({"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "*"}})
    arn = iam.create_role(RoleName=role, AssumeRolePolicyDocument=trust)["Role"]["Arn"]
    document = policy(S3, right("kms:*"))
    iam.put_role_policy(RoleName=role, PolicyName="row", PolicyDocument=document)

    def session(*statements):
        narrowed = {"Policy": policy(*statements)} if statements else {}
        key = assumer.assume_role(RoleArn=arn, RoleSessionName="row", **narrowed)["Credentials"]
        made = boto3.client(
            "s3",
            endpoint_url=ENDPOINT,
            region_name="us-east-1",
            aws_access_key_id=key["AccessKeyId"],
            aws_secret_access_key=key["SecretAccessKey"],
            aws_session_token=key["SessionToken"],
            config=base.Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        )
        return lambda world: outcome(on("get_object"), world, made)

    with User() as user, World("free", False) as free, World("asked", False) as asked:
        user.may({"Effect": "Allow", "Action": "sts:AssumeRole", "Resource": arn})
        made = iam.create_access_key(UserName=user.name)["AccessKey"]
        assumer = query_api("sts", made["AccessKeyId"], made["SecretAccessKey"])
        for statements, may_free, may_asked in (
            ((), True, True),
            ((S3,), True, False),
            ((S3, right(DECRYPT, "asked")), True, True),
            ((S3, DENY), False, False),
        ):
            read = session(*statements)
            expect(read(free), may_free, "free", statements)
            expect(read(asked), may_asked, "asked", statements)
        iam.put_role_policy(RoleName=role, PolicyName="row", PolicyDocument=policy(S3, DENY))
        expect(session()(free), False, "free", "role")
        iam.delete_access_key(UserName=user.name, AccessKeyId=made["AccessKeyId"])
    iam.delete_role_policy(RoleName=role, PolicyName="row")
    iam.delete_role(RoleName=role)


@contextlib.contextmanager
def open_to_other_account(key):
    """A bucket of the first account that the other account may use, and a user of that."""
    with World(key, False) as world, User(other_iam) as user:
        principal = {"AWS": f"arn:aws:iam::{OTHER_ACCOUNT}:root"}
        resources = [f"arn:aws:s3:::{world.name}", f"arn:aws:s3:::{world.name}/*"]
        statement = {"Effect": "Allow", "Action": "s3:*", "Principal": principal, "Resource": resources}
        s3.put_bucket_policy(Bucket=world.name, Policy=policy(statement))
        yield world, user


@check
def across_accounts_both_sides_are_asked():
    root = base.client(*OTHER, **CHECKSUMS)
    # Without an owner a key is every account's.
    for key, may_root, may_without, may_with in (
        ("free", True, True, True),
        ("owned", False, False, False),
        ("asked", False, False, False),
        ("shared", True, False, True),
    ):
        with open_to_other_account(key) as (world, user):
            for name in ("GetObject", "PutObject"):
                call = ROWS[name][0]
                expect(outcome(call, world, root), may_root, key, name, "root")
                user.may()
                expect(outcome(call, world, user.s3), may_without, key, name, "no right")
                user.may(right("kms:*"))
                expect(outcome(call, world, user.s3), may_with, key, name, "right")
                user.may(right("kms:*"), DENY)
                expect(outcome(call, world, user.s3), False, key, name, "Deny")


@check
def strangers_use_keys_of_nobody_only():
    for key, is_allowed in (("free", True), ("owned", False), ("asked", False), ("pairs", False)):
        with base.Bucket() as name:
            context = base64.b64encode(b'{"team": "blue"}').decode()
            s3.put_object(Bucket=name, Key="k", Body=b"x", SSEKMSEncryptionContext=context, **named(key))
            everybody = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject"}
            s3.put_bucket_policy(Bucket=name, Policy=policy(everybody | {"Resource": f"arn:aws:s3:::{name}/*"}))
            status, _, _ = base.send("GET", f"/{name}/k")
            assert status == (200 if is_allowed else 403), (key, status)


@check
def arns_name_the_account_of_a_key():
    with base.Bucket() as name:
        put = {"Bucket": name, "Key": "k", "Body": b"x"}
        arn = "arn:aws:kms:us-east-1:{}:key/owned"
        s3.put_object(**put, **named(arn.format(FIRST_ACCOUNT)))
        refused("KMS.NotFoundException", s3.put_object, **put, **named(arn.format(OTHER_ACCOUNT)))
        refused("KMS.NotFoundException", set_default, name, arn.format(OTHER_ACCOUNT))
        set_default(name, arn.format(FIRST_ACCOUNT))


@check
def conditions_of_keys():
    context = base64.b64encode(b'{"team": "blue"}').decode()
    with User() as user, base.Bucket() as name:
        put = {"Bucket": name, "Key": "k", "Body": b"x", **named("asked")}
        for operator, key, value, plain, with_pair in (
            ("StringEquals", "kms:EncryptionContext:Team", "blue", False, True),
            ("StringEquals", "kms:EncryptionContext:team", "red", False, False),
            ("StringEquals", "kms:ViaService", "s3.us-east-1.amazonaws.com", True, True),
            ("StringEquals", "kms:ViaService", "ec2.us-east-1.amazonaws.com", False, False),
            ("StringEquals", "kms:CallerAccount", FIRST_ACCOUNT, True, True),
            ("StringEquals", "kms:CallerAccount", OTHER_ACCOUNT, False, False),
            ("StringEquals", "kms:EncryptionContext:aws:s3:arn", f"arn:aws:s3:::{name}/k", True, True),
            ("StringEquals", "kms:EncryptionContext:aws:s3:arn", f"arn:aws:s3:::{name}/x", False, False),
            ("ForAnyValue:StringEquals", "kms:EncryptionContextKeys", "team", False, True),
            ("Bool", "aws:ViaAWSService", "true", True, True),
            ("IpAddress", "aws:SourceIp", "10.0.0.0/8", False, False),
        ):
            user.may(right("kms:*", Condition={operator: {key: value}}))
            expect(outcome(user.s3.put_object, **put), plain, key, value)
            said = outcome(user.s3.put_object, **put, SSEKMSEncryptionContext=context)
            expect(said, with_pair, key, value, "pair")
        # With S3 Bucket Keys the context names the bucket.
        of_bucket = {"kms:EncryptionContext:aws:s3:arn": f"arn:aws:s3:::{name}"}
        user.may(right("kms:*", Condition={"StringEquals": of_bucket}))
        expect(outcome(user.s3.put_object, **put), False, "object")
        expect(outcome(user.s3.put_object, **put, BucketKeyEnabled=True), True, "bucket")
        expect(outcome(user.s3.get_object, Bucket=name, Key="k"), True, "bucket")


@check
def a_key_policy_that_names_users_is_enough():
    context = base64.b64encode(b'{"team": "blue"}').decode()
    with User() as user, base.Bucket() as name:
        put = {"Bucket": name, "Key": "k", "Body": b"x", **named("pairs")}
        user.may()
        expect(outcome(user.s3.put_object, **put), False, "no pair")
        expect(outcome(user.s3.put_object, **put, SSEKMSEncryptionContext=context), True, "pair")
        expect(outcome(user.s3.get_object, Bucket=name, Key="k"), True, "pair")
        user.may(DENY)
        expect(outcome(user.s3.get_object, Bucket=name, Key="k"), False, "Deny")
        # Not even the root, whom nothing else narrows.
        expect(outcome(s3.put_object, **put), False, "root without the pair")


@check
def no_spelling_of_a_key_evades_a_condition():
    """Nor does a policy that requires a key refuse it for its spelling."""
    arn = f"arn:aws:kms:us-east-1:{FIRST_ACCOUNT}:key/owned"
    alias = f"arn:aws:kms:us-east-1:{FIRST_ACCOUNT}:alias/owned"
    keys = right("kms:*")
    condition = "s3:x-amz-server-side-encryption-aws-kms-key-id"
    with User() as user, base.Bucket() as name:
        put = lambda key: outcome(user.s3.put_object, Bucket=name, Key="k", Body=b"x", **named(key))
        for written in (arn, "owned", "alias/owned"):
            deny = {"Effect": "Deny", "Action": "s3:PutObject", "Resource": "*"}
            user.may(keys, deny | {"Condition": {"StringEquals": {condition: written}}})
            for sent in (arn, alias, "owned", "alias/owned", "key/owned", "any/thing/owned"):
                expect(put(sent), False, f"{written} is denied and {sent} is sent")
            expect(put("free"), True, f"{written} is denied")
            user.may(keys, deny | {"Condition": {"StringNotEquals": {condition: written}}})
            expect(put("owned"), True, f"{written} is required")
            expect(put("free"), False, f"{written} is required")


if __name__ == "__main__":
    sys.exit(base.main())
