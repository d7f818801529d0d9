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
    code, said = destroy(cluster, "--bucket", "records", "--force-destroy-retained", "--operator", "ann")
    assert code == 2 and "--force" in said, (code, said)
    assert content(cluster) == b"kept"


def test_a_bucket_without_locks_needs_one_word(cluster):
    assert destroy(cluster, "--bucket", "plain", "--force")[0] == 0


@pytest.fixture(scope="module")
def operators(cluster, scenario):
    """Files with the passwords of operators."""
    files = {}

    def make(name, role="admin"):
        files[name] = scenario.directory / f"password-{name}"
        files[name].write_text(f"the password of {name}")
        cluster.cli("operator", "create", name, "--role", role, "--password-file", files[name])
        return ("--operator", name, "--password-file", files[name])

    return make


def waiting(cluster):
    return cluster.json("approval", "ls")


def test_two_operators_destroy(cluster, operators):
    """Not one alone, not the same twice, not one that was made for that, and not one who may only look."""
    both = ("--bucket", "records", "--force", "--force-destroy-retained")
    assert destroy(cluster, *both)[0] == 2, "nobody says so"
    ann = operators("ann")
    code, said = destroy(cluster, *both, *ann[:2], "--password-file", cluster.data / "cluster.json")
    assert code == 1 and "password" in said, said
    code, said = destroy(cluster, *both, *ann)
    assert code == 1 and "operator create" in said and not waiting(cluster), said

    bob, eve = operators("bob"), operators("eve", "read-only")
    code, said = destroy(cluster, *both, *ann)
    [request] = waiting(cluster)
    assert code == 1 and request["id"] in said and request["action"] == "key destroy --bucket records", (said, request)
    late = operators("late")
    approve = lambda who: cluster.cli("approval", "approve", request["id"], *who, ok=None)
    for who, why in ((ann, "another operator"), (eve, "role admin"), (late, "after the request")):
        done = approve(who)
        assert done.returncode == 1 and why in done.stderr, done.stderr
    code, said = destroy(cluster, *both, *ann)
    assert code == 1 and request["id"] in said and len(waiting(cluster)) == 1, "it waits"
    assert content(cluster) == b"kept"

    cluster.cli("approval", "deny", request["id"], *bob)
    code, said = destroy(cluster, *both, *ann)
    assert code == 1 and "'bob' has denied it" in said and not waiting(cluster), said
    destroy(cluster, *both, *ann)
    [request] = waiting(cluster)
    assert approve(bob).returncode == 0
    assert destroy(cluster, "--bucket", "plain", "--force")[0] == 0, "what is not locked needs nobody"
    assert content(cluster) == b"kept"
    code, said = destroy(cluster, *both, *late)
    assert code == 1 and content(cluster) == b"kept", "it was approved to another"
    assert destroy(cluster, *both, *ann)[0] == 0
    gone = lambda: error_of(cluster.s3().get_object, Bucket="records", Key="k") == (403, "AccessDenied")
    wait_for("the bucket is unreadable", gone, 10)
    assert request["id"] not in {one["id"] for one in waiting(cluster)}, "it is good once"
