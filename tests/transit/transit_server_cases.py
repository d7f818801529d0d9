"""Cases about tokens, paths, states and namespaces, for any Transit server."""

import base64
import concurrent.futures
import re
import time

from transit_key_cases import ENVELOPE, UNSUPPORTED_PATH
from transit_sites import ROOT_TOKEN

SHORT_TTL_SECONDS = 3
SHORT_MAX_TTL_SECONDS = 7
UNSUPPORTED_OPERATION = "1 error occurred:\n\t* unsupported operation\n\n"


def wait_until(what, condition, seconds=15):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not after {seconds} s: {what}"
        time.sleep(0.05)


class ServerCases:
    """`site` is the one that is asked, which `seal`, `unseal` and `uninitialized` concern; `team` is one
    in a namespace; the tokens of `short` end soon."""

    # Tokens

    def test_without_a_good_token_everything_is_denied(self):
        name = self.key()
        for token in (None, "wrong", "s.aaaaaaaaaaaaaaaaaaaaaaaa"):
            self.assertDenied(self.site.transit("POST", f"datakey/plaintext/{name}", {}, token=token))
            self.assertDenied(self.site.transit("POST", f"decrypt/{name}", {"ciphertext": "x"}, token=token))
            self.assertDenied(self.site.transit("GET", f"keys/{name}", token=token))
            self.assertDenied(self.site.ask("GET", "/v1/no-such-mount/x", token=token))
            self.assertDenied(self.site.ask("GET", "/v1/auth/token/lookup-self", token=token))
            self.assertDenied(self.site.ask("POST", "/v1/auth/token/renew-self", {}, token=token))

    def test_a_token_as_bearer(self):
        headers = {"Authorization": f"Bearer {ROOT_TOKEN}"}
        answer = self.site.transit("GET", f"keys/{self.key()}", token=None, headers=headers)
        assert answer.status == 200

    def test_logging_in(self):
        name = self.key()
        for method, token in (("POST", None), ("PUT", "whatever")):
            answer = self.site.ask(method, "/v1/auth/approle/login", self.site.role, token=token)
            assert answer.status == 200
            assert set(answer.body) == ENVELOPE
            assert answer.data is None
            auth = answer.body["auth"]
            assert {"client_token", "accessor", "policies", "token_policies", "metadata", "entity_id"} <= set(auth)
            assert (auth["renewable"], auth["token_type"], auth["orphan"]) == (True, "service", True)
            assert auth["lease_duration"] > 600
            token = auth["client_token"]
            assert self.site.transit("POST", f"datakey/wrapped/{name}", {}, token=token).status == 200

    def test_log_ins_that_are_refused(self):
        role_id, secret_id = self.site.role["role_id"], self.site.role["secret_id"]
        invalid = "invalid role or secret ID"
        for fields, error in (
            ({"role_id": "x"}, invalid),
            ({"role_id": "x", "secret_id": secret_id}, invalid),
            ({"role_id": role_id, "secret_id": "x"}, invalid),
            ({"role_id": role_id}, "missing secret_id"),
        ):
            self.assertRefused(self.site.ask("POST", "/v1/auth/approle/login", fields, token=None), 400, error)
        answer = self.site.ask("POST", "/v1/auth/approle/login", {}, token=None)
        assert answer.status in (400, 500)  # Vault says 400, OpenBao 500
        assert answer.errors == ["missing role_id"]

    def test_looking_up_a_token(self):
        token = self.site.log_in().body["auth"]["client_token"]
        data = self.site.ask("GET", "/v1/auth/token/lookup-self", token=token).data
        assert (data["id"], data["path"], data["type"]) == (token, "auth/approle/login", "service")
        assert (data["renewable"], data["num_uses"], data["orphan"]) == (True, 0, True)
        assert data["creation_ttl"] > 600
        assert data["creation_ttl"] - 60 < data["ttl"]
        assert re.search(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$", data["expire_time"])
        assert abs(data["creation_time"] - time.time()) <= 60
        data = self.site.ask("GET", "/v1/auth/token/lookup-self").data
        assert (data["ttl"], data["expire_time"], data["renewable"]) == (0, None, False)
        assert data["policies"] == ["root"]

    def test_the_root_token_cannot_be_renewed(self):
        answer = self.site.ask("POST", "/v1/auth/token/renew-self", {})
        self.assertRefused(answer, 400, "lease is not renewable")

    def test_tokens_end_unless_renewed(self):
        kept, left = (self.short.log_in().body["auth"] for _ in range(2))
        assert kept["lease_duration"] == SHORT_TTL_SECONDS
        look = lambda: self.short.ask("GET", "/v1/auth/token/lookup-self", token=left["client_token"])
        wait_until("both are about to end", lambda: look().data["ttl"] <= 1)
        answer = self.short.ask("PUT", "/v1/auth/token/renew-self", {}, token=kept["client_token"])
        assert (answer.status, answer.data, answer.body["warnings"]) == (200, None, None)
        assert answer.body["auth"]["client_token"] == kept["client_token"]
        assert answer.body["auth"]["lease_duration"] == SHORT_TTL_SECONDS
        ask = lambda token: self.short.transit("GET", "keys/none", token=token["client_token"])
        wait_until("the other one has ended", lambda: ask(left).status == 403)
        self.assertRefused(ask(kept), 404)
        self.assertDenied(ask(left))
        self.assertDenied(self.short.ask("POST", "/v1/auth/token/renew-self", {}, token=left["client_token"]))
        self.assertDenied(self.short.ask("GET", "/v1/auth/token/lookup-self", token=left["client_token"]))

    def test_tokens_end_at_last_although_renewed(self):
        token = self.short.log_in().body["auth"]["client_token"]
        began = time.monotonic()
        fields = {"increment": "1h"}
        answer = self.short.ask("POST", "/v1/auth/token/renew-self", fields, token=token)
        assert answer.status == 200
        assert answer.body["auth"]["lease_duration"] <= SHORT_MAX_TTL_SECONDS
        assert "exceeded the effective max_ttl" in answer.body["warnings"][0]
        ask = lambda: self.short.transit("GET", "keys/none", token=token)
        while time.monotonic() - began < SHORT_TTL_SECONDS + 0.5:
            self.assertRefused(ask(), 404)
            time.sleep(0.1)
        assert self.short.ask("POST", "/v1/auth/token/renew-self", {}, token=token).status == 200
        wait_until("it ends", lambda: ask().status == 403)
        assert SHORT_MAX_TTL_SECONDS - 1 < time.monotonic() - began < SHORT_MAX_TTL_SECONDS + 2
        self.assertDenied(ask())
        assert self.short.log_in().status == 200

    def test_a_renewal_can_ask_for_less(self):
        token = self.site.log_in().body["auth"]["client_token"]
        for increment in (30, "30", "30s"):
            answer = self.site.ask("POST", "/v1/auth/token/renew-self", {"increment": increment}, token=token)
            assert (answer.status, answer.body["auth"]["lease_duration"]) == (200, 30)
        answer = self.site.ask("POST", "/v1/auth/token/renew-self", {"increment": "x"}, token=token)
        assert answer.status == 400

    def test_a_token_can_revoke_itself(self):
        token = self.site.log_in().body["auth"]["client_token"]
        answer = self.site.ask("POST", "/v1/auth/token/revoke-self", {}, token=token)
        assert (answer.status, answer.body) == (204, None)
        self.assertDenied(self.site.ask("GET", "/v1/auth/token/lookup-self", token=token))

    # Paths and bodies

    def test_paths_that_are_not_there(self):
        name = self.key()
        for method, path, status, errors in (
            ("GET", "/v1/no-such-mount/x", 404, ['no handler for route "no-such-mount/x". route entry not found.']),
            ("GET", "/nothing", 404, []),
            ("GET", "/v1/transit/nothing", 404, [UNSUPPORTED_PATH]),
            ("POST", f"/v1/transit/keys/{name}/nothing", 404, [UNSUPPORTED_PATH]),
            ("POST", "/v1/transit/datakey/wrapped/a%20b", 404, [UNSUPPORTED_PATH]),
            ("GET", "/v1/transit/keys/%2e%2e", 400, ["relative paths not supported"]),
            ("GET", "/v1/transit/keys", 405, [UNSUPPORTED_OPERATION]),
            ("GET", f"/v1/transit/datakey/wrapped/{name}", 405, [UNSUPPORTED_OPERATION]),
            ("GET", f"/v1/transit/keys/{name}/rotate", 405, [UNSUPPORTED_OPERATION]),
            ("DELETE", f"/v1/transit/encrypt/{name}", 405, [UNSUPPORTED_OPERATION]),
        ):
            self.assertRefused(self.site.ask(method, path), status, *errors)

    def test_bodies_that_are_no_json(self):
        path = f"datakey/wrapped/{self.key()}"
        for body in (b"{", b"[]", b"{}x", b"\xff\xfe", b'"x"', b"5", b"[" * 10_000):
            answer = self.site.transit("POST", path, body)
            assert (answer.status, len(answer.errors)) == (400, 1), body[:10]
        for body in (b"", b"null", b" { } "):
            assert self.site.transit("POST", path, body).status == 200, body
        connection = self.site.connection()
        for parts in ([b'{"bi', b'ts": 1', b"28}"], []):
            answer = self.site.transit("POST", path, iter(parts), connection=connection)
            assert answer.status == 200, parts
        answer = self.site.transit("POST", path, iter([b"{", b"x"]), connection=connection)
        assert answer.status == 400
        connection.close()
        answer = self.site.transit("POST", path, b" " * (33 << 20))
        self.assertRefused(answer, 413, "http: request body too large")

    def test_one_connection_serves_many_requests(self):
        path = f"datakey/plaintext/{self.key()}"
        connection = self.site.connection()
        connection.connect()
        port = connection.sock.getsockname()[1]
        began = time.monotonic()
        for _ in range(100):
            assert self.site.transit("POST", path, {}, connection=connection).status == 200
            self.assertRefused(self.site.transit("GET", "keys/none", connection=connection), 404)
            self.assertDenied(self.site.transit("GET", "keys/none", token="x", connection=connection))
        assert connection.sock.getsockname()[1] == port
        # With Nagle's algorithm against delayed acknowledgements each would take 40 ms.
        assert time.monotonic() - began < 300 * 0.03
        connection.close()

    def test_many_clients_at_once(self):
        name = self.key()

        def one(i):
            data = self.site.transit("POST", f"datakey/plaintext/{name}", {}).data
            if i % 20 == 0:
                self.site.transit("POST", f"keys/{name}/rotate")
            return self.decrypt(name, data["ciphertext"]) == base64.b64decode(data["plaintext"])

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            assert list(pool.map(one, range(200))) == [True] * 200
        assert self.site.transit("GET", f"keys/{name}").data["latest_version"] == 11

    # Health

    def test_health_of_an_active_server(self):
        for token in (None, "wrong", ROOT_TOKEN):
            answer = self.site.ask("GET", "/v1/sys/health", token=token)
            assert answer.status == 200
            body = answer.body
            assert (body["initialized"], body["sealed"], body["standby"]) == (True, False, False)
            assert abs(body["server_time_utc"] - time.time()) <= 60
            assert {"version", "cluster_name", "cluster_id"} <= set(body)
        answer = self.site.ask("HEAD", "/v1/sys/health", token=None)
        assert (answer.status, answer.body) == (200, None)
        assert self.site.ask("GET", "/v1/sys/health?activecode=299", token=None).status == 299
        self.assertRefused(self.site.ask("GET", "/v1/sys/health?activecode=x", token=None), 400)
        self.assertRefused(self.site.ask("GET", "/v1/sys/health?standbyok=maybe", token=None), 400)
        self.assertRefused(self.site.ask("POST", "/v1/sys/health", {}, token=None), 405)

    def test_a_sealed_server_does_nothing(self):
        name = self.key()
        ciphertext = self.encrypt(name)
        self.seal()
        try:
            answer = self.site.ask("GET", "/v1/sys/health", token=None)
            assert answer.status == 503
            body = answer.body
            assert (body["initialized"], body["sealed"], body["standby"]) == (True, True, True)
            assert "cluster_id" not in body
            assert self.site.ask("HEAD", "/v1/sys/health", token=None).status == 503
            assert self.site.ask("GET", "/v1/sys/health?sealedcode=298", token=None).status == 298
            for answer in (
                self.site.transit("POST", f"datakey/plaintext/{name}", {}),
                self.site.transit("POST", f"datakey/plaintext/{name}", {}, token="wrong"),
                self.site.transit("GET", f"keys/{name}"),
                self.site.log_in(),
                self.site.ask("POST", "/v1/auth/token/renew-self", {}),
                self.site.ask("GET", "/v1/no-such-mount/x"),
            ):
                self.assertRefused(answer, 503, "Vault is sealed")
        finally:
            self.unseal()
        assert self.decrypt(name, ciphertext) == b"plaintext"

    def test_a_server_that_was_never_initialized(self):
        site = self.uninitialized()
        answer = site.ask("GET", "/v1/sys/health", token=None)
        assert answer.status == 501
        assert (answer.body["initialized"], answer.body["sealed"]) == (False, True)
        self.assertRefused(site.transit("GET", "keys/x"), 503, "Vault is sealed")

    # Namespaces

    def test_namespaces(self):
        if self.team is None:
            self.skipTest("this server has no namespaces")
        assert self.team.transit("POST", "keys/k", {}).status == 200
        mount = self.team.mount
        for path, namespace in (
            (f"{mount}/keys/k", "team"),
            (f"{mount}/keys/k", "team/"),
            (f"{mount}/keys/k", "/team"),
            (f"team/{mount}/keys/k", ""),
        ):
            assert self.team.ask("GET", f"/v1/{path}", namespace=namespace).status == 200
        for path, namespace in (
            (f"{mount}/keys/k", ""),
            (f"team/{mount}/keys/k", "team"),
            (f"other/{mount}/keys/k", ""),
        ):
            answer = self.team.ask("GET", f"/v1/{path}", namespace=namespace)
            self.assertRefused(answer, 404, f'no handler for route "{path}". route entry not found.')
        self.assertRefused(self.team.transit("GET", "keys/k", namespace="other"), 404, "namespace not found")
        self.assertDenied(self.team.transit("GET", "keys/k", token="wrong"))
        answer = self.team.ask("GET", "/v1/sys/health", token=None)
        self.assertRefused(answer, 400, "operation unavailable in namespaces")
        assert self.team.ask("GET", "/v1/sys/health", token=None, namespace="").status == 200

    def test_tokens_are_good_in_their_namespace_alone(self):
        if self.team is None:
            self.skipTest("this server has no namespaces")
        self.team.transit("POST", "keys/k", {})
        token = self.team.log_in().body["auth"]["client_token"]
        assert self.team.transit("GET", "keys/k", token=token).status == 200
        path = f"/v1/team/{self.team.mount}/keys/k"
        assert self.team.ask("GET", path, token=token, namespace="").status == 200
        several = "1 error occurred:\n\t* permission denied\n\n"
        self.assertRefused(self.team.transit("GET", "keys/k", token=token, namespace=""), 403, several)
        for namespace in ("team", ""):
            answer = self.team.ask("GET", "/v1/auth/token/lookup-self", token=token, namespace=namespace)
            assert (answer.status, answer.data["namespace_path"]) == (200, "team/")
            answer = self.team.ask("POST", "/v1/auth/token/renew-self", {}, token=token, namespace=namespace)
            assert answer.status == 200
        for path, namespace, status in (
            ("/v1/auth/approle/login", "", 400),
            ("/v1/auth/approle/login", "other", 404),
            ("/v1/team/auth/approle/login", "", 200),
        ):
            answer = self.team.ask("POST", path, self.team.role, token=None, namespace=namespace)
            assert answer.status == status
