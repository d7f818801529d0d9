"""An etcd of Debian's, without certificates."""

from lib.ports import free_port
from lib.waiting import wait_for

API = {"ETCDCTL_API": "3"}


class PlainEtcd:
    """An etcd on this host alone."""

    def __init__(self, scenario, *options):
        self.scenario, self.directory, self.options = scenario, scenario.directory / "etcd", options
        self.directory.mkdir()
        self.url, self.peer_url = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.process = None

    def start(self, data):
        self.process = self.scenario.start_logged(
            self.directory / "log",
            *("etcd", "--name", "one", "--data-dir", self.directory / data),
            *("--listen-client-urls", self.url, "--advertise-client-urls", self.url),
            *("--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url),
            *("--initial-cluster", f"one={self.peer_url}"),
            *self.options,
        )
        wait_for("etcd answers", lambda: self.ctl("get", "x", ok=None).returncode == 0, 30)

    def stop(self):
        self.process.kill()
        self.process.wait()

    def ctl(self, *arguments, ok=(0,)):
        environment = self.scenario.environment | API
        return self.scenario.run("etcdctl", "--endpoints", self.url, *arguments, ok=ok, timeout=15, env=environment)

    def restore(self, file, data):
        names = ("--name", "one", "--initial-cluster", f"one={self.peer_url}")
        more = ("--initial-advertise-peer-urls", self.peer_url, "--data-dir", self.directory / data)
        self.ctl("snapshot", "restore", file, *names, *more)
