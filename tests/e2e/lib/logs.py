"""Files to which processes append lines."""

import json
import pathlib


def said(path):
    """What a log has so far: nothing before its process has made it, or while it is set aside."""
    try:
        return pathlib.Path(path).read_text(errors="replace")
    except FileNotFoundError:
        return ""


def json_lines(path):
    """The JSON lines of a file that are written as a whole."""
    whole, _, _ = said(path).rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def audited(lines):
    """The records of an audit log, without what only shows that they are whole."""
    return [line for line in lines if not line.get("operation", "").startswith("Chain")]


def audit_lines(path):
    return audited(json_lines(path))


def changes_of(path):
    """The file beside an audit log with the changes that were allowed."""
    return pathlib.Path(path).with_stem(f"{pathlib.Path(path).stem}-changes")


def known_lines(path):
    """The records about people who are known, of both files, in the order of their times."""
    return sorted(audit_lines(path) + audit_lines(changes_of(path)), key=lambda line: line["time_unix_ms"])


def request_lines(path):
    """The records of requests to a gateway or the admin API, without those of the process about keys and commands."""
    return [line for line in known_lines(path) if line["source"] in ("s3", "admin")]
