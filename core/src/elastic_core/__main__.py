"""``python -m elastic_core`` is ``elastic``."""

from __future__ import annotations

import sys

from elastic_core.cli.main import script

if __name__ == "__main__":
    sys.exit(script())
