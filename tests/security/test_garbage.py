"""A hundred and fifty shots of garbage at every listener: S3 with and without TLS, console and metrics, NBD, NVMe/TCP,
OSDs, cluster state, admin sockets. They end their own connections, and nobody notices.

tests/e2e/test_hostile_input.py sends more to some of them, beside a load.
"""

import random
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from lib.garbage import changed, seeds, send
from lib.nvme import Controller, host_name, serving_cluster, subsystems
from lib.ports import free_port
from lib.processes import resident_bytes

SHOTS = 150
GROWTH_BYTES_MAX = 256 << 20
HOST = host_name("1")


@pytest.fixture(scope="module")
def nvme_address():
    return "127.0.0.1", free_port()


@pytest.fixture(scope="module")
def cluster(scenario, nvme_address):
    cluster = serving_cluster(scenario, nvme_address, {"disk": (HOST,), "plain": ()}, "64M", osds=1, osd_size="2G")
    cluster.s3().create_bucket(Bucket="kept")
    cluster.s3().put_object(Bucket="kept", Key="k", Body=b"kept")
    return cluster


@pytest.fixture(scope="module")
def listeners(cluster, nvme_address):
    """What listens where, by the kind of conversation: TCP, Unix sockets of clients and of operators."""
    found = []
    for name, port in sorted(cluster.listening_ports()):
        kind = "nvme" if port == nvme_address[1] else name
        found.append((kind, ("127.0.0.1", port)))
    found.append(("nbd", str(cluster.nbd_socket)))
    sockets = sorted(str(path) for path in (cluster.data / "run").glob("*.sock"))
    assert len(sockets) >= 5, f"admin sockets of {sockets} only"
    return found + [("admin-socket", path) for path in sockets]


def shots(kind, rng):
    """Garbage of all sorts: what a conversation begins with, cut or changed, and noise."""
    corpus = seeds(kind)
    for number in range(SHOTS):
        seed = corpus[number % len(corpus)]
        way = number % 3
        if way == 0:
            yield seed[: rng.randrange(len(seed) + 1)]
        elif way == 1:
            yield changed(seed, rng)
        else:
            yield rng.randbytes(rng.choice((1, 7, 100, 4_096, 65_536)))


def fire(kind, address):
    rng = random.Random(f"{kind} {address}")
    for data in shots(kind, rng):
        send(address, data, rng.choice(("close", "reset", "half-close")), 0.02)


def speaks(cluster, nvme_address):
    """Each kind of client is served."""
    assert cluster.s3().get_object(Bucket="kept", Key="k")["Body"].read() == b"kept"
    with cluster.nbd("plain") as connection:
        connection.read(0, 4096)
    with Controller(nvme_address, subsystems(cluster)("disk"), HOST) as disk:
        disk.read(0, 4096)
    cluster.json("status")
    cluster.json("slow")


def test_each_kind_of_listener_is_there(listeners):
    kinds = {kind for kind, _ in listeners}
    assert kinds >= {"gateway", "admin", "nbd", "nvme", "osd.0", "cluster-state", "admin-socket"}, kinds
    assert sum(kind == "gateway" for kind, _ in listeners) == 2, "S3 with and without TLS"


def test_garbage_harms_no_listener(cluster, listeners, nvme_address, address):
    before = cluster.process_ids()
    memory = {name: resident_bytes(pid) for name, pid in before.items()}
    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(fire, *listener) for listener in listeners]:
            done.result()
    assert cluster.process_ids() == before, "a process has died"
    speaks(cluster, nvme_address)
    # The console, over TLS.
    with socket.create_connection(("127.0.0.1", int(address.url.rsplit(":", 1)[1])), timeout=10):
        pass
    log = cluster.log_text()
    assert "panicked" not in log, log[max(0, log.find("panicked") - 300) :][:1000]
    growth = {name: resident_bytes(pid) - memory[name] for name, pid in before.items()}
    assert all(grown < GROWTH_BYTES_MAX for grown in growth.values()), growth
