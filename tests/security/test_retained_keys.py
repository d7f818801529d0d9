"""A key below which versions may be retained is not destroyed by one word."""

import pytest
from lib.s3 import error_of
from lib.waiting import wait_for


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster("retained", osds=1, osd_size="2G")
    cluster.up()
    s3 = cluster.s3()
    for name in ("records", "plain"):
        s3.create_bucket(Bucket=name, ObjectLockEnabledForBucket=name == "records")
        s3.put_object(Bucket=name, Key="k", Body=b"kept")
    return cluster


def destroy(cluster, *arguments):
    done = cluster.cli("key", "destroy", *arguments, ok=None)
    return done.returncode, done.stderr


def content(cluster):
    return cluster.s3().get_object(Bucket="records", Key="k")["Body"].read()


@pytest.mark.parametrize("what", [("--bucket", "records"), ("--key", "atoll")])
def test_force_alone_destroys_no_retained_version(cluster, what):
    code, said = destroy(cluster, *what, "--force")
    assert code == 1 and "--force-destroy-retained" in said and "'records'" in said, (code, said)
    assert content(cluster) == b"kept"


def test_the_second_word_needs_the_first(cluster):
    code, said = destroy(cluster, "--bucket", "records", "--force-destroy-retained")
    assert code == 2 and "--force" in said, (code, said)
    assert content(cluster) == b"kept"


def test_a_bucket_without_locks_needs_one_word(cluster):
    assert destroy(cluster, "--bucket", "plain", "--force")[0] == 0


def test_both_words_destroy(cluster):
    assert destroy(cluster, "--bucket", "records", "--force", "--force-destroy-retained")[0] == 0
    gone = lambda: error_of(cluster.s3().get_object, Bucket="records", Key="k") == (403, "AccessDenied")
    wait_for("the bucket is unreadable", gone, 10)
