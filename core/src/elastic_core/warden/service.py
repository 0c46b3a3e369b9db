"""A service in a fresh interpreter, so that the workers' store does not depend on whether the starter may fork."""

from __future__ import annotations

import json
import os
from importlib import import_module

from elastic_core.host.own_process import Title
from elastic_core.warden.linux import ignore_requests_to_end
from elastic_core.warden.spawn import SERVICE_VARIABLE


def main() -> None:
    """Call the service's function; the process ends with it."""
    ignore_requests_to_end()
    request = json.loads(os.environ.pop(SERVICE_VARIABLE))
    for descriptor in request["descriptors"].values():
        os.set_inheritable(descriptor, False)
    Title().show_service(request["entry"])
    module, _, name = request["entry"].partition(":")
    getattr(import_module(module), name)(**request["arguments"], **request["descriptors"])
