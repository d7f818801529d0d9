#!/usr/bin/env python3
"""What clients can rely on in a Transit server, asked of `transit_server.py`, and of a real OpenBao or
Vault if ATOLL_TEST_BAO names its binary: the same cases, so that ours is shown to be faithful."""

import base64
import concurrent.futures
import os
import time
import unittest

from transit_sites import ROOT_TOKEN, OurServer, RealServer, Site

REAL_BINARY = os.environ.get("ATOLL_TEST_BAO")
SHORT_TTL_SECONDS = 3
SHORT_MAX_TTL_SECONDS = 7
UNSUPPORTED_PATH = "1 error occurred:\n\t* unsupported path\n\n"
UNSUPPORTED_OPERATION = "1 error occurred:\n\t* unsupported operation\n\n"
NOT_AUTHENTIC = "cipher: message authentication failed"
ENVELOPE = {
    "request_id", "lease_id", "renewable", "lease_duration", "data", "wrap_info", "warnings", "auth"
}  # fmt: skip


def b64(data):
    return base64.b64encode(data).decode()


class Cases:
    """The cases. `site` is an ordinary one, `team` one in a namespace, `short` one whose tokens end soon
    and which has no keys; `seal` and `unseal` are of the server of `site`."""

    def key(self, **options):
        """The name of a new key, for this test alone."""
        name = f"{self.id().split('.')[-1]}-{os.urandom(4).hex()}"
        self.assertEqual(self.site.transit("POST", f"keys/{name}", options).status, 200)
        return name

    def encrypt(self, key, plaintext=b"plaintext", **more):
        answer = self.site.transit("POST", f"encrypt/{key}", {"plaintext": b64(plaintext), **more})
        self.assertEqual(answer.status, 200, answer)
        return answer.data["ciphertext"]

    def decrypt(self, key, ciphertext, **more):
        answer = self.site.transit("POST", f"decrypt/{key}", {"ciphertext": ciphertext, **more})
        self.assertEqual(answer.status, 200, answer)
        return base64.b64decode(answer.data["plaintext"])

    def assertRefused(self, answer, status, *errors):
        self.assertEqual((answer.status, answer.body), (status, {"errors": list(errors)}))

    def assertDenied(self, answer):
        self.assertRefused(answer, 403, "permission denied")

    # Keys

    def test_a_key_is_created_and_read(self):
        before = int(time.time())
        name = self.key()
        answer = self.site.transit("GET", f"keys/{name}")
        self.assertEqual(answer.status, 200)
        self.assertEqual(set(answer.body), ENVELOPE)
        self.assertEqual(answer.headers["Content-Type"], "application/json")
        self.assertEqual(answer.headers["Cache-Control"], "no-store")
        self.assertLessEqual(before, answer.data["keys"]["1"])
        self.assertLessEqual(answer.data["keys"]["1"], time.time())
        expected = {
            "name": name,
            "type": "aes256-gcm96",
            "derived": False,
            "latest_version": 1,
            "min_available_version": 0,
            "min_decryption_version": 1,
            "min_encryption_version": 0,
            "deletion_allowed": False,
            "exportable": False,
            "allow_plaintext_backup": False,
            "supports_encryption": True,
            "supports_decryption": True,
            "supports_derivation": True,
            "supports_signing": False,
            "auto_rotate_period": 0,
            "imported_key": False,
            "keys": {"1": answer.data["keys"]["1"]},
        }
        self.assertEqual({field: answer.data.get(field) for field in expected}, expected)

    def test_a_derived_key_says_so(self):
        data = self.site.transit("GET", f"keys/{self.key(derived=True)}").data
        self.assertEqual((data["derived"], data["kdf"], data["convergent_encryption"]), (True, "hkdf_sha256", False))

    def test_keys_are_listed(self):
        names = {self.key(), self.key()}
        for answer in (
            self.site.transit("LIST", "keys"),
            self.site.transit("LIST", "keys/"),
            self.site.transit("GET", "keys?list=true"),
            self.site.transit("GET", "keys/?list=1"),
        ):
            self.assertEqual(answer.status, 200)
            self.assertLessEqual(names, set(answer.data["keys"]))
            self.assertEqual(answer.data["keys"], sorted(answer.data["keys"]))

    def test_no_keys_are_not_found(self):
        self.assertRefused(self.short.transit("LIST", "keys"), 404)
        self.assertRefused(self.short.transit("GET", "keys/none"), 404)

    def test_creating_a_key_again_changes_nothing(self):
        name = self.key()
        ciphertext = self.encrypt(name)
        answer = self.site.transit("PUT", f"keys/{name}", {"derived": True, "type": "chacha20-poly1305"})
        self.assertEqual((answer.status, answer.data["derived"], answer.data["type"]), (200, False, "aes256-gcm96"))
        self.assertEqual(self.decrypt(name, ciphertext), b"plaintext")

    def test_kinds_of_keys_and_the_lengths_of_ciphertexts(self):
        for kind, nonce_bytes in (
            ("aes128-gcm96", 12),
            ("aes256-gcm96", 12),
            ("chacha20-poly1305", 12),
        ):
            name = self.key(type=kind)
            ciphertext = self.encrypt(name, b"x" * 100)
            self.assertTrue(ciphertext.startswith("vault:v1:"))
            self.assertEqual(len(base64.b64decode(ciphertext[9:])), nonce_bytes + 100 + 16)
            self.assertEqual(self.decrypt(name, ciphertext), b"x" * 100)
        answer = self.site.transit("POST", "keys/of-no-type", {"type": "nonsense"})
        self.assertRefused(answer, 400, "unknown key type nonsense")

    def test_a_key_is_deleted_only_if_that_is_allowed(self):
        name = self.key()
        forbidden = f"error deleting policy {name}: deletion is not allowed for this key"
        self.assertRefused(self.site.transit("DELETE", f"keys/{name}"), 400, forbidden)
        answer = self.site.transit("POST", f"keys/{name}/config", {"deletion_allowed": True})
        self.assertEqual((answer.status, answer.data["deletion_allowed"]), (200, True))
        answer = self.site.transit("DELETE", f"keys/{name}")
        self.assertEqual((answer.status, answer.body), (204, None))
        self.assertRefused(self.site.transit("GET", f"keys/{name}"), 404)
        missing = f"error deleting policy {name}: could not delete key; not found"
        self.assertRefused(self.site.transit("DELETE", f"keys/{name}"), 400, missing)
        answer = self.site.transit("POST", f"decrypt/{name}", {"ciphertext": "vault:v1:AAAA"})
        self.assertRefused(answer, 400, "encryption key not found")

    # Data keys

    def test_data_keys(self):
        name = self.key()
        for fields, size in ((None, 32), ({}, 32), ({"bits": 128}, 16), ({"bits": "256"}, 32), ({"bits": 512}, 64)):
            answer = self.site.transit("POST", f"datakey/plaintext/{name}", fields)
            self.assertEqual(answer.status, 200, answer)
            self.assertEqual(set(answer.body), ENVELOPE)
            self.assertEqual(set(answer.data), {"ciphertext", "plaintext", "key_version"})
            plaintext = base64.b64decode(answer.data["plaintext"], validate=True)
            self.assertEqual((len(plaintext), answer.data["key_version"]), (size, 1))
            self.assertEqual(self.decrypt(name, answer.data["ciphertext"]), plaintext)

    def test_wrapped_data_keys_come_without_plaintext(self):
        name = self.key()
        seen = set()
        for method in ("POST", "PUT"):
            answer = self.site.transit(method, f"datakey/wrapped/{name}", {})
            self.assertEqual(set(answer.data), {"ciphertext", "key_version"})
            seen.add(self.decrypt(name, answer.data["ciphertext"]))
        self.assertEqual({len(plaintext) for plaintext in seen}, {32})
        self.assertEqual(len(seen), 2)

    def test_data_keys_that_are_refused(self):
        name = self.key()
        for path, fields, status, error in (
            (f"wrapped/{name}", {"bits": 192}, 400, "invalid bit length"),
            (f"wrapped/{name}", {"bits": None}, 400, "invalid bit length"),
            (f"wrapped/{name}", {"context": "!"}, 400, "failed to base64-decode context"),
            (f"wrapped/{name}", {"key_version": -1}, 400, "requested version for encryption is negative"),
            (f"other/{name}", {}, 400, "Invalid path, must be 'plaintext' or 'wrapped'"),
            ("wrapped/no-such-key", {}, 400, "encryption key not found"),
            (f"wrapped/{name}/more", {}, 404, UNSUPPORTED_PATH),
        ):
            self.assertRefused(self.site.transit("POST", f"datakey/{path}", fields), status, error)
        for fields in ({"bits": "x"}, {"bits": 256.5}, {"bits": []}, {"context": {}}):
            answer = self.site.transit("POST", f"datakey/wrapped/{name}", fields)
            self.assertEqual((answer.status, len(answer.errors)), (400, 1), fields)
            self.assertIn("error converting input", answer.errors[0])
        answer = self.site.transit("POST", f"datakey/wrapped/{name}", {"associated_data": "!"})
        self.assertEqual(answer.status, 500)
        self.assertIn("illegal base64 data", answer.errors[0])

    # Contexts and associated data

    def test_a_derived_key_needs_the_same_context(self):
        name = self.key(derived=True)
        context = b64(b"image 7")
        data_key = self.site.transit("POST", f"datakey/plaintext/{name}", {"context": context}).data
        plaintext = self.decrypt(name, data_key["ciphertext"], context=context)
        self.assertEqual(plaintext, base64.b64decode(data_key["plaintext"]))
        fields = {"ciphertext": data_key["ciphertext"]}
        for operation in ("decrypt", "rewrap"):
            answer = self.site.transit("POST", f"{operation}/{name}", fields | {"context": b64(b"image 8")})
            self.assertRefused(answer, 400, NOT_AUTHENTIC)
        for path, fields in (
            (f"decrypt/{name}", fields),
            (f"rewrap/{name}", fields),
            (f"encrypt/{name}", {"plaintext": ""}),
            (f"datakey/wrapped/{name}", {}),
        ):
            answer = self.site.transit("POST", path, fields)
            self.assertEqual((answer.status, len(answer.errors)), (400, 1))
            self.assertTrue(answer.errors[0].startswith("missing 'context' for key derivation"))

    def test_a_key_that_is_not_derived_ignores_the_context(self):
        name = self.key()
        self.assertEqual(self.decrypt(name, self.encrypt(name, context=b64(b"a")), context=b64(b"b")), b"plaintext")

    def test_associated_data_must_be_the_same(self):
        name = self.key()
        associated = b64(b"bucket 7")
        data_key = self.site.transit("POST", f"datakey/plaintext/{name}", {"associated_data": associated}).data
        plaintext = self.decrypt(name, data_key["ciphertext"], associated_data=associated)
        self.assertEqual(plaintext, base64.b64decode(data_key["plaintext"]))
        ciphertext = self.encrypt(name, associated_data=associated)
        self.assertEqual(self.decrypt(name, ciphertext, associated_data=associated), b"plaintext")
        for wrong in ({}, {"associated_data": b64(b"bucket 8")}):
            answer = self.site.transit("POST", f"decrypt/{name}", {"ciphertext": ciphertext, **wrong})
            self.assertRefused(answer, 400, NOT_AUTHENTIC)
        answer = self.site.transit("POST", f"decrypt/{name}", {"ciphertext": ciphertext, "associated_data": "!"})
        self.assertEqual(answer.status, 500)

    def test_what_has_associated_data_cannot_be_rewrapped(self):
        name = self.key()
        associated = b64(b"bucket 7")
        ciphertext = self.encrypt(name, associated_data=associated)
        fields = {"ciphertext": ciphertext, "associated_data": associated}
        self.assertRefused(self.site.transit("POST", f"rewrap/{name}", fields), 400, NOT_AUTHENTIC)
        answer = self.site.transit("POST", f"rewrap/{name}", {"batch_input": [fields]})
        self.assertEqual(answer.data["batch_results"], [{"error": NOT_AUTHENTIC, "reference": ""}])

    # Encrypting and decrypting

    def test_round_trips(self):
        name = self.key()
        for plaintext in (b"", b"x", os.urandom(1000), os.urandom(100_000)):
            first, second = self.encrypt(name, plaintext), self.encrypt(name, plaintext)
            self.assertNotEqual(first, second)
            self.assertEqual(self.decrypt(name, first), plaintext)
            self.assertEqual(self.decrypt(name, second), plaintext)

    def test_encrypting_creates_a_missing_key(self):
        name = self.key() + "-created"
        self.encrypt(name)
        self.assertFalse(self.site.transit("GET", f"keys/{name}").data["derived"])
        self.encrypt(name + "-derived", context=b64(b"c"))
        self.assertTrue(self.site.transit("GET", f"keys/{name}-derived").data["derived"])

    def test_encryptions_that_are_refused(self):
        name = self.key()
        too_high = "requested version for encryption is higher than the latest key version"
        for fields, error in (
            ({}, "missing plaintext to encrypt"),
            ({"plaintext": b64(b"x"), "key_version": 2}, too_high),
            ({"batch_input": []}, "missing batch input to process"),
        ):
            self.assertRefused(self.site.transit("POST", f"encrypt/{name}", fields), 400, error)
        for fields in ({"plaintext": "!"}, {"plaintext": "YQ"}, {"plaintext": 5}, {"plaintext": "", "context": "!"}):
            answer = self.site.transit("POST", f"encrypt/{name}", fields)
            self.assertEqual((answer.status, len(answer.errors)), (400, 1), fields)
            self.assertTrue(answer.errors[0].startswith("illegal base64 data at input byte"))

    def test_decryptions_that_are_refused(self):
        name, other = self.key(), self.key()
        ciphertext = self.encrypt(name)
        for wrong, error in (
            ("", "missing ciphertext to decrypt"),
            ("x", "invalid ciphertext: no prefix"),
            ("vault:v1", "invalid ciphertext: wrong number of fields"),
            ("vault:v 1:AAAA", "invalid ciphertext: version number could not be decoded"),
            ("vault:vx:AAAA", "invalid ciphertext: version number could not be decoded"),
            ("vault:v2:" + ciphertext[9:], "invalid ciphertext: version is too new"),
            ("vault:v-1:" + ciphertext[9:], "ciphertext or signature version is disallowed by policy (too old)"),
            ("vault:v1:!", "invalid ciphertext: could not decode base64"),
            ("vault:v1:", "invalid ciphertext length"),
            ("vault:v1:AAAA", "invalid ciphertext length"),
            ("vault:v1:" + b64(bytes(20)), NOT_AUTHENTIC),
            (ciphertext[:-8], NOT_AUTHENTIC),
        ):
            for operation in ("decrypt", "rewrap"):
                answer = self.site.transit("POST", f"{operation}/{name}", {"ciphertext": wrong})
                self.assertRefused(answer, 400, error)
        answer = self.site.transit("POST", f"decrypt/{other}", {"ciphertext": ciphertext})
        self.assertRefused(answer, 400, NOT_AUTHENTIC)
        for operation in ("decrypt", "rewrap"):
            answer = self.site.transit("POST", f"{operation}/no-such-key", {"ciphertext": ciphertext})
            self.assertRefused(answer, 400, "encryption key not found")

    def test_every_changed_byte_is_noticed(self):
        name = self.key()
        data = base64.b64decode(self.encrypt(name)[9:])
        for place in range(len(data)):
            changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
            answer = self.site.transit("POST", f"decrypt/{name}", {"ciphertext": "vault:v1:" + b64(changed)})
            self.assertRefused(answer, 400, NOT_AUTHENTIC)

    # Batches

    def test_batches_keep_their_order(self):
        name = self.key()
        items = [{"plaintext": b64(bytes([i])), "reference": f"r{i}"} for i in range(20)]
        answer = self.site.transit("POST", f"encrypt/{name}", {"batch_input": items})
        self.assertEqual(answer.status, 200)
        results = answer.data["batch_results"]
        self.assertEqual([result["reference"] for result in results], [f"r{i}" for i in range(20)])
        self.assertEqual({tuple(sorted(result)) for result in results}, {("ciphertext", "key_version", "reference")})
        items = [{"ciphertext": result["ciphertext"]} for result in results]
        answer = self.site.transit("POST", f"decrypt/{name}", {"batch_input": items})
        expected = [{"plaintext": b64(bytes([i])), "reference": ""} for i in range(20)]
        self.assertEqual(answer.data["batch_results"], expected)

    def test_what_is_wrong_in_a_batch_does_not_stop_the_rest(self):
        name = self.key()
        good, bad = {"ciphertext": self.encrypt(name), "reference": "g"}, {"ciphertext": "x", "reference": "b"}
        wrong = {"plaintext": "", "error": "invalid ciphertext: no prefix", "reference": "b"}
        right = {"plaintext": b64(b"plaintext"), "reference": "g"}
        for items, more, status, expected in (
            ([good, bad], {}, 400, [right, wrong]),
            ([good, bad], {"partial_failure_response_code": 207}, 207, [right, wrong]),
            ([bad, bad], {"partial_failure_response_code": 207}, 400, [wrong, wrong]),
        ):
            answer = self.site.transit("POST", f"decrypt/{name}", {"batch_input": items, **more})
            self.assertEqual((answer.status, answer.data["batch_results"]), (status, expected))
        answer = self.site.transit("POST", f"encrypt/{name}", {"batch_input": [{"plaintext": ""}, {"plaintext": "!"}]})
        self.assertEqual(answer.status, 400)
        self.assertEqual(answer.data["batch_results"][0]["key_version"], 1)
        self.assertEqual(set(answer.data["batch_results"][1]), {"error", "reference"})
        answer = self.site.transit("POST", f"rewrap/{name}", {"batch_input": [good, bad, {}]})
        self.assertEqual(answer.status, 200)
        self.assertEqual(answer.data["batch_results"][0]["reference"], "g")
        self.assertEqual(
            answer.data["batch_results"][1:],
            [
                {"error": "invalid ciphertext: no prefix", "reference": "b"},
                {"error": "missing ciphertext to decrypt", "reference": ""},
            ],
        )

    def test_batches_that_are_refused_as_a_whole(self):
        name = self.key()
        uneven = "context should be set either in all the request blocks or in none"
        for operation, field in (("encrypt", "plaintext"), ("decrypt", "ciphertext"), ("rewrap", "ciphertext")):
            items = [{field: "eA==", "context": "eA=="}, {field: "eA=="}]
            answer = self.site.transit("POST", f"{operation}/{name}", {"batch_input": items})
            self.assertRefused(answer, 400, uneven)
            answer = self.site.transit("POST", f"{operation}/{name}", {"batch_input": []})
            self.assertRefused(answer, 400, "missing batch input to process")
            malformed = ["x", [5]]
            if operation != "rewrap":
                malformed += [[{}], [{field: 5}], [{field: "eA==", "context": 5}]]
            for items in malformed:
                answer = self.site.transit("POST", f"{operation}/{name}", {"batch_input": items})
                self.assertEqual((answer.status, len(answer.errors)), (500, 1), items)
                self.assertIn("failed to parse batch input", answer.errors[0])

    # Versions

    def test_rotation_and_rewrapping(self):
        for options, more in (({}, {}), ({"derived": True}, {"context": b64(b"c")})):
            name = self.key(**options)
            old = self.encrypt(name, **more)
            answer = self.site.transit("POST", f"keys/{name}/rotate")
            self.assertEqual((answer.status, answer.data["latest_version"]), (200, 2))
            self.assertEqual(set(answer.data["keys"]), {"1", "2"})
            self.assertEqual(self.decrypt(name, old, **more), b"plaintext")
            answer = self.site.transit("POST", f"rewrap/{name}", {"ciphertext": old, **more})
            self.assertEqual((answer.status, answer.data["key_version"]), (200, 2))
            self.assertEqual(set(answer.data), {"ciphertext", "key_version"})
            self.assertTrue(answer.data["ciphertext"].startswith("vault:v2:"))
            self.assertEqual(self.decrypt(name, answer.data["ciphertext"], **more), b"plaintext")
            self.assertEqual(self.site.transit("POST", f"datakey/wrapped/{name}", more).data["key_version"], 2)
            older = self.encrypt(name, key_version=1, **more)
            self.assertTrue(older.startswith("vault:v1:"))
            self.assertEqual(self.decrypt(name, older, **more), b"plaintext")
            swapped = "vault:v2:" + old[9:]
            answer = self.site.transit("POST", f"decrypt/{name}", {"ciphertext": swapped, **more})
            self.assertRefused(answer, 400, NOT_AUTHENTIC)
        self.assertRefused(self.site.transit("POST", "keys/no-such-key/rotate"), 400, "key not found")

    def test_old_versions_can_be_forbidden(self):
        name = self.key()
        old = self.encrypt(name)
        self.site.transit("POST", f"keys/{name}/rotate")
        answer = self.site.transit("POST", f"keys/{name}/config", {"min_decryption_version": 2})
        self.assertEqual((answer.status, answer.data["min_decryption_version"]), (200, 2))
        self.assertEqual(set(self.site.transit("GET", f"keys/{name}").data["keys"]), {"2"})
        too_old = "ciphertext or signature version is disallowed by policy (too old)"
        for operation in ("decrypt", "rewrap"):
            answer = self.site.transit("POST", f"{operation}/{name}", {"ciphertext": old})
            self.assertRefused(answer, 400, too_old)
        self.site.transit("POST", f"keys/{name}/config", {"min_encryption_version": 2})
        answer = self.site.transit("POST", f"datakey/wrapped/{name}", {"key_version": 1})
        self.assertRefused(
            answer, 400, "requested version for encryption is less than the minimum encryption key version"
        )
        self.assertEqual(self.site.transit("POST", f"keys/{name}/config", {"min_decryption_version": 1}).status, 200)
        self.assertEqual(self.decrypt(name, old), b"plaintext")

    def test_configurations_that_are_refused_change_nothing(self):
        name = self.key()
        self.site.transit("POST", f"keys/{name}/rotate")
        self.site.transit("POST", f"keys/{name}/config", {"min_decryption_version": 2})
        before = self.site.transit("GET", f"keys/{name}").data
        for fields, error in (
            (
                {"min_decryption_version": 3, "deletion_allowed": True},
                "cannot set min decryption version of 3, latest key version is 2",
            ),
            ({"min_decryption_version": -1}, "min decryption version cannot be negative"),
            ({"min_encryption_version": 3}, "cannot set min encryption version of 3, latest key version is 2"),
            ({"min_encryption_version": -1}, "min encryption version cannot be negative"),
            (
                {"min_encryption_version": 1},
                "cannot set min encryption/decryption values; min encryption version of 1 must be greater than "
                "or equal to min decryption version of 2",
            ),
        ):
            self.assertRefused(self.site.transit("POST", f"keys/{name}/config", fields), 400, error)
        for fields in ({"min_decryption_version": "x"}, {"deletion_allowed": "x"}):
            self.assertEqual(self.site.transit("POST", f"keys/{name}/config", fields).status, 400)
        self.assertEqual(self.site.transit("GET", f"keys/{name}").data, before)
        missing = "no existing key named no-such-key could be found"
        self.assertRefused(self.site.transit("POST", "keys/no-such-key/config", {}), 400, missing)

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
        self.assertEqual(answer.status, 200)

    def test_logging_in(self):
        name = self.key()
        for method, token in (("POST", None), ("PUT", "whatever")):
            answer = self.site.ask(method, "/v1/auth/approle/login", self.site.role, token=token)
            self.assertEqual(answer.status, 200)
            self.assertEqual(set(answer.body), ENVELOPE)
            self.assertIsNone(answer.data)
            auth = answer.body["auth"]
            self.assertLessEqual(
                {"client_token", "accessor", "policies", "token_policies", "metadata", "entity_id"}, set(auth)
            )
            self.assertEqual((auth["renewable"], auth["token_type"], auth["orphan"]), (True, "service", True))
            self.assertGreater(auth["lease_duration"], 600)
            token = auth["client_token"]
            self.assertEqual(self.site.transit("POST", f"datakey/wrapped/{name}", {}, token=token).status, 200)

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
        self.assertIn(answer.status, (400, 500))  # Vault says 400, OpenBao 500
        self.assertEqual(answer.errors, ["missing role_id"])

    def test_looking_up_a_token(self):
        token = self.site.log_in().body["auth"]["client_token"]
        data = self.site.ask("GET", "/v1/auth/token/lookup-self", token=token).data
        self.assertEqual((data["id"], data["path"], data["type"]), (token, "auth/approle/login", "service"))
        self.assertEqual((data["renewable"], data["num_uses"], data["orphan"]), (True, 0, True))
        self.assertGreater(data["creation_ttl"], 600)
        self.assertLess(data["creation_ttl"] - 60, data["ttl"])
        self.assertRegex(data["expire_time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$")
        self.assertAlmostEqual(data["creation_time"], time.time(), delta=60)
        data = self.site.ask("GET", "/v1/auth/token/lookup-self").data
        self.assertEqual((data["ttl"], data["expire_time"], data["renewable"]), (0, None, False))
        self.assertEqual(data["policies"], ["root"])

    def test_the_root_token_cannot_be_renewed(self):
        answer = self.site.ask("POST", "/v1/auth/token/renew-self", {})
        self.assertRefused(answer, 400, "lease is not renewable")

    def test_tokens_end_unless_renewed(self):
        kept, left = (self.short.log_in().body["auth"] for _ in range(2))
        self.assertEqual(kept["lease_duration"], SHORT_TTL_SECONDS)
        time.sleep(SHORT_TTL_SECONDS - 1)
        answer = self.short.ask("PUT", "/v1/auth/token/renew-self", {}, token=kept["client_token"])
        self.assertEqual((answer.status, answer.data, answer.body["warnings"]), (200, None, None))
        self.assertEqual(answer.body["auth"]["client_token"], kept["client_token"])
        self.assertEqual(answer.body["auth"]["lease_duration"], SHORT_TTL_SECONDS)
        time.sleep(2)
        self.assertRefused(self.short.transit("GET", "keys/none", token=kept["client_token"]), 404)
        self.assertDenied(self.short.transit("GET", "keys/none", token=left["client_token"]))
        self.assertDenied(self.short.ask("POST", "/v1/auth/token/renew-self", {}, token=left["client_token"]))
        self.assertDenied(self.short.ask("GET", "/v1/auth/token/lookup-self", token=left["client_token"]))

    def test_tokens_end_at_last_although_renewed(self):
        token = self.short.log_in().body["auth"]["client_token"]
        began = time.monotonic()
        fields = {"increment": "1h"}
        answer = self.short.ask("POST", "/v1/auth/token/renew-self", fields, token=token)
        self.assertEqual(answer.status, 200)
        self.assertLessEqual(answer.body["auth"]["lease_duration"], SHORT_MAX_TTL_SECONDS)
        self.assertIn("exceeded the effective max_ttl", answer.body["warnings"][0])
        time.sleep(SHORT_TTL_SECONDS + 0.5)
        self.assertRefused(self.short.transit("GET", "keys/none", token=token), 404)
        self.assertEqual(self.short.ask("POST", "/v1/auth/token/renew-self", {}, token=token).status, 200)
        time.sleep(max(0, began + SHORT_MAX_TTL_SECONDS + 1 - time.monotonic()))
        self.assertDenied(self.short.transit("GET", "keys/none", token=token))
        self.assertEqual(self.short.log_in().status, 200)

    def test_a_renewal_can_ask_for_less(self):
        token = self.site.log_in().body["auth"]["client_token"]
        for increment in (30, "30", "30s"):
            answer = self.site.ask("POST", "/v1/auth/token/renew-self", {"increment": increment}, token=token)
            self.assertEqual((answer.status, answer.body["auth"]["lease_duration"]), (200, 30))
        answer = self.site.ask("POST", "/v1/auth/token/renew-self", {"increment": "x"}, token=token)
        self.assertEqual(answer.status, 400)

    def test_a_token_can_revoke_itself(self):
        token = self.site.log_in().body["auth"]["client_token"]
        answer = self.site.ask("POST", "/v1/auth/token/revoke-self", {}, token=token)
        self.assertEqual((answer.status, answer.body), (204, None))
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
            self.assertEqual((answer.status, len(answer.errors)), (400, 1), body[:10])
        for body in (b"", b"null", b" { } "):
            self.assertEqual(self.site.transit("POST", path, body).status, 200, body)
        answer = self.site.transit("POST", path, b" " * (33 << 20))
        self.assertRefused(answer, 413, "http: request body too large")

    def test_one_connection_serves_many_requests(self):
        path = f"datakey/plaintext/{self.key()}"
        connection = self.site.connection()
        connection.connect()
        port = connection.sock.getsockname()[1]
        began = time.monotonic()
        for _ in range(100):
            self.assertEqual(self.site.transit("POST", path, {}, connection=connection).status, 200)
            self.assertRefused(self.site.transit("GET", "keys/none", connection=connection), 404)
            self.assertDenied(self.site.transit("GET", "keys/none", token="x", connection=connection))
        self.assertEqual(connection.sock.getsockname()[1], port)
        # With Nagle's algorithm against delayed acknowledgements each would take 40 ms.
        self.assertLess(time.monotonic() - began, 300 * 0.03)
        connection.close()

    def test_many_clients_at_once(self):
        name = self.key()

        def one(i):
            data = self.site.transit("POST", f"datakey/plaintext/{name}", {}).data
            if i % 20 == 0:
                self.site.transit("POST", f"keys/{name}/rotate")
            return self.decrypt(name, data["ciphertext"]) == base64.b64decode(data["plaintext"])

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            self.assertEqual(list(pool.map(one, range(200))), [True] * 200)
        self.assertEqual(self.site.transit("GET", f"keys/{name}").data["latest_version"], 11)

    # Health

    def test_health_of_an_active_server(self):
        for token in (None, "wrong", ROOT_TOKEN):
            answer = self.site.ask("GET", "/v1/sys/health", token=token)
            self.assertEqual(answer.status, 200)
            body = answer.body
            self.assertEqual((body["initialized"], body["sealed"], body["standby"]), (True, False, False))
            self.assertAlmostEqual(body["server_time_utc"], time.time(), delta=60)
            self.assertLessEqual({"version", "cluster_name", "cluster_id"}, set(body))
        answer = self.site.ask("HEAD", "/v1/sys/health", token=None)
        self.assertEqual((answer.status, answer.body), (200, None))
        self.assertEqual(self.site.ask("GET", "/v1/sys/health?activecode=299", token=None).status, 299)
        self.assertRefused(self.site.ask("GET", "/v1/sys/health?activecode=x", token=None), 400)
        self.assertRefused(self.site.ask("GET", "/v1/sys/health?standbyok=maybe", token=None), 400)
        self.assertRefused(self.site.ask("POST", "/v1/sys/health", {}, token=None), 405)

    def test_a_sealed_server_does_nothing(self):
        name = self.key()
        ciphertext = self.encrypt(name)
        self.seal()
        try:
            answer = self.site.ask("GET", "/v1/sys/health", token=None)
            self.assertEqual(answer.status, 503)
            body = answer.body
            self.assertEqual((body["initialized"], body["sealed"], body["standby"]), (True, True, True))
            self.assertNotIn("cluster_id", body)
            self.assertEqual(self.site.ask("HEAD", "/v1/sys/health", token=None).status, 503)
            self.assertEqual(self.site.ask("GET", "/v1/sys/health?sealedcode=298", token=None).status, 298)
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
        self.assertEqual(self.decrypt(name, ciphertext), b"plaintext")

    def test_a_server_that_was_never_initialized(self):
        site = self.uninitialized()
        answer = site.ask("GET", "/v1/sys/health", token=None)
        self.assertEqual(answer.status, 501)
        self.assertEqual((answer.body["initialized"], answer.body["sealed"]), (False, True))
        self.assertRefused(site.transit("GET", "keys/x"), 503, "Vault is sealed")

    # Namespaces

    def test_namespaces(self):
        if self.team is None:
            self.skipTest("this server has no namespaces")
        self.assertEqual(self.team.transit("POST", "keys/k", {}).status, 200)
        mount = self.team.mount
        for path, namespace in (
            (f"{mount}/keys/k", "team"),
            (f"{mount}/keys/k", "team/"),
            (f"{mount}/keys/k", "/team"),
            (f"team/{mount}/keys/k", ""),
        ):
            self.assertEqual(self.team.ask("GET", f"/v1/{path}", namespace=namespace).status, 200)
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
        self.assertEqual(self.team.ask("GET", "/v1/sys/health", token=None, namespace="").status, 200)

    def test_tokens_are_good_in_their_namespace_alone(self):
        if self.team is None:
            self.skipTest("this server has no namespaces")
        self.team.transit("POST", "keys/k", {})
        token = self.team.log_in().body["auth"]["client_token"]
        self.assertEqual(self.team.transit("GET", "keys/k", token=token).status, 200)
        path = f"/v1/team/{self.team.mount}/keys/k"
        self.assertEqual(self.team.ask("GET", path, token=token, namespace="").status, 200)
        several = "1 error occurred:\n\t* permission denied\n\n"
        self.assertRefused(self.team.transit("GET", "keys/k", token=token, namespace=""), 403, several)
        for namespace in ("team", ""):
            answer = self.team.ask("GET", "/v1/auth/token/lookup-self", token=token, namespace=namespace)
            self.assertEqual((answer.status, answer.data["namespace_path"]), (200, "team/"))
            answer = self.team.ask("POST", "/v1/auth/token/renew-self", {}, token=token, namespace=namespace)
            self.assertEqual(answer.status, 200)
        for path, namespace, status in (
            ("/v1/auth/approle/login", "", 400),
            ("/v1/auth/approle/login", "other", 404),
            ("/v1/team/auth/approle/login", "", 200),
        ):
            answer = self.team.ask("POST", path, self.team.role, token=None, namespace=namespace)
            self.assertEqual(answer.status, status)


class OurTransitServer(Cases, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        short = ("--token-ttl", str(SHORT_TTL_SECONDS), "--token-max-ttl", str(SHORT_MAX_TTL_SECONDS))
        cls.servers = [
            OurServer(),
            OurServer(mount="team-transit", namespace="team"),
            OurServer(*short, mount="short-transit"),
            OurServer(),
        ]
        cls.site, cls.team, cls.short, cls.blank = (server.site for server in cls.servers)

    @classmethod
    def tearDownClass(cls):
        for server in cls.servers:
            server.stop()

    def seal(self):
        self.servers[0].fail("sealed")

    def unseal(self):
        self.servers[0].fail("none")

    def uninitialized(self):
        self.servers[3].fail("uninitialized")
        return self.blank


@unittest.skipUnless(REAL_BINARY, "ATOLL_TEST_BAO names no binary of OpenBao or Vault")
class RealTransitServer(Cases, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = RealServer(REAL_BINARY)
        cls.addClassCleanup(cls.server.stop)
        cls.site = cls.server.set_up()
        cls.team = cls.server.set_up("team-transit", namespace="team")
        ttl, max_ttl = f"{SHORT_TTL_SECONDS}s", f"{SHORT_MAX_TTL_SECONDS}s"
        cls.short = cls.server.set_up("short-transit", ttl=ttl, max_ttl=max_ttl)

    def seal(self):
        self.server.seal()

    def unseal(self):
        self.server.unseal()

    def uninitialized(self):
        server = RealServer(REAL_BINARY, initialized=False)
        self.addCleanup(server.stop)
        return Site(server.port)


if __name__ == "__main__":
    unittest.main()
