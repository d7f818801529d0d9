"""What happens to the cluster under the writers: each kind once, in a random order, again and again."""

import contextlib
import os
import pathlib
import signal
import subprocess
import threading
import time

from botocore.exceptions import BotoCoreError, ClientError
from lib.net import stopped
from lib.processes import is_alive
from lib.search import data_of
from lib.verdicts import intact
from lib.waiting import Failed, under_load, wait_for

MIB = 1 << 20
STOPPED_SECONDS_MAX = 12
PG_NUM_MAX = 64
FILLERS = 4
REFUSALS_IN_A_ROW = 3
FILL_SECONDS_MAX = 120
FULL_SECONDS = 4


class Faults:
    """The kinds of faults are the methods without an underscore. Each returns a word about what it did."""

    def __init__(self, world, rng, only=()):
        self.world, self.cluster, self.rng = world, world.cluster, rng
        kinds = [name for name in vars(Faults) if not name.startswith("_") and name != "next"]
        unknown = set(only) - set(kinds)
        if unknown:
            raise SystemExit(f"no fault is called {', '.join(sorted(unknown))}; there are {', '.join(kinds)}")
        self._kinds, self._bag, self._copies = list(only) or kinds, [], {}

    def next(self):
        """The next kind."""
        if not self._bag:
            self._bag = self.rng.sample(self._kinds, len(self._kinds))
        return self._bag.pop()

    def _osd(self):
        return f"osd.{self.rng.randrange(len(self.world.devices))}"

    def _kill(self, *names):
        pids = {name: self.cluster.kill(name) for name in names}
        for name, pid in pids.items():
            self.cluster.restarted(name, pid)
        return " and ".join(names)

    # --- processes

    def kill_osd(self):
        return self._kill(self._osd())

    def kill_osd_again_and_again(self):
        name = self._osd()
        for _ in range(3):
            self._kill(name)
        return name

    def kill_two_osds(self):
        return self._kill(*self.rng.sample([f"osd.{number}" for number in range(len(self.world.devices))], 2))

    def kill_gateway(self):
        return self._kill("gateway")

    def kill_second_gateway(self):
        self.world.second.kill()
        self.world.second.start()

    def kill_nbd(self):
        return self._kill("nbd")

    def kill_cluster_state(self):
        return self._kill("cluster-state")

    def kill_everything(self):
        self.cluster.kill_all()
        seconds = self.cluster.up(timeout=180)
        self.world.second.start()
        return f"up again after {seconds:.1f} s"

    def stop_osd(self):
        return self._stop(self._osd())

    def stop_gateway(self):
        return self._stop("gateway")

    def stop_nbd(self):
        return self._stop("nbd")

    def _stop(self, name):
        seconds = self.rng.uniform(0.5, STOPPED_SECONDS_MAX)
        with stopped(self.cluster.process_ids()[name]):
            under_load(seconds)
        return f"{name} for {seconds:.1f} s"

    # --- what operators do

    def split(self):
        pools = [pool for pool in self.cluster.json("pool", "ls") if pool["pg_num"] * 2 <= PG_NUM_MAX]
        if not pools:
            return "all pools have PGs enough"
        pool = self.rng.choice(pools)
        self.cluster.cli("pool", "set", pool["name"], "pg_num", pool["pg_num"] * 2, timeout=120)
        return f"{pool['name']} to {pool['pg_num'] * 2} PGs"

    def scrub(self):
        self.world.becomes_clean()
        return f"{self.world.scrub()} objects"

    def fill(self):
        """The devices, with objects of its own, until nothing more is taken; then these are deleted."""
        filler = Filler(self.cluster.s3(read_timeout=60), self.world.fill_bucket)
        try:
            said = filler.fill()
            under_load(FULL_SECONDS)
        finally:
            filler.empty()
        return said

    # --- devices

    def copy_device(self):
        """A copy of a device, as its OSD left it when it was killed: a backup."""
        name = self._osd()
        with self._away(name) as device:
            copy = self.world.scenario.directory / f"{name}.copy"
            subprocess.run(["cp", "--sparse=always", device, copy], check=True)
        self._copies[name] = (copy, time.monotonic())
        return name

    def old_device(self):
        """The copy is put back, while the other devices are whole: what the OSD has is old."""
        if not self._copies:
            self.copy_device()
            under_load(3)
        name = self.rng.choice(sorted(self._copies))
        copy, made_at = self._copies.pop(name)
        self.world.becomes_clean()
        with self._away(name) as device:
            subprocess.run(["cp", "--sparse=always", copy, device], check=True)
        age = time.monotonic() - made_at
        copy.unlink()
        self.world.becomes_clean()
        return f"{name}, {age:.0f} s old"

    def old_device_after_a_power_cut(self):
        """Everything is killed at once, and started with an older copy of one device. The copy was made while the OSD
        stood still for a moment, so that no PG has another epoch since: that does not tell that the copy is old."""
        self.world.becomes_clean()
        name = self._osd()
        device = pathlib.Path(self.world.devices[int(name.split(".")[1])])
        copy = self.world.scenario.directory / f"{name}.copy-of-moment"
        subprocess.run(["cp", "--sparse=always", device, copy], check=True)
        with stopped(self.cluster.process_ids()[name]):
            bring_up_to_date(copy, device)
        made_at = time.monotonic()
        under_load(self.rng.uniform(1, 8))
        self.world.becomes_clean()
        self.cluster.kill_all()
        subprocess.run(["cp", "--sparse=always", copy, device], check=True)
        age = time.monotonic() - made_at
        copy.unlink()
        self.cluster.up(timeout=180)
        self.world.second.start()
        self.world.becomes_clean()
        return f"{name}, {age:.0f} s old"

    @contextlib.contextmanager
    def _away(self, name):
        """An OSD is killed, and not started again before the end."""
        pids = self.cluster.process_ids()
        with stopped(pids["supervisor"]):
            os.kill(pids[name], signal.SIGKILL)
            wait_for(f"{name} has ended", lambda: not is_alive(pids[name]), 10, 0.02)
            yield pathlib.Path(self.world.devices[int(name.split(".")[1])])
        self.cluster.restarted(name, pids[name])


def bring_up_to_date(copy, device):
    """Copies what has changed in a device since the copy was made."""
    with open(device, "rb") as source, open(copy, "r+b") as target:
        for place, _ in data_of(device):
            length = 16 * MIB
            now, before = (os.pread(file.fileno(), length, place) for file in (source, target))
            if now != before:
                os.pwrite(target.fileno(), now, place)


class Filler:
    """Objects that are in nobody's way but by their size."""

    def __init__(self, s3, bucket):
        self.s3, self.bucket, self.lock = s3, bucket, threading.Lock()
        self.number = self.refusals = 0
        self.body = os.urandom(8 * MIB)

    def fill(self):
        deadline = time.monotonic() + FILL_SECONDS_MAX
        threads = [threading.Thread(target=self.work, args=[deadline], daemon=True) for _ in range(FILLERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return f"{self.number} objects, {self.refusals} refused"

    def work(self, deadline):
        in_a_row = 0
        while in_a_row < REFUSALS_IN_A_ROW and time.monotonic() < deadline:
            with self.lock:
                self.number += 1
                key = f"{self.number:06}"
            try:
                self.s3.put_object(Bucket=self.bucket, Key=key, Body=self.body)
                in_a_row = 0
            except (ClientError, BotoCoreError, OSError):
                in_a_row += 1
                self.refusals += 1

    def empty(self):
        deadline = time.monotonic() + 120
        for number in range(1, self.number + 1):
            self.delete(f"{number:06}", deadline)

    def delete(self, key, deadline):
        while True:
            try:
                return self.s3.delete_object(Bucket=self.bucket, Key=key)
            except (ClientError, BotoCoreError, OSError) as error:
                if time.monotonic() > deadline:
                    raise Failed(f"a full cluster does not delete: {error}") from None
                time.sleep(0.5)


def no_damage(pgs):
    """What a scrub has found: nothing; returns how many objects it has looked at."""
    bad = [pg for pg in pgs if pg["scrub"]["errors"]]
    intact(not bad, f"a scrub has found damage: {bad}")
    return sum(pg["scrub"]["objects"] for pg in pgs)
