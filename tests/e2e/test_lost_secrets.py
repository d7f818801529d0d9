"""Secrets that exist once: none is made anew in silence when it is lost, each is asked for by name, and a backup of
all of them brings the cluster back."""

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from lib.operator import KEY, Small, files_of, problems, refused_start, remove, without
from lib.waiting import wait_for

NOTE = "KEYS_NOT_BACKED_UP"


def key_ids(path):
    """The versions of the local keys in a key file."""
    keys = json.loads(path.read_text())["keys"]
    return [version["id"] for versions in keys.values() for version in versions]


@pytest.fixture(scope="module")
def small(scenario):
    return Small(scenario)


@pytest.fixture
def stopped(small):
    if small.cluster.all_pids():
        small.cluster.down()
    yield small
    if small.cluster.all_pids():
        small.cluster.down()


@pytest.fixture
def running(small):
    if not small.cluster.all_pids():
        small.cluster.up()
    return small


# --- the root key


def test_a_lost_key_file_is_not_made_anew(stopped):
    """Without kms.json 'atoll up' refuses, says which key the records expect and how to put it back, and makes none."""
    path = stopped.path("keys/kms.json")
    [expected] = key_ids(path)
    with without(stopped.cluster.data, "keys/kms.json"):
        refused_start(stopped.cluster, path, expected, "atoll key restore")
        assert not path.exists(), "another key file was made"
    stopped.cluster.up()
    stopped.check()


@pytest.mark.nightly
def test_the_key_file_of_another_cluster_is_refused(stopped):
    """A key file that opens nothing of this cluster is refused; both keys are named, and the file stays as it is."""
    path = stopped.path("keys/kms.json")
    [expected] = key_ids(path)
    with without(stopped.cluster.data, "keys/kms.json"):
        version = {"id": "0123456789abcdef", "key": os.urandom(32).hex(), "created_unix_ms": 1}
        foreign = json.dumps({"format": 2, "keys": {"atoll": [version]}})
        path.write_text(foreign)
        refused_start(stopped.cluster, path, expected, version["id"])
        assert path.read_text() == foreign, "the file was changed"
    stopped.cluster.up()
    stopped.check()


def test_a_new_key_file_is_refused_while_anything_is_sealed(stopped):
    """Not even the option for a new key file makes one where an image or a bucket needs the old one."""
    with without(stopped.cluster.data, "keys/kms.json"):
        refused_start(stopped.cluster, "1 image", "1 bucket", options=("--new-key", "kms"))
        assert not stopped.path("keys/kms.json").exists(), "another key file was made"


def test_a_cluster_without_sealed_data_gets_a_new_key_file_when_told_to(scenario):
    """With nothing sealed the option makes a key file, and credentials that work."""
    bare = scenario.cluster("bare", osds=1, osd_size="1G")
    bare.up()
    before = bare.credentials()
    bare.down()
    (bare.data / "keys" / "kms.json").unlink()
    refused_start(bare, "--new-key kms")
    bare.options += ["--new-key", "kms"]
    bare.up()
    bare.forget_credentials()
    assert bare.credentials()["secret_key"] != before["secret_key"], "the old secret cannot be known any more"
    bare.s3().create_bucket(Bucket="works")
    bare.down()


# --- every other secret


HOLDERS = [
    "client",
    pytest.param("gateway", marks=pytest.mark.nightly),
    pytest.param("osd.0", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_lost_static_key_is_not_made_anew(stopped, holder):
    """Cluster state knows the public half: another key would be refused by every OSD."""
    path = stopped.path(f"keys/{holder}.key")
    with without(stopped.cluster.data, f"keys/{holder}.key"):
        refused_start(stopped.cluster, path, "atoll key restore", f"--new-key {holder}")
        assert not path.exists(), "another key was made"


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_new_static_key_takes_the_place_of_a_lost_one_when_told_to(stopped, holder):
    """With the option the new key is authorised and the lost one is not any more; everything is there."""
    with without(stopped.cluster.data, f"keys/{holder}.key") as away:
        stopped.cluster.options += ["--new-key", holder]
        try:
            stopped.cluster.up()
        finally:
            del stopped.cluster.options[-2:]
        stopped.check()
        listed = stopped.cluster.json("cluster", "key", "ls")
        assert len([key for key in listed if key["name"].split("@")[0] == holder]) == 1, f"the old one stays: {listed}"
        stopped.cluster.down()
        # From now on it is the one.
        (stopped.path(f"keys/{holder}.key")).rename(away / "keys" / f"{holder}.key")
    stopped.cluster.up()
    stopped.check()


@pytest.mark.nightly
def test_a_lost_key_of_cluster_state_is_not_passed_over(scenario):
    """Without the private key of its certificate the embedded server would speak without TLS, and clients wait."""
    exposed = Small(scenario, "exposed", options=("--listen", "127.0.0.2"))
    exposed.cluster.down()
    path = exposed.path("keys/state.key")
    with without(exposed.cluster.data, "keys/state.key"):
        refused_start(exposed.cluster, path)
    exposed.cluster.up()
    exposed.check()
    exposed.cluster.down()


def test_lost_credentials_are_made_again(stopped):
    """The secret is in cluster state, wrapped: credentials.json is written again, the same as before."""
    path = stopped.path("credentials.json")
    before = path.read_text()
    path.unlink()
    stopped.cluster.up()
    assert path.exists(), "there is no credentials.json"
    assert json.loads(path.read_text()) == json.loads(before), "other credentials"
    stopped.check()


@pytest.mark.nightly
def test_a_new_authority_of_certificates_is_said(stopped):
    """Clients have to trust the new one, so a lost one is not replaced without a word."""
    with without(stopped.cluster.data, "tls"):
        log, before = stopped.path("log/supervisor.log"), stopped.path("log/supervisor.log").stat().st_size
        stopped.cluster.up()
        stopped.cluster.down()
        said = [line for line in log.read_text()[before:].splitlines() if "tls/ca.crt" in line]
        assert any("new" in line and "trust" in line for line in said), log.read_text()[before:]


# --- the backup


def test_creation_says_that_keys_need_a_backup(scenario):
    """The first start says so, and how."""
    first = scenario.cluster("first", osds=1, osd_size="1G")
    first.up()
    said = (scenario.directory / "first.up.log").read_text()
    assert "atoll key backup" in said, said
    first.down()


def test_health_reminds_until_there_is_a_backup(running):
    """A note, as nothing is wrong yet; gone with 'atoll key backup', and back when a key is new."""
    # Reports of the OSDs may be of before they served.
    wait_for("nothing is wrong", lambda: problems(running.cluster)[0] == 0, 30)
    code, found = problems(running.cluster)
    assert NOTE in found and found[NOTE]["severity"] == "note", found
    assert "atoll key backup" in found[NOTE]["action"] and code == 0, (code, found)
    file = running.cluster.scenario.directory / "first.backup"
    running.cluster.cli("key", "backup", file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, oct(file.stat().st_mode)
    assert NOTE not in problems(running.cluster)[1]
    running.cluster.cli("key", "backup", file, ok=(1,))
    running.cluster.cli("key", "rotate")
    wait_for("health asks for another backup", lambda: NOTE in problems(running.cluster)[1], 20)


def test_keys_that_are_made_at_once_are_all_there(running):
    """Of many 'atoll key' commands at once none loses the key of another."""
    before = len(running.cluster.json("key", "ls"))
    names = [f"at-once-{number}" for number in range(12)]
    with ThreadPoolExecutor(len(names)) as pool:
        list(pool.map(lambda name: running.cluster.cli("key", "create", name), names))
    keys = [key["name"] for key in running.cluster.json("key", "ls")]
    assert len(keys) == before + len(names) and set(names) <= set(keys), keys
    for name in names:
        running.cluster.cli("key", "destroy", "--key", name)


def test_a_backup_brings_the_secrets_back(running):
    """keys/, cluster.json, credentials.json and tls/ are lost, and come back from the backup, each as it was."""
    cluster, file = running.cluster, running.cluster.scenario.directory / "whole.backup"
    cluster.cli("key", "backup", file)
    cluster.down()
    names = ("keys", "cluster.json", "credentials.json", "tls")
    # Locks, and what files were before their last change, are no secrets of their own.
    beside = (".lock", ".before")
    before = {
        name: bytes_
        for name, bytes_ in files_of(cluster.data).items()
        if name.split("/")[0] in names and not name.endswith(beside)
    }
    for name in names:
        remove(cluster.data / name)
    cluster.cli("key", "restore", file)
    after = files_of(cluster.data)
    assert {name: after.get(name) for name in before} == before
    cluster.up()
    running.check()


@pytest.mark.nightly
def test_a_backup_replaces_nothing_and_is_for_its_own_cluster_only(scenario, running):
    """What is there stays; another cluster's backup is refused."""
    file = scenario.directory / "own.backup"
    running.cluster.cli("key", "backup", file)
    running.cluster.down()
    before = files_of(running.cluster.data)
    running.cluster.cli("key", "restore", file)
    assert files_of(running.cluster.data) == before
    other = Small(scenario, "other")
    other.cluster.down()
    before = files_of(other.cluster.data)
    done = other.cluster.cli("key", "restore", file, ok=(1,))
    assert "another cluster" in done.stderr, done.stderr
    assert files_of(other.cluster.data) == before
    assert KEY not in file.read_text(errors="replace"), "a backup of keys holds no data"
