"""The program ``torchrun`` below ``elastic exec``: ``elastic run``, under the flags of torchrun."""

from __future__ import annotations

import os
import sys

from elastic_torchrun import launcher, startup


def main() -> object:
    """Run the job with Elastic, and return the exit code. What Elastic does not take is torch's."""
    try:
        launcher.configuration(sys.argv[1:])
    except launcher.REFUSALS:
        return _through_torch()
    what, by = launcher.replaced()
    launcher.say(f"{what} → elastic run{by}")
    os.environ.pop(startup.VARIABLE, None)
    sys.argv[:] = ["elastic", "run", *sys.argv[1:]]
    from elastic_core.cli import main as elastic

    return elastic()


def _through_torch() -> object:
    """Let torch read the command line, which knows abbreviations; then Elastic takes it, or says why it does not."""
    startup.install()
    sys.argv[0] = "torchrun"
    from torch.distributed.run import main as torchrun

    return torchrun()


if __name__ == "__main__":
    sys.exit(main())  # type: ignore[arg-type]  # what torch's returns, sys.exit takes
