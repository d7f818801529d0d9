"""Every field of every signed kind of record, altered by hand in a running cluster: what each process does then is the
refusal of its own protocol, and health names the record.

Kinds come from the tables of crates/cluster/src: one that is added needs a sample and a door here.
"""

import base64
import contextlib
import json
import re
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from lib.console import Address, Caller, User
from lib.handshake import etcdctl
from lib.identities import Account, FirstAccount, code_of
from lib.nbd import NbdError
from lib.nvme import Controller, NvmeError, host_name, subsystems
from lib.operator import BUCKET, IMAGE, KEY, Small
from lib.ports import free_port
from lib.prometheus import Text
from lib.records import SIGNATURE, query_api
from lib.s3 import error_of
from lib.waiting import NotYet, wait_for

pytestmark = pytest.mark.needs("etcdctl")

SOURCES = Path(__file__).resolve().parents[2] / "crates/cluster/src"
INVALID_HOST = 0x184
# Kinds of processes that follow the cluster map; the coordinator is in an OSD.
FOLLOWERS = {"osd", "gateway", "nbd", "nvme"}
# Kinds whose records no command of a small cluster makes.
ELSEWHERE = {
    "/atoll/approvals/": "crates/authority/tests/records/main.rs alters them; commands read them, and no process",
    "/atoll/login_oidc": "crates/authority/tests/records/main.rs alters it; it needs a provider",
}


def signed_kinds():
    """Prefixes and keys of the kinds that are signed, as the program has them."""
    names = dict(re.findall(r'^pub const (\w+): &str = "([^"]+)";', (SOURCES / "keys.rs").read_text(), re.MULTILINE))
    table = (SOURCES / "kinds.rs").read_text()
    signed = re.findall(r"^    \(\s*keys::(\w+),\s*(?:denies|named)(?:_to_all|_for_all)?\(", table, re.MULTILINE)
    return [names[name] for name in signed]


def alterations(record):
    """The record with each of its fields altered, at any depth, or taken out."""
    if isinstance(record, dict):
        for name, value in record.items():
            yield {key: kept for key, kept in record.items() if key != name}
            yield from ({**record, name: altered} for altered in alterations(value))
    elif isinstance(record, list):
        yield [*record, "*"]
        yield from ([altered, *record[1:]] for first in record[:1] for altered in alterations(first))
    elif isinstance(record, bool):
        yield not record
    elif isinstance(record, int | float):
        yield record + 1
    elif isinstance(record, str):
        yield record + "*"


class World:
    """A cluster with a record of each kind, and the doors of its processes."""

    def __init__(self, scenario):
        self.nvme = ("127.0.0.1", free_port())
        self.small = Small(scenario, options=("--nvme-listen", f"{self.nvme[0]}:{self.nvme[1]}"))
        self.cluster = self.small.cluster
        self.first = FirstAccount(self.cluster)
        self.make_identities()
        self.make_others()

    def make_identities(self):
        cli, account = self.cluster.cli, self.first
        self.low = account.user("low")
        cli("group", "create", "readers")
        cli("group", "add", "readers", "low")
        allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
        cli("policy", "create", "reading", account.file("reading", allowed))
        cli("policy", "attach", "reading", "--group", "readers")
        self.other = Account(self.cluster, [self.cluster], "other")
        root = self.cluster.credentials()
        self.root = (root["access_key"], root["secret_key"])
        session = query_api(self.cluster, "sts", *self.root).get_session_token()["Credentials"]
        self.session = session
        cli("key", "create", "project")
        cli("key", "policy", "set", "project", "--default")

    def make_others(self):
        cli = self.cluster.cli
        self.cluster.create_image("gone", "16M")
        cli("image", "trash", "mv", "gone")
        self.host, self.tls_host = host_name("3"), host_name("4")
        cli(
            "image",
            "access",
            IMAGE,
            "--access",
            "multi-attach",
            f"--allow={self.host}",
            f"--allow={self.tls_host}",
            "--allow=127.0.0.1",
        )
        self.secrets = (self.cluster.json("nvme", "host", "set", self.host)["secret"], None)
        cli("nvme", "host", "set-tls", self.tls_host)
        cli("settings", "set", "full_percent", "96")
        cli("settings", "set", "session_seconds", "7200")
        cli("flag", "set", "noscrub")
        made = self.cluster.json("operator", "create", "watcher", "--role", "admin")
        self.user = User("watcher", made["password"])
        url = f"https://127.0.0.1:{self.cluster.admin_port}"
        self.address = Address(url, self.user, self.user, self.cluster.data / "tls" / "ca.crt")
        self.caller = Caller.logged_in(self.address, self.user)
        self.token = self.cluster.json("operator", "token", "create", "robot", "--role", "read-only")["token"]
        self.metrics = self.cluster.json("metrics", "token", "create", "prometheus")["token"]
        cli("pool", "create", "short", "--size", "1", "--pg-num", "1")
        cli("pool", "rm", "short", "--yes-destroy", "short")
        self.pools = {f"/atoll/pools/{pool['id']}": pool["name"] for pool in self.cluster.json("pool", "ls")}
        self.before = None

    def etcdctl(self, *arguments):
        command, environment = etcdctl(self.cluster)
        done = self.cluster.scenario.run(*command, *arguments, env=environment)
        return done.stdout

    def stored(self):
        """All records of signed kinds, by key."""
        lines = self.etcdctl("get", "/atoll/", "--prefix", "-w", "json")
        pairs = [
            (base64.b64decode(kv["key"]).decode(), base64.b64decode(kv["value"])) for kv in json.loads(lines)["kvs"]
        ]
        return {key: value for key, value in pairs if SIGNATURE.search(value) and key != "/atoll/authority"}

    def refused(self):
        done = self.cluster.scenario.run(
            self.cluster.scenario.atoll, "health", "--json", "--data", self.cluster.data, ok=(0, 1, 2)
        )
        problems = [one for one in json.loads(done.stdout)["problems"] if one["code"] == "RECORDS_REFUSED"]
        return [subject.split(": ")[0] for one in problems for subject in one["subjects"]]

    def log_says(self, process, key):
        log = self.small.path(f"log/{process}.log")
        wait_for(f"{process} tells of {key}", lambda: key in log.read_text(), 10)

    # --- doors

    def s3_of_low(self, _):
        assert error_of(self.low.s3.get_object, Bucket=BUCKET, Key=KEY)[0] == 403

    def every_api_of_low(self, key):
        if key.endswith(self.low.access):
            assert error_of(self.low.s3.get_object, Bucket=BUCKET, Key=KEY) == (403, "InvalidAccessKeyId")
            for service, call in (("sts", "get_caller_identity"), ("iam", "list_users")):
                client = query_api(self.cluster, service, self.low.access, self.low.secret)
                assert error_of(getattr(client, call)) == (403, "InvalidClientTokenId"), service

    def identities(self, key):
        kind, name = key.split("/")[3], key.split("/")[-1]
        self.s3_of_low(key)
        # The gateway keeps the identities that it has read until their revision rises, which an alteration by hand does
        # not do. It would refuse the change below as that of an existing user. A change by a holder has it read again.
        self.cluster.cli("group", "create", "between")
        self.cluster.cli("group", "rm", "between")
        if kind == "users":
            changed = query_api(self.cluster, "iam", *self.root)
            assert error_of(changed.create_user, UserName="low") == (403, "AccessDenied")
        assert kind in ("users", "groups", "policies"), f"{key} has no door"
        self.refused_by_console(f"/api/v1/accounts/{self.first.name}/{kind}/{name}")

    def account(self, key):
        if key.endswith(self.other.id):
            assert error_of(self.other.root.s3.list_buckets)[0] == 403
        else:
            # The first account follows from its oldest key, whatever becomes of its record.
            self.small.check()

    def change_of_identities(self, _):
        iam = query_api(self.cluster, "iam", *self.root)
        assert error_of(iam.create_user, UserName="new") == (403, "AccessDenied")

    def session_of_root(self, _):
        session = self.session
        keys = (session["AccessKeyId"], session["SecretAccessKey"], session["SessionToken"])
        sts = query_api(self.cluster, "sts", *keys)
        assert error_of(sts.get_caller_identity) == (403, "InvalidClientTokenId")
        iam = query_api(self.cluster, "sts", *self.root)
        assert error_of(iam.get_session_token) == (403, "AccessDenied"), "no other key is made in its place"

    def sealed_object(self, _):
        put = self.cluster.s3().put_object
        more = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": "project"}
        assert code_of(put, Bucket=BUCKET, Key="k", Body=b"x", **more) == "AccessDenied"

    def refused_by_console(self, path):
        assert self.caller.call("GET", path).status >= 400, path

    def bucket(self, _):
        get = self.cluster.s3().get_object
        # What the gateway has read before counts for a moment.
        told = lambda: error_of(get, Bucket=BUCKET, Key=KEY) == (403, "AccessDenied")
        wait_for("the owner is refused", told, 10)
        self.refused_by_console(f"/api/v1/buckets/{BUCKET}")

    def login(self, _):
        answer = Caller(self.address).log_in(self.user)
        # Attempts that follow each other are slowed.
        assert answer.status in (401, 429, 503), answer

    def session_of_console(self, _):
        assert self.caller.call("GET", "/api/v1/session").status == 401

    def api_token(self, _):
        assert Caller.with_token(self.address, self.token).call("GET", "/api/v1/osds").status == 401

    def metrics_token(self, _):
        request = urllib.request.Request(
            f"{self.address.origin}/metrics/osd.0", headers={"Authorization": f"Bearer {self.metrics}"}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, context=self.cluster.trust(), timeout=20)
        assert refused.value.code == 401

    def image(self, _):
        with pytest.raises(NbdError, match="no valid signature of this cluster"):
            self.cluster.nbd(IMAGE).read(0, 512)
        self.nvme_host(_)
        self.refused_by_console(f"/api/v1/images/{IMAGE}")

    def nvme_host(self, _):
        with pytest.raises(NvmeError) as refused:
            Controller(self.nvme, subsystems(self.cluster)(IMAGE), self.host, secrets=self.secrets)
        assert refused.value.status & 0xFFF == INVALID_HOST, refused.value

    def nvme_tls(self, _):
        with pytest.raises(NvmeError) as refused:
            Controller(self.nvme, subsystems(self.cluster)(IMAGE), self.tls_host)
        assert refused.value.status & 0xFFF == INVALID_HOST, refused.value

    def trash(self, _):
        assert self.cluster.cli("image", "trash", "restore", "gone", ok=None).returncode != 0

    def followers(self):
        """Processes that follow what all processes verify: of each kind one at least."""
        names = [name for name in self.cluster.process_ids() if re.split(r"\W", name)[0] in FOLLOWERS]
        assert {re.split(r"\W", name)[0] for name in names} == FOLLOWERS, names
        return names

    def metrics_of(self, name):
        request = urllib.request.Request(
            f"{self.address.origin}/metrics/{name}", headers={"Authorization": f"Bearer {self.metrics}"}
        )
        try:
            with urllib.request.urlopen(request, context=self.cluster.trust(), timeout=20) as answer:
                return Text(answer.read().decode())
        except urllib.error.HTTPError as error:
            # A token whose record was altered before is taken for unknown for a moment.
            if error.code != 401:
                raise
            raise NotYet("401") from error

    def refusals(self):
        """By process, the number of records that it has refused."""
        pids, counted = self.cluster.process_ids(), {}
        for name in self.followers():
            text = wait_for(f"metrics of {name}", lambda name=name: self.metrics_of(name), 10)
            counted[(name, pids[name])] = text.total("atoll_security_events_total", event="refused_record")
        return counted

    def all_followers(self, key):
        def have_refused():
            now = self.refusals()
            behind = [name for name, count in self.before.items() if now[name] <= count]
            if behind:
                raise NotYet(f"{key} is not refused by {behind}")
            return True

        wait_for(f"all processes refuse {key}", have_refused, 10)
        self.log_says("osd.0", key)
        self.small.check()

    def pool(self, key):
        self.all_followers(key)
        self.refused_by_console(f"/api/v1/pools/{self.pools[key]}")

    def settings(self, key):
        self.all_followers(key)
        self.refused_by_console("/api/v1/settings")

    def flags(self, key):
        self.all_followers(key)
        self.refused_by_console("/api/v1/flags")

    def named_again(self, _):
        assert self.cluster.cli("nvme", "host", "set", host_name("5"), ok=None).returncode != 0


# By the longest prefix of a key.
DOORS = {
    "/atoll/manifest": World.named_again,
    "/atoll/iam/": World.identities,
    "/atoll/iam/revision": World.change_of_identities,
    "/atoll/iam/sts_key": World.session_of_root,
    "/atoll/iam/accounts/": World.account,
    "/atoll/iam/kms_keys/": World.sealed_object,
    "/atoll/users/": World.every_api_of_low,
    "/atoll/buckets/": World.bucket,
    "/atoll/operators/": World.login,
    "/atoll/operator_sessions/": World.session_of_console,
    "/atoll/login_settings": World.login,
    "/atoll/api_tokens/": World.api_token,
    "/atoll/metrics_tokens/": World.metrics_token,
    "/atoll/images/": World.image,
    "/atoll/removed_images/": World.trash,
    "/atoll/nvme_hosts/": World.nvme_host,
    "/atoll/nvme_tls/": World.nvme_tls,
    "/atoll/authorized_keys/": World.all_followers,
    "/atoll/pools/": World.pool,
    "/atoll/removed_pools/": World.all_followers,
    "/atoll/settings": World.settings,
    "/atoll/frames": World.settings,
    "/atoll/flags": World.flags,
}


# Of these all processes follow every change.
FOLLOWED = {
    kind for kind, door in DOORS.items() if door in (World.all_followers, World.pool, World.settings, World.flags)
}


@pytest.fixture(scope="module")
def world(scenario):
    return World(scenario)


def kind_of(key):
    return max((kind for kind in signed_kinds() if key.startswith(kind)), key=len)


def test_every_kind_has_a_door_and_a_record(world):
    kinds = set(signed_kinds())
    assert len(kinds) > 20, kinds
    assert kinds == set(DOORS) | set(ELSEWHERE)
    assert kinds - set(ELSEWHERE) - {kind_of(key) for key in world.stored()} == set()


@contextlib.contextmanager
def mended(world, key, before):
    try:
        yield
    finally:
        # The operator has put it right, and signs it.
        world.etcdctl("put", key, before.decode())
        world.cluster.cli("cluster", "sign", "--record", key)
        wait_for(f"{key} holds again", lambda: world.refused() == [], 10)


def alter(world, key, limit):
    """Alters fields of a record, up to a limit, and knocks at the door each time."""
    before = world.stored()[key]
    signature = SIGNATURE.search(before).group().decode().rstrip("\n")
    record = json.loads(before)
    del record["signed"]
    count = 0
    with mended(world, key, before):
        for altered in alterations(record):
            world.before = world.refusals() if kind_of(key) in FOLLOWED else None
            text = json.dumps(altered)
            world.etcdctl("put", key, text[:-1] + signature if len(altered) else text)
            wait_for(f"health names {key}", lambda: world.refused() == [key], 10)
            DOORS[kind_of(key)](world, key)
            count += 1
            if count == limit:
                break
    return count


@pytest.mark.parametrize("kind", [kind for kind in signed_kinds() if kind not in ELSEWHERE])
def test_a_field_of_each_kind(world, kind):
    keys = [key for key in world.stored() if kind_of(key) == kind]
    assert alter(world, keys[0], 1) == 1


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [kind for kind in signed_kinds() if kind not in ELSEWHERE])
def test_every_field_of_each_kind(world, kind):
    counts = [alter(world, key, None) for key in world.stored() if kind_of(key) == kind]
    assert all(count > 0 for count in counts)
