"""What other users of a machine, and those who find a core dump, get: files and sockets are their owner's whatever the
umask is, a data directory that others may enter is refused, and no memory with keys is dumped."""

import base64
import contextlib
import json
import os
import secrets
import signal
import subprocess

import boto3
import pytest
from botocore.client import Config
from lib.operator import refused_start
from lib.waiting import wait_for


@pytest.fixture(scope="module")
def cluster(scenario):
    """Started by a shell that hides nothing."""
    cluster = scenario.cluster("files", osds=1, osd_size="1G")
    before = os.umask(0)
    try:
        cluster.up()
    finally:
        os.umask(before)
    return cluster


def test_no_file_is_for_others_whatever_the_umask_is(cluster):
    """But for certificates, which everybody may read."""
    cluster.create_image("disk", "64M")
    cluster.s3().create_bucket(Bucket="bucket")
    found = [path for path in cluster.data.rglob("*") if not path.is_symlink()]
    others = {path: path.stat().st_mode & 0o077 for path in found if path.stat().st_mode & 0o077}
    public = {path for path in others if path.suffix in (".crt", ".pem") and others[path] == 0o044}
    assert set(others) == public, {str(path): f"{mode:03o}" for path, mode in others.items() if path not in public}
    names = {path.name for path in found}
    assert {"device", "state.redb", "admin-audit.jsonl", "gateway.log", "nbd.sock"} <= names, names


def test_a_directory_that_others_may_enter_is_refused(scenario):
    """With the command that shuts it; and it is used when it is shut."""
    cluster = scenario.cluster("open", osds=1, osd_size="1G")
    cluster.data.mkdir(mode=0o755, parents=True)
    cluster.data.chmod(0o755)
    refused_start(cluster, "chmod 700", cluster.data)
    assert not (cluster.data / "keys").exists() or not list((cluster.data / "keys").iterdir())
    cluster.data.chmod(0o700)
    cluster.up()
    cluster.down()
    cluster.data.chmod(0o711)
    refused_start(cluster, "chmod 700", "0711")
    cluster.data.chmod(0o700)
    cluster.up()


def secrets_of(cluster):
    """What must not be in a dump, as bytes and as their text."""
    texts = [
        cluster.credentials()["secret_key"],
        json.loads((cluster.data / "cluster.json").read_text())["state_password"],
    ]
    found = [text.encode() for text in texts]
    found += [bytes.fromhex(text) for text in texts if len(text) == 64]
    return found


def test_an_encrypted_backup_tells_nothing_and_opens_with_its_passphrase(cluster, scenario):
    passphrase, wrong, backup = (scenario.directory / name for name in ("passphrase", "wrong", "backup.age"))
    passphrase.write_text("correct horse battery staple\n")
    wrong.write_text("correct horse battery stable\n")
    cluster.cli("key", "backup", backup, "--passphrase-file", passphrase)
    assert not [secret for secret in secrets_of(cluster) if secret in backup.read_bytes()]
    assert backup.stat().st_mode & 0o777 == 0o600
    place = scenario.directory / "restored"

    def restore(*words):
        command = (scenario.atoll, "key", "restore", "--data", place, backup, *words)
        return scenario.run(*command, ok=None, env=scenario.environment)

    for words in ((), ("--passphrase-file", wrong)):
        refused = restore(*words)
        assert refused.returncode == 1 and not place.exists(), refused.stderr
    assert restore("--passphrase-file", passphrase).returncode == 0
    for name in ("keys/kms.json", "credentials.json", "cluster.json"):
        assert (place / name).read_bytes() == (cluster.data / name).read_bytes(), name


@pytest.mark.needs("gcore")
def test_a_core_that_is_made_by_force_has_no_keys(cluster, scenario):
    """By root, who may trace the gateway; it has just used all of these secrets."""
    if os.geteuid() != 0:
        pytest.skip("it takes root")
    cluster.s3().list_buckets()
    core = scenario.directory / "core"
    pid = cluster.process_ids()["gateway"]
    done = subprocess.run(["gcore", "-o", core, str(pid)], capture_output=True, text=True, timeout=120, check=False)
    [path] = scenario.directory.glob("core.*")
    dump = path.read_bytes()
    assert done.returncode == 0 and len(dump) > 4096, done.stdout + done.stderr
    hidden = secrets_of(cluster)
    assert len(hidden) >= 3 and not [number for number, secret in enumerate(hidden) if secret in dump]


def memory_of(pid):
    """Pieces of all memory of a process that it may write to. They overlap, so that nothing is cut in each."""
    piece_bytes, overlap_bytes = 8 << 20, 256
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory:
        for line in maps.read().splitlines():
            addresses, modes = line.split()[:2]
            begin, end = (int(address, 16) for address in addresses.split("-"))
            for at in range(begin, end if modes.startswith("rw") else begin, piece_bytes):
                # It may be unmapped meanwhile.
                with contextlib.suppress(OSError):
                    memory.seek(at)
                    yield memory.read(min(piece_bytes + overlap_bytes, end - at))


def found_in(pid, needles):
    return {name for piece in memory_of(pid) for name, needle in needles.items() if needle in piece}


def test_a_gateway_forgets_the_keys_of_clients(cluster):
    """Keys that clients bring with their requests (SSE-C), for objects, parts and copies. When the connection has
    ended, neither their bytes nor their text are in the memory of the gateway."""
    if os.geteuid() != 0:
        pytest.skip("it takes root")
    pid = cluster.process_ids()["gateway"]
    keys = {name: secrets.token_bytes(32) for name in ("one", "another")}
    needles = {f"{name}, bytes": key for name, key in keys.items()}
    needles |= {f"{name}, text": base64.b64encode(key) for name, key in keys.items()}
    one, another = ({"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key} for key in keys.values())
    of_source = {f"CopySource{name}": value for name, value in one.items()}
    client = s3_over_tls(cluster)
    client.create_bucket(Bucket="customers")
    body = os.urandom(200_000)
    for size in (100, 5_000, 200_000):
        client.put_object(Bucket="customers", Key="k", Body=body[:size], **one)
        assert client.get_object(Bucket="customers", Key="k", **one)["Body"].read() == body[:size]
        source = {"Bucket": "customers", "Key": "k"}
        client.copy_object(Bucket="customers", Key="copy", CopySource=source, **of_source, **another)
        assert client.get_object(Bucket="customers", Key="copy", **another)["Body"].read() == body[:size]
    upload = client.create_multipart_upload(Bucket="customers", Key="parts", **one)
    part = {"Bucket": "customers", "Key": "parts", "UploadId": upload["UploadId"]}
    client.upload_part(**part, PartNumber=1, Body=body, **one)
    client.abort_multipart_upload(**part)
    client.close()
    known = {"access key": cluster.credentials()["access_key"].encode()}
    assert found_in(pid, known) == set(known), "the search finds what is there"

    other = s3_over_tls(cluster)

    def left():
        """After some other requests: what a thread has left on its stack is overwritten by the next ones."""
        for _ in range(40):
            other.put_object(Bucket="customers", Key="other", Body=body[:5_000])
            other.get_object(Bucket="customers", Key="other")["Body"].read()
        return found_in(pid, needles)

    wait_for("the keys are forgotten", lambda: not left(), 20)


def s3_over_tls(cluster):
    credentials = cluster.credentials()
    return boto3.client(
        "s3",
        endpoint_url=f"https://127.0.0.1:{cluster.s3_tls_port}",
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}),
        aws_access_key_id=credentials["access_key"],
        aws_secret_access_key=credentials["secret_key"],
        verify=str(cluster.data / "tls" / "ca.crt"),
    )


def test_no_process_leaves_a_core(cluster):
    limits = {name: pid_limits(pid) for name, pid in cluster.process_ids().items()}
    assert all("Max core file size 0 0 bytes" in text for text in limits.values()), limits
    pid = cluster.process_ids()["gateway"]
    os.kill(pid, signal.SIGABRT)
    wait_for("another gateway", lambda: cluster.process_ids().get("gateway") not in (None, pid), 30)
    assert not list(cluster.data.rglob("core*"))


def pid_limits(pid):
    with open(f"/proc/{pid}/limits") as file:
        return " ".join(file.read().split())
