"""The initiator's side of `Noise_IK_25519_AESGCM_SHA256`: good for the first message to an OSD, with the right key
or a wrong one."""

import hashlib
import hmac
import json
import os
import socket

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

GREETING = b"ATOLL\0\0\x0b"


class Initiator:
    """Makes the first message of a handshake to a responder whose public key is known."""

    def __init__(self, remote, private=None, prologue=GREETING):
        self.private, self.remote = private_key(private or os.urandom(32)), X25519PublicKey.from_public_bytes(remote)
        self.h = self.ck = b"Noise_IK_25519_AESGCM_SHA256".ljust(32, b"\0")
        self.k, self.n = None, 0
        self._mix_hash(prologue)
        self._mix_hash(remote)

    def _mix_hash(self, data):
        self.h = hashlib.sha256(self.h + data).digest()

    def _mix_key(self, private):
        temporary = hmac.digest(self.ck, private.exchange(self.remote), "sha256")
        self.ck = hmac.digest(temporary, b"\1", "sha256")
        self.k, self.n = hmac.digest(temporary, self.ck + b"\2", "sha256"), 0

    def _seal(self, plaintext):
        sealed = AESGCM(self.k).encrypt(bytes(4) + self.n.to_bytes(8, "big"), plaintext, self.h)
        self.n += 1
        self._mix_hash(sealed)
        return sealed

    def first_message(self, payload=b"\1"):
        """Greeting, length and message: tokens e, es, s, ss and the payload (the frame mode)."""
        ephemeral = X25519PrivateKey.generate()
        message = ephemeral.public_key().public_bytes_raw()
        self._mix_hash(message)
        self._mix_key(ephemeral)
        message += self._seal(self.private.public_key().public_bytes_raw())
        self._mix_key(self.private)
        message += self._seal(payload)
        return GREETING + len(message).to_bytes(2, "big") + message


def private_key(raw):
    return X25519PrivateKey.from_private_bytes(raw)


def knock(port, first, seconds):
    """Sends the first message of a handshake; returns the answer and whether the OSD closed."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.settimeout(seconds)
        connection.sendall(first)
        answer = b""
        try:
            while part := connection.recv(4096):
                answer += part
            return answer, True
        except ConnectionResetError:
            return answer, True
        except TimeoutError:
            return answer, False


def etcdctl(cluster):
    """The command that speaks to a cluster's state, and its environment."""
    settings = json.loads((cluster.data / "cluster.json").read_text())
    login = f"{settings['state_user']}:{settings['state_password']}"
    environment = dict(cluster.scenario.environment, ETCDCTL_API="3")
    return ["etcdctl", "--endpoints", settings["state_endpoints"][0], "--user", login], environment


def osd_public_keys(cluster):
    """Public keys by OSD, from cluster state."""
    command, environment = etcdctl(cluster)
    done = cluster.scenario.run(*command, "get", "--prefix", "/atoll/osds/", "--print-value-only", env=environment)
    records = [json.loads(line) for line in done.stdout.splitlines() if line.strip()]
    return {f"osd.{record['id']}": bytes.fromhex(record["public_key"]) for record in records}


def client_key(cluster, name="client"):
    """A role's private key."""
    return bytes.fromhex((cluster.data / "keys" / f"{name}.key").read_text().strip())
