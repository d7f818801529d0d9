"""Devices: loop devices over files, and what the store of a stopped OSD holds."""

import contextlib
import json
import os
import random
import subprocess

from lib.cluster import MIB
from lib.scenario import base_directory


class Loops:
    """Loop devices over sparse files, all detached at the end."""

    def __init__(self, scenario):
        self.scenario, self.attached = scenario, {}

    def attach(self, name, size_bytes, *options):
        path = self.scenario.directory / name
        with open(path, "ab") as file:
            file.truncate(size_bytes)
        device = self.scenario.run("losetup", "--find", "--show", *options, path).stdout.strip()
        self.attached[device] = path
        return device

    def detach(self, device):
        self.scenario.run("losetup", "--detach", device)
        del self.attached[device]

    def detach_all(self):
        for device in list(self.attached):
            with contextlib.suppress(Exception):
                self.detach(device)

    def why_not(self):
        """Why there are no loop devices here; nothing if there are."""
        try:
            self.detach(self.attach("probe", MIB))
        except Exception as error:
            return "no loop devices: " + str(error).strip().splitlines()[-1]


def detach_leftovers():
    """Detaches loop devices of test runs that have ended without doing so, from files that are gone."""
    with contextlib.suppress(OSError, ValueError):
        listed = subprocess.run(["losetup", "--list", "--json"], check=False, capture_output=True, text=True).stdout
        for device in json.loads(listed or "{}").get("loopdevices", []):
            file = device["back-file"].removesuffix(" (deleted)")
            if file.startswith(str(base_directory())) and not os.path.exists(file):
                subprocess.run(["losetup", "--detach", device["name"]], check=False)


def dump(scenario, device, *arguments):
    """What a stopped OSD's store holds, by `atoll store dump`."""
    done = scenario.run(scenario.atoll, "store", "dump", "--device", device, "--json", *arguments)
    return [json.loads(line) for line in done.stdout.splitlines()]


def data_offsets(scenario, device, rng):
    """Offsets of blocks with data of objects. Damage of metadata makes an OSD refuse to serve."""
    objects = [record for record in dump(scenario, device) if record["record"] == "object" and record["blocks"]]
    found = []
    for of in rng.sample(objects, min(20, len(objects))):
        for record in dump(scenario, device, "--pg", of["pg"], "--object", of["object"]):
            for extent in record.get("extents", ()):
                found += [(extent["device_block"] + index) * 4096 for index in range(len(extent["crcs"]))]
    return found


def data_blocks(scenario, device, pool_ids, first, objects_max=40):
    """Where on a device are data blocks of objects in these pools, of those with a certain beginning of their names
    and of some others: lists of offsets, by (PG, object)."""
    held = [
        record
        for record in dump(scenario, device)
        if record["record"] == "object" and record["blocks"] and int(record["pg"].split(".")[0]) in pool_ids
    ]
    random.Random(6).shuffle(held)
    held.sort(key=lambda record: not record["object"].startswith(first))
    found = {}
    for of in held[:objects_max]:
        offsets = [
            (extent["device_block"] + index) * 4096
            for record in dump(scenario, device, "--pg", of["pg"], "--object", of["object"])
            for extent in record.get("extents", ())
            for index in range(len(extent["crcs"]))
        ]
        if offsets:
            found[of["pg"], of["object"]] = offsets
    return found


def flip_bits(device, places):
    """Changes one bit at each of these offsets of a device, the same ones each time."""
    rng = random.Random(len(places))
    with open(device, "r+b") as file:
        for place in places:
            byte = os.pread(file.fileno(), 1, place)[0]
            os.pwrite(file.fileno(), bytes([byte ^ 1 << rng.randrange(8)]), place)
        os.fsync(file.fileno())
