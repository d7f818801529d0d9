"""The paths of a Transit mount: each takes the fields of a request and gives the data of its answer."""

import functools
import os
import re
from dataclasses import dataclass

from transit_keys import Refused, decoded, encoded, number, text

DATA_KEY_BITS = (128, 256, 512)


@dataclass
class Answer:
    """What an operation answers. Without `data` and `auth` it has no body."""

    data: dict | None = None
    status: int = 200
    auth: dict | None = None
    warnings: list | None = None


def data_key(keyring, fields, name, how):
    """A new random key, encrypted under the named one, and in plaintext if asked for."""
    if how not in ("plaintext", "wrapped"):
        raise Refused("Invalid path, must be 'plaintext' or 'wrapped'")
    context, associated = text(fields, "context"), text(fields, "associated_data")
    bits, version = number(fields, "bits", 256), number(fields, "key_version")
    try:
        context = decoded(context)
    except Refused:
        raise Refused("failed to base64-decode context") from None
    key = keyring.existing(name)
    if bits not in DATA_KEY_BITS:
        raise Refused("invalid bit length")
    plaintext = os.urandom(bits // 8)
    ciphertext, version = key.encrypt(plaintext, context, associated, version)
    data = {"ciphertext": ciphertext, "key_version": version}
    if how == "plaintext":
        data["plaintext"] = encoded(plaintext)
    return Answer(data)


def encrypt(keyring, fields, name):
    def one(key, item):
        plaintext = decoded(text(item, "plaintext"))
        context = decoded(text(item, "context"))
        associated = text(item, "associated_data")
        ciphertext, version = key.encrypt(plaintext, context, associated, number(item, "key_version"))
        return {"ciphertext": ciphertext, "key_version": version}

    items = items_of(fields, "plaintext", "missing plaintext to encrypt")
    if name not in keyring.keys:
        # As in Vault, who may create keys creates one by encrypting with it.
        keyring.create(name, {"type": fields.get("type"), "derived": bool(text(items[0], "context"))})
    return each(fields, items, keyring.existing(name), one)


def decrypt(keyring, fields, name):
    def one(key, item):
        ciphertext = present(text(item, "ciphertext"), "missing ciphertext to decrypt")
        context = decoded(text(item, "context"))
        return {"plaintext": encoded(key.decrypt(ciphertext, context, text(item, "associated_data")))}

    items = items_of(fields, "ciphertext", "missing ciphertext to decrypt")
    return each(fields, items, keyring.existing(name), one, failed={"plaintext": ""})


def rewrap(keyring, fields, name):
    """A ciphertext under the latest version. Vault and OpenBao ignore `associated_data` here, so that
    what was encrypted with it cannot be rewrapped."""

    def one(key, item):
        ciphertext = present(text(item, "ciphertext"), "missing ciphertext to decrypt")
        context = decoded(text(item, "context"))
        plaintext = key.decrypt(ciphertext, context, "")
        ciphertext, version = key.encrypt(plaintext, context, "", number(item, "key_version"))
        return {"ciphertext": ciphertext, "key_version": version}

    items = items_of(fields, "ciphertext", "missing ciphertext to decrypt", strict=False)
    answer = each(fields, items, keyring.existing(name), one)
    answer.status = 200  # also if some or all items of a batch were refused
    return answer


def present(value, otherwise):
    if not value:
        raise Refused(otherwise)
    return value


def items_of(fields, required, missing, strict=True):
    """The items of a batch, or the request itself as the only one. `strict` refuses a whole batch for
    one item of the wrong shape."""
    batch = fields.get("batch_input")
    if batch is None:
        if required not in fields:
            raise Refused(missing)
        return [fields]
    if not isinstance(batch, list) or not all(isinstance(item, dict) for item in batch):
        raise malformed("expected a list of maps")
    if not batch:
        raise Refused("missing batch input to process")
    for place, item in enumerate(batch if strict else []):
        if required not in item:
            raise malformed(f"'[{place}].{required}' {missing}")
        for name in ("plaintext", "ciphertext", "context", "associated_data", "reference"):
            if not isinstance(item.get(name, ""), str):
                raise malformed(f"'[{place}].{name}' expected type 'string'")
        if not isinstance(item.get("key_version", 0), int):
            raise malformed(f"'[{place}].key_version' expected type 'int'")
    if len({bool(text(item, "context")) for item in batch}) > 1:
        raise Refused("context should be set either in all the request blocks or in none")
    return batch


def malformed(why):
    return Refused(f"failed to parse batch input: {why}", status=500)


def each(fields, items, key, one, failed=None):
    """Does `one` with every item; in a batch those that are refused do not stop the others."""
    if fields.get("batch_input") is None:
        return Answer(one(key, items[0]))
    results, refusals = [], []
    for item in items:
        try:
            result = one(key, item)
        except Refused as refused:
            refusals.append(refused.status)
            result = (failed or {}) | {"error": refused.message}
        results.append(result | {"reference": text(item, "reference")})
    status = min(refusals, default=200)
    if 0 < len(refusals) < len(items):
        status = number(fields, "partial_failure_response_code") or status
    return Answer({"batch_results": results}, status)


def list_keys(keyring, fields):
    if not keyring.keys:
        raise Refused(None, status=404)
    return Answer({"keys": keyring.names()})


def create(keyring, fields, name):
    return Answer(keyring.create(name, fields).description())


def read(keyring, fields, name):
    if name not in keyring.keys:
        raise Refused(None, status=404)
    return Answer(keyring.keys[name].description())


def delete(keyring, fields, name):
    keyring.delete(name)
    return Answer(status=204)


def rotate(keyring, fields, name):
    key = keyring.existing(name, "key not found")
    key.rotate()
    return Answer(key.description())


def configure(keyring, fields, name):
    key = keyring.existing(name, f"no existing key named {name} could be found")
    key.configure(fields)
    return Answer(key.description())


NAME = r"\w(?:[\w.-]*\w)?"
PATHS = (
    (rf"datakey/(?P<how>{NAME})/(?P<name>{NAME})", {"POST": ("datakey", data_key)}),
    (rf"encrypt/(?P<name>{NAME})", {"POST": ("encrypt", encrypt)}),
    (rf"decrypt/(?P<name>{NAME})", {"POST": ("decrypt", decrypt)}),
    (rf"rewrap/(?P<name>{NAME})", {"POST": ("rewrap", rewrap)}),
    (r"keys/", {"LIST": ("keys/list", list_keys)}),
    (r"keys", {}),
    (
        rf"keys/(?P<name>{NAME})",
        {"POST": ("keys/create", create), "GET": ("keys/read", read), "DELETE": ("keys/delete", delete)},
    ),
    (rf"keys/(?P<name>{NAME})/rotate", {"POST": ("keys/rotate", rotate)}),
    (rf"keys/(?P<name>{NAME})/config", {"POST": ("keys/config", configure)}),
)


def operation_at(method, path):
    """The name of the operation that a path of the mount stands for, and what does it, given the keys
    and the fields; raises what the real ones answer if there is none."""
    for pattern, methods in PATHS:
        match = re.fullmatch(pattern, path)
        if match is None:
            continue
        if method not in methods:
            raise Refused("unsupported operation", status=405)
        operation, function = methods[method]
        groups = match.groupdict()
        if "how" in groups:
            operation += "/" + groups["how"]
        return operation, functools.partial(function, **groups)
    raise Refused("unsupported path", status=404)
