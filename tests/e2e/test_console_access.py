"""Who may do what, by the console and its API: roles, policies of users, groups and roles alone, and buckets of every
account, which operators look into and cannot change."""

import json

import pytest
from lib.console import Caller
from lib.identities import Account
from lib.logs import json_lines
from lib.s3 import error_of
from lib.waiting import wait_for

LIST = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "*"}]}
GET = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}
HOLDERS = ["user", "group", "role"]


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osds=1, osd_size="2G")
    cluster.variables["ATOLL_S3_AUDIT_LOG"] = str(scenario.directory / "s3-audit.jsonl")
    cluster.up()
    return cluster


@pytest.fixture(scope="module")
def other(cluster):
    """An account that is not the first, with a bucket of its own and an object in it."""
    other = Account(cluster, [cluster], "other")
    other.root.s3.create_bucket(Bucket="foreign")
    other.root.s3.put_object(Bucket="foreign", Key="plans/secret.txt", Body=b"x" * 5000)
    return other


def audited(log, **wanted):
    """Lines of an audit log with these values."""
    return [line for line in json_lines(log) if all(line.get(name) == value for name, value in wanted.items())]


# --- buckets of every account


@pytest.mark.parametrize("role", ["admin", "reader"])
def test_an_operator_looks_into_a_bucket_of_another_account(address, other, role, cluster):
    """The first may be the first temporary credentials of the cluster."""
    caller = Caller.logged_in(address, getattr(address, role))
    answer = caller.call("GET", "/api/v1/buckets/foreign/objects?prefix=plans/")
    assert answer.status == 200, f"{answer}"
    assert [(one["key"], one["size_bytes"]) for one in answer.document["objects"]] == [("plans/secret.txt", 5000)]


def test_the_page_of_such_a_bucket_shows_its_keys(console, other):
    console.open("buckets/foreign")
    assert "plans/" in console.texts("tbody th")[0]
    console.open("buckets/foreign?prefix=plans%2F")
    assert "secret.txt" in console.texts("tbody th")[0] and console.errors() == []


def test_who_has_looked_is_in_both_audit_logs(cluster, other, reader, scenario):
    """The gateway's names the account in whose name it was asked, and the operator."""
    path = "/api/v1/buckets/foreign/objects"
    before = len(audited(cluster.data / "log" / "admin-audit.jsonl", user="rob", path=path))
    assert reader.call("GET", f"{path}?prefix=none").status == 200
    wait_for(
        "it is in the log",
        lambda: len(audited(cluster.data / "log" / "admin-audit.jsonl", user="rob", path=path)) == before + 1,
        10,
    )
    wait_for(
        "it is in the gateway's log",
        lambda: audited(scenario.directory / "s3-audit.jsonl", user_agent="atoll-console (rob)", status=200),
        10,
    )
    line = audited(scenario.directory / "s3-audit.jsonl", user_agent="atoll-console (rob)")[-1]
    assert line["account"] == other.id and line["principal"].endswith(":root"), f"{line}"
    assert line["operation"] == "ListObjectsV2" and line["access_key"].startswith("ASIA"), f"{line}"


def test_a_bucket_that_is_not_there_and_one_that_forbids_it(admin, other):
    answer = admin.call("GET", "/api/v1/buckets/nowhere/objects")
    assert answer.status == 404 and "nowhere" in answer.document["message"], f"{answer}"
    other.root.s3.create_bucket(Bucket="closed")
    statement = {"Effect": "Deny", "Principal": "*", "Action": "s3:ListBucket", "Resource": "arn:aws:s3:::closed"}
    policy = {"Version": "2012-10-17", "Statement": [statement]}
    other.root.s3.put_bucket_policy(Bucket="closed", Policy=json.dumps(policy))
    closed = lambda: admin.call("GET", "/api/v1/buckets/closed/objects")
    wait_for("the policy counts", lambda: closed().status == 409, 10)
    assert "policy" in closed().document["message"]


def test_a_reader_has_no_call_that_changes_a_bucket(reader, other):
    answer = reader.call("PATCH", "/api/v1/buckets/foreign", {"new_objects_sealed": False})
    assert answer.status == 403, f"{answer}"


# --- roles


def create_role(console, account, name):
    console.open(f"accounts/{account}").button("Create role").click()
    console.fill(name=name, description="for jobs")
    field = console.one("dialog[open] [name=document]")
    text = field.get_attribute("value").replace("/USER", "/ann")
    console.browser.execute_script("arguments[0].value = arguments[1]", field, text)
    console.submit()


def test_who_may_assume_a_role_is_changed(console, admin, reader, other, cluster):
    """By the console, the API and the command; a reader changes nothing, and what is no trust policy is refused."""
    for name in ("ann", "bob"):
        other.cli("user", "create", name, ok=None)
    create_role(console, other.id, "changed")
    of_role = f"/api/v1/accounts/{other.id}/roles/changed"
    document = lambda: json.loads(admin.call("GET", of_role).document["Role"]["AssumeRolePolicyDocument"])
    principal = lambda: document()["Statement"][0]["Principal"]["AWS"]
    trusts = lambda who: document() | {"Statement": [document()["Statement"][0] | {"Principal": {"AWS": who}}]}
    bob, root = f"arn:aws:iam::{other.id}:user/bob", f"arn:aws:iam::{other.id}:root"

    console.open(f"accounts/{other.id}/roles/changed").button("Change trust policy").click()
    field = console.one("dialog[open] [name=document]")
    assert "user/ann" in field.get_attribute("value"), "the dialog begins with what there is"
    console.browser.execute_script("arguments[0].value = arguments[1]", field, json.dumps(trusts(bob)))
    console.submit()
    assert principal() == bob
    wait_for("the page has it", lambda: bob in console.texts("main")[0], 10)
    assert console.errors() == []

    body = {"document": trusts(root)}
    assert reader.call("PUT", f"{of_role}/trust-policy", body).status == 403 and principal() == bob
    assert admin.call("PUT", f"{of_role}/trust-policy", body).status == 200 and principal() == root
    wrong = {"document": {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject"}]}}
    assert admin.call("PUT", f"{of_role}/trust-policy", wrong).status == 400 and principal() == root
    assert admin.call("PUT", f"/api/v1/accounts/{other.id}/roles/none/trust-policy", body).status == 404

    file = cluster.scenario.directory / "trust.json"
    file.write_text(json.dumps(trusts(bob)))
    other.cli("role", "trust", "changed", file)
    assert principal() == bob
    other.cli("role", "rm", "changed")


def test_a_role_is_made_given_policies_and_removed(console, admin, other):
    other.cli("user", "create", "ann", ok=None)
    create_role(console, other.id, "jobs")
    of_role = f"/api/v1/accounts/{other.id}/roles/jobs"
    role = admin.call("GET", of_role).document["Role"]
    assert f"arn:aws:iam::{other.id}:user/ann" in role["AssumeRolePolicyDocument"] and role["Description"] == "for jobs"
    body = {"name": "jobs", "document": json.loads(role["AssumeRolePolicyDocument"])}
    assert admin.call("POST", f"/api/v1/accounts/{other.id}/roles", body).status == 409, "it is there already"
    console.open(f"accounts/{other.id}/roles/jobs").button("Attach policy").click()
    console.fill(policy="AmazonS3ReadOnlyAccess")
    console.submit()
    names = lambda: [one["PolicyName"] for one in admin.call("GET", of_role).document["AttachedPolicies"]]
    assert names() == ["AmazonS3ReadOnlyAccess"]
    held = admin.call("POST", f"{of_role}/remove", {"confirm": "jobs"})
    assert held.status == 409, f"{held}"
    wait_for("the page has it", lambda: "AmazonS3ReadOnlyAccess" in console.texts("main")[0], 10)
    console.button("Detach AmazonS3ReadOnlyAccess").click()
    console.submit()
    assert names() == []
    console.button("Remove").click()
    console.fill(confirm="jobs")
    console.submit()
    wait_for("the page of the account", lambda: console.part == f"accounts/{other.id}", 10)
    assert admin.call("GET", of_role).status == 404
    assert admin.call("GET", f"/api/v1/accounts/{other.id}/roles").document["Roles"] == []
    assert console.errors() == []


# --- policies of their own


@pytest.fixture(scope="module")
def holders(cluster, other):
    """A user, a group and a role without policies."""
    trust = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": f"arn:aws:iam::{other.id}:root"}}
    file = other.file("trust", {"Version": "2012-10-17", "Statement": [trust]})
    other.cli("group", "create", "holders")
    other.cli("role", "create", "holding", file)
    return {"user": ("holder", other.user("holder")), "group": ("holders", None), "role": ("holding", None)}


def own(other, kind, name, policy):
    return f"/api/v1/accounts/{other.id}/{kind}s/{name}/policies/{policy}"


@pytest.mark.parametrize("kind", HOLDERS)
def test_a_policy_of_its_own_is_added_changed_and_removed(console, admin, other, holders, kind):
    name, _ = holders[kind]
    page, path = f"accounts/{other.id}/{kind}s/{name}", own(other, kind, name, "home")
    console.open(page).button("Add policy of its own").click()
    console.fill(policy="home")
    script = "arguments[0].value = arguments[1]"
    console.browser.execute_script(script, console.one("dialog[open] [name=document]"), json.dumps(LIST))
    console.submit()
    assert admin.call("GET", path).document == LIST
    console.open(f"{page}/policies/home").button("Change").click()
    console.browser.execute_script(script, console.one("dialog[open] [name=document]"), json.dumps(GET))
    console.submit()
    assert admin.call("GET", path).document == GET
    wait_for("the page shows it", lambda: "s3:GetObject" in console.texts("main pre")[0], 10)
    console.button("Remove").click()
    console.fill(confirm="home")
    console.submit()
    wait_for("the page of the holder", lambda: console.part == page, 10)
    assert admin.call("GET", path).status == 404 and console.errors() == []


def test_such_a_policy_counts_as_long_as_it_is_there(admin, other, holders):
    name, key = holders["user"]
    path = own(other, "user", name, "list")
    listed = lambda: error_of(key.s3.list_objects_v2, Bucket="foreign")
    assert listed() is not None, "it may do it without"
    assert admin.call("PUT", path, {"document": LIST}).status == 200
    wait_for("it may list", lambda: listed() is None, 10)
    assert admin.call("POST", f"{path}/remove", {"confirm": "other"}).status == 403
    assert listed() is None
    assert admin.call("POST", f"{path}/remove", {"confirm": "list"}).status == 200
    wait_for("it may not any more", lambda: listed() is not None, 10)


# --- errors


def errors_of(account):
    """Calls that are refused, with the status that says why."""
    of = f"/api/v1/accounts/{account}"
    policy = {"document": LIST}
    return [
        ("GET", f"{of}/roles/nobody", None, 404),
        ("GET", f"{of}/users/nobody", None, 404),
        ("GET", f"{of}/policies/nothing", None, 404),
        ("GET", f"{of}/users/holder/policies/nothing", None, 404),
        ("GET", "/api/v1/accounts/nowhere/roles", None, 404),
        ("PUT", f"{of}/users/nobody/policies/p", policy, 404),
        ("PUT", f"{of}/users/holder/policies/p", {"document": {"Version": "2012-10-17"}}, 400),
        ("POST", f"{of}/roles", {"name": "new", "document": {"Statement": "none"}}, 400),
        ("POST", f"{of}/users", {"name": "holder"}, 409),
        ("POST", f"{of}/policies/nothing/attach", {"user": "holder"}, 404),
        ("POST", f"{of}/policies/AmazonS3ReadOnlyAccess/attach", {}, 400),
        ("GET", "/api/v1/images/nothing", None, 404),
        ("POST", "/api/v1/images", {"name": "no/name", "size_bytes": 4096}, 400),
        ("POST", "/api/v1/images/nothing/flatten", {}, 404),
        ("POST", "/api/v1/images/nothing/migrate", {"pool": "images"}, 404),
        ("POST", "/api/v1/images/nothing/migrate/cancel", {}, 404),
        ("POST", "/api/v1/images/nothing/lock/break", {"confirm": "nothing"}, 404),
        ("POST", "/api/v1/images/nothing/snapshots/s/clone", {"name": "clone"}, 404),
        ("PUT", "/api/v1/images/nothing/access", {"access": "exclusive", "clients": []}, 404),
        ("POST", "/api/v1/trash/0000000000000000/restore", {}, 404),
        ("PATCH", "/api/v1/pools/nothing", {"size": 2}, 404),
        ("PATCH", "/api/v1/pools/images", {}, 400),
    ]


CODES = {400: "INVALID", 404: "NOT_FOUND", 409: "CONFLICT"}


def test_errors_are_told_apart_by_what_they_are(admin, other, holders):
    wrong = []
    for method, path, body, status in errors_of(other.id):
        answer = admin.call(method, path, body)
        if (answer.status, (answer.document or {}).get("code")) != (status, CODES[status]):
            wrong.append((method, path, body, status, answer.status, answer.document))
    assert not wrong, f"{wrong}"
