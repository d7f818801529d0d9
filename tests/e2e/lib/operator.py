"""What an operator has before him: small clusters that start within a second or two, starts that must be refused, and
what of a data directory is kept or lost."""

import contextlib
import json
import os

from lib.cluster import MIB
from lib.s3 import read
from lib.verdicts import intact

BUCKET, KEY, IMAGE = "kept", "kept-object", "disk"
# A start that is refused says so at once.
REFUSED_SECONDS_MAX = 15


class Small:
    """A cluster of one OSD, or a few, with an object and an image in it."""

    def __init__(self, scenario, name="d", osds=1, options=()):
        self.cluster = scenario.cluster(name, osds=osds, osd_size="1G")
        self.cluster.options += options
        self.data = os.urandom(MIB)
        self.cluster.up()
        self.cluster.s3().create_bucket(Bucket=BUCKET)
        self.cluster.s3().put_object(Bucket=BUCKET, Key=KEY, Body=self.data)
        self.cluster.create_image(IMAGE, "64M")
        with self.cluster.nbd(IMAGE) as connection:
            connection.write(0, self.data)

    def check(self):
        """Everything is there, with the cluster running."""
        self.cluster.forget_credentials()
        intact(read(self.cluster.s3(attempts=3), BUCKET, KEY) == self.data, "the object has other bytes")
        intact(self.cluster.read_image(IMAGE, 0, MIB) == self.data, "the image has other bytes")

    def path(self, name):
        return self.cluster.data / name


@contextlib.contextmanager
def without(directory, *names):
    """Files and directories are somewhere else meanwhile; what was made in their place is thrown away."""
    away = directory.with_name(f"{directory.name}.away")
    for name in names:
        (away / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).rename(away / name)
    try:
        yield away
    finally:
        for name in names:
            remove(directory / name)
            (away / name).rename(directory / name)


def remove(path):
    """Removes a file, or a directory with all that is in it."""
    if not path.is_dir() or path.is_symlink():
        return path.unlink(missing_ok=True)
    for inner in path.iterdir():
        remove(inner)
    return path.rmdir()


def refused_start(cluster, *words, options=()):
    """'atoll up' must refuse to start and say why; returns what it says. One that starts is ended."""
    command = cluster.up_command("--detach", *options)
    try:
        done = cluster.scenario.run(*command, env=cluster.environment(), ok=None, timeout=REFUSED_SECONDS_MAX)
        said = done.stdout + done.stderr
        assert done.returncode == 1, f"exit code {done.returncode}: {said}"
        assert not cluster.all_pids(), "something was left running"
    finally:
        cluster.kill_all()
    for word in words:
        assert str(word) in said, f"'{word}' is not in: {said}"
    return said


def problems(cluster, ok=(0, 1, 2)):
    """Exit code of 'atoll health', and its problems by their codes."""
    done = cluster.cli("health", "--json", ok=ok)
    return done.returncode, {problem["code"]: problem for problem in json.loads(done.stdout)["problems"]}


def is_well(health):
    """Whether nothing is wrong but that an etcd without users asks for no password."""
    severe = {problem["code"] for problem in health["problems"] if problem["severity"] != "note"}
    return severe <= {"STATE_WITHOUT_LOGIN"}


def told(health):
    """What 'atoll health' says, on one line."""
    return "; ".join(f"{p['code']}: {p['summary']} {p['subjects'][:6]}" for p in health["problems"])


def files_of(directory):
    """Every file of a directory, with its bytes; devices and logs are left out."""
    found = [path for path in directory.rglob("*") if path.is_file() and path.name != "device"]
    return {str(path.relative_to(directory)): path.read_bytes() for path in found if path.parent.name != "log"}
