"""A real Prometheus that scrapes a cluster, with the configuration and the alert rules of monitoring/.

The contract is docs/reference/metrics.md. What a page or a process says is read by the same code as in `make lint`.
"""

import dataclasses
import importlib.util
import json
import re
import ssl
import subprocess
import urllib.error
import urllib.parse
import urllib.request

from lib.ports import free_port
from lib.scenario import REPOSITORY
from lib.waiting import not_yet, wait_for

# Prometheus asks and evaluates so often.
SCRAPE_SECONDS, EVALUATION_SECONDS = 2, 1
# See shortened().
SHORTER, FOR_SECONDS, RANGE_SECONDS = 30, (4, 8), (15, 30)
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
TEXT, OPENMETRICS = "text/plain;version=0.0.4", "application/openmetrics-text;version=1.0.0"
SAMPLE = re.compile(r'^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\})? (?P<value>\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def monitoring_check():
    """tools/check_monitoring.py as a module."""
    spec = importlib.util.spec_from_file_location("check_monitoring", REPOSITORY / "tools/check_monitoring.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- rules that fire within seconds


def shortened(rules):
    """The same rules with times that a test can wait for.

    What an alert waits for (`for:`) is divided by 30, and is 4 to 8 s then. Ranges and offsets of expressions are
    divided by 30 as well, and are 15 to 30 s then, so that several scrapes are in them. Numbers stay as they are:
    60 events in 5 minutes are 60 events in 15 s.
    """

    def seconds(number, unit, bounds):
        low, high = bounds
        return f"{min(max(int(number) * UNITS[unit] // SHORTER, low), high)}s"

    rules = re.sub(
        r"(?m)^(\s+for: )(\d+)([smhd])$", lambda found: found[1] + seconds(found[2], found[3], FOR_SECONDS), rules
    )
    return re.sub(
        r"(\[|\boffset )(\d+)([smhd])\b", lambda found: found[1] + seconds(found[2], found[3], RANGE_SECONDS), rules
    )


# --- what processes tell


@dataclasses.dataclass(frozen=True)
class Sample:
    name: str
    labels: tuple
    value: float

    def has(self, **labels):
        return labels.items() <= dict(self.labels).items()


class Text:
    """What one process tells, in Prometheus' text format or in OpenMetrics."""

    def __init__(self, text):
        self.text, self.types, self.samples = text, {}, []
        for line in text.splitlines():
            if kind := re.match(r"# TYPE (\S+) (\S+)$", line):
                # In OpenMetrics the family of a counter has no _total.
                is_bare = kind[2] == "counter" and not kind[1].endswith("_total")
                self.types[f"{kind[1]}_total" if is_bare else kind[1]] = kind[2]
            elif sample := SAMPLE.match(line):
                labels = tuple(LABEL.findall(sample["labels"] or ""))
                self.samples.append(Sample(sample["name"], labels, float(sample["value"])))

    def family(self, name):
        """The name that has the type: a histogram has three kinds of series."""
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        return base if self.types.get(base) == "histogram" else name

    def total(self, name, **labels):
        """The sum of the series that have these labels; 0 if there are none."""
        return sum(sample.value for sample in self.samples if sample.name == name and sample.has(**labels))


class Admin:
    """The admin server of a cluster's host, as Prometheus asks it."""

    def __init__(self, cluster):
        self.cluster, self.address = cluster, f"127.0.0.1:{cluster.admin_port}"
        self.token_file = cluster.scenario.directory / f"{cluster.data.name}.metrics-token"
        self.token_file.write_text(cluster.cli("metrics", "token", "create", "prometheus").stdout)

    @property
    def ca_file(self):
        return self.cluster.data / "tls/ca.crt"

    def get(self, path, accept=TEXT, token=None):
        """What it answers at a path; the token is that of the cluster unless another one is given."""
        token = self.token_file.read_text().strip() if token is None else token
        headers = {"Accept": accept} | ({"Authorization": f"Bearer {token}"} if token else {})
        request = urllib.request.Request(f"https://{self.address}{path}", headers=headers)
        context = ssl.create_default_context(cafile=self.ca_file)
        with urllib.request.urlopen(request, timeout=10, context=context) as answer:
            return answer.read().decode()

    def status_of(self, path, token):
        """The status of the answer to a request with this token, '' for none, and what came with it."""
        try:
            return 200, self.get(path, token=token)
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metrics(self, process, accept=TEXT):
        return Text(self.get(f"/metrics/{process}", accept))

    def process_id(self):
        """That of the process that serves this."""
        ids = self.cluster.process_ids()
        return ids.get("admin", ids["supervisor"])


def complaints(text):
    """What 'promtool check metrics' says against a text."""
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip() or (done.returncode and f"exit code {done.returncode}")


# --- Prometheus


class Prometheus:
    """A Prometheus of the test's own, with the shipped rules shortened."""

    def __init__(self, admin, name="prometheus"):
        self.scenario, self.admin, self.port = admin.cluster.scenario, admin, free_port()
        self.directory = self.scenario.directory / name
        self.directory.mkdir()
        shipped = REPOSITORY / "monitoring/prometheus"
        rules = (shipped / "atoll-alerts.yml").read_text()
        (self.directory / "atoll-alerts.yml").write_text(shortened(rules))
        (self.directory / "prometheus.yml").write_text(self.configuration((shipped / "prometheus.yml").read_text()))
        self.scenario.run("promtool", "check", "config", self.directory / "prometheus.yml")
        self.start()

    def configuration(self, text):
        """The shipped one with the address and the files of the cluster, and at a pace for tests."""
        values = {
            "HOST:8443": self.admin.address,
            "/etc/prometheus/atoll/metrics-token": str(self.admin.token_file),
            "/etc/prometheus/atoll/ca.crt": str(self.admin.ca_file),
            "scrape_interval: 15s": f"scrape_interval: {SCRAPE_SECONDS}s",
            "scrape_timeout: 10s": f"scrape_timeout: {SCRAPE_SECONDS}s",
            "evaluation_interval: 15s": f"evaluation_interval: {EVALUATION_SECONDS}s",
            "refresh_interval: 30s": "refresh_interval: 2s",
        }
        for shipped, own in values.items():
            assert shipped in text, f"the shipped configuration has no '{shipped}'"
            text = text.replace(shipped, own)
        return text

    def start(self):
        self.log = self.directory / "log"
        self.process = self.scenario.start_logged(
            self.log,
            "prometheus",
            f"--config.file={self.directory}/prometheus.yml",
            f"--storage.tsdb.path={self.directory}/data",
            f"--web.listen-address=127.0.0.1:{self.port}",
            cwd=self.directory,
        )
        wait_for("Prometheus is ready", self.is_ready, 30)

    def is_ready(self):
        with not_yet(OSError):
            return self.ask("/-/ready")

    def ask(self, path, **parameters):
        assert self.process.poll() is None, f"Prometheus has ended:\n{self.log.read_text()[-1500:]}"
        url = f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()

    def api(self, path, **parameters):
        return json.loads(self.ask(f"/api/v1/{path}", **parameters))["data"]

    def query(self, expression):
        """The series of an expression now: labels and values."""
        return [(found["metric"], float(found["value"][1])) for found in self.api("query", query=expression)["result"]]

    def value(self, expression):
        """The value of an expression that gives one series; 0 if it gives none."""
        found = self.query(expression)
        assert len(found) <= 1, f"{expression} gives {len(found)} series"
        return found[0][1] if found else 0

    def targets(self):
        """Health of the targets by process."""
        found = self.api("targets", state="active")["activeTargets"]
        return {target["labels"]["process"]: target for target in found}

    def firing(self, alert=None, **labels):
        """Alerts that fire, with these labels: those of the rule, by the rule's own say."""
        found = [alert for alert in self.api("alerts")["alerts"] if alert["state"] == "firing"]
        wanted = labels | ({"alertname": alert} if alert else {})
        return [alert for alert in found if wanted.items() <= alert["labels"].items()]

    def fires(self, alert, seconds, **labels):
        """Waits until an alert fires, which it does once; returns it."""
        # Not asked for again: some end by themselves soon.
        found = wait_for(f"{alert} {labels or ''} fires", lambda: self.firing(alert, **labels), seconds, pause=0.5)
        assert len(found) == 1, f"{len(found)} alerts {alert}: {[alert['labels'] for alert in found]}"
        [once] = found
        for name, text in once["annotations"].items():
            assert "error expanding" not in text and "<no value>" not in text, f"{name} of {alert}: {text}"
        return once

    def ends(self, alert, seconds, **labels):
        """Waits until an alert does not fire any more."""
        wait_for(
            f"{alert} {labels or ''} ends: {self.firing(alert, **labels)}",
            lambda: not self.firing(alert, **labels),
            seconds,
            pause=0.5,
        )

    def has_fired(self, since="15m"):
        """The names of alerts that have fired for a moment at least."""
        found = self.query(f'count by (alertname) (count_over_time(ALERTS{{alertstate="firing"}}[{since}]))')
        return {labels["alertname"] for labels, _ in found}
