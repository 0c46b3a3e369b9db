"""Defaults of flags out of a scheduler's variables, which a plugin of the group ``elastic.schedulers`` makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any, ClassVar

import pytest

from elastic_core.cli.run import RunCommand, with_defaults
from elastic_core.config.parse import NodeRange
from elastic_core.config.run import Flags
from elastic_core.errors import PluginError, UsageError, how_to_install
from elastic_core.hookspecs import hookimpl
from elastic_core.plugins.entry_points import Catalogue, Group, InstalledPlugin

SLURM = {"SLURM_JOB_ID": "77"}


class Answers:
    """A plugin whose hook is a function of the test."""

    def __init__(self, answer: Callable[[Mapping[str, str], Mapping[str, object]], object]) -> None:
        self.answer = answer

    @hookimpl
    def elastic_scheduler_defaults(self, environ: Mapping[str, str], given: Mapping[str, object]) -> object:
        return self.answer(environ, given)


class Installed(metadata.EntryPoint):
    """An entry point whose plugin is there already."""

    plugin: ClassVar[object] = None

    def load(self) -> object:
        return self.plugin


def flags(
    *arguments: str,
    answer: Callable[[Mapping[str, str], Mapping[str, object]], object] | None = None,
    environ: Mapping[str, str] = SLURM,
    name: str = "slurm",
    variable: str = "SLURM_JOB_ID",
) -> tuple[Flags, list[str]]:
    """Return the flags of a command line in that environment, with this plugin or none, and the warnings."""
    seen: list[Flags] = []
    warnings: list[str] = []
    offers = []
    if answer is not None:
        point = type("Point", (Installed,), {"plugin": Answers(answer)})(
            name, f"its [{variable}]", Group.SCHEDULERS.key
        )
        offers.append(InstalledPlugin(Group.SCHEDULERS, name, "its-scheduler", "1", point))

    def callback(**values: Any) -> int:
        found = with_defaults(Flags(**values), environ, warnings.append, Catalogue(offers))
        if found.rdzv_id == "refused":
            raise UsageError("--rdzv_id is not allowed.", hint="Take another.")
        seen.append(found)
        return 0

    RunCommand(callback).main([*arguments, "train.py"], standalone_mode=False)
    return seen[0], warnings


def test_a_default_of_the_scheduler_is_used_and_a_flag_that_is_given_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_ROLE", "mine")
    texts = {"nnodes": "4", "rdzv_id": "a", "role": "b"}
    found, warnings = flags("--rdzv_id=given", answer=lambda *_: {name: (text, "X") for name, text in texts.items()})
    assert (found.nnodes, found.rdzv_id, found.role, warnings) == (NodeRange(4, 4), "given", "mine", [])


def test_the_plugin_sees_the_variables_and_what_was_given() -> None:
    found, _ = flags(
        *("--nnodes=2", "--pass_local_rank"),
        answer=lambda environ, given: {"rdzv_id": (f"{environ['SLURM_JOB_ID']} {sorted(given)}", "X")},
    )
    assert found.rdzv_id == "77 ['nnodes', 'use_env']"


def test_outside_of_a_job_no_plugin_is_asked() -> None:
    assert flags(answer=lambda *_: {"rdzv_id": ("a", "X")}, environ={})[0] == Flags(script="train.py")


def test_a_plugin_that_answers_none_changes_nothing() -> None:
    assert flags(answer=lambda *_: None) == (Flags(script="train.py"), [])


def test_where_the_plugin_is_missing_one_line_says_so_unless_the_command_says_where_nodes_meet() -> None:
    assert flags()[1] == [
        "This is job 77 of slurm, and elastic-slurm is not installed, so this node runs by itself. Say where the nodes "
        f"meet (--nnodes, --rdzv_endpoint), or: {how_to_install('elastic-slurm')}"
    ]
    assert flags("--nnodes=2", "--rdzv_endpoint=a:1")[1] == []


def test_a_value_that_is_wrong_names_the_variable_that_it_is_from() -> None:
    with pytest.raises(UsageError) as caught:
        flags(answer=lambda *_: {"rdzv_id": ("refused", "SLURM_JOB_ID")})
    assert caught.value.hint == "Take another.\nThe value comes from SLURM_JOB_ID."


def test_a_default_of_a_flag_that_does_not_exist_is_the_plugins_fault() -> None:
    with pytest.raises(PluginError, match=r"gives a default to --nnode, which is no flag\. Did you mean"):
        flags(answer=lambda *_: {"nnode": ("4", "X")})


def test_a_scheduler_that_core_does_not_know_gives_defaults_by_its_plugin_alone() -> None:
    pbs = {"PBS_JOBID": "12.srv"}
    found, warnings = flags(
        answer=lambda *_: {"rdzv_id": ("12.srv", "PBS_JOBID")}, environ=pbs, name="pbs", variable="PBS_JOBID"
    )
    assert (found.rdzv_id, warnings) == ("12.srv", [])
    found, _ = flags(answer=lambda *_: {"rdzv_id": ("x", "X")}, environ={}, name="pbs", variable="PBS_JOBID")
    assert found.rdzv_id is None


def test_of_rdzv_conf_each_key_that_is_given_wins() -> None:
    found, _ = flags("--rdzv_conf=run_uid=a,order=1", answer=lambda *_: {"rdzv_conf": ("order=2,join_timeout=9", "X")})
    assert found.rdzv_conf == "join_timeout=9,run_uid=a,order=1"


def test_a_refusal_of_the_plugin_is_the_users_error() -> None:
    def refuse(*_: object) -> None:
        raise UsageError("There is no srun.")

    with pytest.raises(UsageError, match="There is no srun"):
        flags(answer=refuse)
