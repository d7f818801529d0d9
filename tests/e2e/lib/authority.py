"""A certificate authority, and certificates that it signs."""

import os


class Authority:
    """A certificate authority made with openssl, and certificates that it signs."""

    def __init__(self, scenario, name):
        self.scenario, self.directory = scenario, scenario.directory / f"authority-{name}"
        self.directory.mkdir()
        self.certificate = self.directory / "ca-cert.pem"
        self.openssl(
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
            "-subj",
            f"/CN=authority {name}",
            "-addext",
            "basicConstraints=critical,CA:TRUE",
            "-addext",
            "keyUsage=critical,keyCertSign",
            "-keyout",
            self.directory / "ca-key.pem",
            "-out",
            self.certificate,
        )

    def openssl(self, *arguments):
        self.scenario.run("openssl", *arguments)

    def sign(self, certificate, key, usage, names="IP:127.0.0.1,DNS:localhost"):
        request = self.directory / "request.pem"
        self.openssl(
            "req",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-subj",
            f"/CN={usage}",
            "-keyout",
            key,
            "-out",
            request,
        )
        extensions = self.directory / "extensions"
        extensions.write_text(
            f"subjectAltName={names}\nbasicConstraints=critical,CA:FALSE\n"
            f"keyUsage=critical,digitalSignature\nextendedKeyUsage={usage}\n"
        )
        # Whoever follows the files may never see a half-written one.
        self.openssl(
            "x509",
            "-req",
            "-in",
            request,
            "-CA",
            self.certificate,
            "-CAkey",
            self.directory / "ca-key.pem",
            "-CAcreateserial",
            "-days",
            "2",
            "-extfile",
            extensions,
            "-out",
            f"{certificate}.new",
        )
        os.rename(f"{certificate}.new", certificate)

    def client_directory(self, name, signer=None):
        """What libnbd and QEMU take: this authority, and a certificate if somebody signs one."""
        directory = self.scenario.directory / f"client-{name}"
        directory.mkdir()
        (directory / "ca-cert.pem").write_bytes(self.certificate.read_bytes())
        if signer:
            signer.sign(directory / "client-cert.pem", directory / "client-key.pem", "clientAuth")
        return directory
