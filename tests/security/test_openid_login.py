"""Log-ins to the console by OpenID Connect: who is in a group with a role gets in, and nobody else, whatever strangers,
other sites or the provider send."""

import json
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import pytest
from lib.authority import Authority
from lib.console import Caller, Console, User, with_operators
from lib.logs import json_lines
from lib.openid import CALLBACK, Server, Visitor, oidc_issuer
from lib.waiting import wait_for

SESSION, BEGUN = "atoll_session", "__Host-atoll_oidc"
AT_ONCE_SECONDS = 3
# A log-in begins with a record that was read so long ago at most.
KNOWN_SECONDS = 1
GROUPS = ["--group", "disks=storage", "--group", "cn=sre,dc=example=security,read-only"]


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster("openid", osds=1, osd_size="2G")
    cluster.up()
    return cluster


@pytest.fixture(scope="module")
def address(cluster):
    return with_operators(cluster)


@pytest.fixture(scope="module")
def server(scenario):
    authority = Authority(scenario, "openid")
    server = Server(authority)
    server.authority = authority
    yield server
    server.end()


@pytest.fixture(scope="module")
def configured(cluster, address, server):
    """Sets the provider; called again, sets it again."""
    provider = server.provider
    provider.redirect_uris = {address.origin + CALLBACK}
    secret = cluster.scenario.directory / "client-secret"
    secret.write_text(provider.client_secret + "\n")

    def configure(*more):
        shown = cluster.json(
            *("operator", "oidc", "set", "--issuer", provider.issuer, "--client-id", provider.client_id),
            *("--client-secret-file", secret, "--ca-file", server.authority.certificate),
            *("--console-url", address.origin, *(more or GROUPS)),
        )
        time.sleep(KNOWN_SECONDS)
        return shown

    refused = cluster.cli("operator", "oidc", "set", "--issuer", "https://127.0.0.1", "--public", ok=(1,)).stderr
    assert "outgoing_networks" in refused, refused
    cluster.cli("settings", "set", "outgoing_networks", "127.0.0.1")
    configure()
    # The admin server reads the networks every 5 s.
    wait_for("the provider is asked", lambda: Visitor(address).begin().status == 303, 30)
    return configure


@pytest.fixture
def provider(server, configured):
    server.provider.forget_tricks()
    server.provider.person = {"sub": "s-1", "preferred_username": "ann", "groups": ["disks", "everybody"]}
    return server.provider


@pytest.fixture
def visitor(address):
    return Visitor(address)


def caller_of(visitor):
    """The admin API with the session of a browser."""
    caller = Caller(visitor.address)
    caller.cookie = f"{SESSION}={visitor.cookies[SESSION]}"
    caller.session = caller.call("GET", "/api/v1/session").document
    return caller


def logged_in(visitor, provider):
    answer = visitor.log_in(provider)
    assert (answer.status, answer.location) == (303, "/"), f"{answer}"
    return caller_of(visitor)


# --- who gets in


def test_who_is_in_a_group_with_a_role_gets_in(visitor, provider, cluster):
    begun = visitor.begin()
    [cookie] = begun.cookies
    assert cookie.startswith(f"{BEGUN}=")
    assert {"Path=/", "HttpOnly", "Secure", "SameSite=Lax", "Max-Age=600"} == set(cookie.split("; ")[1:]), cookie
    assert (begun.headers["Cache-Control"], begun.headers["Referrer-Policy"]) == ("no-store", "no-referrer")
    answer = visitor.get(visitor.at_provider(provider, begun))
    assert (answer.status, answer.location) == (303, "/"), f"{answer}"
    [kept] = [cookie for cookie in answer.cookies if cookie.startswith(SESSION)]
    assert {"Path=/", "HttpOnly", "Secure", "SameSite=Strict"} == set(kept.split("; ")[1:]), kept
    assert visitor.cookies.keys() == {SESSION}, "what has begun the log-in is gone"

    caller = caller_of(visitor)
    session = caller.session
    assert (session["user"], session["roles"], session["has_password"]) == ("oidc:ann", ["storage"], False)
    assert caller.call("GET", "/api/v1/status").status == 200
    assert caller.call("GET", "/api/v1/api-tokens").status == 403, "a role that it does not have"
    [listed] = [one for one in cluster.json("operator", "sessions", "ls") if one["id"] == session["id"]]
    assert (listed["user"], listed["subject"], listed["groups"]) == ("oidc:ann", "s-1", ["disks"])
    assert caller.call("PUT", "/api/v1/flags/noscrub", {}).status == 200
    cluster.cli("flag", "unset", "noscrub")

    logs = [cluster.data / "log" / name for name in ("admin-audit.jsonl", "admin-audit-changes.jsonl")]
    lines = lambda: [line for log in logs for line in json_lines(log) if line.get("subject") == "s-1"]
    wait_for("both are in the audit log", lambda: len(lines()) >= 2, 10)
    seen = {(line["user"], line["path"], line["status"]) for line in lines()}
    assert {("oidc:ann", CALLBACK, 303), ("oidc:ann", "/api/v1/flags/noscrub", 200)} <= seen, seen
    written = "".join(log.read_text() for log in [*logs, cluster.data / "log" / "admin.log"])
    for secret in (provider.client_secret, visitor.cookies[SESSION], session["csrf_token"]):
        assert secret not in written


def test_groups_have_the_roles_of_the_mapping(visitor, provider):
    provider.key, provider.person["groups"] = provider.keys[1], ["cn=sre,dc=example", "disks"]
    provider.more_claims = {"aud": ["other", provider.client_id], "azp": provider.client_id}
    assert logged_in(visitor, provider).session["roles"] == ["read-only", "storage", "security"]


def test_names_of_people_are_no_operators(visitor, provider, address):
    provider.person["preferred_username"] = address.admin.name
    caller = logged_in(visitor, provider)
    assert (caller.session["user"], caller.session["roles"]) == (f"oidc:{address.admin.name}", ["storage"])


# --- who does not


def unsigned(provider, asked, algorithm):
    """A token without a signature of the provider: none, or one by what everybody knows."""
    import base64
    import hashlib
    import hmac

    provider.header = {"alg": algorithm}
    head, claims, _ = provider.id_token(asked).split(".")
    public = json.dumps(provider.keys[0].public()).encode()
    signature = hmac.new(public, f"{head}.{claims}".encode(), hashlib.sha256).digest()
    signed = base64.urlsafe_b64encode(signature).rstrip(b"=").decode()
    return ".".join([head, claims, "" if algorithm == "none" else signed])


def with_tokens(**more):
    """The provider's token has other claims; None: it lacks them."""

    def trick(provider, path):
        provider.more_claims = more
        return path

    return trick


def with_text(make):
    def trick(provider, path):
        code = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)["code"][0]
        provider.text = make(provider, provider.codes[code])
        return path

    return trick


def with_answer(**other):
    """The browser comes back with other parameters; None: without them."""

    def trick(provider, path):
        parts = urllib.parse.urlsplit(path)
        query = dict(urllib.parse.parse_qsl(parts.query)) | other
        query = {name: value for name, value in query.items() if value is not None}
        return f"{parts.path}?{urllib.parse.urlencode(query)}"

    return trick


def with_key(make):
    def trick(provider, path):
        provider.key = make(provider)
        return path

    return trick


def of_provider(**fields):
    def trick(provider, path):
        for name, value in fields.items():
            setattr(provider, name, value)
        return path

    return trick


def now(seconds):
    return int(time.time()) + seconds


TRICKS = {
    "nonce of another log-in": with_tokens(nonce="0" * 64),
    "no nonce": with_tokens(nonce=None),
    "another audience": with_tokens(aud="other"),
    "no audience": with_tokens(aud=None),
    "token of another client": with_tokens(aud=["atoll-console", "other"], azp="other"),
    "several clients, asked by none": with_tokens(aud=["atoll-console", "other"]),
    "another client has asked": with_tokens(azp="other"),
    "issuer in the token": with_tokens(iss="https://localhost:1/realms/staff"),
    "expired": lambda provider, path: with_tokens(exp=now(-120), iat=now(-300))(provider, path),
    "without an end": with_tokens(exp=None),
    "of the future": lambda provider, path: with_tokens(iat=now(120))(provider, path),
    "not yet": lambda provider, path: with_tokens(nbf=now(120))(provider, path),
    "no subject": with_tokens(sub=None),
    "empty subject": with_tokens(sub=""),
    "no group with a role": with_tokens(groups=["everybody", "Disks", "disks "]),
    "no groups": with_tokens(groups=None),
    "groups of another shape": with_tokens(groups={"disks": True}),
    "no name": with_tokens(preferred_username=None),
    "alg none": with_text(lambda provider, asked: unsigned(provider, asked, "none")),
    "HS256 by the public key": with_text(lambda provider, asked: unsigned(provider, asked, "HS256")),
    "RS512": of_provider(header={"alg": "RS512"}),
    "critical header": of_provider(header={"crit": ["exp"]}),
    "key of another issuer": with_key(lambda provider: oidc_issuer.RsaKey("rsa")),
    "key of another kind": with_key(lambda provider: oidc_issuer.EcKey("rsa")),
    "unknown key": with_key(lambda provider: oidc_issuer.RsaKey("unknown")),
    "no token": of_provider(text="nonsense"),
    "another state": with_answer(state="0" * 64),
    "no state": with_answer(state=None),
    "another code": with_answer(code="guessed"),
    "no code": with_answer(code=None),
    "another issuer answers": with_answer(iss="https://localhost:1/realms/staff"),
    "the issuer is not named": with_answer(iss=None),
    "the provider refuses": with_answer(code=None, error="access_denied\n"),
    "the token's server fails": of_provider(token_body=b'{"error":"server_error"}', token_status=500),
    "the token's server is none": of_provider(token_body=b"<html>"),
    "the token's server redirects": of_provider(token_body=b"", token_status=302),
    "a huge answer": of_provider(token_body=b'{"id_token":"' + b"a" * (1 << 20) + b'"}'),
    "a huge token": of_provider(text="a" * 100_000),
    "a slow answer": of_provider(token_pause_seconds=8),
}


# All get the same.
FAILED_PAGE = (
    b'<!doctype html><html lang="en"><title>Log-in failed - Atoll</title><h1>The log-in failed</h1>'
    b'<p>The log of the admin server has the cause.</p><p><a href="/">Back to the console</a></p></html>\n'
)


def refused(answer, begun):
    """The one answer that strangers get, whatever has failed."""
    seconds = time.monotonic() - begun
    assert answer.status == 403 and b"<h1>The log-in failed</h1>" in answer.body, f"{answer}"
    assert not any(cookie.startswith(SESSION) for cookie in answer.cookies) and answer.location is None, f"{answer}"
    assert 0.9 < seconds < 8, f"{seconds} s"
    return answer.body


def tricked_path(visitor, provider, trick):
    """Where the browser comes back to, with an answer of a provider that plays a trick on this log-in only."""
    path = visitor.at_provider(provider, visitor.begin())
    return trick(provider.tricked(path), path)


def refused_and_then_let_in(visitor, provider, trick):
    path = tricked_path(visitor, provider, trick)
    begun = time.monotonic()
    assert refused(visitor.get(path), begun) == FAILED_PAGE
    logged_in(Visitor(visitor.address, visitor.source[0]), provider)


def slowed_and_then_let_in(visitor, provider, trick):
    answers = [visitor.get(tricked_path(visitor, provider, trick)) for _ in range(4)]
    assert [answer.status for answer in answers] == [403, 403, 403, 429], answers
    assert 1 <= int(answers[-1].headers["Retry-After"]) <= 60
    wait_for("the pause is over", lambda: visitor.log_in(provider).status == 303, 30)


@pytest.fixture(scope="module")
def outcomes(server, configured, address):
    """What becomes of each trick, and of one that is played again and again. All at once, since each answer takes a
    second; each from an address of its own, since failures are slowed by address."""
    provider = server.provider
    provider.forget_tricks()
    provider.person = {"sub": "s-1", "preferred_username": "ann", "groups": ["disks", "everybody"]}
    jobs = {"again and again": (slowed_and_then_let_in, with_tokens(nonce=None))}
    jobs |= {name: (refused_and_then_let_in, trick) for name, trick in TRICKS.items()}
    with ThreadPoolExecutor(8) as pool:
        visitors = [Visitor(address, f"127.1.0.{number + 1}") for number in range(len(jobs))]
        return {
            name: pool.submit(call, visitor, provider, trick)
            for visitor, (name, (call, trick)) in zip(visitors, jobs.items(), strict=True)
        }


@pytest.mark.parametrize("name", TRICKS)
def test_nobody_else_gets_in(outcomes, name):
    outcomes[name].result()


def test_failures_are_slowed_by_address(outcomes):
    """After three of them for some seconds; others get in meanwhile."""
    outcomes["again and again"].result()


def test_an_answer_counts_once_and_in_its_browser(visitor, provider, address):
    begun = visitor.begin()
    path, other = visitor.at_provider(provider, begun), Visitor(address)
    other.begin()
    refused(other.get(path), time.monotonic() - 1)
    refused(Visitor(address).get(path), time.monotonic() - 1)
    kept = dict(visitor.cookies)
    assert visitor.get(path).status == 303
    again = Visitor(address)
    again.cookies = dict(kept)
    refused(again.get(path), time.monotonic() - 1)
    # Not even with another code that the provider would take.
    code = urllib.parse.parse_qs(urllib.parse.urlsplit(Visitor(address).at_provider(provider, begun)).query)["code"][0]
    again.cookies = dict(kept)
    refused(again.get(with_answer(code=code)(provider, path)), time.monotonic() - 1)
    logged_in(Visitor(address), provider)


def test_the_cause_is_in_the_log_and_not_in_the_answer(visitor, provider, cluster, address):
    provider.person |= {"groups": ["everybody"], "sub": "s-outside"}
    body = refused(visitor.log_in(provider), time.monotonic() - 1)
    assert b"group" not in body
    log = cluster.data / "log" / "admin.log"
    wait_for(
        "the cause is in the log", lambda: "oidc:ann (s-outside) is in no group with a role" in log.read_text(), 10
    )
    provider.person["groups"] = ["disks"]
    logged_in(Visitor(address), provider)


def test_nobody_is_sent_elsewhere(visitor, provider, address):
    evil = "https://evil.example"
    for path in (f"/session/oidc?return_to={evil}", f"/session/oidc?redirect_uri={evil}&state=known&nonce=known"):
        begun = Visitor(address).begin(path)
        assert evil.encode() not in begun.body and "evil" not in begun.location, f"{begun}"
        query = urllib.parse.parse_qs(urllib.parse.urlsplit(begun.location).query)
        assert query["redirect_uri"] == [address.origin + CALLBACK] and query["state"] != ["known"]
    hosts = ("evil.example", "evil.example:8443", "127.0.0.1:1", f"{address.origin[8:]}@evil.example", "a/b", "")
    begun = time.monotonic()
    with ThreadPoolExecutor(len(hosts)) as pool:
        for answer in pool.map(lambda host: Visitor(address).begin(Host=host), hosts):
            refused(answer, begun)
    path = visitor.at_provider(provider, visitor.begin()) + f"&return_to={evil}"
    assert visitor.get(path).location == "/"


def test_requests_without_a_log_in_shut_nobody_out(visitor, provider, address):
    """Another site can make a browser ask for the callback, and that counts as no attempt."""
    with ThreadPoolExecutor(5) as pool:
        answers = pool.map(lambda number: Visitor(address).get(f"{CALLBACK}?code=a&state={number}"), range(5))
        assert [answer.status for answer in answers] == [403] * 5
    logged_in(visitor, provider)


# --- sessions


def test_who_has_no_password_here_changes_none(visitor, provider):
    provider.person["groups"] = ["cn=sre,dc=example"]
    caller = logged_in(visitor, provider)
    for method, path, body in (
        ("PUT", "/api/v1/session/password", {"password": "x", "new_password": "a new password"}),
        ("POST", "/api/v1/session/totp", {"password": "x"}),
        ("POST", "/api/v1/session/totp/confirm", {"code": "000000"}),
        ("POST", "/api/v1/api-tokens", {"name": "of-provider", "roles": ["read-only"]}),
    ):
        answer = caller.call(method, path, body)
        assert (answer.status, answer.document["code"]) == (409, "CONFLICT"), f"{path}: {answer}"
    assert caller.call("DELETE", "/api/v1/session").status == 204
    assert caller.call("GET", "/api/v1/session").status == 401


def test_sessions_end_with_the_provider_its_mapping_and_by_commands(provider, address, cluster, configured):
    changes = {
        "another role": lambda: configured("--group", "disks=read-only"),
        "the old mapping": configured,
        "another skew": lambda: cluster.cli("operator", "oidc", "set", "--skew-seconds", 30),
        "sessions of the person": lambda: cluster.cli("operator", "sessions", "end", "--operator", "oidc:ann"),
        "everybody's": lambda: cluster.cli("operator", "sessions", "end", "--all"),
    }
    for name, change in changes.items():
        caller = logged_in(Visitor(address), provider)
        assert caller.call("GET", "/api/v1/session").status == 200
        change()
        assert caller.call("GET", "/api/v1/session").status == 401, name
        time.sleep(KNOWN_SECONDS)
    ends, stays = (logged_in(Visitor(address), provider) for _ in range(2))
    cluster.cli("operator", "sessions", "end", ends.session["id"][:12])
    assert [one.call("GET", "/api/v1/session").status for one in (ends, stays)] == [401, 200]
    begun = Visitor(address)
    path = begun.at_provider(provider, begun.begin())
    cluster.cli("operator", "oidc", "rm")
    assert stays.call("GET", "/api/v1/session").status == 401
    refused(begun.get(path), time.monotonic() - 1)
    time.sleep(KNOWN_SECONDS)
    refused(Visitor(address).begin(), time.monotonic() - 1)
    ways = lambda: json.loads(begun.get("/session/methods").body)
    wait_for("the page knows", lambda: ways() == {"password": True, "oidc": False}, AT_ONCE_SECONDS)
    configured()
    wait_for("they can log in again", lambda: Visitor(address).log_in(provider).status == 303, 30)


def test_passwords_are_off_only_while_the_provider_lets_people_in(provider, address, cluster, configured):
    local = Caller.logged_in(address, address.admin)
    assert local.call("PATCH", "/api/v1/settings", {"local_login": False}).status == 400, "not by the console"
    cluster.cli("settings", "set", "local_login", "false")
    try:
        assert local.call("GET", "/api/v1/session").status == 401, "such sessions end"
        answer = Caller(address).log_in(address.admin)
        assert (answer.status, answer.document["code"]) == (403, "PASSWORDS_OFF"), f"{answer}"
        wrong = Caller(address).log_in(User(address.admin.name, "wrong password"))
        assert (wrong.status, wrong.document) == (answer.status, answer.document), "a password is not looked at"
        ways = lambda: json.loads(Visitor(address).get("/session/methods").body)
        wait_for("the page knows", lambda: ways() == {"password": False, "oidc": True}, AT_ONCE_SECONDS)
        logged_in(Visitor(address), provider)
        assert "local_login true" in cluster.cli("operator", "oidc", "rm", ok=(1,)).stderr
    finally:
        cluster.cli("settings", "set", "local_login", "true")
    assert Caller(address).log_in(address.admin).status == 200
    cluster.cli("operator", "oidc", "rm")
    assert "oidc set" in cluster.cli("settings", "set", "local_login", "false", ok=(1,)).stderr
    configured()


# --- the provider


def test_a_provider_that_is_not_what_it_should_be_lets_nobody_in(provider, address, configured):
    honest = provider.discovery()
    for wrong in (
        {"issuer": "https://localhost:1/realms/staff"},
        {"issuer": provider.issuer + "/"},
        {"token_endpoint": honest["token_endpoint"].replace("https:", "http:")},
        {"jwks_uri": "http://127.0.0.1:1/keys"},
        {"jwks_uri": "https://127.0.0.2:1/keys"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": 7},
    ):
        provider.discovery = lambda wrong=wrong: honest | wrong
        configured()
        begun = time.monotonic()
        refused(Visitor(address).begin(), begun)
    del provider.discovery
    configured()
    logged_in(Visitor(address), provider)


@pytest.mark.nightly
def test_new_keys_of_the_provider_are_asked_for(provider, address, configured):
    configured()
    logged_in(Visitor(address), provider)
    provider.keys.append(oidc_issuer.RsaKey("newer"))
    provider.key = provider.keys[-1]
    wait_for("the new key is known", lambda: Visitor(address).log_in(provider).status == 303, 45)
    assert provider.asked.count("/realms/staff/keys") < 20


def test_the_secret_is_nowhere_in_sight(provider, cluster, configured):
    shown = configured()
    assert (shown["has_secret"], shown["roles"]["disks"]) == (True, ["storage"])
    told = json.dumps([shown, cluster.json("operator", "oidc", "show"), cluster.json("settings", "ls")])
    told += cluster.cli("operator", "oidc", "show").stdout + cluster.cli("events").stdout
    assert provider.client_secret not in told
    ages = [age["secret"] for age in cluster.json("key", "ages")]
    assert "secret of the OpenID Connect client" in ages, ages
    assert cluster.json("key", "rewrap")["failed"] == []


# --- the browser


@pytest.mark.needs("chromium", "chromedriver")
def test_the_page_logs_in_by_the_provider(provider, address, cluster):
    with Console(address) as console:
        console.browser.get(f"{address.origin}/#/osds")
        wait_for("the button", lambda: console.all("#oidc"), 30)
        console.one("#oidc").click()
        wait_for("the console is back", lambda: console.all("main[aria-busy=false] h1"), 30)
        console.ready()
        assert console.part == "osds", "one comes back to where one was"
        assert "Change password" not in console.open("own-login").texts("main button")
        assert console.heading == "Operator oidc:ann"
        console.log_out()
        cluster.cli("settings", "set", "local_login", "false")
        try:
            # The page asks once, and the server remembers for a second.
            ways = lambda: json.loads(Visitor(address).get("/session/methods").body)
            wait_for("the page knows", lambda: not ways()["password"], AT_ONCE_SECONDS)
            console.browser.get(f"{address.origin}/")
            wait_for("only the button", lambda: console.all("#oidc") and not console.all("form.login input"), 30)
        finally:
            cluster.cli("settings", "set", "local_login", "true")
        assert console.errors() == []
