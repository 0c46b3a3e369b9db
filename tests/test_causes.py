"""The cause that is found for each way in which a program may end, forked by the fork server and started fresh."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import dedent

import pytest
from programs import PYTHON, Programs
from rig import Rig

from elastic_core.incidents import Incident, IncidentKind
from elastic_core.warden.linux import become_subreaper
from elastic_policies.known_failures import explain

LOGGED = """
import atexit, logging, os, signal, sys
def upload():
    try:
        raise ConnectionError("api.wandb.ai: retrying in 3 s")
    except ConnectionError:
        logging.exception("upload failed, will be retried")
upload()
"""
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer [10.0.0.2]:4711"
KILLED, CRASHED, INTERRUPTED = -signal.SIGKILL, -signal.SIGSEGV, -signal.SIGINT


@dataclass(frozen=True, slots=True)
class Story:
    """A program, and what is to be found out about its end."""

    name: str
    program: str
    code: int = 1
    message: str = ""  # its beginning, if it ends with "…"
    exception: str = ""
    where: str = ""  # its beginning
    follows_peer: bool = False
    hint: str = ""  # the known failure
    failed: bool = False  # whether it ends by an exception of its main thread


def raises(name: str, program: str, message: str, where: str, exception: str = "", **more: object) -> Story:
    """Return a story of a program that an exception of its main thread ends."""
    exception = exception or message.partition(":")[0]
    return Story(name, program, 1, message, exception, where, failed=True, **more)  # type: ignore[arg-type] # see Story


STORIES = [
    raises(
        "__del__ of a global fails at exit",
        """
        class Writer:
            def __del__(self):
                self.file.close()
        def step():
            raise ValueError("bad batch")
        writer = Writer()
        step()
        """,
        "ValueError: bad batch",
        "train.py:6 in step",
    ),
    raises(
        "an atexit function raises",
        """
        import atexit
        atexit.register(lambda: None.close())
        raise ValueError("bad batch")
        """,
        "ValueError: bad batch",
        "train.py:4 in <module>",
    ),
    Story("logged, then SIGKILL", LOGGED + "os.kill(os.getpid(), 9)", KILLED),
    Story("logged, then SIGTERM", LOGGED + "os.kill(os.getpid(), 15)", -signal.SIGTERM),
    Story("logged, then os._exit", LOGGED + "os._exit(17)", 17, where="train.py:9 in <module>: os._exit(17)"),
    Story("logged, then sys.exit", LOGGED + "sys.exit(3)", 3, where="train.py:9 in <module>: sys.exit(3)"),
    Story("logged, then exit", LOGGED + "exit(1)", 1),
    Story("logged, then raise SystemExit", LOGGED + "raise SystemExit(1)", 1),
    Story(
        "logged, then sys.exit with a text",
        LOGGED + "sys.exit('FATAL: no data')",
        1,
        "FATAL: no data",
        where="train.py:9",
    ),
    Story(
        "logged, then raise SystemExit with a text", LOGGED + "raise SystemExit('FATAL: no data')", 1, "FATAL: no data"
    ),
    Story("logged, then exit with a text", LOGGED + "exit('FATAL: no data')", 1, "FATAL: no data"),
    Story(
        "sys.exit with a text, and lines of atexit functions",
        LOGGED + "atexit.register(lambda: print(300 * 'bye\\n', file=sys.stderr))\nsys.exit('FATAL: no data')",
        1,
        "FATAL: no data",
        where="train.py:10",
    ),
    Story(
        "sys.exit with a text alone",
        "import sys\nsys.exit('\\nFATAL:\\nno data')",
        1,
        "FATAL: no data",
        where="train.py:2",
    ),
    Story(
        "sys.exit while an exception is handled",
        "import sys\ntry:\n    {}['lr']\nexcept KeyError:\n    sys.exit(2)",
        2,
        "KeyError: 'lr'",
        "KeyError",
        "train.py:3 in <module>",
    ),
    Story(
        "os._exit while an exception is handled",
        "import os\ntry:\n    {}['lr']\nexcept KeyError:\n    os._exit(3)",
        3,
        "KeyError: 'lr'",
        "KeyError",
        "train.py:3 in <module>",
    ),
    Story(
        "sys.exit with a text while an exception is handled",
        "import sys\ntry:\n    {}['lr']\nexcept KeyError:\n    sys.exit('no learning rate')",
        1,
        "no learning rate",
        "KeyError",
        "train.py:3 in <module>",
    ),
    Story(
        "sys.exit that is caught, another code later",
        "import sys\ntry:\n    sys.exit('usage')\nexcept SystemExit:\n    pass\nraise SystemExit(5)",
        5,
    ),
    Story("sys.exit that is caught, a good end", "import sys\ntry:\n    sys.exit(3)\nexcept SystemExit:\n    pass", 0),
    raises(
        "a message begins with newlines",
        r"raise RuntimeError('\n\n設定エラー: x')",
        "RuntimeError: 設定エラー: x",
        "train.py:1",
        "RuntimeError",
    ),
    raises("no message", "assert 1 == 2", "AssertionError", "train.py:1 in <module>", "AssertionError"),
    raises(
        "a name without Error",
        "class Unsupported(Exception): pass\nraise Unsupported('call of a C function')",
        "Unsupported: call of a C function",
        "train.py:2 in <module>",
    ),
    raises(
        "sixty frames",
        "def down(n):\n    if n == 0:\n        raise ValueError('deep')\n    down(n - 1)\ndown(60)",
        "ValueError: deep",
        "train.py:3 in down",
    ),
    raises(
        "a text of 8 KiB",
        "raise RuntimeError('C++ compile error\\n' + 200 * 'undefined reference to something or other\\n')",
        "RuntimeError: C++ compile error",
        "train.py:1 in <module>",
    ),
    raises(
        "a traceback in the message",
        """
        def call():
            quoted = 'Traceback (most recent call last):\\n  File "server.py", line 9, in serve\\nKeyError: 1'
            raise RuntimeError(f"remote said:\\n{quoted}")
        call()
        """,
        "RuntimeError: remote said: KeyError: 1",
        "train.py:4 in call",
    ),
    raises(
        "300 lines by an atexit function",
        """
        import atexit, sys
        atexit.register(lambda: print(300 * '[W socket.cpp] retry\\n', file=sys.stderr))
        raise ValueError("bad batch")
        """,
        "ValueError: bad batch",
        "train.py:4",
    ),
    raises(
        "a hook that calls no other",
        "import sys\nsys.excepthook = lambda *args: print(args[1])\nraise ValueError('x')",
        "ValueError: x",
        "train.py:3",
    ),
    raises(
        "a hook that calls the usual one, and prints 6 KiB",
        """
        import sys
        def hook(*args):
            sys.__excepthook__(*args)
            print(6144 * "w", file=sys.stderr)
        sys.excepthook = hook
        raise ValueError("x")
        """,
        "ValueError: x",
        "train.py:7",
    ),
    raises(
        "a hook that puts a prefix before each line, twice",
        """
        import sys, traceback
        def hook(*args):
            for line in "".join(traceback.format_exception(*args)).splitlines():
                print("[rank0]: [rank0]: " + line, file=sys.stderr)
        sys.excepthook = hook
        raise ValueError("x")
        """,
        "ValueError: x",
        "train.py:7",
    ),
    Story(
        "the program calls the hook itself, and goes on",
        "import sys\ntry:\n    1 / 0\nexcept Exception:\n    sys.excepthook(*sys.exc_info())\nraise SystemExit(4)",
        4,
    ),
    raises(
        "raised from another one",
        "try:\n    open('/nonexistent/a')\nexcept OSError as e:\n    raise RuntimeError('no data') from e",
        "RuntimeError: no data (after FileNotFoundError: [Errno 2] No such file or directory: '/nonexistent/a')",
        "train.py:4",
    ),
    raises(
        "a full disk",
        "file = open('/dev/full', 'w')\nfile.write('x')\nfile.flush()",
        "OSError: [Errno 28] No space left on device",
        "train.py:3 in <module>",
        hint="a disk or a quota is full",
    ),
    raises(
        "the cause is a full disk",
        "try:\n    raise OSError(28, 'No space left on device')\nexcept OSError:\n    raise ValueError('cannot save')",
        "ValueError: cannot save (after OSError: [Errno 28] No space left on device)",
        "train.py:4 in <module>",
        hint="a disk or a quota is full",
    ),
    raises(
        "a syntax error",
        "x = 1\ndef f(:\n    pass\n",
        "SyntaxError: invalid syntax…",
        "train.py:2 in <module>: def f(:",
    ),
    raises(
        "a peer is lost",
        f"raise RuntimeError({GLOO!r})",
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Connection closed by peer …",
        "train.py:1 in <module>",
        follows_peer=True,
    ),
    raises(
        "while the loss of a peer is handled",
        f"""
        def teardown():
            None.checkpoint
        try:
            raise RuntimeError({GLOO!r})
        except RuntimeError:
            teardown()
        """,
        "AttributeError: 'NoneType' object has no attribute 'checkpoint' (after RuntimeError: …",
        "train.py:3 in teardown",
        follows_peer=True,
    ),
    raises(
        "a broken pipe of its own",
        "import os\nreading, writing = os.pipe()\nos.close(reading)\nos.write(writing, b'x')",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "train.py:4 in <module>",
    ),
    raises(
        "a time-out of its own",
        "raise RuntimeError('metrics server: Socket Timeout')",
        "RuntimeError: metrics server: Socket Timeout",
        "train.py:1",
    ),
    Story(
        "SIGSEGV in a thread",
        """
        import ctypes, threading, time
        def decode():
            ctypes.string_at(0)
        def others():
            time.sleep(60)
        threading.Thread(target=decode, daemon=True).start()
        others()
        """,
        CRASHED,
        where="train.py:4 in decode",
    ),
    Story(
        "an exception in a thread, then sys.exit",
        """
        import sys, threading
        def load():
            raise ValueError("bad shard")
        thread = threading.Thread(target=load)
        thread.start()
        thread.join()
        sys.exit(1)
        """,
        1,
        "ValueError: bad shard",
        "ValueError",
        "train.py:4 in load",
    ),
    Story(
        "an exception in a thread, then SIGKILL",
        """
        import os, threading
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        os.kill(os.getpid(), 9)
        """,
        KILLED,
    ),
    raises(
        "an exception in a thread, then one of its own",
        """
        import threading
        thread = threading.Thread(target=lambda: 1 / 0)
        thread.start()
        thread.join()
        raise ValueError("no data came")
        """,
        "ValueError: no data came",
        "train.py:6 in <module>",
    ),
    Story(
        "an exception in a fork",
        """
        import os, sys
        if os.fork() == 0:
            raise ValueError("of the fork")
        os.wait()
        sys.exit(3)
        """,
        3,
        where="train.py:6 in <module>",
    ),
    Story(
        "an exception in a process of multiprocessing",
        """
        import multiprocessing, os
        process = multiprocessing.get_context("fork").Process(target=lambda: 1 / 0)
        process.start()
        process.join()
        raise SystemExit(process.exitcode + 6)
        """,
        7,
    ),
    Story("Ctrl-C", "raise KeyboardInterrupt", INTERRUPTED),
    Story("SIGINT", "import os\nos.kill(os.getpid(), 2)\nwhile True: pass", INTERRUPTED),
    Story(
        "replaced by a shell that fails",
        LOGGED + "os.execv('/bin/sh', ['sh', '-c', 'for i in $(seq 20); do echo $i >&2; done; exit 5'])",
        5,
    ),
    Story(
        "replaced by a Python that raises",
        "import os, sys\nos.execv(sys.executable, [sys.executable, '-c', 'raise ValueError(2)'])",
        1,
        "ValueError: 2",
        "ValueError",
        "<string>:1 in <module>",
    ),
    raises(
        "a crash after the exception",
        "import atexit, os\natexit.register(lambda: os.kill(os.getpid(), 11))\nraise ValueError('x')",
        "ValueError: x",
        "train.py:3",
    ),
]
GROUP = raises(
    "a group of exceptions",
    """
    import asyncio
    async def shard():
        raise ValueError("bad shard")
    async def main():
        async with asyncio.TaskGroup() as group:
            group.create_task(shard())
    asyncio.run(main())
    """,
    "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception): ValueError: bad shard",
    "train.py:4 in shard",
)
STORIES += [GROUP] if sys.version_info >= (3, 11) else []

TORCH = [
    raises(
        "an exception in a worker of a DataLoader",
        """
        from torch.utils.data import DataLoader
        class Samples:
            def __len__(self): return 200
            def __getitem__(self, n):
                if n == 137:
                    raise ValueError(f"sample {n} has label 99, of 10 classes")
                return n
        if __name__ == "__main__":
            for batch in DataLoader(Samples(), num_workers=2):
                pass
        """,
        "ValueError: sample 137 has label 99, of 10 classes",
        "train.py:7 in __getitem__",
    ),
    raises(
        "load_state_dict of another model",
        """
        import torch
        def model(n):
            return torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(n)))
        def load():
            model(200).load_state_dict({f"layer.{n}": torch.ones(1) for n in range(400)})
        load()
        """,
        "RuntimeError: Error(s) in loading state_dict for Sequential: Missing key(s) in state_dict: …",
        "train.py:6 in load",
        hint="a model or a checkpoint could not be loaded",
    ),
    raises(
        "shapes that do not fit, inside torch.compile",
        """
        import torch
        @torch.compile(backend="eager")
        def step(x):
            return x @ torch.ones(3, 3)
        step(torch.ones(2, 2))
        """,
        "torch._dynamo.exc.TorchRuntimeError: RuntimeError when making fake tensor call: RuntimeError('…",
        "train.py:5 in step",
    ),
    raises(
        "a full disk in torch.save",
        """
        import torch
        def save():
            torch.save(torch.ones(100_000), "/dev/full")
        save()
        """,
        "RuntimeError: …",
        "train.py:4 in save",
        hint="a disk or a quota is full",
    ),
    raises(
        "an exception in a process of torch.multiprocessing.spawn",
        """
        import torch.multiprocessing as mp
        def train(rank):
            raise ValueError("bad batch")
        if __name__ == "__main__":
            mp.start_processes(train, nprocs=1, start_method="fork")
        """,
        "ValueError: bad batch",
        "train.py:4 in train",
    ),
    raises(
        "@record",
        """
        from torch.distributed.elastic.multiprocessing.errors import record
        @record
        def main():
            raise ValueError("bad batch")
        main()
        """,
        "ValueError: bad batch",
        "train.py:5 in main",
    ),
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    become_subreaper()
    programs = Programs(tmp_path_factory.mktemp("programs"), ["json"])
    yield programs
    programs.close()


@pytest.fixture(scope="module")
def torch_programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    become_subreaper()
    programs = Programs(tmp_path_factory.mktemp("programs"), ["torch", "torch.utils.data"])
    yield programs
    programs.close()


def check(programs: Programs, story: Story, *, warm: bool) -> None:
    ended = programs.run(dedent(story.program), warm=warm)
    cause = ended.cause
    if not (story.name == "a crash after the exception" and ended.code == CRASHED):
        assert ended.code == story.code, ended
    assert (ended.failed, ended.records) == (story.failed, True), ended
    if story.code == 0:
        return
    start = story.message.removesuffix("…")
    assert cause.message.startswith(start), cause
    if start == story.message:
        assert cause.message == start, cause
    assert (cause.exception, cause.follows_peer) == (story.exception, story.follows_peer), cause
    assert cause.where.startswith(story.where), cause
    assert bool(cause.where) is bool(story.where), cause
    incident = Incident(
        kind=IncidentKind.WORKER_FAILED,
        round=1,
        node_id="n",
        host="h",
        exit_code=1 if ended.failed else ended.code,
        message=cause.message,
        exception=cause.exception,
        follows_peer=cause.follows_peer,
        detail=cause.detail,
    )
    if story.hint:
        assert explain(incident, cause.text).name == story.hint, cause


@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "warm"])
@pytest.mark.parametrize("story", [pytest.param(story, id=story.name) for story in STORIES])
def test_a_cause_is_what_ended_the_program(programs: Programs, story: Story, warm: bool) -> None:
    check(programs, story, warm=warm)


@pytest.mark.parametrize("warm", [False, True], ids=["fresh", "warm"])
@pytest.mark.parametrize("story", [pytest.param(story, id=story.name) for story in TORCH])
def test_an_exception_that_torch_wraps_is_unwrapped(torch_programs: Programs, story: Story, warm: bool) -> None:
    check(torch_programs, story, warm=warm)


@pytest.mark.parametrize("argv", [("-m", "train"), ("-c", "import train"), (".",)], ids=["-m", "-c", "a directory"])
def test_a_program_may_be_started_in_any_way(programs: Programs, argv: tuple[str, ...]) -> None:
    (programs.folder / "__main__.py").write_text("import train")
    ended = programs.run("def step():\n    raise ValueError('x')\nstep()", [*PYTHON, *argv])
    assert (ended.code, ended.failed) == (1, True)
    assert (ended.cause.message, ended.cause.where) == ("ValueError: x", "train.py:2 in step: raise ValueError('x')")


SHELL = """
def step():
    raise ValueError("bad batch")
step()
"""


@pytest.mark.parametrize(
    ("script", "message"),
    [
        pytest.param("exec {python} -S train.py", "ValueError: bad batch", id="last"),
        pytest.param("{python} -S train.py; exit 1", "ValueError: bad batch", id="in a process of its own"),
        pytest.param(
            "{python} -S train.py 2>&1 | sed 's/^/[rank0]: [rank0]: /' >&2; exit 1",
            "ValueError: bad batch",
            id="with the prefix of torch, twice",
        ),
        pytest.param(
            "{python} -S train.py; seq 40 | sed 's/^/[W1124 socket.cpp] retry /' >&2; exit 1",
            "ValueError: bad batch",
            id="before lines of torch's logger",
        ),
        pytest.param("{python} -S train.py; seq 40 >&2; exit 1", "", id="survived"),
        pytest.param("{python} -S train.py; kill -9 $$", "", id="survived until SIGKILL"),
    ],
)
def test_of_a_program_that_records_nothing_the_exception_that_stands_last_counts(
    programs: Programs, script: str, message: str
) -> None:
    ended = programs.run(SHELL, ["sh", "-c", script.format(python=sys.executable)])
    assert not ended.records
    assert (ended.cause.message, ended.cause.exception) == (message, message.partition(":")[0])
    assert ended.cause.where == ('train.py:3 in step: raise ValueError("bad batch")' if message else "")


def test_a_record_that_cannot_be_written_is_replaced_by_what_was_printed(programs: Programs) -> None:
    ended = programs.run("import os\nos.mkdir(os.environ['TORCHELASTIC_ERROR_FILE'])\nraise ValueError('x')")
    (programs.folder / "error.json").rmdir()
    assert ended.failed
    assert (ended.cause.message, ended.cause.where) == (
        "ValueError: x",
        "train.py:3 in <module>: raise ValueError('x')",
    )


STUCK = """
import atexit, os, signal, threading, time

def finish():  # as a tracker does
    time.sleep(1.5)
    open("finished", "w").close()

if os.environ["RANK"] == "1":
    if {thread}:
        threading.Thread(target=time.sleep, args=(3600,)).start()
    atexit.register(finish)
    raise ValueError("bad batch")
signal.pause()
"""


@pytest.mark.parametrize("start", ["--no_warm_start", "--warm_start"])
@pytest.mark.parametrize("thread", [True, False], ids=["a thread goes on", "an atexit function takes a while"])
def test_a_rank_has_failed_when_its_main_thread_has_raised(rig: Rig, start: str, thread: bool) -> None:
    (rig.folder / "train.py").write_text(STUCK.format(thread=thread))
    grace = "0.5" if thread else "60"
    flags = ["--standalone", "--nproc_per_node=2", "--max_restarts=0", f"--failure_grace={grace}", start]
    agent = rig.run(*flags, "train.py")
    assert agent.exit_code() == 1
    assert "ValueError: bad batch" in agent.output
    assert "rank 1 " in agent.output
    assert (rig.folder / "finished").exists() is not thread
