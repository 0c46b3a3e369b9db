"""All checks in their order: this host first, then the store, step by step, each standing on the one before."""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from elastic_core.config import Timing
from elastic_core.errors import ElasticError, RendezvousConnectionError, RendezvousError
from elastic_core.exit_codes import ExitCode
from elastic_core.host import advertised_address, endpoint_host, installed_versions
from elastic_core.plugins import BACKENDS, Catalogue, Plugins
from elastic_core.rendezvous import HostPort, RendezvousBackend, RendezvousOptions, RendezvousParameters
from elastic_doctor import host, store
from elastic_doctor.findings import OF_STORE, Finding, State, ok, refused, skipped, warning, wrong

ANSWER = 3.0
"""Seconds for which anything that has to be answered may keep this process waiting, before it counts as hanging."""
IMPORT = 120.0  # the same for ``import torch``, which may come from a slow network mount

_QUIET = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "FATAL"}
"""Variables that torch reads, so that it starts no thread before a store is forked, and prints nothing."""


class Step(NamedTuple):
    """The next step of an examination."""

    check: str
    during: str
    limit: float  # seconds that it may take
    leaves: bool  # true if traces would stay in the store if the process were killed from now on


class Report:
    """The way from an examination to its watcher: ``send`` takes each step and each finding."""

    def __init__(self, send: Callable[[Step | Finding], None]) -> None:
        self.send = send
        self.leaves = False
        self.last = Step("doctor", "", ANSWER, leaves=False)

    def at(self, check: str, during: str = "", limit: float = ANSWER) -> None:
        """Announce what is tried next."""
        self.last = Step(check, during, limit, self.leaves)
        self.send(self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The subject of an examination: a backend and its parameters, as ``elastic run`` would pass them."""

    plugins: Plugins  # with the backend registered
    options: RendezvousOptions
    params: RendezvousParameters  # its run id is the trial's
    timing: Timing
    source: str  # the distribution that the backend is from, with its version; '' for none
    needs_torch: bool = False

    @property
    def form(self) -> str:
        """The endpoint's form; a handler of others is taken to be given a host, as its agent takes it."""
        return "HOST" if self.options.handler else self.options.endpoint

    @property
    def stranger(self) -> RendezvousParameters:
        """The parameters of another job's first connection."""
        return replace(self.params, run_id=f"{self.params.run_id}-b")


def trial_id(rdzv_id: str | None) -> str:
    """Return a job id that no job uses, for what is tried."""
    return f"{rdzv_id or 'none'}-doctor-{secrets.token_hex(8)}"


def bounded_conf(conf: Mapping[str, str], options: RendezvousOptions) -> dict[str, str]:
    """Return what the user said, with less patience where the backend can be told so."""
    bounded = dict(conf)
    for key in {"connect_timeout", "read_timeout"} & options.conf.keys():
        with contextlib.suppress(ValueError):  # the backend says what is wrong with it
            if not float(bounded.get(key, store.PATIENCE)) < store.PATIENCE:
                bounded[key] = f"{store.PATIENCE:g}"
    return bounded


def needs_torch(backend: str, catalogue: Catalogue) -> bool:
    """Return True if the distribution that brings a backend requires torch."""
    if backend not in catalogue.names(*BACKENDS):
        return False
    distribution = catalogue.find(backend, *BACKENDS).entry_point.dist
    needed = (distribution.requires if distribution is not None else None) or ()
    return any(re.match(r"torch\b(?!-)", line) and "extra" not in line for line in needed)


def examine(subject: Subject, report: Report) -> None:
    """Do all of it; what cannot be known is said, too."""
    fine = True
    for name, check, limit in host_checks(subject):
        report.at(name, limit=limit)
        finding = _tried(name, check)
        report.send(finding)
        fine = fine and not (finding.state is State.WRONG and name in ("endpoint", "torch"))
        if not fine and name == "endpoint":
            break  # the address and the names stand on it
    if not fine:
        report.send(skipped("store", "not tried: what is wrong above comes first"))
    elif subject.options.handler:
        _examine_handler(subject, report)
    else:
        examine_store(subject, report)


def host_checks(subject: Subject) -> list[tuple[str, Callable[[], Finding], float]]:
    """Return the checks of this host: a name, what to do, and how many seconds that may take."""
    params, alone, long = subject.params, subject.options.single_node, 3 * ANSWER
    told = params.endpoint, subject.form, params.local_addr
    checks: list[tuple[str, Callable[[], Finding], float]] = [
        ("versions", partial(host.check_versions, subject.source), ANSWER),
        ("torch", partial(check_torch, subject), IMPORT),
        ("shared memory", host.check_shared_memory, ANSWER),
        ("open files", host.check_open_files, ANSWER),
    ]
    if "HOST" in subject.form:
        checks.append(("endpoint", partial(host.check_endpoint, params.endpoint), long))
    checks.append(("address", partial(host.check_address, *told, single_node=alone), long))
    if not alone:
        checks += [
            ("host name", partial(_with_address, told, lambda at: host.check_host_name(at, os.environ)), long),
            ("resolver", partial(_with_address, told, host.check_resolver), long),
        ]
    return checks


def check_torch(subject: Subject) -> Finding:
    """Check that torch can be imported if the backend needs it."""
    version, backend = installed_versions()["torch"], subject.params.backend
    if not subject.needs_torch:
        there = f"torch {version}" if version else "not installed"
        return ok("torch", f"{there}; the {backend} backend does without it")
    os.environ.update({name: value for name, value in _QUIET.items() if name not in os.environ})
    began = time.monotonic()
    try:
        importlib.import_module("torch")
    except Exception as exc:
        seen = f"the {backend} backend needs torch, which cannot be imported: {type(exc).__name__}: {exc}"
        advice = "Install torch for this Python, or mend it; or take a backend that does without, as redis and etcd."
        return wrong("torch", seen, advice, ExitCode.USAGE)
    return ok("torch", f"torch {version}, which the {backend} backend needs; imported in {_since(began)}")


def examine_store(subject: Subject, report: Report) -> None:
    """Connect, and try every operation; leave nothing."""
    with ExitStack() as stack:
        try:
            report.at("connect")
            began = time.monotonic()
            first = subject.plugins.make_rendezvous(subject.params)
        except ElasticError as exc:
            report.send(_no_connection(subject, exc))
            _skip(OF_STORE[1:], report)
            return
        stack.callback(first.close)
        own = first.embedded and first.hosting
        report.leaves = not own
        report.at("connect")
        report.send(_connected(subject, first, _since(began)))
        for found in first.warnings:
            report.send(warning("store", found.message, found.hint))
        try:
            _try_operations(subject, first, report)
        finally:
            check, during, *_ = report.last
            written = check not in OF_STORE[:3] or during not in ("", "connect", "enter")
            with contextlib.suppress(BrokenPipeError):  # the watcher was killed
                report.at("traces")
            traces = erase(subject, first)
            report.leaves = report.leaves and traces.state is not State.OK
            with contextlib.suppress(BrokenPipeError):
                report.at("traces")
        if own:
            traces = ok("traces", "none: the store was this doctor's own, and ends with it")
        if written or traces.state is State.OK:
            report.send(traces)
        report.leaves = False
        report.at("traces")


def _try_operations(subject: Subject, first: RendezvousBackend, report: Report) -> None:
    """Try each over a first connection and more, up to the first that is wrong."""
    check = OF_STORE[1]

    def at(during: str) -> None:
        report.at(check, during)

    with ExitStack() as stack:
        try:
            at("connect")
            second = first.connect()
            stack.callback(second.close)
            report.send(ok(check, "a second connection is made beside the first"))
            checks: dict[str, Callable[[], Finding]] = {
                "roster": lambda: store.check_roster(first, second, at),
                "ledger": lambda: store.check_ledger(first, second, at),
                "waiting": lambda: store.check_wake_up(first, second, at),
                "isolation": lambda: _isolation(subject, first, at),
                "heartbeat time": lambda: store.measure_heartbeats(first, subject.timing, at),
                "wake-up time": lambda: store.measure_wake_ups(first, second, at),
            }
            for name, look in checks.items():
                check = name
                report.send(look())
        except ElasticError as exc:
            report.send(refused(check, exc, report.last.during))
            _skip(OF_STORE[OF_STORE.index(check) + 1 :], report)


def erase(subject: Subject, store: RendezvousBackend) -> Finding:
    """Let nothing stay in the store; what came of it."""
    name, job = "traces", subject.params.run_id
    try:
        with closing(store.connect()) as fresh:  # the one that there is may be broken
            erased = fresh.erase()
    except RendezvousError as exc:
        seen = f"what was tried may still be in the store, as job {job!r}: {exc.message}"
        return warning(name, seen, exc.hint or "Delete it once the store works.")
    if not erased:
        seen = f"a few small keys stay in the store, as job {job!r}: this backend cannot delete a job"
        return warning(name, seen, "They do no harm; delete them as you delete those of finished jobs.")
    return ok(name, "none: all that was tried is deleted from the store")


def _isolation(subject: Subject, first: RendezvousBackend, at: store.At) -> Finding:
    params = subject.params
    if first.embedded and first.hosting and (params.node_rank is not None or "is_host" in params.config):
        return skipped("isolation", "not tried: one node hosts the store, and this host can be that node once only")
    at("another job id")
    stranger = subject.plugins.make_rendezvous(subject.stranger)
    assert isinstance(stranger, RendezvousBackend)
    with closing(stranger):
        try:
            return store.check_isolation(first, stranger, at)
        finally:
            with contextlib.suppress(RendezvousError):
                stranger.erase()


def _connected(subject: Subject, made: RendezvousBackend, taken: str) -> Finding:
    endpoint = subject.params.endpoint
    if not made.embedded:
        return ok("connect", f"the store lets this host in, after {taken}")
    if made.hosting:
        seen = f"no node hosts the store at {endpoint} yet; this doctor does until it ends, as an agent here would"
        return ok("connect", seen)
    return ok("connect", f"an agent hosts the store at {endpoint}, and lets this host in, after {taken}")


def _no_connection(subject: Subject, error: ElasticError) -> Finding:
    """Say why there is no connection. A refused one is no fault where the first agent is to listen."""
    early = isinstance(error, RendezvousConnectionError) and isinstance(error.__cause__, ConnectionRefusedError)
    if not (early and subject.options.embedded):
        return refused("connect", error)
    host_of = endpoint_host(subject.params.endpoint) or "the endpoint's host"
    return warning(
        "connect",
        f"no node hosts the store at {subject.params.endpoint} yet; that host itself answers",
        f"So it is before an agent starts on {host_of}: try again once one has. `elastic doctor` on {host_of} itself "
        "tries the store without one.",
    )


def _examine_handler(subject: Subject, report: Report) -> None:
    """Examine what can be known of a handler without joining with it."""
    endpoint = subject.params.endpoint
    port = re.search(r":(\d+)/?$", endpoint.partition(",")[0])
    name = endpoint_host(endpoint)
    if name is not None and port is not None:
        report.at("listener")
        report.send(check_listener(name, int(port[1])))
    seen = (
        f"{subject.params.backend} is a rendezvous handler of others, which does its work in one call that joins a "
        f"job. Without joining, these cannot be tried: {', '.join(OF_STORE)}"
    )
    report.send(skipped("store", seen))


def check_listener(name: str, port: int) -> Finding:
    """Check whether a server takes connections there."""
    where = HostPort(name, port)
    try:
        host.bounded(lambda: socket.create_connection((name, port), store.PATIENCE).close())
    except OSError as exc:
        advice = "If a server is meant, start it or check the address; a node may not have started yet."
        return warning("listener", f"no server takes connections at {where}: {exc.strerror or exc}", advice)
    return ok("listener", f"a server takes connections at {where}")


def _skip(names: Sequence[str], report: Report) -> None:
    if names:
        report.send(skipped("the rest", f"not tried: {', '.join(names)}"))


def _with_address(told: tuple[str, str, str | None], check: Callable[[str], Finding]) -> Finding:
    address = host.bounded(lambda: advertised_address(*told, single_node=False))
    return check(host.look_up(address)[0])


def _tried(name: str, check: Callable[[], Finding]) -> Finding:
    try:
        return check()
    except ElasticError as exc:
        return refused(name, exc)
    except OSError as exc:
        if name in ("host name", "resolver"):
            return skipped(name, "not tried: this host's address is not known")
        return wrong(name, f"{exc.strerror or exc}", None, ExitCode.WITHDRAWN)


def _since(began: float) -> str:
    taken = time.monotonic() - began
    return f"{taken:.1f} s" if taken >= 1 else f"{1000 * taken:.0f} ms"
