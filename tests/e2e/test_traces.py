"""Operations as traces at a collector of OpenTelemetry: off until the settings name one, sampled, with their steps, and
as a part of what the client does; without secrets, and without holding anything up."""

import os
import threading
import time
import urllib.request

import pytest
from lib.net import stopped
from lib.otlp import TraceCollector
from lib.prometheus import Admin
from lib.verdicts import intact
from lib.waiting import under_load, wait_for

BUCKET, IMAGE, BLOCK_BYTES = "traced", "disk", 4096
# A batch waits for others for a second, and settings come within one.
EXPORT_SECONDS, BATCH_SECONDS = 3, 1.5
SAMPLED, UNSAMPLED, STRANGE, PRESIGNED = ("a" * 32, "b" * 32, "c" * 32, "d" * 32)
# Processes round the times of their spans, and an OSD its clock to the turn of its loop.
CLOCK_NANOSECONDS = 50_000_000
PROCESSES = ("osd.0", "osd.1", "osd.2", "gateway", "nbd")


@pytest.fixture(scope="module")
def collector():
    with TraceCollector().serving() as collector:
        yield collector


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osds=3, osd_size="2G")
    cluster.up()
    cluster.create_image(IMAGE, "64M")
    cluster.s3().create_bucket(Bucket=BUCKET)
    cluster.admin = Admin(cluster)
    return cluster


def settings(cluster, **values):
    for name, value in values.items():
        cluster.cli("settings", "set", name, value)
    under_load(1)


def exported(cluster, result, processes=PROCESSES):
    return sum(cluster.admin.metrics(one).total("atoll_traces_total", result=result) for one in processes)


def use(cluster, trace_id=None, flags="01", **options):
    """An object is written and read, as a part of a trace if one is named, and a block of an image."""
    client = cluster.s3(**options)
    if trace_id:
        header = f"00-{trace_id}-{'1' * 16}-{flags}"
        add = lambda request, **_: request.headers.add_header("traceparent", header)
        client.meta.events.register("before-sign.s3", add)
    client.put_object(Bucket=BUCKET, Key="key", Body=b"x" * 100_000)
    intact(client.get_object(Bucket=BUCKET, Key="key")["Body"].read() == b"x" * 100_000, "other bytes")
    with cluster.nbd(IMAGE) as connection:
        connection.write(0, os.urandom(BLOCK_BYTES), fua=True)
        connection.read(0, BLOCK_BYTES)


@pytest.fixture(scope="module")
def before(cluster, collector):
    """What was exported when no collector was named."""
    use(cluster, SAMPLED)
    under_load(EXPORT_SECONDS)
    return sum(exported(cluster, result) for result in ("sent", "dropped", "failed"))


@pytest.fixture(scope="module")
def traced(cluster, collector, before):
    """All operations are exported: those of clients, and of some that say what they are part of."""
    # A collector of this host is called only if its network is named.
    refused = cluster.cli("settings", "set", "trace_endpoint", collector.endpoint, ok=(1,)).stderr
    assert "outgoing_networks" in refused, refused
    settings(cluster, outgoing_networks="127.0.0.1")
    settings(cluster, trace_endpoint=collector.endpoint, trace_one_in="1", trace_slow="false")
    use(cluster, SAMPLED)
    use(cluster, UNSAMPLED, flags="00")
    with pytest.raises(Exception, match="403|Signature"):
        use(cluster, STRANGE, secret="wrong")
    url = cluster.s3().generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "key"})
    request = urllib.request.Request(url, headers={"traceparent": f"00-{PRESIGNED}-{'2' * 16}-01"})
    with urllib.request.urlopen(request, timeout=10, context=cluster.trust()) as answer:
        assert len(answer.read()) == 100_000
    under_load(EXPORT_SECONDS)

    def all_have_come():
        sent = exported(cluster, "sent")
        under_load(BATCH_SECONDS)
        return 0 < sent == exported(cluster, "sent") == len(collector.found(kind=2))

    wait_for("all spans have come", all_have_come, 30)
    return url


def test_nothing_is_exported_until_a_collector_is_named(before):
    assert before == 0


def test_an_object_is_written_as_a_part_of_what_its_client_does(collector, traced):
    [put] = collector.found(name="PutObject", traceId=SAMPLED)
    assert put["parentSpanId"] == "1" * 16 and put["kind"] == 2
    assert put["resource"]["service.name"] == "atoll-gateway" and put["resource"]["service.namespace"] == "atoll"
    assert put["resource"]["service.instance.id"].endswith("/gateway") and put["resource"]["host.name"]
    assert put["attributes"]["atoll.object"] == f"/{BUCKET}/key" and put["attributes"]["client.address"] == "127.0.0.1"
    assert int(put["attributes"]["atoll.size_bytes"]) >= 100_000
    assert [step["name"] for step in collector.below(put) if step["kind"] == 1] == ["answer begun"]
    assert len(collector.found(name="GetObject", traceId=SAMPLED)) == 1
    [presigned] = collector.found(name="GetObject", traceId=PRESIGNED)
    assert presigned["parentSpanId"] == "2" * 16


def parts(collector, root):
    """The spans of a trace by their parents, from a span downwards; each of them is in the time of its parent."""
    found, waiting = [], [root]
    while waiting:
        parent = waiting.pop()
        for part in collector.below(parent):
            assert part["startTimeUnixNano"] >= parent["startTimeUnixNano"] - CLOCK_NANOSECONDS, (parent, part)
            assert part["endTimeUnixNano"] <= parent["endTimeUnixNano"] + CLOCK_NANOSECONDS, (parent, part)
            found.append((parent, part))
            waiting.append(part)
    return found


def process_of(span):
    return span["resource"]["service.instance.id"].rpartition("/")[2]


def check_writes(collector, root):
    """What a request has written: each write is below it at its primary, and the copies at members below that."""
    found = parts(collector, root)
    writes = [part for parent, part in found if part["name"] == "write"]
    assert writes and all(write["parentSpanId"] == root["spanId"] for write in writes), found
    for write in writes:
        copies = [part for parent, part in found if parent is write and part["kind"] == 2]
        assert {copy["name"] for copy in copies} == {"replicate"}, found
        processes = [process_of(write), *(process_of(copy) for copy in copies)]
        assert sorted(processes) == ["osd.0", "osd.1", "osd.2"], processes
        for copy in copies:
            assert copy["attributes"]["atoll.client"] == process_of(write)
            assert copy["attributes"]["atoll.pg"] == write["attributes"]["atoll.pg"]
            steps = sorted(collector.below(copy), key=lambda step: step["endTimeUnixNano"])
            assert [step["name"] for step in steps] == ["given to the log", "durable"], steps
    return writes


def test_what_osds_do_for_an_object_is_a_part_of_its_request(collector, traced):
    """One trace from the client's own span over the gateway to all OSDs."""
    [put] = collector.found(name="PutObject", traceId=SAMPLED)
    writes = check_writes(collector, put)
    # The chunk, and the change of the bucket's index.
    assert len(writes) >= 2 and len({write["attributes"]["atoll.object"] for write in writes}) >= 2, writes
    [get] = collector.found(name="GetObject", traceId=SAMPLED)
    reads = [part for parent, part in parts(collector, get) if part["kind"] == 2]
    assert len(reads) >= 2 and {read["name"] for read in reads} == {"read"}, reads
    assert all(read["parentSpanId"] == get["spanId"] and process_of(read).startswith("osd.") for read in reads)


def test_what_osds_do_for_an_image_is_a_part_of_its_request(collector, traced):
    of_image = [one for one in collector.found(kind=2, name="write") if process_of(one) == "nbd"]
    assert of_image and all("parentSpanId" not in one for one in of_image)
    for write in of_image:
        check_writes(collector, write)


def test_an_osd_exports_nothing_by_itself(collector, traced):
    """Whether an operation is exported is said where it begins."""
    of_osds = [one for one in collector.found(kind=2) if process_of(one).startswith("osd.")]
    assert of_osds and all("parentSpanId" in one for one in of_osds)


def test_what_its_client_does_not_export_is_not_exported(collector, traced):
    assert not collector.found(traceId=UNSAMPLED)


def test_a_stranger_cannot_say_what_it_is_part_of(collector, traced):
    """The refused request is exported as one of its own."""
    assert not collector.found(traceId=STRANGE)
    refused = [one for one in collector.spans if one.get("status", {}).get("message") == "status 403"]
    assert refused and all("parentSpanId" not in one for one in refused)


def test_a_write_of_an_osd_tells_when_each_member_had_it(collector, traced):
    writes = [one for one in collector.found(name="write", kind=2) if one["attributes"].get("atoll.pool") == "images"]
    assert writes
    for write in writes:
        steps = {step["name"]: step for step in collector.below(write) if step["kind"] == 1}
        assert set(steps) == {"ordered", "durable on osd.0", "durable on osd.1", "durable on osd.2"}, write
        for name, step in steps.items():
            assert step["endTimeUnixNano"] <= write["endTimeUnixNano"], step
            begins = write["startTimeUnixNano"] if name == "ordered" else steps["ordered"]["endTimeUnixNano"]
            assert step["startTimeUnixNano"] == begins, step
        assert write["resource"]["service.instance.id"].rpartition("/")[2] in ("osd.0", "osd.1", "osd.2")


def test_reads_and_requests_of_images_are_there(collector, traced):
    reads = [one for one in collector.found(name="read", kind=2) if one["resource"]["service.name"] == "atoll-osd"]
    assert any(collector.below(read) for read in reads), reads
    of_image = [one for one in collector.found(kind=2) if one["resource"]["service.name"] == "atoll-nbd"]
    assert {"read", "write"} <= {one["name"] for one in of_image}
    assert {one["attributes"]["atoll.object"] for one in of_image if one["name"] == "write"} == {f"{IMAGE} at 0"}


def test_all_is_otlp(collector, traced):
    assert collector.spans and not collector.wrong


def test_no_secret_is_told(cluster, collector, traced):
    secrets = [cluster.credentials()["secret_key"], cluster.credentials()["access_key"]]
    secrets.append(traced.partition("X-Amz-Signature=")[2][:64])
    for secret in secrets:
        assert len(secret) >= 16
        assert not any(secret.encode() in body for body in collector.bodies), secret


def test_what_was_sent_is_counted(cluster, collector, traced):
    """A trace of its own for each operation but those of one client."""
    sent = exported(cluster, "sent")
    assert sent == len(collector.found(kind=2)) > 0
    assert exported(cluster, "dropped") == exported(cluster, "failed") == 0


@pytest.mark.nightly
def test_some_are_exported_of_many(cluster, collector, traced):
    settings(cluster, trace_one_in="10")
    from_here = len(collector.found(kind=2, name="write"))
    with cluster.nbd(IMAGE) as connection:
        for number in range(500):
            connection.write(number % 16 * BLOCK_BYTES, os.urandom(BLOCK_BYTES), fua=True)
    under_load(EXPORT_SECONDS)
    # Of 500 of the NBD server, and with each of them its write at the primary.
    found = collector.found(kind=2, name="write")[from_here:]
    of_image = [one for one in found if process_of(one) == "nbd"]
    assert 20 <= len(of_image) <= 100, len(of_image)
    for write in of_image:
        check_writes(collector, write)
    of_osds = [one for one in found if process_of(one).startswith("osd.")]
    assert len(of_osds) == len(of_image), "one that is not exported was taken for one that is"


@pytest.mark.nightly
def test_slow_operations_are_exported_although_none_is_sampled(cluster, collector, traced):
    settings(cluster, trace_one_in="0", trace_slow="true")
    ids = cluster.process_ids()
    with cluster.nbd(IMAGE) as connection:
        connection.write(BLOCK_BYTES, os.urandom(BLOCK_BYTES), fua=True)
        under_load(EXPORT_SECONDS)
        from_here = len(collector.found(kind=2))
        write = threading.Thread(target=connection.write, args=[0, os.urandom(BLOCK_BYTES)], kwargs={"fua": True})
        with stopped(ids["osd.1"], ids["osd.2"]):
            write.start()
            under_load(1)
        write.join(30)
    under_load(EXPORT_SECONDS)
    found = collector.found(kind=2)[from_here:]
    lasted = lambda one: (one["endTimeUnixNano"] - one["startTimeUnixNano"]) / 1e9
    assert found and all(lasted(one) >= 0.1 for one in found), found
    [of_image] = [one for one in found if one["resource"]["service.name"] == "atoll-nbd"]
    assert of_image["name"] == "write" and lasted(of_image) >= 0.9
    assert all("parentSpanId" not in one for one in found), "nobody knew at its start that it would be slow"


@pytest.mark.nightly
@pytest.mark.nightly
def test_a_collector_that_is_away_holds_nothing_up(cluster, collector, traced):
    settings(cluster, trace_one_in="1", trace_endpoint="http://127.0.0.1:1")
    before = exported(cluster, "failed")
    began = time.monotonic()
    use(cluster)
    assert time.monotonic() - began < 10
    # It is tried again after 1 and after 5 s.
    wait_for("what was lost is counted", lambda: exported(cluster, "failed") > before, 30)
    settings(cluster, trace_endpoint="")
    assert cluster.json("settings", "ls")["trace_endpoint"] == ""


@pytest.mark.parametrize("endpoint", ["collector:4318", "http://user:secret@host:4318", "http://host/?key=secret"])
def test_an_address_that_is_none_is_refused(cluster, endpoint):
    assert "collector" in cluster.cli("settings", "set", "trace_endpoint", endpoint, ok=(1,)).stderr
