#!/usr/bin/env python3
"""`atoll preflight` and `atoll bench disk`: verdicts, exit codes and JSON on this machine, durable writes in a
directory and on a loop device, and two hosts in network namespaces whose MTU is right, unequal, and silently too
small on the way; a responder that answers nobody who has not connected."""
import contextlib, json, os, pathlib, re, shutil, signal, socket, subprocess, time

from harness import MIB, expect, main, wait_for
from namespaces import NETWORK, Namespaces, within

VERDICTS = {"ok", "not_visible", "advice", "warning", "problem"}
PORT = 7477
TEST_NAMES = {"linear-read", "linear-write", "parallel-read", "parallel-write", "single-read", "single-write-sync", "journal-sync", "journal-fsync"}


def preflight(test, *arguments, ok=(0,), prefix=()):
    done = test.run(*prefix, test.atoll, "preflight", *arguments, ok=ok)
    return json.loads(done.stdout)


def of(report, check):
    found = [finding for finding in report["findings"] if finding["check"] == check]
    expect(len(found) == 1, f"{len(found)} findings of {check} in {[finding['check'] for finding in report['findings']]}")
    return found[0]


def host(test):
    """This machine, as it is: whatever it shows must be said in the right form."""
    with test.step("all of this host is looked at, and the exit code says whether it is deployable") as note:
        done = test.run(test.atoll, "preflight", "--json", ok=(0, 1))
        report = json.loads(done.stdout)
        expect(report["deployable"] == (done.returncode == 0), f"exit code {done.returncode}, deployable {report['deployable']}")
        expect(report["deployable"] == (report["counts"].get("problem", 0) == 0), str(report["counts"]))
        checks = {finding["check"] for finding in report["findings"]}
        for family in ("cpu.", "memory.", "clock.", "io_uring.", "network."):
            expect(any(check.startswith(family) for check in checks), f"nothing of {family} in {checks}")
        for finding in report["findings"]:
            expect(finding["verdict"] in VERDICTS and finding["found"] and finding["meaning"], str(finding))
            expect(finding["fix"] or finding["verdict"] in ("ok", "not_visible"), f"no fix: {finding}")
        note(", ".join(f"{count} {verdict}" for verdict, count in report["counts"].items()))
    with test.step("what a virtual machine hides is said to be hidden"):
        shown = pathlib.Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").exists()
        expect((of(report, "cpu.governor")["verdict"] == "not_visible") == (not shown), str(of(report, "cpu.governor")))
    with test.step("the facts are the kernel's"):
        flags = re.search(r"^(?:flags|Features)\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M)[1].split()
        expect(("GFNI is there" in of(report, "cpu.gfni")["found"]) == ("gfni" in flags), str(of(report, "cpu.gfni")))
        expect(os.uname().release in of(report, "io_uring.kernel")["found"], str(of(report, "io_uring.kernel")))
        expect(of(report, "io_uring.ring")["verdict"] == "ok", str(of(report, "io_uring.ring")))
    with test.step("the text has the same verdicts, and fixes"):
        text = test.run(test.atoll, "preflight", ok=(0, 1)).stdout
        expect("io_uring.ring: a ring was made" in text and re.search(r"^(NOT )?deployable: ", text, re.M), text)
        expect(any("fix: " in line for line in text.splitlines()) == any(finding["fix"] for finding in report["findings"]), text)
    with test.step("too few open files is a warning, and still deployable"):
        done = test.run("sh", "-c", f"ulimit -n 1024; exec {test.atoll} preflight --json", ok=(0, 1))
        expect(of(json.loads(done.stdout), "io_uring.open_files")["verdict"] == "warning", done.stdout)


def usage(test):
    with test.step("wrong usage is exit code 2, with a reason"):
        for arguments in (("--wipe",), ("--write-test",), ("--peer", ":1"), ("--listen", "nowhere"), ("--listen", "127.0.0.1", "--peer", "h"), ("--seconds", "0")):
            done = test.run(test.atoll, "preflight", *arguments, ok=(2,))
            expect(done.stderr.strip(), f"{arguments} says nothing")
    with test.step("a device that is not there, and a peer that does not answer, are problems: exit code 1"):
        report = preflight(test, "--device", test.directory / "none", "--peer", "127.0.0.1:9", "--json", ok=(1,))
        expect(of(report, "drive.access")["verdict"] == "problem" and of(report, "network.peer")["verdict"] == "problem", str(report))
        expect("--listen" in of(report, "network.peer")["fix"], str(report))


def writes(test):
    place = test.directory / "place"
    place.mkdir()
    (place / "precious").write_text("precious")
    with test.step("durable writes in a directory are measured, and nothing is left behind") as note:
        report = preflight(test, "--device", place, "--write-test", "--seconds", "1", "--json", ok=(0, 1))
        found = of(report, "drive.synced_writes")
        expect(found["verdict"] != "problem" and found["figures"]["writes_per_s"] > 0 and found["figures"]["fsync_writes_per_s"] > 0, str(found))
        expect(os.listdir(place) == ["precious"] and (place / "precious").read_text() == "precious", str(os.listdir(place)))
        note(f"{found['figures']['writes_per_s']:.0f} writes/s")
    with test.step("Ctrl-C in the middle leaves nothing behind, and shows nothing"):
        process = test.start(test.atoll, "preflight", "--device", place, "--write-test", "--seconds", "60", "--json")
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=10)
        expect(process.returncode == 1 and not output and "stopped" in errors, f"{process.returncode} {output} {errors}")
        expect(os.listdir(place) == ["precious"], str(os.listdir(place)))


def loop_device(test):
    path = test.directory / "loop"
    path.write_bytes(b"\xa5" * 64 * MIB)
    attached = subprocess.run(["losetup", "--find", "--show", str(path)], capture_output=True, text=True)
    if attached.returncode != 0:
        test.skip("a block device is read and not written without --wipe", "no loop devices: " + attached.stderr.strip())
        return
    device = attached.stdout.strip()
    try:
        with test.step("a block device is read, and not written without --wipe"):
            found = of(preflight(test, "--device", device, "--seconds", "1", "--json", ok=(0, 1)), "drive.reads")
            expect(found["figures"]["reads_per_s"] > 0, str(found))
            refused = test.run(test.atoll, "preflight", "--device", device, "--write-test", ok=(1,))
            expect("--wipe" in refused.stderr, refused.stderr)
            test.run("blockdev", "--flushbufs", device)
            expect(path.read_bytes() == b"\xa5" * 64 * MIB, "the device was changed")
        with test.step("with --wipe it is written; its cache has no switch, and that is said"):
            report = preflight(test, "--device", device, "--write-test", "--wipe", "--toggle-write-cache", "--seconds", "1", "--json", ok=(0, 1))
            expect(of(report, "drive.synced_writes")["figures"]["writes_per_s"] > 0, str(report))
            expect(of(report, "drive.write_cache_switched")["verdict"] == "not_visible", str(report))
            expect(path.read_bytes()[:MIB] != b"\xa5" * MIB, "the device was not written")
        with test.step("a device that is in use is not written"):
            test.run("mkfs.ext4", "-q", device)
            mounted = test.directory / "mounted"
            mounted.mkdir()
            test.run("mount", device, mounted)
            try:
                report = preflight(test, "--device", device, "--write-test", "--wipe", "--seconds", "1", "--json", ok=(1,))
                expect("in use" in of(report, "drive.synced_writes")["found"], str(report))
            finally:
                test.run("umount", mounted)
    finally:
        subprocess.run(["losetup", "--detach", device], check=False)


def disk_bench(test):
    path = test.directory / "bench.disk"
    with test.step("the eight drive tests run on a file that is made and removed") as note:
        report = json.loads(test.run(test.atoll, "bench", "disk", "--device", path, "--size", "256M", "--seconds", "1", "--json").stdout)
        tests = {found["test"]: found for found in report["tests"]}
        expect(set(tests) == TEST_NAMES, str(set(tests)))
        for found in report["tests"]:
            expect(found["iops"] > 0 and found["mb_per_s"] > 0 and found["mean_us"] > 0 and found["meaning"], str(found))
            expect((found["class"] is not None) == ("sync" in found["test"]), str(found))
        expect(tests["journal-fsync"]["sync"] == "fsync" and tests["journal-sync"]["sync"] == "O_DSYNC", str(tests))
        expect(not path.exists(), "the file is still there")
        note(f"journal {tests['journal-sync']['iops']:.0f}/s")
    with test.step("a file with content is kept, and a fio that is missing is told how to get"):
        path.write_text("precious")
        refused = test.run(test.atoll, "bench", "disk", "--device", path, "--size", "256M", ok=(1,))
        expect("--wipe" in refused.stderr and path.read_text() == "precious", refused.stderr)
        missing = test.run(test.atoll, "bench", "disk", "--device", path, ok=(1,), env=test.environment | {"PATH": "/nowhere"})
        expect("apt install fio" in missing.stderr, missing.stderr)


def network(test):
    namespaces = Namespaces(test)
    try:
        hosts = [namespaces.add_host(f"h{n}", f"{NETWORK}.{n}") for n in (1, 2)]
        inside = lambda host: ["ip", "netns", "exec", hosts[host]]
        set_mtu(test, namespaces, hosts, 9000, 9000)
        responder = test.start(*inside(1), test.atoll, "preflight", "--listen", f"{NETWORK}.2")
        expect(f"{NETWORK}.2:{PORT}" in responder.stdout.readline(), "the responder does not say where it is")
        probe = lambda: preflight(test, "--peer", f"{NETWORK}.2", "--seconds", "1", "--json", ok=(0, 1), prefix=inside(0))
        with test.step("two hosts: round trip, clock, and jumbo frames that get through") as note:
            report = probe()
            trip, mtu, clock = (of(report, check) for check in ("network.round_trip", "network.path_mtu", "network.clock"))
            figures = trip["figures"]
            expect(0 < figures["min_us"] <= figures["p50_us"] <= figures["p99_us"], str(trip))
            expect(mtu["verdict"] == "ok" and mtu["figures"]["path_mtu_bytes"] == 9000, str(mtu))
            expect(clock["verdict"] == "ok", str(clock))
            note(f"{figures['p50_us']:.0f} us")
        with test.step("no jumbo frames on both: advice"):
            set_mtu(test, namespaces, hosts, 1500, 1500)
            mtu = of(probe(), "network.path_mtu")
            expect(mtu["verdict"] == "advice" and mtu["figures"]["path_mtu_bytes"] == 1500, str(mtu))
        with test.step("jumbo frames that vanish on the way: a problem, with exit code 1"):
            set_mtu(test, namespaces, hosts, 9000, 1500)
            report = probe()
            mtu = of(report, "network.path_mtu")
            expect(mtu["verdict"] == "problem" and mtu["figures"]["path_mtu_bytes"] == 1500, str(mtu))
            expect(not report["deployable"], "it calls itself deployable")
        with test.step("datagrams of strangers are not answered"):
            expect(within(hosts[0], lambda: stranger((f"{NETWORK}.2", PORT))) is None, "it answered")
        with test.step("the responder ends when it is asked to"):
            responder.send_signal(signal.SIGINT)
            expect(responder.wait(timeout=10) == 0, f"exit code {responder.returncode}")
    finally:
        namespaces.remove_all()


def set_mtu(test, namespaces, hosts, of_hosts, of_switch):
    for number, name in enumerate(hosts, 1):
        test.run("ip", "-n", namespaces.switch, "link", "set", f"h{number}", "mtu", of_switch)
        test.run("ip", "-n", name, "link", "set", "eth0", "mtu", of_hosts)
    test.run("ip", "-n", namespaces.switch, "link", "set", "bridge", "mtu", of_switch)


def stranger(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(1)
        client.sendto(bytes(100), address)
        with contextlib.suppress(TimeoutError):
            return client.recv(200)


def scenario(test):
    test.need(("fio", "fio"))
    host(test)
    usage(test)
    writes(test)
    disk_bench(test)
    if os.geteuid() != 0:
        test.skip("block devices and two hosts", "it takes root")
        return
    loop_device(test)
    if not shutil.which("ip"):
        test.skip("two hosts", "install the package iproute2")
        return
    network(test)


if __name__ == "__main__":
    main(scenario)
