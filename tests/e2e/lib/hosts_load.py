"""A load on several hosts that is watched for everything that may go wrong, and what must be true of it at the end."""

import os
import random
import threading
import time

from lib.cluster import MIB
from lib.fio import WRONG_BYTES
from lib.net import within
from lib.registers import Registers, longest
from lib.s3 import Uploader
from lib.verdicts import DataFailure, intact
from lib.waiting import wait_for


class Fio:
    """One fio after the other on one image, each writes it with other contents and then verifies it."""

    def __init__(self, scenario, host, image):
        self.scenario, self.host, self.image = scenario, host, image
        self.stopping, self.done, self.error = False, 0, None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def job(self, number, *more):
        return [
            "ip",
            "netns",
            "exec",
            self.host.namespace,
            "fio",
            "--name=verify",
            "--ioengine=nbd",
            f"--uri=nbd://{self.host.address}:10809/{self.image}",
            "--rw=randwrite",
            "--bs=4k",
            "--size=12m",
            "--iodepth=8",
            "--verify=crc32c",
            "--verify_fatal=1",
            f"--randseed={number}",
            *more,
        ]

    def run(self):
        try:
            while not self.stopping:
                self.scenario.run(*self.job(self.done), "--rate_iops=,200", timeout=240)
                self.done += 1
        except Exception as error:
            self.error = DataFailure(str(error)) if WRONG_BYTES.search(str(error)) else error

    def finish(self):
        """Waits for the last; returns how many there were."""
        self.stopping = True
        self.thread.join(240)
        if self.error:
            raise self.error
        assert not self.thread.is_alive(), "fio hangs"
        return self.done

    def verify(self):
        """What the last one wrote is there."""
        self.scenario.run(*self.job(self.done - 1, "--verify_only"), timeout=120, failure=DataFailure)


class HostsLoad:
    """Registers, fio and uploads through all hosts at once."""

    def __init__(self, scenario, world, seed, *image_options):
        self.scenario, self.world, self.is_over = scenario, world, False
        h1, _, h3 = world.hosts
        within(h1.namespace, lambda: h1.s3().create_bucket(Bucket="load"))
        for image in ("registers", "fio"):
            h1.create_image(image, "16M", *image_options)
        # Clients on all hosts share it.
        h1.cli("image", "access", "registers", "--access", "multi-attach")
        self.registers = Registers(world.hosts, "load", "registers", seed).start()
        self.fio = Fio(scenario, h3, "fio")
        noise, rng = os.urandom(2 * MIB), random.Random(seed)

        def items(host):
            number = 0
            while True:
                number += 1
                size, start = rng.choice((100, 5_000, 70_000, 300_000)), rng.randrange(MIB)
                yield f"{host.name}/{number:06}", lambda start=start, size=size: self.paced(noise[start : start + size])

        self.uploaders = [Uploader(host.s3(), "load", threads=1) for host in world.hosts]
        for host, uploader in zip(world.hosts, self.uploaders):
            # Its threads begin where the one is that starts them.
            within(host.namespace, lambda host=host, uploader=uploader: uploader.start(items(host)))

    def paced(self, body):
        time.sleep(0.2)
        return body

    def acked(self):
        return sum(len(uploader.ack_times) for uploader in self.uploaders)

    def runs(self):
        """Waits until every client does something."""
        clients = self.registers.clients
        wait_for("all answer", lambda: all(len(client.outcomes) > 20 for client in clients) and self.acked() > 20)
        return self

    def all_are_answered(self, after, seconds=15):
        clients = self.registers.clients
        wait_for("every client is answered", lambda: all(client.answered_at() > after for client in clients), seconds)

    def check_bytes(self):
        wrong = self.registers.wrong()
        intact(not wrong, "\n".join(wrong[:5]))

    def stalls(self, since, until=None):
        """The longest operations on objects and on blocks."""
        until = until or time.monotonic()
        return [longest(clients, since, until) for clients in (self.registers.objects, self.registers.blocks)]

    def finish(self):
        """Ends the load; no client hangs. Once."""
        if self.is_over:
            return
        for uploader in self.uploaders:
            uploader.stopping = True
        ended = [self.registers.finish(), *(uploader.stop(60) for uploader in self.uploaders)]
        self.fio.finish()
        self.is_over = True
        assert all(ended), "a client hangs"

    def counts(self):
        answered, failed = self.registers.counts()
        errors = sum(len(uploader.errors) for uploader in self.uploaders)
        text = f"{answered} operations on registers, {failed} without answer"
        return f"{text}; {self.acked()} uploads, {errors} failed; fio {self.fio.done} times"

    def check_histories(self):
        """The history of every register is linearizable."""
        found = self.registers.violations() + self.registers.wrong()
        (self.scenario.directory / "violations").write_text("\n\n".join(found))
        intact(not found, f"{len(found)}:\n" + "\n\n".join(found)[:6000])

    def check_uploads(self):
        """Every acknowledged upload is there, read through another host."""
        for host, uploader in zip(self.world.hosts[1:] + self.world.hosts[:1], self.uploaders):
            problems = within(host.namespace, lambda h=host, u=uploader: u.problems(h.s3(attempts=3)))
            assert not problems, f"{len(problems)}:\n" + "\n".join(problems[:5])
