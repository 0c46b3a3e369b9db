"""The program ``torchrun`` below ``elastic exec``: ``elastic run``, under the flags of torchrun."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress


def main() -> object:
    """Run the job with Elastic, and return the exit code. What Elastic does not take is torch's."""
    with suppress(OSError):  # the folder was deleted, and so is not in sys.path
        if sys.path[:1] == [os.getcwd()]:
            del sys.path[0]  # `python -m` put it there; the script torchrun does not import from the user's folder
    from elastic_core.cli import end_at_once, raise_again

    end_at_once()
    from elastic_torchrun import launcher, startup

    if not _is_taken(sys.argv[1:]):
        # torch reads the command line itself, which knows abbreviations; then Elastic takes it, or says why not.
        startup.install()
        sys.argv[0] = "torchrun"
        from torch.distributed.run import main as torchrun

        raise_again()
        return torchrun()
    what, by = launcher.replaced()
    launcher.say(f"{what} → elastic run{by}")
    os.environ.pop(startup.VARIABLE, None)
    sys.argv[:] = ["elastic", "run", *sys.argv[1:]]
    from elastic_core.cli.main import script

    return script()


def _is_taken(arguments: Sequence[str]) -> bool:
    """Return True if ``elastic run`` takes these arguments."""
    from elastic_torchrun import launcher

    try:
        launcher.configuration(arguments)
    except launcher.REFUSALS:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())  # type: ignore[arg-type]  # what torch's returns, sys.exit takes
