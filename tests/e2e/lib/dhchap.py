"""The host's side of DH-HMAC-CHAP (NVM Express Base Specification 2.0, section 8.13.5), with Python's own hashes and
numbers: nothing of it is Atoll's."""

import base64
import hashlib
import hmac
import secrets
import struct
import zlib

HASHES = {1: hashlib.sha256, 2: hashlib.sha384, 3: hashlib.sha512}
NEGOTIATE, CHALLENGE, REPLY, SUCCESS1, SUCCESS2, FAILURE1 = (0, 0), (1, 1), (1, 2), (1, 3), (1, 4), (0, 0xF1)
# RFC 7919, appendix A: 2^b - 2^(b-64) + (floor(2^(b-130) e) + X) 2^64 - 1.
GROUPS = {0: None, 1: (2048, 560316), 2: (3072, 2625351), 3: (4096, 5736041), 4: (6144, 15705020), 5: (8192, 10965728)}


class Refused(Exception):
    """The controller has ended the authentication; the explanation that it gives."""

    def __init__(self, explanation):
        super().__init__(f"failure with explanation {explanation}")
        self.explanation = explanation


def prime(bits, addend):
    # e by its series, with bits to spare.
    scale, term, total, number = 1 << bits, 1 << bits, 0, 0
    while term:
        total += term
        number += 1
        term //= number
    e = total * (1 << (bits - 130)) // scale
    return (1 << bits) - (1 << (bits - 64)) + ((e + addend) << 64) - 1


def key_of(secret, name):
    """The key that a secret DHHC-1:HH:...: is for whoever has this name."""
    _, kind, encoded, _ = secret.split(":")
    decoded = base64.b64decode(encoded)
    data, check = decoded[:-4], decoded[-4:]
    assert zlib.crc32(data) == struct.unpack("<I", check)[0], "the secret's check value"
    return hmac.new(data, name.encode() + b"NVMe-over-Fabrics", HASHES[int(kind)]).digest() if int(kind) else data


def negotiate(transaction, hashes, groups, secure_channel=0):
    descriptor = struct.pack("<BxBB30s30s", 1, len(hashes), len(groups), bytes(hashes), bytes(groups))
    return struct.pack("<BBxxHBB", *NEGOTIATE, transaction, secure_channel, 1) + descriptor


def expect(message, kind):
    if tuple(message[:2]) == FAILURE1:
        raise Refused(message[7])
    assert tuple(message[:2]) == kind, message[:16]


def authenticate(
    send, receive, host, subsystem, secret, controller_secret=None, hashes=(1, 2, 3), groups=(0, 1, 2, 3, 4, 5)
):
    """Proves that this is the host; with a secret of the controller, wants that proved, too. Returns hash and group."""
    transaction = secrets.randbelow(1 << 16)
    send(negotiate(transaction, hashes, groups))
    message = receive()
    expect(message, CHALLENGE)
    length, identifier, group, public_bytes, sequence = struct.unpack("<BxBBHI", message[6:16])
    hash_function = HASHES[identifier]
    assert length == hash_function().digest_size and sequence
    challenge, theirs = message[16 : 16 + length], message[16 + length : 16 + length + public_bytes]
    public, session_key = b"", None
    if group:
        p = prime(*GROUPS[group])
        assert public_bytes == p.bit_length() // 8
        private = secrets.randbits(400)
        public = pow(2, private, p).to_bytes(public_bytes, "big")
        session_key = pow(int.from_bytes(theirs, "big"), private, p).to_bytes(public_bytes, "big")

    def proof(key, text, own, other, challenge, sequence):
        if session_key:
            challenge = hmac.new(hash_function(session_key).digest(), challenge, hash_function).digest()
        data = challenge + struct.pack("<IHB", sequence, transaction, 0) + text + own.encode() + b"\0" + other.encode()
        return hmac.new(key, data, hash_function).digest()

    response = proof(key_of(secret, host), b"HostHost", host, subsystem, challenge, sequence)
    own_challenge, own_sequence = secrets.token_bytes(length), secrets.randbelow(1 << 32)
    fields = struct.pack(
        "<BBxxHBxBxHI", *REPLY, transaction, length, bool(controller_secret), len(public), own_sequence
    )
    send(fields + response + own_challenge + public)
    message = receive()
    expect(message, SUCCESS1)
    assert message[8] == bool(controller_secret)
    if controller_secret:
        key = key_of(controller_secret, subsystem)
        expected = proof(key, b"Controller", subsystem, host, own_challenge, own_sequence)
        assert hmac.compare_digest(message[16 : 16 + length], expected), "the controller does not hold its secret"
        send(struct.pack("<BBxxH10x", *SUCCESS2, transaction))
    return identifier, group
