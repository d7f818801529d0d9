#!/usr/bin/env python3
"""What clients can rely on in a Transit server, asked of `transit_server.py`, and of a real OpenBao or
Vault if ATOLL_TEST_BAO names its binary: the same cases, so that ours is shown to be faithful."""

import os
import unittest

from transit_key_cases import KeyCases
from transit_server_cases import SHORT_MAX_TTL_SECONDS, SHORT_TTL_SECONDS, ServerCases
from transit_sites import OurServer, RealServer, Site

REAL_BINARY = os.environ.get("ATOLL_TEST_BAO")


class OurTransitServer(KeyCases, ServerCases, unittest.TestCase):
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
class RealTransitServer(KeyCases, ServerCases, unittest.TestCase):
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
