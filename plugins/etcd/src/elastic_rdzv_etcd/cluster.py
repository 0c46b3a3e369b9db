"""A cluster over API v3: its members, and the token that all connections of one agent share.

A token is what etcd gives for a user and a password. It is lost when a member restarts or some minutes pass unused, so
the first thread whose token is refused asks for a new one, for all.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

from elastic_rdzv_etcd.endpoint import Endpoint
from elastic_rdzv_etcd.gateway import Gateway
from elastic_rdzv_etcd.members import Members
from elastic_rdzv_etcd.options import Options
from elastic_rdzv_etcd.refusals import Kind, Refusal

AUTHENTICATE = "/v3/auth/authenticate"


class Cluster(Members):
    """The members, and the token."""

    def __init__(self, endpoints: Sequence[Endpoint], options: Options) -> None:
        super().__init__(endpoints, options)
        self._authenticating = threading.Lock()
        self._token: str | None = None
        self.passwords = options.password is not None
        """True if a token is needed; not while the cluster asks for no password."""

    def token(self, gateway: Gateway, timeout: float) -> str | None:
        """Return the token, asked for if there is none; None where none is needed.

        Raises:
            Refusal: The member does not let us in.
            Unreachable: It did not answer.
        """
        if not self.passwords:
            return None
        return self._token or self.another_token(gateway, timeout, None)

    def another_token(self, gateway: Gateway, timeout: float, worn_out: str | None) -> str | None:
        """Return a token newer than ``worn_out``, asked for unless there is one; None where none is needed.

        ``worn_out`` is the token that a member has refused; None where it was given none, and wants one.

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
        body = json.dumps({"name": self.options.user, "password": self.options.password}).encode()
        try:
            answer = gateway.post(AUTHENTICATE, body, None, timeout)
        except Refusal as refused:
            if refused.kind is not Kind.NO_PASSWORDS:
                raise
            self.passwords = False
            return None
        self.passwords = True
        return str(answer["token"]) if "token" in answer else None
