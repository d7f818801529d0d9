"""What processes tell Prometheus, and the alert rules of monitoring/ in a real one.

Metrics are those of docs/reference/metrics.md, no more and no fewer, and count what was done. Each alert fires under
its fault and ends after it; the rules are the shipped ones with shorter times (lib/prometheus.py: shortened). Faults
that cannot be made here are in UNMADE with the reason: promtool's unit tests have them."""

import contextlib
import dataclasses
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import BotoCoreError, ClientError
from lib.cluster import MIB
from lib.devices import data_offsets, flip_bits
from lib.nbd import ENOSPC, NbdError
from lib.net import stopped
from lib.operator import problems
from lib.prometheus import OPENMETRICS, TEXT, Admin, Prometheus, complaints, monitoring_check
from lib.s3 import error_of, read
from lib.transit import Transit
from lib.verdicts import intact
from lib.waiting import NotYet, under_load, wait_for

pytestmark = pytest.mark.needs("prometheus", "promtool", "nbdcopy", "openssl")

CHECK = monitoring_check()
DOCUMENTED = CHECK.read_metrics()
BUCKET, IMAGE, IMAGE_BYTES = "watched", "disk", 64 * MIB
WRONG_SIGNATURES = 150
# Which headings of the page are about which process; an OSD is the part before its number.
HEADINGS = {
    "osd": {"Every process", "OSD"},
    "gateway": {"Every process", "Gateway", "Servers with TLS", "Gateway, NBD server and NVMe target"},
    "nbd": {"Every process", "Gateway, NBD server and NVMe target", "NBD server and NVMe target", "NBD server"},
    "cluster-state": {"Every process", "Cluster state"},
    "admin": {"Every process", "Servers with TLS", "Admin server"},
}
# What is not there until something is wrong.
ONLY_WITH_A_FAULT = {
    "atoll_osd_operation_errors_total",
    "atoll_image_operation_errors_total",
    "atoll_health_problems",
    "atoll_process_restarts_total",
    "atoll_security_events_total",
}
# The disk of the machine that runs the tests may be slow for so long.
OF_THE_MACHINE = {"AtollSlowDevice"}
FIRES_SECONDS, ENDS_SECONDS = 30, 60


class Watched:
    """A cluster with a Prometheus, a bucket and an image."""

    def __init__(self, scenario, name="d", osds=3, options=(), **variables):
        self.scenario, self.cluster = scenario, scenario.cluster(name, osds=osds, osd_size="1G")
        self.cluster.options += options
        self.cluster.variables |= variables
        self.cluster.up()
        self.admin = Admin(self.cluster)
        self.cluster.s3().create_bucket(Bucket=BUCKET)
        self.cluster.create_image(IMAGE, "2G")
        self.prometheus = Prometheus(self.admin, f"{name}-prometheus")

    @property
    def s3(self):
        return self.cluster.s3()

    def processes(self):
        return sorted(set(self.cluster.children()) | {"admin"})

    def texts(self, accept=TEXT):
        return {process: self.admin.metrics(process, accept) for process in self.processes()}

    def pids(self, *names):
        ids = self.cluster.process_ids()
        return [ids[name] for name in names]

    def work(self):
        """A little of all that clients do."""
        s3, data = self.s3, os.urandom(MIB)
        for key in ("one", "two"):
            s3.put_object(Bucket=BUCKET, Key=key, Body=data)
        intact(read(s3, BUCKET, "one") == data, "other bytes")
        s3.head_object(Bucket=BUCKET, Key="one")
        s3.list_objects_v2(Bucket=BUCKET)
        s3.delete_object(Bucket=BUCKET, Key="two")
        assert error_of(s3.get_object, Bucket=BUCKET, Key="none")[0] == 404
        self.sign_wrongly(1)
        self.over_tls().list_buckets()
        file = self.scenario.directory / "image.raw"
        file.write_bytes(os.urandom(IMAGE_BYTES))
        self.scenario.run("nbdcopy", "--flush", file, self.cluster.nbd_uri(IMAGE))
        with self.cluster.nbd(IMAGE) as connection:
            connection.read(0, MIB)
            connection.trim(0, MIB)
            connection.flush()
        self.cluster.cli("pg", "scrub", "all", "--deep", "--wait")
        self.cluster.cli("pg", "scrub", "all", "--wait")

    def over_tls(self):
        credentials = self.cluster.credentials()
        self.cluster._credentials = credentials | {"endpoint": credentials["tls_endpoint"]}
        client = self.s3
        self.cluster._credentials = credentials
        return client

    def sign_wrongly(self, count):
        s3 = self.cluster.s3(secret="wrong")
        for _ in range(count):
            assert error_of(s3.list_buckets)[0] == 403


@pytest.fixture(scope="module")
def idle(scenario):
    return Watched(scenario)


@pytest.fixture(scope="module")
def watched(idle):
    """The same after some work."""
    idle.work()
    return idle


# --- targets


def test_all_processes_are_targets_and_up(idle):
    """Prometheus finds each process by the admin server, with its labels, and gets its metrics."""

    def all_up():
        targets = idle.prometheus.targets()
        problems = {name: target["lastError"] for name, target in targets.items() if target["health"] != "up"}
        if sorted(targets) != idle.processes() or problems:
            raise NotYet(f"{sorted(targets)} {problems}")
        return targets

    targets = wait_for("all targets are up", all_up, 30)
    hosts = {target["labels"]["host"] for target in targets.values()}
    assert len(hosts) == 1 and all(hosts), f"{hosts}"


@pytest.mark.parametrize("path", ["/metrics/targets", "/metrics/osd.0", "/metrics/admin"])
@pytest.mark.parametrize("token", ["", "wrong"], ids=["no token", "a wrong token"])
def test_metrics_take_the_token(idle, path, token):
    """Without it there is nothing to be seen."""
    status, said = idle.admin.status_of(path, token)
    assert status == 401 and "atoll_" not in said and "osd.0" not in said, f"{status}: {said[:300]}"


# --- metrics


def missing(watched):
    """Documented metrics that no process of their kind tells."""
    told = {}
    for process, text in watched.texts().items():
        told.setdefault(process.split(".")[0], set()).update(text.family(sample.name) for sample in text.samples)
    return {
        kind: names
        for kind, headings in HEADINGS.items()
        if (names := names_of(headings) - ONLY_WITH_A_FAULT - told[kind])
    }


def names_of(headings):
    return {name for heading in headings for name in DOCUMENTED[heading]}


def test_every_documented_metric_is_told_once_its_work_is_done(watched):
    """With an image that is open, as connections are counted while they are there."""
    with watched.cluster.nbd(IMAGE):

        def nothing_is_missing():
            if found := missing(watched):
                raise NotYet(f"{found}")
            return True

        wait_for("all metrics are told", nothing_is_missing, 15, pause=0.5)
    assert watched.admin.metrics("gateway").total("atoll_security_events_total", event="bad_signature") >= 1


def test_nothing_is_told_that_is_not_documented(watched):
    """Names, types and labels are those of the page."""
    documented = {name: entry for of_heading in DOCUMENTED.values() for name, entry in of_heading.items()}
    wrong = set()
    for process, text in watched.texts().items():
        for sample in text.samples:
            name = text.family(sample.name)
            labels = {label for label, _ in sample.labels} - {"le"}
            if name not in documented:
                wrong.add(f"{process}: {name} is not documented")
            elif (found := (text.types.get(name), labels)) != documented[name]:
                wrong.add(f"{process}: {name} is {found}, documented is {documented[name]}")
    assert not wrong, "\n".join(sorted(wrong))


def test_promtool_has_no_complaint(watched):
    """'promtool check metrics' takes the text of every process."""
    found = {process: said for process, text in watched.texts().items() if (said := complaints(text.text))}
    assert not found, f"{found}"


def test_both_formats_have_the_same_metrics(watched):
    """OpenMetrics, which Prometheus asks for, ends as it must."""
    plain, open_metrics = watched.texts(), watched.texts(OPENMETRICS)
    for process, text in open_metrics.items():
        assert text.text.endswith("# EOF\n"), f"{process}: {text.text[-100:]}"
        assert text.types == plain[process].types, process


# --- counters


@contextlib.contextmanager
def increases(watched, process):
    """How much a series of a process goes up by what is done inside; asked for after that."""
    before = watched.admin.metrics(process)
    found = {}
    yield lambda name, **labels: found["after"].total(name, **labels) - before.total(name, **labels)
    found["after"] = watched.admin.metrics(process)


def test_requests_and_bytes_of_s3_are_counted_exactly(watched):
    """Requests by operation, status and bucket; bytes are those of the bodies at least."""
    number, size, s3 = 25, 100_000, watched.s3
    with increases(watched, "gateway") as more:
        for key in range(number):
            s3.put_object(Bucket=BUCKET, Key=f"counted/{key}", Body=os.urandom(size))
        for key in range(number - 5):
            s3.get_object(Bucket=BUCKET, Key=f"counted/{key}")["Body"].read()
        for _ in range(3):
            assert error_of(s3.get_object, Bucket=BUCKET, Key="none")[0] == 404
    requests = "atoll_s3_requests_total"
    assert more(requests, operation="PutObject", status="200") == number
    assert more(requests, operation="GetObject", status="200") == number - 5
    assert more(requests, operation="GetObject", status="404") == 3
    assert more("atoll_s3_request_duration_seconds_count", operation="PutObject") == number
    assert more("atoll_s3_bucket_requests_total", bucket=BUCKET) == 2 * number - 5 + 3
    for name in ("atoll_s3", "atoll_s3_bucket"):
        assert number * size <= more(f"{name}_received_bytes_total") < 1.2 * number * size
        assert (number - 5) * size <= more(f"{name}_sent_bytes_total") < 1.2 * (number - 5) * size
    assert more("atoll_s3_account_requests_total") == 2 * number - 5 + 3
    assert more("atoll_s3_key_cache_lookups_total") > 0


def test_operations_of_images_are_counted_exactly(watched):
    """Of each kind, with their bytes."""
    with watched.cluster.nbd(IMAGE) as connection, increases(watched, "nbd") as more:
        for place in range(10):
            connection.write(place * 4096, os.urandom(4096))
        for place in range(7):
            connection.read(place * 8192, 8192)
        connection.trim(MIB, MIB)
        connection.flush()
    operations = {
        operation: more("atoll_image_operations_total", image=IMAGE, operation=operation)
        for operation in ("read", "write", "trim", "flush")
    }
    assert operations == {"read": 7, "write": 10, "trim": 1, "flush": 1}
    assert more("atoll_image_operation_bytes_total", image=IMAGE, operation="write") == 10 * 4096
    assert more("atoll_image_operation_bytes_total", image=IMAGE, operation="read") == 7 * 8192
    assert more("atoll_image_operation_duration_seconds_count", image=IMAGE, operation="write") == 10


def test_what_osds_write_is_counted(watched):
    """All OSDs together count what clients write once, and their devices at least every copy of it."""
    written, osds = 8 * MIB, [name for name in watched.processes() if name.startswith("osd.")]
    with contextlib.ExitStack() as stack:
        more = [stack.enter_context(increases(watched, osd)) for osd in osds]
        with watched.cluster.nbd(IMAGE) as connection:
            for place in range(0, written, MIB):
                connection.write(place, os.urandom(MIB), fua=True)
    total = lambda name, **labels: sum(of_osd(name, **labels) for of_osd in more)
    assert written <= total("atoll_osd_operation_bytes_total", operation="write") < 1.5 * written
    assert total("atoll_osd_operations_total", operation="write") >= 8
    assert total("atoll_osd_device_bytes_total", operation="write") >= 3 * written


def test_wrong_signatures_are_counted_exactly(watched):
    with increases(watched, "gateway") as more:
        watched.sign_wrongly(7)
    assert more("atoll_security_events_total", event="bad_signature") == 7
    assert more("atoll_s3_requests_total", status="403") == 7


def test_what_the_cluster_is_agrees_with_the_commands(watched):
    """OSDs, PGs and space as 'atoll status' has them; in Prometheus, too."""

    def agrees():
        status, told = watched.cluster.json("status"), watched.admin.metrics("admin")
        states = {state: told.total("atoll_pgs", state=state) for state in dict(status["placement_groups_by_state"])}
        names = ("atoll_osd_up", "atoll_osd_in", "atoll_cluster_used_bytes", "atoll_health_status")
        found = [told.total(name) for name in names]
        wanted = [3, 3, status["used_bytes"], 0]
        if found != wanted or states != status["placement_groups_by_state"] or status["osds_up"] != 3:
            raise NotYet(f"{found} {states} {status}")
        return True

    wait_for("metrics and 'atoll status' agree", agrees, 15)
    led = sum(text.total("atoll_osd_pgs") for text in watched.texts().values())
    assert led == watched.cluster.json("status")["placement_groups"]
    wait_for(
        "Prometheus has the same",
        lambda: watched.prometheus.value('sum(atoll_pgs{state="active"})') == led,
        10,
    )


def test_nothing_fires_in_a_healthy_cluster(watched):
    """With all the work of the tests above."""
    assert watched.prometheus.has_fired() <= OF_THE_MACHINE


# --- faults


@contextlib.contextmanager
def flag(watched):
    """What health warns of for as long as it is so."""
    watched.cluster.cli("flag", "set", "noscrub")
    try:
        yield
    finally:
        watched.cluster.cli("flag", "unset", "noscrub")


@contextlib.contextmanager
def pool_without_osds(watched):
    """Its PGs cannot be made, which is an error."""
    watched.cluster.cli("pool", "create", "nowhere", "--device-class", "nvme", "--pg-num", "1", ok=(3,))
    try:
        yield
    finally:
        watched.cluster.cli("pool", "rm", "nowhere", "--yes-destroy", "nowhere")


@contextlib.contextmanager
def wrong_signatures(watched):
    watched.sign_wrongly(WRONG_SIGNATURES)
    yield


@contextlib.contextmanager
def certificate(watched, days):
    """A certificate with the key of the present one that ends after so many days."""
    tls = watched.cluster.data / "tls"
    kept, request, made = tls / "server.crt", tls.parent / "request.pem", tls.parent / "made.crt"
    before, run = kept.read_bytes(), watched.scenario.run
    extensions = tls.parent / "extensions"
    extensions.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nextendedKeyUsage=serverAuth\n")
    run("openssl", "req", "-new", "-key", tls / "server.key", "-subj", "/CN=ends soon", "-out", request)
    signer = ("-CA", tls / "ca.crt", "-CAkey", tls / "ca.key", "-set_serial", "4711", "-extfile", extensions)
    run("openssl", "x509", "-req", "-in", request, *signer, "-days", days, "-out", made)
    made.rename(kept)
    try:
        yield
    finally:
        made.write_bytes(before)
        made.rename(kept)


@contextlib.contextmanager
def small_faults(watched):
    """Several that have nothing to do with each other."""
    with contextlib.ExitStack() as stack:
        for fault in (flag, pool_without_osds, lambda of: certificate(of, 1), wrong_signatures):
            stack.enter_context(fault(watched))
        yield


@contextlib.contextmanager
def hanging(watched, *names):
    with stopped(*watched.pids(*names)):
        yield


@contextlib.contextmanager
def restarts(watched):
    """It is killed as soon as the supervisor has restarted it."""
    for _ in range(6):
        watched.cluster.restarted("nbd", watched.cluster.kill("nbd"))
    yield


@contextlib.contextmanager
def slow_requests(watched):
    """Requests that had to wait for two OSDs."""
    s3 = watched.cluster.s3(read_timeout=60)
    with ThreadPoolExecutor(8) as pool:
        with hanging(watched, "osd.1", "osd.2"):
            # A primary that goes on serves reads until its lease has ended.
            wait_for("PGs do not serve", lambda: "PG_INACTIVE" in problems(watched.cluster)[1], 60)
            waiting = [pool.submit(error_of, s3.head_object, Bucket=BUCKET, Key="one") for _ in range(8)]
            under_load(10)
        assert not any(request.result() for request in waiting), [request.result() for request in waiting]
    yield


@contextlib.contextmanager
def admin_hangs(watched):
    with stopped(watched.admin.process_id()):
        yield


@dataclasses.dataclass
class Fault:
    """How to make it, and the alerts that fire then, with labels that tell them from others."""

    make: object
    alerts: dict
    seconds: int = FIRES_SECONDS


FAULTS = {
    "several small ones": Fault(
        small_faults,
        {
            # This one ends first.
            "AtollSecurityEvents": {"process": "gateway", "event": "bad_signature"},
            "AtollHealthWarning": {"code": "FLAGS_SET"},
            "AtollHealthError": {"code": "PG_MISSING"},
            "AtollCertificateEnds": {"file": "server.crt"},
        },
    ),
    "a certificate that ends in ten days": Fault(
        lambda watched: certificate(watched, 10), {"AtollCertificateEndsSoon": {"file": "server.crt"}}
    ),
    "a process hangs": Fault(lambda watched: hanging(watched, "nbd"), {"AtollProcessDown": {"process": "nbd"}}),
    "a process ends again and again": Fault(restarts, {"AtollProcessRestarts": {"process": "nbd"}}),
    "an OSD hangs": Fault(
        lambda watched: hanging(watched, "osd.2"),
        {"AtollOsdDown": {}, "AtollPgsDegraded": {"pool": "images"}},
        seconds=60,
    ),
    "two OSDs hang": Fault(
        lambda watched: hanging(watched, "osd.1", "osd.2"), {"AtollPgsNotActive": {"pool": "images"}}, seconds=60
    ),
    "requests wait": Fault(slow_requests, {"AtollSlowS3": {"operation": "HeadObject"}}),
    "the admin server hangs": Fault(
        admin_hangs, {"AtollHostDown": {"process": "admin"}, "AtollMetricsAbsent": {"job": "atoll"}}
    ),
}
QUICK = {"several small ones"}
# Alerts whose faults have a cluster of their own, below.
OF_FULL = {"AtollOsdNearFull", "AtollSpaceRunsOut", "AtollOsdFull", "AtollS3Errors"}
OF_KEYS = {"AtollKeyServiceFails"}
OF_DAMAGE = {"AtollCorruptBlocks", "AtollScrubDamage"}
# In test_slow_device.py.
OF_SLOWNESS = {"AtollSlowDevice"}
UNMADE = {
    "AtollDiskFails": "no disk of a test says that it fails, and nothing plays the part of one",
    "AtollLogNearlyFull": "checkpoints keep up, on a device that is held to 25 writes a second, too",
}


def test_each_alert_has_a_fault():
    """Alerts are made to fire by a test, or it says why not."""
    alerts = [rule["alert"] for rule in CHECK.read_rules()]
    made = [alert for fault in FAULTS.values() for alert in fault.alerts]
    made += [*OF_FULL, *OF_KEYS, *OF_DAMAGE, *OF_SLOWNESS, *UNMADE]
    assert sorted(made) == sorted(alerts)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, id=name, marks=() if name in QUICK else pytest.mark.nightly) for name in FAULTS],
)
def test_alerts_fire_under_their_fault_and_end_after_it(watched, name):
    """Each once."""
    fault, prometheus = FAULTS[name], watched.prometheus
    with fault.make(watched):
        for alert, labels in fault.alerts.items():
            prometheus.fires(alert, fault.seconds, **labels)
    for alert, labels in fault.alerts.items():
        prometheus.ends(alert, ENDS_SECONDS, **labels)
    others = lambda: {alert["labels"]["alertname"] for alert in prometheus.firing()} - OF_THE_MACHINE
    wait_for("nothing fires any more", lambda: not others(), ENDS_SECONDS, pause=0.5)


# --- a full cluster


class Filler:
    """Writes an image, from its beginning to where its cluster is as full as asked for."""

    def __init__(self, watched):
        self.watched, self.place = watched, 0
        # OSDs tell it once a second.
        tells = lambda: watched.admin.metrics("osd.0").total("atoll_osd_size_bytes")
        wait_for("the OSD tells its size", tells, 10)

    def fill(self, percent):
        """Until so much of the OSD is in use, or nothing is taken any more."""
        noise = os.urandom(8 * MIB)
        with self.watched.cluster.nbd(IMAGE, timeout=120) as connection:
            while self.used_percent() < percent:
                try:
                    connection.write(self.place, noise)
                except NbdError as error:
                    if error.number != ENOSPC:
                        raise
                    return
                self.place += len(noise)

    def used_percent(self):
        told = self.watched.admin.metrics("osd.0")
        # What is written counts at once, also if the OSD has not told it so far.
        return 100 * max(told.total("atoll_osd_used_bytes"), self.place) / told.total("atoll_osd_size_bytes")

    def trim(self):
        with self.watched.cluster.nbd(IMAGE, timeout=120) as connection:
            for place in range(0, self.place, 32 * MIB):
                connection.trim(place, min(32 * MIB, self.place - place))


@pytest.mark.nightly
def test_alerts_of_a_full_cluster(scenario):
    """Nearly full, then full; requests that are refused; and all is well after a trim."""
    watched = Watched(scenario, "full", osds=1)
    filler, prometheus = Filler(watched), watched.prometheus
    watched.s3.put_object(Bucket=BUCKET, Key="before", Body=b"x")
    # It has seen the cluster empty for a while: what grows is told by that.
    nearly_empty = "count_over_time(atoll_cluster_used_bytes[1m]) > 3"
    wait_for("Prometheus has seen the cluster", lambda: prometheus.query(nearly_empty), 20)
    filler.fill(87)
    prometheus.fires("AtollSpaceRunsOut", FIRES_SECONDS)
    prometheus.fires("AtollOsdNearFull", FIRES_SECONDS)
    filler.fill(100)
    with requests_all_the_time(lambda: watched.s3.put_object(Bucket=BUCKET, Key="full", Body=bytes(MIB))):
        prometheus.fires("AtollOsdFull", FIRES_SECONDS, process="osd.0")
        prometheus.fires("AtollS3Errors", FIRES_SECONDS)
    filler.trim()
    for alert in OF_FULL:
        prometheus.ends(alert, 2 * ENDS_SECONDS)


@contextlib.contextmanager
def requests_all_the_time(request, pause_seconds=0.3):
    """Sends requests, whether they fail or not."""
    ended = threading.Event()

    def send():
        while not ended.wait(pause_seconds):
            with contextlib.suppress(ClientError, BotoCoreError):
                request()

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(90)


# --- a key service that fails


@pytest.mark.nightly
def test_a_key_service_that_fails(scenario):
    """The engine is sealed; keys live for a second, so that it is asked again and again."""
    transit = Transit(scenario)
    watched = Watched(scenario, "keys", osds=1, options=transit.options(), ATOLL_KEY_LIFETIME_SECONDS="1")
    watched.s3.put_object(Bucket=BUCKET, Key="one", Body=b"sealed")
    with requests_all_the_time(lambda: read(watched.s3, BUCKET, "one")):
        wait_for(
            "calls are told",
            lambda: watched.prometheus.query('atoll_key_service_calls_total{process="gateway",result="ok"}'),
            10,
        )
        transit.fail("sealed")
        watched.prometheus.fires("AtollKeyServiceFails", FIRES_SECONDS, process="gateway")
        transit.fail("none")
        watched.prometheus.ends("AtollKeyServiceFails", ENDS_SECONDS)


# --- damage


@pytest.mark.nightly
def test_damaged_blocks(scenario):
    """Bits of data are changed on one device while nothing runs, and a deep scrub finds and repairs them."""
    watched = Watched(scenario, "damage")
    cluster, prometheus, rng = watched.cluster, watched.prometheus, random.Random(9)
    with cluster.nbd(IMAGE) as connection:
        for place in range(0, IMAGE_BYTES, 4 * MIB):
            connection.write(place, rng.randbytes(4 * MIB))
    cluster.down()
    device = cluster.data / "osd-1/device"
    offsets = data_offsets(scenario, device, rng)
    flip_bits(device, [offset + rng.randrange(4096) for offset in rng.sample(offsets, 50)])
    cluster.up()
    cluster.cli("pg", "scrub", "all", "--deep", "--wait", timeout=120)
    prometheus.fires("AtollCorruptBlocks", FIRES_SECONDS, process="osd.1")
    # One for each OSD that leads a PG with damage.
    wait_for("AtollScrubDamage fires", lambda: prometheus.firing("AtollScrubDamage"), FIRES_SECONDS)
    found = sum(text.total("atoll_osd_scrub_damaged_objects_total") for text in watched.texts().values())
    assert found >= 1 and watched.admin.metrics("osd.1").total("atoll_osd_corrupt_blocks_total") >= 1
    for alert in OF_DAMAGE:
        prometheus.ends(alert, ENDS_SECONDS)
