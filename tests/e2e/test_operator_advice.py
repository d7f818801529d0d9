"""What an operator is told and left with: starts that fail, errors, addresses and logs."""

import json
import os
import socket

import pytest
from lib.cluster import MIB
from lib.handshake import Initiator, knock, osd_public_keys
from lib.logs import said
from lib.operator import Small, refused_start
from lib.waiting import wait_for

# Of a network that is nobody's (RFC 5737).
NOWHERE = "198.51.100.1"
LOG_BYTES_MAX = 64 * MIB


@pytest.fixture(scope="module")
def small(scenario):
    return Small(scenario)


@pytest.fixture
def running(small):
    if not small.cluster.all_pids():
        small.cluster.up()
    return small


@pytest.fixture
def stopped(small):
    if small.cluster.all_pids():
        small.cluster.down()
    return small


# --- a first start that fails


@pytest.mark.parametrize("detach", [["--detach"], []], ids=["detached", "foreground"])
@pytest.mark.parametrize("why", ["port", "choice"])
def test_a_first_start_that_fails_leaves_nothing(scenario, why, detach):
    """Neither keys nor choices: the next start makes other ones."""
    first = scenario.cluster(f"{why}{len(detach)}", osds=1, osd_size="1G")
    if why == "port":
        with socket.create_server(("127.0.0.1", first.s3_port)):
            scenario.run(*first.up_command(*detach), env=first.environment(), ok=(1,))
    else:
        scenario.run(*first.up_command("--copies", "3", *detach), env=first.environment(), ok=(1,))
    assert not first.data.exists(), sorted(str(path.relative_to(first.data)) for path in first.data.rglob("*"))
    first.osds = 2
    first.up()
    first.down()


def test_a_first_start_that_fails_leaves_what_was_there(scenario):
    """A directory with OSDs of 'atoll osd create' stays as it is."""
    made = scenario.cluster("made", osds=1, osd_size="1G")
    made.cli("osd", "create", "--device", scenario.directory / "made.img", "--size", "1G")
    before = sorted(made.data.rglob("*"))
    with socket.create_server(("127.0.0.1", made.s3_port)):
        refused_start(made, "cannot listen on")
    after = [path for path in made.data.rglob("*") if path.parent.name != "log"]
    assert not set(after) - set(before) - {made.data / "supervisor.lock"}, set(after) - set(before)
    assert set(before) <= set(made.data.rglob("*"))


# --- errors


def test_an_error_says_its_cause_once(stopped):
    """No text of the system stands there twice."""
    path = stopped.path("cluster.json")
    kept = path.read_bytes()
    path.unlink()
    path.mkdir()
    try:
        done = stopped.cluster.cli("status", ok=(1,))
        assert str(path) in done.stderr and done.stderr.count("Is a directory") == 1, done.stderr
        done = stopped.cluster.cli("osd", "create", "--device", "/dev/full", ok=(1,))
        assert done.stderr.count("os error") <= 1, done.stderr
    finally:
        path.rmdir()
        path.write_bytes(kept)
        path.chmod(0o600)


def test_a_token_for_a_host_on_loopback_is_refused_with_its_address(scenario):
    """Who has given '--listen 127.0.0.2' is not told to give '--listen'."""
    loopback = scenario.cluster("loopback", osds=1, osd_size="1G")
    loopback.options += ["--listen", "127.0.0.2"]
    loopback.up()
    said = loopback.cli("cluster", "token", "create", ok=(1,)).stderr
    assert "127.0.0.2" in said and "--advertise" in said, said
    loopback.down()


# --- addresses


def test_credentials_name_an_address_that_reaches_the_gateway(scenario):
    """A gateway on all addresses is reached by the host's own, with TLS and without."""
    all_addresses = scenario.cluster("all", osds=1, osd_size="1G")
    listen = [
        "--s3-listen",
        f"0.0.0.0:{all_addresses.s3_port}",
        "--s3-tls-listen",
        f"0.0.0.0:{all_addresses.s3_tls_port}",
    ]
    command = all_addresses.up_command("--detach", "--listen", "127.0.0.2")
    for option in ("--s3-listen", "--s3-tls-listen"):
        at = command.index(option)
        del command[at : at + 2]
    scenario.run(*command, *listen, env=all_addresses.environment())
    told = all_addresses.credentials()
    assert told["endpoint"] == f"http://127.0.0.2:{all_addresses.s3_port}", told
    assert told["tls_endpoint"] == f"https://127.0.0.2:{all_addresses.s3_tls_port}", told
    all_addresses.s3().list_buckets()
    all_addresses.down()


def test_credentials_say_when_only_this_host_reaches_the_gateway(stopped):
    """On a host that others reach, S3 on loopback is said to be for this host."""
    path = stopped.path("cluster.json")
    kept = path.read_text()
    path.write_text(json.dumps(json.loads(kept) | {"listen": NOWHERE}))
    try:
        said = stopped.cluster.cli("credentials").stdout
        assert "this host only" in said and "--s3-tls-listen" in said, said
    finally:
        path.write_text(kept)


# --- logs


@pytest.mark.needs("etcdctl")
def test_logs_are_set_aside_while_processes_run(running):
    """A log that has become large is begun anew; what its process says then is in the new one."""
    log, old = running.path("log/osd.0.log"), running.path("log/osd.0.log.old")
    os.truncate(log, LOG_BYTES_MAX + MIB)
    wait_for("the log is set aside", lambda: old.exists() and len(said(log)) < MIB, 30)
    port = next(port for name, port in running.cluster.listening_ports() if name == "osd.0")
    stranger = Initiator(osd_public_keys(running.cluster)["osd.0"])
    knock(port, stranger.first_message(), 5)
    wait_for("the process goes on in the new one", lambda: "not authorised" in said(log), 20)
    old.unlink()
