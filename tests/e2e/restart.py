#!/usr/bin/env python3
"""Starting, stopping and starting again; signals; clear errors; JSON everywhere."""
import json, os, signal, socket, subprocess, time

from harness import MIB, Failed, expect, main, wait_for
from nbdclient import connect_patiently

STOP_SECONDS_MAX = 15


def refused(cluster, *arguments, words=(), codes=(1, 2)):
    """The command must fail with an exit code that is not that of a crash, and say why on stderr."""
    done = cluster.cli(*arguments, ok=None)
    expect(done.returncode in codes, f"{arguments}: exit code {done.returncode}\n{done.stdout[-500:]}{done.stderr[-500:]}")
    expect(done.stderr.strip(), f"{arguments}: nothing on stderr")
    expect("panicked" not in done.stderr, done.stderr[-800:])
    for word in words:
        expect(word in done.stderr, f"{arguments}: '{word}' is not in: {done.stderr[-500:]}")
    return (done.stderr.strip().splitlines() or [""])[0]


def gone(cluster):
    return not cluster.all_pids()


def scenario(test):
    cluster = test.cluster(osd_size="4G")
    with test.step("commands before there is a cluster fail with a clear error") as note:
        for command in (("status",), ("down",), ("credentials", "--json"), ("image", "ls"), ("df",)):
            said = refused(cluster, *command, words=[str(cluster.data)], codes=(1,))
        note(said[:120])
    with test.step("atoll up --detach", fatal=True) as note:
        note(f"healthy after {cluster.up():.1f} s")
    with test.step("processes.json names supervisor and children, all alive"):
        expect(set(cluster.process_ids()) == {"supervisor", "cluster-state", "osd.0", "osd.1", "osd.2", "gateway", "nbd"}, f"{cluster.process_ids()}")
        expect(sorted(cluster.process_ids().values()) == sorted(cluster.all_pids()), f"{cluster.process_ids()} {cluster.all_pids()}")
    with test.step("data to find again", fatal=True):
        cluster.create_image("disk", "64M")
        with cluster.nbd("disk") as connection:
            connection.write(5 * MIB, b"persistent" * 400)
        s3 = cluster.s3()
        s3.create_bucket(Bucket="persistent")
        s3.put_object(Bucket="persistent", Key="key", Body=b"value" * 50_000, Metadata={"mark": "m"})
    credentials = cluster.json("credentials")

    with test.step("--json parses for every command that shows something") as note:
        commands = [("status",), ("df",), ("osd", "tree"), ("pool", "ls"), ("credentials",), ("image", "ls"), ("image", "info", "disk")]
        for command in commands:
            cluster.json(*command)
            text = cluster.cli(*command).stdout
            expect(text.strip(), f"{command}: no text without --json")
        created = json.loads(cluster.cli("image", "create", "second", "--size", "1G", "--json").stdout)
        expect(created["size_bytes"] == 1 << 30, f"{created}")
        expect(json.loads(cluster.cli("image", "resize", "second", "--size", "2G", "--json").stdout)["size_bytes"] == 2 << 30, "not resized")
        expect({image["name"] for image in cluster.json("image", "ls")} == {"disk", "second"}, "image ls")
        json.loads(cluster.cli("image", "rm", "second", "--json").stdout)
        expect([image["name"] for image in cluster.json("image", "ls")] == ["disk"], "image ls after rm")
        expect(len(json.dumps(cluster.json("osd", "tree"))) > 50, "osd tree is empty")
        expect(cluster.json("status")["health"] == "ok", f"{cluster.json('status')}")
        expect(credentials.keys() >= {"access_key", "secret_key", "endpoint", "ca_file"}, f"{credentials.keys()}")
        note(f"{len(commands) + 3} commands")
    with test.step("atoll bench object prints the figures that were promised") as note:
        for operation in ("put", "get"):
            done = cluster.cli("bench", "object", "--op", operation, "--size", "64k", "--concurrency", "8", "--seconds", "2", "--json")
            result = json.loads(done.stdout)
            expect(result["errors"] == 0 and result["iops"] > 0 and result["mb_per_s"] > 0 and result["cpu_us_per_op"] > 0, f"{result}")
            expect(result["latency_us"].keys() >= {"mean", "p50", "p99", "p999"}, f"{result}")
            note(f"{operation} {result['iops']:.0f}/s")
    with test.step("atoll bench block prints the figures that were promised, for all patterns") as note:
        told = []
        cluster.create_image("bench", "64M")
        for pattern in ("write", "randwrite", "read", "randread"):
            done = cluster.cli("bench", "block", "--image", "bench", "--rw", pattern, "--bs", "4k", "--qd", "16", "--seconds", "1", "--json")
            result = json.loads(done.stdout)
            expect(result["errors"] == 0 and result["iops"] > 0 and result["mb_per_s"] > 0 and result["cpu_us_per_op"] > 0, f"{result}")
            expect(result["latency_us"].keys() >= {"mean", "p50", "p99", "p999"}, f"{result}")
            told.append(f"{pattern} {result['iops']:.0f}")
        note("IOPS: " + ", ".join(told))

    with test.step("a second 'atoll up' on the same directory is refused, the first goes on") as note:
        before = cluster.process_ids()
        for more in ((), ("--detach",)):
            done = test.run(*cluster.up_command(*more), env=cluster.environment(), ok=None, timeout=60)
            expect(done.returncode == 1, f"exit code {done.returncode}")
            expect(str(before["supervisor"]) in done.stderr or "running" in done.stderr.lower(), f"not clear: {done.stderr}")
        expect(cluster.process_ids() == before, "processes have changed")
        expect(cluster.json("status")["health"] == "ok", "not healthy")
        note(done.stderr.strip().splitlines()[-1][:120])

    with test.step("wrong arguments: an exit code and a message on stderr") as note:
        cases = [
            (("image", "info", "nobody"), ["nobody"]),
            (("image", "rm", "nobody"), ["nobody"]),
            (("image", "resize", "nobody", "--size", "1G"), ["nobody"]),
            (("image", "create", "disk", "--size", "1G"), ["disk"]),
            (("image", "create", "x", "--size", "0"), []),
            (("image", "create", "x", "--size", "4Q"), ["4Q"]),
            (("image", "create", "x", "--size", "-1"), []),
            (("image", "create", "x", "--size", "99999999999T"), []),
            (("image", "create", "x", "--size", "100T"), []),
            (("image", "create", "x"), ["--size"]),
            (("image", "create", "", "--size", "1G"), []),
            (("image", "create", "a/b", "--size", "1G"), []),
            (("image", "create", "../x", "--size", "1G"), []),
            (("image", "create", "n" * 300, "--size", "1G"), []),
            (("image", "create", "a b\n", "--size", "1G"), []),
            (("image", "resize", "disk", "--size", "1M"), []),
            (("bench", "block", "--image", "nobody", "--rw", "randread", "--seconds", "1"), ["nobody"]),
            (("bench", "block", "--image", "disk", "--rw", "sideways"), ["sideways"]),
            (("bench", "block", "--image", "disk", "--rw", "randread", "--bs", "0"), []),
            (("bench", "block", "--image", "disk", "--rw", "randread", "--qd", "0", "--seconds", "1"), []),
            (("bench", "block", "--image", "disk", "--rw", "randwrite", "--bs", "1G", "--seconds", "1"), []),
            (("bench", "object", "--op", "put", "--size", "64k", "--concurrency", "0", "--seconds", "1"), []),
            (("nonsense",), ["nonsense"]),
            (("status", "--nonsense"), ["--nonsense"]),
        ]
        for command, words in cases:
            refused(cluster, *command, words=words)
        expect([image["name"] for image in cluster.json("image", "ls")] == ["bench", "disk"], f"image ls: {cluster.json('image', 'ls')}")
        with connect_patiently(lambda: cluster.nbd("disk")) as connection:
            expect(connection.read(5 * MIB, 4000) == b"persistent" * 400, "the image has changed")
        note(f"{len(cases)} commands")
    with test.step("atoll up with other choices than the first time is refused") as note:
        for more in (["--osds", "5"], ["--osd-size", "9G"]):
            done = test.run(test.atoll, "up", "--data", cluster.data, *more, "--detach", env=cluster.environment(), ok=None)
            expect(done.returncode != 0 and done.stderr.strip(), f"{more} was taken")
        other = test.cluster("other", osd_size="4G")
        for more, word in ((["--osds", "0"], "osds"), (["--osd-size", "1M"], "osd-size"), (["--s3-listen", "nonsense"], "s3-listen"),
                           (["--nbd-listen", "nonsense"], "nbd-listen")):
            done = test.run(test.atoll, "up", "--data", other.data, *more, "--detach", env=other.environment(), ok=None)
            expect(done.returncode in (1, 2) and word in done.stderr, f"{more}: {done.returncode} {done.stderr}")
            expect(not other.all_pids(), f"{more}: processes were left: {other.all_pids()}")
        done = test.run(*other.up_command("--detach"), env=other.environment() | {"ATOLL_LOG": "info,atoll_osd=lots"}, ok=None)
        expect(done.returncode == 1 and "ATOLL_LOG" in done.stderr and not other.all_pids(), f"ATOLL_LOG: {done.returncode} {done.stderr}")
    with test.step("a port that is taken: 'atoll up' says which, and leaves nothing running") as note:
        other = test.cluster("taken", osd_size="4G")
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            other.s3_port = holder.getsockname()[1]
            started = time.monotonic()
            done = test.run(*other.up_command("--detach"), env=other.environment(), ok=None, timeout=200)
            expect(done.returncode == 1, f"exit code {done.returncode}")
            expect(str(other.s3_port) in done.stderr, f"the port is not named: {done.stderr[-600:]}")
            wait_for("nothing is left running", lambda: gone(other), 20)
            note(f"after {time.monotonic() - started:.0f} s")
        other.kill_all()

    with test.step("every child that is killed is restarted") as note:
        for name in sorted(cluster.children()):
            pid = cluster.kill(name)
            cluster.restarted(name, pid)
        wait_for("all is well again", lambda: cluster.json("status")["health"] == "ok" and cluster.is_serving(), 60, 0.5)
        found_again(cluster, credentials)

    with test.step("atoll down ends everything") as note:
        started = time.monotonic()
        cluster.cli("down")
        seconds = time.monotonic() - started
        left = cluster.all_pids()
        expect(not left, f"still running when 'atoll down' returned: {left}")
        expect(seconds < STOP_SECONDS_MAX, f"it took {seconds:.1f} s")
        note(f"{seconds:.1f} s")
    wait_for("nothing is left running", lambda: gone(cluster), 20)
    with test.step("commands on a stopped cluster fail soon, with a clear error") as note:
        for command in (("status",), ("image", "ls"), ("osd", "tree"), ("down",)):
            started = time.monotonic()
            said = refused(cluster, *command, codes=(1,))
            # Nobody listens there: there is nothing to wait for.
            expect(time.monotonic() - started < 6, f"{command} took {time.monotonic() - started:.1f} s")
            expect("atoll up" in said or "running" in said or "atoll up" in cluster.cli(*command, ok=None).stderr, f"{command}: no remedy: {said}")
        note(said[:120])
    with test.step("atoll up again with no options finds all data") as note:
        started = time.monotonic()
        test.run(test.atoll, "up", "--data", cluster.data, "--detach", env=cluster.environment(), timeout=90)
        note(f"healthy after {time.monotonic() - started:.1f} s")
        found_again(cluster, credentials)
    with test.step("down, up, down, up in a row"):
        for _ in range(3):
            cluster.cli("down")
            cluster.up()
        found_again(cluster, credentials)
        cluster.cli("down")
    wait_for("nothing is left running", lambda: gone(cluster), 20)

    for number, what in ((signal.SIGINT, "Ctrl-C (SIGINT to its process group)"), (signal.SIGTERM, "SIGTERM")):
        with test.step(f"{what} to a foreground supervisor ends all children") as note:
            cluster.up_in_foreground(start_new_session=True)
            found_again(cluster, credentials)
            # Under load, as it is in life.
            connection = cluster.nbd("disk")
            connection.write(40 * MIB, b"t" * 4096)
            started = time.monotonic()
            if number == signal.SIGINT:
                os.killpg(cluster.foreground.pid, number)
            else:
                cluster.foreground.send_signal(number)
            code = cluster.foreground.wait(STOP_SECONDS_MAX)
            seconds = time.monotonic() - started
            expect(code == 0, f"exit code {code}")
            expect(not cluster.all_pids(), f"still running: {cluster.all_pids()}")
            expect(not (cluster.data / "processes.json").exists(), "processes.json is still there")
            connection.close()
            note(f"{seconds:.1f} s")
    with test.step("SIGINT and SIGTERM at any moment of a start end it soon") as note:
        slowest = 0
        for delay in (0.02, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9):
            number = signal.SIGINT if delay in (0.1, 0.3, 0.7) else signal.SIGTERM
            log = open(test.directory / "d.foreground.log", "a")
            process = test.start(*cluster.up_command(), env=cluster.environment(), stdout=log, stderr=log)
            time.sleep(delay)
            started = time.monotonic()
            process.send_signal(number)
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                cluster.kill_all()
                process.wait()
                raise Failed(f"{number.name} after {delay} s: the supervisor had not ended {STOP_SECONDS_MAX} s later") from None
            slowest = max(slowest, time.monotonic() - started)
            expect(not cluster.all_pids(), f"{number.name} after {delay} s: still running: {cluster.all_pids()}")
        cluster.up()
        found_again(cluster, credentials)
        cluster.cli("down")
        wait_for("nothing is left running", lambda: gone(cluster), 20)
        note(f"at most {slowest:.1f} s")
    with test.step("a supervisor that is killed with -9 leaves no child for long, and the next start works") as note:
        cluster.up()
        os.kill(cluster.process_ids()["supervisor"], signal.SIGKILL)
        started = time.monotonic()
        wait_for("no child is left", lambda: gone(cluster), STOP_SECONDS_MAX)
        seconds = time.monotonic() - started
        note(f"children gone after {seconds:.1f} s, healthy again after {cluster.up():.1f} s")
        found_again(cluster, credentials)
    with test.step("a start right after the supervisor was killed, while its children still end, works") as note:
        os.kill(cluster.process_ids()["supervisor"], signal.SIGKILL)
        started = time.monotonic()
        up_seconds = cluster.up()
        found_again(cluster, credentials)
        note(f"healthy after {up_seconds:.1f} s, everything found after {time.monotonic() - started:.1f} s")
    with test.step("atoll down after a kill does not signal a stranger that has the supervisor's old number"):
        cluster.kill_all()
        stranger = test.start("sleep", "600")
        path = cluster.data / "processes.json"
        record = json.loads(path.read_text())
        record["supervisor"] = stranger.pid
        path.write_text(json.dumps(record))
        try:
            done = cluster.cli("down", ok=None, timeout=60)
        except Failed as error:
            raise Failed(f"the stranger {'lives' if stranger.poll() is None else 'was killed'}: {error}") from None
        expect(stranger.poll() is None, f"it was ended by 'atoll down' ({stranger.returncode})")
        expect(done.returncode == 1, f"exit code {done.returncode}")
        stranger.kill()
        stranger.wait()
    with test.step("a first start that was cut short at any moment is finished by the next"):
        for delay in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.6, 1.0):
            early = test.cluster(f"early-{delay}", osd_size="4G")
            log = open(test.directory / "early.log", "a")
            process = test.start(*early.up_command(), env=early.environment(), stdout=log, stderr=log)
            time.sleep(delay)
            early.kill_all()
            process.wait()
            try:
                early.up(timeout=30)
            except Failed as error:
                early.kill_all()
                raise Failed(f"killed after {delay} s: {error}\n{early.log_text()[-600:]}") from None
            early.create_image("i", "16M")
            with early.nbd("i") as connection:
                connection.write(0, b"x" * 4096)
            early.kill_all()


def found_again(cluster, credentials):
    expect(cluster.json("credentials") == credentials, "other credentials")
    expect("disk" in {image["name"] for image in cluster.json("image", "ls")}, "the image is not listed")
    with connect_patiently(lambda: cluster.nbd("disk"), 60) as connection:
        expect(connection.read(5 * MIB, 4000) == b"persistent" * 400, "the image has other bytes")
    cluster._credentials = None
    answer = cluster.s3(attempts=3).get_object(Bucket="persistent", Key="key")
    expect(answer["Body"].read() == b"value" * 50_000 and answer["Metadata"] == {"mark": "m"}, "the object has other bytes")


if __name__ == "__main__":
    main(scenario)
