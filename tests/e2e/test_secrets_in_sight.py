"""Secrets are given by file, environment or standard input: none can be read in the list of processes."""

import base64
import json
import pathlib
import secrets
import socket
import time

import pytest
from lib.operator import remove
from lib.waiting import CommandFailed, not_yet, wait_for

WAYS = ["file", "standard input", "environment"]
# Of a network that is nobody's (RFC 5737): a host that announces it may make tokens.
NOWHERE = "198.51.100.1"


class Token:
    """A join token whose cluster state takes connections and never answers: who uses it waits there."""

    def __init__(self, scenario):
        self.listener = socket.create_server(("127.0.0.1", 0))
        scenario.at_end.callback(self.listener.close)
        self.endpoint = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.secret = secrets.token_hex(32)
        fields = {"id": secrets.token_hex(8), "secret": self.secret, "cluster_id": secrets.token_hex(16)}
        fields |= {"frame_mode": "secure", "endpoints": [self.endpoint], "login": "told"}
        fields |= {"ca_pem": None, "server_name": None}
        encoded = base64.urlsafe_b64encode(json.dumps(fields).encode()).decode().rstrip("=")
        self.text = f"atoll-join-2.{encoded}"

    def was_used(self):
        """Whether somebody has connected since the last time."""
        self.listener.settimeout(0.1)
        try:
            self.listener.accept()[0].close()
        except TimeoutError:
            return False
        return True


@pytest.fixture(scope="module")
def token(scenario):
    return Token(scenario)


@pytest.fixture(scope="module")
def host(scenario):
    """A host that shall join, with nothing in its directory yet."""
    return scenario.cluster("h2", osds=1, osd_size="1G")


def in_sight(cluster):
    """What every user of this machine can read of a cluster's processes."""
    return {pid: pathlib.Path("/proc", str(pid), "cmdline").read_bytes().decode() for pid in cluster.all_pids()}


def start(scenario, host, command, token, way):
    """Starts a command that is given the token in some way."""
    log, environment = scenario.directory / f"{time.monotonic_ns()}.log", host.environment()
    file = scenario.directory / "token"
    file.write_text(f"{token.text}\n")
    match way:
        case "file":
            return log, scenario.start_logged(log, *command, file, env=environment)
        case "standard input":
            with open(file) as given:
                return log, scenario.start_logged(log, *command, "-", env=environment, stdin=given)
        case "environment":
            command = [part for part in command if part != "--join"]
            environment["ATOLL_JOIN_TOKEN"] = token.text
            return log, scenario.start_logged(log, *command, env=environment)


def join_commands(host):
    return {
        "up": host.up_command("--join"),
        "up --detach": host.up_command("--detach", "--join"),
        "join": [host.scenario.atoll, "join", "--data", host.data],
    }


@pytest.mark.nightly
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.replace(" ", "-"))
@pytest.mark.parametrize("command", ["up", "up --detach", "join"], ids=lambda command: command.replace(" --", "-"))
def test_a_join_token_is_used_and_in_no_command_line(scenario, host, token, command, way):
    """A token from a file, standard input or the environment is used, and no process shows it."""
    log, process = start(scenario, host, join_commands(host)[command], token, way)
    try:
        wait_for(f"the token is used: {log}", token.was_used, 10)
        shown = in_sight(host)
        assert shown, "nothing runs"
        assert not [line for line in shown.values() if token.text in line], shown
    finally:
        process.kill()
        host.kill_all()
        if host.data.exists():
            remove(host.data)


@pytest.mark.parametrize("command", ["up", "up --detach", "join"], ids=lambda command: command.replace(" --", "-"))
def test_a_join_token_on_the_command_line_is_refused(scenario, host, token, command):
    """The refusal names the other ways and does not repeat the token, in no log either."""
    given = [*join_commands(host)[command], token.text]
    try:
        done = scenario.run(*given, env=host.environment(), ok=None, timeout=10)
        said = done.stdout + done.stderr
        assert done.returncode in (1, 2), f"exit code {done.returncode}: {said}"
        for word in ("file", "ATOLL_JOIN_TOKEN", "standard input"):
            assert word in said, f"'{word}' is not in: {said}"
        assert token.text not in said and not host.data.exists(), said
    finally:
        host.kill_all()
        if host.data.exists():
            remove(host.data)


@pytest.fixture(scope="module")
def first(scenario):
    """A host that others may join: what makes tokens runs, and no more is needed."""
    first = scenario.cluster("first", osds=1, osd_size="1G")
    first.options += ["--listen", "127.0.0.1", "--advertise", NOWHERE]
    first.start_up()
    yield first
    first.kill_all()


@pytest.mark.parametrize("way", ["file", "environment"])
def test_a_host_that_has_joined_shows_nothing_of_its_token(scenario, first, way):
    """Neither in command lines nor in the environments of the processes that its supervisor starts."""
    create = ("cluster", "token", "create", "--role", "osd")

    def token():
        with not_yet(CommandFailed):
            return first.json(*create)["token"]

    text = wait_for("a token", token, 60, pause=0.3)
    second = scenario.cluster(f"joined-by-{way}", osds=1, osd_size="1G")
    second.options += ["--host", f"by-{way}", "--listen", "127.0.0.1", "--advertise", NOWHERE]
    if way == "file":
        (scenario.directory / "osd.token").write_text(text)
        second.options += ["--join", scenario.directory / "osd.token"]
    else:
        second.variables["ATOLL_JOIN_TOKEN"] = text
    second.start_up()

    def runs_an_osd():
        with not_yet(FileNotFoundError):
            return any(pid for name, pid in second.children().items() if name[:3] == "osd")

    wait_for("its OSD runs", runs_an_osd, 60)
    for pid, line in in_sight(second).items():
        assert text not in line, f"process {pid} shows the token: {line[:200]}"
    for name, pid in second.children().items():
        assert text not in pathlib.Path("/proc", str(pid), "environ").read_text(), f"{name} was given the token"
    assert text not in second.log_text()
    second.kill_all()


def test_a_secret_key_of_s3_is_on_no_command_line(scenario):
    """'atoll bench object' takes the secret of another endpoint from the environment or a file only."""
    done = scenario.run(scenario.atoll, "bench", "object", "--help")
    [option] = [line for line in done.stdout.splitlines() if "--secret-key" in line] or [""]
    assert "--secret-key-file" in option or not option, option
