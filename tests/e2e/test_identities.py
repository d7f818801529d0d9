"""Accounts, users, groups and policies, changed by the command line and asked for at two gateways: what is given
and taken counts at both within a second or so, and a simulation says what they do."""

import contextlib
import json
import pathlib
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from lib.gateway import Gateway
from lib.identities import Account, Nobody, code_of, counts_everywhere, policy
from lib.waiting import wait_for

BUCKET, OTHERS_BUCKET = "photos", "others"
READ_ONLY = "AmazonS3ReadOnlyAccess"
DENIED = "AccessDenied"


def get(key, bucket=BUCKET):
    return lambda s3: s3.get_object(Bucket=bucket, Key=key)


def put(key, bucket=BUCKET):
    return lambda s3: s3.put_object(Bucket=bucket, Key=key, Body=b"new")


def delete(key):
    return lambda s3: s3.delete_object(Bucket=BUCKET, Key=key)


def listing(prefix=""):
    return lambda s3: s3.list_objects_v2(Bucket=BUCKET, Prefix=prefix)


class World:
    """A cluster with two gateways and two accounts, each with a bucket."""

    def __init__(self, scenario):
        # What is logged must be clean even when much is logged.
        scenario.environment |= {"ATOLL_LOG": "debug"}
        self.cluster = scenario.cluster(osds=1, osd_size="2G")
        self.cluster.up()
        self.second = Gateway(self.cluster)
        self.gateways = [self.cluster, self.second]
        wait_for("the second gateway serves", self.second.is_serving, 30)
        self.sales = self.account("sales", "--email", "sales@example.com")
        self.other = self.account("other")
        self.nobody = Nobody([self.cluster.credentials()["endpoint"], self.second.endpoint()])
        self.owner = self.sales.root.s3
        self.owner.create_bucket(Bucket=BUCKET)
        self.other.root.s3.create_bucket(Bucket=OTHERS_BUCKET)
        for key in ("home/a", "public/a", "sealed/a", "a"):
            self.owner.put_object(Bucket=BUCKET, Key=key, Body=key.encode())

    def account(self, name, *more):
        return Account(self.cluster, self.gateways, name, *more)


@pytest.fixture(scope="module")
def world(scenario):
    return World(scenario)


def status_of(url):
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def refused(cluster, *arguments, words):
    done = cluster.cli(*arguments, ok=(1,))
    assert all(word in done.stderr for word in words) and "panicked" not in done.stderr, done.stderr


# --- accounts


def test_a_new_account_signs_at_once_at_both_gateways(world):
    account = world.account("quick")
    answers = [code_of(client.list_buckets) for client in account.root.clients]
    assert answers == ["ok", "ok"], answers
    owner = account.root.s3.list_buckets()["Owner"]
    assert owner["ID"] == account.canonical_id, owner


def test_buckets_are_those_of_the_account_that_made_them(world):
    for account, bucket in ((world.sales, BUCKET), (world.other, OTHERS_BUCKET)):
        for client in account.root.clients:
            assert [found["Name"] for found in client.list_buckets()["Buckets"]] == [bucket]


@pytest.mark.parametrize("request_of", [get("a"), put("a"), delete("a"), listing()])
def test_another_account_is_refused(world, request_of):
    assert [code_of(request_of, client) for client in world.other.root.clients] == [DENIED] * 2


def test_the_first_account_has_no_part_in_others(world):
    first = world.cluster.s3()
    assert code_of(get("a"), first) == DENIED
    assert BUCKET not in [bucket["Name"] for bucket in first.list_buckets()["Buckets"]]


def test_accounts_are_listed(world):
    accounts = {account["Name"]: account for account in world.cluster.json("account", "ls")["Accounts"]}
    assert accounts["sales"]["Id"] == world.sales.id and accounts["sales"]["Email"] == "sales@example.com"
    assert accounts["other"]["CanonicalId"] == world.other.canonical_id
    text = world.cluster.cli("account", "ls").stdout
    assert world.sales.id in text and world.sales.canonical_id in text, text


def test_an_account_gets_another_name_and_address_and_stays_itself(world):
    account = world.account("before")
    world.cluster.cli("account", "set", "before", "--name", "after", "--email", "after@example.com")
    [found] = [found for found in world.cluster.json("account", "ls")["Accounts"] if found["Name"] == "after"]
    assert (found["Id"], found["Email"]) == (account.id, "after@example.com"), found
    assert [code_of(client.list_buckets) for client in account.root.clients] == ["ok", "ok"]


def test_no_two_accounts_have_one_name(world):
    refused(world.cluster, "account", "create", "sales", words=["sales", "exists"])
    refused(world.cluster, "account", "set", "other", "--name", "sales", words=["sales", "exists"])


def test_an_account_that_owns_buckets_stays(world):
    account = world.account("owner")
    account.root.s3.create_bucket(Bucket="owned")
    account.cli("user", "key", "rm", account.root.access)
    refused(world.cluster, "account", "rm", "owner", words=["bucket"])
    assert "owner" in world.cluster.cli("account", "ls").stdout


def test_an_account_without_anything_goes(world):
    account = world.account("short")
    refused(world.cluster, "account", "rm", "short", words=["access keys"])
    account.cli("account", "key", "rm", account.root.access)
    world.cluster.cli("account", "rm", "short")
    assert "short" not in world.cluster.cli("account", "ls").stdout
    counts_everywhere(lambda s3: s3.list_buckets(), account.root.clients, "InvalidAccessKeyId")


# --- users, groups and policies


@pytest.fixture(scope="module")
def bob(world):
    """A user without policies."""
    return world.sales.user("bob")


@pytest.mark.parametrize(
    "request_of", [get("a"), put("a"), delete("a"), listing(), lambda s3: s3.list_buckets(), get("a", OTHERS_BUCKET)]
)
def test_a_user_without_policies_may_do_nothing(bob, request_of):
    assert [code_of(request_of, client) for client in bob.clients] == [DENIED] * 2


def test_a_managed_policy_lets_a_user_read_and_not_write(world, bob, note):
    world.sales.cli("policy", "attach", READ_ONLY, "--user", "bob")
    note(f"{counts_everywhere(get('a'), bob.clients, 'ok'):.3f} s")
    assert [code_of(listing(), client) for client in bob.clients] == ["ok", "ok"]
    assert [code_of(put("a"), client) for client in bob.clients] == [DENIED] * 2
    assert code_of(get("a", OTHERS_BUCKET), bob.s3) == DENIED


def test_a_policy_that_is_detached_no_longer_counts(world, bob, note):
    world.sales.cli("policy", "attach", READ_ONLY, "--user", "bob")
    counts_everywhere(get("a"), bob.clients, "ok")
    world.sales.cli("policy", "detach", READ_ONLY, "--user", "bob")
    note(f"{counts_everywhere(get('a'), bob.clients, DENIED):.3f} s")


def test_a_policy_of_a_group_counts_while_the_user_is_in_it(world, bob, note):
    world.sales.cli("group", "create", "readers")
    world.sales.cli("policy", "attach", READ_ONLY, "--group", "readers")
    assert code_of(get("a"), bob.s3) == DENIED
    world.sales.cli("group", "add", "readers", "bob")
    joined = counts_everywhere(get("a"), bob.clients, "ok")
    world.sales.cli("group", "remove", "readers", "bob")
    note(f"{joined:.3f} s, {counts_everywhere(get('a'), bob.clients, DENIED):.3f} s")


def test_a_policy_taken_from_a_group_is_taken_from_its_users(world, bob):
    sales = world.sales
    sales.cli("group", "create", "more-readers")
    sales.cli("group", "add", "more-readers", "bob")
    sales.cli("policy", "attach", READ_ONLY, "--group", "more-readers")
    counts_everywhere(get("a"), bob.clients, "ok")
    sales.cli("policy", "detach", READ_ONLY, "--group", "more-readers")
    counts_everywhere(get("a"), bob.clients, DENIED)


def test_a_policy_of_a_users_own_holds_for_its_prefix_alone(world, note):
    ann = world.sales.user("ann")
    home = policy(
        ("Allow", ["s3:GetObject", "s3:PutObject"], f"{BUCKET}/home/*"),
        ("Allow", "s3:ListBucket", BUCKET, {"Condition": {"StringLike": {"s3:prefix": "home/*"}}}),
    )
    world.sales.cli("policy", "put", "home", world.sales.file("home", home), "--user", "ann")
    given = counts_everywhere(put("home/a"), ann.clients, "ok")
    for request_of, wanted in (
        (get("home/a"), "ok"),
        (listing("home/"), "ok"),
        (get("a"), DENIED),
        (put("a"), DENIED),
        (put("homestead"), DENIED),
        (listing(), DENIED),
        (delete("home/a"), DENIED),
    ):
        assert [code_of(request_of, client) for client in ann.clients] == [wanted] * 2
    world.sales.cli("policy", "drop", "home", "--user", "ann")
    note(f"{given:.3f} s, {counts_everywhere(put('home/a'), ann.clients, DENIED):.3f} s")


def test_a_managed_policy_that_is_updated_counts_as_it_is_then(world):
    sales, cid = world.sales, world.sales.user("cid")
    sales.cli("policy", "create", "mine", sales.file("one", policy(("Allow", "s3:GetObject", f"{BUCKET}/*"))))
    sales.cli("policy", "attach", "mine", "--user", "cid")
    counts_everywhere(get("a"), cid.clients, "ok")
    sales.cli("policy", "update", "mine", sales.file("two", policy(("Allow", "s3:GetObject", f"{BUCKET}/home/*"))))
    counts_everywhere(get("a"), cid.clients, DENIED)
    assert [code_of(get("home/a"), client) for client in cid.clients] == ["ok", "ok"]


def test_a_denial_in_a_users_policy_outweighs_what_others_allow(world):
    dan = world.sales.user("dan")
    world.sales.cli("policy", "attach", "AmazonS3FullAccess", "--user", "dan")
    counts_everywhere(put("dans"), dan.clients, "ok")
    no = world.sales.file("no", policy(("Deny", "s3:PutObject", f"{BUCKET}/*")))
    world.sales.cli("policy", "put", "no", no, "--user", "dan")
    counts_everywhere(put("dans"), dan.clients, DENIED)
    assert code_of(get("dans"), dan.s3) == "ok"


def test_a_policy_may_name_who_asks(world):
    """${aws:username} in a group's policy gives each user a prefix of its own."""
    sales, resource = world.sales, f"{BUCKET}/users/${{aws:username}}/*"
    sales.cli("policy", "create", "own-prefix", sales.file("own-prefix", policy(("Allow", "s3:PutObject", resource))))
    sales.cli("group", "create", "staff")
    sales.cli("policy", "attach", "own-prefix", "--group", "staff")
    for name in ("jan", "kim"):
        user = sales.user(name)
        sales.cli("group", "add", "staff", name)
        counts_everywhere(put(f"users/{name}/a"), user.clients, "ok")
        assert [code_of(put("users/lee/a"), client) for client in user.clients] == [DENIED] * 2


def test_changes_that_are_made_at_once_are_all_made(world):
    account, names = world.account("busy"), {f"user-{number}" for number in range(12)}
    with ThreadPoolExecutor(len(names)) as pool:
        keys = dict(zip(names, pool.map(account.user, names)))
        list(pool.map(lambda name: account.cli("policy", "attach", READ_ONLY, "--user", name), names))
    assert {user["UserName"] for user in account.json("user", "ls")["Users"]} == names
    for key in keys.values():
        counts_everywhere(lambda s3: s3.list_buckets(), key.clients, "ok")


@pytest.mark.nightly
def test_all_users_are_listed_however_many(world):
    account, names = world.account("crowd"), {f"user-{number}" for number in range(101)}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: account.cli("user", "create", name), names))
    listed = {line.split()[0] for line in account.cli("user", "ls").stdout.splitlines()[1:]}
    assert listed == names, f"{len(listed)} of {len(names)}"
    assert {user["UserName"] for user in account.json("user", "ls")["Users"]} == names


def test_what_a_policy_must_not_say_is_refused(world, scenario):
    path = scenario.directory / "wrong.json"
    for text in ("no JSON", '{"Version":"2012-10-17","Statement":[{"Effect":"Perhaps","Action":"*","Resource":"*"}]}'):
        path.write_text(text)
        refused(world.cluster, "policy", "create", "wrong", path, "--account", "sales", words=["atoll: "])
    assert "wrong" not in world.sales.cli("policy", "ls").stdout


@pytest.mark.parametrize(
    "command",
    [
        ("account", "ls"),
        ("user", "ls", "--account", "sales"),
        ("user", "show", "bob", "--account", "sales"),
        ("user", "key", "ls", "bob", "--account", "sales"),
        ("group", "ls", "--account", "sales"),
        ("policy", "ls", "--account", "sales"),
        ("policy", "show", READ_ONLY, "--account", "sales"),
    ],
    ids=lambda command: "_".join(command[:3]),
)
def test_json_of_identities_is_one_document(world, bob, command):
    assert isinstance(world.cluster.json(*command), dict)


# --- keys


@pytest.fixture(scope="module")
def eve(world):
    """A user who may do everything with buckets."""
    key = world.sales.user("eve")
    world.sales.cli("policy", "attach", "AmazonS3FullAccess", "--user", "eve")
    counts_everywhere(get("a"), key.clients, "ok")
    return key


def test_a_key_that_is_disabled_is_refused_and_counts_again_when_it_is_enabled(world, eve, note):
    world.sales.cli("user", "key", "disable", eve.access)
    gone = counts_everywhere(get("a"), eve.clients, "InvalidAccessKeyId")
    world.sales.cli("user", "key", "enable", eve.access)
    note(f"{gone:.3f} s, {counts_everywhere(get('a'), eve.clients, 'ok'):.3f} s")


def test_a_url_that_was_signed_before_no_longer_counts_when_its_key_is_disabled(world):
    key = world.sales.user("mia")
    world.sales.cli("policy", "attach", READ_ONLY, "--user", "mia")
    urls = [client.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "a"}) for client in key.clients]
    counts_everywhere(get("a"), key.clients, "ok")
    assert [status_of(url) for url in urls] == [200, 200]
    world.sales.cli("user", "key", "disable", key.access)
    counts_everywhere(get("a"), key.clients, "InvalidAccessKeyId")
    assert [status_of(url) for url in urls] == [403, 403]


def test_a_key_that_is_removed_is_refused(world, eve, note):
    second = world.sales.user_key("eve")
    counts_everywhere(get("a"), second.clients, "ok")
    world.sales.cli("user", "key", "rm", second.access)
    note(f"{counts_everywhere(get('a'), second.clients, 'InvalidAccessKeyId'):.3f} s")
    assert [code_of(get("a"), client) for client in eve.clients] == ["ok", "ok"]


def test_a_service_account_may_do_what_both_allow(world, eve):
    only = policy(("Allow", ["s3:GetObject", "s3:PutObject"], [f"{BUCKET}/home/*", f"{OTHERS_BUCKET}/*"]))
    service = world.sales.user_key("eve", "--policy", world.sales.file("only", only))
    for request_of, wanted in (
        (get("home/a"), "ok"),
        (put("home/a"), "ok"),
        (delete("home/a"), DENIED),
        (get("a"), DENIED),
        (listing(), DENIED),
        (get("a", OTHERS_BUCKET), DENIED),
    ):
        assert [code_of(request_of, client) for client in service.clients] == [wanted] * 2


def test_a_service_account_loses_what_its_user_loses(world):
    sales, fay = world.sales, world.sales.user("fay")
    all_of_it = sales.file("all", policy(("Allow", "s3:*", [BUCKET, f"{BUCKET}/*"])))
    sales.cli("policy", "attach", READ_ONLY, "--user", "fay")
    service = sales.user_key("fay", "--policy", all_of_it)
    counts_everywhere(get("a"), service.clients, "ok")
    assert code_of(put("a"), service.s3) == DENIED
    sales.cli("policy", "detach", READ_ONLY, "--user", "fay")
    counts_everywhere(get("a"), service.clients, DENIED)
    assert code_of(get("a"), fay.s3) == DENIED


def test_a_user_with_keys_stays_and_one_without_goes(world):
    gil = world.sales.user("gil")
    refused(world.cluster, "user", "rm", "gil", "--account", "sales", words=["keys"])
    world.sales.cli("user", "key", "rm", gil.access)
    world.sales.cli("user", "rm", "gil")
    assert "gil" not in world.sales.cli("user", "ls").stdout


# --- bucket policies


@contextlib.contextmanager
def bucket_policy(world, *statements):
    """Set through the first gateway."""
    document = policy(*statements)
    world.owner.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps(document))
    yield
    world.owner.delete_bucket_policy(Bucket=BUCKET)


EVERYBODY = {"Principal": "*"}


def test_a_bucket_policy_set_at_one_gateway_counts_at_the_other(world, note):
    # The other one has the bucket's record at hand.
    assert code_of(get("public/a"), world.nobody.clients[1]) == DENIED
    with bucket_policy(world, ("Allow", "s3:GetObject", f"{BUCKET}/public/*", EVERYBODY)):
        given = counts_everywhere(get("public/a"), world.nobody.clients, "ok")
        assert [code_of(get("a"), client) for client in world.nobody.clients] == [DENIED] * 2
    note(f"{given:.3f} s, {counts_everywhere(get('public/a'), world.nobody.clients, DENIED):.3f} s")


def test_a_bucket_policy_lets_another_accounts_root_in_and_its_user_only_with_a_policy(world):
    hal = world.other.user("hal")
    whole_account = {"Principal": {"AWS": f"arn:aws:iam::{world.other.id}:root"}}
    with bucket_policy(world, ("Allow", "s3:GetObject", f"{BUCKET}/*", whole_account)):
        counts_everywhere(get("a"), world.other.root.clients, "ok")
        assert [code_of(get("a"), client) for client in hal.clients] == [DENIED] * 2
        world.other.cli("policy", "attach", READ_ONLY, "--user", "hal")
        counts_everywhere(get("a"), hal.clients, "ok")
        assert code_of(put("a"), hal.s3) == DENIED
    counts_everywhere(get("a"), hal.clients, DENIED)


# --- simulations

ACTIONS = {
    "s3:GetObject": lambda s3, key: s3.get_object(Bucket=BUCKET, Key=key),
    "s3:PutObject": lambda s3, key: s3.put_object(Bucket=BUCKET, Key=key, Body=b"x"),
    "s3:DeleteObject": lambda s3, key: s3.delete_object(Bucket=BUCKET, Key=f"{key}.gone"),
    "s3:GetObjectTagging": lambda s3, key: s3.get_object_tagging(Bucket=BUCKET, Key=key),
    "s3:ListBucket": lambda s3, _: s3.list_objects_v2(Bucket=BUCKET),
    "s3:GetBucketLocation": lambda s3, _: s3.get_bucket_location(Bucket=BUCKET),
    "s3:GetBucketPolicy": lambda s3, _: s3.get_bucket_policy(Bucket=BUCKET),
    "s3:GetBucketVersioning": lambda s3, _: s3.get_bucket_versioning(Bucket=BUCKET),
    "s3:PutBucketTagging": lambda s3, _: s3.put_bucket_tagging(
        Bucket=BUCKET, Tagging={"TagSet": [{"Key": "a", "Value": "b"}]}
    ),
}
OF_OBJECTS = [action for action in ACTIONS if "Object" in action]
KEYS = ("home/a", "public/a", "sealed/a", "a")
TABLE = [(action, f"{BUCKET}/{key}") for action in OF_OBJECTS for key in KEYS]
TABLE += [(action, BUCKET) for action in ACTIONS if action not in OF_OBJECTS]
CALLERS = ("root", "reader", "homely", "member", "service", "stranger", "strangers_user", "nobody")


class Judged:
    """Callers of all kinds, and a bucket policy that treats them differently."""

    def __init__(self, world):
        self.world, sales = world, world.sales
        home = policy(("Allow", "s3:*", f"{BUCKET}/home/*", {"Sid": "Home"}))
        self.callers = {"root": sales.root, "stranger": world.other.root, "nobody": world.nobody}
        for name in ("reader", "homely", "member"):
            self.callers[name] = sales.user(name)
        self.callers["strangers_user"] = world.other.user("full")
        world.other.cli("policy", "attach", "AmazonS3FullAccess", "--user", "full")
        sales.cli("policy", "attach", READ_ONLY, "--user", "reader")
        sales.cli("policy", "put", "at-home", sales.file("at-home", home), "--user", "homely")
        sales.cli("group", "create", "members")
        sales.cli("group", "add", "members", "member")
        sales.cli("policy", "create", "tags", sales.file("tags", policy(("Allow", "s3:*Tagging", "*"))))
        sales.cli("policy", "attach", "tags", "--group", "members")
        narrow = sales.file("narrow", policy(("Allow", "s3:GetObject", f"{BUCKET}/*"), ("Deny", "s3:*", f"{BUCKET}/a")))
        self.callers["service"] = sales.user_key("reader", "--policy", narrow)
        statements = (
            ("Allow", "s3:GetObject", f"{BUCKET}/public/*", EVERYBODY | {"Sid": "Public"}),
            ("Deny", "s3:GetObject", f"{BUCKET}/sealed/*", EVERYBODY | {"Sid": "Sealed"}),
            ("Allow", "s3:PutObject", f"{BUCKET}/home/*", {"Principal": {"AWS": world.other.id}, "Sid": "Partner"}),
        )
        world.owner.put_bucket_policy(Bucket=BUCKET, Policy=json.dumps(policy(*statements)))
        counts_everywhere(get("sealed/a"), sales.root.clients, DENIED)
        counts_everywhere(get("home/a"), self.callers["homely"].clients, "ok")

    def simulate(self, caller, action, resource, *more):
        """What a simulation says; its exit code agrees."""
        key = self.callers[caller]
        who = ["--anonymous"] if caller == "nobody" else ["--access-key", key.access]
        done = self.world.cluster.cli("policy", "simulate", *who, action, resource, "--json", *more, ok=(0, 1))
        said = json.loads(done.stdout)
        assert done.returncode == (0 if said["is_allowed"] else 1), f"{done.returncode}: {said}"
        return said


@pytest.fixture(scope="module")
def judged(world):
    return Judged(world)


@pytest.mark.parametrize("caller", CALLERS)
def test_a_simulation_says_what_the_gateways_do(judged, caller):
    differ = []
    for action, resource in TABLE:
        said = judged.simulate(caller, action, resource)
        key = resource.partition("/")[2]
        for client in judged.callers[caller].clients:
            found = code_of(ACTIONS[action], client, key)
            if found not in ("ok", DENIED) or said["is_allowed"] != (found == "ok"):
                differ.append((action, resource, found, said))
    assert not differ, differ


@pytest.mark.parametrize(
    ("caller", "action", "key", "is_allowed", "words"),
    [
        ("root", "s3:PutObject", "/a", True, ["root"]),
        ("root", "s3:GetObject", "/sealed/a", False, ["'Sealed'", "bucket policy"]),
        ("reader", "s3:GetObject", "/a", True, [READ_ONLY]),
        ("reader", "s3:PutObject", "/a", False, ["nothing allows"]),
        ("homely", "s3:PutObject", "/home/a", True, ["'Home'", "at-home"]),
        ("member", "s3:GetObjectTagging", "/a", True, ["tags"]),
        ("service", "s3:GetObject", "/a", False, ["denied by", "session policy"]),
        ("service", "s3:ListBucket", "", False, ["session policy"]),
        ("stranger", "s3:GetObject", "/a", False, ["another account"]),
        ("stranger", "s3:PutObject", "/home/a", True, ["'Partner'", "root"]),
        ("strangers_user", "s3:PutObject", "/home/a", True, ["'Partner'", "AmazonS3FullAccess"]),
        ("nobody", "s3:GetObject", "/public/a", True, ["'Public'", "bucket policy"]),
        ("nobody", "s3:GetObject", "/a", False, ["nothing allows"]),
    ],
)
def test_a_simulation_names_what_decides(judged, caller, action, key, is_allowed, words):
    said = judged.simulate(caller, action, f"{BUCKET}{key}")
    assert said["is_allowed"] == is_allowed and all(word in said["reason"] for word in words), said


def test_a_simulation_in_words_has_verdict_and_reason(judged):
    reader = judged.callers["reader"].access
    done = judged.world.cluster.cli("policy", "simulate", "--access-key", reader, "s3:GetObject", f"{BUCKET}/a")
    assert done.stdout.startswith("allowed") and READ_ONLY in done.stdout, done.stdout


def test_a_simulation_takes_conditions(judged):
    sales, ida = judged.world.sales, judged.world.sales.user("ida")
    here = {"Condition": {"IpAddress": {"aws:SourceIp": "127.0.0.0/8"}}}
    document = policy(("Allow", "s3:GetObject", f"{BUCKET}/*", here))
    sales.cli("policy", "put", "here", sales.file("here", document), "--user", "ida")
    judged.callers["ida"] = ida
    ask = lambda *more: judged.simulate("ida", "s3:GetObject", f"{BUCKET}/a", *more)["is_allowed"]
    assert ask("--condition", "aws:SourceIp=127.0.0.1") and not ask("--condition", "aws:SourceIp=10.1.2.3")
    assert not ask()
    counts_everywhere(get("a"), ida.clients, "ok")


def test_a_simulation_for_who_or_what_is_not_there_fails(judged):
    cluster, key = judged.world.cluster, judged.callers["reader"].access
    refused(cluster, "policy", "simulate", "--anonymous", "s3:GetObject", "none/a", words=["none"])
    refused(cluster, "policy", "simulate", "--access-key", "AKIANONE", "s3:GetObject", BUCKET, words=["AKIANONE"])
    judged.world.cluster.cli("policy", "simulate", "--access-key", key, "s3:GetObject", ok=(2,))


# --- restarts


def test_what_was_given_and_taken_holds_after_gateways_and_cluster_state_were_killed(world, judged):
    cluster, gone = world.cluster, world.sales.user_key("reader")
    world.sales.cli("user", "key", "disable", gone.access)
    world.second.kill()
    for name in ("gateway", "cluster-state"):
        cluster.restarted(name, cluster.kill(name))
    world.second.start()
    wait_for("both gateways serve", lambda: world.second.is_serving() and cluster.is_serving(), 60)
    for caller, request_of, wanted in (
        ("root", put("a"), "ok"),
        ("reader", get("a"), "ok"),
        ("reader", put("a"), DENIED),
        ("homely", put("home/a"), "ok"),
        ("service", get("a"), DENIED),
        ("stranger", get("a"), DENIED),
        ("nobody", get("public/a"), "ok"),
    ):
        answers = [code_of(request_of, client) for client in judged.callers[caller].clients]
        assert answers == [wanted] * 2, (caller, wanted, answers)
    assert [code_of(get("a"), client) for client in gone.clients] == ["InvalidAccessKeyId"] * 2


# --- secrets


@pytest.fixture(scope="module")
def secrets_of(world, judged, eve):
    """All secret keys that were given out here and still count, also one that nobody has used."""
    unused = world.sales.user_key("eve")
    keys = [world.sales.root, world.other.root, eve, unused, *judged.callers.values()]
    return [key.secret for key in keys if hasattr(key, "secret")]


def test_no_secret_is_in_a_log(world, secrets_of):
    logs = world.cluster.log_text() + world.second.log.read_text()
    assert "DEBUG" in logs, "the logs say too little to tell"
    found = [secret[:4] for secret in secrets_of if secret in logs]
    assert not found, found


def test_no_secret_is_an_argument_or_in_the_environment_of_a_process(world, secrets_of):
    for pid in world.cluster.all_pids():
        for name in ("cmdline", "environ"):
            text = pathlib.Path("/proc", str(pid), name).read_text(errors="replace")
            assert not any(secret in text for secret in secrets_of), f"{name} of process {pid}"


def test_no_secret_is_in_a_file_of_the_cluster(world, secrets_of):
    looked_at = 0
    for path in world.cluster.data.rglob("*"):
        # A file that is written in the place of another goes meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and path.name != "device":
                content = path.read_bytes()
                looked_at += 1
                assert not any(secret.encode() in content for secret in secrets_of), path
    assert looked_at > 5
