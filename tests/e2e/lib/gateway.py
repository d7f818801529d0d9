"""Gateways beside the one that 'atoll up' starts."""

import signal
import urllib.request

import boto3
from botocore.client import Config

from lib.ports import free_port
from lib.waiting import not_yet


class Gateway:
    """A further gateway process of a cluster, which no supervisor restarts."""

    def __init__(self, cluster):
        self.cluster, self.plain, self.tls = cluster, free_port(), free_port()
        self.log = cluster.scenario.directory / "second-gateway.log"
        self.start()

    def start(self):
        with open(self.log, "a") as log:
            self.process = self.cluster.scenario.start(
                self.cluster.scenario.atoll,
                "gateway",
                "run",
                "--data",
                self.cluster.data,
                "--s3-listen",
                f"127.0.0.1:{self.plain}",
                "--s3-tls-listen",
                f"127.0.0.1:{self.tls}",
                env=self.cluster.environment(),
                stdout=log,
                stderr=log,
            )

    def endpoint(self):
        return f"http://127.0.0.1:{self.plain}"

    def is_serving(self):
        with not_yet(OSError), urllib.request.urlopen(f"{self.endpoint()}/-/health", timeout=5) as answer:
            return answer.status == 200

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def s3(self, access=None, secret=None, **options):
        credentials = self.cluster.credentials()
        config = Config(
            s3={"addressing_style": "path"},
            retries={"total_max_attempts": 1},
            signature_version="s3v4",
            **{"connect_timeout": 5, "read_timeout": 60, "max_pool_connections": 64} | options,
        )
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint(),
            region_name="us-east-1",
            config=config,
            aws_access_key_id=access or credentials["access_key"],
            aws_secret_access_key=secret or credentials["secret_key"],
        )
