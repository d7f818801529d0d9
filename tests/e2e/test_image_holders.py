"""Who has an image when processes do not see each other: containers of one host, and hosts of one name."""

import subprocess
import sys
from functools import partial

import pytest
from lib.nbd import NbdError
from lib.scenario import ATOLL
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
except NbdError as error:
    print(error, flush=True)
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
    cluster.create_image("disk", "64M")
    return cluster


@pytest.fixture(scope="module")
def contained(scenario):
    """A cluster whose processes have a namespace of their own."""
    cluster = scenario.cluster("contained", osds=1, osd_size="1G")
    log = scenario.directory / "contained.log"
    scenario.start_logged(log, *IN_CONTAINER, *cluster.up_command(), env=cluster.environment())

    def serves():
        if cluster.cli("image", "create", "disk", "--size", "64M", ok=None).returncode != 0:
            return False
        cluster.nbd("disk").close()
        return True

    wait_for("it serves images", serves, 90, 0.5)
    wait_for("the image is free", partial(is_free, cluster), 20)
    return cluster


def is_free(cluster):
    return cluster.json("image", "info", "disk")["writer"] is None


@pytest.mark.parametrize("prefix", [IN_CONTAINER, UNDER_ANOTHER_NAME], ids=["pid", "uts"])
def test_an_image_in_use_is_not_taken_from_a_writer_that_is_not_seen(cluster, prefix):
    """A command in another container, or under another name, sees that the image is in use, and its writer goes on."""
    process, says = holder(cluster, "disk")
    assert says == "holds\n"
    atoll = (*prefix, ATOLL, "image")
    for command in (("rm", "disk"), ("snap", "rollback", "disk@one")):
        if command[0] == "snap":
            cluster.cli("image", "snap", "create", "disk@one")
        done = cluster.scenario.run(*atoll, *command, "--data", cluster.data, ok=None)
        assert done.returncode == 1 and "is in use" in done.stderr, done.stderr
    cluster.scenario.run(*atoll, "snap", "create", "disk@two", "--data", cluster.data)
    cluster.cli("image", "snap", "rm", "disk", "--all")
    info = cluster.scenario.run(*atoll, "info", "disk", "--json", "--data", cluster.data).stdout
    assert '"NBD server"' in info, "the writer is there"
    assert process.poll() is None
    let_go(process)
    wait_for("the image is free", partial(is_free, cluster), 20)
    with cluster.nbd("disk") as disk:
        assert disk.read(0, 4096) == b"held" * 1024


def test_a_writer_that_was_killed_is_replaced_at_once_under_another_name(cluster):
    """A name of a host is no reason to wait: the lease of a killed writer is not waited for."""
    process, says = holder(cluster, "disk")
    assert says == "holds\n"
    cluster.kill("nbd")
    cluster.scenario.run(*UNDER_ANOTHER_NAME, ATOLL, "image", "snap", "create", "disk@three", "--data", cluster.data, timeout=8)
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
