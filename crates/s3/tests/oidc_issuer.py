"""A small issuer of OpenID Connect tokens on this host, for iam.py."""

import base64
import contextlib
import http.server
import json
import threading
import time

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def number(value, size):
    return base64url(value.to_bytes(size, "big"))


class RsaKey:
    algorithm = "RS256"

    def __init__(self, name, bits=2048):
        self.name, self.key = name, rsa.generate_private_key(65_537, bits)

    def public(self):
        numbers, size = self.key.public_key().public_numbers(), self.key.key_size // 8
        return {"kty": "RSA", "kid": self.name, "use": "sig", "n": number(numbers.n, size), "e": number(numbers.e, 3)}

    def sign(self, text):
        return self.key.sign(text, padding.PKCS1v15(), hashes.SHA256())


class EcKey:
    algorithm = "ES256"

    def __init__(self, name):
        self.name, self.key = name, ec.generate_private_key(ec.SECP256R1())

    def public(self):
        numbers = self.key.public_key().public_numbers()
        place = {"x": number(numbers.x, 32), "y": number(numbers.y, 32)}
        return {"kty": "EC", "crv": "P-256", "kid": self.name, "alg": "ES256"} | place

    def sign(self, text):
        parts = decode_dss_signature(self.key.sign(text, ec.ECDSA(hashes.SHA256())))
        return b"".join(part.to_bytes(32, "big") for part in parts)


def token(key, claims, **header):
    header = {"alg": key.algorithm, "kid": key.name, "typ": "JWT"} | header
    text = ".".join(base64url(json.dumps(part).encode()) for part in (header, claims)).encode()
    return text.decode() + "." + base64url(key.sign(text))


class Issuer:
    """Publishes the public halves of `keys`; `asked` are the paths it was asked for."""

    def __init__(self, url):
        self.url, self.keys, self.asked = url, [RsaKey("rsa"), EcKey("ec")], []
        self.discovery = {"issuer": url, "jwks_uri": url + "/keys"}

    def document(self, path):
        self.asked.append(path)
        if path == "/Realms/a/.well-known/openid-configuration":
            return self.discovery
        odd = {"kty": "unheard of", "kid": "odd"}
        return {"keys": [odd] + [key.public() for key in self.keys]} if path == "/Realms/a/keys" else None

    def claims(self, **more):
        now = int(time.time())
        times = {"iat": now, "nbf": now, "exp": now + 300}
        claims = {"iss": self.url, "sub": "project:main", "aud": "atoll"} | times | more
        return {name: value for name, value in claims.items() if value is not None}

    def token(self, key=None, **more):
        return token(key or self.keys[0], self.claims(**more))


@contextlib.contextmanager
def issuer():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            document = self.server.issuer.document(self.path)
            self.send_response(404 if document is None else 200)
            body = json.dumps(document).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.issuer = Issuer(f"http://127.0.0.1:{server.server_address[1]}/Realms/a")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.issuer
        finally:
            server.shutdown()
            thread.join()
