"""fio, and other clients of images that are commands."""

import contextlib
import errno
import hashlib
import json
import os
import re

from lib.verdicts import intact
from lib.waiting import Failed

# What fio says, on a terminal of a guest too, when what it reads is not what it wrote.
WRONG_BYTES = re.compile(
    r"verify failed|verify: bad|bad header|bad magic|Invalid or incomplete multibyte|err=84|error=84"
)


def sha256_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fio(scenario, uri, name, timeout=240, program=("fio",), **options):
    """Runs one fio job; returns its part of the JSON output."""
    output = scenario.directory / f"fio-{name}.json"
    output.unlink(missing_ok=True)
    arguments = [f"--{key}={value}" if value is not None else f"--{key}" for key, value in options.items()]
    done = scenario.run(
        *program,
        f"--name={name}",
        "--ioengine=nbd",
        f"--uri={uri}",
        "--output-format=json",
        f"--output={output}",
        *arguments,
        timeout=timeout,
        ok=None,
    )
    said = f"fio {name}: exit code {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
    if done.returncode != 0 or not output.exists():
        intact(not WRONG_BYTES.search(done.stdout + done.stderr), said)
        raise Failed(said)
    text = output.read_text()
    job = json.loads(text[text.index("{") :])["jobs"][0]
    intact(job["error"] != errno.EILSEQ, f"fio {name} has read wrong bytes\n{said}")
    assert job["error"] == 0, f"fio {name}: error {job['error']}"
    return job


def write_note(job):
    write = job["write"]
    return f"{write['iops']:.0f} IOPS, {write['bw_bytes'] / 1e6:.0f} MB/s"


def qemu_io(scenario, uri, *commands, ok=True):
    """Runs qemu-io commands; the patterns that they read must be there."""
    arguments = [part for command in commands for part in ("-c", command)]
    done = scenario.run("qemu-io", "-f", "raw", *arguments, uri, ok=None)
    text = done.stdout + done.stderr
    bad = done.returncode != 0 or "failed" in text.lower() or "error" in text.lower()
    if ok:
        intact("Pattern verification failed" not in text, f"qemu-io {commands}\n{text}")
        assert not bad, f"qemu-io {commands}\n{text}"
    return text


def fio_that_trusts(scenario, directory):
    """fio takes no directory of certificates; libnbd finds one in the home directory, unless for root."""
    home = scenario.directory / "home"
    (home / ".pki").mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (home / ".pki" / "libnbd").symlink_to(directory)
    in_name_only = ("unshare", "--user") if os.geteuid() == 0 else ()
    return ("env", f"HOME={home}", *in_name_only, "fio")
