"""The web console in a headless Chromium: log in, open pages, act, read the browser's log, take pictures; and calls
of the admin API without a browser."""

import contextlib
import dataclasses
import json
import pathlib
import ssl
import tempfile
import urllib.error
import urllib.request

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from lib.ports import free_port, is_listening
from lib.waiting import Failed, wait_for

ROOT = pathlib.Path(__file__).resolve().parents[3]
OPENAPI = ROOT / "crates" / "console" / "openapi.json"
# Without a display, and without what a browser does by itself: asking its maker for news.
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--force-device-scale-factor=1",
]


@dataclasses.dataclass(frozen=True)
class User:
    name: str
    password: str


@dataclasses.dataclass(frozen=True)
class Address:
    """Where a console is, and who may log in there."""

    url: str
    admin: User
    reader: User
    ca_file: str | None = None

    @property
    def origin(self):
        return self.url.rstrip("/")


def with_operators(cluster):
    """Where a cluster's console is, with an operator of each role."""

    def operator(name, role):
        made = cluster.json("operator", "create", name, "--role", role)
        return User(name, made["password"])

    url = f"https://127.0.0.1:{cluster.admin_port}"
    return Address(url, operator("ann", "admin"), operator("rob", "read-only"), cluster.data / "tls" / "ca.crt")


def another_server(cluster, address, *options):
    """Where a further admin server of a cluster is, which knows of the first only what is in cluster state."""
    port = free_port()
    listen = f"127.0.0.1:{port}"
    log = cluster.scenario.directory / f"admin-{port}.log"
    command = ["admin", "run", "--data", cluster.data, "--listen", listen, "--audit-log", "off", *options]
    cluster.scenario.start_logged(log, cluster.scenario.atoll, *command, env=cluster.environment())
    wait_for("the further admin server listens", lambda: is_listening(port), 20)
    return dataclasses.replace(address, url=f"https://{listen}")


# --- calls without a browser


@dataclasses.dataclass(frozen=True)
class Answer:
    status: int
    headers: dict
    document: object


class Caller:
    """Calls the admin API as one user, or without a session."""

    def __init__(self, address):
        self.address, self.cookie, self.session = address, None, None
        self.is_idle, self.token = False, None
        self.context = ssl.create_default_context(cafile=address.ca_file) if address.ca_file else None

    @classmethod
    def with_token(cls, address, token):
        caller = cls(address)
        caller.token = token
        return caller

    @classmethod
    def logged_in(cls, address, user):
        caller = cls(address)
        answer = caller.log_in(user)
        if answer.status != 200:
            raise Failed(f"{user.name} cannot log in: {answer}")
        return caller

    def log_in(self, user, **code):
        body = {"user": user.name, "password": user.password, **code}
        answer = self.call("POST", "/api/v1/session", body, csrf="login")
        if answer.status == 200:
            self.session, self.cookie = answer.document, answer.headers["Set-Cookie"].split(";")[0]
        return answer

    def at(self, address):
        """The same session, at another admin server."""
        caller = Caller(address)
        caller.cookie, caller.session = self.cookie, self.session
        return caller

    def call(self, method, path, body=None, csrf=None, timeout=30):
        """One call. `csrf` goes into X-Atoll-CSRF: without it the session's token, and nothing if it is empty."""
        headers = {"Accept": "application/json"}
        token = csrf if csrf is not None else (self.session or {}).get("csrf_token", "")
        if token and method != "GET":
            headers["X-Atoll-CSRF"] = token
        if self.cookie:
            headers["Cookie"] = self.cookie
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if self.is_idle:
            headers["X-Atoll-Idle"] = "true"
        data = None
        if body is not None:
            headers["Content-Type"], data = "application/json", json.dumps(body).encode()
        status, headers, data = self.send(
            urllib.request.Request(self.address.origin + path, data, headers, method=method), timeout
        )
        return Answer(status, headers, json.loads(data) if data else None)

    def page(self, path):
        """What a browser gets that is no part of the API; the document is bytes."""
        return Answer(*self.send(urllib.request.Request(self.address.origin + path), 30))

    def send(self, request, timeout):
        try:
            with urllib.request.urlopen(request, timeout=timeout, context=self.context) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()


def operations():
    """Method, path and description of each operation of the OpenAPI document."""
    document = json.loads(OPENAPI.read_text())
    return [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def may(role, operation):
    """Whether the document says that a role may make a call."""
    roles = operation["x-atoll-roles"]
    return role == "admin" or role in roles or roles in (["any"], ["none"])


# --- the browser


class Console:
    """One browser with the console. Use it in a `with` block."""

    def __init__(self, address, width=1280, height=900, binary="/usr/bin/chromium", driver="/usr/bin/chromedriver"):
        self.address, self.at_end = address, contextlib.ExitStack()
        options = webdriver.ChromeOptions()
        options.binary_location = binary
        options.accept_insecure_certs = address.url.startswith("https:")
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        profile = self.at_end.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
        for option in [*OPTIONS, f"--user-data-dir={profile}"]:
            options.add_argument(option)
        self.browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
        self.at_end.callback(self.browser.quit)
        self.resize(width, height)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.at_end.close()

    # --- how it is looked at

    def resize(self, width, height):
        """Narrower than windows can be, too."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def prefer(self, scheme):
        """What the system wants: light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def screenshot(self, path):
        pathlib.Path(path).write_bytes(self.browser.get_screenshot_as_png())

    def errors(self, allowed=()):
        """What the browser's log has at level SEVERE since the last time, but for answers with an allowed status."""
        entries = [entry for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]
        return [
            entry["message"]
            for entry in entries
            if not (
                entry["source"] == "network" and any(f"status of {status}" in entry["message"] for status in allowed)
            )
        ]

    # --- where one is

    def log_in(self, user, part=""):
        self.browser.get(f"{self.address.origin}/#/{part}")
        self.fill_login(user)
        return self.ready()

    def fill_login(self, user):
        wait_for("the log-in page", lambda: self.all("form.login"), 30)
        for name, text in (("user", user.name), ("password", user.password)):
            field = self.one(f"form.login [name={name}]")
            field.clear()
            field.send_keys(text)
        self.one("form.login [type=submit]").click()

    def log_out(self):
        self.button("Log out", "#header").click()
        wait_for("the log-in page", lambda: self.all("form.login"), 30)

    def open(self, part):
        """Opens a page by its address after '#/'."""
        # Until the event has come, the page before is still there and looks ready.
        script = """
            const [hash, done] = arguments;
            if (location.hash === hash) return done();
            window.addEventListener("hashchange", () => done(), {once: true});
            location.hash = hash;
        """
        self.browser.execute_async_script(script, f"#/{part}")
        return self.ready()

    def ready(self, seconds=30):
        """Waits until the page's data are there."""
        wait_for(
            "the page's data", lambda: self.all("main[aria-busy=false] h1") and not self.all("form.login"), seconds
        )
        return self

    @property
    def heading(self):
        return self.one("main h1").text

    @property
    def part(self):
        return self.browser.execute_script("return location.hash").removeprefix("#/")

    # --- what is on the page

    def one(self, selector):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector):
        script = "return [...document.querySelectorAll(arguments[0])].map((node) => node.textContent)"
        return self.browser.execute_script(script, selector)

    def button(self, text, within="main"):
        """The first button with this text or label."""
        for button in self.all(f"{within} button"):
            if text in (button.text, button.get_attribute("aria-label")):
                return button
        raise AssertionError(f"no button '{text}' in {within}: {self.texts(f'{within} button')}")

    def focused(self):
        """Tag, id, label and text of what has the focus."""
        return self.browser.execute_script(
            "const node = document.activeElement;"
            "return {tag: node.localName, id: node.id, label: node.getAttribute('aria-label'), text: node.textContent}"
        )

    def press(self, *keys):
        webdriver.ActionChains(self.browser).send_keys(*keys).perform()

    # --- dialogs

    def dialog(self):
        return self.one("dialog[open]")

    def fill(self, **values):
        """Puts values into the fields of the open dialog."""
        for name, value in values.items():
            field = self.one(f"dialog[open] [name={name}]")
            if field.tag_name == "select":
                self.one(f'dialog[open] [name={name}] option[value="{value}"]').click()
            else:
                field.send_keys(Keys.CONTROL, "a")
                field.send_keys(value)

    def submit(self):
        """Submits the open dialog and waits until it is gone."""
        self.one("dialog[open] [type=submit]").click()
        wait_for("the dialog closes", lambda: not self.all("dialog form"), 30)
        return self
