"""``elastic doctor``: whether nodes can meet with these flags, tried from this host, and what is wrong if not."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import closing
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from elastic_core.cli import FlagCommand, FlagOption, meeting_place, plugins_named, warn, without_effect
from elastic_core.config import FLAGS, NUMBERED, Flags, check_nodes, parse_conf
from elastic_core.config.parse import NodeRange
from elastic_core.exit_codes import signalled
from elastic_core.host import has_colours

if TYPE_CHECKING:
    from elastic_doctor.examination import Subject

TAKEN = (
    *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf"),
    *("node_rank", "master_addr", "master_port", "local_addr", "plugin"),
)
"""The flags of ``elastic run`` that say where and how nodes meet."""
SEVERAL = NodeRange(1, 2)
WIDEST = 120  # columns that lines have at most, on a terminal


def doctor(*, as_json: bool, **given: Any) -> int:
    """Examine; return the exit code."""
    from elastic_core.host import host_name  # none of this for --help
    from elastic_doctor.findings import Finding, as_json as json_of, line, section, summary, title, verdict
    from elastic_doctor.runner import Signalled, examine_in_process

    known = {item.name for item in fields(Flags)}
    flags = Flags(nnodes=SEVERAL, **{name: value for name, value in given.items() if name in known})
    subject = subject_of(flags)
    backend, endpoint = subject.params.backend, subject.params.endpoint
    findings: list[Finding] = []
    width = min(shutil.get_terminal_size().columns, WIDEST) if sys.stdout.isatty() else None
    heading = ""
    if not as_json:
        click.echo(title(backend, endpoint, host_name()))
    try:
        with closing(examine_in_process(subject)) as found:
            for finding in found:
                findings.append(finding)
                if not as_json:
                    if (under := section(finding)) != heading:
                        heading = under
                        click.echo(f"\n{heading}")
                    click.echo(line(finding, width), color=has_colours(sys.stdout))
    except Signalled as told:
        return signalled(told.signum)
    click.echo(json_of(findings, backend, endpoint) if as_json else f"\n{summary(findings, backend)}")
    return verdict(findings)


def subject_of(flags: Flags) -> Subject:
    """Return what the flags mean, as ``elastic run`` would take them.

    Raises:
        UsageError: A value is wrong, or two contradict each other.
        PluginError: The backend is not installed, or cannot be imported.
    """
    from elastic_core.plugins import BACKENDS, Catalogue, load_backend
    from elastic_core.rendezvous import RendezvousParameters, read_token
    from elastic_doctor.examination import Subject, bounded_conf, needs_torch, trial_id

    catalogue = Catalogue.read()
    backend, endpoint = meeting_place(flags)
    loaded = load_backend(backend, catalogue, plugins_named(flags, os.environ))
    options = loaded.rendezvous_options()
    nnodes = NodeRange(1, 1) if options.single_node else SEVERAL
    check_nodes((backend, endpoint), nnodes, options)
    conf = parse_conf(flags.rdzv_conf, backend=backend, options=options)
    for warning in (*without_effect(flags, backend, polled=options.handler), *conf.without_effect):
        warn(warning)
    params = RendezvousParameters(
        backend=backend,
        endpoint=endpoint,
        run_id=trial_id(flags.rdzv_id),
        min_nodes=nnodes.least,
        max_nodes=nnodes.most,
        local_addr=flags.local_addr,
        node_rank=(flags.node_rank or 0) if backend in NUMBERED else None,
        token=read_token(os.environ, conf.token_file),
        config=bounded_conf(conf.backend, options),
    )
    installed = [offer for offer in catalogue.offers(BACKENDS[0]) if offer.name == backend]
    return Subject(
        plugins=loaded,
        options=options,
        params=params,
        timing=conf.timing,
        source=installed[0].source if installed else "",
        needs_torch=needs_torch(backend, catalogue),
    )


command = FlagCommand(
    "doctor",
    callback=doctor,
    params=[
        *(FlagOption(flag) for flag in FLAGS if flag.name in TAKEN),
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object, for programs."),
    ],
    help="Check from this host whether the nodes can reach each other with these flags of `elastic run`. If not, name "
    "the problem and its remedy.\n\nThe command connects to the store, performs every operation of a job under an "
    "unused job id, measures how long each takes, and deletes its data. It also checks this host's address, names and "
    "limits. Jobs that use the same store are not affected.",
    epilog="The exit code is 0 if the command finds no error, else that of `elastic run` "
    "(docs/reference/exit_codes.md): 69 if the store is unreachable, 76 if it gives invalid answers, 2 for a wrong "
    "flag. Flags may be written with - or _, and are also read from PET_<FLAG>.",
)
