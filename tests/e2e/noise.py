"""The initiator's side of `Noise_IK_25519_AESGCM_SHA256` in plain Python: slow, and only good for
knocking at an OSD's door with the wrong key."""
import hashlib, hmac, os

PRIME = 2**255 - 19
GREETING = b"ATOLL\0\0\x03"


def x25519(scalar, point):
    """RFC 7748, section 5."""
    k = bytearray(scalar)
    k[0] &= 248
    k[31] = k[31] & 127 | 64
    k, x1 = int.from_bytes(k, "little"), int.from_bytes(point, "little") & (2**255 - 1)
    x2, z2, x3, z3, swap = 1, 0, x1, 1, 0
    for bit in reversed(range(255)):
        now = k >> bit & 1
        if swap ^ now:
            x2, x3, z2, z3 = x3, x2, z3, z2
        swap = now
        a, b, c, d = x2 + z2, x2 - z2, x3 + z3, x3 - z3
        aa, bb, da, cb = a * a % PRIME, b * b % PRIME, d * a % PRIME, c * b % PRIME
        e = aa - bb
        x3, z3 = (da + cb) ** 2 % PRIME, x1 * (da - cb) ** 2 % PRIME
        x2, z2 = aa * bb % PRIME, e * (aa + 121665 * e) % PRIME
    if swap:
        x2, z2 = x3, z3
    return (x2 * pow(z2, PRIME - 2, PRIME) % PRIME).to_bytes(32, "little")


BASE_POINT = (9).to_bytes(32, "little")


def _make_sbox():
    box, p, q = [0x63] * 256, 1, 1
    while True:
        p = (p ^ p << 1 ^ (0x11B if p & 0x80 else 0)) & 0xFF
        q ^= q << 1
        q ^= q << 2
        q ^= q << 4
        q &= 0xFF
        if q & 0x80:
            q ^= 0x09
        rotated = q ^ (q << 1 | q >> 7) ^ (q << 2 | q >> 6) ^ (q << 3 | q >> 5) ^ (q << 4 | q >> 4)
        box[p] = (rotated ^ 0x63) & 0xFF
        if p == 1:
            return box


SBOX = _make_sbox()


def _double(byte):
    return (byte << 1 ^ (0x1B if byte & 0x80 else 0)) & 0xFF


def aes256_block(key, block):
    words, round_constant = [list(key[i:i + 4]) for i in range(0, 32, 4)], 1
    while len(words) < 60:
        word = list(words[-1])
        if len(words) % 8 == 0:
            word = [SBOX[b] for b in word[1:] + word[:1]]
            word[0] ^= round_constant
            round_constant = _double(round_constant)
        elif len(words) % 8 == 4:
            word = [SBOX[b] for b in word]
        words.append([a ^ b for a, b in zip(word, words[-8])])
    keys = [sum(words[i:i + 4], []) for i in range(0, 60, 4)]
    state = [a ^ b for a, b in zip(block, keys[0])]
    for number in range(1, 15):
        state = [SBOX[state[(i + 4 * (i % 4)) % 16]] for i in range(16)]
        if number < 14:
            mixed = []
            for i in range(0, 16, 4):
                a = state[i:i + 4]
                whole = a[0] ^ a[1] ^ a[2] ^ a[3]
                mixed += [a[j] ^ whole ^ _double(a[j] ^ a[(j + 1) % 4]) for j in range(4)]
            state = mixed
        state = [a ^ b for a, b in zip(state, keys[number])]
    return bytes(state)


def gcm_seal(key, nonce, plaintext, data):
    """AES-256-GCM, NIST SP 800-38D, with a 96-bit nonce."""
    def counter(number):
        return aes256_block(key, nonce + number.to_bytes(4, "big"))

    stream = b"".join(counter(2 + i) for i in range(-(-len(plaintext) // 16)))
    text = bytes(a ^ b for a, b in zip(plaintext, stream))
    h, y = int.from_bytes(aes256_block(key, bytes(16)), "big"), 0
    padded = data + bytes(-len(data) % 16) + text + bytes(-len(text) % 16) + (len(data) * 8).to_bytes(8, "big") + (len(text) * 8).to_bytes(8, "big")
    for i in range(0, len(padded), 16):
        x, v, z = y ^ int.from_bytes(padded[i:i + 16], "big"), h, 0
        for bit in reversed(range(128)):
            if x >> bit & 1:
                z ^= v
            v = v >> 1 ^ (0xE1 << 120 if v & 1 else 0)
        y = z
    return text + bytes(a ^ b for a, b in zip(counter(1), y.to_bytes(16, "big")))


class Initiator:
    """Makes the first message of a handshake to a responder whose public key is known."""

    def __init__(self, remote, private=None, prologue=GREETING):
        self.private, self.remote = private or os.urandom(32), remote
        name = b"Noise_IK_25519_AESGCM_SHA256"
        self.h = self.ck = name.ljust(32, b"\0")
        self.k, self.n = None, 0
        self._mix_hash(prologue)
        self._mix_hash(remote)

    def _mix_hash(self, data):
        self.h = hashlib.sha256(self.h + data).digest()

    def _mix_key(self, secret):
        temporary = hmac.digest(self.ck, secret, "sha256")
        self.ck = hmac.digest(temporary, b"\1", "sha256")
        self.k, self.n = hmac.digest(temporary, self.ck + b"\2", "sha256"), 0

    def _seal(self, plaintext):
        sealed = gcm_seal(self.k, bytes(4) + self.n.to_bytes(8, "big"), plaintext, self.h)
        self.n += 1
        self._mix_hash(sealed)
        return sealed

    def first_message(self, payload=b"\1"):
        """Greeting, length and message: tokens e, es, s, ss and the payload (the frame mode)."""
        ephemeral = os.urandom(32)
        public = x25519(ephemeral, BASE_POINT)
        self._mix_hash(public)
        self._mix_key(x25519(ephemeral, self.remote))
        message = public + self._seal(x25519(self.private, BASE_POINT))
        self._mix_key(x25519(self.private, self.remote))
        message += self._seal(payload)
        return GREETING + len(message).to_bytes(2, "big") + message


def self_test():
    # RFC 7748, section 5.2, and NIST's AES-256-GCM test cases 13 and 15.
    scalar = bytes.fromhex("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4")
    point = bytes.fromhex("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c")
    assert x25519(scalar, point).hex() == "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552"
    assert gcm_seal(bytes(32), bytes(12), b"", b"").hex() == "530f8afbc74536b9a963b4f1c4cb738b"
    assert gcm_seal(bytes(32), bytes(12), bytes(16), b"").hex() == "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"


if __name__ == "__main__":
    self_test()
    print("ok")
