"""Who has the rights of a host with OSDs in an etcd can write the record and the target of every PG.

What he writes there counts for no process, and is put back: the PGs serve on with the members that they had.
"""

import base64
import json
import os
import signal
import time

import pytest
from lib.etcd import PlainEtcd
from lib.operator import problems
from lib.s3 import read
from lib.verdicts import intact
from lib.waiting import wait_for

pytestmark = [pytest.mark.needs("etcd", "etcdctl")]

BUCKET, KEY = "kept", "kept-object"
PGS, TARGETS = "/atoll/pgs/", "/atoll/pg_targets/"


class Changed:
    """A cluster of three OSDs with an object, and somebody who writes its etcd by hand."""

    def __init__(self, scenario):
        self.etcd = PlainEtcd(scenario)
        self.etcd.start("data")
        self.cluster = scenario.cluster(osds=3, osd_size="1G")
        self.cluster.options += ["--etcd", self.etcd.url]
        self.cluster.up()
        self.body = os.urandom(1 << 20)
        self.cluster.s3().create_bucket(Bucket=BUCKET)
        self.put()

    def put(self):
        self.cluster.s3(attempts=3).put_object(Bucket=BUCKET, Key=KEY, Body=self.body)

    def check(self):
        intact(read(self.cluster.s3(attempts=3), BUCKET, KEY) == self.body, "the object has other bytes")
        self.put()

    def stored(self, prefix=PGS):
        found = json.loads(self.etcd.ctl("get", "--prefix", prefix, "-w", "json").stdout).get("kvs", [])
        return {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv["value"]).decode() for kv in found}

    def records(self, prefix=PGS):
        """Without the signatures."""
        return {
            key: {name: field for name, field in json.loads(value).items() if name != "proposer"}
            for key, value in self.stored(prefix).items()
        }

    def write(self, key, value):
        self.etcd.ctl("put", key, value)

    def settled(self):
        return all(record["activated_epoch"] == record["epoch"] for record in self.records().values())

    def quiet(self):
        """Records of PGs, once none changes for two seconds."""
        found = [self.records()]

        def stay():
            time.sleep(2)
            found.append(self.records())
            return found[-1] == found[-2]

        wait_for("PGs are where they should be", stay, 60)
        return found[-1]

    def kill(self, name):
        pid = self.cluster.process_ids()[name]
        os.kill(pid, signal.SIGKILL)
        self.cluster.restarted(name, pid)


@pytest.fixture(scope="module")
def changed(scenario):
    return Changed(scenario)


@pytest.fixture(scope="module")
def older(changed):
    """Records of PGs, with their signatures, that others have followed since."""
    older = changed.stored()
    changed.kill("osd.2")

    def have_followed():
        now = changed.records()
        return changed.settled() and all(
            now[key]["epoch"] > json.loads(value)["epoch"] and 2 in now[key]["members"] for key, value in older.items()
        )

    wait_for("each PG had another member, and has the restarted one again", have_followed, 60)
    return older


def test_a_new_cluster_with_an_etcd_wants_signatures(changed):
    assert changed.cluster.json("settings", "ls")["pg_signatures_required"]
    assert all('"proposer":"' in value for value in changed.stored().values())
    assert all('"proposer":"' in value for value in changed.stored(TARGETS).values())
    assert "CHANGES_OF_PGS_REFUSED" not in problems(changed.cluster)[1]


def test_members_change_as_ever(changed, older):
    changed.check()
    assert "CHANGES_OF_PGS_REFUSED" not in problems(changed.cluster)[1]


def alone(record):
    """The record as a thief wants it: the PG is on his OSD only, and has been active there."""
    epoch = record["epoch"] + 5
    mine = {"members": [2], "primary": 2, "last_active_members": [2]}
    return {**record, **mine, "epoch": epoch, "activated_epoch": epoch}


def with_old_signature(value, record):
    return json.dumps(record)[:-1] + "," + value[value.index('"proposer":"') :]


@pytest.mark.parametrize("how", ["unsigned", "with the signature of another", "put back", "removed"])
def test_a_record_that_was_changed_by_hand_is_put_back(changed, older, how):
    records = changed.quiet()
    before = changed.stored()
    assert len(before) > 30
    for key, value in before.items():
        if how == "removed":
            changed.etcd.ctl("del", key)
        elif how == "put back":
            changed.write(key, older[key])
        elif how == "unsigned":
            changed.write(key, json.dumps(alone(records[key])))
        else:
            changed.write(key, with_old_signature(value, alone(records[key])))
    wait_for("all records are as before", lambda: changed.records() == records, 30)
    changed.check()
    wait_for("health tells of it", lambda: "CHANGES_OF_PGS_REFUSED" in problems(changed.cluster)[1], 15)
    for process in ("osd.0", "gateway"):
        assert "refused_record" in changed.cluster.data.joinpath("log", f"{process}.log").read_text()


def test_a_target_that_was_changed_by_hand_is_put_back(changed):
    pgs = changed.quiet()
    before = changed.records(TARGETS)
    for key in pgs:
        target = {"format": 1, "members": [2]}
        changed.write(key.replace(PGS, TARGETS), json.dumps(target))
    wait_for("all targets are as before", lambda: changed.records(TARGETS) == before, 30)
    assert changed.records() == pgs
    changed.check()


def test_presence_that_was_removed_by_hand_comes_back(changed):
    key = "/atoll/osd_up/1"
    before = changed.stored(key)
    changed.etcd.ctl("del", key)
    wait_for("osd.1 is there again", lambda: changed.stored(key) == before, 10)
    changed.check()


def test_members_change_afterwards(changed):
    epochs = {key: record["epoch"] for key, record in changed.records().items()}
    changed.kill("osd.1")

    def has_changed():
        now = changed.records()
        return changed.settled() and all(
            record["epoch"] > epochs[key] and 1 in record["members"] for key, record in now.items()
        )

    wait_for("each PG has the restarted member again", has_changed, 60)
    changed.cluster.cli("pool", "create", "more", "--pg-num", "4", "--failure-domain", "osd")
    wait_for("the new pool serves", lambda: len(changed.records()) == len(epochs) + 4 and changed.settled(), 30)
    changed.cluster.cli("pool", "set", "more", "pg_num", "8")
    wait_for("its PGs are split", lambda: len(changed.records()) == len(epochs) + 8 and changed.settled(), 60)
    changed.cluster.cli("pool", "rm", "more", "--yes-destroy", "more")
    wait_for("its PGs are gone", lambda: len(changed.records()) == len(epochs), 30)
    changed.check()


def test_after_a_restart_all_is_as_before(changed):
    records = changed.records()
    changed.cluster.down()
    changed.cluster.up()
    assert {key: record["members"] for key, record in changed.records().items()}.keys() == records.keys()
    changed.check()
