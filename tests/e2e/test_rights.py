"""What a host can do to cluster state with its own credentials: hosts are refused whatever they
have no part in; a token is used once; a host is shut out by one command, and changes its password while it runs."""

import json
import re
import time

import pytest
from lib.net import NETWORK, Host, Namespaces, within
from lib.waiting import wait_for

pytestmark = [pytest.mark.root, pytest.mark.needs("ip")]


def login(host):
    file = json.loads((host.data / "cluster.json").read_text())
    return file["state_user"], file["state_password"]


@pytest.fixture(scope="module")
def hosts(scenario):
    """The first host has cluster state; the second joins with OSDs only, the third with a gateway only."""
    namespaces = Namespaces(scenario)

    def host(number):
        name, address = f"r{number}", f"{NETWORK}.{number + 20}"
        return Host(scenario, namespaces.add_host(name, address), name, address)

    h1, h2, h3 = (host(number) for number in (1, 2, 3))
    h1.start_up("--failure-domain", "host", "--copies", "2", "--osds", "1", "--osd-size", "4G")
    h1.tokens = {}
    with_osd, with_keys = ["--osds", "1", "--osd-size", "4G"], ["--key-service", h1.data / "keys" / "kms.json"]
    for joining, role, more in ((h2, "osd", with_osd), (h3, "gateway", with_keys)):
        token = json.loads(h1.cli("cluster", "token", "create", "--role", role, "--json").stdout)
        h1.tokens[joining.name] = token
        joining.start_up("--join", joining.token_file(token["token"]), *more)
    wait_for("all are healthy", lambda: h1.healthy() and h2.healthy() and h3.healthy(), 60)
    return {"first": h1, "osd": h2, "gateway": h3}


def test_they_serve(hosts):
    """Objects are put and read through the gateway host, which has no NBD server."""
    gateway = hosts["gateway"]
    assert set(gateway.process_ids()) == {"supervisor", "gateway", "admin"}, gateway.process_ids()
    within(gateway.namespace, lambda: gateway.s3(attempts=3).create_bucket(Bucket="through"))
    gateway.put("through", "k", b"value")
    assert gateway.get("through", "k") == b"value"


def test_health_there_looks_at_what_the_host_may_read(hosts):
    """A gateway host verifies signed records, but not those that it has no right to; nobody shares a login."""
    for host in hosts.values():
        problems = json.loads(host.cli("health", "--json", ok=(0, 1, 2)).stdout)["problems"]
        wrong = {"RECORDS_NOT_VERIFIED", "RECORDS_REFUSED", "HOSTS_SHARE_LOGIN"}
        assert not [problem for problem in problems if problem["code"] in wrong], f"{host.name}: {problems}"


def private_keys(host):
    """As their files have them, and as bytes."""
    texts = []
    for path in [
        *(host.data / "keys").glob("*.key"),
        *host.data.glob("osd-*/*.key"),
        *(host.data / "tls").glob("*.key"),
    ]:
        texts += re.findall(r"[0-9a-zA-Z+/]{48,}", path.read_text())
    found = {text.encode() for text in texts}
    return found | {bytes.fromhex(text) for text in texts if re.fullmatch("[0-9a-f]{64}", text)}


def test_private_keys_of_a_host_are_nowhere_else(hosts):
    """Neither in cluster state nor in any file of another host."""
    for role in ("osd", "gateway"):
        kept = private_keys(hosts[role])
        assert len(kept) >= 2, f"{role}: {kept}"
        for other in (host for name, host in hosts.items() if name != role):
            files = [path for path in other.data.rglob("*") if path.is_file() and path.name != "device"]
            assert any(path.name == "state.redb" for path in files) or other is not hosts["first"], files
            leaked = [path for path in files if any(key in path.read_bytes() for key in kept)]
            assert not leaked, f"private keys of {role} are in {leaked}"


def test_commands_of_operators_are_refused_there(hosts):
    """What lets somebody in, or decides how data is protected, is not changed from these hosts."""
    for role in ("osd", "gateway"):
        for command in (
            ["operator", "create", "thief", "--role", "admin"],
            ["settings", "set", "frame_mode_client", "crc"],
            ["cluster", "token", "create"],
            ["cluster", "key", "revoke", "osd.0"],
            ["host", "revoke", "r1", "--yes"],
        ):
            refused = hosts[role].cli(*command, ok=(1,))
            assert "no right" in refused.stderr or "made the cluster" in refused.stderr, f"{command}: {refused.stderr}"


def test_no_token_opens_cluster_state_twice(hosts, scenario):
    """The text of a used token gives nothing; that somebody tried is an event."""
    first, token = hosts["first"], hosts["first"].tokens["r2"]
    thief = Host(scenario, hosts["gateway"].namespace, "thief", hosts["gateway"].address)
    refused = thief.cli("join", thief.token_file(token["token"]), "--host", "thief", ok=(1,))
    assert "refuses the join token" in refused.stderr, refused.stderr
    assert not (thief.data / "cluster.json").exists()
    listed = {one["id"]: one for one in json.loads(first.cli("cluster", "token", "ls", "--json").stdout)}
    assert listed[token["id"]]["used"][0]["host"] == "r2"
    assert listed[token["id"]]["used"][0]["address"] == hosts["osd"].address
    events = [json.loads(line) for line in first.cli("events", "--json").stdout.splitlines()]
    joined = [event for event in events if event["code"] == "HOST_JOINED"]
    assert {"r2", "r3"} == {event["summary"].split("'")[1] for event in joined}, joined
    again = [event for event in events if event["code"] == "JOIN_TOKEN_REUSED"]
    assert len(again) == 1 and "'thief'" in again[0]["summary"] and again[0]["severity"] == "error", again
    assert listed[token["id"]]["refused"]["address"] == thief.address


def test_a_password_is_changed_while_processes_run(hosts):
    """Each host gets another password; nothing stops, and the old one is void."""
    for host in (hosts["osd"], hosts["gateway"], hosts["first"]):
        before, pids = login(host), host.process_ids()
        host.cli("host", "rotate")
        assert login(host)[0] == before[0] and login(host)[1] != before[1]
        host.cli("osd", "ls")
        assert host.process_ids() == pids
    gateway = hosts["gateway"]
    gateway.put("through", "after", b"value")
    # Longer than a lease: the OSD has gone on to renew it.
    time.sleep(12)
    up = json.loads(hosts["first"].cli("osd", "ls", "--json").stdout)
    assert all(osd["state"] == "up" for osd in up), up
    assert gateway.get("through", "after") == b"value"


def test_a_host_is_shut_out(hosts):
    """One command takes everything from a host, and says so."""
    first, stolen = hosts["first"], hosts["gateway"]
    refused = hosts["osd"].cli("host", "revoke", "r3", "--yes", ok=(1,))
    assert "host that made the cluster" in refused.stderr, refused.stderr
    assert first.cli("host", "revoke", "r1", "--yes", ok=(1,)).returncode == 1
    said = json.loads(first.cli("host", "revoke", "r3", "--yes", "--json").stdout)
    assert said["is_shut_out"] and [one["taken"] for one in said["taken"]] == ["user", "keys", "certificate"], said
    assert "refuses the user" in stolen.cli("osd", "ls", ok=(1,)).stderr
    keys = [key["name"] for key in json.loads(first.cli("cluster", "key", "ls", "--json").stdout)]
    assert not any(name.endswith("@r3") for name in keys), keys
    host = {one["host"]: one for one in json.loads(first.cli("host", "ls", "--json").stdout)}["r3"]
    assert host["is_revoked"] and host["user"] is None, host
    events = [json.loads(line) for line in first.cli("events", "--json").stdout.splitlines()]
    assert any(event["code"] == "HOST_REVOKED" for event in events)
    assert "atoll host revoke r2" in first.cli("host", "rm", "r2", ok=(1,)).stderr
    first.cli("host", "rm", "r3")
    assert "r3" not in first.cli("host", "ls", "--json").stdout
