"""The web console of a real cluster in a real browser: every page in light and dark, wide and narrow, without an error
in the browser's log; actions and their dialogs; who may do what; sessions."""

import json
import re
import secrets
import time

import pytest
from lib.console import Caller, Console, User, another_server, may, operations
from lib.logs import request_lines
from lib.waiting import wait_for
from selenium.webdriver.common.keys import Keys

pytestmark = pytest.mark.needs("chromium", "chromedriver")

# Widths in pixels with schemes of colours. In the quick tier each is seen once.
LOOKS = [
    (360, "light"),
    (1920, "dark"),
    pytest.param(360, "dark", marks=pytest.mark.nightly),
    pytest.param(1920, "light", marks=pytest.mark.nightly),
]
# Longer than the pause between two refreshes.
REFRESH_SECONDS = 7
# Of an image that only this test has.
IMAGE = "console-walk"
PAGE_WIDTHS = "return [document.documentElement.scrollWidth, window.innerWidth]"
WALKED_TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"AWS": "*"}}],
}
WALKED_POLICY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "s3:ListBucket", "Resource": "*"}],
}
# What paths are filled with: role, session and X-Atoll-CSRF are looked at before names are.
NAMES = {"osd": "0", "pg": "1.0", "flag": "noout"}
# Calls whose documents are made for the page, and one whose command gives a line for each event.
TOLD_OTHERWISE = ("getSession", "getFigures", "listSlowOperations", "listEvents")
PARTS = [
    "overview",
    "hosts",
    "osds",
    "osds/0",
    "pools",
    "pgs",
    "pgs/1.0",
    "pgs?not_clean=true",
    "performance",
    "performance?kind=pool",
    "performance?kind=gateway",
    "images",
    "locks",
    "trash",
    "buckets",
    "accounts",
    "keys",
    "operators",
    "events",
    "slow-operations",
    "settings",
]
KINDS = [
    "account",
    "user",
    "group",
    "role",
    "policy of a user",
    "policy of a group",
    "policy of a role",
    "policy",
    "image",
    "bucket",
]


@pytest.fixture(scope="module")
def cluster(scenario):
    cluster = scenario.cluster(osds=3, osd_size="2G")
    cluster.up()
    return cluster


@pytest.fixture
def short_sessions(cluster, address):
    """A console of the same cluster whose sessions end soon."""
    seconds = 8
    return another_server(cluster, address, "--session-seconds", seconds), seconds


@pytest.fixture
def fresh(address):
    """A browser of its own."""
    with Console(address) as console:
        yield console


@pytest.fixture
def image(admin):
    """An image, moved to the trash in the end."""
    assert admin.call("POST", "/api/v1/images", {"name": IMAGE, "size_bytes": 1 << 24}).status == 201
    yield IMAGE
    admin.call("POST", f"/api/v1/images/{IMAGE}/trash", {"confirm": IMAGE, "keep_seconds": 1})


def filled(path):
    return re.sub(r"{(\w+)}", lambda match: NAMES.get(match[1], "none"), path)


REFUSED_OPERATIONS = [
    pytest.param(method, filled(path), id=operation["operationId"])
    for method, path, operation in operations()
    if not may("read-only", operation)
]
CHANGING_OPERATIONS = [
    pytest.param(method, filled(path), id=operation["operationId"])
    for method, path, operation in operations()
    if method != "GET" and operation["x-atoll-roles"] != ["none"]
]
OPERATIONS = [
    pytest.param(method, filled(path), id=operation["operationId"])
    for method, path, operation in operations()
    if operation["x-atoll-roles"] != ["none"]
]


# --- the API


def error_of(answer):
    """The code of an error, which says what and what to do."""
    assert set(answer.document) == {"code", "message", "action"} and all(answer.document.values()), f"{answer}"
    return answer.document["code"]


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_call_needs_a_session(address, method, path):
    answer = Caller(address).call(method, path, {} if method != "GET" else None, csrf="none")
    assert answer.status == 401 and error_of(answer) == "SESSION_MISSING", f"{answer}"


@pytest.mark.parametrize(("method", "path"), REFUSED_OPERATIONS)
def test_a_reader_cannot_change_anything(reader, method, path):
    answer = reader.call(method, path, {} if method != "GET" else None)
    assert answer.status == 403 and error_of(answer) == "ROLE_TOO_LOW", f"{answer}"


@pytest.mark.parametrize(("method", "path"), CHANGING_OPERATIONS)
@pytest.mark.parametrize("token", ["", "wrong"], ids=["none", "wrong"])
def test_a_change_without_the_token_of_the_session_is_refused(admin, method, path, token):
    answer = admin.call(method, path, {}, csrf=token)
    assert answer.status == 403 and error_of(answer) == "CSRF_MISSING", f"{answer}"


def test_a_form_of_another_site_cannot_log_in(address):
    body = {"user": address.admin.name, "password": address.admin.password}
    answer = Caller(address).call("POST", "/api/v1/session", body, csrf="")
    assert answer.status == 403 and error_of(answer) == "CSRF_MISSING", f"{answer}"


def test_the_cookie_is_kept_from_scripts_and_other_sites(address):
    cookie = Caller(address).log_in(address.reader).headers["Set-Cookie"]
    attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert cookie.startswith("atoll_session=") and {"httponly", "secure", "samesite=strict"} <= attributes, cookie


def test_a_destroying_call_needs_the_name_once_more(admin, image):
    answer = admin.call("POST", f"/api/v1/images/{image}/trash", {"confirm": "other"})
    assert answer.status == 403 and error_of(answer) == "CONFIRM_WRONG", f"{answer}"
    assert admin.call("GET", f"/api/v1/images/{image}").status == 200


def test_what_the_document_does_not_have_is_refused(admin):
    answer = admin.call("PATCH", "/api/v1/settings", {"no_such_setting": 1})
    assert answer.status == 400 and error_of(answer) == "INVALID", f"{answer}"
    answer = admin.call("PATCH", "/api/v1/pools/images", {})
    assert answer.status == 400 and error_of(answer) == "INVALID", f"{answer}"
    answer = admin.call("GET", "/api/v1/pgs?no_such_filter=1")
    assert answer.status == 400 and error_of(answer) == "INVALID", f"{answer}"


def test_a_wrong_password_is_slowed(address, note):
    """Each takes a second, and after some of them the next is refused for a while, whoever it is."""
    nobody = User(f"nobody-{secrets.token_hex(4)}", "wrong")
    statuses, began = [], time.monotonic()
    # Who is late finds a pause over, and the next one is longer.
    while 429 not in statuses and len(statuses) < 6:
        answer = Caller(address).log_in(nobody)
        statuses.append(answer.status)
        assert error_of(answer) in ("CREDENTIALS_WRONG", "TOO_MANY_ATTEMPTS")
    seconds = time.monotonic() - began
    assert statuses[0] == 401 and statuses[-1] == 429 and seconds >= 3, f"{statuses} in {seconds:.1f} s"
    assert int(answer.headers["Retry-After"]) >= 1, f"{answer.headers}"
    note(f"{statuses} in {seconds:.1f} s")


def test_a_name_that_no_operator_can_have_is_refused(cluster, address):
    """Neither the pauses after wrong passwords nor the audit log keep it."""
    answer = Caller(address).log_in(User("x" * (200 << 10), "wrong"))
    assert answer.status == 400 and error_of(answer) == "INVALID", f"{answer}"
    assert "x" * 65 not in (cluster.data / "log" / "admin-audit.jsonl").read_text()


def test_a_secret_is_in_one_answer_only(admin):
    account = admin.call("GET", "/api/v1/accounts").document["Accounts"][0]["Id"]
    keys = f"/api/v1/accounts/{account}/access-keys"
    made = admin.call("POST", keys, {"description": "console walk"})
    key = made.document["AccessKey"]
    assert made.status == 201 and key["SecretAccessKey"], f"{made.status}"
    listed = json.dumps(admin.call("GET", keys).document)
    removed = admin.call("POST", f"{keys}/{key['AccessKeyId']}/remove", {"confirm": key["AccessKeyId"]})
    assert key["AccessKeyId"] in listed and key["SecretAccessKey"] not in listed and removed.status == 200


def test_pages_are_served_with_a_strict_policy(address):
    answer = Caller(address).page("/")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy, policy


# --- pages


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
@pytest.mark.parametrize("part", PARTS)
def test_a_page_shows_its_data_without_an_error(console, part, width, scheme):
    """It has one heading of the first level, fits the width, and neither it nor the content policy complains."""
    console.resize(width, 900)
    console.prefer(scheme)
    console.open(part)
    assert len(console.all("main h1")) == 1 and not console.all("main [role=alert]"), console.texts("main")
    needed, there = console.browser.execute_script(PAGE_WIDTHS)
    assert needed <= there, f"{part} is {needed} px wide at {there}"
    assert console.errors() == []


@pytest.fixture(scope="module")
def things(cluster, admin):
    """A thing of each kind that has a page of its own, and what its page must name."""
    account = admin.call("GET", "/api/v1/accounts").document["Accounts"][0]["Id"]
    cluster.cli("user", "create", "walker")
    cluster.cli("group", "create", "walkers")
    cluster.cli("group", "add", "walkers", "walker")
    document = cluster.scenario.directory / "walked.json"
    document.write_text(json.dumps(WALKED_TRUST))
    cluster.cli("role", "create", "walking", document, "--description", "to walk")
    document.write_text(json.dumps(WALKED_POLICY))
    for holder in (("--user", "walker"), ("--group", "walkers"), ("--role", "walking")):
        cluster.cli("policy", "attach", "AmazonS3ReadOnlyAccess", *holder)
        cluster.cli("policy", "put", "of-its-own", document, *holder)
    cluster.create_image("walked", "16M")
    cluster.cli("image", "snap", "create", "walked@first")
    s3 = cluster.s3()
    s3.create_bucket(Bucket="walked")
    s3.put_object(Bucket="walked", Key="walked.txt", Body=b"1")
    of_account = f"accounts/{account}"
    return {
        "account": (of_account, ["walker", "walkers", "walking"]),
        "user": (f"{of_account}/users/walker", ["walkers", "AmazonS3ReadOnlyAccess", "of-its-own"]),
        "group": (f"{of_account}/groups/walkers", ["walker", "AmazonS3ReadOnlyAccess", "of-its-own"]),
        "role": (f"{of_account}/roles/walking", ["to walk", "sts:AssumeRole", "AmazonS3ReadOnlyAccess", "of-its-own"]),
        "policy of a user": (f"{of_account}/users/walker/policies/of-its-own", ["s3:ListBucket", "user walker"]),
        "policy of a group": (f"{of_account}/groups/walkers/policies/of-its-own", ["s3:ListBucket", "group walkers"]),
        "policy of a role": (f"{of_account}/roles/walking/policies/of-its-own", ["s3:ListBucket", "role walking"]),
        "policy": (f"{of_account}/policies/AmazonS3ReadOnlyAccess", ["s3:Get*"]),
        "image": ("images/walked", ["first"]),
        "bucket": ("buckets/walked", ["walked.txt"]),
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_a_page_of_one_thing_shows_what_it_has(console, things, kind, width, scheme):
    part, names = things[kind]
    console.resize(width, 900)
    console.prefer(scheme)
    console.open(part)
    text = console.texts("main")[0]
    assert not console.all("main [role=alert]") and all(name in text for name in names), text
    needed, there = console.browser.execute_script(PAGE_WIDTHS)
    assert needed <= there, f"{part} is {needed} px wide at {there}"
    assert console.errors() == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_sees_no_action_on_one_thing(reading, things, kind):
    reading.open(things[kind][0])
    names = [button.text for button in reading.all("main button:not(.sort):not(.plain)")]
    assert [name for name in names if name not in ("Show", "Show more")] == []
    assert reading.errors() == []


def test_an_address_that_is_no_page_says_so(console):
    console.browser.execute_script("location.hash = '#/nowhere'")
    wait_for("it says so", lambda: console.heading == "There is no such page", 20)


def test_an_error_says_what_and_what_to_do(console):
    console.browser.execute_script("location.hash = '#/images/not-there'")
    wait_for("an error", lambda: console.all("main [role=alert]"), 10)
    assert "not-there" in console.texts("main [role=alert] strong")[0]
    assert console.texts("main [role=alert] p")[0], "it does not say what to do"
    assert console.errors(allowed=(404,)) == []


def test_the_chosen_colours_stay(console):
    console.prefer("light")
    console.open("overview")
    ground = "return getComputedStyle(document.body).backgroundColor"
    light = console.browser.execute_script(ground)
    console.one("#theme option[value=dark]").click()
    dark = console.browser.execute_script(ground)
    console.browser.refresh()
    console.ready()
    assert light != dark == console.browser.execute_script(ground)
    console.one("#theme option[value='']").click()


@pytest.mark.nightly
def test_a_refresh_keeps_focus_selection_and_scroll(console):
    console.resize(1280, 400)
    console.open("pgs")
    script = """
        const field = document.getElementById("filter-osd");
        field.focus({preventScroll: true});
        field.value = "12345";
        field.setSelectionRange(1, 3);
        window.scrollTo(0, 120);
    """
    console.browser.execute_script(script)
    time.sleep(REFRESH_SECONDS)
    state = console.browser.execute_script(
        "const field = document.activeElement;"
        "return [field.id, field.value, field.selectionStart, field.selectionEnd, window.scrollY]"
    )
    assert state == ["filter-osd", "12345", 1, 3, 120], f"{state}"


def test_a_filter_keeps_the_focus(console):
    console.resize(1280, 900)
    console.open("overview").open("pgs")
    before = len(console.all("tbody tr"))
    console.one("#filter-osd").send_keys("0", Keys.TAB)
    console.ready()
    assert console.part == "pgs?osd=0" and console.focused()["id"] == "filter-clean"
    console.press(Keys.SPACE)
    wait_for("fewer PGs", lambda: len(console.ready().all("tbody tr")) < before, 10)
    assert console.part == "pgs?osd=0&not_clean=true" and console.focused()["id"] == "filter-clean"


# --- by keyboard


def test_the_first_key_leads_to_the_content(console):
    console.resize(1280, 900)
    console.open("osds")
    console.browser.refresh()
    console.ready()
    console.press(Keys.TAB)
    assert console.focused()["id"] == "skip"
    console.press(Keys.ENTER)
    assert console.focused()["id"] == "main"


def test_a_new_page_has_the_focus_at_its_heading(console):
    console.open("overview")
    console.one('#navigation a[href="#/pools"]').send_keys(Keys.ENTER)
    wait_for("the page's data", lambda: console.texts("main[aria-busy=false] h1") == ["Pools"], 10)
    focused = console.focused()
    assert (focused["tag"], focused["text"]) == ("h1", "Pools"), f"{focused}"


def test_a_dialog_gives_the_focus_back(console):
    console.open("settings")
    console.button("Set noscrub").send_keys(Keys.ENTER)
    assert console.dialog().find_element("css selector", "h2").text == "Set the flag noscrub"
    console.press(Keys.ESCAPE)
    wait_for("the dialog closes", lambda: not console.all("dialog"), 20)
    assert console.focused()["label"] == "Set noscrub"


# --- actions


def test_a_flag_is_set_and_unset(console, admin):
    console.open("settings")
    console.button("Set nodeepscrub").click()
    console.submit()
    wait_for("it is set", lambda: console.button("Unset nodeepscrub"), 10)
    assert "nodeepscrub" in [flag["flag"] for flag in admin.call("GET", "/api/v1/flags").document]
    assert "nodeepscrub is set" in console.texts(".message span")
    console.button("Unset nodeepscrub").click()
    console.submit()
    wait_for("it is not set", lambda: console.button("Set nodeepscrub"), 10)


def test_an_image_is_removed_only_with_its_name(console, image):
    console.open(f"images/{image}")
    console.button("Move to the trash").click()
    console.fill(confirm="something else")
    console.one("dialog[open] [type=submit]").click()
    wait_for("it is refused", lambda: console.all("dialog [role=alert]"), 20)
    assert console.focused()["id"] == "field-confirm"
    console.fill(confirm=image)
    console.submit()
    wait_for("the list of images", lambda: console.part == "images", 10)
    console.ready().open("trash")
    wait_for("it is in the trash", lambda: image in " ".join(console.texts("tbody th")), 10)
    assert console.errors() == []


def test_what_the_server_refuses_is_shown_in_the_dialog(console, image):
    console.open("images")
    console.button("Create image").click()
    console.fill(name=image, size_bytes="16M")
    console.one("dialog[open] [type=submit]").click()
    wait_for("the error", lambda: console.all("dialog [role=alert]"), 10)
    assert image in console.texts("dialog [role=alert] strong")[0]
    console.press(Keys.ESCAPE)
    assert console.errors(allowed=(409,)) == []


@pytest.mark.parametrize("part", [part for part in PARTS if part != "operators"])
def test_a_reader_sees_no_action(address, reading, part):
    reading.open(part)
    names = [button.text for button in reading.all("main button:not(.sort):not(.plain)")]
    assert [name for name in names if name not in ("Show", "Show more")] == []
    assert reading.errors() == []


@pytest.fixture(scope="module")
def reading(address):
    """A browser in which somebody is logged in who may only read."""
    with Console(address) as console:
        console.log_in(address.reader)
        yield console


# --- sessions


def test_a_wrong_password_is_told(fresh, address):
    fresh.browser.get(f"{address.origin}/")
    fresh.fill_login(User(f"nobody-{secrets.token_hex(4)}", "wrong"))
    wait_for("it is told", lambda: fresh.all("form.login [role=alert]"), 15)
    assert fresh.one("#password").get_attribute("value") == "" and fresh.focused()["id"] == "password"
    assert fresh.errors(allowed=(401, 429)) == []


@pytest.mark.nightly
def test_an_ended_session_leads_to_the_log_in_and_back(fresh, address):
    fresh.log_in(address.admin, "pgs?pool=images")
    ender = Caller(address)
    ender.cookie = f"atoll_session={fresh.browser.get_cookie('atoll_session')['value']}"
    ender.session = ender.call("GET", "/api/v1/session").document
    assert ender.call("DELETE", "/api/v1/session").status == 204
    wait_for("the log-in page", lambda: fresh.all("form.login"), 20)
    assert "Your session has ended" in fresh.texts("form.login")[0]
    fresh.fill_login(address.admin)
    fresh.ready()
    assert fresh.part == "pgs?pool=images" and fresh.heading == "PGs"
    assert fresh.errors(allowed=(401,)) == []


def test_who_logs_out_has_no_session_any_more(fresh, address):
    fresh.log_in(address.reader)
    caller = Caller(address)
    caller.cookie = f"atoll_session={fresh.browser.get_cookie('atoll_session')['value']}"
    assert caller.call("GET", "/api/v1/session").status == 200
    fresh.log_out()
    assert caller.call("GET", "/api/v1/session").status == 401
    fresh.browser.refresh()
    wait_for("the log-in page", lambda: fresh.all("form.login"), 10)
    assert fresh.errors() == []


@pytest.mark.nightly
def test_a_session_ends_by_itself(short_sessions):
    """The browser goes to the log-in page without a click."""
    address, seconds = short_sessions
    with Console(address) as console:
        console.log_in(address.reader)
        wait_for("the log-in page", lambda: console.all("form.login"), seconds + 10)
        assert console.errors(allowed=(401,)) == []


def test_a_session_ends_with_its_operator(cluster, address):
    """A new password, another role and the removal log an operator out."""
    made = cluster.json("operator", "create", "eve", "--role", "admin")
    caller = Caller(address)
    assert caller.log_in(User("eve", made["password"])).status == 200
    changed = cluster.json("operator", "set", "eve", "--role", "read-only", "--new-password")
    assert caller.call("GET", "/api/v1/status").status == 401
    assert caller.log_in(User("eve", made["password"])).status == 401, "the old password"
    assert caller.log_in(User("eve", changed["password"])).document["role"] == "read-only"
    cluster.cli("operator", "rm", "eve")
    assert caller.call("GET", "/api/v1/status").status == 401


def test_what_is_changed_is_in_the_log_of_events(cluster, admin):
    """With who has done it: an operator of the console, or a user of a host."""
    assert admin.call("PUT", "/api/v1/flags/noscrub", {}).status == 200
    cluster.cli("flag", "unset", "noscrub")
    events = admin.call("GET", "/api/v1/events").document["events"]
    by = {event["summary"]: event["user"] for event in events if event["code"] == "COMMAND"}
    lines = cluster.cli("events", "--json", "--after", str(events[-3]["number"])).stdout.splitlines()
    assert events[-2:] == [json.loads(line) for line in lines][:2], "the command tells the same"
    assert by["atoll flag set noscrub"] == "ann (console)", f"{by}"
    assert by["atoll flag unset noscrub"] not in (None, "ann (console)"), f"{by}"
    told = cluster.cli("events").stdout
    assert "COMMAND: atoll flag set noscrub (by ann (console)@" in told, told


LISTS = [
    pytest.param(path, operation["x-atoll-command"], id=operation["operationId"])
    for method, path, operation in operations()
    if method == "GET" and "{" not in path and operation["operationId"] not in TOLD_OTHERWISE
]


@pytest.mark.parametrize(("path", "command"), LISTS)
def test_a_call_gives_the_document_of_its_command(cluster, admin, path, command):
    heads = lambda document: sorted(document[0] if document and isinstance(document, list) else document)
    told, by_call = cluster.json(*command.split()), admin.call("GET", path).document
    assert heads(told) == heads(by_call), f"{by_call}"


def test_what_has_no_page_is_done_by_calls_as_by_commands(cluster, admin, image):
    moved = admin.call("PATCH", "/api/v1/osds/2/location", {"rack": "r9"})
    assert moved.status == 200 and moved.document[0]["rack"] == "r9", f"{moved}"
    assert {osd["rack"] for osd in cluster.json("osd", "ls")} == {"r9"}, "it is given to all OSDs of the host"
    assert admin.call("PATCH", "/api/v1/osds/2/location", {}).status == 400
    assert admin.call("PATCH", "/api/v1/osds/2/location", {"rack": ""}).status == 200

    mapped = admin.call("GET", "/api/v1/pools/images/object-pg?object=some.object")
    assert mapped.document == cluster.json("pg", "map", "some.object", "--pool", "images"), f"{mapped}"
    assert admin.call("GET", "/api/v1/pools/images/object-pg").status == 400
    assert admin.call("GET", "/api/v1/pools/none/object-pg?object=o").status == 404

    made = admin.call("POST", "/api/v1/keys", {"name": "by-call"})
    assert (made.status, made.document) == (201, {"name": "by-call"}), f"{made}"
    assert "by-call" in [key["name"] for key in cluster.json("key", "ls")]

    snapshots = f"/api/v1/images/{image}/snapshots"
    assert admin.call("POST", snapshots, {"name": "monday"}).status == 201
    assert admin.call("POST", f"{snapshots}/monday/rename", {"new_name": "tuesday"}).status == 200
    assert [one["name"] for one in cluster.json("image", "snap", "ls", image)] == ["tuesday"]


def test_calls_that_change_something_are_in_the_audit_log(cluster, admin, reader):
    """With who made them and what became of them; those that only look are not, unless they are refused."""
    path = cluster.data / "log" / "admin-audit.jsonl"

    def lines():
        """But for those of fixtures, which may be written only now."""
        of_fixtures = (f"/api/v1/images/{IMAGE}", "/api/v1/session")
        return [line for line in request_lines(path) if not line["path"].startswith(of_fixtures)]

    before = len(lines())
    assert reader.call("GET", "/api/v1/status").status == 200
    assert admin.call("PUT", "/api/v1/flags/nodeepscrub", {}).status == 200
    assert reader.call("DELETE", "/api/v1/flags/nodeepscrub").status == 403
    assert admin.call("DELETE", "/api/v1/flags/nodeepscrub").status == 200
    assert reader.call("GET", "/api/v1/operators").status == 403
    wait_for("four lines", lambda: len(lines()) == before + 4, 10)
    told = [(line["user"], line["method"], line["path"], line["status"]) for line in lines()[before:]]
    flag = "/api/v1/flags/nodeepscrub"
    assert told == [
        ("ann", "PUT", flag, 200),
        ("rob", "DELETE", flag, 403),
        ("ann", "DELETE", flag, 200),
        ("rob", "GET", "/api/v1/operators", 403),
    ]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_body_that_is_too_long_is_refused_and_in_the_audit_log(cluster, admin):
    strangers = cluster.data / "log" / "admin-audit-strangers.jsonl"
    # Beside others it is counted in a line of them.
    refused = lambda: sum(line.get("refusals", 1) for line in request_lines(strangers))
    before = refused()
    answer = admin.call("POST", "/api/v1/pools", {"name": "x" * (257 << 10)})
    assert (answer.status, answer.document["code"]) == (413, "INVALID"), answer
    wait_for("the refusal", lambda: refused() > before, 30)


def secrets_of(cluster, address):
    """What nobody may learn from anything that a cluster tells."""
    settings = json.loads((cluster.data / "cluster.json").read_text())
    found = {address.admin.password, address.reader.password, settings["state_password"]}
    found.add(cluster.credentials()["secret_key"])
    for path in (cluster.data / "keys").iterdir():
        found |= {
            word for word in re.findall(r"[\w+/=-]{32,}", path.read_text()) if path.suffix not in (".pem", ".crt")
        }
    # Ids are no secrets, although they are as long.
    return found - {settings["cluster_id"], None}


def test_nothing_that_is_told_has_a_secret(cluster, address, admin):
    """All answers of the API, metrics and slow operations of all processes, logs and the audit log."""
    hidden, told = secrets_of(cluster, address), {}
    assert len(hidden) > 5, f"{len(hidden)} secrets"
    paths = [
        path
        for method, path, operation in operations()
        if method == "GET" and "{" not in path and operation["operationId"] != "getSession"
    ]
    account = admin.call("GET", "/api/v1/accounts").document["Accounts"][0]["Id"]
    paths += [f"/api/v1/{path}" for path in (f"accounts/{account}/access-keys", f"accounts/{account}/users", "pgs/1.0")]
    for path in paths:
        answer = admin.call("GET", path)
        assert answer.status == 200, f"{path}: {answer}"
        told[path] = json.dumps(answer.document)
    for process in cluster.children():
        told[f"metrics of {process}"] = cluster.cli("metrics", "show", process).stdout
    told["slow"] = cluster.cli("slow", "--json").stdout
    told["events"] = cluster.cli("events", "--json", "--limit", "2000").stdout
    told |= {path.name: path.read_text() for path in (cluster.data / "log").iterdir()}
    shown = [(place, secret[:6]) for place, text in told.items() for secret in hidden if secret in text]
    assert not shown, f"{shown}"
