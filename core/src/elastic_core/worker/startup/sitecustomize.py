"""The warden's hook: ``site`` imports a module of this name just before the interpreter runs the program.

``ELASTIC_STARTUP`` is ``probe`` in the interpreter that shows that this file is found, and ``starter`` in the starter,
where the import returns in workers only. It is ``worker`` in a worker that starts fresh, which executes the files that
follow (``elastic_worker_startup``); the starter's entry gets the function that does so. In other processes, and
afterwards in a worker, this module hides: it ends with the usual ``ImportError`` of a missing module, which ``site``
ignores.
"""

import os
import sys

TYPE_CHECKING = False  # typing's, which is not loaded
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def _stand_aside() -> None:
    """Remove this directory from the path, and let ``site`` import another ``sitecustomize`` if there is one."""
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


def _be_the_starter() -> None:
    """Return in workers only: in any other process the interpreter would go on to run the user's program."""
    try:
        _stand_aside()
        usual = frozenset(sys.modules)
        roots = os.environ.pop("ELASTIC_STARTER_ROOTS").split(os.pathsep)
        module, _, name = os.environ.pop("ELASTIC_STARTER").partition(":")
        path = sys.path[:]
        sys.path += [root for root in roots if root not in path]  # last, so that they hide nothing
        enter = getattr(__import__(module, fromlist=[name]), name)
        sys.path[:] = path
        # A program that imports these packages gets them anew, as it would in a fresh process.
        ours = {"elastic_core", module.partition(".")[0]}
        for name in [name for name in sys.modules if name.partition(".")[0] in ours and name not in usual]:
            del sys.modules[name]
        os.environ.pop("ELASTIC_STARTER_ROOM", None)
        starter = os.getpid()
        enter(int(os.environ.pop("ELASTIC_CONTROL_FD")), usual, _executor())
        if os.getpid() == starter:
            os._exit(1)
    except KeyboardInterrupt:  # in a worker whose program has not begun; no traceback
        import signal

        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        os._exit(1)  # it is blocked
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def _executor() -> "Callable[[Iterable[str]], None]":
    """Return a function that executes files and their ``prepare``, without an import of their packages.

    What a file gives to ``at_end`` is called after all functions of ``atexit`` that are registered from now on.
    """
    import atexit  # which is built in

    at_end: list[Callable[[], object]] = []

    def call() -> None:
        while at_end:
            try:
                at_end.pop()()
            except Exception:  # the others are called all the same
                continue

    def execute(files: "Iterable[str]") -> None:
        loader = sys.modules["_frozen_importlib_external"].SourceFileLoader
        for path in files:
            module = type(sys)(os.path.basename(path).removesuffix(".py"))
            try:  # the agent of this host names the files: those of installed plugins
                exec(loader(module.__name__, path).get_code(module.__name__), module.__dict__)
                module.prepare(at_end.append)
            except (Exception, SystemExit):  # such as a module that this interpreter lacks: the program runs anyway
                continue

    atexit.register(call)
    return execute


_stage, *_files = os.environ.pop("ELASTIC_STARTUP", "").split(os.pathsep)
if _stage == "probe":
    os.environ["ELASTIC_STARTUP"] = "starter"
elif _stage == "starter":
    _be_the_starter()
else:
    if _stage == "worker":
        _executor()(_files)
    _stand_aside()
if sys.modules.get(__name__) is None or sys.modules[__name__].__dict__ is globals():
    raise ImportError(f"No module named {__name__!r}", name=__name__)
