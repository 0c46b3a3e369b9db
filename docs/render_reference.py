"""Writes the pages of flags, events and known failures from the declarations in the code.

Names, levels and fields of events are read from the calls that make them; :data:`WHEN` says what each event means.

    python docs/render_reference.py

A test compares the pages with what this makes of the code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from elastic_core.cli.option import arrange
from elastic_core.config.environment import flag_variable
from elastic_core.config.run import FLAGS
from elastic_core.plugins.entry_points import Catalogue
from elastic_core.plugins.flags import declared_flags
from elastic_policies.known_failures import KNOWN_FAILURES

DOCS = Path(__file__).parent
FLAGS_PREFACE = """\
# The flags of `elastic run`

Made by `python docs/render_reference.py` from
[`elastic_core.config.run`](../../core/src/elastic_core/config/run.py) and the modules `flags` of plugins; change them
there. `elastic run --help` shows the same. Flags may be written with `-` or `_`. Elastic also reads each flag from the
variable in its row. [migrating.md](../migrating.md#every-flag-of-torchruns) compares the flags with torchrun's.
"""
EVENTS_PREFACE = """\
# Events

A run publishes events to its observers (`elastic_observe`, [plugin_hooks.md](plugin_hooks.md)). The agent prints the
message of each event from level INFO upwards. Made by `python docs/render_reference.py` from the code and the table in
that script. Programs can rely on names and fields, which are stable; messages change. Fields that end with `_s` hold
durations in seconds. Every event except those about plugins has a field `node`, the name of the publishing node.
With `--event_log_handler=console`, elastic-torchrun writes each event to stderr as a line of JSON.
[elastic-metrics](../../plugins/metrics/README.md) counts events and writes them to files.
"""
KNOWN_FAILURES_PREFACE = """\
# Known failures

elastic-policies searches for these texts in a worker's exception, at the end of its stderr, and in lines of the kernel
and the scheduler. If it finds one, the summary of a failed job has a line `hint`. Failure policies can ask for the
class (`incident.failure_class`). Made by `python docs/render_reference.py` from
[`known_failures.py`](../../plugins/policies/src/elastic_policies/known_failures.py); change them there. The first
matching row counts. A `yes` in the column `host` means that the worker's host may be at fault, so that a quarantine can
exclude it. [failures.md](../failures.md#classes-of-failures) defines the classes.
"""

ROOT = DOCS.parent
SOURCES = [ROOT / "core" / "src" / "elastic_core", *sorted(ROOT.glob("plugins/*/src/*/"))]
WHEN = {
    "run_starts": "The first entry of each file of elastic-metrics, which names run and node.",
    "joining": "The agent starts to look for the job.",
    "under_way": "The agent has found a running job. It joins once it has imported the modules of `--preload`.",
    "logs": "The agent has chosen the log directory.",
    "decisions": "The agent has failed. The file has its newest decisions; `python -m simulator --replay` makes them "
    "again.",
    "directory_removed": "elastic-operate has removed, before the node joined, a temporary directory of an agent that "
    "was killed together with its warden.",
    "job_file": "Commands on this host cannot find the agent, because elastic-operate has no directory for its file.",
    "settings_differ": "A duration or the script's arguments differ from those of the node that opened the run. The "
    "message names the values that apply.",
    "listens_everywhere": "The address that this node advertises is not an address of this host, so the agent listens "
    "at all addresses.",
    "output": "The agent cannot store or print the output or a log of a worker.",
    "waiting": "The job waits for nodes, or for the delay after a failure. Published by the leader.",
    "spare_lost": "A spare node is lost; `spares` are left of the `wanted` --spares. Published by the leader.",
    "resize_put_off": "A node waits for a place, because a resize would lose work (L13). Published by the leader.",
    "spare": "The job has its maximum of nodes, or `--nnodes` has no size for one more. This node waits for a place.",
    "notices_on": "elastic-notices polls the metadata service of this machine's cloud.",
    "notices_off": "The metadata service gives no valid answer, or the machine is not a spot machine. Published "
    "once until the service answers. WARNING if the user has named the cloud and it has never answered.",
    "host_at_risk": "The cloud reports that it may reclaim or has paused this machine. The job continues here.",
    "host_ends": "The cloud reports that it will reclaim this machine. The node leaves before that.",
    "node_check_failed": "A health check of this node failed ([health.md](../health.md)). `advice` is the remedy.",
    "node_check_again": "The failed health checks run again after the pause of `--health_retry`.",
    "node_check_broken": "A health check of a plugin raised an exception. Elastic ignores the check.",
    "node_checked": "All health checks of this node have passed, and at least one of them ran as a process.",
    "checked_again": "This host was excluded. The node leaves, and enters again after its health checks (rule L17).",
    "start_waits": "The workers of a round wait, because a plugin has named a condition for their start (rule L18).",
    "start_waited": "The workers start, because the condition holds.",
    "started_regardless": "The workers start after 10 s, although the condition does not hold.",
    "gpu_shared": "Processes outside of Elastic hold memory of this node's GPUs. The workers do not wait for them.",
    "gpu_silent": "The query for the processes that hold GPU memory failed three times in a row. Elastic stops asking.",
    "left_out": "This host was lost too often, or was excluded. It waits while other hosts have enough nodes.",
    "round_started": "A round begins. `verdict` is the policy that allowed a restart, and its reason. `cause` is "
    "`None` for the first round.",
    "stop_planned": "The workers of a healthy round must stop together within `deadline_s`.",
    "stop_at": "The workers of a planned stop have agreed on the step after which they end.",
    "hang": "The job hangs: no progress for the window, and no rank's stack changes. Published by every "
    "node. `stacks` has a line for each place where ranks are; `rank` is the one that the others wait for.",
    "hang_explained": "Plugins have explained the hang of a round, as elastic-torch does by torch's flight recorder.",
    "py_spy": "py-spy is installed, but has no permission to read the workers' memory.",
    "stacks": "All nodes have reported where their ranks are: for `elastic stacks`, or after a wrong suspicion.",
    "verdict": "The failure policies have judged a failure. The fields name the failure, the strictest `action` of all "
    "policies, its reason and its policy. Published by the leader. `elastic policy replay` reads it.",
    "round_halted": "A round has ended, and its workers are stopped.",
    "importing": "The workers have waited ten seconds for the imports of the fork server.",
    "workers_started": "The programs of all local workers run.",
    "restarted": "The programs of all local workers run again, `took_s` after the first sign of the failure; each "
    "phase has its end. If `warm` is false, `why` is the reason for the fresh start. If it is true, `unlearned` counts "
    "the modules that workers import by themselves.",
    "initialized": "All local workers have reported their process group. Not published if a worker reports nothing.",
    "progress_pattern": "A pattern matches the workers' output and gives their steps. Published once per pattern.",
    "progress": "The progress of a worker, at most every 10 s, once for the node. Unknown fields are `None`.",
    "output_unread": "A monitor reads an output no longer: it raised, or a user's pattern took too long on a line.",
    "report_ignored": "A worker sent a malformed report to its agent. Published once per round and reason.",
    "starter_ready": "The fork server has imported the modules of `--preload`. Published again when one with more "
    "imported modules has taken over: `learned` counts those that workers had imported; `refused` names those that the "
    "fork server must not import. Published with `pid` alone if it could not import more.",
    "starter_failed": "The agent cannot use the fork server. Every worker starts as a fresh interpreter.",
    "starter_died": "The fork server was killed. The agent starts another one.",
    "no_starter": "No starter is installed, so each worker starts as a new interpreter.",
    "started_fresh": "A worker was not forked from the fork server.",
    "store_died": "The process that served the workers' store has ended.",
    "workers_done": "All local workers have exited with 0.",
    "worker_failed": "The first failure of a round on this node.",
    "workers_signalled": "The warden has sent a signal to workers or to processes that they had started. `pids` also "
    "has the names of those processes.",
    "warden_silent": "The warden, the parent process of the workers, is stopped. The agent cannot observe the workers.",
    "worker_lingers": "The script of a worker ended half a minute ago, but its interpreter is still running. Only for "
    "workers that start warm.",
    "worker_stuck": "A worker is still running after SIGKILL.",
    "timer_expired": "A worker has not released its `torch.distributed.elastic.timer` in time. If "
    "`signal` is 0, the agent sends no signal.",
    "time_to_save": "The workers of a round have ended after a planned stop. The fields say whether they saved a "
    "checkpoint or a snapshot after the notice, and how many steps are lost. DEBUG if Elastic knows of none.",
    "stopping": "The agent stops the workers of a round. The message has the reason.",
    "fenced": "The node has stopped its workers, because it could not reach the store for 80 % of `fence_after`.",
    "warden_died": "The warden, the parent process of the workers, has died, and the workers with it.",
    "signal": "The agent has received a signal to leave.",
    "store_unreachable": "The store does not answer, or the node cannot read further entries.",
    "store_back": "The store answers again, or the node can read entries again.",
    "store_warning": "The store is misconfigured. Published once, after the agent has connected.",
    "store_lost": "The store is permanently lost.",
    "history_restored": "The store had lost entries. The run continues.",
    "outrun": "The store had lost entries, and another run has replaced this one. The node joins that run.",
    "leader_changed": "Another node has become the leader.",
    "row_ignored": "The leader cannot read the row of a node.",
    "row_unread": "The leader cannot read this node's row, or this node cannot read the leader's row. Published by the "
    "waiting node.",
    "job_closed": "The job has ended. The message has the root cause of a failure.",
    "rescuing": "The job has failed. The agent writes the snapshots that exist only in memory to disk.",
    "rescued": "A snapshot is on disk.",
    "rescue_failed": "A snapshot is lost. The message has the reason.",
    "idle": "The job has ended, and this node started no worker. The message has the reason.",
    "left": "This node leaves. The job may continue.",
    "policy_failed": "A failure policy raised an exception, or returned no valid verdict.",
    "policy_failed_traceback": "The traceback of `policy_failed`.",
    "policy_timed_out": "A failure policy returned no verdict in time.",
    "plugin_failed": "A plugin raised an exception, or returned no valid answer, about a failure, a lost node, the "
    "reason of a hang, or a condition for the start of workers; or a monitor raised an exception about a hang.",
    "plugin_failed_traceback": "The traceback of `plugin_failed`.",
    "plugin_timed_out": "A plugin returned no answer in time, about a failure, a lost node or the reason of a hang.",
    "node_gone": "A plugin has confirmed that a node is permanently gone.",
    "observer_switched_off": "An observer raised an exception. Elastic has switched it off.",
    "observer_switched_off_traceback": "The traceback of `observer_switched_off`.",
    "observer_fell_behind": "An observer was too slow. Elastic has dropped events.",
    "plugin_left_off": "Elastic could not load a plugin that requests autoload.",
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
    "restarted": "`round`, `took_s`, `warm`, `why`, `unlearned`, `detected_s`, `decided_s`, `stopped_s`, `running_s`",
    "initialized": "`round`, `workers`, `took_s`; after an interruption also the four phases of `restarted`, and "
    "`initialized_s`",
    "job_closed": "`success`, `exit_code`, `requeue`, `restarts`, `nodes_lost`, `run_s`, `interrupted_s`",
    "rescue_failed": "`step`, where it is known",
    "starter_ready": "`pid`, `took_s`; later also `learned`, `refused`",
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
            spellings = [f"--{flag.name}", flag.short, flag.off and f"--{flag.off}"]
            spelled = ", ".join(f"`{text}`" for text in spellings if text)
            metavar = f" `{flag.metavar}`" if flag.metavar else ""
            usual = spellings[0] if flag.off else "" if flag.is_switch else flag.default
            default = f"`{usual}`" if usual else flag.unset
            rows.append((spelled + metavar, flag.text, default, f"`{flag_variable(flag.name)}`"))
        parts.append(f"## {section}\n\n{_table(('flag', 'meaning', 'default', 'variable'), rows)}")
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
                func=ast.Name(id="AwaitedHook"), args=[ast.Constant(value=str(kind)), *_]
            ):  # plugins/verdicts.py
                yield f"{kind}_timed_out", "WARNING", "`plugin`, `timeout_s`"
                yield f"{kind}_failed", "WARNING", "`plugin`, `hook`"
                yield f"{kind}_failed_traceback", "DEBUG", "`plugin`, `hook`"
            case ast.Call(
                func=ast.Name(id="Event") | ast.Attribute(attr="_say" | "say"),
                args=[ast.Constant(value=str(name)), _, *rest],
            ):
                given = {"level": rest[:1], "fields": rest[1:2]}
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


PAGES = {
    "reference/flags.md": flags,
    "reference/events.md": events,
    "reference/known_failures.md": known_failures,
}

if __name__ == "__main__":
    for name, render in PAGES.items():
        (DOCS / name).write_text(render(), encoding="utf-8")
