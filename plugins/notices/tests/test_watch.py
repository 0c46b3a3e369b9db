"""The events about a source, the time between its polls, and the plugin's settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from elastic_core import JoinedRun
from elastic_core.config.program import Program, ProgramKind
from elastic_core.config.run import RunConfig
from elastic_core.errors import UsageError
from elastic_core.events import Event, Level
from elastic_core.plugins.manager import load
from elastic_notices import aws
from elastic_notices.metadata import Notice, NotUnderstoodError
from elastic_notices.plugin import Notices, Watch, sources_of

CONFIG = RunConfig(program=Program(ProgramKind.EXECUTABLE, "train"))


class Source:
    """Answers with what it is given, one after the other."""

    name, advice = "the service", "Look at its address."

    def __init__(self, *answers: Sequence[Notice] | Exception | None) -> None:
        self._answers: Iterator[Sequence[Notice] | Exception | None] = iter(answers)

    def look(self) -> Sequence[Notice] | None:
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Heard:
    """The actions of a watch."""

    def __init__(self, *answers: Sequence[Notice] | Exception | None, named: bool = False) -> None:
        self.left: list[tuple[str, float]] = []
        self.events: list[Event] = []
        self.at = 0.0
        self.watch = Watch(
            Source(*answers),
            lambda why, seconds: self.left.append((why, seconds)),
            self.events.append,
            5.0,
            named=named,
            now=self.now,
        )

    def now(self) -> float:
        return self.at

    def look(self, count: int = 1) -> Heard:
        for _ in range(count):
            self.watch.look()
            self.at += 5.0
        return self


def test_a_notice_is_passed_on_once() -> None:
    ends = [Notice("it ends", 120.0)]
    heard = Heard([], ends, [replace(ends[0], seconds=115.0)], [replace(ends[0], seconds=110.0)]).look(4)
    assert heard.left == [("it ends", 120.0)]
    assert [(event.name, event.level) for event in heard.events] == [("host_ends", Level.WARNING)]


def test_an_earlier_deadline_is_passed_on_as_well() -> None:
    heard = Heard([Notice("it ends", 120.0)], [Notice("now", 10.0)]).look(2)
    assert heard.left == [("it ends", 120.0), ("now", 10.0)]


def test_a_hint_is_only_said_and_once() -> None:
    heard = Heard([Notice("it may end")], [Notice("it may end")]).look(2)
    assert heard.left == []
    assert [(event.name, event.message) for event in heard.events] == [
        ("host_at_risk", "it may end: the job goes on here")
    ]


@pytest.mark.parametrize(
    "trouble", [ConnectionRefusedError("refused"), NotUnderstoodError("no JSON"), TypeError("odd")]
)
def test_trouble_is_said_once_with_minus_v_and_asked_less_and_less_often(trouble: Exception) -> None:
    heard = Heard(trouble, trouble, trouble, trouble, trouble, [], trouble)
    pauses = []
    for _ in range(6):
        heard.look()
        pauses.append(heard.watch._pause)
    assert pauses == [10.0, 10.0, 10.0, 10.0, 10.0, 5.0]
    assert [(event.name, event.level) for event in heard.events] == [("notices_off", Level.DEBUG)]
    heard.look()
    assert len(heard.events) == 2, "it had answered in between"


def test_of_a_cloud_that_the_user_has_named_trouble_is_a_warning_with_what_to_do() -> None:
    trouble = TimeoutError("timed out")
    heard = Heard(trouble, trouble, [], trouble, named=True).look(4)
    assert [event.level for event in heard.events] == [Level.WARNING, Level.DEBUG], "it had answered in between"
    assert heard.events[0].message == (
        "no notices of a preemption: the service does not answer as it should (timed out); it is asked again, at "
        "least every 10 s. Look at its address. --notices=none asks nothing"
    )


def test_a_machine_that_gets_no_notices_is_not_asked_again() -> None:
    heard = Heard(None, [Notice("it ends", 120.0)])
    heard.look()
    assert [(event.name, event.level) for event in heard.events] == [("notices_off", Level.DEBUG)]
    assert heard.watch._stopped.is_set()


def joined(publish: Callable[[Event], None]) -> JoinedRun:
    """A run of which the plugin reads no more than this."""
    return SimpleNamespace(leave=lambda why, seconds: None, publish=publish)  # type: ignore[return-value]


@pytest.mark.parametrize(("notices", "levels"), [("aws", [Level.WARNING]), ("auto", [])])
def test_a_named_service_that_the_environment_switches_off_is_a_warning(
    notices: str, levels: list[Level], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(aws.DISABLED_VARIABLE, "true")
    monkeypatch.setattr("elastic_notices.plugin.chosen", lambda wanted: "aws")
    plugin, events = Notices(), list[Event]()
    plugin.elastic_configure(replace(CONFIG, settings={"notices": notices}))
    plugin.elastic_run_starts(joined(events.append))
    assert ([event.level for event in events], plugin._watches) == (levels, [])


def test_after_the_end_nothing_is_said() -> None:
    heard = Heard([Notice("it ends", 120.0)], OSError("gone"))
    heard.watch.stop()
    heard.look(2)
    assert (heard.left, heard.events) == ([], [])


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "1e9"])
def test_an_interval_that_is_none_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELASTIC_NOTICES_INTERVAL", text)
    with pytest.raises(UsageError, match="ELASTIC_NOTICES_INTERVAL"):
        Notices().elastic_configure(CONFIG)


def test_a_machine_of_no_cloud_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = Notices()
    plugin.elastic_configure(replace(CONFIG, settings={"notices": ""}))
    plugin.elastic_run_starts(joined(lambda event: pytest.fail(str(event))))
    plugin.elastic_run_ends()
    assert plugin._watches == []


def test_the_environment_names_other_endpoints_and_says_that_there_is_none() -> None:
    assert [one.name for one in sources_of("aws", {aws.ENDPOINT_VARIABLE: "http://127.0.0.1:1/"})] == [
        "the metadata service of AWS (spot/instance-action)",
        "the metadata service of AWS (events/recommendations/rebalance)",
    ]
    assert sources_of("aws", {aws.DISABLED_VARIABLE: "True"}) == ()
    assert [one.name for one in sources_of("gcp", {})] == [
        "the metadata service of GCP (preempted)",
        "the metadata service of GCP (maintenance-event)",
    ]
    assert [one.name for one in sources_of("azure", {})] == ["the metadata service of Azure"]


def test_the_plugin_is_on_once_it_is_installed_and_can_be_switched_off() -> None:
    assert "notices" in load(CONFIG).described
    off = replace(CONFIG, no_plugin=("notices",))
    assert "notices" not in load(off).described
    load(replace(off, settings={"notices": ""}))
    with pytest.raises(UsageError, match="--notices=aws needs the plugin 'notices', which --no_plugin switches off"):
        load(replace(off, settings={"notices": "aws"}))
