"""The output of checks that are commands: how the checks of this distribution write it, and its meaning."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from elastic_core.exit_codes import describe_exit

MESSAGE_CHARACTERS = 500  # of one finding, at most
MESSAGE_FIELDS = ("failed_checks", "messages", "message", "errors", "error")  # of a JSON answer, in this order


def answer(messages: Sequence[str]) -> int:
    """Print what a check has found, and return its exit code: 0 for a healthy node."""
    print(json.dumps({"fail_count": len(messages), "messages": [*messages]}), flush=True)
    return 1 if messages else 0


def judge_output(returncode: int, stdout: str, stderr: str) -> str | None:
    """Return why a command that has ended found the node unhealthy; None if it is healthy.

    A JSON object on stdout with a ``fail_count``, as the health checks of NVIDIA's resiliency extension write it, says
    so too: both the exit code and ``fail_count`` must be 0.
    """
    answer = _json_answer(stdout)
    if answer is None:
        if returncode == 0:
            return None
        return f"{describe_exit(returncode)}: {_last_line(stderr) or _last_line(stdout) or 'it wrote nothing'}"
    count = answer["fail_count"]
    if returncode == 0 and count in (0, "0"):
        return None
    messages = dict.fromkeys(text for name in MESSAGE_FIELDS for text in _texts(answer.get(name)))
    why = ("; ".join(messages) or _last_line(stderr) or "it gave no message")[:MESSAGE_CHARACTERS]
    if count in (0, "0"):
        return f"{describe_exit(returncode)}, although its fail_count is 0: {why}"
    return f"found {count} fault{'s' * (count not in (1, '1'))}: {why}"


def _json_answer(stdout: str) -> Mapping[str, object] | None:
    """Return the JSON object with a ``fail_count``: all of stdout, or one of its lines, the last first."""
    for text in (stdout, *reversed(stdout.splitlines())):
        if "fail_count" in text:
            try:
                answer = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(answer, dict) and "fail_count" in answer:
                return answer
    return None


def _texts(value: object) -> list[str]:
    """Return the messages in a field: a text, or a list of texts or of objects."""
    if value is None or value == "":
        return []
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [value if isinstance(value, str) else json.dumps(value)]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:MESSAGE_CHARACTERS] if lines else ""
