"""Erasure-coded pools, 4+2 on six hosts and an etcd in network namespaces: two hosts killed and their devices wiped
under checked load, reads and writes with two others away, PGs that split, and bytes flipped on a device.

    ATOLL_E2E_ROUNDS=N   in the nightly tier: times that two hosts are wiped (2)
    ATOLL_E2E_SEED=N     what is random (1)
"""

import contextlib
import hashlib
import json
import os
import random
import signal
import time

import pytest
from lib.cluster import MIB
from lib.devices import data_blocks, flip_bits
from lib.hosts_load import HostsLoad
from lib.net import (
    ETCD_IP,
    NETWORK,
    Etcd,
    Host,
    Namespaces,
    start_all,
    stopped,
    within,
)
from lib.operator import is_well, told
from lib.verdicts import DataFailure, intact
from lib.waiting import CommandFailed, NotYet, not_yet, under_load, wait_for

pytestmark = [pytest.mark.root, pytest.mark.needs("ip", "etcd", "etcdctl", "openssl", "fio")]


DATA, PARITY = 4, 2
# Of images. Data of S3 is in the pool that 'atoll up --ec' makes, and in one bucket in this one.
POOL, GROUPS = "disks", 16
HOSTS = [f"h{number}" for number in range(1, DATA + PARITY + 1)]
# The others run OSDs only.
SERVERS = 3
ROUNDS, SEED = int(os.environ.get("ATOLL_E2E_ROUNDS", "2")), int(os.environ.get("ATOLL_E2E_SEED", "1"))
CLEAN_SECONDS_MAX = 90
WIPED_SECONDS = 2
# With fewer than min_size shards I/O waits by policy, until devices that were wiped are filled.
REFILL_STALL_SECONDS_MAX = 30
STALL_SECONDS_MAX = 15
STILL_BYTES = 24 * MIB
STRIPE_BYTES = DATA * 65536
# Around the limits of chunks, of rows of chunks, and of the pieces of an upload.
OBJECT_BYTES = (1, 65_535, 65_537, STRIPE_BYTES - 1, STRIPE_BYTES, STRIPE_BYTES + 4097, MIB + 7, 4 * MIB, 5 * MIB + 11)


class World:
    """The hosts, each with one OSD, and their etcd."""

    def __init__(self, scenario):
        self.scenario, namespaces = scenario, Namespaces(scenario)
        self.etcd = Etcd(scenario, namespaces.add_host("etcd", ETCD_IP), HOSTS)
        self.all_hosts = [
            Host(scenario, namespaces.add_host(name, f"{NETWORK}.{n + 1}"), name, f"{NETWORK}.{n + 1}")
            for n, name in enumerate(HOSTS)
        ]
        self.hosts = self.all_hosts[:SERVERS]
        self.cli = self.hosts[0].cli

    def json(self, *arguments, **options):
        return json.loads(self.cli(*arguments, "--json", **options).stdout)

    def start(self):
        self.etcd.start()
        h1 = self.hosts[0]
        h1.start_up(
            "--etcd",
            self.etcd.url,
            "--etcd-ca",
            self.etcd.directory / "ca.pem",
            *self.etcd.client("h1"),
            "--failure-domain",
            "host",
            "--ec",
            f"{DATA}+{PARITY}",
            "--osds",
            "1",
            "--osd-size",
            "4G",
        )
        create = ["pool", "create", POOL, "--ec", f"{DATA}+{PARITY}", "--pg-num", GROUPS, "--failure-domain", "host"]
        early = self.cli(*create, ok=(1,))
        assert "'images' is made first" in early.stderr, early.stderr
        for host in self.all_hosts[1:]:
            server = host in self.hosts
            token = self.json("cluster", "token", "create", *([] if server else ["--role", "osd"]))["token"]
            keys = ["--key-service", h1.data / "keys" / "kms.json"] if server else []
            host.start_up(
                "--join", host.token_file(token), *self.etcd.client(host.name), "--osds", "1", "--osd-size", "4G", *keys
            )
        # Hosts without the key service cannot sign the keys of their OSDs.
        for record in self.json("cluster", "sign")["not_signed"]:
            assert record["key"].startswith("/atoll/authorized_keys/"), record
            self.cli("cluster", "sign", "--record", record["key"])
        # The first host makes the first pools, now that there are hosts enough.
        wait_for("there are the first pools", lambda: {"images", "objects", "data"} <= self.pools().keys(), 60)
        self.cli(*create)
        self.becomes_clean()

    def pools(self):
        return {record["name"]: record for record in self.etcd.records("/atoll/pools/").values()}

    def becomes_clean(self, seconds=CLEAN_SECONDS_MAX):
        """Waits until all is well and every PG has all its members, with different shards; returns the seconds."""
        started = time.monotonic()

        def is_clean():
            for host in self.all_hosts:
                if not host.healthy():
                    raise NotYet(f"a process of {host.name} is not well: {host.process_ids()}")
            with not_yet(CommandFailed):
                health = self.json("health", ok=(0, 1, 2))
            if not is_well(health):
                raise NotYet(told(health))
            redundancy = {pool["id"]: pool["redundancy"] for pool in self.pools().values()}
            for key, record in self.etcd.records("/atoll/pgs/").items():
                wanted = redundancy[int(key.rsplit("/", 1)[1].split(".")[0])]
                count = wanted["size"] if wanted["kind"] == "replicated" else DATA + PARITY
                is_whole = record["activated_epoch"] == record["epoch"] and len(set(record["members"])) == count
                if wanted["kind"] != "replicated":
                    is_whole &= sorted(record["shards"]) == list(range(count))
                if not is_whole:
                    raise NotYet(f"{key}: {record}")
            return True

        wait_for("the cluster is clean", is_clean, seconds, 0.3)
        return time.monotonic() - started

    def device(self, host):
        return next(host.data.glob("osd-*")) / "device"

    @contextlib.contextmanager
    def osds_away(self, hosts):
        """Their OSDs are killed, and are restarted only at the end; gateways and NBD servers stay."""
        with stopped(*(host.process_ids()["supervisor"] for host in hosts)):
            for host in hosts:
                host.kill(next(name for name in host.children() if name.startswith("osd.")))
            yield

    def erasure_coded(self):
        return {pool["id"] for pool in self.pools().values() if pool["redundancy"]["kind"] == "erasure"}


class Still:
    """What is written once and read again and again: an image, and objects in both coded pools."""

    def __init__(self, world):
        self.world, rng = world, random.Random(5)
        h1 = world.hosts[0]
        self.image, self.objects = rng.randbytes(STILL_BYTES), {}
        h1.create_image("still", STILL_BYTES, "--pool", POOL)
        with h1.attach("still") as disk:
            for place in range(0, STILL_BYTES, MIB):
                disk.write(place, self.image[place : place + MIB])
        s3 = within(h1.namespace, h1.s3)
        within(h1.namespace, lambda: s3.create_bucket(Bucket="still"))
        within(
            h1.namespace,
            lambda: s3.create_bucket(Bucket="placed", CreateBucketConfiguration={"LocationConstraint": f"pool:{POOL}"}),
        )
        for bucket in ("still", "placed"):
            for length in OBJECT_BYTES:
                body = rng.randbytes(length)
                h1.put(bucket, f"of-{length}", body)
                self.objects[bucket, f"of-{length}"] = hashlib.sha256(body).hexdigest()

    def read_back(self, host):
        """Reads all of it through a host; says how much that was."""
        for (bucket, key), digest in self.objects.items():
            intact(
                hashlib.sha256(host.get(bucket, key)).hexdigest() == digest,
                f"{bucket}/{key} has other bytes on {host.name}",
            )
        with host.attach("still") as disk:
            for place in range(0, STILL_BYTES, MIB):
                found = disk.read(place, MIB)
                if found != self.image[place : place + MIB]:
                    wrong = next(
                        at
                        for at in range(0, MIB, 4096)
                        if found[at : at + 4096] != self.image[place + at : place + at + 4096]
                    )
                    raise DataFailure(f"other bytes at {place + wrong} of the image, read through {host.name}")
        return f"{len(self.objects)} objects and {STILL_BYTES // MIB} MiB of an image read back"


def wiped(world, load, lost, note):
    """Two hosts killed -9, their devices wiped, and started anew: they are filled."""
    began = time.monotonic()
    for host in lost:
        host.kill_all()
        world.device(host).unlink()
    under_load(WIPED_SECONDS)
    started = time.monotonic()
    # A host with servers waits until they serve, for which it takes the other one.
    start_all(lost, lambda host: ["--new-device", world.device(host).parent.name.removeprefix("osd-")])
    for host in lost:
        assert world.device(host).exists(), "there is no new device"
    world.becomes_clean()
    filled = time.monotonic() - started
    load.all_are_answered(time.monotonic())
    found = load.stalls(began)
    note(f"clean {filled:.1f} s after they were started; longest stall: of an object {found[0]}, of a block {found[1]}")
    load.check_bytes()
    assert found[0].seconds < REFILL_STALL_SECONDS_MAX, found[0]


class Damage:
    """One bit flipped in one block of each of many shards on one host, with its OSD stopped."""

    def __init__(self, scenario, world):
        self.host, rng = world.all_hosts[2], random.Random(7)
        self.host.down()
        self.device = world.device(self.host)
        self.image = f"img.{world.json('image', 'info', 'still')['id']}."
        self.blocks = data_blocks(scenario, self.device, world.erasure_coded(), self.image)
        flip_bits(self.device, [rng.choice(offsets) + rng.randrange(4096) for offsets in self.blocks.values()])
        checked = scenario.run(scenario.atoll, "store", "check", "--device", self.device, "--data", "--json", ok=(0, 1))
        self.problems = json.loads(checked.stdout)["problem_count"]
        self.host.start_up()
        wait_for("the host is healthy", self.host.healthy, 30)
        # Reads leave out a member that is not back.
        world.becomes_clean()


def scrubbed(world):
    pgs = world.json("pg", "scrub", "all", "--deep", "--wait", timeout=180, ok=None)
    return {what: sum(pg["scrub"][what] for pg in pgs) for what in ("objects", "errors", "repaired", "unrepaired")}


@pytest.fixture(scope="module")
def world(scenario):
    """Six hosts, an etcd with TLS, and a pool 4+2."""
    world = World(scenario)
    world.start()
    return world


@pytest.fixture(scope="module")
def still(world):
    return Still(world)


@pytest.fixture(scope="module")
def load(scenario, world, still):
    """Clients on three hosts."""
    return HostsLoad(scenario, world, SEED, "--pool", POOL).runs()


@pytest.fixture(scope="module")
def without_two(world, load):
    """The OSDs of two hosts are killed, others than were filled: what is read is computed from what those were
    filled with. Yields when that was, and how many seconds later no PG served any more."""
    away = [world.hosts[1], world.all_hosts[5]]
    with world.osds_away(away):
        began = time.monotonic()

        def none_serves():
            return all(pg["state"] != "active" for pg in world.json("pg", "ls", "--pool", POOL))

        # By then nobody has a lease any more that was given when there were more.
        wait_for("no PG serves", none_serves, 30)
        yield began, time.monotonic() - began


@pytest.fixture(scope="module")
def min_size_4(world, without_two):
    """They serve with four shards. Names of images and indexes of buckets are in pools of three copies."""
    before = {name: pool["redundancy"]["min_size"] for name, pool in world.pools().items()}
    for pool, record in world.pools().items():
        world.cli("pool", "set", pool, "min_size", DATA if record["redundancy"]["kind"] == "erasure" else 1)
    wait_for("all PGs serve", lambda: all(pg["state"] == "active" for pg in world.json("pg", "ls")), 30)
    return before


@pytest.fixture(scope="module")
def ended(load):
    load.finish()
    return load


@pytest.fixture(scope="module")
def damage(scenario, world, still, ended):
    return Damage(scenario, world)


def test_data_is_in_the_pools_that_buckets_name(world, still, note):
    """An image, and objects in both coded pools."""
    pools = world.pools()
    for bucket, pool in (("still", "data"), ("placed", POOL)):
        record = world.etcd.records("/atoll/buckets/")[f"/atoll/buckets/{bucket}"]
        assert record["data_pool"] == pools[pool]["id"], f"{bucket}: {record}"
    note(still.read_back(world.hosts[2]))


def test_two_hosts_are_killed_and_wiped(world, load, note):
    """Two hosts killed -9, their devices wiped, and started anew: they are filled under load."""
    wiped(world, load, world.all_hosts[3:5], note)


def test_nothing_is_lost_of_two_hosts_that_were_wiped(world, load, still, note):
    """Nothing is lost."""
    note(still.read_back(world.hosts[1]))


@pytest.mark.nightly
@pytest.mark.parametrize("number", range(1, ROUNDS))
def test_two_hosts_at_random_are_killed_and_wiped(world, load, still, number, note):
    """The same with two hosts at random, with random min_size; nothing is lost."""
    rng = random.Random(f"{SEED}/{number}")
    world.cli("pool", "set", POOL, "min_size", rng.choice((DATA, DATA + 1)))
    # fio is on the third host and does not connect twice.
    wiped(world, load, rng.sample([host for host in world.all_hosts if host is not world.hosts[2]], 2), note)
    note(still.read_back(world.hosts[1]))
    world.cli("pool", "set", POOL, "min_size", DATA + 1)


@pytest.mark.nightly
def test_all_pgs_split_under_load(world, load, note):
    """'pool set pg_num': all PGs split under load."""
    began = time.monotonic()
    world.cli("pool", "set", POOL, "pg_num", 2 * GROUPS)
    wait_for("all PGs are there", lambda: len(world.json("pg", "ls", "--pool", POOL)) == 2 * GROUPS, 30)
    seconds = world.becomes_clean()
    load.all_are_answered(time.monotonic())
    found = load.stalls(began)
    note(f"clean after {seconds:.1f} s; longest stall: of an object {found[0]}, of a block {found[1]}")
    load.check_bytes()
    assert found[0].seconds < STALL_SECONDS_MAX, found[0]


@pytest.mark.nightly
def test_nothing_is_lost_after_the_split(world, load, still, note):
    """After the split nothing is lost."""
    note(still.read_back(world.hosts[2]))


@pytest.mark.nightly
def test_with_min_size_5_io_stops_by_policy_without_two(world, load, without_two, note):
    """The OSDs of two hosts killed: with min_size 5 I/O stops by policy, and health says so."""
    pools = world.pools()
    assert pools[POOL]["redundancy"]["min_size"] == pools["data"]["redundancy"]["min_size"] == DATA + 1, f"{pools}"
    under_load(1)
    answered = time.monotonic()
    under_load(2)
    late = [client.name for client in load.registers.blocks if client.answered_at() > answered]
    assert not late, f"{late} were answered all the same"
    health = world.json("health", ok=None)
    assert health["status"] != "ok", f"{health}"
    codes = ", ".join(sorted(problem["code"] for problem in health["problems"]))
    note(f"after {without_two[1]:.1f} s; health: {codes}")


@pytest.mark.nightly
def test_with_min_size_4_it_goes_on_with_two_shards_missing(load, without_two, min_size_4, note):
    """min_size 4: it goes on with two shards missing."""
    load.all_are_answered(time.monotonic(), 30)
    found = load.stalls(without_two[0])
    note(f"longest stall since the OSDs were killed: of an object {found[0]}, of a block {found[1]}")
    load.check_bytes()


@pytest.mark.nightly
def test_reads_are_computed_from_the_shards_that_are_left(world, still, load, min_size_4, note):
    """Reads are computed from the shards that are left."""
    note(still.read_back(world.hosts[0]))


@pytest.mark.nightly
def test_two_hosts_that_were_away_are_brought_up_to_date(world, load, min_size_4, note):
    """They are started again and get what they have missed."""
    for host in (world.hosts[1], world.all_hosts[5]):
        os.kill(host.process_ids()["supervisor"], signal.SIGCONT)
    note(f"clean after {world.becomes_clean():.1f} s")
    for pool, min_size in min_size_4.items():
        world.cli("pool", "set", pool, "min_size", min_size)
    world.becomes_clean()
    load.all_are_answered(time.monotonic())
    load.check_bytes()


def test_the_load_ends_and_no_client_hangs(ended, note):
    """The load ends, and no client hangs."""
    note(ended.counts())


def test_the_history_of_every_register_is_linearizable(ended):
    """The history of every register is linearizable."""
    ended.check_histories()


def test_fio_verifies_what_it_wrote(ended):
    """fio has verified all that it wrote, and verifies it once more."""
    ended.fio.verify()


def test_every_acknowledged_upload_is_there(ended):
    """Every acknowledged upload is there, read through another host."""
    ended.check_uploads()


def test_all_shards_fit_together(world, ended, note):
    """All shards and copies of everything fit together: a deep scrub finds nothing."""
    found = scrubbed(world)
    intact(found["errors"] == 0, f"{found}")
    note(f"{found['objects']} objects")


def test_no_process_has_panicked(scenario, ended):
    """No process has panicked."""
    scenario.no_panic()


@pytest.mark.nightly
def test_store_check_finds_all_flipped_bits(damage, note):
    """A bit flipped in one block of each of many shards: 'atoll store check' finds each."""
    assert any(name.startswith(damage.image) for _, name in damage.blocks), f"nothing of {damage.image} is there"
    assert len(damage.blocks) > 20, f"only {len(damage.blocks)} shards with data were found"
    assert damage.problems == len(damage.blocks), f"{damage.problems} problems of {len(damage.blocks)}"
    note(f"{len(damage.blocks)} shards")


@pytest.mark.nightly
def test_everything_is_read_as_it_was_written_with_damaged_shards(world, still, damage, note):
    """Everything is read as it was written."""
    said = still.read_back(damage.host)
    lines = [line for host in world.all_hosts for line in host.log_text().splitlines()]
    rebuilt = [line for line in lines if "; using the others" in line]
    assert rebuilt, "no shard that was read was a damaged one"
    note(f"{said}, {len(rebuilt)} shards computed from others")


@pytest.mark.nightly
def test_a_deep_scrub_repairs_what_nobody_has_read(world, damage, note):
    """A deep scrub repairs what nobody has read, and the next one finds nothing."""
    first, second = scrubbed(world), scrubbed(world)
    note(f"{first['errors']} errors, {first['repaired']} repaired; then {second['errors']}")
    assert 0 < first["errors"] <= len(damage.blocks), f"{first}"
    assert first["repaired"] == first["errors"] and not first["unrepaired"], f"{first}"
    intact(second["errors"] == 0, f"{second}")


@pytest.mark.nightly
def test_the_store_checks_after_the_repair(scenario, world, still, damage, note):
    """The store checks, and all is there with the damaged OSD as one of those that are left."""
    damage.host.down()
    scenario.run(
        scenario.atoll, "store", "check", "--device", damage.device, "--data", timeout=120, failure=DataFailure
    )
    damage.host.start_up()
    world.becomes_clean()
    with world.osds_away(world.all_hosts[5:]):
        note(still.read_back(world.hosts[0]))
