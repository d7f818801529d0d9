"""NVMe/TCP with the initiator of the Linux kernel and nvme-cli, in a guest under QEMU."""

import re

from lib.guest import HOST_ADDRESS
from lib.waiting import wait_for


def host_name(host_id):
    return f"nqn.2014-08.org.nvmexpress:uuid:{host_id}"


def identity_files(host_id):
    """What tells nvme-cli who it is."""
    return {"/etc/nvme/hostnqn": f"{host_name(host_id)}\n".encode(), "/etc/nvme/hostid": f"{host_id}\n".encode()}


def connect_command(subsystem, port, *options, keep_alive_seconds=5, lost_seconds=120):
    """Connects with two I/O queues, and connects anew for so long; -1 is for ever."""
    usual = f"-i 2 --keep-alive-tmo={keep_alive_seconds} --reconnect-delay=1 --ctrl-loss-tmo={lost_seconds}"
    return f"nvme connect -t tcp -a {HOST_ADDRESS} -s {port} -n {subsystem} {usual} {' '.join(options)}"


def device_of(guest, subsystem):
    """The device of a subsystem that is connected."""
    script = f"for s in /sys/class/nvme-subsystem/*; do grep -q '^{subsystem}$' $s/subsysnqn && ls $s | grep n1; done"
    names = lambda: re.findall(r"nvme\d+n1\b", guest.run(script, check=False))
    return f"/dev/{wait_for('the guest has the device', names, 30, 0.5)[0]}"
