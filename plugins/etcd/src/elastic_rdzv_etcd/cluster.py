"""What all connections of one agent share: where the members are, which of them answered last, and the token.

A token is what etcd gives for a user and a password. It is lost when a member restarts or some minutes pass unused, so
whoever is told that it is no longer good asks for a new one, once for all.
"""

from __future__ import annotations

import json
import os
import ssl
import threading
from collections.abc import Sequence

from elastic_core.errors import RendezvousConnectionError
from elastic_rdzv_etcd.endpoint import Endpoint, Site, look_up
from elastic_rdzv_etcd.gateway import Gateway
from elastic_rdzv_etcd.options import Options
from elastic_rdzv_etcd.refusals import Kind, Refusal

AUTHENTICATE = "/v3/auth/authenticate"


class Cluster:
    """The members, as the user named them.

    Args:
        endpoints: Their names.
        options: How to reach them, and as whom.

    Raises:
        UsageError: A certificate cannot be used.
        RendezvousConnectionError: None of the names has an address.
    """

    def __init__(self, endpoints: Sequence[Endpoint], options: Options) -> None:
        self.options = options
        self.context: ssl.SSLContext | None = options.context() if any(endpoint.tls for endpoint in endpoints) else None
        self._endpoints = list(endpoints)
        self._lock = threading.Lock()
        self._authenticating = threading.Lock()
        self._token: str | None = None
        self.passwords = options.password is not None
        """Whether a token is needed; not while the cluster asks nobody."""
        self._sites = look_up(endpoints)
        self._favourite = self._sites[os.getpid() % len(self._sites)]  # so that agents spread over the members

    def __str__(self) -> str:
        return ",".join(map(str, self._endpoints))

    def sites(self) -> list[Site]:
        """All addresses, the one that answered last first."""
        with self._lock:
            at = self._sites.index(self._favourite)
            return self._sites[at:] + self._sites[:at]

    def answered(self, site: Site) -> None:
        """Others begin with this one from now on."""
        with self._lock:
            if site in self._sites:
                self._favourite = site

    def look_up_again(self) -> None:
        """Ask for the names' addresses anew, since none of the known ones answers; if nobody knows, they stay."""
        try:
            sites = look_up(self._endpoints)
        except RendezvousConnectionError:
            return
        with self._lock:
            self._sites = sites
            if self._favourite not in sites:
                self._favourite = sites[0]

    def token(self, gateway: Gateway, timeout: float) -> str | None:
        """The token, asked for if there is none; None where none is needed.

        Raises:
            Refusal: The member does not let us in.
            Unreachable: It did not answer.
        """
        if not self.passwords:
            return None
        return self._token or self.another_token(gateway, timeout, None)

    def another_token(self, gateway: Gateway, timeout: float, worn_out: str | None) -> str | None:
        """The token, asked for unless somebody has a newer one than that by now; None where none is needed.

        Args:
            gateway: Whom to ask.
            timeout: Seconds that the answer may take.
            worn_out: The one that a member has refused; None where it was given none, and wants one.

        Raises:
            Refusal: The member does not let us in.
            Unreachable: It did not answer.
        """
        with self._authenticating:
            if self._token == worn_out:
                self._token = self._authenticate(gateway, timeout)
            return self._token

    def _authenticate(self, gateway: Gateway, timeout: float) -> str | None:
        assert self.options.password is not None
        body = json.dumps({"name": self.options.user, "password": self.options.password.text}).encode()
        try:
            answer = gateway.post(AUTHENTICATE, body, None, timeout)
        except Refusal as refused:
            if refused.kind is not Kind.NO_PASSWORDS:
                raise
            self.passwords = False
            return None
        self.passwords = True
        return str(answer["token"]) if "token" in answer else None
