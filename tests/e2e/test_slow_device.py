"""A device that becomes slow, for real: it is told, no write fails, and it is over when it is over."""

import pytest
from lib.prometheus import Admin, Prometheus
from lib.slow_device import throttled

pytestmark = [pytest.mark.root, pytest.mark.nightly, pytest.mark.needs("prometheus")]

ALERT, FIRES_SECONDS, ENDS_SECONDS = "AtollSlowDevice", 60, 90
WRITES_PER_SECOND, LOAD_SECONDS = 25, 45


def test_the_alert_of_a_slow_device(scenario):
    """Clients write more than the device takes, so each of its writes takes long."""
    cluster = scenario.cluster(osds=1, osd_size="1G")
    cluster.up()
    cluster.create_image("disk", "256M")
    prometheus = Prometheus(Admin(cluster), "prometheus")
    osd = cluster.process_ids()["osd.0"]
    where = ("--data", cluster.data, "--image", "disk")
    load = ("--rw", "randwrite", "--bs", "16k", "--qd", 64, "--prefill", "nothing", "--seconds", LOAD_SECONDS)
    with throttled([osd], cluster.data, WRITES_PER_SECOND):
        bench = scenario.start(scenario.atoll, "bench", "block", *where, *load)
        prometheus.fires(ALERT, FIRES_SECONDS, process="osd.0")
    assert bench.wait(2 * LOAD_SECONDS) == 0, "a write has failed"
    prometheus.ends(ALERT, ENDS_SECONDS, process="osd.0")
    assert cluster.process_ids()["osd.0"] == osd
