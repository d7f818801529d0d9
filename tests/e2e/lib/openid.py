"""A provider of OpenID Connect over TLS on this host, and a browser without a screen that logs in by it."""

import base64
import copy
import hashlib
import http.client
import http.server
import json
import pathlib
import secrets
import ssl
import sys
import threading
import time
import urllib.parse

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "crates" / "s3" / "tests"))

import oidc_issuer
from oidc_issuer import base64url

CALLBACK = "/session/oidc/callback"


class Provider:
    """Logs in `person` without asking. It checks what a client must send, and answers as its fields say."""

    def __init__(self, port, client_secret):
        # Another site than that of the console, for browsers.
        self.issuer = f"https://localhost:{port}/realms/staff"
        self.client_id, self.client_secret = "atoll-console", client_secret
        self.redirect_uris, self.codes, self.asked = set(), {}, []
        # Who answers for a code in place of this one.
        self.of_code = {}
        self.keys = [oidc_issuer.RsaKey("rsa"), oidc_issuer.EcKey("ec")]
        self.person = {"sub": "s-1", "preferred_username": "ann", "groups": ["disks"]}
        self.forget_tricks()

    def forget_tricks(self):
        """Honest again."""
        self.more_claims, self.header, self.key, self.text = {}, {}, self.keys[0], None
        self.token_status, self.token_body, self.token_pause_seconds = 200, None, 0

    def tricked(self, path):
        """A copy of this one that answers for the code in a path, so that it can be dishonest while others log in."""
        code = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)["code"][0]
        self.of_code[code] = copy.copy(self)
        return self.of_code[code]

    def discovery(self):
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize?tenant=a",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "authorization_response_iss_parameter_supported": True,
        }

    def authorize(self, query):
        """Where the browser goes next, with a code for what the client has asked."""
        expected = {
            "response_type": "code",
            "client_id": self.client_id,
            "code_challenge_method": "S256",
            "tenant": "a",
        }
        assert {name: query[name] for name in expected} == expected, query
        assert query["redirect_uri"] in self.redirect_uris, f"not registered: {query['redirect_uri']}"
        assert "openid" in query["scope"].split() and len(query["state"]) >= 32 and len(query["nonce"]) >= 32
        code = secrets.token_urlsafe(16)
        self.codes[code] = query
        answer = {"code": code, "state": query["state"], "iss": self.issuer}
        return query["redirect_uri"] + "?" + urllib.parse.urlencode(answer)

    def token(self, authorization, form):
        """The answer to a code, which counts once."""
        user, _, password = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")
        client = tuple(map(urllib.parse.unquote_plus, (user, password)))
        if not authorization.startswith("Basic ") or client != (self.client_id, self.client_secret):
            return 401, {"error": "invalid_client"}
        asked = self.codes.pop(form["code"], None)
        challenge = base64url(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        if asked is None or challenge != asked["code_challenge"] or form["redirect_uri"] != asked["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        return 200, {"access_token": "none", "token_type": "Bearer", "id_token": self.text or self.id_token(asked)}

    def id_token(self, asked):
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": self.client_id, "iat": now, "exp": now + 60, "nonce": asked["nonce"]}
        claims = claims | self.person | self.more_claims
        claims = {name: value for name, value in claims.items() if value is not None}
        return oidc_issuer.token(self.key, claims, **self.header)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        provider, parts = self.server.provider, urllib.parse.urlsplit(self.path)
        provider.asked.append(parts.path)
        path = parts.path.removeprefix("/realms/staff")
        if path == "/authorize":
            location = provider.authorize(dict(urllib.parse.parse_qsl(parts.query)))
            return self.answer(302, b"", Location=location)
        documents = {
            "/.well-known/openid-configuration": provider.discovery,
            "/keys": lambda: {"keys": [key.public() for key in provider.keys]},
        }
        if path not in documents:
            return self.answer(404, b"")
        return self.answer(200, json.dumps(documents[path]()).encode())

    def do_POST(self):
        provider = self.server.provider
        provider.asked.append(self.path)
        form = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        provider = provider.of_code.get(form.get("code"), provider)
        status, document = provider.token(self.headers.get("Authorization", ""), form)
        time.sleep(provider.token_pause_seconds)
        if provider.token_body is not None:
            return self.answer(provider.token_status, provider.token_body)
        return self.answer(status, json.dumps(document).encode())

    def answer(self, status, body, **headers):
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, authority, client_secret="a_secret_/_of_+_the_client"):
        certificate, key = authority.directory / "openid.pem", authority.directory / "openid-key.pem"
        authority.sign(certificate, key, "serverAuth")
        super().__init__(("127.0.0.1", 0), Handler)
        self.provider = Provider(self.server_address[1], client_secret)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.thread = threading.Thread(target=self.serve_forever, daemon=True)
        self.thread.start()

    def handle_error(self, *_):
        """Clients may go away."""

    def end(self):
        self.shutdown()
        self.server_close()
        self.thread.join()


class Answer:
    def __init__(self, answer):
        self.status, self.headers, self.body = answer.status, answer.headers, answer.read()
        self.location, self.cookies = answer.headers.get("Location"), answer.headers.get_all("Set-Cookie") or []

    def __repr__(self):
        return f"{self.status} {self.cookies} {self.location} {self.body[:200]}"


class Visitor:
    """A browser: it keeps cookies by their names, and follows redirects only when it is told to. `source` is its own
    address, if that is to be another than 127.0.0.1."""

    def __init__(self, address, source=None):
        self.address, self.cookies = address, {}
        self.source = source and (source, 0)

    def get(self, path, **headers):
        """One request to the console."""
        console = urllib.parse.urlsplit(self.address.origin)
        context = ssl.create_default_context(cafile=self.address.ca_file)
        connection = http.client.HTTPSConnection(
            console.hostname, console.port, timeout=30, context=context, source_address=self.source
        )
        cookies = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection.request("GET", path, headers=({"Cookie": cookies} if cookies else {}) | headers)
        answer = Answer(connection.getresponse())
        connection.close()
        for cookie in answer.cookies:
            name, _, value = cookie.split(";")[0].partition("=")
            if "Max-Age=0" in cookie:
                self.cookies.pop(name, None)
            else:
                self.cookies[name] = value
        return answer

    def begin(self, path="/session/oidc", **headers):
        return self.get(path, **headers)

    def at_provider(self, provider, begun):
        """Logs in at the provider, which sends the browser back: to a path of the console."""
        assert begun.status == 303, f"{begun}"
        url = urllib.parse.urlsplit(begun.location)
        assert begun.location.startswith(provider.issuer + "/authorize?"), begun.location
        location = provider.authorize(dict(urllib.parse.parse_qsl(url.query)))
        assert location.startswith(self.address.origin + CALLBACK + "?"), location
        return location.removeprefix(self.address.origin)

    def log_in(self, provider):
        return self.get(self.at_provider(provider, self.begin()))
