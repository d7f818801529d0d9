#!/usr/bin/env python3
"""Measures what each layer of encryption costs: clusters that differ in one layer, side by side, in turns.

    crates/lab/tools/encryption_cost.py --atoll target/release/atoll [--seconds 3] [--rounds 3] [LAYER ...]

Layers: frames, at-rest, tls, haproxy, transit, everything. For each load the medians of all rounds, on and off:
operations per second and CPU of all servers (OSDs, and gateways for S3) per operation, and the ratios within
rounds. Durability is the same everywhere: every ack is durable on three copies. ATOLL_E2E_DIR says where the
clusters are made; they are removed at the end.
"""
import argparse, json, pathlib, shutil, statistics, subprocess, sys

TESTS = pathlib.Path(__file__).resolve().parents[3] / "tests" / "e2e"
sys.path.insert(0, str(TESTS))
from lib.ports import free_port  # noqa: E402
from lib.scenario import Scenario, add_arguments  # noqa: E402
from lib.waiting import Failed  # noqa: E402
from lib.transit import Transit  # noqa: E402

SECURE = ["--frame-mode", "secure"]
BLOCK_SMALL = [("4 KiB randread QD32", "randread", "4k", 32), ("4 KiB randwrite QD32", "randwrite", "4k", 32)]
BLOCK_LARGE = [("4 MiB read QD4", "read", "4m", 4), ("4 MiB write QD4", "write", "4m", 4)]
OBJECTS = [("64 KiB GET, 16 at once", "get", "64k", 16), ("64 KiB PUT, 16 at once", "put", "64k", 16),
           ("4 MiB GET, 8 at once", "get", "4m", 8), ("4 MiB PUT, 8 at once", "put", "4m", 8)]


class Bench:
    def __init__(self, test, arguments):
        self.test, self.seconds, self.rounds = test, arguments.seconds, arguments.rounds
        self.clusters, self.transit = {}, None

    def cluster(self, name):
        """A cluster with these layers on, made when it is first asked for."""
        if name in self.clusters:
            return self.clusters[name]
        options = {"off": ["--frame-mode", "crc"], "secure": SECURE, "secure-128": ["--frame-mode", "secure-128"],
                   "at-rest": [*SECURE, "--encrypt-at-rest"], "transit": SECURE,
                   "everything": [*SECURE, "--encrypt-at-rest"]}[name]
        cluster = self.test.cluster(name=name, osd_size="10G")
        if name in ("transit", "everything"):
            self.transit = self.transit or Transit(self.test)
            options = options + self.transit.options()
        cluster.options = options
        # Without the watch over nonces, which is for tests.
        cluster.variables = {"ATOLL_KEY_LIFETIME_SECONDS": "60"}
        cluster.up()
        cluster.create_image("bench", "512M")
        self.block(cluster, "write", "4m", 4, seconds=2)
        for size, objects in (("64k", 200), ("4m", 24)):
            self.object(cluster, "put", size, 8, objects, [], seconds=2)
        self.clusters[name] = cluster
        return cluster

    def forget_clusters(self):
        """Ends all clusters and gives their space back: what was replaced is collected only after a minute."""
        for cluster in self.clusters.values():
            cluster.down()
            shutil.rmtree(cluster.data)
        self.clusters.clear()

    def bench(self, cluster, *arguments, seconds=None):
        said = cluster.cli("bench", *arguments, "--seconds", seconds or self.seconds, "--json", timeout=120).stdout
        report = json.loads(said)
        if report["errors"]:
            raise Failed(f"{report['errors']} errors, such as: {report['first_error']}")
        return report["iops"], report["cpu_us_per_op"]

    def block(self, cluster, pattern, size, depth, seconds=None):
        return self.bench(cluster, "block", "--image", "bench", "--rw", pattern, "--bs", size, "--qd", depth, "--working-set", "512M", seconds=seconds)

    def object(self, cluster, operation, size, concurrency, objects, more, seconds=None):
        return self.bench(cluster, "object", "--op", operation, "--size", size, "--concurrency", concurrency, "--objects", objects, *more, seconds=seconds)

    def compare(self, layer, load, off, on):
        """Both in turns; prints a line of a table."""
        runs = []
        for round in range(self.rounds):
            # Who comes first changes, so that what one leaves behind does not always meet the other.
            runs.append((off(), on()) if round % 2 == 0 else (on(), off())[::-1])
        median = lambda values: statistics.median(list(values))  # noqa: E731
        (off_ops, off_us), (on_ops, on_us) = ([median(run[side][field] for run in runs) for field in (0, 1)] for side in (0, 1))
        ops = [run[1][0] / run[0][0] for run in runs]
        cpu = [run[1][1] / run[0][1] for run in runs]
        spread = lambda values: f"{min(values):.2f} to {max(values):.2f}"  # noqa: E731
        print(f"| {layer} | {load} | {off_ops:,.0f} | {on_ops:,.0f} | **{median(ops):.2f}** ({spread(ops)}) | {off_us:,.0f} | {on_us:,.0f} | "
              f"**{median(cpu):.2f}** ({spread(cpu)}) |", flush=True)

    def blocks(self, layer, off, on, loads):
        off, on = self.cluster(off), self.cluster(on)
        for load, pattern, size, depth in loads:
            self.compare(layer, load, lambda: self.block(off, pattern, size, depth), lambda: self.block(on, pattern, size, depth))

    def objects(self, layer, off, on, loads, on_options=()):
        off, on = self.cluster(off), self.cluster(on)
        for load, operation, size, concurrency in loads:
            count = 200 if size == "64k" else 24
            self.compare(layer, load, lambda: self.object(off, operation, size, concurrency, count, []),
                         lambda: self.object(on, operation, size, concurrency, count, on_options))

    def frames(self):
        self.blocks("secure frames (AES-256)", "off", "secure", BLOCK_SMALL + BLOCK_LARGE)
        self.blocks("secure-128 frames", "off", "secure-128", BLOCK_SMALL)

    def at_rest(self):
        self.blocks("LUKS2 at rest", "secure", "at-rest", [BLOCK_SMALL[1], BLOCK_LARGE[1]])

    def tls(self):
        self.objects("TLS at the gateway", "secure", "secure", OBJECTS, ["--tls"])

    def load_balancer(self):
        self.objects("HAProxy ends TLS", "secure", "secure", OBJECTS[2:], ["--endpoint", self.haproxy()])

    def key_service(self):
        self.objects("SSE-S3 with Transit", "secure", "transit", OBJECTS[2:])

    def everything(self):
        self.objects("everything", "off", "everything", OBJECTS[2:], ["--tls"])
        self.blocks("everything", "off", "everything", BLOCK_SMALL[1:])

    def haproxy(self):
        """The address of a HAProxy that ends TLS in front of a cluster, with the documented configuration."""
        cluster, port = self.cluster("secure"), free_port()
        pair = self.test.directory / "pair.pem"
        pair.write_text((cluster.data / "tls" / "server.crt").read_text() + (cluster.data / "tls" / "server.key").read_text())
        text = (TESTS / "haproxy" / "termination.cfg.in").read_text()
        values = {"SOCKET": self.test.directory / "haproxy.sock", "LISTEN": f"127.0.0.1:{port}", "CERTIFICATE": pair,
                  "GATEWAY_1": f"127.0.0.1:{cluster.s3_port}", "GATEWAY_2": f"127.0.0.1:{cluster.s3_port}"}
        for name, value in values.items():
            text = text.replace(f"@{name}@", str(value))
        path = self.test.directory / "haproxy.cfg"
        path.write_text(text)
        self.test.start("haproxy", "-db", "-f", path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return f"https://127.0.0.1:{port}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--seconds", type=int, default=3, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("layers", nargs="*", default=["frames", "at-rest", "tls", "haproxy", "transit", "everything"])
    arguments = parser.parse_args()
    test = Scenario("encryption-cost", arguments.atoll, arguments.scale)
    bench = Bench(test, arguments)
    try:
        print("| layer | load | op/s off | on | on / off | CPU us/op off | on | on / off |\n|---|---|---|---|---|---|---|---|", flush=True)
        layers = {
            "frames": bench.frames, "at-rest": bench.at_rest, "tls": bench.tls, "haproxy": bench.load_balancer, "transit": bench.key_service,
            "everything": bench.everything,
        }
        for layer in arguments.layers:
            layers[layer]()
            bench.forget_clusters()
    finally:
        test.clean_up(keep=False)


if __name__ == "__main__":
    main()
