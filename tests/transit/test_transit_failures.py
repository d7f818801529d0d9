#!/usr/bin/env python3
"""What `transit_server.py` has beside the API: failures, counts, TLS, keys kept over restarts."""

import concurrent.futures
import http.client
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import unittest

import pytest
from transit_sites import ROOT_TOKEN, SERVER, OurServer


class Failures(unittest.TestCase):
    def setUp(self):
        self.server = OurServer("--key", "k")
        self.addCleanup(self.server.stop)
        self.site = self.server.site

    def data_key(self, **more):
        return self.site.transit("POST", "datakey/plaintext/k", {}, **more)

    def assertWorks(self):
        assert self.data_key().status == 200

    def test_slow_answers_are_right(self):
        self.server.fail("slow", seconds=1, count=2)
        for _ in range(2):
            began = time.monotonic()
            self.assertWorks()
            assert time.monotonic() - began >= 1
        began = time.monotonic()
        self.assertWorks()
        assert time.monotonic() - began < 0.9

    def test_slow_answers_do_not_hold_up_others(self):
        self.server.fail("slow", seconds=2, count=1)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            slow = pool.submit(self.data_key)
            time.sleep(0.2)
            began = time.monotonic()
            self.assertWorks()
            assert time.monotonic() - began < 1.5
            assert not slow.done()
            assert slow.result().status == 200

    def test_statuses_are_answered_without_doing_anything(self):
        for status, error in (
            ("403", "permission denied"),
            ("429", "request path is rate limited"),
            ("500", "internal error"),
            ("502", "bad gateway"),
            ("503", "service unavailable"),
        ):
            self.server.fail(status, count=1)
            answer = self.site.transit("POST", "keys/new", {})
            assert (answer.status, answer.body) == (int(status), {"errors": [error]})
            assert self.site.transit("GET", "keys/new").status == 404
            self.assertWorks()

    def test_without_a_count_a_failure_goes_on_until_it_is_ended(self):
        self.server.fail("500", count=None)
        assert [self.data_key().status for _ in range(5)] == [500] * 5
        self.server.fail("none")
        self.assertWorks()

    def test_a_hanging_request_goes_on_when_the_failure_ends(self):
        self.server.fail("hang")
        connection = self.site.connection(timeout_seconds=0.3)
        with pytest.raises(TimeoutError):
            self.data_key(connection=connection)
        connection.close()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            hanging = pool.submit(self.data_key)
            time.sleep(0.3)
            assert not hanging.done()
            self.server.fail("none")
            assert hanging.result(5).status == 200

    def test_one_request_can_hang_alone(self):
        self.server.fail("hang", count=1)
        connection = self.site.connection(timeout_seconds=0.3)
        with pytest.raises(TimeoutError):
            self.data_key(connection=connection)
        connection.close()
        self.assertWorks()

    def test_broken_answers_to_work_that_was_done(self):
        for kind, error in (
            ("reset", ConnectionResetError),
            ("garbage", ValueError),
            ("truncated", http.client.IncompleteRead),
        ):
            self.server.fail(kind, count=1)
            with pytest.raises(error):
                self.site.transit("POST", f"keys/{kind}", {})
            assert self.site.transit("GET", f"keys/{kind}").status == 200

    def test_a_failure_of_some_operations(self):
        self.server.fail("403", operations=["decrypt", "auth/approle/login"])
        self.assertWorks()
        assert self.site.transit("POST", "decrypt/k", {"ciphertext": "x"}).status == 403
        assert self.site.log_in().status == 403
        assert self.site.ask("GET", "/v1/sys/health", token=None).status == 200

    def test_states_of_a_server_that_forwards(self):
        for state, status, parameter in (
            ("standby", 429, "standbycode"),
            ("dr_secondary", 472, "drsecondarycode"),
            ("performance_standby", 473, "performancestandbycode"),
        ):
            self.server.fail(state)
            answer = self.site.ask("GET", "/v1/sys/health", token=None)
            assert (answer.status, answer.body["sealed"], answer.body["standby"]) == (status, False, True)
            answer = self.site.ask("GET", f"/v1/sys/health?{parameter}=298", token=None)
            assert answer.status == 298
            self.assertWorks()
        for state, parameter in (("standby", "standbyok"), ("performance_standby", "perfstandbyok")):
            self.server.fail(state)
            answer = self.site.ask("GET", f"/v1/sys/health?{parameter}=true", token=None)
            assert answer.status == 200

    def test_failures_that_make_no_sense_are_refused(self):
        self.server.fail("500", count=1)
        for wanted in (
            {},
            {"kind": "nonsense"},
            {"kind": "slow", "seconds": "x"},
            {"kind": "slow", "seconds": -1},
            {"kind": "500", "count": 0},
            {"kind": "500", "operations": "decrypt"},
        ):
            answer = self.site.ask("POST", "/_test/failure", wanted, token=None)
            assert (answer.status, len(answer.errors)) == (400, 1), wanted
        assert self.data_key().status == 500  # the one before is still in force

    def test_requests_are_counted(self):
        assert self.server.operations() == {}
        self.site.transit("POST", "datakey/plaintext/k", {})
        self.site.transit("PUT", "datakey/wrapped/k", {})
        ciphertext = self.site.transit("POST", "encrypt/k", {"plaintext": ""}).data["ciphertext"]
        for _ in range(3):
            self.site.transit("POST", "decrypt/k", {"ciphertext": ciphertext})
        self.site.transit("POST", "rewrap/k", {"ciphertext": ciphertext})
        self.site.transit("GET", "keys?list=true")
        self.site.transit("GET", "keys/k")
        self.site.transit("POST", "keys/k/rotate")
        self.site.log_in()
        self.site.ask("GET", "/v1/sys/health")
        self.site.ask("GET", "/v1/nothing")
        self.server.fail("503", count=1)
        self.data_key()
        self.data_key(token="wrong")
        expected = {
            "datakey/plaintext": 3,
            "datakey/wrapped": 1,
            "encrypt": 1,
            "decrypt": 3,
            "rewrap": 1,
            "keys/list": 1,
            "keys/read": 1,
            "keys/rotate": 1,
            "auth/approle/login": 1,
            "sys/health": 1,
            "nothing": 1,
        }
        answer = self.site.ask("GET", "/_test/requests", token=None)
        assert answer.body == {"total": 15, "operations": expected}

    def test_tokens_of_log_ins_can_be_revoked(self):
        token = self.site.log_in().body["auth"]["client_token"]
        assert self.data_key(token=token).status == 200
        assert self.site.ask("POST", "/_test/revoke", token=None).status == 204
        assert self.data_key(token=token).status == 403
        self.assertWorks()
        token = self.site.log_in().body["auth"]["client_token"]
        assert self.data_key(token=token).status == 200

    def test_tokens_of_log_ins_end_when_the_clock_moves_on(self):
        auth = self.site.log_in().body["auth"]
        token, seconds = auth["client_token"], auth["lease_duration"]
        ahead = lambda seconds: self.site.ask("POST", "/_test/clock", {"ahead_seconds": seconds}, token=None).status
        assert ahead(seconds - 60) == 204 and self.data_key(token=token).status == 200
        assert ahead(60) == 204 and self.data_key(token=token).status == 403

    def test_it_ends_on_sigterm_even_with_requests_that_hang(self):
        server = OurServer("--key", "k")
        server.fail("hang")
        connection = server.site.connection()
        connection.request("POST", "/v1/transit/datakey/plaintext/k", "{}", {"X-Vault-Token": ROOT_TOKEN})
        time.sleep(0.2)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 5
        connection.close()


class Options(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="atoll-transit-options-")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def start(self, *options, **more):
        server = OurServer(*options, **more)
        self.addCleanup(server.stop)
        return server

    def test_keys_are_kept_over_restarts(self):
        path = os.path.join(self.directory, "state.json")
        first = self.start("--state", path, "--key", "k", "--key", "gone")
        plaintext = first.site.transit("POST", "datakey/plaintext/k", {}).data
        token = first.site.log_in().body["auth"]["client_token"]
        first.site.transit("POST", "keys/k/rotate")
        first.site.transit("POST", "keys/derived", {"derived": True})
        first.site.transit("POST", "encrypt/upserted", {"plaintext": ""})
        first.site.transit("POST", "keys/gone/config", {"deletion_allowed": True})
        first.site.transit("DELETE", "keys/gone")
        first.process.process.kill()  # what was answered is kept, however it ends
        second = self.start("--state", path, "--key", "k").site
        assert second.transit("LIST", "keys").data["keys"] == ["derived", "k", "upserted"]
        assert second.transit("GET", "keys/k").data["latest_version"] == 2
        assert second.transit("GET", "keys/derived").data["derived"]
        answer = second.transit("POST", "decrypt/k", {"ciphertext": plaintext["ciphertext"]})
        assert answer.data["plaintext"] == plaintext["plaintext"]
        assert second.transit("GET", "keys/k", token=token).status == 403

    def test_servers_do_not_share_keys(self):
        first, second = self.start("--key", "k").site, self.start("--key", "k").site
        ciphertext = first.transit("POST", "datakey/wrapped/k", {}).data["ciphertext"]
        assert second.transit("POST", "decrypt/k", {"ciphertext": ciphertext}).status == 400

    def test_tls(self):
        certificate, key = (os.path.join(self.directory, name) for name in ("certificate.pem", "key.pem"))
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        command += ["-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=localhost"]
        command += ["-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(command, check=True, capture_output=True)
        trusting = ssl.create_default_context(cafile=certificate)
        site = self.start("--tls-cert", certificate, "--tls-key", key, "--key", "k", tls=trusting).site
        # Who connects and says nothing holds nobody up.
        silent = socket.create_connection(("127.0.0.1", site.port))
        self.addCleanup(silent.close)
        connection = site.connection()
        for _ in range(3):
            answer = site.transit("POST", "datakey/plaintext/k", {}, connection=connection)
            assert answer.status == 200
        connection.close()
        site.tls = ssl.create_default_context()
        with pytest.raises(ssl.SSLCertVerificationError):
            site.transit("GET", "keys/k")
        site.tls = None
        with pytest.raises((http.client.BadStatusLine, ConnectionError)):
            site.transit("GET", "keys/k")
        site.tls = trusting
        assert site.transit("GET", "keys/k").status == 200

    def test_options_that_are_refused(self):
        for options in (
            [],
            ["--listen", "nonsense"],
            ["--listen", "127.0.0.1:0", "--approle", "no-secret"],
            ["--listen", "127.0.0.1:0", "--tls-cert", "x"],
        ):
            ended = subprocess.run([sys.executable, str(SERVER), *options], capture_output=True, timeout=20)
            assert ended.returncode == 2, options


if __name__ == "__main__":
    unittest.main()
