"""What operators do with images and OSDs by the console and its API: clones, flattening, moves, access, locks, and an
OSD that is removed."""

import random

import pytest
from lib.cluster import MIB
from lib.nbd import NbdError
from lib.verdicts import intact
from lib.waiting import wait_for

NOISE = random.Random(24).randbytes(MIB)
SIZE = 32 * MIB
# So slow that a copy of SIZE does not end by itself during a test.
SLOW = MIB
# What one admin server copies at once (crates/console/src/copies.rs).
COPIES_MAX = 4


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osds=4, osd_size="2G")
    cluster.up()
    cluster.cli("pool", "create", "second", "--size", "2", "--pg-num", "8")
    fill(cluster, "golden")
    cluster.cli("image", "snap", "create", "golden@first")
    return cluster


def fill(cluster, name):
    """An image that is full of the same noise."""
    cluster.create_image(name, SIZE)
    with cluster.nbd(name) as connection:
        for at in range(0, SIZE, MIB):
            connection.write(at, NOISE)


def is_full(cluster, name):
    return all(cluster.read_image(name, at, MIB) == NOISE for at in range(0, SIZE, MIB))


def image(admin, name):
    answer = admin.call("GET", f"/api/v1/images/{name}")
    assert answer.status == 200, f"{answer}"
    return answer.document


def cloned(admin, name):
    made = admin.call("POST", "/api/v1/images/golden/snapshots/first/clone", {"name": name})
    assert made.status == 201 and image(admin, name)["parent"] == "golden@first", f"{made}"
    return name


def commands(admin):
    """What was done, and by whom."""
    events = admin.call("GET", "/api/v1/events?limit=1000").document["events"]
    return {event["summary"]: event["user"] for event in events if event["code"] == "COMMAND"}


def test_a_snapshot_is_cloned_and_the_clone_flattened(console, cluster, admin):
    """Nobody writes to the clone: the admin server copies."""
    console.open("images/golden").button("Clone first").click()
    console.fill(name="clone", pool="second")
    console.submit()
    wait_for("the page of the clone", lambda: console.part == "images/clone", 10)
    console.ready().button("Flatten").click()
    console.submit()
    wait_for("it needs no parent", lambda: image(admin, "clone")["parent"] is None, 120)
    assert image(admin, "clone")["pool_name"] == "second" and is_full(cluster, "clone")
    wait_for("the page says so", lambda: "Flatten" not in console.texts("main button"), 20)
    assert console.errors() == []


@pytest.mark.nightly
def test_a_flattening_is_stopped(console, admin):
    cloned(admin, "slow")
    begun = admin.call("POST", "/api/v1/images/slow/flatten", {"rate_bytes": SLOW})
    assert begun.status == 200 and begun.document == {"flattening": "slow"}, f"{begun}"
    console.open("images/slow").button("Stop flattening").click()
    console.submit()
    assert image(admin, "slow")["flattening"] is None and image(admin, "slow")["parent"] == "golden@first"
    again = admin.call("POST", "/api/v1/images/slow/flatten/stop", {})
    assert again.status == 409 and "not being flattened" in again.document["message"], f"{again}"


def test_a_server_copies_only_so_many_images_at_once(admin):
    """One more is refused, and begun by nobody, until one of them is done."""
    names = [cloned(admin, f"many-{number}") for number in range(COPIES_MAX + 1)]
    flatten = lambda name: admin.call("POST", f"/api/v1/images/{name}/flatten", {"rate_bytes": SLOW}).status
    for name in names[:COPIES_MAX]:
        # An earlier test's copy may not have ended yet.
        wait_for(f"{name} is copied", lambda name=name: flatten(name) == 200, 30)
    assert flatten(names[-1]) == 409 and image(admin, names[-1])["flattening"] is None
    for name in names[:-1]:
        assert admin.call("POST", f"/api/v1/images/{name}/flatten/stop", {}).status == 200
    wait_for("there is room for it", lambda: flatten(names[-1]) == 200, 60)
    assert admin.call("POST", f"/api/v1/images/{names[-1]}/flatten/stop", {}).status == 200


def test_an_image_moves_to_another_pool(console, cluster, admin):
    """With its data, and without what it was before."""
    fill(cluster, "mover")
    console.open("images/mover").button("Move to a pool").click()
    console.fill(pool="second", sealed="false")
    console.submit()
    wait_for("everything is there", lambda: image(admin, "mover")["flattening"] is None, 120)
    moved = image(admin, "mover")
    assert (moved["pool_name"], moved["sealed"], moved["parent"]) == ("second", False, None)
    assert is_full(cluster, "mover")
    names = lambda: [one["name"] for one in admin.call("GET", "/api/v1/images?fast=true").document]
    wait_for("the old place is gone", lambda: not [name for name in names() if name.startswith("mover.")], 60)
    again = admin.call("POST", "/api/v1/images/mover/migrate", {"pool": "second", "sealed": False})
    assert again.status == 409, f"{again}"
    assert console.errors() == []


@pytest.mark.nightly
def test_a_move_is_cancelled(console, cluster, admin):
    """The image is where it was, with what was written meanwhile, and nothing of the move is left."""
    fill(cluster, "returner")
    path = "/api/v1/images/returner/migrate"
    assert admin.call("POST", path, {"pool": "second", "rate_bytes": SLOW}).status == 200
    with cluster.nbd("returner") as connection:
        connection.write(0, NOISE[::-1])
        console.open("images/returner").button("Cancel the move").click()
        console.submit()
        assert image(admin, "returner")["pool_name"] == "images"
        wait_for("everything is back", lambda: image(admin, "returner")["flattening"] is None, 60)
        wait_for("the page says so", lambda: "Move to a pool" in console.texts("main button"), 20)
        intact(connection.read(0, MIB) == NOISE[::-1], "other bytes")
        connection.write(0, NOISE)
    assert is_full(cluster, "returner")
    names = lambda: [one["name"] for one in admin.call("GET", "/api/v1/images?fast=true").document]
    assert not [name for name in names() if name.startswith("returner.")]
    again = admin.call("POST", f"{path}/cancel", {})
    assert again.status == 409 and "nothing to cancel" in again.document["message"], f"{again}"
    assert commands(admin).get("atoll image migrate --cancel --no-wait returner") == "ann (console)"
    assert console.errors() == []


def test_the_rights_of_an_export_are_changed_as_a_whole(console, cluster, admin):
    cluster.create_image("shared", "16M")
    console.open("images/shared").button("Change access").click()
    console.fill(access="read_only", clients="vm1.example, 10.0.0.0/8")
    console.submit()
    wanted = {"access": "read_only", "clients": ["vm1.example", "10.0.0.0/8"]}
    assert cluster.json("image", "access", "shared") == wanted == image(admin, "shared")["export"]
    with cluster.nbd("shared") as connection, pytest.raises(NbdError):
        connection.write(0, b"x" * 4096)
    path = "/api/v1/images/shared/access"
    answer = admin.call("PUT", path, {"access": "multi_attach", "clients": []})
    assert answer.document == {"access": "multi_attach", "clients": []} == image(admin, "shared")["export"]
    for body in ({"access": "multi_attach"}, {"access": "all", "clients": []}, {"access": "exclusive", "clients": [1]}):
        refused = admin.call("PUT", path, body)
        assert refused.status == 400, f"{body}: {refused}"
    assert image(admin, "shared")["export"]["access"] == "multi_attach"


def test_an_image_is_taken_away_from_its_writer_only_with_its_name(console, cluster, admin):
    cluster.create_image("held", "16M")
    with cluster.nbd("held") as connection:
        connection.write(0, b"a" * 4096)
        console.open("locks").button("Take held away").click()
        console.fill(confirm="other")
        console.one("dialog[open] [type=submit]").click()
        wait_for("it is refused", lambda: console.all("dialog [role=alert]"), 20)
        wrong = admin.call("POST", "/api/v1/images/held/lock/break", {"confirm": "other"})
        assert wrong.status == 403 and wrong.document["code"] == "CONFIRM_WRONG", f"{wrong}"
        connection.write(4096, b"b" * 4096)
        console.fill(confirm="held")
        console.submit()
        with pytest.raises((NbdError, ConnectionError)):
            connection.write(0, b"c" * 4096)
    intact(cluster.read_image("held", 0, 8192) == b"a" * 4096 + b"b" * 4096, "other bytes")
    assert console.errors() == []


def osd_state(admin, number):
    return {osd["id"]: osd for osd in admin.call("GET", "/api/v1/osds").document}.get(number)


def test_an_osd_that_is_needed_is_not_removed(admin, cluster):
    """And goes on running."""
    pid = cluster.process_ids()["osd.3"]
    wrong = admin.call("POST", "/api/v1/osds/3/remove", {"confirm": "osd.2"})
    assert wrong.status == 403 and wrong.document["code"] == "CONFIRM_WRONG", f"{wrong}"
    held = admin.call("POST", "/api/v1/osds/3/remove", {"confirm": "osd.3"})
    assert held.status == 409 and "mark it out" in held.document["message"], f"{held}"
    assert cluster.process_ids()["osd.3"] == pid and osd_state(admin, 3)["state"] == "up"
    missing = admin.call("POST", "/api/v1/osds/7/remove", {"confirm": "osd.7"})
    assert missing.status == 404, f"{missing}"


@pytest.mark.nightly
def test_an_osd_is_drained_and_removed(console, admin, cluster):
    console.open("osds/3").button("Mark out osd.3").click()
    console.fill(confirm="osd.3")
    console.submit()
    wait_for("it has no PGs", lambda: osd_state(admin, 3)["pgs"] == 0, 180)
    wait_for(
        "the page knows",
        lambda: osd_state(admin, 3)["is_out"] and "0; it should have 0" in console.texts("main")[0],
        20,
    )
    console.button("Remove osd.3").click()
    console.fill(confirm="osd.3")
    console.submit()
    wait_for("the list of OSDs", lambda: console.part == "osds", 30)
    assert osd_state(admin, 3) is None and "osd.3" not in cluster.process_ids()
    assert is_full(cluster, "golden") and console.errors() == []


def test_what_was_done_is_in_the_log_of_events_with_who_did_it(admin):
    done = commands(admin)
    for command in (
        "atoll image clone --pool=second --sealing=on golden@first clone",
        "atoll image flatten --no-wait clone",
        "atoll image migrate --pool=second --sealing=off --no-wait mover",
        "atoll image access --reset --access=multi-attach shared",
        "atoll image lock break --yes held",
    ):
        assert done.get(command) == "ann (console)", f"{command}: {sorted(done)}"
