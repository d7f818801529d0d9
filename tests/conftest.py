"""Fixtures of the end-to-end tests, and what keeps them apart from each other and leaves the machine clean.

    make e2e                                                      the quick tier, three modules at a time
    .venv/bin/python -m pytest --atoll=PATH -k "revoked and gateway"    some tests, with another binary
    .venv/bin/python -m pytest -m "nightly or not nightly" tests/e2e/test_partitions.py

With --second-runs what fails runs again, alone, after the others (`lib/second_runs.py`); with --shuffle=SEED tests of
modules marked any_order come in a random order.

A module is a scenario: its fixtures start clusters and put them into a state, and each test makes one claim about
that. Tests run in the order of the file, later ones with fixtures that build on what earlier ones use, so that each can
also run alone. Data is in ATOLL_E2E_DIR (target/e2e), which must support O_DIRECT; what failed modules leave there is
removed by their next run, and ATOLL_E2E_KEEP=1 keeps all of it.
"""

import collections
import os
import pathlib
import random
import secrets
import shutil
import signal
import sys

import pytest
from lib.console import Caller, Console, with_operators
from lib.devices import detach_leftovers
from lib.mounted import unmount_leftovers
from lib.net import remove_leftovers
from lib.processes import end_all, is_alive
from lib.scenario import ATOLL, Scenario
from lib.second_runs import SECOND_RUN, SecondRuns, mark
from lib.waiting import Failed

TEST_SECONDS_MAX = 300
# Commands that tests need, and the Debian packages (or those of tests/requirements.txt) that have them.
PACKAGES = {
    "aws": "tests/requirements.txt",
    "busybox": "busybox-static",
    "chromedriver": "chromium-driver",
    "chromium": "chromium",
    "cryptsetup": "cryptsetup-bin",
    "curl": "curl",
    "debugfs": "e2fsprogs",
    "e2fsck": "e2fsprogs",
    "etcd": "etcd-server",
    "etcdctl": "etcd-client",
    "fio": "fio",
    "fstrim": "util-linux",
    "gcore": "gdb",
    "haproxy": "haproxy",
    "ip": "iproute2",
    "jq": "jq",
    "losetup": "mount",
    "mke2fs": "e2fsprogs",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "mkswap": "util-linux",
    "mount": "mount",
    "nbdcopy": "libnbd-bin",
    "nbdfuse": "libnbd-bin",
    "nbdinfo": "libnbd-bin",
    "nft": "nftables",
    "nvme": "nvme-cli",
    "openssl": "openssl",
    "prlimit": "util-linux",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "qemu-img": "qemu-utils",
    "qemu-io": "qemu-utils",
    "qemu-system-x86_64": "qemu-system-x86",
    "rclone": "rclone",
    "rdma": "iproute2",
    "restic": "restic",
    "s3cmd": "tests/requirements.txt",
    "setpriv": "util-linux",
    "socat": "socat",
    "tcpdump": "tcpdump",
    "xfs_repair": "xfsprogs",
    "zstd": "zstd",
}
# With several workers the modules that take longest begin first.
LONGEST = (
    "nbd",
    "console",
    "openid_login",
    "partitions",
    "images",
    "hosts",
    "at_rest",
    "erasure",
    "snapshots",
    "keys",
    "identities",
    "osd_killed",
    "restart",
    "foreign_data",
    "documented_commands",
    "administration",
    "image_moves",
    "damaged_device",
    "full_device",
)
SESSION = "ATOLL_E2E_SESSION"


# --- the run


def pytest_addoption(parser):
    parser.addoption("--atoll", default=str(ATOLL), help="the binary to test")
    parser.addoption(
        "--scale",
        type=float,
        default=float(os.environ.get("ATOLL_E2E_SCALE", "1")),
        help="times as much data and load (or ATOLL_E2E_SCALE)",
    )
    parser.addoption("--shuffle", type=int, metavar="SEED", help="random order within modules marked any_order")
    parser.addoption("--second-runs", action="store_true", help="run tests that failed again, alone, after the others")


def pytest_configure(config):
    if is_worker(config):
        return
    if config.getoption("second_runs") and SECOND_RUN not in os.environ:
        config.pluginmanager.register(SecondRuns(config))
    # Commands of the virtual environment, such as aws.
    os.environ["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    os.environ[SESSION] = f"{os.getpid()}.{secrets.token_hex(8)}"
    # Fixtures end what they started also when the run is told to end.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end_all(lambda run: not is_alive(int(run.split(".")[0])))
    remove_leftovers()
    unmount_leftovers()
    detach_leftovers()


def pytest_unconfigure(config):
    """Workers that were killed cannot end what they started."""
    if not is_worker(config) and SESSION in os.environ:
        end_all(lambda run: run == os.environ[SESSION])
        remove_leftovers()
        unmount_leftovers()
        detach_leftovers()


def is_worker(config):
    return hasattr(config, "workerinput")


def pytest_report_header(config):
    seed = config.getoption("shuffle")
    return None if seed is None else f"shuffled: --shuffle={seed}"


def pytest_collection_modifyitems(config, items):
    if (seed := config.getoption("shuffle")) is not None:
        shuffle(items, random.Random(seed))

    def rank(item):
        name = item.path.stem.removeprefix("test_")
        return LONGEST.index(name) if name in LONGEST else len(LONGEST)

    items.sort(key=rank)


def shuffle(items, rng):
    """Puts the tests of each module that is marked any_order in a random order, at the places that they have."""
    for module in dict.fromkeys(item.path for item in items):
        places = [place for place, item in enumerate(items) if item.path == module]
        if items[places[0]].get_closest_marker("any_order"):
            shuffled = rng.sample(places, len(places))
            items[:] = [items[dict(zip(places, shuffled)).get(place, place)] for place in range(len(items))]


# --- the time that a test may take


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item):
    fail_if_missing(item.own_markers)
    with_limit(item)
    try:
        return (yield)
    finally:
        signal.alarm(0)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    with_limit(item)
    try:
        return (yield)
    finally:
        signal.alarm(0)


def with_limit(item):
    """A test and its fixtures are interrupted after this many seconds each."""
    marker = item.get_closest_marker("limit")
    seconds = int((marker.args[0] if marker else TEST_SECONDS_MAX) * item.config.getoption("--scale"))

    def on_alarm(_number, _frame):
        raise Failed(f"more than {seconds} s")

    signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(seconds)


# --- what is reported


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        mark(report, call.excinfo and call.excinfo.value)
        item.getparent(pytest.Module).stash[FAILED] = True
        scenario = item.funcargs.get("scenario") if hasattr(item, "funcargs") else None
        if scenario and (trouble := scenario.trouble()):
            report.sections.append(("trouble in the logs", trouble))
    return report


FAILED = pytest.StashKey[bool]()


def pytest_terminal_summary(terminalreporter):
    """Seconds of each module, and with -v what tests noted."""
    seconds, notes = collections.Counter(), []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "nodeid", "") and hasattr(report, "duration"):
                seconds[pathlib.Path(report.nodeid.split("::")[0]).stem] += report.duration
                if report.when == "call":
                    notes += [(report.nodeid, text) for name, text in report.user_properties if name == "note"]
    terminalreporter.section("seconds of each module")
    for name, total in seconds.most_common():
        terminalreporter.line(f"{total:7.1f} {name}")
    if terminalreporter.config.get_verbosity() > 0:
        terminalreporter.section("notes")
        for nodeid, text in notes:
            terminalreporter.line(f"{nodeid}: {text}")


# --- fixtures


@pytest.fixture
def note(request):
    """Notes a figure, which a run with -v shows at its end."""
    return lambda text: request.node.user_properties.append(("note", str(text)))


@pytest.fixture(scope="module")
def scenario(request):
    """A directory, processes and clusters for the tests of one module, all ended after the last one."""
    atoll = request.config.getoption("--atoll")
    if not os.access(atoll, os.X_OK):
        pytest.exit(f"{atoll} is not there; build it first or name it with --atoll", returncode=2)
    found = Scenario(request.path.stem.removeprefix("test_"), atoll, request.config.getoption("--scale"))
    yield found
    found.clean_up(keep=request.node.stash.get(FAILED, False) or bool(os.environ.get("ATOLL_E2E_KEEP")))


@pytest.fixture(autouse=True, scope="module")
def needed(request):
    """What a module says it needs: commands, and root."""
    fail_if_missing(request.node.iter_markers())
    if request.node.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip("it takes root")


def fail_if_missing(markers):
    names = [name for marker in markers if marker.name == "needs" for name in marker.args]
    missing = [f"{name} (install {PACKAGES[name]})" for name in names if not shutil.which(name)]
    if missing:
        pytest.fail("missing: " + ", ".join(missing))


# --- the console of a module's cluster


@pytest.fixture(scope="module")
def address(cluster):
    """Where it is, with an operator of each role."""
    return with_operators(cluster)


@pytest.fixture(scope="module")
def console(address):
    """A browser in which the administrator is logged in."""
    with Console(address) as console:
        console.log_in(address.admin)
        yield console


@pytest.fixture(scope="module")
def admin(address):
    return Caller.logged_in(address, address.admin)


@pytest.fixture(scope="module")
def reader(address):
    return Caller.logged_in(address, address.reader)
