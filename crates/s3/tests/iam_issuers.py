#!/usr/bin/env python3
"""Checks roles for who bears a token of an issuer of OpenID Connect, and what the gateway asks issuers.

Like iam.py, whose helpers it uses. Issuers on 127.0.0.1 may be asked, and no others on loopback.
"""

import concurrent.futures
import contextlib
import json
import socket
import sys
import threading
import time
import types

import boto3
import oidc_issuer
import s3_conformance as base
from botocore import UNSIGNED
from botocore.client import Config
from botocore.exceptions import ClientError
from iam import (
    ACCOUNT,
    OTHER_ACCOUNT,
    READ_ONLY,
    allow,
    can_read,
    cannot_write,
    document,
    full_bucket,
    iam,
    of_session,
    role,
    trust,
)
from s3_conformance import ENDPOINT, check, refused

base.CHECKS.clear()


@contextlib.contextmanager
def registered(issuer):
    """The issuer as a provider of the account: the provider's ARN, and a call that assumes a role for a token."""
    made = iam.create_open_id_connect_provider(Url=issuer.url, ClientIDList=["atoll", "other"])
    arn = made["OpenIDConnectProviderArn"]
    place = issuer.url.split("://")[1]
    assert arn == f"arn:aws:iam::{ACCOUNT}:oidc-provider/{place}"
    condition = {"StringEquals": {f"{place}:aud": "atoll"}, "StringLike": {f"{place}:sub": "project:*"}}
    policy = trust({"Federated": arn}, "sts:AssumeRoleWithWebIdentity", Condition=condition)
    # botocore tries again, and later, what fails because of the issuer.
    config = Config(signature_version=UNSIGNED, retries={"total_max_attempts": 1})
    unsigned = boto3.client("sts", endpoint_url=ENDPOINT, region_name="us-east-1", config=config)
    with role(policy) as (name, role_arn):
        iam.attach_role_policy(RoleName=name, PolicyArn=READ_ONLY)

        def assume(token, **more):
            asked = {"RoleArn": role_arn, "RoleSessionName": "job", "WebIdentityToken": token} | more
            return unsigned.assume_role_with_web_identity(**asked)

        yield arn, name, assume
    iam.delete_open_id_connect_provider(OpenIDConnectProviderArn=arn)


@check
def tokens_of_issuers_give_roles():
    with oidc_issuer.issuer() as issuer, registered(issuer) as (arn, name, assume), full_bucket() as bucket:
        for key in issuer.keys:
            answer = assume(issuer.token(key), DurationSeconds=900)
            told = (answer["SubjectFromWebIdentityToken"], answer["Audience"], answer["Provider"])
            assert told == ("project:main", "atoll", arn), answer
            expected = f"arn:aws:sts::{ACCOUNT}:assumed-role/{name}/job"
            assert answer["AssumedRoleUser"]["Arn"] == expected
            session = of_session("s3", answer["Credentials"])
            can_read(session, bucket)
            cannot_write(session, bucket)
            assert of_session("sts", answer["Credentials"]).get_caller_identity()["Arn"] == expected
        narrow = assume(issuer.token(), Policy=document(allow("s3:ListBucket")))
        refused("AccessDenied", of_session("s3", narrow["Credentials"]).get_object, Bucket=bucket, Key="a")
        assume(issuer.token(aud=["stranger", "atoll"], azp="atoll"))
        assert len(issuer.asked) == 2, issuer.asked


@check
def wrong_tokens_give_nothing():
    with oidc_issuer.issuer() as issuer, registered(issuer) as (_, _, assume):
        now = int(time.time())
        for code, claims in (
            ("ExpiredTokenException", {"exp": now - 120}),
            ("InvalidIdentityToken", {"exp": None}),
            ("InvalidIdentityToken", {"nbf": now + 120}),
            ("InvalidIdentityToken", {"iat": now + 120}),
            ("InvalidIdentityToken", {"iat": None}),
            ("InvalidIdentityToken", {"aud": "stranger"}),
            ("InvalidIdentityToken", {"aud": None}),
            ("InvalidIdentityToken", {"sub": None}),
            ("InvalidIdentityToken", {"iss": "https://elsewhere.example"}),
            ("InvalidIdentityToken", {"iss": issuer.url.lower()}),
            ("AccessDenied", {"sub": "user:main"}),
            ("AccessDenied", {"aud": "other"}),
        ):
            refused(code, assume, issuer.token(**claims))
        good, invalid = issuer.token(), "InvalidIdentityToken"
        parts = good.split(".")
        refused(invalid, assume, "nonsense")
        refused(invalid, assume, parts[0] + "." + issuer.token(sub="project:other").split(".")[1] + "." + parts[2])
        refused(invalid, assume, issuer.token(oidc_issuer.RsaKey("rsa")))
        refused(invalid, assume, issuer.token(oidc_issuer.EcKey("rsa")))
        refused(invalid, assume, issuer.token(oidc_issuer.RsaKey("unknown")))
        plain = {"alg": "none"}, {"alg": "HS256"}, {"alg": "RS512"}, {"crit": ["exp"]}
        for header in plain:
            refused(invalid, assume, oidc_issuer.token(issuer.keys[0], issuer.claims(), **header))
        assume(good)
        refused("AccessDenied", assume, good, RoleArn=f"arn:aws:iam::{ACCOUNT}:role/missing")
        refused(invalid, assume, good, RoleArn=f"arn:aws:iam::{OTHER_ACCOUNT}:role/missing")
        refused("ValidationError", assume, good, ProviderId="www.amazon.com")


@check
def issuers_are_not_believed_everything():
    with oidc_issuer.issuer() as issuer, registered(issuer) as (_, _, assume):
        issuer.discovery["jwks_uri"] = "http://keys.example/keys"
        refused("IDPCommunicationError", assume, issuer.token())
        asked = len(issuer.asked)
        refused("IDPCommunicationError", assume, issuer.token())
        assert len(issuer.asked) == asked, "it was asked again at once"
    with oidc_issuer.issuer() as issuer, registered(issuer) as (_, _, assume):
        issuer.discovery["issuer"] = "http://127.0.0.1:1/other"
        refused("IDPCommunicationError", assume, issuer.token())
    refused("ValidationError", iam.create_open_id_connect_provider, Url="http://issuer.example")


@contextlib.contextmanager
def targets():
    """Addresses at which there is no issuer, each for a reason of its own; connections to those that answer."""
    with contextlib.ExitStack() as stack:
        reached = []

        def listener(name, address, answer):
            server = stack.enter_context(socket.create_server((address, 0), backlog=50))

            def serve():
                with contextlib.suppress(OSError):
                    while True:
                        stream = server.accept()[0]
                        reached.append(name)
                        if answer is not None:
                            stream.recv(4096)
                            stream.sendall(answer)
                            stream.close()

            threading.Thread(target=serve, daemon=True).start()
            return server.getsockname()[1]

        with socket.create_server(("127.0.0.1", 0)) as server:
            closed = server.getsockname()[1]
        page = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno"
        elsewhere = b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n"
        yield (
            {
                "closed": f"http://127.0.0.1:{closed}",
                "silent": f"http://127.0.0.1:{listener('silent', '127.0.0.1', None)}",
                "no HTTP": f"http://127.0.0.1:{listener('no HTTP', '127.0.0.1', b'220 mail')}",
                "no TLS": f"https://127.0.0.1:{listener('no TLS', '127.0.0.1', page)}",
                "no JSON": f"http://127.0.0.1:{listener('no JSON', '127.0.0.1', page)}",
                "redirect": f"http://127.0.0.1:{listener('redirect', '127.0.0.1', elsewhere)}",
                "not named": f"https://127.0.0.2:{listener('not named', '127.0.0.2', page)}",
            },
            reached,
        )


@check
def strangers_learn_nothing_of_what_is_at_an_address():
    """Who bears a token signs nothing: code, text and time are the same, whatever the gateway is made to ask."""
    key = oidc_issuer.RsaKey("rsa")
    with targets() as (urls, reached), contextlib.ExitStack() as stack:
        asked = {}
        for name, url in urls.items():
            issuer = types.SimpleNamespace(url=url)
            now = int(time.time())
            claims = {"iss": url, "sub": "project:a", "aud": "atoll", "iat": now, "exp": now + 300}
            _, _, assume = stack.enter_context(registered(issuer))
            asked[name] = (assume, oidc_issuer.token(key, claims))

        def answer(name):
            assume, token = asked[name]
            begun = time.monotonic()
            try:
                assume(token)
            except ClientError as error:
                return error.response["Error"], time.monotonic() - begun
            raise AssertionError(f"{name}: the token was taken")

        with concurrent.futures.ThreadPoolExecutor(len(asked)) as pool:
            answers = dict(zip(asked, pool.map(answer, asked), strict=True))
        errors = {json.dumps(error, sort_keys=True) for error, _ in answers.values()}
        assert len(errors) == 1 and "IDPCommunicationError" in next(iter(errors)), answers
        seconds = [seconds for _, seconds in answers.values()]
        assert min(seconds) > 4.9 and max(seconds) - min(seconds) < 2, answers
        assert {"silent", "no HTTP", "no TLS", "no JSON", "redirect"} <= set(reached), reached
        assert "not named" not in reached, f"an address that is not named was connected to: {reached}"


if __name__ == "__main__":
    sys.exit(base.main())
