"""The entry point of ``elastic``: handles Ctrl-C from the first line on, and imports as late as possible."""

from __future__ import annotations


def main() -> int:
    """Run the command that ``sys.argv`` names, and return the exit code."""
    try:
        from elastic_core.cli.interrupt import end_at_once

        end_at_once()
        import sys

        from elastic_core.host.own_process import hide_passwords

        hide_passwords(sys.argv[1:])

        from elastic_core.cli.commands import Elastic, run

        return run(Elastic(), sys.argv[1:] or ["--help"])
    except KeyboardInterrupt:  # before cli.commands handles it
        return 130


def script() -> int:
    """Call :func:`main` for a process that does nothing else, and return the exit code, unless that ends it already."""
    code = main()
    from elastic_core.host.own_process import end_before_threads

    end_before_threads(code)
    return code
