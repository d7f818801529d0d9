#!/usr/bin/env python3
"""Checks monitoring/: the alert rules, the configuration of Prometheus, and the dashboards of Grafana.

- rules and dashboards use no metrics that docs/reference/metrics.md does not have, and no labels of Atoll's metrics
  that they do not have there;
- each alert has a severity, a summary, a description, a unit test, and a heading in docs/guide/monitoring.md, to which
  its runbook leads, and each heading there has an alert, and begins with its severity and its delay;
- dashboards are JSON with ids of their own, panels that do not overlap, and queries with a legend; each panel has a
  title, a unit and a description;
- promtool, where it is installed, takes the rules, the configuration and the queries, and the unit tests pass.

Exit codes: 0 no errors, 1 errors, which are listed.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
MONITORING = ROOT / "monitoring"
RULES, CONFIGURATION = "atoll-alerts.yml", "prometheus.yml"
METRICS_PAGE, GUIDE_PAGE = "docs/reference/metrics.md", "docs/guide/monitoring.md"
SEVERITIES = {"critical", "warning"}
TYPES = {"counter", "gauge", "histogram"}
# What Prometheus adds to series: labels of targets, and the bound of a bucket.
TARGET_LABELS = {"job", "instance", "host", "process"}
PARTS_OF_HISTOGRAMS = ("_bucket", "_sum", "_count")
# Grafana puts something else in place of these.
VARIABLE = re.compile(r"\$\{?(\w+)\}?")
WIDTH = 24


# --- the page of metrics


def read_metrics(path=ROOT / METRICS_PAGE):
    """The metrics of the page, by the heading that they are under: {heading: {name: (type, labels)}}."""
    found, heading = {}, ""
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("#").strip()
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 4 and (name := re.fullmatch(r"`([a-z][a-z0-9_]*)`", cells[0])):
            labels = set(re.findall(r"`(\w+)`", cells[1]))
            found.setdefault(heading, {})[name[1]] = (cells[2], labels)
    return found


def series_of(metrics):
    """The series of all metrics with their labels: histograms have three."""
    found = {"up": set()}
    for of_heading in metrics.values():
        for name, (kind, labels) in of_heading.items():
            if kind == "histogram":
                found |= {
                    f"{name}{part}": labels | ({"le"} if part == "_bucket" else set()) for part in PARTS_OF_HISTOGRAMS
                }
            else:
                found[name] = labels
    return found


def check_page(metrics):
    """Yields what is wrong with the page itself."""
    names = [name for of_heading in metrics.values() for name in of_heading]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield METRICS_PAGE, f"{name} is there twice"
    for of_heading in metrics.values():
        for name, (kind, _) in of_heading.items():
            if kind not in TYPES:
                yield METRICS_PAGE, f"{name} is of type '{kind}', which is none of {sorted(TYPES)}"
            if (kind == "counter") != name.endswith("_total"):
                yield METRICS_PAGE, f"{name} is a {kind}; names of counters, and no others, end in _total"


def check_expression(expression, series):
    """Yields metrics and labels that an expression names and that are not there."""
    without_strings = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    for name in sorted(set(re.findall(r"\b(?:atoll|process)_\w+", without_strings))):
        if name not in series:
            yield f"{name} is not in {METRICS_PAGE}"
    for name, matchers in re.findall(r"\b((?:atoll|process)_\w+|up)\{([^}]*)\}", without_strings):
        wanted = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        for label in sorted(wanted - series.get(name, wanted) - TARGET_LABELS):
            yield f"{name} has no label '{label}'"
    all_labels = set().union(*series.values()) | TARGET_LABELS
    for grouping in re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", without_strings):
        for label in sorted(set(re.findall(r"\w+", grouping)) - all_labels):
            yield f"no metric has the label '{label}'"


# --- rules


def read_rules():
    groups = yaml.safe_load((MONITORING / "prometheus" / RULES).read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def anchor(heading):
    """The anchor that a page gives a heading of one word."""
    return heading.lower()


def delay_text(rule):
    """Returns the severity and the delay of a rule as the guide has them, such as `warning, after 5 minutes`."""
    severity = rule.get("labels", {}).get("severity", "")
    if not (delay := re.fullmatch(r"(\d+)([mh])", rule.get("for", ""))):
        return severity
    unit = {"m": "minute", "h": "hour"}[delay[2]]
    return f"{severity}, after {delay[1]} {unit}{'s' * (delay[1] != '1')}"


def check_delays(rules, guide):
    """Yields alerts whose text in the guide does not begin with their severity and delay."""
    shown = dict(re.findall(r"^### (Atoll\w+)\n\n\*([^*]*)\.\*", guide, re.MULTILINE))
    for rule in rules:
        if (text := shown.get(rule["alert"])) != delay_text(rule):
            yield GUIDE_PAGE, f"{rule['alert']} is '{text}' and not '{delay_text(rule)}', as in {RULES}"


def check_rules(rules, series):
    tests = (MONITORING / "prometheus" / RULES).with_suffix(".test.yml").read_text()
    headings = re.findall(r"^### (Atoll\w+)$", (ROOT / GUIDE_PAGE).read_text(), re.MULTILINE)
    names = [rule["alert"] for rule in rules]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield RULES, f"there are two alerts {name}"
    for heading in sorted(set(headings) - set(names)):
        yield GUIDE_PAGE, f"there is no alert {heading}"
    for rule in rules:
        place = f"{RULES}: {rule['alert']}"
        annotations = rule.get("annotations", {})
        if rule["alert"] not in headings:
            yield place, f"it has no heading in {GUIDE_PAGE}"
        if annotations.get("runbook") != f"{GUIDE_PAGE}#{anchor(rule['alert'])}":
            yield place, "its runbook does not lead to its heading"
        if rule.get("labels", {}).get("severity") not in SEVERITIES:
            yield place, f"its severity is none of {sorted(SEVERITIES)}"
        for name in ("summary", "description"):
            if not annotations.get(name):
                yield place, f"it has no {name}"
        if f'ALERTS{{alertname="{rule["alert"]}", alertstate="firing", severity=' not in tests:
            yield place, "no unit test has it fire"
        for problem in check_expression(rule["expr"], series):
            yield place, problem


# --- dashboards


def read_dashboards():
    """(name of the file, dashboard or the error of reading it)."""
    for path in sorted((MONITORING / "grafana").glob("*.json")):
        try:
            yield path.name, json.loads(path.read_text())
        except ValueError as error:
            yield path.name, error


def check_dashboards(dashboards, series):
    uids = [dashboard.get("uid") for _, dashboard in dashboards if isinstance(dashboard, dict)]
    for name, dashboard in dashboards:
        if isinstance(dashboard, ValueError):
            yield name, str(dashboard)
            continue
        if not dashboard.get("uid") or uids.count(dashboard["uid"]) > 1:
            yield name, f"its uid '{dashboard.get('uid')}' is not its own"
        for problem in check_dashboard(dashboard, series):
            yield name, problem


def check_dashboard(dashboard, series):
    panels = dashboard["panels"]
    ids = [panel["id"] for panel in panels]
    for number in sorted({number for number in ids if ids.count(number) > 1}):
        yield f"two panels have the id {number}"
    yield from check_places(panels)
    variables = {variable["name"] for variable in dashboard["templating"]["list"]}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield from check_expression(variable["query"]["query"], series)
    for panel in panels:
        if panel["type"] != "row":
            yield from (f"{panel['title']}: {problem}" for problem in check_panel(panel, variables, series))


def check_places(panels):
    """Yields panels that overlap, or go beyond the width."""
    taken = {}
    for panel in panels:
        place = panel["gridPos"]
        if place["x"] + place["w"] > WIDTH:
            yield f"{panel['title']}: it is too wide"
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        for other in sorted({taken[cell] for cell in cells & taken.keys()}):
            yield f"{panel['title']}: it overlaps with panel {other}"
        taken |= dict.fromkeys(cells, panel["id"])


def check_panel(panel, variables, series):
    for what in ("title", "description"):
        if not panel.get(what):
            yield f"it has no {what}"
    if not panel["fieldConfig"]["defaults"].get("unit"):
        yield "it has no unit"
    for of in (panel, *panel["targets"]):
        if of.get("datasource", {}).get("uid") != "${datasource}":
            yield "its data source is not that of the dashboard"
    for target in panel["targets"]:
        if not target.get("legendFormat"):
            yield "a query has no legend"
        used = set(VARIABLE.findall(target["expr"]))
        for name in sorted(used - variables - {"__rate_interval", "__range", "__interval"}):
            yield f"there is no variable '{name}'"
        yield from check_expression(target["expr"], series)


# --- promtool


def queries(dashboards):
    """All queries of dashboards, with something in place of their variables."""
    for _, dashboard in dashboards:
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                expression = re.sub(r"\$\{?__\w+\}?", "5m", target["expr"])
                yield VARIABLE.sub("any", expression)


def promtool(*arguments, **options):
    return subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, **options)


def check_with_promtool(dashboards):
    """Yields what promtool says against the files."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for file in (RULES, "atoll-alerts.test.yml"):
            shutil.copy(MONITORING / "prometheus" / file, directory)
        # The files that it names are on the host of Prometheus only.
        configuration = (MONITORING / "prometheus" / CONFIGURATION).read_text()
        (directory / CONFIGURATION).write_text(re.sub(r"(_file: )\S+", rf"\g<1>{directory}/empty", configuration))
        (directory / "empty").touch()
        rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries(dashboards))]
        (directory / "queries.yml").write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
        for file, command in (
            (RULES, ("check", "rules", RULES)),
            ("grafana", ("check", "rules", "queries.yml")),
            (CONFIGURATION, ("check", "config", "--syntax-only", CONFIGURATION)),
            ("atoll-alerts.test.yml", ("test", "rules", "atoll-alerts.test.yml")),
        ):
            done = promtool(*command, cwd=directory)
            if done.returncode != 0:
                yield file, f"promtool {' '.join(command)}:\n{done.stdout}{done.stderr}"


def main():
    metrics = read_metrics()
    series, dashboards = series_of(metrics), list(read_dashboards())
    rules, guide = read_rules(), (ROOT / GUIDE_PAGE).read_text()
    errors = [*check_page(metrics), *check_rules(rules, series), *check_delays(rules, guide)]
    errors += check_dashboards(dashboards, series)
    if not shutil.which("promtool"):
        print("promtool is not installed (apt install prometheus): rules and queries are not tried", file=sys.stderr)
    elif not errors:
        errors += check_with_promtool(dashboards)
    for place, text in errors:
        print(f"{place}: error: {text}", file=sys.stderr)
    sys.exit(bool(errors))


if __name__ == "__main__":
    main()
