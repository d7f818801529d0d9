#!/usr/bin/env python3
"""LUKS2 at rest: object names are in clear on plain devices and nowhere on encrypted ones; `cryptsetup` reads and
changes the headers; OSDs open with the right passphrase, key file or key service and say clearly why not."""
import concurrent.futures, json, shutil, stat

from harness import GIB, MIB, expect, main, wait_for
from sealed import search

BUCKET = "a-bucket-name-to-look-for"
KEY = "object-name-that-only-metadata-has/"
OBJECTS, OBJECT_BYTES = 1_200, 48 << 10
PASSPHRASE, NEW_PASSPHRASE = "the first line: a passphrase", "another passphrase"
KEY_FILE, NEW_KEY_FILE = b"\x00\xffall bytes\ncount\n", b"other\n\x00bytes"
QUICK = ["--pbkdf", "argon2id", "--pbkdf-memory", "64", "--pbkdf-force-iterations", "4", "--pbkdf-parallel", "1"]


class Encrypted:
    """A cluster of three OSDs on encrypted files: passphrase and WAL device, key file, key service and WAL device."""

    def __init__(self, test):
        self.test, self.cluster, self.disks = test, test.cluster("encrypted"), test.directory / "disks-encrypted"
        self.disks.mkdir()
        self.secrets = test.directory / "secrets"
        self.secrets.mkdir()
        self.passphrase, self.key_file = self.secrets / "passphrase", self.secrets / "key"
        self.passphrase.write_text(PASSPHRASE + "\nthe second line counts for nothing\n")
        self.key_file.write_bytes(KEY_FILE)
        self.unlock = [["--passphrase-file", self.passphrase], ["--key-file", self.key_file], ["--kms"]]

    def path(self, name):
        return self.disks / name

    def create(self, *more, ok=(0,)):
        return self.cluster.cli("osd", "create", *more, "--json", ok=ok)

    def create_all(self):
        for number, unlock in enumerate(self.unlock):
            wal = [] if number == 1 else ["--wal-device", self.path(f"wal-{number}"), "--wal-size", "96M"]
            made = json.loads(self.create("--device", self.path(f"data-{number}"), "--size", "1G", "--encrypt", *unlock, *wal).stdout)
            expect(made["id"] == number and made["device_bytes"] == GIB - 16 * MIB, f"{made}")

    def files(self):
        return sorted(self.disks.iterdir())

    def cryptsetup(self, *command, ok=(0,)):
        return self.test.run("cryptsetup", "--batch-mode", "--disable-locks", *command, ok=ok)

    def secret(self, name, content):
        """A key file for cryptsetup, which takes all of it."""
        path = self.secrets / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def refused(self, number, *more, words):
        """An OSD that does not start, run by hand: it ends with exit code 1 and says why."""
        done = self.test.run(self.test.atoll, "osd", "run", "--id", number, *more, "--data", self.cluster.data, ok=None, timeout=60)
        expect(done.returncode == 1, f"osd.{number} {more}: exit code {done.returncode}\n{done.stderr}")
        said = next(line for line in done.stderr.splitlines() if line.startswith("atoll: "))
        for word in words:
            expect(word in said, f"osd.{number} {more}: '{word}' is not in: {said}")
        return said.replace(str(self.test.directory), "...")[:200]


def body(number):
    return f"content of {number}. ".encode() * (OBJECT_BYTES // 20)


def fill(cluster):
    s3 = cluster.s3()
    s3.create_bucket(Bucket=BUCKET)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: s3.put_object(Bucket=BUCKET, Key=f"{KEY}{number}", Body=body(number)), range(OBJECTS)))


def compare(cluster):
    s3 = cluster.s3(attempts=5)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        get = lambda number: s3.get_object(Bucket=BUCKET, Key=f"{KEY}{number}")["Body"].read() == body(number)
        wrong = [number for number, same in enumerate(pool.map(get, range(OBJECTS))) if not same]
    expect(not wrong, f"{len(wrong)} objects have changed, such as {wrong[:5]}")


def names_found(directory):
    """Files in which the bucket's or an object's name is, and the bytes that were searched."""
    found, searched = search(directory, [KEY.encode(), BUCKET.encode()])
    return {file for file, _, _ in found}, searched


def refused_combinations(test, encrypted):
    device = encrypted.path("refused")
    with test.step("combinations that make no sense are refused, and nothing is made") as note:
        cases = [(["--encrypt"], 2, "--passphrase-file"), (["--encrypt", "--kms", "--key-file", encrypted.key_file], 2, "cannot be used with"),
                 (["--kms"], 1, "give --encrypt"), (["--encrypt", "--key-file", test.directory / "none"], 1, "No such file"),
                 (["--encrypt", "--passphrase-file", encrypted.secret("empty", "\nx")], 1, "no passphrase"),
                 (["--encrypt", "--kms", "--wal-device", encrypted.path("no-wal")], 1, "--wal-size"), (["--encrypt", "--kms", "--size", "520M"], 1, "at least")]
        for options, code, word in cases:
            size = [] if "--size" in options else ["--size", "1G"]
            done = encrypted.create("--device", device, *size, *options, ok=None)
            expect(done.returncode == code and word in done.stderr, f"{options}: {done.returncode} {done.stderr}")
            expect(not device.exists(), f"{options}: the file is left")
        note(f"{len(cases)} of them")


def creation(test, encrypted):
    with test.step("osd create --encrypt with a passphrase, a key file and the key service; each device is a volume", fatal=True) as note:
        encrypted.create_all()
        dumps = {path.name: encrypted.cryptsetup("luksDump", path).stdout for path in encrypted.files()}
        for name, dump in dumps.items():
            for word in ("aes-xts-plain64", "sector: 4096 [bytes]", "offset: 16777216 [bytes]", "argon2id"):
                expect(word in dump, f"{name}: '{word}' is not in: {dump}")
            expect(("atoll-kms" in dump) == name.endswith("-2"), f"{name}: {dump}")
        uuids = {line for dump in dumps.values() for line in dump.splitlines() if line.startswith("UUID")}
        expect(len(uuids) == len(dumps) == 5, f"{uuids}")
        note("5 headers by luksDump")
    with test.step("cryptsetup opens them with what they were made with, and with nothing else"):
        right = {"0": encrypted.secret("right-0", PASSPHRASE), "1": encrypted.key_file}
        for path in encrypted.files():
            for number, secret in right.items():
                done = encrypted.cryptsetup("open", "--test-passphrase", "--key-file", secret, path, ok=(0, 2))
                expect((done.returncode == 0) == path.name.endswith(number), f"{path.name} {number}: {done.returncode}")
    with test.step("the choice is remembered, the passphrase is not"):
        remembered = [json.loads((encrypted.cluster.data / f"osd-{number}" / "at-rest.json").read_text())["unlock_with"] for number in range(3)]
        expect(remembered == [{"passphrase_file": str(encrypted.passphrase)}, {"key_file": str(encrypted.key_file)}, "kms"], f"{remembered}")
        found, _ = search(encrypted.cluster.data, [PASSPHRASE.encode(), KEY_FILE])
        expect(not found, f"{found}")
    with test.step("a LUKS2 volume is not overwritten without --wipe") as note:
        done = encrypted.create("--device", encrypted.path("data-0"), "--encrypt", "--kms", ok=None)
        expect(done.returncode == 1 and "a LUKS2 volume" in done.stderr and "--wipe" in done.stderr, done.stderr)
        note(done.stderr.strip().replace(str(test.directory), "..."))


def names(test, encrypted):
    plain, plain_disks = test.cluster("plain"), test.directory / "disks-plain"
    plain_disks.mkdir()
    with test.step("without encryption the names are in clear, on the data device and on the WAL device", fatal=True) as note:
        plain.cli("osd", "create", "--device", plain_disks / "data", "--size", "1G", "--wal-device", plain_disks / "wal", "--wal-size", "80M")
        plain.osds = 1
        plain.up()
        fill(plain)
        plain.down()
        plain.up()
        plain.down()
        found, searched = names_found(plain_disks)
        expect(found == {"data", "wal"}, f"only in {found}")
        note(f"{searched / MIB:.0f} MiB searched")
    cluster = encrypted.cluster
    with test.step("with encryption they are nowhere, neither while it runs nor after kill -9 nor after a stop") as note:
        seconds = cluster.up()
        fill(cluster)
        places, searched = set(), 0
        for disturb in (lambda: None, cluster.kill_all, cluster.up, cluster.down):
            disturb()
            found, more = names_found(encrypted.disks)
            places, searched = places | found, searched + more
        expect(not places, f"in {places}")
        expect(searched > 4 * 150 * MIB, f"only {searched} bytes were there to search")
        note(f"healthy after {seconds:.1f} s, {searched / MIB:.0f} MiB searched")
    with test.step("everything is read back after kill -9 and a restart") as note:
        note(f"healthy after {cluster.up():.1f} s")
        compare(cluster)
        cluster.kill("osd.0")
        cluster.kill("osd.2")
        wait_for("the cluster is healthy again", lambda: cluster.json("status")["health"] == "ok", 60)
        compare(cluster)
        cluster.down()


def wrong_keys(test, encrypted):
    wrong = encrypted.secret("wrong", "not it")
    with test.step("a wrong passphrase, a wrong key file and none at all: exit code 1, and the error says what to do") as note:
        note(encrypted.refused(0, "--passphrase-file", wrong, words=["cannot unlock", "opens none of the 1 keyslots", "luksDump"]))
        encrypted.refused(1, "--key-file", wrong, words=["cannot unlock", "opens none"])
        encrypted.refused(1, "--passphrase-file", encrypted.key_file, words=["cannot unlock"])
        encrypted.refused(0, "--kms", words=["no token 'atoll-kms'"])
        encrypted.refused(2, "--key-file", wrong, words=["cannot unlock"])
        remembered = encrypted.cluster.data / "osd-0" / "at-rest.json"
        text = remembered.read_text()
        remembered.unlink()
        encrypted.refused(0, words=["is encrypted (LUKS2 volume", "at-rest.json", "--passphrase-file"])
        remembered.write_text(text)
    with test.step("a key service without the key is named"):
        service = encrypted.cluster.data / "keys" / "kms.json"
        text = service.read_text()
        service.write_text(text.replace('"id": "', '"id": "0'))
        encrypted.refused(2, words=["the key service has no passphrase for", "not the key file of this cluster"])
        service.write_text(text)


def changed_passphrases(test, encrypted):
    old, new = encrypted.secret("old", PASSPHRASE), encrypted.secret("new", NEW_PASSPHRASE)
    with test.step("luksChangeKey: the OSD opens with the new passphrase, and the old one is refused") as note:
        for name in ("data-0", "wal-0"):
            encrypted.cryptsetup("luksChangeKey", *QUICK, "--key-file", old, encrypted.path(name), new)
        note(encrypted.refused(0, words=["cannot unlock", "opens none of the 1 keyslots"]))
        encrypted.passphrase.write_text(NEW_PASSPHRASE)
    with test.step("luksAddKey and luksRemoveKey: the OSD opens with the added key file, and the removed one is refused") as note:
        new_key = encrypted.secret("new-key", NEW_KEY_FILE)
        encrypted.cryptsetup("luksAddKey", *QUICK, "--key-file", encrypted.key_file, encrypted.path("data-1"), new_key)
        encrypted.cryptsetup("luksRemoveKey", encrypted.path("data-1"), encrypted.key_file)
        encrypted.refused(1, words=["cannot unlock", "opens none of the 1 keyslots"])
        encrypted.key_file.write_bytes(NEW_KEY_FILE)
        note(f"healthy after {encrypted.cluster.up():.1f} s")
        compare(encrypted.cluster)
        encrypted.cluster.down()


def damaged_and_foreign(test, encrypted):
    cluster, path = encrypted.cluster, encrypted.path("data-0")
    with test.step("a damaged first copy of the header: the second one is used, with a warning; cryptsetup repairs it") as note:
        with open(path, "r+b") as device:
            device.seek(4096)
            device.write(b"damage")
        cluster.up()
        compare(cluster)
        cluster.down()
        warning = [line for line in (cluster.data / "log" / "osd.0.log").read_text().splitlines() if "cryptsetup repair" in line]
        expect(warning and "WARN" in warning[-1], "there is no warning")
        encrypted.cryptsetup("repair", path)
        note(warning[-1].split("WARN")[1].replace(str(test.directory), "...")[:120])
    backup = test.directory / "backup"
    with test.step("both copies damaged, and none at all: named; luksHeaderRestore brings the OSD back") as note:
        encrypted.cryptsetup("luksHeaderBackup", path, "--header-backup-file", backup)
        with open(path, "r+b") as device:
            for place in (4096, (16 << 10) + 4096):
                device.seek(place)
                device.write(b"damage")
        note(encrypted.refused(0, words=["the LUKS2 header is damaged", "luksHeaderRestore"]))
        with open(path, "r+b") as device:
            device.write(bytes(MIB))
        encrypted.refused(0, words=["is not encrypted, or its LUKS2 header was overwritten", "at-rest.json"])
        encrypted.cryptsetup("luksHeaderRestore", path, "--header-backup-file", backup)
    with test.step("volumes that are not ours, and what is not supported, are named") as note:
        link, foreign = cluster.data / "osd-1" / "device", encrypted.path("foreign")
        target = link.readlink()
        for options, words in ((["--sector-size", "4096"], ["there is no Atoll store in it"]),
                               (["--sector-size", "512"], ["sectors of 512 bytes", "does not support"]),
                               (["--cipher", "aes-cbc-essiv:sha256", "--key-size", "256", "--sector-size", "4096"], ["the cipher 'aes-cbc-essiv:sha256'"])):
            foreign.unlink(missing_ok=True)
            with open(foreign, "wb") as file:
                file.truncate(GIB)
            encrypted.cryptsetup("luksFormat", "--type", "luks2", *QUICK, *options, "--key-file", encrypted.key_file, foreign)
            link.unlink()
            link.symlink_to(foreign)
            note(encrypted.refused(1, words=words))
        link.unlink()
        link.symlink_to(target)
    with test.step("all of that has cost nothing"):
        cluster.up()
        compare(cluster)
        cluster.down()
    with test.step("--wipe overwrites both copies of the header; the OSD is filled anew") as note:
        (cluster.data / "osd-1" / "device").unlink()
        encrypted.create("--device", encrypted.path("data-1"), "--wipe", "--id", "1")
        expect(not (cluster.data / "osd-1" / "at-rest.json").exists(), "what unlocked the old device is still remembered")
        expect(encrypted.cryptsetup("isLuks", encrypted.path("data-1"), ok=None).returncode != 0, "cryptsetup still finds a header")
        front = encrypted.path("data-1").open("rb").read(16 * MIB)
        expect(b"SKUL\xba\xbe" not in front and b"LUKS\xba\xbe" not in front, "a copy of the header is left")
        note(f"healthy after {cluster.up():.1f} s")
        compare(cluster)
        cluster.down()


def whole_cluster(test):
    cluster = test.cluster("up", osds=3, osd_size="1G")
    with test.step("atoll up --encrypt-at-rest: the device file is a volume, and a new one in its place is, too") as note:
        test.run(*cluster.up_command("--encrypt-at-rest", "--detach"), env=cluster.environment())
        fill(cluster)
        compare(cluster)
        cluster.down()
        device = cluster.data / "osd-0" / "device"
        expect("atoll-kms" in test.run("cryptsetup", "luksDump", device).stdout, "there is no token")
        found, searched = names_found(device.parent)
        expect(not found, f"{found}")
        cluster.up()
        compare(cluster)
        cluster.down()
        device.unlink()
        cluster.up()
        compare(cluster)
        cluster.down()
        test.run("cryptsetup", "isLuks", device)
        expect(stat.S_IMODE((device.parent / "at-rest.json").stat().st_mode) == 0o600, "others may read it")
        note(f"{searched / MIB:.0f} MiB searched")
    with test.step("a cluster that was made without it stays as it is"):
        other = test.cluster("plain-up", osds=1, osd_size="1G")
        other.up()
        other.down()
        done = test.run(*other.up_command("--encrypt-at-rest", "--detach"), env=other.environment(), ok=None)
        expect(done.returncode == 1 and "--encrypt-at-rest was chosen when the cluster was made" in done.stderr, done.stderr)
    shutil.rmtree(cluster.data)


def scenario(test):
    test.need(("cryptsetup", "cryptsetup-bin"))
    encrypted = Encrypted(test)
    refused_combinations(test, encrypted)
    creation(test, encrypted)
    names(test, encrypted)
    wrong_keys(test, encrypted)
    changed_passphrases(test, encrypted)
    damaged_and_foreign(test, encrypted)
    whole_cluster(test)


if __name__ == "__main__":
    main(scenario)
