#!/usr/bin/env python3
"""Erasure-coded pools, 4+2 on six hosts and an etcd in network namespaces: two hosts killed and their devices wiped
under checked load, reads and writes with two others away, groups that split, and bytes flipped on a device.

    ATOLL_E2E_ROUNDS=N   times that two hosts are wiped; from the second time on, at random and with random min_size
    ATOLL_E2E_SEED=N     what is random (1)
"""
import contextlib, hashlib, json, os, random, signal, threading, time

from harness import MIB, expect, main, wait_for
from hostile import dump
from namespaces import ETCD_IP, NETWORK, Etcd, Host, Namespaces, within
from partitions import Load, nothing_is_lost
from registers import longest

DATA, PARITY = 4, 2
# Of images. Data of S3 is in the pool that 'atoll up --ec' makes, and in one bucket in this one.
POOL, GROUPS = "disks", 16
HOSTS = [f"h{number}" for number in range(1, DATA + PARITY + 1)]
# The others run OSDs only.
SERVERS = 3
CLEAN_SECONDS_MAX = 90
# With fewer than min_size shards I/O waits by policy, until devices that were wiped are filled.
REFILL_STALL_SECONDS_MAX = 30
STALL_SECONDS_MAX = 15
STILL_BYTES = 24 * MIB
STRIPE_BYTES = DATA * 65536
# Around the limits of chunks, of rows of chunks, and of the pieces of an upload.
OBJECT_BYTES = (1, 65_535, 65_537, STRIPE_BYTES - 1, STRIPE_BYTES, STRIPE_BYTES + 4097, MIB + 7, 4 * MIB, 5 * MIB + 11)


class World:
    """The hosts, each with one OSD, and their etcd."""

    def __init__(self, test, namespaces):
        self.test = test
        self.etcd = Etcd(test, namespaces.add_host("etcd", ETCD_IP), HOSTS)
        self.all_hosts = [Host(test, namespaces.add_host(name, f"{NETWORK}.{n + 1}"), name, f"{NETWORK}.{n + 1}") for n, name in enumerate(HOSTS)]
        self.hosts = self.all_hosts[:SERVERS]
        self.cli = self.hosts[0].cli

    def json(self, *arguments, **options):
        return json.loads(self.cli(*arguments, "--json", **options).stdout)

    def start(self):
        self.etcd.start()
        h1 = self.hosts[0]
        h1.start_up("--etcd", self.etcd.url, "--etcd-ca", self.etcd.directory / "ca.pem", *self.etcd.client("h1"),
                    "--failure-domain", "host", "--ec", f"{DATA}+{PARITY}", "--osds", "1", "--osd-size", "4G")
        create = ["pool", "create", POOL, "--ec", f"{DATA}+{PARITY}", "--pg-num", GROUPS, "--failure-domain", "host"]
        early = self.cli(*create, ok=(1,))
        expect("'images' is made first" in early.stderr, early.stderr)
        for host in self.all_hosts[1:]:
            server = host in self.hosts
            token = self.json("cluster", "token", "create", *([] if server else ["--role", "osd"]))["token"]
            keys = ["--key-service", h1.data / "keys" / "kms.json"] if server else []
            host.start_up("--join", token, *self.etcd.client(host.name), "--osds", "1", "--osd-size", "4G", *keys)
        # The first host makes the first pools, now that there are hosts enough.
        wait_for("there are the first pools", lambda: {"images", "objects", "data"} <= self.pools().keys(), 60)
        self.cli(*create)
        self.becomes_clean()

    def pools(self):
        return {record["name"]: record for record in self.etcd.records("/atoll/pools/").values()}

    def becomes_clean(self, seconds=CLEAN_SECONDS_MAX):
        """Waits until all is well, and every group has all its members, with different shards; returns the seconds that took."""
        started = time.monotonic()

        def is_clean():
            for host in self.all_hosts:
                expect(host.healthy(), f"a process of {host.name} is not well: {host.process_ids()}")
            health = self.json("health", ok=None)
            expect(health["status"] == "ok", "; ".join(f"{p['code']}: {p['summary']} {p['subjects'][:6]}" for p in health["problems"]))
            redundancy = {pool["id"]: pool["redundancy"] for pool in self.pools().values()}
            for key, record in self.etcd.records("/atoll/pgs/").items():
                wanted = redundancy[int(key.rsplit("/", 1)[1].split(".")[0])]
                count = wanted["size"] if wanted["kind"] == "replicated" else DATA + PARITY
                expect(record["activated_epoch"] == record["epoch"] and len(set(record["members"])) == count, f"{key}: {record}")
                expect(wanted["kind"] == "replicated" or sorted(record["shards"]) == list(range(count)), f"{key}: {record}")
            return True

        wait_for("the cluster is clean", is_clean, seconds, 0.3)
        return time.monotonic() - started

    def device(self, host):
        return next(host.data.glob("osd-*")) / "device"

    @contextlib.contextmanager
    def osds_away(self, hosts):
        """Their OSDs are killed, and are restarted only at the end; gateways and NBD servers stay."""
        supervisors = [host.process_ids()["supervisor"] for host in hosts]
        for pid in supervisors:
            os.kill(pid, signal.SIGSTOP)
        try:
            for host in hosts:
                host.kill(next(name for name in host.children() if name.startswith("osd.")))
            yield
        finally:
            for pid in supervisors:
                os.kill(pid, signal.SIGCONT)


class Still:
    """What is written once and read again and again: an image, and objects in both coded pools."""

    def __init__(self, world):
        self.world, rng = world, random.Random(5)
        h1 = world.hosts[0]
        self.image, self.objects = rng.randbytes(STILL_BYTES), {}
        h1.create_image("still", STILL_BYTES, "--pool", POOL)
        with h1.attach("still") as disk:
            for place in range(0, STILL_BYTES, MIB):
                disk.write(place, self.image[place:place + MIB])
        s3 = within(h1.namespace, h1.s3)
        within(h1.namespace, lambda: s3.create_bucket(Bucket="still"))
        within(h1.namespace, lambda: s3.create_bucket(Bucket="placed", CreateBucketConfiguration={"LocationConstraint": f"pool:{POOL}"}))
        for bucket in ("still", "placed"):
            for length in OBJECT_BYTES:
                body = rng.randbytes(length)
                h1.put(bucket, f"of-{length}", body)
                self.objects[bucket, f"of-{length}"] = hashlib.sha256(body).hexdigest()

    def read_back(self, host):
        """Reads all of it through a host; says how much that was."""
        for (bucket, key), digest in self.objects.items():
            expect(hashlib.sha256(host.get(bucket, key)).hexdigest() == digest, f"{bucket}/{key} has other bytes on {host.name}")
        with host.attach("still") as disk:
            for place in range(0, STILL_BYTES, MIB):
                found = disk.read(place, MIB)
                if found != self.image[place:place + MIB]:
                    wrong = next(at for at in range(0, MIB, 4096) if found[at:at + 4096] != self.image[place + at:place + at + 4096])
                    expect(False, f"other bytes at {place + wrong} of the image, read through {host.name}")
        return f"{len(self.objects)} objects and {STILL_BYTES // MIB} MiB of an image read back"


def stalls(load, since, until=None):
    until = until or time.monotonic()
    return [longest(clients, since, until) for clients in (load.registers.objects, load.registers.blocks)]


def all_are_answered(load, after, seconds=15):
    wait_for("every client is answered", lambda: all(client.answered_at() > after for client in load.registers.clients), seconds)


def no_wrong_bytes(load):
    wrong = load.registers.wrong()
    expect(not wrong, "\n".join(wrong[:5]))


def wiped(test, world, load, still, lost):
    with test.step(f"{lost[0].name} and {lost[1].name} killed -9, their devices wiped, and started anew: they are filled", fatal=True) as note:
        began = time.monotonic()
        for host in lost:
            host.kill_all()
            world.device(host).unlink()
        time.sleep(2)
        started = time.monotonic()
        # A host with servers waits until they serve, for which it takes the other one.
        starts = [threading.Thread(target=host.start_up) for host in lost]
        for start in starts:
            start.start()
        for start, host in zip(starts, lost):
            start.join()
            expect(world.device(host).exists(), "there is no new device")
        world.becomes_clean()
        filled = time.monotonic() - started
        all_are_answered(load, time.monotonic())
        found = stalls(load, began)
        note(f"clean {filled:.1f} s after they were started; longest stall: of an object {found[0]}, of a block {found[1]}")
        no_wrong_bytes(load)
        expect(found[0].seconds < REFILL_STALL_SECONDS_MAX, note.text)
    with test.step("nothing is lost") as note:
        note(still.read_back(world.hosts[1]))


def split(test, world, load, still):
    with test.step(f"pool set {POOL} pg_num {2 * GROUPS}: all groups split under load", fatal=True) as note:
        began = time.monotonic()
        world.cli("pool", "set", POOL, "pg_num", 2 * GROUPS)
        wait_for("all groups are there", lambda: len(world.json("pg", "ls", "--pool", POOL)) == 2 * GROUPS, 30)
        seconds = world.becomes_clean()
        all_are_answered(load, time.monotonic())
        found = stalls(load, began)
        note(f"clean after {seconds:.1f} s; longest stall: of an object {found[0]}, of a block {found[1]}")
        no_wrong_bytes(load)
        expect(found[0].seconds < STALL_SECONDS_MAX, note.text)
    with test.step("after the split nothing is lost") as note:
        note(still.read_back(world.hosts[2]))


def two_away(test, world, load, still):
    """Others than were filled: what is read is computed from what they were filled with."""
    away, before = [world.hosts[1], world.all_hosts[5]], {name: pool["redundancy"]["min_size"] for name, pool in world.pools().items()}
    expect(before[POOL] == before["data"] == DATA + 1, f"{before}")
    with world.osds_away(away):
        with test.step(f"the OSDs of {away[0].name} and {away[1].name} killed: with min_size {DATA + 1} I/O stops by policy", fatal=True) as note:
            began = time.monotonic()
            # By then nobody has a lease any more that was given when there were more.
            wait_for("no group serves", lambda: all(group["state"] != "active" for group in world.json("pg", "ls", "--pool", POOL)), 30)
            seconds = time.monotonic() - began
            time.sleep(1)
            answered = time.monotonic()
            time.sleep(2)
            late = [client.name for client in load.registers.blocks if client.answered_at() > answered]
            expect(not late, f"{late} were answered all the same")
            health = world.json("health", ok=None)
            expect(health["status"] != "ok", f"{health}")
            note(f"after {seconds:.1f} s; health: {', '.join(sorted(problem['code'] for problem in health['problems']))}")
        with test.step(f"min_size {DATA}: it goes on with two shards missing", fatal=True) as note:
            set_at = time.monotonic()
            for pool, record in world.pools().items():
                # Names of images and indexes of buckets are in pools of three copies.
                world.cli("pool", "set", pool, "min_size", DATA if record["redundancy"]["kind"] == "erasure" else 1)
            wait_for("all groups serve", lambda: all(group["state"] == "active" for group in world.json("pg", "ls")), 30)
            all_are_answered(load, time.monotonic(), 30)
            note(f"all clients are answered {time.monotonic() - set_at:.1f} s later; longest stall since the OSDs were killed: "
                 "of an object {}, of a block {}".format(*stalls(load, began)))
            no_wrong_bytes(load)
        with test.step("reads are computed from the shards that are left", fatal=True) as note:
            note(still.read_back(world.hosts[0]))
    with test.step("they are started again and become level", fatal=True) as note:
        note(f"clean after {world.becomes_clean():.1f} s")
        for pool, min_size in before.items():
            world.cli("pool", "set", pool, "min_size", min_size)
        world.becomes_clean()
        all_are_answered(load, time.monotonic())
        no_wrong_bytes(load)


def data_blocks(test, device, pool_ids, first, objects_max=40):
    """Where on a device are data blocks of objects in these pools, of those with a certain beginning of their names and of
    some others: lists of offsets, by (group, object)."""
    held = [record for record in dump(test, device)
            if record["record"] == "object" and record["blocks"] and int(record["pg"].split(".")[0]) in pool_ids]
    random.Random(6).shuffle(held)
    held.sort(key=lambda record: not record["object"].startswith(first))
    found = {}
    for of in held[:objects_max]:
        offsets = [(extent["device_block"] + index) * 4096 for record in dump(test, device, "--pg", of["pg"], "--object", of["object"])
                   for extent in record.get("extents", ()) for index in range(len(extent["crcs"]))]
        if offsets:
            found[of["pg"], of["object"]] = offsets
    return found


def scrubbed(world):
    groups = world.json("pg", "scrub", "all", "--deep", "--wait", timeout=180, ok=None)
    return {what: sum(group["scrub"][what] for group in groups) for what in ("objects", "errors", "repaired", "unrepaired")}


def damage(test, world, still):
    damaged = world.all_hosts[2]
    with test.step(f"a bit flipped in one block of each of many shards on {damaged.name}, with its OSD stopped", fatal=True) as note:
        damaged.down()
        device, rng = world.device(damaged), random.Random(7)
        pools = {pool["id"] for pool in world.pools().values() if pool["redundancy"]["kind"] == "erasure"}
        image = f"img.{world.json('image', 'info', 'still')['id']}."
        blocks = data_blocks(test, device, pools, image)
        expect(any(name.startswith(image) for _, name in blocks), f"nothing of {image} is there")
        expect(len(blocks) > 20, f"only {len(blocks)} shards with data were found")
        with open(device, "r+b") as file:
            for offsets in blocks.values():
                place = rng.choice(offsets) + rng.randrange(4096)
                byte = os.pread(file.fileno(), 1, place)[0]
                os.pwrite(file.fileno(), bytes([byte ^ 1 << rng.randrange(8)]), place)
            os.fsync(file.fileno())
        checked = json.loads(test.run(test.atoll, "store", "check", "--device", device, "--data", "--json", ok=(1,)).stdout)
        expect(checked["problem_count"] == len(blocks), f"{checked['problem_count']} problems of {len(blocks)}")
        damaged.start_up()
        note(f"{len(blocks)} shards")
    with test.step("everything is read as it was written") as note:
        wait_for("the host is healthy", damaged.healthy, 30)
        said = still.read_back(damaged)
        rebuilt = [line for host in world.all_hosts for line in host.log_text().splitlines() if "; using the others" in line]
        expect(rebuilt, "no shard that was read was a damaged one")
        note(f"{said}, {len(rebuilt)} shards computed from others")
    with test.step("a deep scrub repairs what nobody has read, and the next one finds nothing") as note:
        first, second = scrubbed(world), scrubbed(world)
        note(f"{first['errors']} errors, {first['repaired']} repaired; then {second['errors']}")
        expect(0 < first["errors"] <= len(blocks) and first["repaired"] == first["errors"] and not first["unrepaired"], f"{first}")
        expect(second["errors"] == 0, f"{second}")
    with test.step("the store checks, and all is there with the damaged OSD as one of those that are left") as note:
        damaged.down()
        test.run(test.atoll, "store", "check", "--device", device, "--data", timeout=120)
        damaged.start_up()
        world.becomes_clean()
        with world.osds_away(world.all_hosts[5:]):
            note(still.read_back(world.hosts[0]))


def scenario(test):
    test.need(("ip", "iproute2"), ("etcd", "etcd-server"), ("etcdctl", "etcd-client"), ("openssl", "openssl"), ("fio", "fio"))
    if os.geteuid() != 0:
        return test.skip("six hosts", "network namespaces need root")
    namespaces = Namespaces(test)
    try:
        on_six_hosts(test, World(test, namespaces))
    finally:
        for cluster in test.clusters:
            cluster.kill_all()
        namespaces.remove_all()


def on_six_hosts(test, world):
    seed = int(os.environ.get("ATOLL_E2E_SEED", "1"))
    with test.step(f"six hosts, an etcd with TLS, and a pool {DATA}+{PARITY}", fatal=True) as note:
        world.start()
        note(f"{len(world.json('pg', 'ls'))} groups")
    with test.step("an image, and objects in both coded pools", fatal=True) as note:
        still, pools = Still(world), world.pools()
        for bucket, pool in (("still", "data"), ("placed", POOL)):
            record = world.etcd.records("/atoll/buckets/")[f"/atoll/buckets/{bucket}"]
            expect(record["data_pool"] == pools[pool]["id"], f"{bucket}: {record}")
        note(still.read_back(world.hosts[2]))
    with test.step("clients on three hosts", fatal=True) as note:
        load = Load(test, world, seed, "--pool", POOL)
        wait_for("all clients are answered", lambda: all(len(client.outcomes) > 20 for client in load.registers.clients) and load.acked() > 20)
        note(f"seed {seed}")
    wiped(test, world, load, still, world.all_hosts[3:5])
    for number in range(1, int(os.environ.get("ATOLL_E2E_ROUNDS", test.scale))):
        rng = random.Random(f"{seed}/{number}")
        world.cli("pool", "set", POOL, "min_size", rng.choice((DATA, DATA + 1)))
        # fio is on the third host and does not connect twice.
        wiped(test, world, load, still, rng.sample([host for host in world.all_hosts if host is not world.hosts[2]], 2))
    world.cli("pool", "set", POOL, "min_size", DATA + 1)
    split(test, world, load, still)
    two_away(test, world, load, still)
    nothing_is_lost(test, world, load)
    damage(test, world, still)


if __name__ == "__main__":
    main(scenario)
