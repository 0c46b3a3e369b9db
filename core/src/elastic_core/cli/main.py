"""The entry point of ``elastic``: handles Ctrl-C from the first line on, and imports as late as possible."""

from __future__ import annotations


def main() -> int:
    """Run the command that ``sys.argv`` names, and return the exit code."""
    try:
        from elastic_core.cli.interrupt import end_at_once

        end_at_once()
        import sys

        from elastic_core.host.own_process import LastExit, hide_passwords

        last = LastExit()
        hide_passwords(sys.argv[1:])

        from elastic_core.cli.commands import Elastic, run

        last.code = run(Elastic(), sys.argv[1:] or ["--help"])
        return last.code
    except KeyboardInterrupt:  # before cli.commands handles it
        return 130
