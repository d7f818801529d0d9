"""Operators: each role makes its own calls and no other, and nobody makes himself more; sessions, which every admin
server of the cluster knows of; the end of rights, which holds for the next call."""

import base64
import hmac
import json
import re
import time

import pytest
from lib.console import Caller, Console, User, another_server, may, operations
from lib.logs import json_lines, known_lines
from lib.waiting import wait_for

ROLES = ["read-only", "storage", "s3-accounts", "security", "admin"]
# What a call has that it takes of nobody: roles are looked at before it.
NAMES = {"osd": "0", "pg": "1.0", "flag": "noout"}
# Rights end with the next call; this is for the machine.
AT_ONCE_SECONDS = 2
IDLE_SECONDS = 60


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osds=1, osd_size="2G")
    cluster.up()
    return cluster


@pytest.fixture(scope="module")
def other(cluster, address):
    """A second admin server."""
    return another_server(cluster, address)


@pytest.fixture
def operator(cluster):
    """Makes operators, removed in the end."""
    made = []

    def make(name, *roles):
        password = cluster.json("operator", "create", name, "--role", ",".join(roles))["password"]
        made.append(name)
        return User(name, password)

    yield make
    for name in made:
        cluster.cli("operator", "rm", name, ok=None)


def code_of(answer):
    return (answer.status, (answer.document or {}).get("code"))


def strange(caller, method, path):
    """A call that nobody can make as it is: who may make it is told that it is invalid, and nothing happens."""
    path = re.sub(r"{(\w+)}", lambda match: NAMES.get(match[1], "none"), path)
    if method == "GET":
        return caller.call(method, f"{path}?no_such_parameter=1")
    return caller.call(method, path, {"no_such_field": 1})


# --- roles


@pytest.mark.parametrize("role", ROLES)
def test_each_role_makes_the_calls_that_the_document_says(address, operator, role):
    """Every call there is."""
    caller = Caller.logged_in(address, operator("roles", role))
    wrong, seen = [], set()
    for method, path, operation in operations():
        if operation["x-atoll-roles"] == ["none"]:
            continue
        is_open = may(role, operation)
        seen.add(is_open)
        code = code_of(strange(caller, method, path))
        if code != ((400, "INVALID") if is_open else (403, "ROLE_TOO_LOW")):
            wrong.append((operation["operationId"], is_open, code))
        if is_open != (operation["operationId"] in caller.session["calls"]):
            wrong.append((operation["operationId"], "is not told to the console as it is"))
    assert not wrong and seen == ({True} if role == "admin" else {True, False}), wrong


def test_who_runs_disks_reads_no_objects_and_makes_himself_no_more(address, operator, cluster):
    storage = operator("disks", "storage")
    caller = Caller.logged_in(address, storage)
    cluster.s3().create_bucket(Bucket="private")
    account = caller.call("GET", "/api/v1/accounts").document["Accounts"][0]["Id"]
    assert caller.call("POST", "/api/v1/images", {"name": "of-disks", "size_bytes": 1 << 24}).status == 201
    refused = [
        ("GET", "/api/v1/buckets/private/objects", None),
        ("POST", f"/api/v1/accounts/{account}/access-keys", {}),
        ("POST", f"/api/v1/accounts/{account}/users", {"name": "eve"}),
        ("PUT", "/api/v1/images/of-disks/access", {"access": "exclusive", "clients": ["*"]}),
        ("POST", "/api/v1/images", {"name": "in-clear", "size_bytes": 1 << 24, "sealed": False}),
        ("POST", "/api/v1/images/of-disks/migrate", {"pool": "images", "sealed": False}),
        ("PATCH", "/api/v1/settings", {"frame_mode_client": "crc"}),
        ("PATCH", "/api/v1/settings", {"session_seconds": 604800}),
        ("PATCH", "/api/v1/buckets/private", {"new_objects_sealed": False}),
        ("POST", "/api/v1/operators", {"name": "more", "roles": ["storage"]}),
        ("PATCH", "/api/v1/operators/disks", {"roles": ["admin"]}),
        ("POST", "/api/v1/keys/default/rotate", {}),
    ]
    answers = {(method, path): code_of(caller.call(method, path, body)) for method, path, body in refused}
    assert set(answers.values()) == {(403, "ROLE_TOO_LOW")}, answers
    assert caller.call("PATCH", "/api/v1/settings", {"balance_seconds": 61}).status == 200
    names = [one["name"] for one in cluster.json("operator", "ls")]
    assert "more" not in names and "in-clear" not in [image["name"] for image in cluster.json("image", "ls")]


def test_a_clone_is_open_to_no_more_clients_than_its_parent(cluster):
    cluster.create_image("kept", "16M")
    cluster.cli("image", "access", "kept", "--allow", "vm1")
    cluster.cli("image", "snap", "create", "kept@s")
    cluster.cli("image", "clone", "kept@s", "kept-clone")
    assert cluster.json("image", "info", "kept-clone")["export"]["clients"] == ["vm1"]


def test_security_makes_operators_and_no_admin(address, operator, cluster):
    """Not even by the password of one."""
    admin, security = operator("root", "admin"), operator("guard", "security")
    caller = Caller.logged_in(address, security)
    made = caller.call("POST", "/api/v1/operators", {"name": "new", "roles": ["storage", "s3-accounts"]})
    assert made.status == 201 and made.document["password"], f"{made}"
    assert Caller.logged_in(address, User("new", made.document["password"])).session["role"] == "storage,s3-accounts"
    refused = [
        ("POST", "/api/v1/operators", {"name": "newer", "roles": ["admin"]}),
        ("PATCH", "/api/v1/operators/new", {"roles": ["admin"]}),
        ("PATCH", "/api/v1/operators/root", {"new_password": True}),
        ("PATCH", "/api/v1/operators/root", {"roles": ["read-only"]}),
        ("POST", "/api/v1/operators/root/remove", {"confirm": "root"}),
        ("PATCH", "/api/v1/operators/guard", {"roles": ["security", "storage"]}),
        ("PATCH", "/api/v1/operators/guard", {"new_password": True}),
        ("POST", "/api/v1/operators/guard/remove", {"confirm": "guard"}),
    ]
    for method, path, body in refused:
        assert caller.call(method, path, body).status == 409, path
    assert caller.call("POST", "/api/v1/operators", {"name": "none", "roles": []}).status == 400
    roles = {one["name"]: one["role"] for one in caller.call("GET", "/api/v1/operators").document}
    assert (roles["root"], roles["guard"], roles["new"]) == ("admin", "security", "storage,s3-accounts")
    assert Caller(address).log_in(admin).status == 200, "the admin's password is as it was"
    assert caller.call("POST", "/api/v1/operators/new/remove", {"confirm": "new"}).status == 200
    assert "newer" not in [one["name"] for one in cluster.json("operator", "ls")]


def test_who_changed_an_operator_is_in_the_logs(address, operator, cluster):
    caller = Caller.logged_in(address, operator("auditor", "security"))
    operator("watched", "read-only")
    assert caller.call("PATCH", "/api/v1/operators/watched", {"roles": ["storage"]}).status == 200
    log = cluster.data / "log" / "admin-audit.jsonl"
    lines = lambda: [line for line in known_lines(log) if line.get("path") == "/api/v1/operators/watched"]
    wait_for("it is in the audit log", lines, 10)
    line = lines()[-1]
    assert (line["user"], line["method"], line["status"]) == ("auditor", "PATCH", 200), line
    told = cluster.cli("events").stdout
    assert "atoll operator set --role=storage" in told and "watched (by auditor (console)@" in told, told


# --- the end of rights


CHANGES = {
    "other role": lambda cluster: cluster.cli("operator", "set", "ends", "--role", "read-only"),
    "other password": lambda cluster: cluster.cli("operator", "set", "ends", "--new-password"),
    "all sessions": lambda cluster: cluster.cli("operator", "sessions", "end", "--operator", "ends"),
    "everybody's": lambda cluster: cluster.cli("operator", "sessions", "end", "--all"),
    "removed": lambda cluster: cluster.cli("operator", "rm", "ends"),
    "made again": lambda cluster: (
        cluster.cli("operator", "rm", "ends"),
        cluster.cli("operator", "create", "ends", "--role", "admin"),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_rights_end_at_once_on_all_hosts(address, other, operator, cluster, change):
    """With the next call, whichever server is asked: each has used the session a moment before."""
    here = Caller.logged_in(address, operator("ends", "admin"))
    there = here.at(other)
    assert [caller.call("GET", "/api/v1/status").status for caller in (here, there)] == [200, 200]
    CHANGES[change](cluster)
    began = time.monotonic()
    statuses = [caller.call("PUT", "/api/v1/flags/noscrub", {}).status for caller in (there, here)]
    assert statuses == [401, 401] and time.monotonic() - began < AT_ONCE_SECONDS, statuses
    assert [caller.call("GET", "/api/v1/session").status for caller in (there, here)] == [401, 401]


# --- sessions


def test_a_session_is_listed_and_ended_everywhere(address, other, operator, cluster):
    user = operator("seen", "security")
    first, second = Caller.logged_in(address, user), Caller.logged_in(other, user)
    listed = {one["id"]: one for one in first.call("GET", "/api/v1/operator-sessions").document}
    assert {first.session["id"], second.session["id"]} <= listed.keys()
    told = {one["id"]: one for one in cluster.json("operator", "sessions", "ls")}
    one = told[second.session["id"]]
    assert (one["user"], one["address"]) == ("seen", "127.0.0.1") and one["expires_unix_ms"] > one["created_unix_ms"]
    assert second.cookie.split("=")[1] not in json.dumps([listed, told]), "the token is in the list"
    assert second.session["id"][:12] in cluster.cli("operator", "sessions", "ls").stdout

    ended = first.call("POST", f"/api/v1/operator-sessions/{second.session['id']}/end")
    assert ended.status == 200 and ended.document == {"ended": ["seen"]}, f"{ended}"
    assert [one.call("GET", "/api/v1/session").status for one in (second, second.at(address))] == [401, 401]
    assert first.call("GET", "/api/v1/session").status == 200, "another session of the same operator"
    assert cluster.cli("operator", "sessions", "end", second.session["id"][:12], ok=(1,)).stderr
    assert cluster.cli("operator", "sessions", "end", "", ok=(1,)).stderr, "no session"
    cluster.cli("operator", "sessions", "end", first.session["id"][:12])
    assert first.call("GET", "/api/v1/session").status == 401


def test_a_session_outlives_its_server_and_not_its_log_out(address, other, operator):
    here = Caller.logged_in(other, operator("walks", "read-only"))
    there = here.at(address)
    assert there.call("GET", "/api/v1/session").document["id"] == here.session["id"]
    assert there.call("DELETE", "/api/v1/session").status == 204
    assert here.call("GET", "/api/v1/session").status == 401


def test_a_changed_password_ends_the_other_sessions(address, other, operator):
    user = operator("changer", "read-only")
    here, there = Caller.logged_in(address, user), Caller.logged_in(other, user)
    change = lambda old, new: here.call("PUT", "/api/v1/session/password", {"password": old, "new_password": new})
    assert change("wrong password", "a new password").status == 401, "without the old password"
    assert change(user.password, "short").status == 400 and change(user.password, user.password).status == 400
    assert there.call("GET", "/api/v1/session").status == 200
    assert change(user.password, "a new password").status == 204
    assert there.call("GET", "/api/v1/session").status == 401
    assert here.call("GET", "/api/v1/session").status == 200 == here.at(other).call("GET", "/api/v1/session").status
    assert Caller(address).log_in(user).status == 401
    assert Caller(address).log_in(User("changer", "a new password")).status == 200


def test_sessions_have_bounds_that_are_settings(admin, cluster):
    settings = admin.call("GET", "/api/v1/settings").document
    assert (settings["session_idle_seconds"], settings["session_seconds"]) == (1800, 28800), "the defaults"
    for value in (59, 604801):
        assert admin.call("PATCH", "/api/v1/settings", {"session_seconds": value}).status == 400
        assert cluster.cli("settings", "set", "session_idle_seconds", value, ok=(1,)).stderr


@pytest.mark.nightly
def test_an_idle_session_ends_and_one_in_use_does_not(address, other, operator, cluster):
    """Calls of a page at which nobody is do not count."""
    cluster.cli("settings", "set", "session_idle_seconds", IDLE_SECONDS)
    try:
        user = operator("idle", "read-only")
        idle, used = Caller.logged_in(address, user), Caller.logged_in(address, user)
        idle.is_idle = True
        began = time.monotonic()
        while time.monotonic() - began < IDLE_SECONDS + 5:
            assert used.call("GET", "/api/v1/session").status == 200
            status = idle.call("GET", "/api/v1/session").status
            assert status == 200 or time.monotonic() - began >= IDLE_SECONDS - 1
            time.sleep(2)
        assert idle.call("GET", "/api/v1/session").status == 401 == idle.at(other).call("GET", "/api/v1/session").status
    finally:
        cluster.cli("settings", "set", "session_idle_seconds", 1800)


# --- tokens


@pytest.fixture
def token(cluster):
    """Makes tokens on the host, revoked in the end."""
    made = []

    def make(name, *options):
        made.append(name)
        return cluster.json("operator", "token", "create", name, *options)["token"]

    yield make
    for name in made:
        cluster.cli("operator", "token", "revoke", name, ok=None)


@pytest.mark.parametrize("role", ROLES)
def test_a_token_makes_the_calls_of_its_role_and_none_of_sessions(address, token, role):
    caller = Caller.with_token(address, token("of-role", "--role", role))
    wrong = []
    for method, path, operation in operations():
        if operation["x-atoll-roles"] == ["none"]:
            continue
        is_open = may(role, operation) and not operation.get("x-atoll-session-only")
        code = code_of(strange(caller, method, path))
        if code != ((400, "INVALID") if is_open else (403, "ROLE_TOO_LOW")):
            wrong.append((operation["operationId"], is_open, code))
    assert not wrong, wrong


def test_a_token_of_calls_makes_these_only(address, token, cluster):
    caller = Caller.with_token(address, token("of-calls", "--call", "setFlag,listFlags"))
    assert caller.call("PUT", "/api/v1/flags/noscrub", {}).status == 200, "without a CSRF token"
    assert "noscrub" in [flag["flag"] for flag in caller.call("GET", "/api/v1/flags").document]
    cluster.cli("flag", "unset", "noscrub")
    for method, path, operation in operations():
        if operation["operationId"] not in ("setFlag", "listFlags", "createSession"):
            assert strange(caller, method, path).status == 403, operation["operationId"]
    for wrong in ("noSuchCall", "createApiToken", "createOperator"):
        assert wrong in cluster.cli("operator", "token", "create", "wrong", "--call", wrong, ok=(1,)).stderr


def test_a_token_ends_by_time_by_revocation_and_with_its_maker(address, other, operator, token, cluster):
    maker = Caller.logged_in(address, operator("maker", "security"))
    of_maker = maker.call("POST", "/api/v1/api-tokens", {"name": "of-maker", "roles": ["storage"]})
    assert of_maker.status == 201, f"{of_maker}"
    of_host = token("of-host", "--role", "storage")
    brief = token("brief", "--role", "read-only", "--expires", "2s")
    status = lambda text, where=address: Caller.with_token(where, text).call("GET", "/api/v1/status").status
    assert [status(text) for text in (of_maker.document["token"], of_host, brief)] == [200, 200, 200]
    assert status(of_host, other) == 200
    wait_for("it has expired", lambda: status(brief) == 401, 10)
    cluster.cli("operator", "token", "revoke", "of-host")
    assert [status(of_host, where) for where in (other, address)] == [401, 401]
    cluster.cli("operator", "set", "maker", "--role", "storage")
    assert status(of_maker.document["token"]) == 401, "its maker makes no tokens any more"
    cluster.cli("operator", "set", "maker", "--role", "security")
    assert status(of_maker.document["token"]) == 200
    cluster.cli("operator", "rm", "maker")
    assert status(of_maker.document["token"], other) == 401, "its maker is gone"
    assert {one["name"]: one["is_live"] for one in cluster.json("operator", "token", "ls")}["of-maker"] is False
    cluster.cli("operator", "token", "revoke", "of-maker")


def test_security_makes_no_token_that_may_do_more(address, operator, admin):
    caller = Caller.logged_in(address, operator("tokens", "security"))
    make = lambda who, **body: who.call("POST", "/api/v1/api-tokens", {"name": "more", **body}).status
    assert make(caller, roles=["admin"]) == 409 and make(caller, roles=["storage", "admin"]) == 409
    assert make(caller, roles=["storage"], expires_seconds=91 * 86400) == 409, "longer than the setting"
    assert make(caller) == 400 and make(caller, roles=["storage"], calls=["listPools"]) == 400
    assert make(admin, roles=["admin"], expires_seconds=60) == 201
    assert make(admin, roles=["storage"]) == 409, "the name is taken"
    assert caller.call("POST", "/api/v1/api-tokens/more/revoke").status == 200


def test_what_is_told_of_a_token(address, token, cluster):
    """Where it is found a scanner knows it; what is kept of it lets nobody in."""
    text = token("told", "--call", "getHealth")
    assert re.fullmatch(r"atoll_api_[0-9a-f]{64}", text)
    assert Caller.with_token(address, text).call("GET", "/api/v1/health").status == 200
    listed = cluster.json("operator", "token", "ls")
    one = next(one for one in listed if one["name"] == "told")
    assert (one["calls"], one["roles"], one["used_address"], one["maker"]) == (["getHealth"], [], "127.0.0.1", None)
    assert abs(one["used_unix_ms"] / 1000 - time.time()) < 60 and one["is_live"]
    said = json.dumps(listed) + cluster.cli("operator", "token", "ls").stdout + cluster.cli("events").stdout
    said += "".join(path.read_text() for path in (cluster.data / "log").iterdir())
    assert text not in said and text.removeprefix("atoll_api_")[:16] not in said
    # A call that only looks is in no audit log; one that is refused and would have changed something is.
    assert Caller.with_token(address, text).call("PUT", "/api/v1/flags/noscrub", {}).status == 403
    lines = lambda: json_lines(cluster.data / "log" / "admin-audit.jsonl")
    statuses = lambda: [line["status"] for line in lines() if line.get("user") == "token:told"]
    wait_for("it is in the audit log", statuses, 10)
    assert statuses() == [403]
    for wrong in ("", "x", text[:-1] + ("0" if text[-1] != "0" else "1"), text.upper()):
        answer = Caller.with_token(address, wrong or "Bearer").call("GET", "/api/v1/health")
        assert code_of(answer) == (401, "TOKEN_WRONG"), f"{wrong} {answer}"


# --- the second factor


class Authenticator:
    """Codes of a secret, by RFC 6238; each is used once, and the next one is that of the next step."""

    def __init__(self, secret):
        self.key = base64.b32decode(secret + "=" * (-len(secret) % 8))
        self.used = 0

    def code(self, step=None):
        if step is None:
            # The server takes the next step's code as well, so tests wait for no more than the one after.
            step = max(int(time.time() // 30), self.used + 1)
            wait_for("the step of the code", lambda: step <= time.time() // 30 + 1, 40)
            self.used = step
        mac = hmac.digest(self.key, step.to_bytes(8, "big"), "sha1")
        at = mac[19] & 15
        return f"{(int.from_bytes(mac[at : at + 4], 'big') & 0x7FFFFFFF) % 1_000_000:06}"


def enrolled(caller, user):
    """Sets a second factor up by the API: what makes codes, and the recovery codes."""
    begun = caller.call("POST", "/api/v1/session/totp", {"password": user.password})
    assert begun.status == 200, f"{begun}"
    authenticator = Authenticator(begun.document["secret"])
    assert begun.document["secret"] in begun.document["url"] and len(begun.document["qr_rows"]) > 20
    assert caller.call("POST", "/api/v1/session/totp/confirm", {"code": authenticator.code(1)}).status == 401
    confirmed = caller.call("POST", "/api/v1/session/totp/confirm", {"code": authenticator.code()})
    assert confirmed.status == 200, f"{confirmed}"
    return authenticator, confirmed.document["recovery_codes"]


def test_a_code_counts_once_on_all_servers(address, other, operator, cluster):
    user = operator("factor", "admin")
    here, there = Caller.logged_in(address, user), Caller.logged_in(other, user)
    assert here.call("POST", "/api/v1/session/totp", {"password": "wrong"}).status == 401
    authenticator, recovery = enrolled(here, user)
    assert there.call("GET", "/api/v1/session").status == 401, "other sessions end"
    assert here.call("GET", "/api/v1/session").document["has_second_factor"]
    assert code_of(Caller(address).log_in(user)) == (401, "CODE_MISSING")
    used = authenticator.code(authenticator.used)
    assert code_of(Caller(other).log_in(user, code=used)) == (401, "CODE_WRONG"), "it confirmed the secret"
    code = authenticator.code()
    assert Caller(address).log_in(user, code=code).status == 200
    assert code_of(Caller(other).log_in(user, code=code)) == (401, "CODE_WRONG"), "it was used at the other server"
    assert len(set(recovery)) == 10
    assert Caller(other).log_in(user, code=recovery[0].upper()).status == 200
    assert code_of(Caller(address).log_in(user, code=recovery[0])) == (401, "CODE_WRONG")
    assert here.call("POST", "/api/v1/session/totp", {"password": user.password}).status == 409, "it has one"
    # It survives the rotation of the key that wraps it, and a lost one is taken away by a command.
    cluster.cli("key", "rotate")
    assert Caller(address).log_in(user, code=recovery[1]).status == 200
    shown = json.dumps(cluster.json("operator", "ls")) + cluster.cli("operator", "ls").stdout
    assert all(code not in shown for code in recovery)
    cluster.cli("operator", "totp", "reset", "factor")
    assert here.call("GET", "/api/v1/session").status == 401
    assert Caller(address).log_in(user).status == 200


def test_a_changed_password_needs_the_second_factor(address, operator, cluster):
    """Who has taken a session over and knows the password has no more than before."""
    user = operator("both", "read-only")
    caller = Caller.logged_in(address, user)
    _, recovery = enrolled(caller, user)
    change = lambda **code: caller.call(
        "PUT", "/api/v1/session/password", {"password": user.password, "new_password": "a new password", **code}
    )
    assert code_of(change()) == (401, "CODE_MISSING") and code_of(change(code="")) == (401, "CODE_MISSING")
    assert code_of(change(code="000000")) == (401, "CODE_WRONG")
    assert Caller(address).log_in(user, code=recovery[0]).status == 200, "the password is as it was"
    assert change(code=recovery[1]).status == 204
    assert Caller(address).log_in(user, code=recovery[2]).status == 401
    assert Caller(address).log_in(User("both", "a new password"), code=recovery[2]).status == 200


def test_ages_of_tokens_and_second_factors_are_listed(address, operator, token, cluster):
    user = operator("aged", "read-only")
    enrolled(Caller.logged_in(address, user), user)
    token("aged-token", "--role", "read-only")
    ages = {age["secret"]: age for age in cluster.json("key", "ages")}
    for secret in ("password of operator aged", "second factor of operator aged", "token aged-token for the admin API"):
        assert time.time() - ages[secret]["since_unix_ms"] / 1000 < 120, ages.keys()
        assert ages[secret]["rotated_by"].startswith("atoll operator "), ages[secret]


def test_wrong_codes_have_a_limit_on_all_servers(address, other, operator):
    user = operator("guesser", "read-only")
    _, recovery = enrolled(Caller.logged_in(address, user), user)
    # One was wrong when it was set up, and the right one has forgiven it.
    answers = [Caller((address, other)[n % 2]).log_in(user, code=f"{n:06}") for n in range(6)]
    assert [code_of(answer)[1] for answer in answers] == ["CODE_WRONG"] * 5 + ["TOO_MANY_ATTEMPTS"], f"{answers}"
    assert 1 <= int(answers[-1].headers["Retry-After"]) <= 30
    assert Caller(other).log_in(user, code=recovery[0]).status == 429, "not even a right one"


def test_a_required_second_factor_is_set_up_before_anything_else(address, operator, cluster):
    user, free = operator("must", "security"), operator("free", "read-only")
    caller, other_role = Caller.logged_in(address, user), Caller.logged_in(address, free)
    cluster.cli("settings", "set", "totp_required_roles", "security,admin")
    try:
        assert caller.call("GET", "/api/v1/session").document["needs_second_factor"]
        for method, path, operation in operations():
            is_own = path.startswith("/api/v1/session")
            if not is_own:
                assert code_of(strange(caller, method, path)) == (403, "TOTP_MISSING"), operation["operationId"]
        assert other_role.call("GET", "/api/v1/status").status == 200
        authenticator, _ = enrolled(caller, user)
        assert caller.call("GET", "/api/v1/operators").status == 200
    finally:
        cluster.cli("settings", "set", "totp_required_roles", "")
    assert "no role" in cluster.cli("settings", "set", "totp_required_roles", "root", ok=(1,)).stderr


def test_only_others_take_a_second_factor_away(address, operator):
    security, admin = operator("resets", "security"), operator("boss", "admin")
    of_admin = Caller.logged_in(address, admin)
    enrolled(of_admin, admin)
    caller = Caller.logged_in(address, security)
    assert caller.call("POST", "/api/v1/operators/boss/totp/reset").status == 409, "of an admin"
    assert of_admin.call("POST", "/api/v1/operators/boss/totp/reset").status == 409, "one's own"
    enrolled(caller, security)
    assert of_admin.call("POST", "/api/v1/operators/resets/totp/reset").status == 200
    assert caller.call("GET", "/api/v1/session").status == 401 and Caller(address).log_in(security).status == 200


def test_a_second_factor_is_set_up_by_commands(address, operator, cluster):
    user = operator("by-command", "read-only")
    told = cluster.cli("operator", "totp", "enrol", "by-command").stdout
    assert "\u2588" in told and "secret " in told
    begun = cluster.json("operator", "totp", "enrol", "by-command")
    authenticator = Authenticator(begun["secret"])
    assert cluster.cli("operator", "totp", "confirm", "by-command", "000000", ok=(1,)).stderr
    assert Caller(address).log_in(user).status == 200, "it counts once it is confirmed"
    codes = cluster.json("operator", "totp", "confirm", "by-command", authenticator.code())["recovery_codes"]
    assert Caller(address).log_in(user).status == 401 and Caller(address).log_in(user, code=codes[3]).status == 200


# --- the console's pages


@pytest.fixture(scope="module")
def chromium(address):
    with Console(address) as console:
        yield console


@pytest.mark.needs("chromium", "chromedriver")
def test_the_console_makes_an_operator_and_ends_a_session(chromium, address, cluster, operator):
    console = chromium
    console.log_in(operator("page", "security"), "operators")
    console.button("Create operator").click()
    console.fill(name="by-page")
    console.one("dialog[open] [name=storage]").click()
    console.one("dialog[open] [type=submit]").click()
    wait_for("the password", lambda: console.all("#shown-secret"), 10)
    made = User("by-page", console.one("#shown-secret").get_attribute("value"))
    console.button("I have kept it", "dialog").click()
    caller = Caller.logged_in(address, made)
    assert caller.session["roles"] == ["read-only", "storage"]
    label = f"End session {caller.session['id'][:12]} of by-page"
    wait_for("the session", lambda: console.all(f'main button[aria-label="{label}"]'), 20)
    console.button(label).click()
    console.submit()
    assert caller.call("GET", "/api/v1/session").status == 401
    cluster.cli("operator", "rm", "by-page")
    assert console.errors() == []


@pytest.mark.needs("chromium", "chromedriver")
def test_the_console_shows_what_a_role_may_do(address, operator):
    """The same table decides what the server takes."""
    with Console(address) as console:
        console.log_in(operator("looks", "storage"), "osds")
        assert console.button("Mark out osd.0")
        console.open("keys")
        assert "Rewrap" not in console.texts("main button")
        console.open("settings")
        labels = [one.get_attribute("aria-label") for one in console.all("main button")]
        assert "Change balance_seconds" in labels and "Change frame_mode_client" not in labels
        assert "Operators" not in console.texts("#navigation a")
        console.open("own-login").button("Change password").click()
        assert console.dialog() and console.errors() == []


@pytest.mark.needs("chromium", "chromedriver")
def test_the_console_sets_a_second_factor_up_and_asks_for_it(address, operator):
    user = operator("scans", "read-only")
    with Console(address) as console:
        console.log_in(user, "own-login")
        console.button("Set up a second factor").click()
        console.fill(password=user.password)
        console.one("dialog[open] [type=submit]").click()
        wait_for("the secret", lambda: console.all("#totp-secret"), 10)
        assert console.all("dialog svg.qr path")
        authenticator = Authenticator(console.one("#totp-secret").text)
        console.fill(code=authenticator.code())
        console.one("dialog[open] [type=submit]").click()
        wait_for("the recovery codes", lambda: console.all("#recovery-codes"), 10)
        codes = console.one("#recovery-codes").text.split()
        console.button("I have kept them", "dialog").click()
        console.log_out()
        console.fill_login(user)
        wait_for("it asks for a code", lambda: console.all("form.login [name=code]"), 10)
        console.one("form.login [name=code]").send_keys(codes[0])
        console.one("form.login [type=submit]").click()
        console.ready()
        assert console.errors(allowed=(401,)) == []
