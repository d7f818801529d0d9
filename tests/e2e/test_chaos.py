"""The writers of tests/chaos notice a server that lies: one in memory, to which the worst is done."""

import io
import itertools
import pathlib
import sys

import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "chaos"))

from images import BLOCK, ImageWriter
from lib.nbd import NbdError
from objects import ObjectWriter, VersionWriter
from registers import Registers, RegisterWriter

TURNS = 400


def refusal(status):
    return ClientError({"Error": {"Code": "x"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "x")


class Memory:
    """S3 in memory, as far as the writers use it."""

    def __init__(self):
        self.objects, self.versions, self.numbers = {}, {}, itertools.count(1)

    def put_object(self, Bucket, Key, Body, IfMatch=None, IfNoneMatch=None):
        now = self.objects.get((Bucket, Key))
        if IfMatch and (now is None or now[0] != IfMatch) or IfNoneMatch and now is not None:
            raise refusal(412)
        tag = f"tag-{next(self.numbers)}"
        self.objects[Bucket, Key] = (tag, Body)
        self.versions[tag] = (Bucket, Key, Body)
        return {"ETag": tag, "VersionId": tag}

    def get_object(self, Bucket, Key, VersionId=None):
        found = self.versions.get(VersionId) if VersionId else self.objects.get((Bucket, Key))
        if found is None:
            raise refusal(404)
        return {"Body": io.BytesIO(found[-1]), "ETag": found[0]}

    def delete_object(self, Bucket, Key, VersionId=None):
        if VersionId:
            self.versions.pop(VersionId, None)
        else:
            self.objects.pop((Bucket, Key), None)
        return {}

    def get_paginator(self, _):
        return self

    def paginate(self, Bucket, Prefix):
        keys = [key for bucket, key in self.objects if bucket == Bucket and key.startswith(Prefix)]
        lines = [
            {"Key": key, "VersionId": version}
            for version, (bucket, key, _) in self.versions.items()
            if bucket == Bucket and key.startswith(Prefix)
        ]
        return [{"Contents": [{"Key": key} for key in keys], "Versions": lines}]


class TimesOut(Memory):
    """Of every tenth write nobody hears, whether it was done or not."""

    def put_object(self, **arguments):
        number = next(self.numbers)
        answer = super().put_object(**arguments) if number % 20 else None
        if number % 10 == 0:
            raise ReadTimeoutError(endpoint_url="x")
        return answer


def work(writer, turns=TURNS):
    writer.stopping.wait = lambda _seconds: None
    for _ in range(turns):
        writer.turn()
    assert not writer.problems, writer.problems
    return writer


def problems_of_objects(s3, harm):
    writer = ObjectWriter("o", 1, s3, "b", keys=8)
    writer.multipart = writer.copy = writer.put
    work(writer)
    harm(s3)
    writer.check(s3, "at rest")
    return writer.problems


def some_key(s3):
    return sorted(key for key in s3.objects)[0]


def lose(s3):
    del s3.objects[some_key(s3)]


def flip(s3):
    key = some_key(s3)
    tag, body = s3.objects[key]
    s3.objects[key] = (tag, body[:-1] + bytes([body[-1] ^ 1]) if body else b"x")


def resurrect(s3):
    s3.objects["b", next(f"o/{key}" for key in range(8) if ("b", f"o/{key}") not in s3.objects)] = ("t", b"old")


def hide(s3):
    key = some_key(s3)
    s3.paginate = lambda Bucket, Prefix: [{"Contents": [{"Key": one} for _, one in s3.objects if ("b", one) != key]}]


@pytest.mark.parametrize("server", [Memory, TimesOut])
def test_an_honest_server_has_no_problems(server):
    assert problems_of_objects(server(), lambda s3: None) == []


@pytest.mark.parametrize("harm", [lose, flip, resurrect, hide])
def test_harm_to_objects_is_noticed(harm):
    assert problems_of_objects(Memory(), harm)


def lose_version(s3, writer):
    del s3.versions[sorted(writer.kept)[0]]


def change_version(s3, writer):
    version = sorted(writer.kept)[0]
    s3.versions[version] = (*s3.versions[version][:2], b"other")


def resurrect_version(s3, writer):
    s3.versions[sorted(writer.removed)[0]] = ("b", writer.keys[0], b"back")


def add_version(s3, writer):
    s3.versions["tag-x"] = ("b", writer.keys[0], b"by nobody")


@pytest.mark.parametrize("server", [Memory, TimesOut])
def test_versions_of_an_honest_server(server):
    s3 = server()
    writer = work(VersionWriter("v", 1, s3, "b"))
    writer.check(s3, "at rest")
    assert writer.problems == [] and len(writer.kept) > 20 and len(writer.removed) > 20


@pytest.mark.parametrize("harm", [lose_version, change_version, resurrect_version, add_version])
def test_harm_to_versions_is_noticed(harm):
    s3 = Memory()
    writer = work(VersionWriter("v", 1, s3, "b"))
    harm(s3, writer)
    writer.check(s3, "at rest")
    assert writer.problems


def registers_after(s3, harm=None):
    registers = Registers("b")
    writers = [RegisterWriter(f"r{number}", 1, s3, registers) for number in range(3)]
    for turn in range(TURNS):
        if turn == TURNS // 2 and harm:
            harm(s3)
        work(writers[turn % 3], 1)
    writers[0].check(s3, "at rest")
    assert not writers[0].problems
    return registers.problems()


@pytest.mark.parametrize("server", [Memory, TimesOut])
def test_registers_of_an_honest_server(server):
    assert registers_after(server()) == []


def forget_conditions(s3):
    put = s3.put_object
    s3.put_object = lambda IfMatch=None, IfNoneMatch=None, **arguments: put(**arguments)


def go_back(s3):
    for (bucket, key), _ in list(s3.objects.items()):
        versions = [(tag, body) for tag, (_, of, body) in s3.versions.items() if of == key]
        s3.objects[bucket, key] = versions[0]


def drop_all(s3):
    s3.objects.clear()


@pytest.mark.parametrize("harm", [forget_conditions, go_back, drop_all])
def test_registers_that_are_none_are_noticed(harm):
    assert registers_after(Memory(), harm)


class Disk:
    """An image in memory, with its snapshots, and the cluster that has it."""

    def __init__(self):
        self.exports = {"image": bytearray(2048 * BLOCK)}
        self.opened = self

    def nbd(self, export, **_):
        opened = Disk()
        opened.exports, opened.export = self.exports, export
        return opened

    def cli(self, *arguments, **_):
        what, name = arguments[2:4]
        if what == "create":
            self.exports[name] = bytearray(self.exports["image"])
        else:
            del self.exports[name]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    close = __exit__

    def read(self, offset, length):
        return bytes(self.exports[self.export][offset : offset + length])

    def write(self, offset, data, fua=False):
        self.exports[self.export][offset : offset + len(data)] = data

    def zero(self, offset, length):
        self.write(offset, bytes(length))

    trim = zero


def image_after(harm):
    disk = Disk()
    writer = work(ImageWriter("image", 1, disk))
    writer.snapshot()
    work(writer, 50)
    harm(disk)
    writer.check(None, "at rest")
    return writer.problems


def older(disk):
    """The image as it was when a snapshot was taken."""
    snapshot = next(name for name in disk.exports if "@" in name)
    disk.exports["image"] = bytearray(disk.exports[snapshot])


def newer(disk):
    """A snapshot that shows the image of now."""
    snapshot = next(name for name in disk.exports if "@" in name)
    disk.exports[snapshot] = bytearray(disk.exports["image"])


def unreadable(disk):
    def refuse(*_):
        raise NbdError(5, "read")

    disk.nbd = lambda *_, **__: type("Broken", (Disk,), {"read": refuse})()


def test_an_honest_image():
    assert image_after(lambda disk: None) == []


@pytest.mark.parametrize("harm", [older, newer, unreadable])
def test_harm_to_an_image_is_noticed(harm):
    assert image_after(harm)
