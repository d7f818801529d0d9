"""Tokens and the AppRole log-in of a Vault server: who may ask, and for how long."""

import secrets
import threading
import time

from transit_keys import Refused, text, unfit

DENIED = "permission denied"


class Clock:
    """The time of tokens, which tests move on."""

    ahead_seconds = 0

    @classmethod
    def now(cls):
        return time.time() + cls.ahead_seconds


def moment(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def duration_seconds(value):
    """A duration as Vault takes it: seconds, or a number with one of the units s, m and h."""
    value = str(value or 0)
    factor = {"s": 1, "m": 60, "h": 3600}.get(value[-1])
    try:
        return int(value[:-1]) * factor if factor else int(value)
    except ValueError:
        raise unfit("increment", f'time: invalid duration "{value}"') from None


class Token:
    """One token. Without `ttl_seconds` it never ends."""

    def __init__(self, namespace, policies, ttl_seconds=0, max_ttl_seconds=0):
        self.id = "s." + secrets.token_hex(12)
        self.accessor = secrets.token_hex(12)
        self.namespace = namespace
        self.policies = policies
        self.created = Clock.now()
        self.ttl_seconds = ttl_seconds
        self.max_ttl_seconds = max_ttl_seconds
        self.expires = self.created + ttl_seconds if ttl_seconds else None
        self.meta = {"role_name": "atoll"} if ttl_seconds else None

    def seconds_left(self):
        return 0 if self.expires is None else max(0, round(self.expires - Clock.now()))

    def renew(self, increment_seconds):
        """Lets the token live on from now, but never longer than it may live at all; gives what the
        answer warns of."""
        wanted = increment_seconds or self.ttl_seconds
        allowed = self.created + self.max_ttl_seconds - Clock.now()
        self.expires = Clock.now() + min(wanted, allowed)
        if wanted <= allowed:
            return None
        longest = f'effective max_ttl of "{allowed:.0f}s"'
        return [f'TTL of "{wanted}s" exceeded the {longest}; TTL value is capped accordingly']

    def description(self):
        """What `lookup-self` answers."""
        description = {
            "accessor": self.accessor,
            "creation_time": int(self.created),
            "creation_ttl": self.ttl_seconds,
            "display_name": "approle" if self.expires else "token",
            "entity_id": "",
            "expire_time": moment(self.expires) if self.expires else None,
            "explicit_max_ttl": 0,
            "id": self.id,
            "issue_time": moment(self.created),
            "meta": self.meta,
            "num_uses": 0,
            "orphan": True,
            "path": "auth/approle/login" if self.expires else "auth/token/create",
            "policies": self.policies,
            "renewable": self.expires is not None,
            "ttl": self.seconds_left(),
            "type": "service",
        }
        if self.namespace:
            description["namespace_path"] = self.namespace + "/"
        return description

    def auth(self):
        """What a log-in and a renewal answer under `auth`."""
        return {
            "client_token": self.id,
            "accessor": self.accessor,
            "policies": self.policies,
            "token_policies": self.policies,
            "metadata": self.meta,
            "lease_duration": self.seconds_left(),
            "renewable": self.expires is not None,
            "entity_id": "",
            "token_type": "service",
            "orphan": True,
            "mfa_requirement": None,
            "num_uses": 0,
        }


class Tokens:
    """All tokens of a server: one root token and those from log-ins. Only the first survives a restart."""

    def __init__(self, root, approle, ttl_seconds, max_ttl_seconds):
        self.lock = threading.Lock()
        self.approle = approle
        self.ttl_seconds = ttl_seconds
        self.max_ttl_seconds = max_ttl_seconds
        token = Token("", ["root"])
        token.id = root
        self.tokens = {root: token}

    def log_in(self, namespace, fields):
        """A new token for who knows the secret of the role."""
        role_id, secret_id = text(fields, "role_id"), text(fields, "secret_id")
        if not role_id:
            raise Refused("missing role_id", status=500)
        if self.approle is None or role_id != self.approle[0]:
            raise Refused("invalid role or secret ID")
        if not secret_id:
            raise Refused("missing secret_id")
        if secret_id != self.approle[1]:
            raise Refused("invalid role or secret ID")
        token = Token(namespace, ["atoll", "default"], self.ttl_seconds, self.max_ttl_seconds)
        with self.lock:
            self.tokens[token.id] = token
        return token

    def alive(self, identifier):
        """The token with this name, if it is still good."""
        with self.lock:
            token = self.tokens.get(identifier)
            if token is None or (token.expires is not None and token.expires <= Clock.now()):
                self.tokens.pop(identifier, None)
                raise Refused(DENIED, status=403)
            return token

    def renew(self, token, fields):
        """Renews as asked for; gives what the answer warns of."""
        if token.expires is None:
            raise Refused("lease is not renewable")
        with self.lock:
            return token.renew(duration_seconds(fields.get("increment")))

    def revoke(self, token):
        with self.lock:
            self.tokens.pop(token.id, None)

    def revoke_log_ins(self):
        """Takes back every token from a log-in, as an operator can."""
        with self.lock:
            self.tokens = {name: token for name, token in self.tokens.items() if token.expires is None}
