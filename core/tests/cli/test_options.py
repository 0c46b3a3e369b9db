from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import click
import pytest
from click.testing import CliRunner

from elastic_core.cli.commands import Elastic, run
from elastic_core.cli.option import FlagOption
from elastic_core.cli.run import RunCommand
from elastic_core.config.flag import Flag
from elastic_core.config.parse import NodeRange, OnNodeLoss, Stream, StreamMap
from elastic_core.config.run import FLAGS, Flags
from elastic_core.errors import UsageError, how_to_install
from elastic_core.exit_codes import ExitCode
from elastic_core.plugins.entry_points import Catalogue, Group
from elastic_core.plugins.flags import declared_flags


def read(*line: str) -> Flags:
    """The flags of one command line."""
    found: list[Flags] = []

    def keep(**values: object) -> int:
        found.append(Flags(**values))  # type: ignore[arg-type] # click knows the types
        return 0

    RunCommand(keep).main(list(line), standalone_mode=False)
    return found[0]


def test_a_line_without_flags_has_every_default() -> None:
    assert read("train.py") == Flags(script="train.py")


def test_every_field_but_the_program_declares_a_flag() -> None:
    others = {"script", "arguments", "settings", "own_limit"}
    assert {item.name for item in fields(Flags)} == {flag.name for flag in FLAGS} | others


def test_every_flag_is_also_read_from_the_variable_that_torchrun_reads() -> None:
    assert [FlagOption(flag).envvar for flag in FLAGS] == [f"PET_{flag.name.upper()}" for flag in FLAGS]


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_the_default_of_every_flag_is_accepted_from_python(flag: Flag[Any]) -> None:
    assert flag.accept(flag.value) == flag.value


@pytest.mark.parametrize("spelling", ["--nproc_per_node", "--nproc-per-node"])
@pytest.mark.parametrize("form", ["{}=4", "{} 4"])
def test_both_spellings_and_both_forms_work(spelling: str, form: str) -> None:
    assert read(*form.format(spelling).split(), "train.py").nproc_per_node == 4


WORDS = {
    "on_node_loss": "fail",
    "signals_to_handle": "SIGUSR1",
    "start_method": "fork",
}
"""Values of the flags that do not take ``2``."""


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag.name and "_" in flag.name], ids=lambda flag: flag.name)
def test_every_flag_has_both_spellings(flag: Flag[Any]) -> None:
    value = [] if flag.is_switch else [WORDS.get(flag.name, "2")]
    spelling = f"--{flag.off or flag.name}"
    under, dashed = (read(name, *value, "x") for name in (spelling, spelling.replace("_", "-")))
    assert under == dashed != Flags(script="x")


@pytest.mark.parametrize(
    ("line", "arguments"),
    [
        ("train.py", ()),
        ("train.py --nnodes 7 -m --help -- x", ("--nnodes", "7", "-m", "--help", "--", "x")),
        ("-- train.py --lr 1", ("--lr", "1")),
        ("--nproc_per_node 2 train.py --nproc_per_node=3", ("--nproc_per_node=3",)),
    ],
)
def test_arguments_after_the_script_are_the_scripts(line: str, arguments: tuple[str, ...]) -> None:
    flags = read(*line.split())
    assert (flags.script, flags.arguments, flags.nnodes) == ("train.py", arguments, NodeRange(1, 1))


def test_short_flags_are_torchruns() -> None:
    flags = read("-r", "3", "-t0:1", "-m", "package.train")
    assert (flags.redirects, flags.tee) == (StreamMap(default=Stream.ALL), StreamMap(by_rank={0: Stream.OUT}))
    assert (flags.module, flags.script) == (True, "package.train")


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("PET_NNODES", "1:4", "nnodes", NodeRange(1, 4)),
        ("PET_STANDALONE", "1", "standalone", True),
        ("PET_MASTER_ADDR", "[fd00::1]", "master_addr", "fd00::1"),
        ("PET_STANDALONE", "0", "standalone", False),
        ("PET_ON_NODE_LOSS", "fail", "on_node_loss", OnNodeLoss.FAIL),
        ("PET_USE_ENV", "0", "use_env", False),
        ("PET_PLUGIN", "one, two", "plugin", ("one", "two")),
        ("PET_NNODES", "", "nnodes", NodeRange(1, 1)),
    ],
)
def test_flags_are_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, field: str, value: object
) -> None:
    monkeypatch.setenv(variable, text)
    assert getattr(read("train.py"), field) == value


def test_the_command_line_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_MAX_RESTARTS", "7")
    assert read("--max_restarts", "1", "train.py").max_restarts == 1


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("--redirect=3 x", "redirects", StreamMap(default=Stream.ALL)),
        ("--nproc=2 x --nproc=3", "nproc_per_node", 2),
        ("--nproc-per 2 x", "nproc_per_node", 2),
        ("--nproc_per=2 x", "nproc_per_node", 2),
        ("--master-p 7 --rdzv-b=c10d x", "master_port", 7),
        ("--stand x", "standalone", True),
        ("--pass_l x", "use_env", False),
        ("--nproc 2 -m --max 1 x", "max_restarts", 1),
    ],
)
def test_flags_may_be_cut_short_before_the_script(line: str, field: str, value: object) -> None:
    flags = read(*line.split())
    assert (getattr(flags, field), flags.script) == (value, "x")
    assert set(flags.arguments) <= {"--nproc=3"}


@pytest.mark.parametrize("flag", ["--rdzv", "--rdzv=1", "--rdzv_"])
def test_a_flag_that_is_short_for_several_is_refused_with_all_of_them(flag: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(flag, "x", "train.py")
    assert refused.value.message == (
        f"{flag.partition('=')[0]} is short for more than one flag: "
        "--rdzv_backend, --rdzv_conf, --rdzv_endpoint, --rdzv_id."
    )


@pytest.mark.parametrize("line", ["-no x", "-no_p x", "--n=2 x", "--nodes=2 x", "-q x"])
def test_an_abbreviation_of_no_flag_is_refused(line: str) -> None:
    with pytest.raises(click.NoSuchOption):
        read(*line.split())


def test_flags_that_take_several_values_may_be_repeated() -> None:
    assert read("--plugin", "one", "--plugin=two", "--no-plugin", "three", "x").plugin == ("one", "two")


def test_a_wrong_value_is_quoted_with_the_nearest_right_one() -> None:
    with pytest.raises(UsageError) as refused:
        read("--nnodes", "4:2", "train.py")
    assert str(refused.value) == ("--nnodes '4:2' has a minimum, 4, greater than its maximum, 2. Did you mean '2:4'?")


def test_a_wrong_value_from_the_environment_says_where_it_is_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "4x")
    with pytest.raises(UsageError) as refused:
        read("train.py")
    assert str(refused.value) == (
        "--nproc_per_node '4x' is not a whole number.\nThe value comes from PET_NPROC_PER_NODE."
    )


def test_the_help_shows_every_flag_in_its_section_within_80_columns() -> None:
    shown = CliRunner(env={"COLUMNS": "80"}).invoke(RunCommand(lambda: 0), ["--help"], terminal_width=80).output
    sections = [line[:-1] for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert sections == [
        *(
            "Examples",
            "Job size",
            "Rendezvous",
            "Program",
            *(["Placement"] if is_installed("devices") else []),
            "Failure",
            *(["Health"] if is_installed("health") else []),
            "Output",
            "Progress",
            "Plugins",
        ),
        "Taken from torchrun's command lines, without effect here",
    ]
    assert max(map(len, shown.splitlines())) <= 80
    assert [flag.name for flag in FLAGS if f"--{flag.name}" not in shown] == []
    assert "[default: 30]" in shown


def is_installed(name: str) -> bool:
    return name in Catalogue.read().names(Group.FLAGS)


def shown(flag: str, capsys: pytest.CaptureFixture[str], columns: int = 80) -> str:
    """Return the output of ``elastic run`` with this flag on a terminal of so many columns."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("COLUMNS", str(columns))
        assert run(Elastic(), ["run", flag]) == 0
    return capsys.readouterr().out


def test_the_short_help_has_the_flags_of_a_first_week_and_three_examples(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown("-h", capsys)
    assert text.count("\n  elastic run ") == 3
    options = text.partition("\nOptions (--help shows all):\n")[2]
    assert {*re.findall(r"^  --(\w+)", options, re.MULTILINE)} == {
        "nnodes",
        "nproc_per_node",
        "rdzv_backend",
        "rdzv_endpoint",
        "rdzv_id",
        "max_restarts",
        "log_dir",
        "standalone",
    }


def test_the_examples_of_the_help_are_command_lines_that_are_valid(capsys: pytest.CaptureFixture[str]) -> None:
    examples = re.findall(r"^  elastic run (.*)$", shown("-h", capsys).replace("\\\n", ""), re.MULTILINE)
    assert [read(*example.split()).script for example in examples] == ["train.py", "train.py", "package.train"]


@pytest.mark.parametrize("columns", [60, 80, 100])
def test_the_whole_help_has_every_flag_and_exit_code_and_fits_the_terminal(
    capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    text = shown("--help", capsys, columns)
    assert {*re.findall(r"^  (?:-\w, )?--(\w+)", text, re.MULTILINE)} == {
        *(flag.name for flag in FLAGS),
        *declared_flags(Catalogue.read()),
    }
    codes = " ".join(text[text.index("The exit code is") :].split())
    assert {*re.findall(r"\d+", codes)} == {str(code.value) for code in ExitCode} | {"128"}
    assert "docs/" not in text, "a wheel has none"
    examples = text[text.index("Examples:") : text.index("Job size:")]
    assert max(len(line) for line in text.replace(examples, "").splitlines()) < columns


@pytest.mark.parametrize("spelling", ["--failure_policy=budget=1/1h", "--failure-pol=x", "PET_FAILURE_POLICY"])
def test_a_flag_of_a_distribution_that_is_not_installed_names_it(
    monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    monkeypatch.setattr(Catalogue, "read", lambda: Catalogue([]))
    if spelling.startswith("PET_"):
        monkeypatch.setenv(spelling, "budget=1/1h")
    with pytest.raises(UsageError) as refused:
        read(*([] if spelling.startswith("PET_") else [spelling]), "train.py")
    assert refused.value.message == "--failure_policy needs elastic-policies, which is not installed."
    assert refused.value.hint == how_to_install("elastic-policies")


def test_entry_points_are_read_only_for_names_that_core_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Catalogue, "read", lambda: pytest.fail("read"))
    line = ["--nnodes=2", "--max-restarts", "7", "-m", "-t", "3", "train.py", "--failure_policy=x"]
    assert read(*line).max_restarts == 7
