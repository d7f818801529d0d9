#!/usr/bin/env python3
"""A checker for a real cluster: sixteen writers, one fault after the other, and then everything that was acknowledged
is compared.

    make chaos                                    5 minutes
    make chaos MINUTES=60
    tests/chaos/chaos.py --atoll target/ci/atoll --seed 4711 --faults kill_osd,split

Four OSDs of 2 GiB, two of which are LUKS2 volumes, a pool with three copies, and one with an erasure code of 2+1. Exit
codes: 0 nothing is wrong; 1 something that was acknowledged is lost, wrong or seen as it never was, or a process has
panicked; 2 the cluster stood still, or this program failed.
"""

import argparse
import json
import pathlib
import random
import signal
import sys
import time
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))

from faults import Faults, no_damage
from images import ImageWriter
from lib.gateway import Gateway
from lib.operator import told
from lib.scenario import Scenario, add_arguments
from lib.verdicts import DataFailure, Final, intact
from lib.waiting import CommandFailed, Failed, NotYet, not_yet, wait_for
from objects import ObjectWriter, VersionWriter
from registers import Registers, RegisterWriter

PLAIN, ENCRYPTED = 2, 2
COPIES, CODED = "objects", "coded"
GOES_ON_SECONDS_MAX = 90
CLEAN_SECONDS_MAX = 240
END_SECONDS_MAX = 120
PAUSE_SECONDS_MAX = 6


class World:
    """The cluster and its writers."""

    def __init__(self, scenario, seed):
        self.scenario, self.fill_bucket = scenario, "fill"
        self.cluster = scenario.cluster(osds=PLAIN + ENCRYPTED)
        # Room that was given back comes back soon.
        self.cluster.variables["ATOLL_GARBAGE_GRACE_SECONDS"] = "20"
        self.devices = [self.create_osd(number) for number in range(PLAIN + ENCRYPTED)]
        self.cluster.up()
        self.cluster.cli("pool", "create", CODED, "--ec", "2+1", "--pg-num", "8")
        self.second = Gateway(self.cluster)
        wait_for("the second gateway serves", self.second.is_serving, 30)
        self.gateways = [self.cluster.s3(read_timeout=45), self.second.s3(read_timeout=45)]
        self.make_buckets()
        self.registers = [Registers(f"registers-{pool}") for pool in (COPIES, CODED)]
        self.writers = self.make_writers(seed)

    def create_osd(self, number):
        device = self.scenario.directory / f"device-{number}"
        encryption = ["--encrypt", "--kms"] if number >= PLAIN else []
        self.cluster.cli("osd", "create", "--device", device, "--size", "2G", *encryption)
        return device

    def make_buckets(self):
        s3 = self.gateways[0]
        s3.create_bucket(Bucket=self.fill_bucket)
        for pool in (COPIES, CODED):
            place = {} if pool == COPIES else {"CreateBucketConfiguration": {"LocationConstraint": f"pool:{pool}"}}
            for kind in ("plain", "versions", "registers"):
                s3.create_bucket(Bucket=f"{kind}-{pool}", **place)
            enabled = {"Status": "Enabled"}
            s3.put_bucket_versioning(Bucket=f"versions-{pool}", VersioningConfiguration=enabled)

    def make_writers(self, seed):
        both, made = (COPIES, CODED), []
        for number in range(4):
            made.append(ObjectWriter(f"o{number}", seed, self.gateways[number // 2], f"plain-{both[number % 2]}"))
            registers = self.registers[number // 2]
            made.append(RegisterWriter(f"r{number}", seed, self.gateways[number % 2], registers))
        for number in range(4):
            made.append(VersionWriter(f"v{number}", seed, self.gateways[number // 2], f"versions-{both[number % 2]}"))
            name = f"image-{number}"
            sealing = ["--sealing", "off"] if number == 3 else []
            self.cluster.create_image(name, "8M", "--pool", ("images", CODED)[number % 2], *sealing)
            made.append(ImageWriter(name, seed, self.cluster))
        return made

    def start(self):
        for writer in self.writers:
            writer.acked_at = time.monotonic()
            writer.thread.start()
        self.goes_on()

    def stop(self):
        for writer in self.writers:
            writer.stopping.set()
        deadline = time.monotonic() + END_SECONDS_MAX
        for writer in self.writers:
            writer.thread.join(max(0, deadline - time.monotonic()))
        hanging = [writer.name for writer in self.writers if writer.thread.is_alive()]
        if hanging:
            raise Failed(f"these hang: {hanging}")

    def goes_on(self):
        """Every writer is answered again, and none has seen anything wrong."""
        since = time.monotonic()

        def all_go_on():
            self.no_problem()
            waiting = [writer.name for writer in self.writers if writer.acked_at < since]
            if waiting:
                raise NotYet(f"no answer to {', '.join(waiting)}")
            return True

        wait_for("every writer goes on", all_go_on, GOES_ON_SECONDS_MAX)
        return time.monotonic() - since

    def no_problem(self):
        for writer in self.writers:
            if writer.error:
                raise Failed(f"{writer.name} has ended:\n{writer.error}")
        problems = [problem for writer in self.writers for problem in writer.problems]
        intact(not problems, f"{len(problems)} problems:\n" + "\n".join(problems[:10]))

    def becomes_clean(self):
        """All PGs have their members, and these have all data."""

        def is_clean():
            with not_yet(CommandFailed):
                health = json.loads(self.cluster.cli("health", "--json", ok=(0, 1, 2)).stdout)
                pgs = self.cluster.json("pg", "ls")
            if health["status"] == "error":
                raise NotYet(told(health))
            unclean = [pg["pg"] for pg in pgs if pg["state"] != "active" or pg["is_degraded"] or pg["is_misplaced"]]
            if unclean:
                raise NotYet(f"{len(unclean)} PGs are not clean, such as {unclean[:5]}; {told(health)}")
            return True

        wait_for("the cluster is clean", is_clean, CLEAN_SECONDS_MAX, 0.5)

    def scrub(self):
        """A deep scrub finds nothing; returns how many objects it has looked at."""
        done = self.cluster.cli("pg", "scrub", "all", "--deep", "--wait", "--json", timeout=300, ok=(0, 1))
        intact(done.stdout, f"the scrub failed: {done.stderr}")
        return no_damage(json.loads(done.stdout))

    def check(self, when):
        """Compares everything that was acknowledged; returns how many things that are."""
        compared = 0
        for number, writer in enumerate(self.writers):
            compared += writer.check(self.gateways[number % 2], when)
        self.no_problem()
        return compared

    def check_histories(self):
        """What was done with every register has an order; returns how much that was."""
        histories = [history for registers in self.registers for history in registers.histories.values()]
        found = [problem for registers in self.registers for problem in registers.problems()]
        (self.scenario.directory / "violations").write_text("\n\n".join(found))
        intact(not found, f"{len(found)} histories are not linearizable:\n" + "\n\n".join(found)[:6000])
        return f"{len(histories)} histories of {sum(map(len, histories))} operations on registers are linearizable"

    def check_stores(self):
        """Of the devices that are no LUKS2 volumes, which `store check` cannot open."""
        for device in self.devices[:PLAIN]:
            check = ("store", "check", "--device", device, "--data")
            self.scenario.run(self.scenario.atoll, *check, timeout=300, failure=DataFailure)


class Log:
    """What happens, with the seconds since the beginning."""

    def __init__(self):
        self.began = time.monotonic()

    def say(self, text):
        print(f"{time.monotonic() - self.began:7.1f} s  {text}", flush=True)


def disturb(world, faults, rng, until, log):
    """One fault after the other, after each of which every writer goes on."""
    while time.monotonic() < until:
        kind = faults.next()
        began = time.monotonic()
        said = getattr(faults, kind)()
        took = time.monotonic() - began
        log.say(f"{kind}: {said or 'done'} ({took:.1f} s); all go on after {world.goes_on():.1f} s")
        time.sleep(rng.uniform(0, PAUSE_SECONDS_MAX))


def judge(world, log):
    """What must be true at the end."""
    world.stop()
    world.becomes_clean()
    log.say(f"compared at rest: {world.check('at rest')} objects, versions and blocks")
    log.say(f"a deep scrub of {world.scrub()} objects finds nothing")
    log.say(world.check_histories())
    world.second.kill()
    world.cluster.down()
    world.check_stores()
    log.say("stores check")
    world.cluster.up()
    world.second.start()
    wait_for("the second gateway serves", world.second.is_serving, 60)
    log.say(f"compared after a restart: {world.check('after a restart')} objects, versions and blocks")
    log.say(world.check_histories())


def summary(world):
    for writer in world.writers:
        counts = ", ".join(f"{count} {what}" for what, count in sorted(writer.counts.items()))
        yield f"{writer.name}: {counts}; longest silence {writer.slowest:.1f} s"


def run(scenario, arguments, log):
    """Returns the exit code, and whether the directory is worth a look."""
    rng = random.Random(arguments.seed)
    world = World(scenario, arguments.seed)
    try:
        faults = Faults(world, rng, arguments.faults)
        world.start()
        log.say("all writers run")
        disturb(world, faults, rng, log.began + arguments.minutes * 60, log)
        judge(world, log)
        scenario.no_panic()
    except Final as error:
        log.say(f"WRONG: {error}")
        return 1
    except Exception:
        log.say(f"FAILED: {traceback.format_exc()}")
        return 2
    finally:
        for line in summary(world):
            log.say(line)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--faults", type=lambda text: text.split(","), default=[], help="only these, of all kinds")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    log, scenario = Log(), Scenario("chaos", arguments.atoll)
    log.say(f"seed {arguments.seed}, {arguments.minutes:g} minutes")
    code = 2
    try:
        code = run(scenario, arguments, log)
    finally:
        if code:
            print(scenario.trouble(), flush=True)
        scenario.clean_up(keep=code != 0)
    log.say({0: "nothing is wrong", 1: "SOMETHING IS WRONG"}.get(code, "it did not come to its end"))
    sys.exit(code)


if __name__ == "__main__":
    main()
