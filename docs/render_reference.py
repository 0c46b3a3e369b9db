"""Writes the pages of flags, environment variables, events and known failures from the declarations in the code.

Names, levels and fields of events are read from the calls that make them; :data:`WHEN` says what each event means.

    python docs/render_reference.py

A test compares the pages with what this makes of the code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from elastic_core.cli.settle import FLAGS
from elastic_core.config.environment import VARIABLES, Use, flag_variable
from elastic_core.config.flag import arrange
from elastic_core.known_failures import KNOWN_FAILURES
from elastic_core.plugins.entry_points import Catalogue
from elastic_core.plugins.flags import declared_flags

DOCS = Path(__file__).parent
FLAGS_PREFACE = """\
# The flags of `elastic run`

Made by `python docs/render_reference.py` from
[`elastic_core.config.run`](../core/src/elastic_core/config/run.py),
[`elastic_core.cli.settle`](../core/src/elastic_core/cli/settle.py) and the modules `flags` of plugins; change them
there. `elastic run --help` shows the same. Flags may be written with `-` or `_`. Each is also read from the variable of
its row.
[migrating.md](migrating.md#every-flag-of-torchruns) compares them with torchrun's.
"""
ENVIRONMENT_PREFACE = """\
# Environment variables

Made by `python docs/render_reference.py` from
[`elastic_core.config.environment`](../core/src/elastic_core/config/environment.py); change them there. Each flag of
`elastic run` is also read from a variable `PET_<FLAG>`: [flags.md](flags.md) lists those.
"""
EVENTS_PREFACE = """\
# Events

What a run tells its observers (`elastic_observe`, [plugin_hooks.md](plugin_hooks.md)) and, from level INFO on, people.
Made by `python docs/render_reference.py` from the code and the table in that script. Names and fields are stable, for
programs; the messages are for people, and change. Durations are in seconds, in fields that end with `_s`. Every event
but those about plugins also has a field `node`, the name of the node that publishes it. With
`--event_log_handler=console` each event is a JSON line on stderr; [elastic-metrics](../plugins/metrics/README.md)
counts them, and writes them to files, each of which begins with an entry `run_starts` that names run and node.
"""
KNOWN_FAILURES_PREFACE = """\
# Known failures

Texts that Elastic recognizes in the exception of a worker, at the end of its stderr, or in lines of the kernel and the
scheduler. The summary of a failed job then has a line `hint`, and failure policies can ask for the class
(`elastic_core.known_failures.classify`). Made by `python docs/render_reference.py` from
[`elastic_core.known_failures`](../core/src/elastic_core/known_failures.py); change them there. The first row that is
found is the answer, so the order matters. A failure with `yes` in the column `host` can be the fault of the worker's
host, which a quarantine then leaves out. [failures.md](failures.md#classes-of-failures) says what the classes mean.
"""
USES = {
    Use.SET: "Set for each worker",
    Use.DEFAULTED: "Set for each worker, unless the agent has it already",
    Use.READ: "Read by the agent",
    Use.FORK_SERVER: "Set for the fork server while it starts",
    Use.SERVICE: "Set for a service that starts as a fresh interpreter",
}

SOURCES = [
    DOCS.parent / "core" / "src" / "elastic_core",
    DOCS.parent / "plugins" / "notices" / "src" / "elastic_notices",
    DOCS.parent / "plugins" / "health" / "src" / "elastic_health",
    DOCS.parent / "plugins" / "operate" / "src" / "elastic_operate",
]
WHEN = {
    "joining": "The agent looks for the job.",
    "under_way": "The agent has found a run under way, and joins it once the modules of `--preload` are imported.",
    "logs": "The folder of the logs is known.",
    "directory_removed": "A temporary directory, left by an agent that was killed together with its warden, is removed "
    "(not published for those that `elastic_launch` removes before plugins are loaded).",
    "job_file": "Commands on this host do not find the agent: elastic-operate has no directory for its file.",
    "settings_differ": "A duration or the script's arguments differ from those of the node that opened the run. The "
    "message says which ones hold.",
    "listens_everywhere": "The address that other nodes are given is not an address of this host, so its ports "
    "listen at all addresses.",
    "output": "The output or a log of a worker cannot be kept or shown.",
    "waiting": "The job waits for nodes, or for the delay after a failure. The leader publishes it.",
    "spare_lost": "A node that waited as a spare is lost; how many of --spares still wait. The leader publishes it.",
    "resize_put_off": "A node waits for a place, since a resize would lose work (L13). The leader publishes it.",
    "spare": "The job has all nodes that it takes, or no size of `--nnodes` for one more: this node waits for a place.",
    "notices_on": "elastic-notices asks the metadata service of this machine's cloud.",
    "notices_off": "The metadata service does not answer as it should, or the machine is not a spot machine. Published "
    "once until it answers; a WARNING if the user has named the cloud and it has never answered.",
    "host_at_risk": "The cloud says that this machine may be taken away or is paused; the job goes on here.",
    "host_ends": "The cloud says that this machine is taken away, and the node leaves before that.",
    "node_check_failed": "A health check of this node failed ([health.md](health.md)): what it `found`, what to do.",
    "node_check_again": "Failed health checks run again after the pause of `--health_retry`.",
    "node_check_broken": "A health check of a plugin raised an exception; it refuses nothing.",
    "node_checked": "All health checks of this node have passed, and one of them was a process.",
    "checked_again": "This host was excluded: the node leaves, and enters again through its health checks (rule L17).",
    "start_waits": "The workers of a round wait, as a plugin says that something must happen first (rule L18).",
    "start_waited": "They start, as it has happened.",
    "started_regardless": "They start although it has not, after 10 s.",
    "gpu_shared": "Processes that are no run of Elastic's hold memory of this node's GPUs; nothing waits for them.",
    "gpu_silent": "The GPUs did not say three times in a row who holds their memory, and are not asked any more.",
    "left_out": "This host was lost too often, or was excluded: it waits while nodes of other hosts are enough.",
    "round_started": "A round begins. `verdict` is the policy that allowed a restart, and its reason. `cause` is "
    "`None` for the first round.",
    "stop_planned": "The workers of a healthy round are to stop together within `deadline_s`.",
    "stop_at": "The step after which the workers of a planned stop end is agreed.",
    "hang": "Nothing moves: no progress for the window, and no rank's stack changes (rule L14). Every node publishes "
    "it, with a line for each place where ranks are in `stacks`, and in `rank` the one that the others wait for.",
    "hang_explained": "Plugins have said why a round hangs: elastic-torch, by torch's flight recorder.",
    "py_spy": "py-spy is installed and may not read the workers' memory.",
    "stacks": "All nodes have said where their ranks are: for `elastic stacks`, or because a suspicion was wrong.",
    "verdict": "The failure policies have judged a failure: what failed, the strictest `action` of all policies, why, "
    "and which policy decided. The leader publishes it. `elastic policy replay` reads it.",
    "round_halted": "A round is over, and its workers are stopped.",
    "importing": "The workers have waited for ten seconds for the modules that the fork server imports.",
    "workers_started": "The programs of all local workers run.",
    "recovered": "The programs of all local workers run again. Each field is the time from the first trouble to the "
    "end of one part.",
    "restarted": "The interruption as one duration. Where `warm` is false, `why` says why workers started fresh; where "
    "it is true, `unlearned` counts the modules that workers import by themselves.",
    "initialized": "All local workers have reported that the process group is there. A worker that reports nothing "
    "keeps the event away.",
    "progress_pattern": "It is known what the workers print, so that their steps are read. Published once per pattern.",
    "progress": "How far a worker is, every 10 s at most, once for the node; fields that nothing says are `None`.",
    "progress_unread": "An output is not read for its progress any more: a line took a pattern too long.",
    "report_ignored": "A worker sent its agent something that is not a report. Published once per round and reason.",
    "fork_server_ready": "The fork server has imported the modules of `--preload`.",
    "fork_server_failed": "The fork server cannot be used: every worker starts a fresh interpreter.",
    "fork_server_died": "The fork server was killed. The agent starts another one.",
    "fork_server_grown": "A fork server that has imported more modules has taken over. `learned` counts those that "
    "workers had imported; `refused` names those that must not be imported ahead.",
    "fork_server_stayed": "The fork server could not import more modules.",
    "started_fresh": "A worker was not forked from the fork server.",
    "store_died": "The process that held the workers' store is gone.",
    "workers_done": "All local workers have exited with 0.",
    "worker_failed": "The first failure of a round on this node.",
    "workers_signalled": "The warden has sent a signal to workers, or to processes that they had started; `pids` has "
    "the names of the latter.",
    "warden_silent": "The warden, the parent of the workers, is stopped or frozen: nothing of the workers is noticed.",
    "worker_lingers": "The script of a worker ended half a minute ago, and its interpreter has not. Only for workers "
    "that start warm.",
    "worker_stuck": "A worker outlives SIGKILL.",
    "timer_expired": "A worker has not released its `torch.distributed.elastic.timer` in time. "
    "`signal` 0: none is sent.",
    "time_to_save": "The workers of a round have ended after a planned stop: whether a checkpoint or a snapshot is "
    "known that was saved after the notice, and how many steps are lost. DEBUG where nothing is known.",
    "stopping": "The workers of a round are being stopped. The message says why.",
    "fenced": "The workers were stopped, because the node had no contact with the store for 80 % of `fence_after`.",
    "warden_died": "The warden, the parent process of the workers, is gone, and the workers with it.",
    "signal": "A signal tells the agent to leave.",
    "store_unconfirmed": "The store does not confirm that this node's server is the current one, so no round begins.",
    "store_unreachable": "The store does not answer, or cannot be read on.",
    "store_back": "The store answers, or can be read, again.",
    "store_warning": "The store is not configured as it should be. Published once, after the agent has connected.",
    "store_lost": "The store is lost for good.",
    "history_restored": "The store had lost entries, and the run goes on.",
    "outrun": "The store had lost entries, and another run has taken the place of this one. The node joins it.",
    "leader_changed": "Another node leads from here on.",
    "row_ignored": "The leader cannot read the row of a node.",
    "row_unread": "The leader cannot read this node's row, or this node cannot read the leader's. The waiting node "
    "publishes it.",
    "job_closed": "The job is over. The message has the root cause of a failure.",
    "rescuing": "The job has failed, and snapshots that exist only in its workers' memory are being written to disk.",
    "rescued": "A snapshot is on disk.",
    "rescue_failed": "A snapshot is lost. The message says why.",
    "idle": "The job is over, and this node started no worker. The message says why.",
    "left": "This node leaves, and the job may go on.",
    "policy_failed": "A failure policy raised, or gave no proper verdict.",
    "policy_failed_traceback": "The traceback of `policy_failed`.",
    "policy_timed_out": "A failure policy gave no verdict in time.",
    "plugin_failed": "A plugin raised, or gave no proper answer, when it was asked whether a node is gone, why a job "
    "hangs, or whether workers should wait before they start.",
    "plugin_failed_traceback": "The traceback of `plugin_failed`.",
    "plugin_timed_out": "A plugin that was asked whether a node is gone, or why a job hangs, gave no answer in time.",
    "node_gone": "A plugin vouches that a node is gone for good.",
    "observer_switched_off": "An observer raised, and is switched off.",
    "observer_switched_off_traceback": "The traceback of `observer_switched_off`.",
    "observer_fell_behind": "An observer was too slow, and notices were dropped.",
    "plugin_left_off": "A plugin that asked for autoload could not be loaded.",
    "no_ledger": "Over a rendezvous handler: what the job has to do without. The message says what that costs.",
    "handler_busy": "Over a rendezvous handler: it has looked for a round for a long time.",
    "handler_silent": "Over a rendezvous handler: it does not say how many nodes wait.",
    "handler_answers": "Over a rendezvous handler: it says again how many nodes wait.",
    "handler_stays": "Over a rendezvous handler: it could not be shut down in time.",
}
"""When each event is published, in the order of the page."""
LEVELS = {
    "time_to_save": "INFO, WARNING, DEBUG",
    "job_closed": "INFO; ERROR for a failed job",
    "left": "INFO, WARNING or ERROR, by the exit code",
    "round_halted": "DEBUG for a failure of a worker, else INFO",
    "workers_signalled": "DEBUG for SIGTERM, else INFO",
}
"""Of events whose level is not literal."""
FIELDS = {
    "time_to_save": "`round`, `had_s`, `took_s`, `step`, `saved_step`, `saved_s`, `in_memory`, `in_time`, `lost_steps`",
    "recovered": "`round`, `detected_s`, `decided_s`, `stopped_s`, `running_s`",
    "initialized": "`round`, `workers`, `took_s`; after an interruption also those of `recovered`, and `initialized_s`",
    "job_closed": "`success`, `exit_code`, `requeue`, `restarts`, `nodes_lost`, `run_s`, `interrupted_s`",
    "rescue_failed": "`step`, where it is known",
}
"""Of events whose fields are not literal."""


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(head)
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(_cell(text) for text in line)} |\n" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def flags() -> str:
    """Return the page of the flags, by section, in the order of the help."""
    parts = [FLAGS_PREFACE]
    flags = arrange(FLAGS, declared_flags(Catalogue.read()).values())
    for section, members in groupby(flags, key=lambda flag: flag.section):
        rows = []
        for flag in members:
            spelled = ", ".join(f"`{text}`" for text in flag.spellings)
            metavar = f" `{flag.metavar}`" if flag.metavar else ""
            usual = flag.spellings[0] if flag.off else "" if flag.is_switch else flag.default
            default = f"`{usual}`" if usual else flag.unset
            rows.append((spelled + metavar, flag.text, default, f"`{flag_variable(flag.name)}`"))
        parts.append(f"## {section}\n\n{_table(('flag', 'meaning', 'default', 'variable'), rows)}")
    return "\n".join(parts)


def environment() -> str:
    """Return the page of the variables, by use, in the order of the code."""
    parts = [ENVIRONMENT_PREFACE]
    for use, title in USES.items():
        rows = [(f"`{variable.name}`", variable.meaning) for variable in VARIABLES if variable.use is use]
        parts.append(f"## {title}\n\n{_table(('variable', 'meaning'), rows)}")
    return "\n".join(parts)


def events() -> str:
    """Return the page of the events, in the order of :data:`WHEN`."""
    found: dict[str, list[tuple[str, str]]] = {}
    for root in SOURCES:
        for path in sorted(root.rglob("*.py")):
            for name, level, fields in published(path.read_text(encoding="utf-8")):
                found.setdefault(name, []).append((level, fields))
    if found.keys() != WHEN.keys():
        raise SystemExit(f"events without a row in WHEN, or rows without an event: {found.keys() ^ WHEN.keys()}")
    rows = []
    for name, when in WHEN.items():
        levels = LEVELS.get(name) or ", ".join(dict.fromkeys(level for level, _ in found[name]))
        fields = FIELDS.get(name) or next((fields for _, fields in found[name] if fields), "")
        rows.append((f"`{name}`", levels, fields, when))
    return f"{EVENTS_PREFACE}\n{_table(('event', 'level', 'fields', 'when'), rows)}"


def known_failures() -> str:
    """Return the page of the known failures, in the order in which they are searched."""
    rows = [
        (known.name, known.failure_class.value, "yes" if known.host else "", known.advice, f"[text]({known.source})")
        for known in KNOWN_FAILURES
    ]
    return f"{KNOWN_FAILURES_PREFACE}\n{_table(('failure', 'class', 'host', 'hint', 'reported'), rows)}"


def published(source: str) -> Iterator[tuple[str, str, str]]:
    """Yield the events that a module makes: the name, the level, and the fields in backquotes, as far as they are
    literal.
    """
    tree = ast.parse(source)
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AnnAssign)]
    found = [(node.lineno, node.value) for node in assigned if isinstance(node.value, ast.Dict)]
    dicts = sorted(found, key=lambda each: each[0])
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="failure_events"), args=[ast.Constant(value=str(name)), *_]):
                yield name, "WARNING", "`plugin`, `hook`"
                yield f"{name}_traceback", "DEBUG", "`plugin`, `hook`"
            case ast.Call(
                func=ast.Name(id="_answers"), args=[ast.Constant(value=str(kind)), *_]
            ):  # plugins/verdicts.py
                yield f"{kind}_timed_out", "WARNING", "`plugin`, `timeout_s`"
                yield f"{kind}_failed", "WARNING", "`plugin`, `hook`"
                yield f"{kind}_failed_traceback", "DEBUG", "`plugin`, `hook`"
            case ast.Call(
                func=ast.Name(id="Event") | ast.Attribute(attr="_say"), args=[ast.Constant(value=str(name)), *rest]
            ):
                given = {"level": rest[1:2], "fields": rest[2:3]}
                given |= {word.arg: [word.value] for word in node.keywords if word.arg}
                level = next((ast.unparse(each).removeprefix("Level.") for each in given["level"]), "INFO")
                yield name, level, ", ".join(f"`{key}`" for key in _keys(given["fields"], dicts))


def _keys(values: Iterable[ast.expr | None], dicts: Sequence[tuple[int, ast.Dict]]) -> Iterator[str]:
    """Yield the literal keys of dictionaries; a name stands for the dictionary that was assigned last above it."""
    for value in values:
        match value:
            case ast.Dict(keys=keys, values=inner):
                for key, each in zip(keys, inner, strict=True):
                    yield from _keys([each], dicts) if key is None else [ast.literal_eval(key)]
            case ast.Name(lineno=line):
                yield from _keys([found for at, found in dicts if at < line][-1:], dicts)


PAGES = {"flags.md": flags, "environment.md": environment, "events.md": events, "known_failures.md": known_failures}

if __name__ == "__main__":
    for name, render in PAGES.items():
        (DOCS / name).write_text(render(), encoding="utf-8")
