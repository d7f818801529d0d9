"""The commands that documents show, and machines on which they run as a reader would run them.

A fence says what it holds: ```sh is run; ```sh NAME is run on a machine of its own, which the reader does not see;
```python is run by python3, a configuration such as ```haproxy is written where that program looks for it, and ```text
is what something prints, or a part of a command.
"""

import dataclasses
import os
import pathlib
import re
import select
import signal
import subprocess
import time

from lib.cluster import Cluster
from lib.logs import said
from lib.scenario import REPOSITORY
from lib.waiting import Failed, wait_for

# What is done with a block. TEXT is the block.
ACTIONS = {
    "sh": None,
    "python": "python3 TEXT",
    "haproxy": "cp TEXT /etc/haproxy/haproxy.cfg",
    "text": "",
}
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>.*)$")
COMMAND_SECONDS_MAX = 120
ADDRESSES = ("10.0.0.1", "10.0.0.2")
# Directories in place of which a reader's machine has its own.
OWN = ("etc", "media", "mnt", "run", "srv")
# 'ip netns exec' has made a mount namespace already.
PREAMBLE = """
set -euo pipefail
mount -t tmpfs none {root}/dev
find /dev -maxdepth 1 ! -type d -exec cp -a -t {root}/dev {{}} +
mkdir {root}/dev/pts {root}/dev/shm
mount --rbind /dev/pts {root}/dev/pts
cp -a {root}/devices/. {root}/dev
mount --rbind {root}/dev /dev
for place in {own}; do mount --bind {root}/$place /$place; done
cd /srv/reader
"""


@dataclasses.dataclass
class Command:
    """One command of a page, with all its lines."""

    page: str
    line: int
    text: str
    language: str = "sh"
    machine: str = ""

    @property
    def place(self):
        return f"{self.page}:{self.line}"

    @property
    def words(self):
        """The command on one line, without its comment: by this the tests name it."""
        first, *rest = self.text.replace("\\\n", " ").split("\n")
        return " ".join(re.sub(r"\s+# .*$", "", first).split()) + "".join(f"\n{line}" for line in rest)


@dataclasses.dataclass
class Block:
    """One fence of a page."""

    page: str
    line: int
    language: str
    machine: str
    text: str

    def commands(self):
        """The commands of a block of a shell, or the one program or configuration."""
        if ACTIONS[self.language] == "":
            return
        if self.language != "sh":
            yield Command(self.page, self.line + 1, self.text, self.language, self.machine)
            return
        for number, text in split(self.text):
            yield Command(self.page, self.line + number, text, self.language, self.machine)


def split(text):
    """The commands of a text for bash, each with the number of its first line."""
    lines, first = [], 0
    for number, line in enumerate(text.splitlines(), 1):
        if not lines and (not line.strip() or line.startswith("#")):
            continue
        first = first if lines else number
        lines.append(line)
        if is_whole("\n".join(lines)):
            yield first, "\n".join(lines)
            lines = []
    if lines:
        raise Failed("this command does not end:\n" + "\n".join(lines))


def is_whole(text):
    """Whether bash takes this as whole commands."""
    if text.endswith("\\"):
        return False
    checked = subprocess.run(["bash", "-n", "-c", text], check=False, capture_output=True)
    return checked.returncode == 0 and not checked.stderr


def blocks(page):
    """The fences of a page, which is named from the root of the repository."""
    found, inside = [], None
    for number, line in enumerate((REPOSITORY / page).read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if fence and inside is None:
            language, *machine = fence["info"].split() or [""]
            inside = Block(page, number, language, " ".join(machine), "")
        elif fence:
            found.append(inside)
            inside = None
        elif inside is not None:
            inside.text += line + "\n"
    return found


def commands(page):
    """The commands of a page, in their order."""
    return [command for block in blocks(page) for command in block.commands()]


class Machine:
    """A reader's machine: a network namespace, directories of its own, and devices."""

    def __init__(self, scenario, name, namespace, root):
        self.scenario, self.name, self.namespace, self.root = scenario, name, namespace, root
        # Pages whose readers have been given what they have.
        self.given = set()
        # A short path, as those of Unix sockets have to be: /srv/reader.
        self.directory = self.root / "srv" / "reader"
        for part in ("dev", "devices/disk/by-id", "srv/reader", *OWN):
            (self.root / part).mkdir(parents=True, exist_ok=True)
        scenario.run("cp", "-a", "/etc/.", self.root / "etc")
        for address in ADDRESSES:
            scenario.run("ip", "-n", namespace, "addr", "add", f"{address}/32", "dev", "lo")
        # Of it only the mark and the logs are of use: which data directories there are is the pages' to say.
        self.cluster = scenario.add(Cluster(scenario, self.root))
        path = f"{pathlib.Path(scenario.atoll).parent}:{os.environ['PATH']}"
        self.environment = self.cluster.environment() | {"PATH": path, "HOME": str(self.root)}

    def add_device(self, name, device):
        """Has a device under a name, such as disk/by-id/nvme-A, in the shells that are started afterwards."""
        (self.root / "devices" / name).symlink_to(device)

    def end(self):
        """Ends everything that runs on it."""
        self.cluster.kill_all()


class Shell:
    """A bash on a machine. Each command must succeed."""

    def __init__(self, machine):
        self.machine, self.begun = machine, {}
        self.script, self.log = machine.root / "command", machine.root / "output"
        done, self.write_end = os.pipe()
        self.done = os.fdopen(done, "rb", buffering=0)
        with open(self.log, "ab") as log:
            self.process = machine.scenario.start(
                *("ip", "netns", "exec", machine.namespace, "bash"),
                env=machine.environment,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(self.write_end,),
            )
        self.run(PREAMBLE.format(own=" ".join(OWN), root=machine.root))

    def run(self, text, place="", codes=(0,), seconds=COMMAND_SECONDS_MAX):
        """Runs a command to its end, and returns what it printed."""
        if codes != (0,):
            text = (
                f"set +e\n{text}\ncode=$?\nset -e\ncase $code in {'|'.join(map(str, codes))});; *) (exit $code);; esac"
            )
        self.script.write_text(text + "\n")
        started, start = time.monotonic(), self.log.stat().st_size
        # The exit code is looked at, too: an '&&' list that fails in its middle does not end a shell by 'set -e'.
        self.process.stdin.write(f"{{ source {self.script}; }} {self.write_end}>&- </dev/null; ")
        self.process.stdin.write(f"echo $? >&{self.write_end}\n")
        self.process.stdin.flush()
        status = self.wait(seconds)
        said = self.log.read_bytes()[start:].decode(errors="replace")
        with open(self.log, "a") as log:
            log.write(f"--- {time.monotonic() - started:.1f} s: {place} {text.splitlines()[0]}\n")
        if status != "0":
            raise Failed(f"{place}: exit code {status}\n{text}\n{said[-3000:]}")
        return said

    def wait(self, seconds):
        """The exit code of the command, or why there is none."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if select.select([self.done], [], [], 0.05)[0]:
                return self.done.readline().decode().strip()
            if self.process.poll() is not None:
                return self.process.returncode
        return f"none after {seconds} s"

    def begin(self, text, ready, place=""):
        """Runs a command that goes on until Ctrl-C, until its output says that it is ready."""
        log = self.machine.root / f"begun-{len(self.begun)}"
        # Without job control bash would have it ignore SIGINT.
        self.run(f"set -m\n{text} >{log} 2>&1 </dev/null &\nset +m\necho $! >{log}.pid", place)
        self.begun[text] = (log, int(pathlib.Path(f"{log}.pid").read_text()), place)
        wait_for(f"{place}: {ready} in {log}", lambda: re.search(ready, said(log)), 60)
        return log

    def press_ctrl_c(self, text):
        """Ends what was begun, which must succeed or have nothing to do at its end."""
        log, pid, place = self.begun.pop(text)
        os.kill(pid, signal.SIGINT)
        said = log.read_text()[-1000:]
        self.run(f"wait {pid}", f"{place}, after Ctrl-C; it said {said}", (0, 128 + signal.SIGINT))

    def end(self):
        """Ends what was begun, and bash."""
        for text in list(self.begun):
            self.press_ctrl_c(text)
        self.process.stdin.close()
        self.process.wait(20)
        self.done.close()
        os.close(self.write_end)
