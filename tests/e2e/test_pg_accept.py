"""Older copies of two of three devices are put back: PGs of which nothing better is left wait for an operator, who is
told what each OSD has and what is lost, and has them go on."""

import json
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from lib.cluster import MIB
from lib.verdicts import intact
from lib.waiting import CommandFailed, wait_for

SIZE, BLOCK = 8 * MIB, 4096
POOLS = {
    "single": ("--size", 1),
    "pair": ("--size", 2, "--min-size", 1),
    "coded": ("--ec", "2+1"),
    "copies": ("--size", 3),
}


class PutBack:
    """An image in each kind of pool. All that was written after the copies were made is known apart."""

    def __init__(self, scenario):
        self.cluster, self.rng = scenario.cluster("accept", osds=3, osd_size="1G"), random.Random(5)
        cluster = self.cluster
        cluster.up()
        for name, options in POOLS.items():
            cluster.cli("pool", "create", name, "--pg-num", 8, *options)
            cluster.create_image(name, SIZE, "--pool", name)
        self.content = {name: bytearray(SIZE) for name in POOLS}
        self.write(150)
        cluster.down()
        devices = [cluster.data / f"osd-{number}" / "device" for number in (0, 1)]
        copies = [scenario.directory / f"older-{number}" for number in (0, 1)]
        for device, copy in zip(devices, copies, strict=True):
            scenario.run("cp", "--sparse=always", device, copy)
        self.older = {name: bytes(content) for name, content in self.content.items()}
        cluster.up()
        self.write(150)
        cluster.down()
        for device, copy in zip(devices, copies, strict=True):
            shutil.move(copy, device)
        # Built-in pools have a good copy.
        cluster.up()
        wait_for("the PGs that can serve do", self.has_settled, 90)
        self.decided = self.waiting()

    def write(self, count):
        for name, content in self.content.items():
            with self.cluster.nbd(name) as disk:
                for _ in range(count):
                    at, data = self.rng.randrange(SIZE // BLOCK) * BLOCK, self.rng.randbytes(BLOCK)
                    disk.write(at, data)
                    content[at : at + BLOCK] = data
                disk.flush()

    def waiting(self):
        return {pg["pg"]: pg for pg in self.cluster.json("pg", "why")}

    def has_settled(self):
        before = self.waiting().keys()
        time.sleep(4)
        return self.waiting().keys() == before

    def check(self):
        """Every block is as it was written last, or as it was when the copies were made, if its PG was decided on."""
        for name, content in self.content.items():
            with self.cluster.nbd(name) as disk:
                found = b"".join(disk.read(at, MIB) for at in range(0, SIZE, MIB))
            for at in range(0, SIZE, BLOCK):
                older, newer = self.older[name][at : at + BLOCK], content[at : at + BLOCK]
                allowed = {"copies": [newer], "coded": [older]}.get(name, [older, newer])
                intact(found[at : at + BLOCK] in allowed, f"WRONG DATA at {at} of {name}")


@pytest.fixture(scope="module")
def put_back(scenario):
    return PutBack(scenario)


def test_it_is_said_why_pgs_do_not_serve(put_back):
    """Of every pool without a good copy PGs are named, with what each OSD has and a command; health points there."""
    assert {pg["pool"] for pg in put_back.decided.values()} == {"single", "pair", "coded"}
    assert len([pg for pg in put_back.decided.values() if pg["pool"] == "coded"]) == 8
    for name, pg in put_back.decided.items():
        told = [copy for copy in pg["copies"] if copy["told"]]
        assert any(copy["told"]["incomplete"] == "old_device" for copy in told), pg
        assert pg["accept_command"].startswith(f"atoll pg accept {name} --from osd."), pg
    one = next(iter(put_back.decided))
    text = put_back.cluster.cli("pg", "why", one).stdout
    for words in ("older copy", "PROMISED", "remedy", f"atoll pg accept {one} --from"):
        assert words in text, text
    health = json.loads(put_back.cluster.cli("health", "--json", ok=(1, 2)).stdout)
    assert any("atoll pg why" in problem["action"] for problem in health["problems"]), health


def test_nothing_is_accepted_by_mistake(put_back):
    """Without --yes it is said what is lost; a PG that serves, and shards of different times, are refused."""
    cluster = put_back.cluster
    accept = lambda pg: cluster.cli(*pg["accept_command"].split()[1:], ok=(1,)).stderr
    with ThreadPoolExecutor(8) as pool:
        for refused in pool.map(accept, put_back.decided.values()):
            assert "add --yes" in refused and "older copy" in refused, refused
    heads = lambda pg: [copy["told"]["head"] for copy in pg["copies"] if copy["osd"] != 1]
    coded = [pg for pg in put_back.decided.values() if pg["pool"] == "coded" and heads(pg)[0] != heads(pg)[1]]
    coded = coded[0]["pg"]
    assert "would be wrong" in cluster.cli("pg", "accept", coded, "--from", 0, "--from", 2, "--yes", ok=(1,)).stderr
    serving = next(pg["pg"] for pg in cluster.json("pg", "ls") if pg["pg"] not in put_back.decided)
    assert "nothing to accept" in cluster.cli("pg", "accept", serving, "--from", 0, "--yes", ok=(1,)).stderr
    assert put_back.waiting().keys() == put_back.decided.keys()


def test_what_was_accepted_serves_what_it_has(put_back):
    """Every PG serves again. What was written before the copies were made is read, and deep scrubs find nothing."""
    cluster = put_back.cluster
    accept = lambda pg: cluster.json(*pg["accept_command"].split()[1:], "--yes", timeout=90)
    # Each waits until its PG serves.
    with ThreadPoolExecutor(8) as pool:
        for accepted in pool.map(accept, put_back.decided.values()):
            assert accepted["is_active"] and accepted["losses"], accepted
    # What OSDs tell is a second old.
    wait_for("all PGs serve", lambda: "all PGs serve" in cluster.cli("pg", "why").stdout, 5)
    put_back.check()
    wait_for("all PGs are clean", lambda: not cluster.json("pg", "ls", "--not-clean"), 120)
    scrubs = json.loads(scrub_of_settled_members(cluster).stdout)
    assert all(pg["scrub"]["unrepaired"] == 0 and pg["scrub"]["errors"] == 0 for pg in scrubs), scrubs


def scrub_of_settled_members(cluster):
    """A PG whose members change meanwhile has copies that are not examined: the command asks for another run."""
    for _ in range(3):
        done = cluster.cli("pg", "scrub", "all", "--deep", "--wait", "--json", timeout=300, ok=(0, 1))
        if done.returncode == 0:
            return done
        assert "and their copies were not examined" in done.stderr, done.stderr
        wait_for("all PGs are clean", lambda: not cluster.json("pg", "ls", "--not-clean"), 120)
    raise AssertionError(f"members do not settle: {done.stderr}")


def test_it_serves_after_a_restart(put_back):
    """What is written then is read after a restart of all."""
    cluster = put_back.cluster
    with cluster.nbd("coded") as disk:
        disk.write(0, b"\x07" * MIB)
        disk.flush()
    cluster.down()
    cluster.up()
    with cluster.nbd("coded") as disk:
        intact(disk.read(0, MIB) == b"\x07" * MIB, "WRONG DATA after the restart")
    with pytest.raises(CommandFailed):
        cluster.cli("pg", "accept", "1.0", "--from", 0, "--yes")
