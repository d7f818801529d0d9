#!/usr/bin/env python3
"""Checks with boto3 and as browsers ask that an S3 endpoint heeds the CORS rules of buckets.

Like s3_conformance.py, whose helpers it uses. --domain=NAME says under which domain buckets have
hosts of their own.
"""

import sys
import time
import urllib.parse

import s3_conformance as base
from s3_conformance import Bucket, check, raw, refused, s3

base.CHECKS.clear()
PAGE = "https://page.example"
DOMAIN_OPTION = "--domain="
DOMAINS = [option.removeprefix(DOMAIN_OPTION) for option in sys.argv if option.startswith(DOMAIN_OPTION)]
sys.argv = [option for option in sys.argv if not option.startswith(DOMAIN_OPTION)]
DEPENDS_ON = "Origin, Access-Control-Request-Headers, Access-Control-Request-Method"
RULE = {
    "ID": "pages",
    "AllowedOrigins": [PAGE, "https://*.page.example"],
    "AllowedMethods": ["GET", "PUT"],
    "AllowedHeaders": ["x-amz-*", "Content-Type"],
    "ExposeHeaders": ["ETag", "x-amz-version-id"],
    "MaxAgeSeconds": 600,
}


def set_rules(name, *rules):
    s3.put_bucket_cors(Bucket=name, CORSConfiguration={"CORSRules": list(rules)})
    assert s3.get_bucket_cors(Bucket=name)["CORSRules"] == list(rules)


def told(headers):
    """What an answer tells browsers, without the prefix of the names."""
    names = {name.lower(): value for name, value in headers.items()}
    found = {name: value for name, value in names.items() if name.startswith("access-control-")}
    found = {name.removeprefix("access-control-"): value for name, value in found.items()}
    return found | ({"vary": names["vary"]} if "vary" in names else {})


def preflight(path, origin=PAGE, method="GET", headers=None, **others):
    asked = {"Origin": origin, "Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers}
    asked = {name: value for name, value in asked.items() if value is not None}
    return base.send("OPTIONS", path, headers=asked | others)


def refused_preflight(status, code, path, **options):
    got, headers, body = preflight(path, **options)
    assert got == status and code.encode() in body, (options, got, body)
    assert "allow-origin" not in told(headers), headers


@check
def rules_are_kept_and_removed():
    with Bucket() as name:
        refused("NoSuchCORSConfiguration", s3.get_bucket_cors, Bucket=name)
        s3.delete_bucket_cors(Bucket=name)
        set_rules(name, RULE, {"AllowedOrigins": ["*"], "AllowedMethods": ["HEAD", "POST", "DELETE"]})
        set_rules(name, {"AllowedOrigins": ["*"], "AllowedMethods": ["GET"]})
        answer = s3.delete_bucket_cors(Bucket=name)
        assert answer["ResponseMetadata"]["HTTPStatusCode"] == 204
        refused("NoSuchCORSConfiguration", s3.get_bucket_cors, Bucket=name)
        refused_preflight(403, "AccessForbidden", f"/{name}/k")
    rules = {"CORSRules": [RULE]}
    refused("NoSuchBucket", s3.put_bucket_cors, Bucket="atoll-no-such-bucket", CORSConfiguration=rules)
    refused("NoSuchBucket", s3.get_bucket_cors, Bucket="atoll-no-such-bucket")


@check
def rules_that_s3_does_not_take_are_refused():
    with Bucket() as name:
        set_rules(name, RULE)
        for code, change in (
            ("InvalidRequest", {"AllowedMethods": ["GET", "PATCH"]}),
            ("InvalidRequest", {"AllowedMethods": ["OPTIONS"]}),
            ("InvalidRequest", {"AllowedOrigins": ["https://*.*"]}),
            ("InvalidRequest", {"AllowedHeaders": ["*-*"]}),
            ("InvalidRequest", {"ExposeHeaders": ["*"]}),
            ("InvalidRequest", {"ID": "i" * 256}),
            ("MaxMessageLengthExceeded", {"AllowedOrigins": ["o" * 1000] * 66}),
            ("MalformedXML", {"AllowedMethods": []}),
            ("MalformedXML", {"AllowedOrigins": []}),
        ):
            rules = {"CORSRules": [RULE | change]}
            refused(code, s3.put_bucket_cors, Bucket=name, CORSConfiguration=rules)
        refused("InvalidRequest", s3.put_bucket_cors, Bucket=name, CORSConfiguration={"CORSRules": [RULE] * 101})
        refused("MalformedXML", s3.put_bucket_cors, Bucket=name, CORSConfiguration={"CORSRules": []})
        assert s3.get_bucket_cors(Bucket=name)["CORSRules"] == [RULE]
        set_rules(name, *[RULE] * 100)


@check
def preflights_are_answered_by_the_first_rule_that_fits():
    with Bucket() as name:
        set_rules(name, RULE, {"AllowedOrigins": ["*"], "AllowedMethods": ["GET", "HEAD"]})
        for path in (f"/{name}", f"/{name}/", f"/{name}/k", f"/{name}/a/b%20c?partNumber=1&uploadId=x"):
            status, headers, body = preflight(path, method="PUT", headers="X-Amz-Date, content-type")
            assert status == 200 and body == b"", (path, status, body)
            assert headers["x-amz-request-id"]
            assert told(headers) == {
                "allow-origin": PAGE,
                "allow-credentials": "true",
                "allow-methods": "GET, PUT",
                "allow-headers": "x-amz-date, content-type",
                "expose-headers": "ETag, x-amz-version-id",
                "max-age": "600",
                "vary": DEPENDS_ON,
            }, told(headers)
        status, headers, _ = preflight(f"/{name}/k", "https://other.example", "HEAD")
        assert status == 200, status
        assert told(headers) == {"allow-origin": "*", "allow-methods": "GET, HEAD", "vary": DEPENDS_ON}, told(headers)
        assert told(preflight(f"/{name}/k", "https://a.page.example")[1])["allow-origin"] == "https://a.page.example"
        for wrong in ({"method": "DELETE"}, {"method": "PATCH"}, {"headers": "x-amz-date,authorization"}):
            refused_preflight(403, "AccessForbidden", f"/{name}/k", **wrong)


@check
def preflights_must_say_what_they_ask():
    with Bucket() as name:
        refused_preflight(400, "BadRequest", f"/{name}/k", origin=None)
        refused_preflight(400, "BadRequest", f"/{name}/k", method=None)
        refused_preflight(403, "AccessForbidden", f"/{name}/k")
        set_rules(name, RULE)
        refused_preflight(400, "BadRequest", f"/{name}/k", origin=None)
        refused_preflight(400, "BadRequest", f"/{name}/k", method=None)
        for path in ("/", "/atoll-no-such-bucket/k", f"//{name}/k", "/UPPER/k"):
            refused_preflight(403, "AccessForbidden", path)


@check
def preflights_are_not_signed_but_bounded():
    with Bucket() as name:
        set_rules(name, RULE)
        for authorization in ("", "AWS key:signature", "AWS4-HMAC-SHA256 nonsense"):
            status, _, body = preflight(f"/{name}/k", Authorization=authorization)
            assert status == 200, (authorization, status, body)
        url = s3.generate_presigned_url("get_object", {"Bucket": name, "Key": "k"}).removeprefix(base.ENDPOINT)
        assert preflight(url)[0] == 200
        refused_preflight(403, "AccessForbidden", f"/{name}/k", headers=",".join(["x-amz-a"] * 129))
        status, _, body = preflight(f"/{name}/k", **{"x-big": "v" * 20_000})
        assert status == 431 and b"RequestHeaderSectionTooLarge" in body, (status, body)
        status, _, body = base.send("OPTIONS", "/-/health", headers={"Origin": PAGE})
        assert status == 405, (status, body)
        # What follows on the same connection is not taken for a rest of the preflight.
        asked = {"Origin": PAGE, "Access-Control-Request-Method": "GET"}
        assert base.send("OPTIONS", f"/{name}/k", b"x" * 1_000, asked)[0] == 200


@check
def every_answer_tells_browsers():
    with Bucket() as name:
        set_rules(name, RULE)
        expected = {
            "allow-origin": PAGE,
            "allow-credentials": "true",
            "allow-methods": "GET, PUT",
            "expose-headers": "ETag, x-amz-version-id",
            "max-age": "600",
            "vary": DEPENDS_ON,
        }
        key = f"/{name}/k"
        page = {"Origin": PAGE}
        asks = {"Access-Control-Request-Headers": "x-amz-date"}
        for wanted, (status, headers, body) in (
            (200, raw("PUT", key, b"data", page)),
            (200, raw("GET", key, headers=page)),
            (206, raw("GET", key, headers=page | {"Range": "bytes=1-2"})),
            (304, raw("GET", key, headers=page | {"If-None-Match": "*"})),
            (404, raw("GET", f"/{name}/other", headers=page)),
            (200, raw("GET", f"/{name}", headers=page)),
            (403, base.send("GET", key, headers=page)),
            (403, base.send("PUT", key, b"x", page | {"Authorization": ""})),
            (400, base.send("GET", key, headers=page | {"Authorization": "AWS key:signature"})),
            (501, raw("GET", key, headers=page, query="?torrent")),
        ):
            assert status == wanted and told(headers) == expected, (wanted, status, told(headers), body)
        assert told(raw("GET", key, headers=page | asks)[1]) == expected | {"allow-headers": "x-amz-date"}
        # The rule gives nobody rights, and nothing else gets a word of it.
        assert s3.get_object(Bucket=name, Key="k")["Body"].read() == b"data"
        for origin, method, said in ((None, "GET", {}), (PAGE, "HEAD", {"vary": DEPENDS_ON})):
            headers = {"Origin": origin} if origin else {}
            status, answered, _ = raw(method, key, headers=headers)
            assert status == 200 and told(answered) == said, (origin, method, status, told(answered))
        status, headers, _ = raw("GET", key, headers={"Origin": "https://other.example"})
        assert status == 200 and told(headers) == {"vary": DEPENDS_ON}, (status, told(headers))
        assert told(raw("GET", "/", headers=page)[1]) == {}
        s3.delete_bucket_cors(Bucket=name)
        assert told(raw("GET", key, headers=page)[1]) == {}


@check
def a_script_learns_that_its_bucket_was_deleted():
    name = "atoll-cors-" + str(time.time_ns())
    s3.create_bucket(Bucket=name)
    set_rules(name, {"AllowedOrigins": ["*"], "AllowedMethods": ["DELETE"]})
    status, headers, body = raw("DELETE", f"/{name}", headers={"Origin": PAGE})
    assert status == 204 and told(headers)["allow-origin"] == "*", (status, headers, body)
    refused_preflight(403, "AccessForbidden", f"/{name}/k", method="DELETE")


@check
def buckets_are_found_in_hosts():
    if not DOMAINS:
        return "skipped"
    domain = DOMAINS[0]
    with Bucket() as name:
        set_rules(name, RULE)
        port = urllib.parse.urlparse(base.ENDPOINT).port
        for host, path, wanted in (
            (f"{name}.{domain}", "/k", 200),
            (f"{name}.{domain}", "/atoll-no-such-bucket/k", 200),
            (f"atoll-no-such-bucket.{domain}", f"/{name}/k", 403),
            (domain, f"/{name}/k", 200),
            (f"127.0.0.1:{port}", f"/{name}/k", 200),
        ):
            status, headers, body = preflight(path, Host=host)
            assert status == wanted, (host, path, status, body)
            status, headers, body = base.send("GET", path, headers={"Host": host, "Origin": PAGE})
            assert status == (404 if host.startswith("atoll-no") else 403), (host, path, status, body)
            assert ("allow-origin" in told(headers)) == (wanted == 200), (host, path, status, body)
    return None


if __name__ == "__main__":
    sys.exit(base.main())
