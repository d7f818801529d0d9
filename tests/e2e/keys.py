#!/usr/bin/env python3
"""Keys under control: a cluster whose root key is in a Transit engine (tests/transit), with the engine in
trouble; rotation, re-wrapping and destruction of keys; the move from a local key file to Transit; each kind
of server-side encryption by boto3, aws CLI and rclone."""
import base64, concurrent.futures, json, os, subprocess, sys, time, urllib.request

from harness import MIB, REPOSITORY, expect, free_port, main, wait_for

TOKEN = "token-of-the-test"
LIFETIME_SECONDS = 8


class Transit:
    """The server of tests/transit, in a process of its own."""

    def __init__(self, test):
        self.test, self.port = test, free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.token_file = test.directory / "transit-token"
        self.token_file.write_text(TOKEN + "\n")
        self.start()

    def start(self):
        self.process = self.test.start(sys.executable, REPOSITORY / "tests" / "transit" / "transit_server.py", "--listen", f"127.0.0.1:{self.port}",
                                       "--token", TOKEN, "--state", self.test.directory / "transit-state.json", stdout=subprocess.DEVNULL)
        wait_for("the Transit server answers", lambda: self.ask("/_test/requests"), 20)

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def ask(self, path, body=None, token=None):
        request = urllib.request.Request(self.address + path, data=None if body is None else json.dumps(body).encode(),
                                         headers={"X-Vault-Token": token} if token else {})
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read() or b"{}")

    def fail(self, kind, seconds=600, count=None):
        self.ask("/_test/failure", {"kind": kind, "seconds": seconds, "count": count})

    def decryptions(self):
        return self.ask("/_test/requests")["operations"].get("decrypt", 0)

    def options(self):
        return ["--kms-address", self.address, "--kms-token-file", self.token_file, "--kms-timeout-ms", "1500"]


def error_of(call, *arguments, **named):
    """HTTP status and code of an S3 error; None if there is none."""
    from botocore.exceptions import ClientError
    try:
        call(*arguments, **named)
        return None
    except ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]


def read(s3, bucket, key):
    return s3.get_object(Bucket=bucket, Key=key)["Body"].read()


def transit_cluster(test):
    """What S3 and images do when their root key is in Transit, also when that is in trouble."""
    transit = Transit(test)
    cluster = test.cluster(name="transit", osd_size="2G")
    cluster.options = transit.options()
    cluster.variables["ATOLL_KEY_LIFETIME_SECONDS"] = str(LIFETIME_SECONDS)
    with test.step("atoll up with a Transit engine: no root key on this host", fatal=True):
        cluster.up()
        kms = json.loads((cluster.data / "keys" / "kms.json").read_text())
        expect(kms["keys"] == {} and kms["transit"]["key"] == "atoll", f"kms.json: {kms.keys()}")
        expect(TOKEN not in (cluster.data / "keys" / "kms.json").read_text(), "the token was copied")
    s3 = cluster.s3()
    data = os.urandom(3 * MIB)
    with test.step("images and objects; the engine is asked once per key and not per request") as note:
        cluster.create_image("disk", "64M")
        with cluster.nbd("disk") as connection:
            connection.write(0, data)
            expect(connection.read(0, len(data)) == data, "other bytes come back")
        for bucket in ("one", "two"):
            s3.create_bucket(Bucket=bucket)
            s3.put_object(Bucket=bucket, Key="k", Body=data)
        before, begun = transit.decryptions(), time.monotonic()
        requests = 0
        while time.monotonic() - begun < 1.5:
            for bucket in ("one", "two"):
                s3.put_object(Bucket=bucket, Key=f"small/{requests}", Body=data[:1000])
                expect(read(s3, bucket, "k") == data, "other bytes come back")
                requests += 2
        asked = transit.decryptions() - before
        expect(asked <= 4, f"{asked} decryptions for {requests} requests")
        note(f"{asked} decryptions during {requests} requests")
    with test.step("SSE-KMS with a key that the engine has, and with one that it has not"):
        cluster.cli("key", "create", "project")
        s3.put_object(Bucket="one", Key="kms", Body=data, ServerSideEncryption="aws:kms", SSEKMSKeyId="project")
        expect(read(s3, "one", "kms") == data, "other bytes come back")
        refused = error_of(s3.put_object, Bucket="one", Key="x", Body=b"", ServerSideEncryption="aws:kms", SSEKMSKeyId="no-such-key")
        expect(refused == (400, "KMS.NotFoundException"), f"{refused}")
    for kind in ("hang", "sealed"):
        with test.step(f"the engine is {'silent' if kind == 'hang' else kind}: keys in use go on, what needs it fails clearly, nothing hangs") as note:
            for bucket in ("one", "two"):
                read(s3, bucket, "k")
            transit.fail(kind)
            begun, worst, served = time.monotonic(), 0, 0
            while time.monotonic() - begun < LIFETIME_SECONDS / 4:
                started = time.monotonic()
                expect(read(s3, "one", "k") == data, "other bytes come back")
                s3.put_object(Bucket="two", Key="while-away", Body=data[:5000])
                worst, served = max(worst, time.monotonic() - started), served + 2
            started = time.monotonic()
            refused = error_of(s3.create_bucket, Bucket="three")
            expect(refused == (503, "ServiceUnavailable"), f"a new bucket: {refused}")
            expect(time.monotonic() - started < 4, "a new bucket's answer took too long")
            done = cluster.cli("image", "create", "another", "--size", "64M", ok=None)
            expect(done.returncode == 1 and "does not answer" in done.stderr, f"image create: {done.returncode} {done.stderr}")
            note(f"{served} requests served, slowest pair {worst:.2f} s")
        with test.step("after the keys' lifetime: clear errors, quickly, also many at once; then it goes on by itself") as note:
            wait_for("GETs fail", lambda: error_of(s3.get_object, Bucket="one", Key="k") == (503, "ServiceUnavailable"), LIFETIME_SECONDS + 5)
            started = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor(32) as pool:
                errors = list(pool.map(lambda _: error_of(s3.get_object, Bucket="one", Key="k"), range(64)))
            expect(set(errors) == {(503, "ServiceUnavailable")}, f"{set(errors)}")
            took = time.monotonic() - started
            expect(took < 8, f"64 requests took {took:.1f} s")
            transit.fail("none")
            back = time.monotonic()
            wait_for("GETs work again", lambda: error_of(s3.get_object, Bucket="one", Key="k") is None, 20)
            expect(read(s3, "one", "k") == data, "other bytes come back")
            note(f"64 refused in {took:.1f} s, works again after {time.monotonic() - back:.1f} s")
    with test.step("a short failure is not noticed"):
        transit.fail("503", count=2)
        s3.create_bucket(Bucket="three")
        transit.fail("reset", count=1)
        s3.create_bucket(Bucket="four")
        transit.fail("none")
    with test.step("rotation with everything wrapped anew; no object changes"):
        before = s3.head_object(Bucket="one", Key="k")
        cluster.cli("key", "rotate")
        cluster.cli("key", "rotate", "project")
        versions = {(key["name"], version["id"]): version["has_wrapped"] for key in cluster.json("key", "ls") for version in key["versions"]}
        expect(not any(versions["atoll", "v1"].values()) and versions["atoll", "v2"]["images"] == 1, f"{versions}")
        expect(versions["project", "v2"]["buckets"] == 1 and not any(versions["project", "v1"].values()), f"{versions}")
        after = s3.head_object(Bucket="one", Key="k")
        expect(after["LastModified"] == before["LastModified"] and after["ETag"] == before["ETag"], "the object changed")
        for key in ("k", "kms"):
            expect(read(s3, "one", key) == data, f"{key}: other bytes come back")
    with test.step("a restart of everything asks the engine again, and all is there"):
        cluster.down()
        cluster.up()
        s3 = cluster.s3()
        expect(read(s3, "one", "kms") == data and read(s3, "two", "k") == data, "other bytes come back")
        with cluster.nbd("disk") as connection:
            expect(connection.read(0, len(data)) == data, "other bytes come back")
    with test.step("a key that is destroyed takes what it protects with it, at once, and nothing else") as note:
        done = cluster.cli("key", "destroy", "--key", "project", ok=None)
        expect(done.returncode == 1 and "--force" in done.stderr, f"{done.returncode} {done.stderr}")
        expect(read(s3, "one", "kms") == data, "a refusal destroyed it")
        cluster.cli("key", "destroy", "--key", "project", "--force")
        begun = time.monotonic()
        wait_for("the object is unreadable", lambda: error_of(s3.get_object, Bucket="one", Key="kms") == (400, "KMS.DisabledException"), 10)
        note(f"after {time.monotonic() - begun:.1f} s")
        expect(read(s3, "one", "k") == data, "another object went with it")
        s3.delete_object(Bucket="one", Key="kms")
    cluster.down()
    transit.stop()


def local_cluster(test):
    """Local keys: rotation, shredding, the move to Transit, and clients with each kind of encryption."""
    cluster = test.cluster(name="local", osd_size="2G")
    with test.step("a cluster with local keys", fatal=True):
        cluster.up()
    s3, data = cluster.s3(), os.urandom(2 * MIB)
    for bucket in ("keep", "shred"):
        s3.create_bucket(Bucket=bucket)
        s3.put_object(Bucket=bucket, Key="k", Body=data)
    for image in ("kept", "shredded"):
        cluster.create_image(image, "64M")
        with cluster.nbd(image) as connection:
            connection.write(4096, data)

    def all_is_there():
        expect(read(cluster.s3(), "keep", "k") == data, "the object has other bytes")
        with cluster.nbd("kept") as connection:
            expect(connection.read(4096, len(data)) == data, "the image has other bytes")

    with test.step("rotation: an old version only opens, a new one wraps; running processes take it up"):
        cluster.cli("key", "rotate")
        [key] = [key for key in cluster.json("key", "ls") if key["name"] == "atoll"]
        counts = [version["has_wrapped"] for version in key["versions"]]
        expect(counts[0] == {"images": 0, "buckets": 0, "users": 0} and counts[1] == {"images": 2, "buckets": 2, "users": 1}, f"{counts}")
        s3.create_bucket(Bucket="after")
        s3.put_object(Bucket="after", Key="k", Body=data)
        all_is_there()
    with test.step("aws CLI, rclone and boto3 with each kind of encryption, over TLS"):
        for name in ("project", "second"):
            cluster.cli("key", "create", name)
        clients(test, cluster)
    with test.step("a bucket and an image are shredded: their data stays and says nothing") as note:
        for what in (("--bucket", "shred"), ("--image", "shredded")):
            done = cluster.cli("key", "destroy", *what, ok=None)
            expect(done.returncode == 1 and "--force" in done.stderr, f"{done.returncode} {done.stderr}")
            cluster.cli("key", "destroy", *what, "--force")
        begun = time.monotonic()
        wait_for("the bucket is unreadable", lambda: error_of(s3.get_object, Bucket="shred", Key="k") == (403, "AccessDenied"), 10)
        note(f"after {time.monotonic() - begun:.1f} s")
        expect(error_of(s3.put_object, Bucket="shred", Key="new", Body=b"x") == (403, "AccessDenied"), "a PUT went in")
        done = cluster.cli("image", "info", "shredded", ok=None)
        expect(done.returncode == 0, done.stderr)
        try:
            cluster.nbd("shredded").close()
            expect(False, "the image can be attached")
        except Exception as error:
            expect("can be attached" not in str(error), str(error))
        all_is_there()
        s3.delete_object(Bucket="shred", Key="k")
        s3.delete_bucket(Bucket="shred")
        cluster.cli("image", "rm", "shredded")
    with test.step("the move to Transit: both serve, then everything is there, then the local key is gone"):
        transit = Transit(test)
        cluster.cli("key", "use-transit", *transit.options())
        cluster.cli("key", "rewrap")
        cluster.down()
        cluster.up()
        all_is_there()
        uses = {(key["service"], key["name"]): sum(sum(version["has_wrapped"].values()) for version in key["versions"]) for key in cluster.json("key", "ls")}
        expect(uses["local", "atoll"] == 0 and uses["transit", "atoll"] >= 3, f"{uses}")
    cluster.down()
    transit.stop()


def clients(test, cluster):
    environment = cluster.s3_tls_environment()
    script = REPOSITORY / "crates" / "s3" / "tests" / "s3_encryption.py"
    done = test.run(sys.executable, script, env=dict(environment, S3_PLAIN_ENDPOINT=cluster.credentials()["endpoint"]), timeout=120, ok=None)
    expect(done.returncode == 0 and " passed, 0 failed" in done.stdout, f"s3_encryption.py:\n{done.stdout[-3000:]}{done.stderr[-1000:]}")
    content = os.urandom(9 * MIB)
    source, back = test.directory / "sse-source", test.directory / "sse-back"
    source.write_bytes(content)
    key = test.directory / "customer.key"
    key.write_bytes(os.urandom(32))
    test.run("aws", "s3", "mb", "s3://kinds", env=environment)
    for options in (["--sse", "AES256"], ["--sse", "aws:kms", "--sse-kms-key-id", "project"], ["--sse-c", "AES256", "--sse-c-key", f"fileb://{key}"]):
        test.run("aws", "s3", "cp", source, "s3://kinds/aws", *options, env=environment)
        test.run("aws", "s3", "cp", "s3://kinds/aws", back, *(options if options[0] == "--sse-c" else []), env=environment)
        expect(back.read_bytes() == content, f"aws {options}: other bytes")
        back.unlink()
    told = json.loads(test.run("aws", "s3api", "get-bucket-encryption", "--bucket", "kinds", env=environment).stdout)
    expect(told["ServerSideEncryptionConfiguration"]["Rules"][0]["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256", f"{told}")
    customer = base64.b64encode(key.read_bytes()).decode()
    # Each under a name of its own: rclone looks at what is there with the key of what it writes.
    for number, options in enumerate(({"SERVER_SIDE_ENCRYPTION": "AES256"}, {"SERVER_SIDE_ENCRYPTION": "aws:kms", "SSE_KMS_KEY_ID": "second"},
                    {"SSE_CUSTOMER_ALGORITHM": "AES256", "SSE_CUSTOMER_KEY_BASE64": customer})):
        # rclone cannot be told of the authority in both ways.
        rclone = dict({name: value for name, value in environment.items() if name != "AWS_CA_BUNDLE"}, **{f"RCLONE_S3_{name}": value for name, value in options.items()})
        test.run("rclone", "copyto", source, f"atoll:kinds/rclone-{number}", "--s3-upload-cutoff", "6M", "--s3-chunk-size", "5M", env=rclone)
        test.run("rclone", "copyto", f"atoll:kinds/rclone-{number}", back, env=rclone)
        expect(back.read_bytes() == content, f"rclone {options}: other bytes")
        back.unlink()


def scenario(test):
    transit_cluster(test)
    local_cluster(test)


if __name__ == "__main__":
    main(scenario)
