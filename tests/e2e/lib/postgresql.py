"""PostgreSQL on a directory, and a load of it that knows what was committed."""

import contextlib
import itertools
import os
import pathlib
import re
import shutil
import signal
import subprocess

from lib.load import CountedLoad
from lib.verdicts import intact
from lib.waiting import CommandFailed, Failed, not_yet, wait_for

# The server refuses to run as root; Debian's packages make this user.
USER = "postgres"
SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "listen_addresses": "''",
    "shared_buffers": "64MB",
    # Checkpoints come often, so that recovery begins at many of them.
    "min_wal_size": "32MB",
    "max_wal_size": "64MB",
    "checkpoint_timeout": "30s",
    # One call for the file system before recovery, and not one for each of a thousand files.
    "recovery_init_sync_method": "syncfs",
}
SUMS = """
    SELECT coalesce(sum(abalance), 0) FROM pgbench_accounts UNION ALL
    SELECT coalesce(sum(bbalance), 0) FROM pgbench_branches UNION ALL
    SELECT coalesce(sum(tbalance), 0) FROM pgbench_tellers UNION ALL
    SELECT coalesce(sum(delta), 0) FROM pgbench_history
"""


def program(name):
    """The program of the newest version: Debian keeps them out of PATH."""
    found = pathlib.Path("/usr/lib/postgresql").glob(f"*/bin/{name}")
    newest = max(found, key=lambda path: int(re.match("[0-9]*", path.parts[-3]).group() or 0), default=None)
    if not newest:
        raise Failed(f"missing: {name} (install postgresql, or run make nightly-packages)")
    return newest


class PostgreSQL:
    """A server, which only a Unix socket in its own directory leads to."""

    def __init__(self, scenario, name, directory):
        self.scenario, self.directory, self.data = scenario, directory, directory / "data"
        self.log = scenario.directory / f"postgresql-{name}.log"
        self.process = None
        self.options = {
            "env": {key: value for key, value in scenario.environment.items() if not key.startswith("PG")},
            "cwd": "/",
        }
        self.as_user = self.options | {"user": USER, "group": USER, "extra_groups": []}

    def create(self):
        self.directory.mkdir()
        shutil.chown(self.directory, USER, USER)
        flags = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--data-checksums"]
        self.scenario.run(program("initdb"), *flags, "-D", self.data, **self.as_user)
        with open(self.data / "postgresql.conf", "a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in SETTINGS.items())
            file.flush()
            # initdb made the rest durable; without this a crash soon after leaves zeros at the end.
            os.fsync(file.fileno())

    @contextlib.contextmanager
    def running(self):
        """Starts it, also after a crash, and stops it."""
        command = [program("postgres"), "-D", self.data, "-k", self.directory]
        self.process = self.scenario.start_logged(self.log, *command, **self.as_user)
        try:
            wait_for("PostgreSQL answers", self.answers, 120)
            yield self
        finally:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise

    def answers(self):
        if self.process.poll() is not None:
            raise RuntimeError(f"PostgreSQL ended with {self.process.returncode}: {self.log.read_text()[-1500:]}")
        with not_yet(CommandFailed):
            return self.sql("SELECT 1") == ["1"]

    def client(self, name, *arguments):
        return [program(name), "-h", self.directory, "-U", USER, *arguments, "postgres"]

    def run(self, name, *arguments, **options):
        return self.scenario.run(*self.client(name, *arguments), **self.options | options)

    def start(self, name, *arguments, **options):
        return self.scenario.start(*self.client(name, *arguments), **self.options | options)

    def sql(self, query):
        """The lines of an answer."""
        return self.run("psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", query).stdout.splitlines()

    def accounts(self):
        """How many transfers of pgbench there were; all four tables must agree on their sum."""
        sums = self.sql(SUMS)
        intact(len(sums) == 4 and len(set(sums)) == 1, f"accounts, branches, tellers and history: {sums}")
        return int(self.sql("SELECT count(*) FROM pgbench_history")[0])

    def check_tables(self):
        """All tables and their indexes."""
        self.run("pg_amcheck", "--install-missing", "--heapallindexed", "--parent-check", "-d")

    def check_pages(self):
        """The checksums of all pages, of a server that is stopped."""
        self.scenario.run(program("pg_checksums"), "--check", "-D", self.data, **self.as_user)


class Inserts(CountedLoad):
    """Sessions that commit one number after the other, and know which were committed and which were begun."""

    TABLE = "CREATE TABLE numbers (writer int, number int, noise text, PRIMARY KEY (writer, number))"

    def __init__(self, server, writers=3):
        self.server = server
        super().__init__(range(writers), writers)

    def _run(self, writer):
        session = self.server.start("psql", "-XqAt", stdin=subprocess.PIPE, stderr=subprocess.STDOUT)
        for number in itertools.count(1):
            if self.stopping:
                break
            self.begun[writer] = number
            noise = f"repeat(md5('{writer}/{number}'), 10)"
            # The answer comes after the commit: each statement is a transaction.
            session.stdin.write(f"INSERT INTO numbers VALUES ({writer}, {number}, {noise}) RETURNING number;\n")
            session.stdin.flush()
            if (said := session.stdout.readline()) != f"{number}\n":
                self.errors.append(f"writer {writer}, number {number}: {said}")
                break
            self.ack(writer, number)
        session.stdin.close()
        session.wait(60)

    def check(self, server, least, most):
        """Of each writer a server must have all numbers up to one that is not less than `least` and not more than
        `most`; returns how many it has."""
        rows = server.sql("SELECT writer, max(number), count(*) FROM numbers GROUP BY writer")
        found = {writer: (last, count) for writer, last, count in (map(int, row.split("|")) for row in rows)}
        for writer, number in least.items():
            last, count = found.get(writer, (0, 0))
            intact(number <= last <= most[writer], f"writer {writer}: {last}, must be {number} to {most[writer]}")
            intact(count == last, f"writer {writer}: {count} numbers up to {last}")
        wrong = server.sql("SELECT count(*) FROM numbers WHERE noise <> repeat(md5(writer || '/' || number), 10)")
        intact(wrong == ["0"], f"{wrong[0]} rows have other contents")
        return sum(count for _, count in found.values())
