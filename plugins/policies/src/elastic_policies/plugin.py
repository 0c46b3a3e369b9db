"""The plugin: it explains known failures, reads ``--failure_policy`` when a run begins, and judges failures by it.

What it needs for that is imported soon after the workers are in their process group, or a few seconds after their
start where there is none: neither the start of a job nor its recovery nor the join of a node waits for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elastic_core import hookimpl
from elastic_core.config import RunConfig
from elastic_core.events import Event
from elastic_core.incidents import Explanation, History, Incident, IncidentKind, Verdict

PREPARE_AFTER: Mapping[str, float] = {"workers_started": 3.0, "initialized": 0.1}
"""The events that lead to the preparation, each once, and after how many seconds. The first step has the CPUs then."""


class FailurePolicies:
    """The policies of one run."""

    def __init__(self, prepare_after: Mapping[str, float] = PREPARE_AFTER) -> None:
        self._text, self._prepare_after = "", dict(prepare_after)
        self._config: RunConfig | None = None
        self._policies: dict[str, Any] | None = None

    @hookimpl
    def elastic_configure(self, config: RunConfig) -> None:
        """Read ``--failure_policy``; a text that is wrong ends the run before it begins."""
        from elastic_policies.flags import FAILURE_POLICY

        self._text, self._config = config.of(FAILURE_POLICY), config
        if self._text:
            self._parse()

    @hookimpl
    def elastic_observe(self, event: Event) -> None:
        """Prepare for the first verdict, on another thread."""
        if (seconds := self._prepare_after.pop(event.name, None)) is not None:
            from elastic_core.threads import prepare_later

            prepare_later(seconds, self._prepare, name="elastic-policies")

    def _prepare(self) -> None:
        """Import what the first failure needs, and compile its patterns."""
        example = Incident(kind=IncidentKind.WORKER_FAILED, round=1, node_id="", host="", message="Error: example")
        self.elastic_explain_failure(example, "")
        self.elastic_judge_failure(example, History(restarts=0, max_restarts=0, rounds_without_progress=0))

    @hookimpl(trylast=True)
    def elastic_explain_failure(self, incident: Incident, text: str) -> Explanation:
        """Return the class of a failure, and what to do about it if its text is known."""
        from elastic_policies.known_failures import explain

        return explain(incident, text)

    @hookimpl
    def elastic_judge_failure(self, incident: Incident, history: History) -> Verdict | None:
        """Return the strictest verdict of the policies that are on."""
        from elastic_policies.composition import judge

        return judge(incident, history, self._parse())

    def _parse(self) -> dict[str, Any]:
        if self._policies is None:
            from elastic_policies.composition import parse_policies

            self._policies = parse_policies(self._text, self._config)
        return self._policies
