"""Frames over RDMA, by libfabric's provider for sockets: the same cluster, and TCP where RDMA fails."""

import ctypes.util
import json

import pytest
from lib.cluster import MIB
from lib.handshake import etcdctl
from lib.waiting import wait_for

pytestmark = [
    pytest.mark.needs("etcdctl"),
    pytest.mark.skipif(ctypes.util.find_library("fabric") is None, reason="libfabric1 is not installed"),
]


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster()
    cluster.options += ["--transport", "rdma"]
    cluster.variables["ATOLL_RDMA_PROVIDER"] = "tcp"
    cluster.up()
    cluster.create_image("disk", "64M")
    yield cluster
    cluster.down()


def links(cluster):
    return cluster.json("status")["links_by_transport"]


def write_and_read(cluster, first):
    """Writes short and long pieces to objects of every OSD, and reads them back."""
    with cluster.nbd("disk") as connection:
        for number in range(0, 64, 4):
            connection.write(number * MIB, bytes([first + number]) * 4096)
            connection.write(number * MIB + MIB, bytes([first + number + 1]) * MIB)
        for number in range(0, 64, 4):
            assert connection.read(number * MIB, 4096) == bytes([first + number]) * 4096
            assert connection.read(number * MIB + MIB, MIB) == bytes([first + number + 1]) * MIB


def test_a_cluster_works_over_rdma(cluster):
    """Everything goes over RDMA, an OSD may be killed and comes back by it, and status and metrics say so."""
    write_and_read(cluster, 1)
    wait_for("status counts the links", lambda: links(cluster).get("rdma", 0) >= 6, 15)
    assert "unix" not in links(cluster) and "tcp" not in links(cluster), f"{links(cluster)}"
    said = cluster.cli("status").stdout
    assert "rdma (connections to OSDs; libfabric's providers: tcp at 3 OSDs)" in said, said
    assert cluster.json("status")["rdma_providers"] == {"tcp": 3}
    cluster.restarted("osd.1", cluster.kill("osd.1"))
    write_and_read(cluster, 100)
    wait_for("the OSD is connected again", lambda: links(cluster).get("rdma", 0) >= 6, 30)
    assert "tcp" not in links(cluster), f"{links(cluster)}"


def test_an_osd_that_rdma_does_not_reach_is_reached_by_tcp(scenario, cluster):
    """Clients that find nobody at an OSD's address of RDMA use TCP."""
    command, environment = etcdctl(cluster)
    prefix = "/atoll/osd_up/"
    lines = scenario.run(*command, "get", "--prefix", prefix, "--print-value-only", env=environment).stdout.splitlines()
    records = [json.loads(line) for line in lines if line.strip()]
    assert all(record["rdma_address"].startswith("tcp:127.0.0.1:") for record in records), f"{records}"
    for record in records:
        changed = json.dumps({**record, "rdma_address": "tcp:127.0.0.1:1"})
        scenario.run(*command, "put", f"{prefix}{record['id']}", changed, env=environment)
    cluster.restarted("nbd", cluster.kill("nbd"))
    wait_for("it serves again", cluster.is_serving)
    write_and_read(cluster, 30)
    wait_for("clients use TCP", lambda: links(cluster).get("tcp", 0) >= 3, 15)
    assert " by rdma: " in cluster.log_text(), "no log tells of it"
