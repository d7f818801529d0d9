"""What tests of transports have in common: the ways to OSDs, and who uses which."""

import contextlib
import json

import pytest
from botocore.exceptions import BotoCoreError, ClientError

from lib.cluster import MIB
from lib.handshake import etcdctl
from lib.relay import OTHER
from lib.verdicts import intact
from lib.waiting import not_yet, wait_for


@contextlib.contextmanager
def announced_records(scenario, cluster):
    """What OSDs announce, and how to change it; it is as before afterwards."""
    command, environment = etcdctl(cluster)
    prefix = "/atoll/osd_up/"
    lines = scenario.run(*command, "get", "--prefix", prefix, "--print-value-only", env=environment).stdout.splitlines()
    found = [json.loads(line) for line in lines if line.strip()]

    def announce(record):
        scenario.run(*command, "put", f"{prefix}{record['id']}", json.dumps(record), env=environment)

    yield found, announce
    for record in found:
        announce(record)


def restart_nbd(cluster):
    cluster.restarted("nbd", cluster.kill("nbd"))
    wait_for("it serves again", cluster.is_serving)


def lead_through(cluster, records, relays):
    """Leads clients through relays to the OSDs, with encrypted frames."""
    found, announce = records
    cluster.cli("settings", "set", "frame_mode_unix", "secure")
    for record, relay in zip(found, relays, strict=True):
        announce({**record, "local_name": relay.name})
    restart_nbd(cluster)


def links(cluster):
    """How many connections to OSDs there are, by transport."""
    return cluster.json("status")["links_by_transport"]


def write_all_over(cluster):
    """Writes to objects of every OSD, and reads them back."""
    with cluster.nbd("disk") as connection:
        for number in range(0, 256, 4):
            connection.write(number * MIB, bytes([number]) * 4096)
        intact(
            all(connection.read(number * MIB, 4096) == bytes([number]) * 4096 for number in range(0, 256, 4)),
            "other bytes",
        )


def change_frames(relays, attacks):
    """Does one thing after the other to frames that go by relays: who receives such a frame ends the connection."""
    for number, (way, attack) in enumerate(attacks):
        relay = relays[number % len(relays)]
        made, relay.done, relay.attack = relay.connections, None, (way, attack)
        wait_for("a frame comes by", lambda relay=relay: relay.done, 30, 0.01)
        if attack == "sealed payload":
            # Who opens it reads it again, on the same connection; the load tells if anything wrong was given out.
            continue
        wait_for("the connection ends", lambda relay=relay: relay.done.get("ended_by"), 8, 0.01)
        assert relay.done["ended_by"] == (way if attack == "cut" else OTHER[way]), f"{way} {attack}: {relay.done}"
        wait_for("a new connection", lambda relay=relay, made=made: relay.connections > made, 30, 0.01)


def revoke_and_trust_the_gateway(cluster):
    """The gateway's key is revoked: OSDs close its connections and uploads fail, until it is trusted again."""
    s3 = cluster.s3()
    s3.create_bucket(Bucket="revoked")
    keys = {record["role"]: record for record in cluster.json("cluster", "key", "ls")}
    name, public = keys["gateway"]["name"], keys["gateway"]["public_key"]
    cluster.cli("cluster", "key", "revoke", name)
    wait_for("an OSD closes its connection", lambda: f"its key {public} was revoked" in cluster.log_text(), 5, 0.1)

    def put():
        return cluster.s3(read_timeout=3).put_object(Bucket="revoked", Key="key", Body=b"body")

    def is_put():
        with not_yet(ClientError, BotoCoreError):
            return put()

    with pytest.raises(Exception, match=r"503|timed? ?out|Unavailable|SlowDown"):
        put()
    cluster.cli("cluster", "key", "add", name, "--public-key", public)
    wait_for("uploads are acked", is_put, 40)
