"""Where the time of operations goes: what metrics of OSDs and 'atoll slow' tell of it."""

import contextlib
import os
import threading

import pytest
from lib.cluster import MIB
from lib.net import stopped
from lib.prometheus import Admin
from lib.waiting import NotYet, under_load, wait_for

IMAGE, BLOCK_BYTES, OBJECT_BYTES = "disk", 4096, 4 * MIB
WRITES = 50
# Objects that are written at once, so that OSD 0 leads the PG of one of them.
OBJECTS = 24
HANG_SECONDS = 3


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osds=3, osd_size="1G")
    cluster.up()
    cluster.create_image(IMAGE, "1G")
    cluster.admin = Admin(cluster)
    return cluster


def total(cluster, name, osds=("osd.0", "osd.1", "osd.2"), **labels):
    """A series of these OSDs together."""
    return sum(cluster.admin.metrics(osd).total(name, **labels) for osd in osds)


@contextlib.contextmanager
def increase(cluster, name, **labels):
    """How much a series of all OSDs goes up by what is done inside; asked for after that."""
    before, found = total(cluster, name, **labels), {}
    yield lambda: found["after"] - before
    found["after"] = total(cluster, name, **labels)


def place(number):
    return number * OBJECT_BYTES


def each_at_once(cluster, numbers, call):
    """Threads that make a call for each object, each on a connection of its own, once all have one. Calls fail if
    operations do."""
    connected, ready = (threading.Barrier(len(numbers) + 1) for _ in range(2))
    errors = []

    def run(number):
        with cluster.nbd(IMAGE) as connection:
            connected.wait(30)
            ready.wait(30)
            try:
                call(connection, number)
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=run, args=[number]) for number in numbers]
    for thread in threads:
        thread.start()
    connected.wait(30)

    def joined():
        for thread in threads:
            thread.join(60)
        assert not errors, errors

    return ready, joined


@contextlib.contextmanager
def stuck(cluster):
    """Writes and then reads of the same blocks while two of three OSDs do nothing."""
    data = os.urandom(BLOCK_BYTES)
    write = lambda connection, number: connection.write(place(number), data, fua=True)
    read = lambda connection, number: connection.read(place(number), BLOCK_BYTES)
    may_write, written = each_at_once(cluster, range(OBJECTS), write)
    may_read, were_read = each_at_once(cluster, range(OBJECTS), read)
    ids = cluster.process_ids()
    try:
        with stopped(ids["osd.1"], ids["osd.2"]):
            may_write.wait(30)
            under_load(0.3)
            may_read.wait(30)
            yield
    finally:
        written()
        were_read()


def test_the_replication_of_each_write_is_timed(cluster):
    """As many as there were writes, of which none was refused."""
    with (
        cluster.nbd(IMAGE) as connection,
        increase(cluster, "atoll_osd_replication_duration_seconds_count") as timed,
        increase(cluster, "atoll_osd_operations_total", operation="write") as written,
    ):
        for number in range(WRITES):
            connection.write(place(number), os.urandom(BLOCK_BYTES), fua=True)
    assert timed() == written() >= WRITES


@pytest.mark.nightly
def test_operations_that_wait_are_counted(cluster, note):
    """Reads wait in their PGs for writes that members have not acknowledged. The writes take as long as that."""
    waiting, most = "atoll_osd_pg_waiting_operations", "atoll_osd_pg_waiting_operations_max"
    with increase(cluster, "atoll_osd_replication_duration_seconds_sum") as seconds:
        with stuck(cluster):
            led = wait_for("operations wait", lambda: total(cluster, waiting, ["osd.0"]), 15)
            assert 1 <= total(cluster, most, ["osd.0"]) <= total(cluster, waiting, ["osd.0"]) <= 2 * OBJECTS
            under_load(HANG_SECONDS)
        note(f"{led:.0f} operations waited in osd.0")
    assert seconds() > HANG_SECONDS
    wait_for("nothing waits", lambda: total(cluster, waiting) == total(cluster, most) == 0, 15)


def test_looks_at_metadata_pages_are_counted(cluster):
    """All is in memory after a little work."""
    hits = lambda: total(cluster, "atoll_osd_metadata_page_lookups_total", result="hit")
    with cluster.nbd(IMAGE) as connection:
        before = hits()
        for number in range(WRITES):
            connection.read(place(number), BLOCK_BYTES)
    # OSDs tell them once a second.
    wait_for("they are told", lambda: hits() >= before + WRITES, 20)


# --- atoll slow


def in_flight(cluster, *options, process="osd.0"):
    """What 'atoll slow --in-flight' tells of a process."""
    told = cluster.json("slow", "--in-flight", "--limit", "100", "--process", process, *options)
    assert told["unanswered"] == [], told
    return told["operations"]


def test_operations_in_flight_tell_what_they_wait_for(cluster, note):
    """Writes name the members that hang, and reads the write that they wait for. They are gone once they are answered,
    and then are told as slow operations, with the same steps."""
    assert in_flight(cluster) == []
    with stuck(cluster):

        def both_wait():
            told = in_flight(cluster)
            kinds = {kind: [one for one in told if one["kind"] == kind] for kind in ("read", "write")}
            if not kinds["read"] or not kinds["write"]:
                raise NotYet(f"{told}")
            return kinds

        kinds = wait_for("a write and a read are in flight for a second", both_wait, 15)
        for write in kinds["write"]:
            assert write["steps"][0]["name"] == "ordered", write
            assert write["waits_for"].endswith("to have it durable"), write
            assert {"osd.1", "osd.2"} & set(write["waits_for"].replace(",", "").split()), write
        assert all(read["waits_for"] for read in kinds["read"]), kinds["read"]
        assert all(one["duration_us"] >= 1_000_000 for of_kind in kinds.values() for one in of_kind)
        assert in_flight(cluster, "--in-flight-min-ms", "60000") == []
        table = cluster.cli("slow", "--in-flight").stdout
        assert "waits for" in table and ">" in table, table
        note(kinds["write"][0]["waits_for"] + "; " + kinds["read"][0]["waits_for"])
        objects = {write["object"] for write in kinds["write"]}
    wait_for("none is in flight any more", lambda: in_flight(cluster) == [], 30)
    ended = {
        one["object"]: one for one in cluster.json("slow", "--limit", "100")["operations"] if one["kind"] == "write"
    }
    assert objects <= ended.keys(), f"{objects - ended.keys()} were not told after their end"
    for name in objects:
        one = ended[name]
        assert one["waits_for"] is None
        # Members that hang for 2 s are taken for dead: then the write is refused, and sent again.
        refused = one["error"] in ("inactive", "not_primary", "busy", "undecided")
        assert refused or (one["steps"][0]["name"] == "ordered" and len(one["steps"]) > 1), one


@pytest.mark.nightly
def test_requests_in_flight_of_gateway_and_nbd_server_are_told(cluster):
    """While OSDs hang, and not after that."""
    client = cluster.s3()
    client.create_bucket(Bucket="hangs")
    put = lambda: client.put_object(Bucket="hangs", Key="key", Body=b"x" * MIB)
    thread = threading.Thread(target=put)
    with stuck(cluster):
        thread.start()
        [told] = wait_for("the gateway tells of it", lambda: in_flight(cluster, process="gateway"), 15)
        assert (told["kind"], told["object"]) == ("PutObject", "/hangs/key"), told
        assert "the cluster" in told["waits_for"] and told["duration_us"] >= 1_000_000, told
        of_image = wait_for("the NBD server tells of its own", lambda: in_flight(cluster, process="nbd"), 15)
        assert {one["waits_for"] for one in of_image} == {"the cluster"}, of_image
        assert all(one["object"].startswith(f"{IMAGE} at ") for one in of_image), of_image
    thread.join(60)
    none = lambda: not in_flight(cluster, process="gateway") and not in_flight(cluster, process="nbd")
    wait_for("none is in flight any more", none, 15)


@pytest.mark.nightly
def test_top_tells_who_uses_an_osd(cluster):
    """The NBD server and the gateway have keys of their own, and so names."""
    host = cluster.json("osd", "ls")[0]["host"]
    client = cluster.s3()
    stop = threading.Event()

    def work():
        with cluster.nbd(IMAGE) as connection:
            for number in range(100_000):
                if stop.is_set():
                    return
                connection.write(place(number % OBJECTS), os.urandom(BLOCK_BYTES), fua=True)
                client.put_object(Bucket="hangs", Key=str(number % 8), Body=b"x" * MIB)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        look = ("top", "--count", "1", "--interval", "3", "--kind", "client")
        told = {one["name"]: one for one in cluster.json(*look)["figures"]}
        assert {f"client@{host}", f"gateway@{host}"} <= told.keys(), told
        assert all(told[f"{kind}@{host}"]["writes_per_second"] > 0 for kind in ("client", "gateway")), told
        assert told[f"gateway@{host}"]["write_bytes_per_second"] > told[f"client@{host}"]["write_bytes_per_second"]
        of_one = {one["name"]: one for one in cluster.json(*look, "--process", "osd.0")["figures"]}
        assert of_one[f"gateway@{host}"]["writes_per_second"] > 0, of_one
    finally:
        stop.set()
        thread.join(60)
    assert "there is no process 'osd.9'" in cluster.cli("top", "--process", "osd.9", ok=(1,)).stderr
    assert "there is no host 'h9'" in cluster.cli("slow", "--host", "h9", ok=(1,)).stderr
