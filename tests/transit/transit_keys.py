"""Transit keys as Vault and OpenBao have them: named, with versions, optionally derived by a context.

The cipher is not theirs (AES-GCM and ChaCha20-Poly1305 are not in Python's standard library): it is
HMAC-SHA256 in counter mode with an HMAC as tag. Clients cannot tell, since ciphertexts are opaque to
them; lengths are those of the real ciphers. It is for tests alone.

Fields arrive as JSON values of any type. What is wrong with them is told as Vault tells it.
"""

import base64
import binascii
import hashlib
import hmac
import os
import re
import threading
import time

TAG_BYTES = 16
NONCE_BYTES = {"aes128-gcm96": 12, "aes256-gcm96": 12, "chacha20-poly1305": 12, "xchacha20-poly1305": 24}
PREFIX = "vault:v"
MISSING_CONTEXT = (
    "missing 'context' for key derivation; the key was created using a derived key, which means "
    "additional, per-request information must be included in order to perform operations with the key"
)


class Refused(Exception):
    """A request that is answered with an error: the status and the text for `errors`."""

    def __init__(self, message, status=400):
        super().__init__(message)
        self.message = message
        self.status = status


def unfit(name, why):
    return Refused(f'Field validation failed: error converting input for field "{name}": {why}')


def text(fields, name):
    """A field that is a string; the empty one stands for a missing one."""
    value = fields.get(name)
    if isinstance(value, (list, dict)):
        raise unfit(name, "expected type 'string'")
    if isinstance(value, bool):
        value = int(value)
    return "" if value is None else str(value)


def number(fields, name, default=0):
    """A field that is a whole number, also one in a string; null is 0."""
    value = fields.get(name, default)
    if not re.fullmatch(r"[+-]?[0-9]+", text({name: value}, name) or "0"):
        raise unfit(name, "cannot parse value as 'int'")
    return int(value or 0)


def flag(fields, name):
    """A field that is true or false, also as a word or as 1 or 0."""
    value = str(fields.get(name) or "false").lower()
    if value not in ("true", "t", "1", "false", "f", "0"):
        raise unfit(name, "cannot parse value as 'bool'")
    return value in ("true", "t", "1")


def decoded(value):
    """Bytes of standard Base64 with padding; line ends in it do not matter."""
    try:
        return base64.b64decode(re.sub(r"[\r\n]", "", value), validate=True)
    except (binascii.Error, ValueError):
        # The real ones name the place; nobody should rely on it.
        raise Refused("illegal base64 data at input byte 0") from None


def encoded(data):
    return base64.b64encode(data).decode()


def stream(key, nonce, length):
    """The key stream that plaintext is combined with."""
    blocks = (length + 31) // 32
    parts = (hmac.digest(key, nonce + i.to_bytes(8, "big"), "sha256") for i in range(blocks))
    return b"".join(parts)[:length]


def combined(data, key, nonce):
    mask = int.from_bytes(stream(key, nonce, len(data)), "big")
    return (int.from_bytes(data, "big") ^ mask).to_bytes(len(data), "big")


def tag(key, nonce, associated, ciphertext):
    lengths = len(nonce).to_bytes(8, "big") + len(associated).to_bytes(8, "big")
    return hmac.digest(key, lengths + nonce + associated + ciphertext, hashlib.sha256)[:TAG_BYTES]


def sealed(key, nonce_bytes, plaintext, associated):
    """Nonce, ciphertext and tag."""
    nonce = os.urandom(nonce_bytes)
    ciphertext = combined(plaintext, hmac.digest(key, b"stream", "sha256"), nonce)
    return nonce + ciphertext + tag(hmac.digest(key, b"tag", "sha256"), nonce, associated, ciphertext)


def opened(key, nonce_bytes, data, associated):
    """The plaintext of what `sealed` made; refuses everything else."""
    if len(data) < nonce_bytes:
        raise Refused("invalid ciphertext length")
    nonce, ciphertext, found = data[:nonce_bytes], data[nonce_bytes:-TAG_BYTES], data[-TAG_BYTES:]
    expected = tag(hmac.digest(key, b"tag", "sha256"), nonce, associated, ciphertext)
    if len(data) < nonce_bytes + TAG_BYTES or not hmac.compare_digest(found, expected):
        raise Refused("cipher: message authentication failed")
    return combined(ciphertext, hmac.digest(key, b"stream", "sha256"), nonce)


class Key:
    """One named key. Its versions count from 1."""

    def __init__(self, name, kind="aes256-gcm96", derived=False):
        self.name = name
        self.kind = kind
        self.derived = derived
        self.deletion_allowed = False
        self.min_decryption_version = 1
        self.min_encryption_version = 0
        self.versions = []
        self.rotate()

    def rotate(self):
        self.versions.append({"key": encoded(os.urandom(32)), "created": int(time.time())})

    @property
    def latest_version(self):
        return len(self.versions)

    def description(self):
        """What a read of the key answers."""
        description = {
            "name": self.name,
            "type": self.kind,
            "derived": self.derived,
            "deletion_allowed": self.deletion_allowed,
            "min_available_version": 0,
            "min_decryption_version": self.min_decryption_version,
            "min_encryption_version": self.min_encryption_version,
            "latest_version": self.latest_version,
            "exportable": False,
            "allow_plaintext_backup": False,
            "supports_encryption": True,
            "supports_decryption": True,
            "supports_signing": False,
            "supports_derivation": True,
            "auto_rotate_period": 0,
            "imported_key": False,
            "soft_deleted": False,
            "keys": {
                str(version): self.versions[version - 1]["created"]
                for version in range(self.min_decryption_version, self.latest_version + 1)
            },
        }
        if self.derived:
            description |= {"kdf": "hkdf_sha256", "convergent_encryption": False}
        return description

    def encryption_key(self, version, context):
        key = base64.b64decode(self.versions[version - 1]["key"])
        if not self.derived:
            return key
        if not context:
            raise Refused(MISSING_CONTEXT)
        return hmac.digest(key, b"context" + context, "sha256")

    def encrypt(self, plaintext, context, associated, version):
        """A ciphertext, and the version of the key that made it (0 asks for the latest)."""
        if version < 0:
            raise Refused("requested version for encryption is negative")
        if version > self.latest_version:
            raise Refused("requested version for encryption is higher than the latest key version")
        if 0 < version < self.min_encryption_version:
            raise Refused("requested version for encryption is less than the minimum encryption key version")
        version = version or self.latest_version
        key = self.encryption_key(version, context)
        data = sealed(key, NONCE_BYTES[self.kind], plaintext, associated_bytes(associated))
        return f"{PREFIX}{version}:{encoded(data)}", version

    def decrypt(self, ciphertext, context, associated):
        if not ciphertext.startswith(PREFIX):
            raise Refused("invalid ciphertext: no prefix")
        version, colon, data = ciphertext[len(PREFIX) :].partition(":")
        if not colon:
            raise Refused("invalid ciphertext: wrong number of fields")
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", version):
            raise Refused("invalid ciphertext: version number could not be decoded")
        version = int(version) or 1
        if version > self.latest_version:
            raise Refused("invalid ciphertext: version is too new")
        if version < self.min_decryption_version:
            raise Refused("ciphertext or signature version is disallowed by policy (too old)")
        try:
            data = decoded(data)
        except Refused:
            raise Refused("invalid ciphertext: could not decode base64") from None
        key = self.encryption_key(version, context)
        return opened(key, NONCE_BYTES[self.kind], data, associated_bytes(associated))

    def configure(self, fields):
        """Changes what may be done with the key; nothing is changed when anything is refused."""
        decryption, encryption = self.min_decryption_version, self.min_encryption_version
        if "min_decryption_version" in fields:
            decryption = self.version_to_set(fields, "min_decryption_version", "decryption") or 1
        if "min_encryption_version" in fields:
            encryption = self.version_to_set(fields, "min_encryption_version", "encryption")
        if 0 < encryption < decryption:
            raise Refused(
                "cannot set min encryption/decryption values; min encryption version of "
                f"{encryption} must be greater than or equal to min decryption version of {decryption}"
            )
        if "deletion_allowed" in fields:
            self.deletion_allowed = flag(fields, "deletion_allowed")
        self.min_decryption_version, self.min_encryption_version = decryption, encryption

    def version_to_set(self, fields, name, what):
        version = number(fields, name)
        if version < 0:
            raise Refused(f"min {what} version cannot be negative")
        if version > self.latest_version:
            raise Refused(f"cannot set min {what} version of {version}, latest key version is {self.latest_version}")
        return version


def associated_bytes(associated):
    try:
        return decoded(associated)
    except Refused as refused:
        message = f"unable to get associated_data/additional_data from factory[0]: {refused.message}"
        raise Refused(message, status=500) from None


class Keyring:
    """All keys of one mount. Callers hold `lock` while they use a key."""

    def __init__(self):
        self.lock = threading.RLock()
        self.keys = {}

    def names(self):
        return sorted(self.keys)

    def existing(self, name, message="encryption key not found"):
        if name not in self.keys:
            raise Refused(message)
        return self.keys[name]

    def create(self, name, fields):
        """The key of that name; one that exists stays as it is."""
        kind = text(fields, "type") or "aes256-gcm96"
        derived = flag(fields, "derived")
        if kind not in NONCE_BYTES:
            raise Refused(f"unknown key type {kind}")
        if flag(fields, "convergent_encryption"):
            raise Refused("convergent encryption is not implemented by this test server")
        if name not in self.keys:
            self.keys[name] = Key(name, kind, derived)
        return self.keys[name]

    def delete(self, name):
        because = f"error deleting policy {name}: "
        if not self.existing(name, because + "could not delete key; not found").deletion_allowed:
            raise Refused(because + "deletion is not allowed for this key")
        del self.keys[name]

    def saved(self):
        return {name: vars(key) for name, key in self.keys.items()}

    def restore(self, saved):
        for name, attributes in saved.items():
            self.keys[name] = Key(name)
            vars(self.keys[name]).update(attributes)
