"""Data directories that earlier releases have written, and killed with -9: this one starts on each,
reads every byte, writes, and starts again. What a later release has written is refused.

The directories are tests/e2e/fixtures/*.tar.xz; tools/upgrade_fixture.py makes them.
"""

import json
import struct
import tarfile
from concurrent.futures import ThreadPoolExecutor

import pytest
from lib.identities import Account, FirstAccount, code_of, counts_everywhere, policy
from lib.ports import free_port
from lib.releases import BLOCK, BUCKET, FIXTURES, OSD_SIZE, written
from lib.verdicts import DataFailure

# DOC Formats of later releases, made up by raising the numbers.
FOUND = sorted(FIXTURES.glob("*.tar.xz"))
# Their stores do not count what each pool has.
WITHOUT_COUNTS = {"69cd4a3", "c8ad44e", "d04c6cf"}


class Earlier:
    """A data directory of an earlier release, started, and what is in it."""

    def __init__(self, scenario, fixture):
        self.name = fixture.name.split(".")[0]
        self.cluster, self.content = scenario.cluster(self.name, osd_size=OSD_SIZE), written()
        self.cluster.data.mkdir(mode=0o700)
        with tarfile.open(fixture) as archive:
            archive.extractall(self.cluster.data, filter="tar")
        # The port of the embedded server may be taken here.
        path = self.cluster.data / "cluster.json"
        settings = json.loads(path.read_text())
        address = f"127.0.0.1:{free_port()}"
        settings |= {"state_listen": address, "state_endpoints": [f"http://{address}"]}
        path.write_text(json.dumps(settings))
        self.seconds = self.cluster.up()
        self.verified = None

    def begin(self):
        """Verifies it: the image is attached when the lock of the killed server has run out."""
        try:
            self.verified = self.content.verify(self.cluster)
        except Exception as error:
            self.verified = error
        return self

    def check_stores(self):
        """With the cluster stopped."""
        scenario = self.cluster.scenario
        for device in sorted(self.cluster.data.glob("osd-*/device")):
            scenario.run(
                scenario.atoll, "store", "check", "--device", device, "--data", timeout=300, failure=DataFailure
            )


@pytest.fixture(scope="module")
def starting(scenario):
    """Starts a directory in the background, if it is not started: the next ones while one is tested."""
    pool, begun = ThreadPoolExecutor(2), {}

    def start(fixture):
        if fixture not in begun:
            begun[fixture] = pool.submit(lambda: Earlier(scenario, fixture).begin())
        return begun[fixture]

    yield start
    pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module", params=FOUND, ids=lambda path: path.name.split(".")[0])
def earlier(request, starting):
    own = [item for item in request.session.items if item.module is request.module]
    selected = {item.callspec.params["earlier"] for item in own if "earlier" in item.fixturenames}
    for following in FOUND:
        if following in selected:
            starting(following)
    earlier = starting(request.param).result()
    yield earlier
    earlier.cluster.kill_all()


@pytest.fixture(scope="module")
def cluster(scenario):
    """A stopped cluster of this release."""
    cluster = scenario.cluster("later", osds=1, osd_size=OSD_SIZE)
    cluster.up()
    cluster.down()
    return cluster


def test_there_are_data_directories_of_earlier_releases():
    """There are data directories of earlier releases."""
    assert FOUND, f"none in {FIXTURES}"


def test_every_byte_is_there(earlier, note):
    """This release starts on it, and every byte is there."""
    if isinstance(earlier.verified, Exception):
        raise earlier.verified
    note(f"healthy after {earlier.seconds:.1f} s; {earlier.verified}")


def test_its_first_key_is_root_of_the_first_account(earlier):
    """The first key signs as the root of the first account, to which the buckets belong."""
    cluster = earlier.cluster
    [account] = cluster.json("account", "ls")["Accounts"]
    s3 = cluster.s3()
    owned = s3.list_buckets()
    assert owned["Owner"]["ID"] == account["CanonicalId"], (owned["Owner"], account)
    assert BUCKET in [bucket["Name"] for bucket in owned["Buckets"]], owned
    access = cluster.credentials()["access_key"]
    said = cluster.json("policy", "simulate", "--access-key", access, "s3:PutBucketPolicy", BUCKET)
    assert said["is_allowed"] and "root" in said["reason"], said
    assert access in cluster.cli("user", "key", "ls").stdout


def test_its_buckets_can_be_shared_with_new_accounts_and_users(earlier):
    cluster = earlier.cluster
    first, other = FirstAccount(cluster), Account(cluster, [cluster], "other")
    reader, place = first.user("reader"), {"Bucket": BUCKET, "Key": sorted(earlier.content.objects)[0]}
    assert [code_of(key.s3.get_object, **place) for key in (reader, other.root)] == ["AccessDenied"] * 2
    first.cli("policy", "attach", "AmazonS3ReadOnlyAccess", "--user", "reader")
    statement = ("Allow", "s3:GetObject", f"{BUCKET}/*", {"Principal": {"AWS": other.id}})
    cluster.s3().put_bucket_policy(Bucket=BUCKET, Policy=json.dumps(policy(statement)))
    for key in (reader, other.root):
        counts_everywhere(lambda s3: s3.get_object(**place), key.clients, "ok")


def test_what_its_pools_have_is_not_known(earlier):
    """Stores of the first releases did not count that from their beginning."""
    pools = earlier.cluster.json("pool", "ls")
    is_counted = earlier.name not in WITHOUT_COUNTS
    assert len(pools) >= 2 and all((pool["used_bytes"] is not None) == is_counted for pool in pools), pools


def test_it_is_written_on_and_nothing_is_wrong_after_a_restart(earlier, note):
    """It is written on, and nothing is wrong after a restart."""
    earlier.content.write(earlier.cluster, 3)
    earlier.content.verify(earlier.cluster)
    earlier.cluster.down()
    earlier.check_stores()
    earlier.cluster.up()
    note(earlier.content.verify(earlier.cluster))


def test_its_pgs_split(earlier, note):
    """Its PGs split, and nothing is wrong."""
    for pool in ("images", "objects"):
        earlier.cluster.cli("pool", "set", pool, "pg_num", "128")
    note(earlier.content.verify(earlier.cluster))
    earlier.cluster.down()
    earlier.check_stores()


def test_a_cluster_json_of_a_later_release_is_refused(scenario, cluster, note):
    """A cluster.json of a later release is refused."""
    path = cluster.data / "cluster.json"
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | {"format": 2}))
    for command in (cluster.up_command(), [scenario.atoll, "status", "--data", cluster.data]):
        done = scenario.run(*command, env=cluster.environment(), ok=(1,))
        assert "format 2" in done.stderr and "release" in done.stderr, done.stderr
    note(done.stderr.strip()[-100:])
    path.write_text(before)


def test_a_store_of_a_later_release_is_refused(scenario, cluster, note):
    """A store of a later release is refused."""
    device = cluster.data / "osd-0" / "device"
    with open(device, "r+b") as file:
        for copy in (0, 1):
            file.seek(copy * BLOCK + 8)
            version = struct.unpack("<I", file.read(4))[0]
            file.seek(copy * BLOCK + 8)
            file.write(struct.pack("<I", version + 1))
    for command in (["store", "check", "--device", device], ["osd", "run", "--data", cluster.data, "--id", "0"]):
        done = scenario.run(scenario.atoll, *command, ok=(1,))
        said = done.stdout + done.stderr
        assert f"format version {version + 1}" in said and "release" in said, said
    note(f"format version {version + 1}")
