"""The host's side of TLS under NVMe/TCP: keys and identities by hashlib, and a connection by `openssl s_client`."""

import base64
import hashlib
import hmac
import os
import select
import struct
import subprocess
import zlib

HASHES = {1: "sha256", 2: "sha384"}
CIPHERS = {1: b"\x13\x01", 2: b"\x13\x02"}


def key_text(number, key):
    """The text of a configured key; 0 for none, 1 for SHA-256, 2 for SHA-384."""
    return f"NVMeTLSkey-1:{number:02}:{base64.b64encode(key + struct.pack('<I', zlib.crc32(key))).decode()}:"


def key_of(text):
    """Number and bytes of a configured key."""
    prefix, number, encoded, rest = text.strip().split(":")
    key, check = base64.b64decode(encoded)[:-4], base64.b64decode(encoded)[-4:]
    assert (prefix, rest) == ("NVMeTLSkey-1", "") and check == struct.pack("<I", zlib.crc32(key)), "no key"
    return int(number), key


def standard_info(length, label, context):
    """RFC 8446, section 7.1."""
    label = b"tls13 " + label
    return struct.pack(">HB", length, len(label)) + label + bytes([len(context)]) + context


def old_info(length, label, context):
    """libnvme up to 1.15."""
    return struct.pack("<H", length) + b"tls13 " + label + context


def _expand_label(name, key, label, context, info):
    length = hashlib.new(name).digest_size
    extracted = hmac.new(bytes(length), key, name).digest()
    return hmac.new(extracted, info(length, label, context) + b"\1", name).digest()


class Psk:
    """What a configured key gives for a host and a subsystem."""

    def __init__(self, text, host, subsystem, version=0, info=standard_info):
        transform, key = key_of(text)
        self.number = transform or {32: 1, 48: 2}[len(key)]
        name = HASHES[self.number]
        retained = _expand_label(name, key, b"HostNQN", host.encode(), info) if transform else key
        self.identity = f"NVMe{version}R{self.number:02} {host} {subsystem}"
        context = self.identity
        if version:
            named = f"{host} {subsystem} NVMe-over-Fabrics".encode()
            digest = base64.b64encode(hmac.new(retained, named, name).digest()).decode()
            self.identity, context = f"{self.identity} {digest}", f"{self.number:02} {digest}"
        self.key = _expand_label(name, retained, b"nvme-tls-psk", context.encode(), info)

    def session(self):
        """The key as a session of OpenSSL in PEM, which tells the cipher suite, and so the hash function."""
        octets = lambda value: b"\x04" + bytes([len(value)]) + value
        fields = b"\x02\x01\x01\x02\x02\x03\x04" + octets(CIPHERS[self.number]) + octets(b"") + octets(self.key)
        lines = base64.encodebytes(b"\x30" + bytes([len(fields)]) + fields).decode()
        return f"-----BEGIN SSL SESSION PARAMETERS-----\n{lines}-----END SSL SESSION PARAMETERS-----\n"


class TlsSocket:
    """What a socket does, through TLS."""

    def __init__(self, scenario, address, psk, timeout=60, options=()):
        file = scenario.directory / "session.pem"
        if psk.number == 1:
            key = ("-psk", psk.key.hex())
        else:
            file.write_text(psk.session())
            # OpenSSL 3.0 fails with these, also at its own server, if it is asked for another group than its first.
            key = ("-psk_session", file, "-groups", "P-256")
        self.timeout = timeout
        self.client = scenario.start(
            *("openssl", "s_client", "-connect", f"{address[0]}:{address[1]}", "-quiet"),
            *(options or ("-tls1_3",)),
            *("-psk_identity", psk.identity, *key),
            stdin=subprocess.PIPE,
            text=False,
            errors=None,
            bufsize=0,
        )

    def sendall(self, data):
        rest = memoryview(data)
        while rest:
            rest = rest[self.client.stdin.write(rest) :]

    def recv(self, length):
        ready, _, _ = select.select([self.client.stdout], [], [], self.timeout)
        if not ready:
            raise TimeoutError("nothing has come through TLS")
        return os.read(self.client.stdout.fileno(), length)

    def close(self):
        self.client.kill()
        self.client.communicate()

    def refused(self):
        """What the client says of a handshake that fails."""
        assert self.recv(1) == b"", "bytes have come through TLS"
        said = self.client.communicate(timeout=self.timeout)[1]
        return said.decode(errors="replace")


def dialer(scenario, psk, **options):
    """How lib.nvme connects with this key."""
    return lambda address, timeout: TlsSocket(scenario, address, psk, timeout, **options)
