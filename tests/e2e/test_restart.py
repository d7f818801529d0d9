"""Starting, stopping and starting again; signals; clear errors; JSON everywhere."""

import json
import os
import signal
import socket
import time

import pytest
from lib.cluster import MIB
from lib.tiers import nightly_but
from lib.verdicts import intact
from lib.waiting import wait_for

STOP_SECONDS_MAX = 15


def refused(cluster, *arguments, words=(), codes=(1, 2)):
    """The command must fail with an exit code that is not that of a crash, and say why on stderr."""
    done = cluster.cli(*arguments, ok=None)
    assert done.returncode in codes, (
        f"{arguments}: exit code {done.returncode}\n{done.stdout[-500:]}{done.stderr[-500:]}"
    )
    assert done.stderr.strip(), f"{arguments}: nothing on stderr"
    assert "panicked" not in done.stderr, done.stderr[-800:]
    for word in words:
        assert word in done.stderr, f"{arguments}: '{word}' is not in: {done.stderr[-500:]}"
    return (done.stderr.strip().splitlines() or [""])[0]


def gone(cluster):
    return not cluster.all_pids()


WRONG = [
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
CONTENT = b"persistent" * 400


class Found:
    """A cluster with content, which every test leaves running or stopped as it likes."""

    def __init__(self, cluster):
        cluster.up()
        cluster.create_image("disk", "64M")
        with cluster.nbd("disk") as connection:
            connection.write(5 * MIB, CONTENT)
        s3 = cluster.s3()
        s3.create_bucket(Bucket="persistent")
        s3.put_object(Bucket="persistent", Key="key", Body=b"value" * 50_000, Metadata={"mark": "m"})
        self.cluster, self.told = cluster, cluster.json("credentials")

    def __getattr__(self, name):
        return getattr(self.cluster, name)

    def found_again(self):
        cluster = self.cluster
        assert cluster.json("credentials") == self.told, "other credentials"
        assert "disk" in {image["name"] for image in cluster.json("image", "ls")}, "the image is not listed"
        intact(cluster.read_image("disk", 5 * MIB, len(CONTENT)) == CONTENT, "the image has other bytes")
        cluster.forget_credentials()
        answer = cluster.s3(attempts=3).get_object(Bucket="persistent", Key="key")
        body = answer["Body"].read()
        intact(body == b"value" * 50_000 and answer["Metadata"] == {"mark": "m"}, "the object has other bytes")


@pytest.fixture(scope="module")
def found(scenario):
    return Found(scenario.cluster(osd_size="4G"))


@pytest.fixture
def running(found):
    """The cluster, running."""
    if not found.all_pids():
        found.up()
    return found


@pytest.fixture
def stopped(found):
    """The cluster, stopped."""
    if found.all_pids():
        found.cli("down")
        wait_for("nothing is left running", lambda: gone(found), 20)
    return found


def test_commands_before_there_is_a_cluster_fail_with_a_clear_error(scenario, note):
    """Commands before there is a cluster fail with a clear error."""
    cluster = scenario.cluster("none")
    for command in (("status",), ("down",), ("credentials", "--json"), ("image", "ls"), ("df",)):
        said = refused(cluster, *command, words=[str(cluster.data)], codes=(1,))
    note(said[:120])


def test_processes_json_names_supervisor_and_children(running):
    """processes.json names supervisor and children, all alive."""
    assert set(running.process_ids()) == {
        "supervisor",
        "cluster-state",
        "osd.0",
        "osd.1",
        "osd.2",
        "gateway",
        "nbd",
        "admin",
    }, f"{running.process_ids()}"
    assert sorted(running.process_ids().values()) == sorted(running.all_pids()), (
        f"{running.process_ids()} {running.all_pids()}"
    )


def test_json_parses_for_every_command_that_shows_something(running, note):
    """--json parses for every command that shows something."""
    commands = [
        ("status",),
        ("df",),
        ("osd", "tree"),
        ("pool", "ls"),
        ("credentials",),
        ("image", "ls"),
        ("image", "info", "disk"),
    ]
    for command in commands:
        running.json(*command)
        text = running.cli(*command).stdout
        assert text.strip(), f"{command}: no text without --json"
    created = json.loads(running.cli("image", "create", "second", "--size", "1G", "--json").stdout)
    assert created["size_bytes"] == 1 << 30, f"{created}"
    assert (
        json.loads(running.cli("image", "resize", "second", "--size", "2G", "--json").stdout)["size_bytes"] == 2 << 30
    ), "not resized"
    assert {image["name"] for image in running.json("image", "ls")} >= {"disk", "second"}, "image ls"
    json.loads(running.cli("image", "rm", "second", "--json").stdout)
    assert "second" not in [image["name"] for image in running.json("image", "ls")], "image ls after rm"
    assert len(json.dumps(running.json("osd", "tree"))) > 50, "osd tree is empty"
    # What OSDs have reported of their PGs may be of before they served.
    wait_for("all is well", lambda: running.json("status")["health"] == "ok", 30)
    credentials = running.json("credentials")
    assert credentials.keys() >= {"access_key", "secret_key", "endpoint", "ca_file"}, f"{credentials.keys()}"
    note(f"{len(commands) + 3} commands")


@pytest.mark.nightly
def test_atoll_bench_object_prints_the_figures_that_were_promised(running, note):
    """'atoll bench object' prints the figures that were promised."""
    for operation in ("put", "get"):
        size = ("--size", "64k", "--objects", "100")
        result = running.json("bench", "object", "--op", operation, *size, "--concurrency", "8", "--seconds", "2")
        assert result["working_set"] == "100 objects (hot)", f"{result}"
        assert (
            result["errors"] == 0 and result["iops"] > 0 and result["mb_per_s"] > 0 and result["cpu_us_per_op"] > 0
        ), f"{result}"
        assert result["latency_us"].keys() >= {"mean", "p50", "p99", "p999"}, f"{result}"
        note(f"{operation} {result['iops']:.0f}/s")


@pytest.mark.nightly
def test_atoll_bench_block_prints_the_figures_that_were_promised(running, note):
    """'atoll bench block' prints the figures that were promised, for all patterns."""
    told = []
    running.create_image("bench", "64M")
    for pattern in ("write", "randwrite", "read", "randread"):
        done = running.cli(
            "bench",
            "block",
            "--image",
            "bench",
            "--rw",
            pattern,
            "--bs",
            "4k",
            "--qd",
            "16",
            "--seconds",
            "1",
            "--json",
        )
        result = json.loads(done.stdout)
        assert result["working_set"] == "64 MiB (hot)", f"{result}"
        assert (
            result["errors"] == 0 and result["iops"] > 0 and result["mb_per_s"] > 0 and result["cpu_us_per_op"] > 0
        ), f"{result}"
        assert result["latency_us"].keys() >= {"mean", "p50", "p99", "p999"}, f"{result}"
        told.append(f"{pattern} {result['iops']:.0f}")
    note("IOPS: " + ", ".join(told))


def test_a_second_atoll_up_on_the_same_directory_is_refused(scenario, running, note):
    """A second 'atoll up' on the same directory is refused, the first goes on."""
    before = running.process_ids()
    for more in ((), ("--detach",)):
        done = scenario.run(*running.up_command(*more), env=running.environment(), ok=None, timeout=60)
        assert done.returncode == 1, f"exit code {done.returncode}"
        assert str(before["supervisor"]) in done.stderr or "running" in done.stderr.lower(), f"not clear: {done.stderr}"
    assert running.process_ids() == before, "processes have changed"
    assert running.json("status")["health"] == "ok", "not healthy"
    note(done.stderr.strip().splitlines()[-1][:120])


@pytest.mark.parametrize(("command", "words"), WRONG, ids=lambda part: " ".join(part)[:40])
def test_wrong_arguments_are_an_exit_code_and_a_message_on_stderr(running, command, words):
    """Wrong arguments: an exit code and a message on stderr."""
    refused(running, *command, words=words)


def test_wrong_arguments_change_nothing(running):
    """No command with wrong arguments has changed anything."""
    names = {image["name"] for image in running.json("image", "ls")}
    assert names <= {"bench", "disk"}, f"image ls: {names}"
    intact(running.read_image("disk", 5 * MIB, 4000) == CONTENT, "the image has changed")


def test_atoll_up_with_other_choices_than_the_first_time_is_refused(scenario, running):
    """'atoll up' with other choices than the first time is refused."""
    for more in (["--osds", "5"], ["--osd-size", "9G"]):
        done = scenario.run(
            scenario.atoll, "up", "--data", running.data, *more, "--detach", env=running.environment(), ok=None
        )
        assert done.returncode != 0 and done.stderr.strip(), f"{more} was taken"
    other = scenario.cluster("other", osd_size="4G")
    for more, word in (
        (["--osds", "0"], "osds"),
        (["--osd-size", "1M"], "osd-size"),
        (["--s3-listen", "nonsense"], "s3-listen"),
        (["--nbd-listen", "nonsense"], "nbd-listen"),
    ):
        done = scenario.run(
            scenario.atoll, "up", "--data", other.data, *more, "--detach", env=other.environment(), ok=None
        )
        assert done.returncode in (1, 2) and word in done.stderr, f"{more}: {done.returncode} {done.stderr}"
        assert not other.all_pids(), f"{more}: processes were left: {other.all_pids()}"
    done = scenario.run(
        *other.up_command("--detach"), env=other.environment() | {"ATOLL_LOG": "info,atoll_osd=lots"}, ok=None
    )
    assert done.returncode == 1 and "ATOLL_LOG" in done.stderr and not other.all_pids(), (
        f"ATOLL_LOG: {done.returncode} {done.stderr}"
    )


def test_a_port_that_is_taken(scenario, running, note):
    """A port that is taken: 'atoll up' says which, and leaves nothing running."""
    other = scenario.cluster("taken", osd_size="4G")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        other.s3_port = holder.getsockname()[1]
        started = time.monotonic()
        done = scenario.run(*other.up_command("--detach"), env=other.environment(), ok=None, timeout=200)
        assert done.returncode == 1, f"exit code {done.returncode}"
        assert str(other.s3_port) in done.stderr, f"the port is not named: {done.stderr[-600:]}"
        wait_for("nothing is left running", lambda: gone(other), 20)
        note(f"after {time.monotonic() - started:.0f} s")
    other.kill_all()


def test_every_child_that_is_killed_is_restarted(running):
    """Every child that is killed is restarted."""
    for name in sorted(running.children()):
        pid = running.kill(name)
        running.restarted(name, pid)
    wait_for("all is well again", lambda: running.json("status")["health"] == "ok" and running.is_serving(), 60, 0.5)
    running.found_again()


def test_atoll_down_ends_everything(running, note):
    """'atoll down' ends everything."""
    started = time.monotonic()
    running.cli("down")
    seconds = time.monotonic() - started
    left = running.all_pids()
    assert not left, f"still running when 'atoll down' returned: {left}"
    assert seconds < STOP_SECONDS_MAX, f"it took {seconds:.1f} s"
    note(f"{seconds:.1f} s")


def test_commands_on_a_stopped_cluster_fail_soon(stopped, note):
    """Commands on a stopped cluster fail soon, with a clear error."""
    for command in (("status",), ("image", "ls"), ("osd", "tree"), ("down",)):
        started = time.monotonic()
        said = refused(stopped, *command, codes=(1,))
        # Nobody listens there: there is nothing to wait for.
        assert time.monotonic() - started < 6, f"{command} took {time.monotonic() - started:.1f} s"
        assert "atoll up" in said or "running" in said or "atoll up" in stopped.cli(*command, ok=None).stderr, (
            f"{command}: no remedy: {said}"
        )
    note(said[:120])


def test_atoll_up_again_with_no_options_finds_all_data(scenario, stopped, note):
    """'atoll up' again with no options finds all data."""
    started = time.monotonic()
    scenario.run(scenario.atoll, "up", "--data", stopped.data, "--detach", env=stopped.environment(), timeout=90)
    note(f"healthy after {time.monotonic() - started:.1f} s")
    stopped.found_again()


@pytest.mark.nightly
def test_down_up_down_up_in_a_row(running):
    """Down, up, down, up in a row."""
    for _ in range(3):
        running.cli("down")
        running.up()
    running.found_again()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_to_a_foreground_supervisor_ends_all_children(number, stopped, note):
    """Ctrl-C (SIGINT to its process group) and SIGTERM to a foreground supervisor end all children."""
    stopped.up_in_foreground(start_new_session=True)
    stopped.found_again()
    # Under load, as it is in life.
    connection = stopped.nbd("disk")
    connection.write(40 * MIB, b"t" * 4096)
    started = time.monotonic()
    if number == signal.SIGINT:
        os.killpg(stopped.foreground.pid, number)
    else:
        stopped.foreground.send_signal(number)
    code = stopped.foreground.wait(STOP_SECONDS_MAX)
    seconds = time.monotonic() - started
    assert code == 0, f"exit code {code}"
    assert not stopped.all_pids(), f"still running: {stopped.all_pids()}"
    assert not (stopped.data / "processes.json").exists(), "processes.json is still there"
    connection.close()
    note(f"{seconds:.1f} s")


@pytest.mark.parametrize("delay", nightly_but([0.1], [0.02, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9]))
def test_a_signal_at_any_moment_of_a_start_ends_it_soon(stopped, delay, note):
    """SIGINT and SIGTERM at any moment of a start end it soon."""
    number = signal.SIGINT if delay in (0.1, 0.3, 0.7) else signal.SIGTERM
    process = stopped.start_up()
    time.sleep(delay)
    started = time.monotonic()
    process.send_signal(number)
    process.wait(STOP_SECONDS_MAX)
    note(f"{number.name}: {time.monotonic() - started:.1f} s")
    assert not stopped.all_pids(), f"still running: {stopped.all_pids()}"


def test_data_is_there_after_starts_that_were_interrupted(running):
    """After starts that were interrupted the next one finds all data."""
    running.found_again()


def test_a_supervisor_that_is_killed_with_9_leaves_no_child_for_long(running, note):
    """A supervisor that is killed with -9 leaves no child for long, and the next start works."""
    os.kill(running.process_ids()["supervisor"], signal.SIGKILL)
    started = time.monotonic()
    wait_for("no child is left", lambda: gone(running), STOP_SECONDS_MAX)
    seconds = time.monotonic() - started
    note(f"children gone after {seconds:.1f} s, healthy again after {running.up():.1f} s")
    running.found_again()


def test_a_start_right_after_the_supervisor_was_killed(running, note):
    """A start right after the supervisor was killed, while its children still end, works."""
    os.kill(running.process_ids()["supervisor"], signal.SIGKILL)
    started = time.monotonic()
    up_seconds = running.up()
    running.found_again()
    note(f"healthy after {up_seconds:.1f} s, everything found after {time.monotonic() - started:.1f} s")


def test_atoll_down_after_a_kill_does_not_signal_a_stranger_that_has_the(scenario, running):
    """'atoll down' after a kill does not signal a stranger that has the supervisor's old number."""
    running.kill_all()
    stranger = scenario.start("sleep", "600")
    path = running.data / "processes.json"
    record = json.loads(path.read_text())
    record["supervisor"] = stranger.pid
    path.write_text(json.dumps(record))
    done = running.cli("down", ok=None, timeout=60)
    assert stranger.poll() is None, f"it was ended by 'atoll down' ({stranger.returncode})"
    assert done.returncode == 1, f"exit code {done.returncode}"
    stranger.kill()
    stranger.wait()


@pytest.mark.parametrize("delay", nightly_but([0.1], [0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.6, 1.0]))
def test_a_first_start_that_was_cut_short_is_finished_by_the_next(scenario, delay):
    """A first start that was cut short at any moment is finished by the next."""
    early = scenario.cluster(f"early-{delay}", osd_size="4G")
    process = early.start_up()
    time.sleep(delay)
    early.kill_all()
    process.wait()
    early.up()
    early.create_image("i", "16M")
    with early.nbd("i") as connection:
        connection.write(0, b"x" * 4096)
    early.kill_all()
