"""Writers of objects and of versions of objects."""

import hashlib

from writers import DONE, REFUSED, Writer, patiently, request

MIB = 1 << 20
SIZES = (0, 100, 3_000, 20_000, 70_000, 300_000, MIB, 5 * MIB)
WEIGHTS = (2, 20, 20, 20, 20, 10, 2, 0.5)
PART_BYTES = 5 * MIB


def digest(data):
    return hashlib.sha256(data).hexdigest()


def content(rng, name, number):
    """Bytes that no other write has."""
    size = rng.choices(SIZES, WEIGHTS)[0]
    head = f"{name}/{number}.".encode()
    return head + rng.randbytes(max(0, size - len(head)))


class ObjectWriter(Writer):
    """Objects of one bucket, through one gateway. Of each key it is known what may be there: what was acknowledged
    last, and that whose outcome is unknown since. None is nothing."""

    def __init__(self, name, seed, s3, bucket, keys=40):
        super().__init__(name, seed)
        self.s3, self.bucket, self.number = s3, bucket, 0
        self.may_be = {f"{name}/{key}": {None} for key in range(keys)}

    def turn(self):
        key = self.rng.choice(list(self.may_be))
        what = self.rng.choices((self.put, self.get, self.delete, self.multipart, self.copy), (10, 8, 3, 0.3, 1))[0]
        what(key)

    def changed(self, key, outcome, found):
        if outcome == DONE:
            self.may_be[key] = {found}
            self.acked("writes")
        elif outcome != REFUSED:
            self.may_be[key] = self.may_be[key] | {found}

    def new_content(self):
        self.number += 1
        return content(self.rng, self.name, self.number)

    def put(self, key):
        body = self.new_content()
        outcome, _ = request(self, self.s3.put_object, Bucket=self.bucket, Key=key, Body=body)
        self.changed(key, outcome, digest(body))

    def delete(self, key):
        outcome, _ = request(self, self.s3.delete_object, Bucket=self.bucket, Key=key)
        self.changed(key, outcome, None)

    def copy(self, key):
        """Of an object about which nothing is unknown."""
        sources = [key for key, may_be in self.may_be.items() if len(may_be) == 1 and None not in may_be]
        if sources:
            source = self.rng.choice(sources)
            place = {"Bucket": self.bucket, "Key": key, "CopySource": {"Bucket": self.bucket, "Key": source}}
            if source != key:
                outcome, _ = request(self, self.s3.copy_object, **place)
                self.changed(key, outcome, next(iter(self.may_be[source])))

    def multipart(self, key):
        place = {"Bucket": self.bucket, "Key": key}
        outcome, upload = request(self, self.s3.create_multipart_upload, **place)
        if outcome != DONE:
            return
        place["UploadId"] = upload["UploadId"]
        parts, tags = [self.rng.randbytes(PART_BYTES), self.new_content()], []
        for number, part in enumerate(parts, 1):
            outcome, answer = request(self, self.s3.upload_part, **place, PartNumber=number, Body=part)
            if outcome != DONE:
                return
            tags.append({"PartNumber": number, "ETag": answer["ETag"]})
        outcome, _ = request(self, self.s3.complete_multipart_upload, **place, MultipartUpload={"Parts": tags})
        self.changed(key, outcome, digest(b"".join(parts)))

    def get(self, key):
        outcome, answer = request(self, self.s3.get_object, Bucket=self.bucket, Key=key)
        self.judge(key, outcome, answer, "under load")
        if outcome == DONE:
            self.acked("reads")

    def judge(self, key, outcome, answer, when):
        if outcome == DONE:
            found = digest(answer["Content"])
        elif outcome == REFUSED and answer == 404:
            found = None
        else:
            return
        if found not in self.may_be[key]:
            said = answer["Content"][:60] if found else "nothing"
            self.wrong(f"{self.bucket}/{key} {when} is {said}, may be {self.may_be[key]}")

    def check(self, s3, when):
        """Compares all objects, and the listing."""
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=f"{self.name}/")
        listed = [entry["Key"] for page in pages for entry in page.get("Contents", [])]
        for key, may_be in self.may_be.items():
            outcome, answer = patiently(self, s3.get_object, Bucket=self.bucket, Key=key)
            self.judge(key, outcome, answer, when)
            if listed.count(key) != (outcome == DONE):
                self.wrong(f"{self.bucket}/{key} {when} is {listed.count(key)} times in the listing, GET {outcome}")
            if None not in may_be and outcome != DONE:
                self.wrong(f"{self.bucket}/{key} {when} is lost: {answer}")
        return len(self.may_be)


class VersionWriter(Writer):
    """Versions of keys of its own in a bucket with versions: every acknowledged one stays until it is deleted."""

    def __init__(self, name, seed, s3, bucket, keys=6, versions_max=150):
        super().__init__(name, seed)
        self.s3, self.bucket, self.number, self.versions_max = s3, bucket, 0, versions_max
        self.keys = [f"{name}/{key}" for key in range(keys)]
        # Version id to key and digest; digests of writes, and versions of deletions, whose outcome is unknown.
        self.kept, self.perhaps_written, self.perhaps_removed, self.removed = {}, set(), set(), set()

    def turn(self):
        weights = (10, 3, 5 if len(self.kept) < self.versions_max else 40, 8)
        self.rng.choices((self.put, self.mark, self.remove, self.get), weights)[0]()

    def put(self):
        self.number += 1
        key, body = self.rng.choice(self.keys), content(self.rng, self.name, self.number)
        outcome, answer = request(self, self.s3.put_object, Bucket=self.bucket, Key=key, Body=body)
        if outcome == DONE:
            self.kept[answer["VersionId"]] = (key, digest(body))
            self.acked("writes")
        elif outcome != REFUSED:
            self.perhaps_written.add((key, digest(body)))

    def mark(self):
        """A delete marker, which hides what is below it and removes nothing."""
        outcome, _ = request(self, self.s3.delete_object, Bucket=self.bucket, Key=self.rng.choice(self.keys))
        if outcome == DONE:
            self.acked("writes")

    def some_version(self):
        known = [version for version in self.kept if version not in self.perhaps_removed]
        return self.rng.choice(known) if known else None

    def remove(self):
        version = self.some_version()
        if not version:
            return
        key = self.kept[version][0]
        self.perhaps_removed.add(version)
        outcome, _ = request(self, self.s3.delete_object, Bucket=self.bucket, Key=key, VersionId=version)
        if outcome == DONE:
            self.removed.add(version)
            del self.kept[version]
            self.acked("writes")

    def get(self):
        version = self.some_version()
        if version:
            key, wanted = self.kept[version]
            place = {"Bucket": self.bucket, "Key": key, "VersionId": version}
            outcome, answer = request(self, self.s3.get_object, **place)
            self.judge(version, wanted, outcome, answer, "under load")

    def judge(self, version, wanted, outcome, answer, when):
        if outcome == DONE and digest(answer["Content"]) != wanted:
            self.wrong(f"version {version} {when} has other bytes: {answer['Content'][:60]}")
        elif outcome == REFUSED and answer == 404:
            self.wrong(f"version {version} {when} is lost")
        elif outcome == DONE:
            self.acked("reads")

    def check(self, s3, when):
        pages = s3.get_paginator("list_object_versions").paginate(Bucket=self.bucket, Prefix=f"{self.name}/")
        listed = {line["VersionId"]: line["Key"] for page in pages for line in page.get("Versions", [])}
        for version, (key, wanted) in list(self.kept.items()):
            if version not in self.perhaps_removed:
                if version not in listed:
                    self.wrong(f"version {version} of {key} {when} is not in the listing")
                place = {"Bucket": self.bucket, "Key": key, "VersionId": version}
                self.judge(version, wanted, *patiently(self, s3.get_object, **place), when)
        for version in self.removed & listed.keys():
            self.wrong(f"version {version} of {listed[version]} {when} was deleted and is there")
        for version in listed.keys() - self.kept.keys() - self.removed:
            place = {"Bucket": self.bucket, "Key": listed[version], "VersionId": version}
            outcome, answer = patiently(self, s3.get_object, **place)
            if outcome != DONE or (listed[version], digest(answer["Content"])) not in self.perhaps_written:
                self.wrong(f"version {version} of {listed[version]} {when} was written by nobody: {outcome}")
        return len(listed)
