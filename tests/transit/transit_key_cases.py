"""Cases about keys and what is done with them, for any Transit server."""

import base64
import os
import time

UNSUPPORTED_PATH = "1 error occurred:\n\t* unsupported path\n\n"
NOT_AUTHENTIC = "cipher: message authentication failed"
ENVELOPE = {
    "request_id", "lease_id", "renewable", "lease_duration", "data", "wrap_info", "warnings", "auth"
}  # fmt: skip


def b64(data):
    return base64.b64encode(data).decode()


class KeyCases:
    """`site` is the one that is asked; `short` is another one, which has no keys."""

    def key(self, **options):
        """The name of a new key, for this test alone."""
        name = f"{self.id().split('.')[-1]}-{os.urandom(4).hex()}"
        assert self.site.transit("POST", f"keys/{name}", options).status == 200
        return name

    def encrypt(self, key, plaintext=b"plaintext", **more):
        answer = self.site.transit("POST", f"encrypt/{key}", {"plaintext": b64(plaintext), **more})
        assert answer.status == 200, answer
        return answer.data["ciphertext"]

    def decrypt(self, key, ciphertext, **more):
        answer = self.site.transit("POST", f"decrypt/{key}", {"ciphertext": ciphertext, **more})
        assert answer.status == 200, answer
        return base64.b64decode(answer.data["plaintext"])

    def assertRefused(self, answer, status, *errors):
        assert (answer.status, answer.body) == (status, {"errors": list(errors)})

    def assertDenied(self, answer):
        self.assertRefused(answer, 403, "permission denied")

    # Keys

    def test_a_key_is_created_and_read(self):
        before = int(time.time())
        name = self.key()
        answer = self.site.transit("GET", f"keys/{name}")
        assert answer.status == 200
        assert set(answer.body) == ENVELOPE
        assert answer.headers["Content-Type"] == "application/json"
        assert answer.headers["Cache-Control"] == "no-store"
        assert before <= answer.data["keys"]["1"]
        assert answer.data["keys"]["1"] <= time.time()
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
        assert {field: answer.data.get(field) for field in expected} == expected

    def test_a_derived_key_says_so(self):
        data = self.site.transit("GET", f"keys/{self.key(derived=True)}").data
        assert (data["derived"], data["kdf"], data["convergent_encryption"]) == (True, "hkdf_sha256", False)

    def test_keys_are_listed(self):
        names = {self.key(), self.key()}
        for answer in (
            self.site.transit("LIST", "keys"),
            self.site.transit("LIST", "keys/"),
            self.site.transit("GET", "keys?list=true"),
            self.site.transit("GET", "keys/?list=1"),
        ):
            assert answer.status == 200
            assert names <= set(answer.data["keys"])
            assert answer.data["keys"] == sorted(answer.data["keys"])

    def test_no_keys_are_not_found(self):
        self.assertRefused(self.short.transit("LIST", "keys"), 404)
        self.assertRefused(self.short.transit("GET", "keys/none"), 404)

    def test_creating_a_key_again_changes_nothing(self):
        name = self.key()
        ciphertext = self.encrypt(name)
        answer = self.site.transit("PUT", f"keys/{name}", {"derived": True, "type": "chacha20-poly1305"})
        assert (answer.status, answer.data["derived"], answer.data["type"]) == (200, False, "aes256-gcm96")
        assert self.decrypt(name, ciphertext) == b"plaintext"

    def test_kinds_of_keys_and_the_lengths_of_ciphertexts(self):
        for kind, nonce_bytes in (
            ("aes128-gcm96", 12),
            ("aes256-gcm96", 12),
            ("chacha20-poly1305", 12),
        ):
            name = self.key(type=kind)
            ciphertext = self.encrypt(name, b"x" * 100)
            assert ciphertext.startswith("vault:v1:")
            assert len(base64.b64decode(ciphertext[9:])) == nonce_bytes + 100 + 16
            assert self.decrypt(name, ciphertext) == b"x" * 100
        answer = self.site.transit("POST", "keys/of-no-type", {"type": "nonsense"})
        self.assertRefused(answer, 400, "unknown key type nonsense")

    def test_a_key_is_deleted_only_if_that_is_allowed(self):
        name = self.key()
        forbidden = f"error deleting policy {name}: deletion is not allowed for this key"
        self.assertRefused(self.site.transit("DELETE", f"keys/{name}"), 400, forbidden)
        answer = self.site.transit("POST", f"keys/{name}/config", {"deletion_allowed": True})
        assert (answer.status, answer.data["deletion_allowed"]) == (200, True)
        answer = self.site.transit("DELETE", f"keys/{name}")
        assert (answer.status, answer.body) == (204, None)
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
            assert answer.status == 200, answer
            assert set(answer.body) == ENVELOPE
            assert set(answer.data) == {"ciphertext", "plaintext", "key_version"}
            plaintext = base64.b64decode(answer.data["plaintext"], validate=True)
            assert (len(plaintext), answer.data["key_version"]) == (size, 1)
            assert self.decrypt(name, answer.data["ciphertext"]) == plaintext

    def test_wrapped_data_keys_come_without_plaintext(self):
        name = self.key()
        seen = set()
        for method in ("POST", "PUT"):
            answer = self.site.transit(method, f"datakey/wrapped/{name}", {})
            assert set(answer.data) == {"ciphertext", "key_version"}
            seen.add(self.decrypt(name, answer.data["ciphertext"]))
        assert {len(plaintext) for plaintext in seen} == {32}
        assert len(seen) == 2

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
            assert (answer.status, len(answer.errors)) == (400, 1), fields
            assert "error converting input" in answer.errors[0]
        answer = self.site.transit("POST", f"datakey/wrapped/{name}", {"associated_data": "!"})
        assert answer.status == 500
        assert "illegal base64 data" in answer.errors[0]

    # Contexts and associated data

    def test_a_derived_key_needs_the_same_context(self):
        name = self.key(derived=True)
        context = b64(b"image 7")
        data_key = self.site.transit("POST", f"datakey/plaintext/{name}", {"context": context}).data
        plaintext = self.decrypt(name, data_key["ciphertext"], context=context)
        assert plaintext == base64.b64decode(data_key["plaintext"])
        fields = {"ciphertext": data_key["ciphertext"]}
        for operation in ("decrypt", "rewrap"):
            answer = self.site.transit("POST", f"{operation}/{name}", fields | {"context": b64(b"image 8")})
            self.assertRefused(answer, 400, NOT_AUTHENTIC)
        for path, wanted in (
            (f"decrypt/{name}", fields),
            (f"rewrap/{name}", fields),
            (f"encrypt/{name}", {"plaintext": ""}),
            (f"datakey/wrapped/{name}", {}),
        ):
            answer = self.site.transit("POST", path, wanted)
            assert (answer.status, len(answer.errors)) == (400, 1)
            assert answer.errors[0].startswith("missing 'context' for key derivation")

    def test_a_key_that_is_not_derived_ignores_the_context(self):
        name = self.key()
        assert self.decrypt(name, self.encrypt(name, context=b64(b"a")), context=b64(b"b")) == b"plaintext"

    def test_associated_data_must_be_the_same(self):
        name = self.key()
        associated = b64(b"bucket 7")
        data_key = self.site.transit("POST", f"datakey/plaintext/{name}", {"associated_data": associated}).data
        plaintext = self.decrypt(name, data_key["ciphertext"], associated_data=associated)
        assert plaintext == base64.b64decode(data_key["plaintext"])
        ciphertext = self.encrypt(name, associated_data=associated)
        assert self.decrypt(name, ciphertext, associated_data=associated) == b"plaintext"
        for wrong in ({}, {"associated_data": b64(b"bucket 8")}):
            answer = self.site.transit("POST", f"decrypt/{name}", {"ciphertext": ciphertext, **wrong})
            self.assertRefused(answer, 400, NOT_AUTHENTIC)
        answer = self.site.transit("POST", f"decrypt/{name}", {"ciphertext": ciphertext, "associated_data": "!"})
        assert answer.status == 500

    def test_what_has_associated_data_cannot_be_rewrapped(self):
        name = self.key()
        associated = b64(b"bucket 7")
        ciphertext = self.encrypt(name, associated_data=associated)
        fields = {"ciphertext": ciphertext, "associated_data": associated}
        self.assertRefused(self.site.transit("POST", f"rewrap/{name}", fields), 400, NOT_AUTHENTIC)
        answer = self.site.transit("POST", f"rewrap/{name}", {"batch_input": [fields]})
        assert answer.data["batch_results"] == [{"error": NOT_AUTHENTIC, "reference": ""}]

    # Encrypting and decrypting

    def test_round_trips(self):
        name = self.key()
        for plaintext in (b"", b"x", os.urandom(1000), os.urandom(100_000)):
            first, second = self.encrypt(name, plaintext), self.encrypt(name, plaintext)
            assert first != second
            assert self.decrypt(name, first) == plaintext
            assert self.decrypt(name, second) == plaintext

    def test_encrypting_creates_a_missing_key(self):
        name = self.key() + "-created"
        self.encrypt(name)
        assert not self.site.transit("GET", f"keys/{name}").data["derived"]
        self.encrypt(name + "-derived", context=b64(b"c"))
        assert self.site.transit("GET", f"keys/{name}-derived").data["derived"]

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
            assert (answer.status, len(answer.errors)) == (400, 1), fields
            assert answer.errors[0].startswith("illegal base64 data at input byte")

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
        assert answer.status == 200
        results = answer.data["batch_results"]
        assert [result["reference"] for result in results] == [f"r{i}" for i in range(20)]
        assert {tuple(sorted(result)) for result in results} == {("ciphertext", "key_version", "reference")}
        items = [{"ciphertext": result["ciphertext"]} for result in results]
        answer = self.site.transit("POST", f"decrypt/{name}", {"batch_input": items})
        expected = [{"plaintext": b64(bytes([i])), "reference": ""} for i in range(20)]
        assert answer.data["batch_results"] == expected

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
            assert (answer.status, answer.data["batch_results"]) == (status, expected)
        answer = self.site.transit("POST", f"encrypt/{name}", {"batch_input": [{"plaintext": ""}, {"plaintext": "!"}]})
        assert answer.status == 400
        assert answer.data["batch_results"][0]["key_version"] == 1
        assert set(answer.data["batch_results"][1]) == {"error", "reference"}
        answer = self.site.transit("POST", f"rewrap/{name}", {"batch_input": [good, bad, {}]})
        assert answer.status == 200
        assert answer.data["batch_results"][0]["reference"] == "g"
        assert answer.data["batch_results"][1:] == [
            {"error": "invalid ciphertext: no prefix", "reference": "b"},
            {"error": "missing ciphertext to decrypt", "reference": ""},
        ]

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
                assert (answer.status, len(answer.errors)) == (500, 1), items
                assert "failed to parse batch input" in answer.errors[0]

    # Versions

    def test_rotation_and_rewrapping(self):
        for options, more in (({}, {}), ({"derived": True}, {"context": b64(b"c")})):
            name = self.key(**options)
            old = self.encrypt(name, **more)
            answer = self.site.transit("POST", f"keys/{name}/rotate")
            assert (answer.status, answer.data["latest_version"]) == (200, 2)
            assert set(answer.data["keys"]) == {"1", "2"}
            assert self.decrypt(name, old, **more) == b"plaintext"
            answer = self.site.transit("POST", f"rewrap/{name}", {"ciphertext": old, **more})
            assert (answer.status, answer.data["key_version"]) == (200, 2)
            assert set(answer.data) == {"ciphertext", "key_version"}
            assert answer.data["ciphertext"].startswith("vault:v2:")
            assert self.decrypt(name, answer.data["ciphertext"], **more) == b"plaintext"
            assert self.site.transit("POST", f"datakey/wrapped/{name}", more).data["key_version"] == 2
            older = self.encrypt(name, key_version=1, **more)
            assert older.startswith("vault:v1:")
            assert self.decrypt(name, older, **more) == b"plaintext"
            swapped = "vault:v2:" + old[9:]
            answer = self.site.transit("POST", f"decrypt/{name}", {"ciphertext": swapped, **more})
            self.assertRefused(answer, 400, NOT_AUTHENTIC)
        self.assertRefused(self.site.transit("POST", "keys/no-such-key/rotate"), 400, "key not found")

    def test_old_versions_can_be_forbidden(self):
        name = self.key()
        old = self.encrypt(name)
        self.site.transit("POST", f"keys/{name}/rotate")
        answer = self.site.transit("POST", f"keys/{name}/config", {"min_decryption_version": 2})
        assert (answer.status, answer.data["min_decryption_version"]) == (200, 2)
        assert set(self.site.transit("GET", f"keys/{name}").data["keys"]) == {"2"}
        too_old = "ciphertext or signature version is disallowed by policy (too old)"
        for operation in ("decrypt", "rewrap"):
            answer = self.site.transit("POST", f"{operation}/{name}", {"ciphertext": old})
            self.assertRefused(answer, 400, too_old)
        self.site.transit("POST", f"keys/{name}/config", {"min_encryption_version": 2})
        answer = self.site.transit("POST", f"datakey/wrapped/{name}", {"key_version": 1})
        self.assertRefused(
            answer, 400, "requested version for encryption is less than the minimum encryption key version"
        )
        assert self.site.transit("POST", f"keys/{name}/config", {"min_decryption_version": 1}).status == 200
        assert self.decrypt(name, old) == b"plaintext"

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
            assert self.site.transit("POST", f"keys/{name}/config", fields).status == 400
        assert self.site.transit("GET", f"keys/{name}").data == before
        missing = "no existing key named no-such-key could be found"
        self.assertRefused(self.site.transit("POST", "keys/no-such-key/config", {}), 400, missing)
