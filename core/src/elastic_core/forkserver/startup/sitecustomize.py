"""Where the fork server leaves the usual way of a starting interpreter, and a worker forked from it comes back to it.

``site`` imports a module of this name when everything else is set up and the program's turn has not come. Whoever put
this directory onto PYTHONPATH says in ``ELASTIC_FORK_SERVER`` why:

* ``probe``: to see that this file is found at all;
* ``hooked``: it was, and this process is the fork server.

To everybody else, a process that somebody starts at the wrong moment, it is as if it were not there. That is also what
a worker shall find: the last act is an ``ImportError`` that says that no such module exists, which ``site`` takes for
the most usual thing in the world.
"""

import os
import sys


def _stand_aside() -> None:
    """Take this directory out of the way, and let ``site`` import the ``sitecustomize`` that is there besides."""
    here = os.path.dirname(__file__)
    sys.path[:] = [entry for entry in sys.path if entry != here]
    sys.path_importer_cache.pop(here, None)
    others = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry != here]
    if any(others):
        os.environ["PYTHONPATH"] = os.pathsep.join(others)
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.modules.pop(__name__, None)
    import site

    site.execsitecustomize()


def _be_the_fork_server() -> None:
    """Return in workers only. Without them no way leads out: the interpreter would run the user's program here."""
    try:
        _stand_aside()
        usual = frozenset(sys.modules)
        root = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", "..", ".."))
        path = sys.path[:]
        sys.path.append(root)  # last, so that it hides nothing
        from elastic_core.forkserver import server

        sys.path[:] = path
        # A program that imports this package gets it anew, as it would in a fresh process.
        for name in [name for name in sys.modules if name.partition(".")[0] == "elastic_core" and name not in usual]:
            del sys.modules[name]
        server.run(int(os.environ.pop("ELASTIC_CONTROL_FD")), usual)
    except KeyboardInterrupt:  # in a worker whose program has not begun, which need not be told where it was
        import signal

        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        os._exit(1)  # it is blocked
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)


_stage = os.environ.pop("ELASTIC_FORK_SERVER", None)
if _stage == "probe":
    os.environ["ELASTIC_FORK_SERVER"] = "hooked"
elif _stage == "hooked":
    _be_the_fork_server()
else:
    _stand_aside()
if sys.modules.get(__name__) is None or sys.modules[__name__].__dict__ is globals():
    raise ImportError(f"No module named {__name__!r}", name=__name__)
