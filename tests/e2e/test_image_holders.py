"""Who has an image when processes do not see each other: containers of one host, and hosts of one name."""

import json
import subprocess
import sys
from functools import partial

import pytest
from lib.nbd import NbdError, connect_patiently
from lib.verdicts import intact
from lib.waiting import wait_for

pytestmark = pytest.mark.needs("unshare")

IN_CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
UNDER_ANOTHER_NAME = ("unshare", "--uts", "sh", "-c", 'hostname elsewhere && exec "$@"', "sh")
HOLDER = """
import sys
sys.path.insert(0, sys.argv[1])
from lib.nbd import Nbd, NbdError
try:
    with Nbd(sys.argv[2], sys.argv[3]) as connection, Nbd(sys.argv[2], sys.argv[3]) as second:
        second.write(0, b"held" * 1024)
        print("holds", flush=True)
        sys.stdin.read()
        second.write(0, b"held" * 1024)
except NbdError as error:
    print("error:", error, flush=True)
"""


def holder(cluster, image, *prefix):
    """Another process that has an image open over two connections, and what it says first."""
    tests = str(cluster.scenario.directory.parents[2] / "tests" / "e2e")
    command = (*prefix, sys.executable, "-c", HOLDER, tests, cluster.nbd_socket, image)
    process = cluster.scenario.start(*command, stdin=subprocess.PIPE)
    return process, process.stdout.readline()


def let_go(process):
    process.stdin.close()
    process.wait(20)


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osd_size="1G")
    cluster.up()
    return cluster


@pytest.fixture(scope="module")
def contained(scenario):
    """A cluster whose processes have a namespace of their own."""
    cluster = scenario.cluster("contained", osds=1, osd_size="1G")
    log = scenario.directory / "contained.log"
    scenario.start_logged(log, *IN_CONTAINER, *cluster.up_command(), env=cluster.environment())

    create = ("image", "create", "disk", "--size", "64M")
    wait_for("cluster state is there", lambda: cluster.cli(*create, ok=None).returncode == 0, 90, 0.5)
    connect_patiently(partial(cluster.nbd, "disk")).close()
    wait_for("the image is free", partial(is_free, cluster, "disk"), 20)
    return cluster


def is_free(cluster, image):
    return cluster.json("image", "info", image)["writer"] is None


@pytest.mark.parametrize("image", ["pid", "uts"])
def test_an_image_in_use_is_not_taken_from_a_writer_that_is_not_seen(cluster, image):
    """A command in another container, or under another name, sees that the image is in use, and its writer goes on."""
    cluster.create_image(image, "64M")
    cluster.cli("image", "snap", "create", f"{image}@one")
    process, says = holder(cluster, image)
    assert says == "holds\n"
    prefix = {"pid": IN_CONTAINER, "uts": UNDER_ANOTHER_NAME}[image]

    def elsewhere(*command, ok=(0,)):
        command = (*prefix, cluster.scenario.atoll, "image", *command, "--data", cluster.data)
        return cluster.scenario.run(*command, ok=ok)

    for command in (("trash", "mv", image), ("snap", "rollback", f"{image}@one")):
        done = elsewhere(*command, ok=None)
        assert done.returncode == 1 and "is in use" in done.stderr, done.stderr
    elsewhere("snap", "create", f"{image}@two")
    elsewhere("resize", image, "--size", "96M")
    assert json.loads(elsewhere("info", image, "--json").stdout)["writer"]["purpose"] == "NBD server"
    let_go(process)
    assert "error" not in process.stdout.read()
    wait_for("the image is free", partial(is_free, cluster, image), 20)
    with cluster.nbd(image) as disk:
        intact(disk.read(0, 4096) == b"held" * 1024, "what the writer wrote")


def test_a_writer_that_was_killed_is_replaced_at_once_under_another_name(cluster):
    """A name of a host is no reason to wait: the lease of a killed writer is not waited for."""
    cluster.create_image("killed", "64M")
    process, says = holder(cluster, "killed")
    assert says == "holds\n"
    cluster.kill("nbd")
    snap = (cluster.scenario.atoll, "image", "snap", "create", "killed@one", "--data", cluster.data)
    cluster.scenario.run(*UNDER_ANOTHER_NAME, *snap, timeout=8)
    process.kill()


def test_clients_of_a_server_that_does_not_see_them_are_told_apart(contained):
    """Two clients outside of the server's container do not share an image, and one has several connections."""
    process, says = holder(contained, "disk")
    assert says == "holds\n"
    with pytest.raises(NbdError, match="option refused"):
        contained.nbd("disk").close()
    other, says = holder(contained, "disk", *IN_CONTAINER)
    assert "option refused" in says, says
    other.wait(20)
    let_go(process)
    other, says = holder(contained, "disk", *IN_CONTAINER)
    assert says == "holds\n"
    let_go(other)
