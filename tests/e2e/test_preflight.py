"""`atoll preflight` and `atoll bench disk`: verdicts, exit codes and JSON on this machine, durable writes in a
directory and on a loop device, and two hosts in network namespaces whose MTU is right, unequal, and silently too
small on the way; a responder that answers nobody who has not connected."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket

import pytest
from lib.cluster import MIB
from lib.devices import Loops
from lib.net import NETWORK, Namespaces, within
from lib.waiting import wait_for

pytestmark = pytest.mark.needs("fio", "losetup")


VERDICTS = {"ok", "not_visible", "advice", "warning", "problem"}
PORT = 7477
TEST_NAMES = {
    "linear-read",
    "linear-write",
    "parallel-read",
    "parallel-write",
    "single-read",
    "single-write-sync",
    "journal-sync",
    "journal-fsync",
}


def preflight(scenario, *arguments, ok=(0,), prefix=()):
    done = scenario.run(*prefix, scenario.atoll, "preflight", *arguments, ok=ok)
    return json.loads(done.stdout)


def of(report, check):
    found = [finding for finding in report["findings"] if finding["check"] == check]
    assert len(found) == 1, (
        f"{len(found)} findings of {check} in {[finding['check'] for finding in report['findings']]}"
    )
    return found[0]


def written_bytes(pid):
    """Bytes that a process has had written to storage."""
    text = pathlib.Path("/proc", str(pid), "io").read_text()
    return int(re.search(r"^write_bytes: (\d+)$", text, re.M)[1])


@pytest.fixture(scope="module")
def report(scenario):
    """Of this machine, as it is: whatever it shows must be said in the right form."""
    return preflight(scenario, "--json", ok=(0, 1))


@pytest.fixture(scope="module")
def place(scenario):
    """A directory with a file in it."""
    place = scenario.directory / "place"
    place.mkdir()
    (place / "precious").write_text("precious")
    return place


@pytest.fixture(scope="module")
def loop(scenario):
    """A loop device, and the file that it is of."""
    loops = Loops(scenario)
    scenario.at_end.callback(loops.detach_all)
    if reason := loops.why_not():
        pytest.skip(reason)
    path = scenario.directory / "loop"
    path.write_bytes(b"\xa5" * 64 * MIB)
    return loops.attach("loop", 64 * MIB), path


class Pair:
    """Two hosts in network namespaces, the second of which responds."""

    def __init__(self, scenario):
        self.scenario, self.namespaces = scenario, Namespaces(scenario)
        self.hosts = [self.namespaces.add_host(f"h{n}", f"{NETWORK}.{n}") for n in (1, 2)]
        self.set_mtu(9000, 9000)
        self.responder = scenario.start(*self.inside(1), scenario.atoll, "preflight", "--listen", f"{NETWORK}.2")
        said = self.responder.stdout.readline()
        assert f"{NETWORK}.2:{PORT}" in said, f"the responder does not say where it is: {said}"

    def inside(self, host):
        return ["ip", "netns", "exec", self.hosts[host]]

    def probe(self):
        arguments = ["--peer", f"{NETWORK}.2", "--seconds", "1", "--json"]
        return preflight(self.scenario, *arguments, ok=(0, 1), prefix=self.inside(0))

    def set_mtu(self, of_hosts, of_switch):
        for number, name in enumerate(self.hosts, 1):
            self.namespaces.ip("-n", self.namespaces.switch, "link", "set", f"h{number}", "mtu", of_switch)
            self.namespaces.ip("-n", name, "link", "set", "eth0", "mtu", of_hosts)
        self.namespaces.ip("-n", self.namespaces.switch, "link", "set", "bridge", "mtu", of_switch)


@pytest.fixture(scope="module")
def pair(scenario):
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("network namespaces need root and the package iproute2")
    return Pair(scenario)


def test_all_of_this_host_is_looked_at(scenario, note):
    """All of this host is looked at, and the exit code says whether it is deployable."""
    done = scenario.run(scenario.atoll, "preflight", "--json", ok=(0, 1))
    report = json.loads(done.stdout)
    assert report["deployable"] == (done.returncode == 0), (
        f"exit code {done.returncode}, deployable {report['deployable']}"
    )
    assert report["deployable"] == (report["counts"].get("problem", 0) == 0), str(report["counts"])
    checks = {finding["check"] for finding in report["findings"]}
    for family in ("cpu.", "memory.", "clock.", "io_uring.", "network."):
        assert any(check.startswith(family) for check in checks), f"nothing of {family} in {checks}"
    for finding in report["findings"]:
        assert finding["verdict"] in VERDICTS and finding["found"] and finding["meaning"], str(finding)
        assert finding["fix"] or finding["verdict"] in ("ok", "not_visible"), f"no fix: {finding}"
    note(", ".join(f"{count} {verdict}" for verdict, count in report["counts"].items()))


def test_what_a_virtual_machine_hides_is_said_to_be_hidden(report):
    """What a virtual machine hides is said to be hidden."""
    shown = pathlib.Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").exists()
    assert (of(report, "cpu.governor")["verdict"] == "not_visible") == (not shown), str(of(report, "cpu.governor"))


def test_the_facts_are_the_kernels(report):
    """The facts are the kernel's."""
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)[1].split()
    assert ("GFNI is there" in of(report, "cpu.gfni")["found"]) == ("gfni" in flags), str(of(report, "cpu.gfni"))
    assert os.uname().release in of(report, "io_uring.kernel")["found"], str(of(report, "io_uring.kernel"))
    assert of(report, "io_uring.ring")["verdict"] == "ok", str(of(report, "io_uring.ring"))


def test_the_text_has_the_same_verdicts(scenario, report):
    """The text has the same verdicts, and fixes."""
    text = scenario.run(scenario.atoll, "preflight", ok=(0, 1)).stdout
    assert "io_uring.ring: a ring was made" in text and re.search(r"^(NOT )?deployable: ", text, re.M), text
    assert any("fix: " in line for line in text.splitlines()) == any(
        finding["fix"] for finding in report["findings"]
    ), text


def test_too_few_open_files_is_a_warning(scenario):
    """Too few open files is a warning, and still deployable."""
    done = scenario.run("sh", "-c", f"ulimit -n 1024; exec {scenario.atoll} preflight --json", ok=(0, 1))
    assert of(json.loads(done.stdout), "io_uring.open_files")["verdict"] == "warning", done.stdout


@pytest.mark.root
@pytest.mark.needs("prlimit", "setpriv")
def test_too_little_locked_memory_is_a_warning_where_rdma_is_used(scenario):
    """A limit of locked memory below what adapters need is a warning, where OSDs use RDMA."""
    limited = ("prlimit", "--memlock=65536", "setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock")
    environment = scenario.environment | {"ATOLL_RDMA_PROVIDER": "verbs"}
    done = scenario.run(*limited, scenario.atoll, "preflight", "--json", ok=(0, 1), env=environment)
    found = of(json.loads(done.stdout), "rdma.locked_memory")
    assert found["verdict"] == "warning" and "64.0 KiB" in found["found"] and "LimitMEMLOCK" in found["fix"], f"{found}"


def test_wrong_usage_is_exit_code_2(scenario):
    """Wrong usage is exit code 2, with a reason."""
    for arguments in (
        ("--wipe",),
        ("--write-test",),
        ("--peer", ":1"),
        ("--listen", "nowhere"),
        ("--listen", "127.0.0.1", "--peer", "h"),
        ("--seconds", "0"),
    ):
        done = scenario.run(scenario.atoll, "preflight", *arguments, ok=(2,))
        assert done.stderr.strip(), f"{arguments} says nothing"


def test_a_device_that_is_not_there(scenario):
    """A device that is not there, and a peer that does not answer, are problems: exit code 1."""
    report = preflight(scenario, "--device", scenario.directory / "none", "--peer", "127.0.0.1:9", "--json", ok=(1,))
    assert of(report, "drive.access")["verdict"] == "problem" and of(report, "network.peer")["verdict"] == "problem", (
        str(report)
    )
    assert "--listen" in of(report, "network.peer")["fix"], str(report)


@pytest.mark.nightly
def test_durable_writes_in_a_directory_are_measured(scenario, place, note):
    """Durable writes in a directory are measured, and nothing is left behind."""
    report = preflight(scenario, "--device", place, "--write-test", "--seconds", "1", "--json", ok=(0, 1))
    found = of(report, "drive.synced_writes")
    assert (
        found["verdict"] != "problem"
        and found["figures"]["writes_per_s"] > 0
        and found["figures"]["fsync_writes_per_s"] > 0
    ), str(found)
    assert os.listdir(place) == ["precious"] and (place / "precious").read_text() == "precious", str(os.listdir(place))
    note(f"{found['figures']['writes_per_s']:.0f} writes/s")


def test_ctrl_c_in_the_middle_leaves_nothing_behind(scenario, place):
    """Ctrl-C in the middle leaves nothing behind, and shows nothing."""
    process = scenario.start(
        scenario.atoll, "preflight", "--device", place, "--write-test", "--seconds", "60", "--json"
    )
    has_begun = lambda: len(os.listdir(place)) > 1 or written_bytes(process.pid) > 0
    wait_for("it writes", has_begun, 20, 0.02)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=30)
    assert process.returncode == 1 and not output and "stopped" in errors, f"{process.returncode} {output} {errors}"
    assert os.listdir(place) == ["precious"], str(os.listdir(place))


def test_a_block_device_is_read(scenario, loop):
    """A block device is read, and not written without --wipe."""
    found = of(preflight(scenario, "--device", loop[0], "--seconds", "1", "--json", ok=(0, 1)), "drive.reads")
    assert found["figures"]["reads_per_s"] > 0, str(found)
    refused = scenario.run(scenario.atoll, "preflight", "--device", loop[0], "--write-test", ok=(1,))
    assert "--wipe" in refused.stderr, refused.stderr
    scenario.run("blockdev", "--flushbufs", loop[0])
    assert loop[1].read_bytes() == b"\xa5" * 64 * MIB, "the device was changed"


def test_with_wipe_it_is_written(scenario, loop):
    """With --wipe it is written; its cache has no switch, and that is said."""
    report = preflight(
        scenario,
        "--device",
        loop[0],
        "--write-test",
        "--wipe",
        "--toggle-write-cache",
        "--seconds",
        "1",
        "--json",
        ok=(0, 1),
    )
    assert of(report, "drive.synced_writes")["figures"]["writes_per_s"] > 0, str(report)
    assert of(report, "drive.write_cache_switched")["verdict"] == "not_visible", str(report)
    assert loop[1].read_bytes()[:MIB] != b"\xa5" * MIB, "the device was not written"


def test_a_device_that_is_in_use_is_not_written(scenario, loop):
    """A device that is in use is not written."""
    scenario.run("mkfs.ext4", "-q", loop[0])
    mounted = scenario.directory / "mounted"
    mounted.mkdir()
    scenario.run("mount", loop[0], mounted)
    try:
        report = preflight(scenario, "--device", loop[0], "--write-test", "--wipe", "--seconds", "1", "--json", ok=(1,))
        assert "in use" in of(report, "drive.synced_writes")["found"], str(report)
    finally:
        scenario.run("umount", mounted)


@pytest.mark.nightly
def test_the_eight_drive_tests_run_on_a_file_that_is_made_and_removed(scenario, note):
    """The eight drive tests run on a file that is made and removed."""
    path = scenario.directory / "bench.disk"
    report = json.loads(
        scenario.run(
            scenario.atoll, "bench", "disk", "--device", path, "--size", "256M", "--seconds", "1", "--json"
        ).stdout
    )
    tests = {found["test"]: found for found in report["tests"]}
    assert set(tests) == TEST_NAMES, str(set(tests))
    for found in report["tests"]:
        assert found["iops"] > 0 and found["mb_per_s"] > 0 and found["mean_us"] > 0 and found["meaning"], str(found)
        assert (found["class"] is not None) == ("sync" in found["test"]), str(found)
    assert tests["journal-fsync"]["sync"] == "fsync" and tests["journal-sync"]["sync"] == "O_DSYNC", str(tests)
    assert not path.exists(), "the file is still there"
    note(f"journal {tests['journal-sync']['iops']:.0f}/s")


def test_a_file_with_content_is_kept(scenario):
    """A file with content is kept, and a fio that is missing is told how to get."""
    path = scenario.directory / "precious.disk"
    path.write_text("precious")
    refused = scenario.run(scenario.atoll, "bench", "disk", "--device", path, "--size", "256M", ok=(1,))
    assert "--wipe" in refused.stderr and path.read_text() == "precious", refused.stderr
    missing = scenario.run(
        scenario.atoll, "bench", "disk", "--device", path, ok=(1,), env=scenario.environment | {"PATH": "/nowhere"}
    )
    assert "apt install fio" in missing.stderr, missing.stderr


def test_two_hosts_round_trip(pair, note):
    """Two hosts: round trip, clock, and jumbo frames that get through."""
    pair.set_mtu(9000, 9000)
    report = pair.probe()
    trip, mtu, clock = (of(report, check) for check in ("network.round_trip", "network.path_mtu", "network.clock"))
    figures = trip["figures"]
    assert 0 < figures["min_us"] <= figures["p50_us"] <= figures["p99_us"], str(trip)
    assert mtu["verdict"] == "ok" and mtu["figures"]["path_mtu_bytes"] == 9000, str(mtu)
    assert clock["verdict"] == "ok", str(clock)
    note(f"{figures['p50_us']:.0f} us")


def test_no_jumbo_frames_on_both(pair):
    """No jumbo frames on both: advice."""
    pair.set_mtu(1500, 1500)
    mtu = of(pair.probe(), "network.path_mtu")
    assert mtu["verdict"] == "advice" and mtu["figures"]["path_mtu_bytes"] == 1500, str(mtu)


@pytest.mark.nightly
def test_jumbo_frames_that_vanish_on_the_way(pair):
    """Jumbo frames that vanish on the way: a problem, with exit code 1."""
    pair.set_mtu(9000, 1500)
    report = pair.probe()
    mtu = of(report, "network.path_mtu")
    assert mtu["verdict"] == "problem" and mtu["figures"]["path_mtu_bytes"] == 1500, str(mtu)
    assert not report["deployable"], "it calls itself deployable"


def test_datagrams_of_strangers_are_not_answered(pair):
    """Datagrams of strangers are not answered."""
    assert within(pair.hosts[0], lambda: stranger((f"{NETWORK}.2", PORT))) is None, "it answered"


def test_the_responder_ends_when_it_is_asked_to(pair):
    """The responder ends when it is asked to."""
    pair.responder.send_signal(signal.SIGINT)
    assert pair.responder.wait(timeout=30) == 0, f"exit code {pair.responder.returncode}"


def stranger(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(1)
        client.sendto(bytes(100), address)
        with contextlib.suppress(TimeoutError):
            return client.recv(200)
