"""An etcd that has used its quota takes no writes: health warns at half of it, and its advice ends the trouble."""

import json

import pytest
from lib.etcd import PlainEtcd
from lib.s3 import read
from lib.verdicts import intact
from lib.waiting import NotYet, wait_for

pytestmark = [pytest.mark.needs("etcd", "etcdctl")]

QUOTA_BYTES = 8 << 20
# An argument of a command has at most 128 KiB.
JUNK_BYTES = 100 << 10
BUCKET = "kept-bucket"
BODY = b"acknowledged " * 10_000


class Filled:
    def __init__(self, scenario):
        self.etcd = PlainEtcd(scenario, "--quota-backend-bytes", str(QUOTA_BYTES))
        self.etcd.start("data")
        self.cluster = scenario.cluster(osds=3, osd_size="4G")
        self.cluster.options += ["--etcd", self.etcd.url]
        self.cluster.up()
        # Debian's etcd does not report its quota.
        self.cluster.cli("settings", "set", "etcd_quota_bytes", QUOTA_BYTES)
        self.s3 = self.cluster.s3()
        self.s3.create_bucket(Bucket=BUCKET)
        self.put("before")
        self.junk = 0

    def put(self, key):
        self.s3.put_object(Bucket=BUCKET, Key=key, Body=BODY)

    def fill(self):
        """Puts one more value that nobody needs. False if etcd refuses it."""
        self.junk += 1
        put = self.etcd.ctl("put", f"/junk/{self.junk}", "x" * JUNK_BYTES, ok=None)
        assert put.returncode == 0 or "space exceeded" in put.stderr, put.stderr
        return put.returncode == 0

    def size(self):
        status = json.loads(self.etcd.ctl("endpoint", "status", "-w", "json").stdout)
        return status[0]["Status"]["dbSize"]

    def revision(self):
        return json.loads(self.etcd.ctl("endpoint", "status", "-w", "json").stdout)[0]["Status"]["header"]["revision"]

    def codes(self):
        found = json.loads(self.cluster.cli("health", "--json", ok=(0, 1, 2)).stdout)
        return {problem["code"]: problem["severity"] for problem in found["problems"]}

    def shows(self, code, severity):
        def is_shown():
            codes = self.codes()
            if codes.get(code) != severity:
                raise NotYet(f"health shows {codes}")
            return True

        wait_for(f"health shows {code}", is_shown, 30)

    def free(self):
        """Follows the advice of health."""
        self.etcd.ctl("del", "--prefix", "/junk/")
        self.etcd.ctl("compact", self.revision())
        self.etcd.ctl("defrag", "--cluster")
        self.etcd.ctl("alarm", "disarm")


@pytest.fixture(scope="module")
def filled(scenario):
    return Filled(scenario)


def test_half_of_the_quota_is_a_warning(filled):
    while filled.size() <= QUOTA_BYTES // 2:
        assert filled.fill()
    filled.shows("STATE_NEAR_QUOTA", "warning")


def test_all_of_it_is_an_error_and_data_is_served(filled):
    while filled.fill():
        pass
    filled.shows("STATE_OUT_OF_QUOTA", "error")
    filled.put("meanwhile")
    for key in ("before", "meanwhile"):
        intact(read(filled.s3, BUCKET, key) == BODY, key)


def test_the_advice_ends_it_after_an_osd_has_died_meanwhile(filled):
    old = filled.cluster.kill("osd.1")
    filled.cluster.restarted("osd.1", old)
    filled.free()

    def is_well():
        codes = filled.codes()
        # This etcd asks for no password.
        if {code for code in codes if codes[code] != "note"} - {"STATE_WITHOUT_LOGIN"}:
            raise NotYet(f"health shows {codes}")
        return True

    wait_for("all is well", is_well, 60)
    filled.put("after")
    for key in ("before", "meanwhile", "after"):
        intact(read(filled.s3, BUCKET, key) == BODY, key)
