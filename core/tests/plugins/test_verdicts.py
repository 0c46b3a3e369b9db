from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from elastic_core.causes import Cause, EndedWorker
from elastic_core.events import Event, Level
from elastic_core.host.identity import installed_versions
from elastic_core.incidents import Action, Explanation, History, Incident, IncidentKind, Verdict
from elastic_core.monitors import RunningRound
from elastic_core.plugins.manager import Plugins
from elastic_core.plugins.observers import Implementation
from elastic_core.plugins.verdicts import LONGEST_ADVICE, LONGEST_NAME, LONGEST_REASON
from elastic_core.protocol.roster import NodeInfo
from elastic_core.protocol.settings import Versions
from elastic_core.questions import REPORT_MAX_BYTES, AskedQuestion, NodeAnswer

PATIENCE = 60.0
INCIDENT = Incident(kind=IncidentKind.WORKER_FAILED, round=1, node_id="n", host="h", exit_code=1)
HISTORY = History(restarts=0, max_restarts=3, rounds_without_progress=0)
RESTART, EXCLUDE, GIVE_UP = (Verdict(action, action.name) for action in Action)


class These(Plugins):
    """Plugins with these implementations, and the events about them."""

    def __init__(self, *given: Implementation) -> None:
        super().__init__()
        self.given, self.told = [*given], list[Event]()

    def implementations(self, *hooks: str) -> list[Implementation]:
        return [one for one in self.given if one.hook in hooks]

    def publish(self, event: Event) -> None:
        self.told.append(event)

    @property
    def warnings(self) -> list[str]:
        return [one.message for one in self.told if one.level >= Level.WARNING and "traceback" not in one.name]


def policy(plugin: str, function: Callable[[Incident], object]) -> Implementation:
    return Implementation(plugin, "elastic_judge_failure", function, ("incident",))


def says(verdict: Verdict | None) -> Implementation:
    return policy(verdict.reason if verdict else "nothing", lambda _: verdict)


def asked(*policies: Implementation, timeout: float = PATIENCE) -> tuple[Verdict, list[str]]:
    """The verdict, and the warnings on the way to it."""
    plugins = These(*policies)
    verdict = plugins.judge(INCIDENT, HISTORY, timeout=timeout)
    return verdict, plugins.warnings


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ([RESTART], RESTART),
        ([RESTART, None, GIVE_UP, EXCLUDE], GIVE_UP),
        ([EXCLUDE, RESTART], EXCLUDE),
        ([Verdict(Action.GIVE_UP, "first"), GIVE_UP], Verdict(Action.GIVE_UP, "first")),
    ],
)
def test_the_strictest_of_all_verdicts_wins(given: list[Verdict | None], verdict: Verdict) -> None:
    assert asked(*map(says, given)) == (verdict, [])


def test_a_verdict_names_its_policy_or_else_its_plugin() -> None:
    verdict, _ = asked(says(RESTART))
    assert verdict.policy == "RESTART"
    verdict, _ = asked(policy("policies", lambda _: Verdict(Action.RESTART, "x", delay=2, policy="backoff")))
    assert (verdict.policy, verdict.delay) == ("backoff", 2.0)


def broken(_: Incident) -> Verdict:
    raise KeyError("rank")


def test_one_that_raises_abstains() -> None:
    assert asked(policy("broken", broken), says(RESTART)) == (
        RESTART,
        ["The plugin 'broken' raised in elastic_judge_failure: KeyError: 'rank'. It abstains."],
    )


def test_one_that_answers_nonsense_abstains() -> None:
    assert asked(policy("eager", lambda _: True), says(RESTART)) == (
        RESTART,
        [
            "The plugin 'eager' raised in elastic_judge_failure: "
            "TypeError: True is neither a Verdict nor None. It abstains."
        ],
    )


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ((Action.GIVE_UP, 5), "TypeError: the verdict's reason is 5, which is not a str"),
        ((Action.GIVE_UP, None), "TypeError: the verdict's reason is None, which is not a str"),
        ((Action.GIVE_UP, "x", "yes"), "TypeError: the verdict's requeue is 'yes', which is not a bool"),
        (("give_up", "x"), "TypeError: the verdict's action is 'give_up', which is not an Action"),
        ((True, "x"), "TypeError: the verdict's action is True, which is not an Action"),
        ((7, "x"), "ValueError: 7 is not a valid Action"),
        ((Action.RESTART, "x", False, "2"), "TypeError: the verdict's delay is '2', which is not a number of seconds"),
        (
            (Action.RESTART, "x", False, True),
            "TypeError: the verdict's delay is True, which is not a number of seconds",
        ),
        ((Action.RESTART, "x", False, -1), "ValueError: the verdict's delay is -1; it must be from 0 to 3600 seconds"),
        (
            (Action.RESTART, "x", False, nan),
            "ValueError: the verdict's delay is nan; it must be from 0 to 3600 seconds",
        ),
        (
            (Action.EXCLUDE_HOST, "x", False, 0.0, inf),
            "ValueError: the verdict's exclude_for is inf; it must be from 0 to 2592000 seconds",
        ),
        ((Action.RESTART, "x", False, 0.0, None, 3), "TypeError: the verdict's policy is 3, which is not a str"),
    ],
)
def test_a_verdict_that_cannot_be_followed_is_an_abstention(fields: tuple[Any, ...], fault: str) -> None:
    assert asked(policy("careless", lambda _: Verdict(*fields)), says(RESTART)) == (
        RESTART,
        [f"The plugin 'careless' raised in elastic_judge_failure: {fault}. It abstains."],
    )


def test_an_action_may_be_a_number_and_means_what_it_says() -> None:
    verdict, _ = asked(policy("careless", lambda _: Verdict(2, "enough")), says(RESTART))  # type: ignore[arg-type]
    assert verdict.action is Action.GIVE_UP


def test_a_reason_has_its_limits() -> None:
    verdict, warnings = asked(says(Verdict(Action.GIVE_UP, "why " * 100_000)))
    assert (len(verdict.reason), warnings) == (LONGEST_REASON, [])


@pytest.fixture
def never() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def test_one_that_hangs_abstains_and_the_others_are_heard(never: threading.Event) -> None:
    hanging = policy("hanging", lambda _: never.wait(PATIENCE))
    assert asked(hanging, says(GIVE_UP), timeout=1) == (
        GIVE_UP,
        ["The plugin 'hanging' gave no verdict within 1 s. It abstains."],
    )


def test_no_verdict_at_all_is_a_defect() -> None:
    with pytest.raises(ValueError, match="no failure policy"):
        asked(says(None))


HERE: dict[str, Any] = {
    "host_id": "h",
    "slot": 0,
    "role": "default",
    "local_world_size": 1,
    "versions": Versions(**installed_versions()),
}
NODES = [NodeInfo(node_id=name, host=f"host-{name}", **HERE) for name in "abc"]


def vouches(plugin: str, function: Callable[[NodeInfo], object]) -> Implementation:
    return Implementation(plugin, "elastic_node_gone", function, ("node",))


def raises(_: NodeInfo) -> bool:
    raise KeyError("host")


@pytest.mark.parametrize(
    ("functions", "gone", "warnings"),
    [
        ([lambda _: True], True, []),
        ([lambda _: None, lambda _: False], False, []),
        ([lambda _: False, lambda _: True], True, []),
        ([raises, lambda _: True], True, ["The plugin '0' raised in elastic_node_gone: KeyError: 'host'."]),
        ([lambda _: "yes"], False, ["The plugin '0' raised in elastic_node_gone: TypeError: 'yes' is neither True"]),
    ],
)
def test_one_plugin_that_vouches_is_enough(
    functions: list[Callable[[NodeInfo], object]], gone: bool, warnings: list[str]
) -> None:
    plugins = These(*(vouches(str(number), function) for number, function in enumerate(functions)))
    assert is_gone(plugins, NODES[0], PATIENCE) is gone
    assert [message[: len(warning)] for message, warning in zip(plugins.warnings, warnings, strict=True)] == warnings


def is_gone(plugins: These, node: NodeInfo, timeout: float) -> bool:
    ask: Any = plugins.node_gone
    return bool(ask(node, timeout=timeout))


def test_a_plugin_is_asked_about_no_other_node_before_it_has_answered() -> None:
    """Else each node of a lost rack costs its time limit, and a thread, and who could vouch for one is not heard."""
    began, may_answer = threading.Event(), threading.Event()
    questions: list[str] = []

    def hangs(node: NodeInfo) -> bool:
        questions.append(node.node_id)
        began.set()
        may_answer.wait(PATIENCE)
        return True

    plugins = These(slow := vouches("slow", hangs))
    assert [is_gone(plugins, node, 0.05) for node in NODES] == [False, False, False]
    assert began.wait(PATIENCE)
    assert (questions, [event.name for event in plugins.told]) == (["a"], ["plugin_timed_out"])
    plugins.given.append(vouches("quick", lambda _: True))
    assert is_gone(plugins, NODES[1], PATIENCE), "others are asked all the same"
    plugins.given.pop()
    may_answer.set()
    plugins.unanswered[slow].result(PATIENCE)
    assert is_gone(plugins, NODES[2], PATIENCE)
    assert questions == ["a", "c"]


def test_no_plugin_is_asked_about_a_node_if_none_has_the_hook() -> None:
    assert These().node_gone is None


QUESTION = AskedQuestion(round=1, name="load", value=7, asked_by="host-a")
ANSWERS = [NodeAnswer(node="host-a", ranks=range(2), value=3), NodeAnswer(node="host-b", ranks=range(2, 4), value=4)]


def sums(plugin: str, function: Callable[..., object]) -> Implementation:
    return Implementation(plugin, "elastic_sum_up_answers", function, ("question", "answers", "before"))


def test_the_first_report_counts_and_a_plugin_that_fails_is_reported() -> None:
    never = threading.Event()

    def fails(*_: object) -> str:
        raise OSError("disk")

    plugins = These(
        sums("nothing", lambda *_: None),
        sums("object", lambda *_: object()),
        sums("long", lambda *_: "x" * REPORT_MAX_BYTES),
        sums("fails", fails),
        sums("waits", lambda *_: never.wait()),
        sums("adds", lambda question, answers, before: [question.value, sum(one.value for one in answers), before]),
        sums("later", lambda *_: 1),
    )
    try:
        found = plugins.sum_up_answers(QUESTION, ANSWERS, "[1]", timeout=1.0)
    finally:
        never.set()
    assert found == "[7,7,[1]]"
    assert [message.partition(":")[0] for message in plugins.warnings] == [
        "The plugin 'object' raised in elastic_sum_up_answers",
        "The plugin 'long' raised in elastic_sum_up_answers",
        "The plugin 'fails' raised in elastic_sum_up_answers",
        "The plugin 'waits' did not sum up answers within 1 s.",
    ]


def test_without_a_plugin_there_is_no_report() -> None:
    assert These().sum_up_answers(QUESTION, ANSWERS, "null") == "null"


def knows(plugin: str, function: Callable[[str], object]) -> Implementation:
    return Implementation(plugin, "elastic_explain_failure", function, ("text",))


def explained(*given: Implementation) -> tuple[Explanation, list[str]]:
    """The explanation, and the warnings on the way to it."""
    plugins = These(*given)
    found = plugins.explain_failure(INCIDENT, "boom", timeout=PATIENCE)
    return found.explanation, plugins.warnings


def test_the_first_explanation_in_the_order_of_the_plugins_counts() -> None:
    ours, others = Explanation(name="ours"), Explanation(name="others")
    assert explained() == (Explanation(), [])
    assert explained(knows("nothing", lambda _: None)) == (Explanation(), [])
    plugins = (knows("nothing", lambda _: None), knows("ours", lambda _: ours), knows("others", lambda _: others))
    assert explained(*plugins) == (ours, [])


def test_an_explanation_is_kept_short_and_in_one_line() -> None:
    found, _ = explained(knows("long", lambda text: Explanation(name=f"{text}\n" * 900, advice="a\nb " * 900)))
    assert found.name.startswith("boom boom ")
    assert found.advice.startswith("a b a b ")
    assert (len(found.name), len(found.advice)) == (LONGEST_NAME, LONGEST_ADVICE)


def loses_the_disk(_: str) -> Explanation:
    raise OSError("disk")


@pytest.mark.parametrize(
    ("function", "fault"),
    [
        (loses_the_disk, "OSError: disk"),
        (lambda _: "out of memory", "TypeError: 'out of memory' is neither an Explanation nor None"),
        (lambda _: Explanation(name=7), "the explanation's name is 7, which is not a str"),  # type: ignore[arg-type] # a mistake
        (
            lambda _: Explanation(failure_class="script"),  # type: ignore[arg-type] # a mistake
            "the explanation's failure_class is 'script', which is not a FailureClass",
        ),
    ],
)
def test_a_plugin_whose_explanation_is_none_is_reported_and_others_are_heard(
    function: Callable[[str], object], fault: str
) -> None:
    found, (warning,) = explained(knows("careless", function), knows("others", lambda _: Explanation(name="others")))
    assert found == Explanation(name="others")
    assert warning.startswith("The plugin 'careless' raised in elastic_explain_failure: ")
    assert fault in warning
    assert warning.endswith("It does not explain the failure.")


def test_a_plugin_that_is_slow_to_explain_is_not_asked_again_before_it_has_answered() -> None:
    may_answer = threading.Event()

    def explain(_: str) -> Explanation:
        may_answer.wait(PATIENCE)
        return Explanation(name="slow")

    slow, quick = knows("slow", explain), knows("quick", lambda _: Explanation(name="quick"))
    plugins = These(slow, quick)
    first = plugins.explain_failure(INCIDENT, "boom", timeout=0.05).explanation
    assert first in (Explanation(name="quick"), Explanation()), "a machine under load may be slow itself"
    assert plugins.warnings[:1] == ["The plugin 'slow' did not explain a failure within 0.05 s."]
    plugins.unanswered.pop(quick)
    assert plugins.explain_failure(INCIDENT, "boom", timeout=PATIENCE).explanation == Explanation(name="quick")
    may_answer.set()
    plugins.unanswered[slow].result(PATIENCE)
    assert plugins.explain_failure(INCIDENT, "boom", timeout=PATIENCE).explanation == Explanation(name="slow")


# Causes --------------------------------------------------------------------------------------------------------------


WITHOUT = "The failure is reported without it."


def finds(plugin: str, find: Callable[[EndedWorker], object]) -> Implementation:
    return Implementation(plugin, "elastic_find_cause", find, ("worker",))


FAILED = cast(EndedWorker, SimpleNamespace())


def test_a_plugin_that_has_taken_its_time_for_causes_in_a_round_is_left_off_there_and_no_other() -> None:
    slow, quick = finds("slow", lambda _: Cause(message="slow")), finds("quick", lambda _: Cause(message="quick"))
    plugins = These(slow, quick)
    assert plugins.find_cause(FAILED, timeout=PATIENCE) == Cause(message="slow")
    assert plugins._finding.keys() == {slow, quick}
    plugins._finding[slow] = PATIENCE
    assert plugins.find_cause(FAILED, timeout=PATIENCE) == Cause(message="quick")
    plugins.round_starts(RunningRound(2, "", (), Path()))
    assert plugins.find_cause(FAILED, timeout=PATIENCE) == Cause(message="slow")
    assert plugins.warnings == []


def test_an_answer_with_which_a_plugin_takes_longer_than_it_has_in_a_round_is_late() -> None:
    slow = finds("slow", lambda _: Cause(message="slow"))
    plugins = These(slow)
    plugins._finding[slow] = PATIENCE - 1e-9
    assert plugins.find_cause(FAILED, timeout=PATIENCE) is None
    assert plugins.warnings == [f"The plugin 'slow' did not find a cause within {PATIENCE:g} s. " + WITHOUT]
    assert plugins.find_cause(FAILED, timeout=PATIENCE) is None
    assert len(plugins.warnings) == 1, "it is not asked again"
