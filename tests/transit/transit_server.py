#!/usr/bin/env python3
"""A small Transit server for tests, faithful to what OpenBao answers (and HashiCorp Vault, of which
OpenBao is a fork): `tests/transit/test_transit_server.py` holds it against the real one.

It keeps nothing secret and is for tests alone. Ciphertexts are not made by AES-GCM but by an HMAC in
counter mode (`transit_keys.py`); they cannot be told apart, but neither server opens the other's.

Beside the API there are, without a token:

    POST /_test/failure {"kind": "slow", "seconds": 3, "count": 2, "operations": ["decrypt"]}
        What the next `count` requests under /v1/ meet (without end if it is null), those of other
        `operations` excepted. Kinds: `none` ends it; `slow` answers late; `hang` answers when the
        failure ends; `reset`, `garbage` and `truncated` break the answer after the work was done;
        403, 429, 500, 502 and 503 are answered without doing it; `sealed` and `uninitialized`
        are states in which nothing is done; `standby`, `dr_secondary` and `performance_standby`
        are states that only sys/health shows, as that of a server that forwards requests.
    GET /_test/requests
        How many requests there were of each operation, also of those that failed.
    POST /_test/clock {"ahead_seconds": 60}
        Tokens are so much older from now on.
    POST /_test/revoke
        Takes back every token that came from a log-in.

What it lacks: policies (a token may do everything or nothing), asymmetric and convergent keys,
response wrapping, leases, warnings of unknown fields, several namespaces at once.
"""

import argparse
import http.server
import json
import os
import re
import signal
import ssl
import sys
import threading
import time
import urllib.parse
import uuid

from transit_failures import REFUSING_STATES, STATES, STATUSES, Counts, Failures, reset
from transit_keys import Keyring, Refused
from transit_operations import Answer, operation_at
from transit_tokens import Clock, Tokens

MAX_BODY_BYTES = 32 << 20
IDLE_TIMEOUT_SECONDS = 300
MONTH_SECONDS = 32 * 24 * 3600


class Vault:
    """The state of the server, and what it answers, apart from HTTP."""

    def __init__(self, options):
        self.mount = options.mount.strip("/")
        self.namespace = options.namespace.strip("/")
        self.state_path = options.state
        self.failures = Failures()
        self.counts = Counts()
        self.tokens = Tokens(options.token, options.approle, options.token_ttl, options.token_max_ttl)
        self.cluster_id = str(uuid.uuid4())
        self.keyring = Keyring()
        self.saved = None
        if self.state_path and os.path.exists(self.state_path):
            with open(self.state_path) as file:
                self.keyring.restore(json.load(file))
        for name in options.key:
            self.keyring.create(name, {})
        self.save()

    def save(self):
        """Writes the keys to the state file if they have changed."""
        saved = json.dumps(self.keyring.saved())
        if not self.state_path or saved == self.saved:
            return
        with open(self.state_path + ".new", "w") as file:
            file.write(saved)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self.state_path + ".new", self.state_path)
        self.saved = saved

    def resolve(self, header, path):
        """The namespace of a request, and its path there: the header's and the path's together."""
        header = header.strip("/")
        if header and not (self.namespace + "/").startswith(header + "/"):
            raise Refused("namespace not found", status=404)
        whole = f"{header}/{path}" if header else path
        if self.namespace and whole.startswith(self.namespace + "/"):
            return self.namespace, whole[len(self.namespace) + 1 :]
        return header, path

    def transit_path(self, path):
        """The path below the Transit mount; None for what is elsewhere."""
        prefix = self.mount + "/"
        return path[len(prefix) :] if path.startswith(prefix) else None

    def operation_name(self, method, path):
        """The name by which a request is counted, whatever becomes of it."""
        if self.namespace and path.startswith(self.namespace + "/"):
            path = path[len(self.namespace) + 1 :]
        below = self.transit_path(path)
        try:
            return path if below is None else operation_at(method, below)[0]
        except Refused:
            return "other"

    def answer(self, method, path, fields, header, token):
        """Does what a request asks for."""
        namespace, path = self.resolve(header, path)
        if path == "auth/approle/login":
            if namespace != self.namespace:
                raise Refused("invalid role or secret ID")
            return Answer(auth=self.tokens.log_in(namespace, fields).auth())
        token = self.tokens.alive(token)
        if path.startswith("auth/token/"):
            return self.answer_token(method, path, fields, token)
        if token.namespace not in ("", namespace):
            raise Refused(several("permission denied"), status=403)
        below = self.transit_path(path)
        if below is None or namespace != self.namespace:
            raise Refused(f'no handler for route "{path}". route entry not found.', status=404)
        return self.answer_transit(method, below, fields)

    def answer_token(self, method, path, fields, token):
        if (method, path) == ("GET", "auth/token/lookup-self"):
            return Answer(token.description())
        if (method, path) == ("POST", "auth/token/renew-self"):
            warnings = self.tokens.renew(token, fields)
            return Answer(auth=token.auth(), warnings=warnings)
        if (method, path) == ("POST", "auth/token/revoke-self"):
            self.tokens.revoke(token)
            return Answer(status=204)
        raise Refused(several("unsupported path"), status=404)

    def answer_transit(self, method, path, fields):
        try:
            _, operation = operation_at(method, path)
            with self.keyring.lock:
                answer = operation(self.keyring, fields)
                self.save()
                return answer
        except Refused as refused:
            if refused.message and refused.status != 400:
                refused.message = several(refused.message)
            raise

    def health(self, query, state):
        """The status and the body of `sys/health` in that state."""
        status, parameter = STATES.get(state, (200, "activecode"))
        fine = {"standby": boolean(query, "standbyok"), "performance_standby": boolean(query, "perfstandbyok")}
        if fine.get(state):
            status, parameter = 200, "activecode"
        for name in {parameter, *(name for _, name in STATES.values()), "activecode"}:
            if name in query and not re.fullmatch(r"-?\d+", query[name]):
                raise Refused(None)
        status = int(query.get(parameter, status))
        closed = state in REFUSING_STATES
        body = {
            "initialized": state != "uninitialized",
            "sealed": closed,
            "standby": closed or state in STATES,
            "replication_performance_mode": "unknown" if closed else "disabled",
            "replication_dr_mode": "unknown" if closed else "disabled",
            "server_time_utc": int(time.time()),
            "version": "2.6.2",
        }
        if not closed:
            body |= {"cluster_name": "transit-test", "cluster_id": self.cluster_id}
        return status, body


def several(message):
    """How the real ones tell most errors that are not the client's."""
    return f"1 error occurred:\n\t* {message}\n\n"


def boolean(query, name):
    value = query.get(name, "false").lower()
    if value not in ("true", "t", "1", "false", "f", "0", ""):
        raise Refused(None)
    return value in ("true", "t", "1")


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    timeout = IDLE_TIMEOUT_SECONDS

    def handle_request(self):
        self.damage = None
        try:
            body = self.read_body()
            url = urllib.parse.urlsplit(self.path)
            if url.path.startswith("/_test/"):
                self.control(url.path, body)
            elif url.path.startswith("/v1/"):
                query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
                self.serve(urllib.parse.unquote(url.path[len("/v1/") :]), query, body)
            else:
                raise Refused(None, status=404)
        except Refused as refused:
            self.send_refusal(refused)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_LIST = handle_request

    def read_body(self):
        """The whole body, read even if it is refused, since closing before that resets the connection."""
        body = bytearray()
        try:
            for part in self.body_parts():
                if len(body) <= MAX_BODY_BYTES:
                    body += part
        except ValueError:
            self.close_connection = True
            raise Refused("the body is not what its headers say") from None
        if len(body) > MAX_BODY_BYTES:
            self.close_connection = True
            raise Refused("http: request body too large", status=413)
        return bytes(body)

    def body_parts(self):
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            yield from self.parts_of(int(self.headers.get("Content-Length") or 0))
            return
        while (length := int(self.rfile.readline(100).partition(b";")[0], 16)) > 0:
            yield from self.parts_of(length)
            self.rfile.readline(100)
        self.rfile.readline(100)

    def parts_of(self, length):
        while length > 0:
            part = self.rfile.read(min(length, 1 << 20))
            if not part:
                raise ValueError
            length -= len(part)
            yield part

    def serve(self, path, query, body):
        """A request of the API, with whatever failure is in force."""
        vault = self.server.vault
        method = {"PUT": "POST"}.get(self.command, self.command)
        if method == "GET" and boolean(query, "list"):
            method = "LIST"
        if method == "LIST" and not path.endswith("/"):
            path += "/"
        operation = vault.operation_name(method, path)
        vault.counts.add(operation)
        kind, seconds = vault.failures.take(operation)
        if kind == "slow":
            time.sleep(seconds)
        if kind == "hang":
            vault.failures.wait()
        if kind in STATUSES:
            raise Refused(STATUSES[kind], status=int(kind))
        if kind in ("reset", "garbage", "truncated"):
            self.damage = kind
        if path == "sys/health":
            return self.serve_health(query, kind)
        fields = parsed(body) if method == "POST" else {}
        if kind in REFUSING_STATES:
            raise Refused("Vault is sealed", status=503)
        if any(part in (".", "..") for part in path.split("/")):
            raise Refused("relative paths not supported")
        header = self.headers.get("X-Vault-Namespace", "")
        self.send_answer(vault.answer(method, path, fields, header, self.token()))
        return None

    def serve_health(self, query, state):
        if self.headers.get("X-Vault-Namespace"):
            raise Refused("operation unavailable in namespaces")
        if self.command not in ("GET", "HEAD"):
            raise Refused(None, status=405)
        status, body = self.server.vault.health(query, state)
        self.send(status, body)

    def token(self):
        authorization = self.headers.get("Authorization", "")
        return self.headers.get("X-Vault-Token") or authorization.removeprefix("Bearer ")

    def control(self, path, body):
        """The side channel of tests."""
        vault = self.server.vault
        if (self.command, path) == ("GET", "/_test/requests"):
            return self.send(200, vault.counts.all())
        if (self.command, path) == ("POST", "/_test/revoke"):
            vault.tokens.revoke_log_ins()
            return self.send(204, None)
        if (self.command, path) == ("POST", "/_test/clock"):
            Clock.ahead_seconds += float(parsed(body)["ahead_seconds"])
            return self.send(204, None)
        if (self.command, path) == ("POST", "/_test/failure"):
            try:
                vault.failures.set(parsed(body))
            except ValueError as error:
                raise Refused(str(error)) from None
            return self.send(204, None)
        raise Refused(
            "there are POST /_test/failure, /_test/clock and /_test/revoke, and GET /_test/requests", status=404
        )

    def send_answer(self, answer):
        if answer.data is None and answer.auth is None:
            return self.send(answer.status, None)
        self.send(
            answer.status,
            {
                "request_id": str(uuid.uuid4()),
                "lease_id": "",
                "renewable": False,
                "lease_duration": 0,
                "data": answer.data,
                "wrap_info": None,
                "warnings": answer.warnings,
                "auth": answer.auth,
            },
        )
        return None

    def send_refusal(self, refused):
        self.send(refused.status, {"errors": [refused.message] if refused.message else []})

    def send(self, status, value):
        body = b"" if value is None else json.dumps(value, separators=(",", ":")).encode() + b"\n"
        if self.damage == "reset":
            self.close_connection = True
            return reset(self.connection)
        if self.damage == "garbage":
            body = b"<html>\x00\xff this is not what you asked for"
        self.send_response(status)
        self.send_header("Cache-Control", "no-store")
        if body:
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
        elif status != 204:
            self.send_header("Content-Length", "0")
        self.end_headers()
        if self.damage == "truncated":
            self.close_connection = True
            body = body[: len(body) // 2]
        if self.command != "HEAD":
            self.wfile.write(body)
        return None

    def log_message(self, *arguments):
        pass


def refuse_constant(name):
    raise ValueError(f"{name} is no JSON")


def parsed(body):
    """The fields of a request; nothing at all stands for none."""
    try:
        fields = json.loads(body, parse_constant=refuse_constant) if body.strip() else {}
    except (ValueError, RecursionError) as error:
        raise Refused(f"failed to decode JSON input: {error}") from None
    if fields is None:
        return {}
    if not isinstance(fields, dict):
        raise Refused(f"failed to decode JSON input: a map is needed, not {type(fields).__name__}")
    return fields


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address, vault, tls):
        self.vault = vault
        super().__init__(address, Handler)
        if tls is not None:
            # The handshake is done by the thread of the connection.
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def handle_error(self, request, client_address):
        error = sys.exc_info()[1]
        if not isinstance(error, (ConnectionError, ssl.SSLError, TimeoutError)):
            super().handle_error(request, client_address)


def pair(value):
    role_id, colon, secret_id = value.partition(":")
    if not (role_id and colon and secret_id):
        raise argparse.ArgumentTypeError("must be ROLE_ID:SECRET_ID")
    return role_id, secret_id


def address(value):
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit():
        raise argparse.ArgumentTypeError("must be ADDRESS:PORT")
    return host.strip("[]"), int(port)


def options():
    parser = argparse.ArgumentParser(description="A Transit server for tests.")
    parser.add_argument("--listen", type=address, required=True, help="ADDRESS:PORT, port 0 for any")
    parser.add_argument("--tls-cert", help="PEM file with the certificate and its chain")
    parser.add_argument("--tls-key", help="PEM file with the certificate's private key")
    parser.add_argument("--token", default="root", help="the token that may do everything (root)")
    parser.add_argument("--mount", default="transit", help="path of the Transit mount (transit)")
    parser.add_argument("--namespace", default="", help="where the mount and the role are; the root if absent")
    parser.add_argument("--key", action="append", default=[], help="a key to create, if it is not there")
    parser.add_argument("--approle", type=pair, help="ROLE_ID:SECRET_ID of the role that may log in")
    parser.add_argument("--token-ttl", type=int, default=MONTH_SECONDS, help="seconds that a log-in lasts")
    parser.add_argument("--token-max-ttl", type=int, default=MONTH_SECONDS, help="seconds, renewals included")
    parser.add_argument("--state", help="file that keeps the keys over restarts")
    chosen = parser.parse_args()
    if bool(chosen.tls_cert) != bool(chosen.tls_key):
        parser.error("--tls-cert and --tls-key go together")
    return chosen


def main():
    chosen = options()
    tls = None
    if chosen.tls_cert:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(chosen.tls_cert, chosen.tls_key)
    server = Server(chosen.listen, Vault(chosen), tls)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, lambda *_: stopping.set())
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    host, port = server.server_address[:2]
    print(f"listening on {'https' if tls else 'http'}://{host}:{port}", flush=True)
    stopping.wait()
    server.shutdown()


if __name__ == "__main__":
    main()
