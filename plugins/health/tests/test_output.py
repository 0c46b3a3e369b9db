"""The meaning of the output of a health check's command."""

from __future__ import annotations

import json

import pytest

from elastic_health.output import judge_output


@pytest.mark.parametrize(
    ("code", "stdout", "stderr", "found"),
    [
        (0, "", "", None),
        (0, "all is well\n", "", None),
        (3, "", "warming up\nGPU 3: row remap failure\n\n", "exited with code 3: GPU 3: row remap failure"),
        (1, "link is down\n", "", "exited with code 1: link is down"),
        (-11, "", "", "was killed by SIGSEGV: it wrote nothing"),
        (0, json.dumps({"fail_count": 0, "failed_checks": []}), "", None),
        (
            0,
            'starting\n{"fail_count": 2, "failed_checks": ["ecc", "nvlink"]}\n',
            "",
            "found 2 faults: ecc; nvlink",
        ),
        (1, '{"fail_count": 1, "messages": ["GPU 0 is lost"], "error": "x"}', "", "found 1 fault: GPU 0 is lost; x"),
        (1, '{"fail_count": 1}', "last words", "found 1 fault: last words"),
        (2, '{"fail_count": 0}', "", "exited with code 2, although its fail_count is 0: it gave no message"),
        (0, '{"fail_count": null}', "", "found None faults: it gave no message"),
        (0, '{"fail_count": [', "", None),
        (
            0,
            json.dumps({"fail_count": 1, "failed_checks": [{"name": "ib"}]}, indent=1),
            "",
            'found 1 fault: {"name": "ib"}',
        ),
    ],
)
def test_the_exit_code_and_the_fail_count_decide(code: int, stdout: str, stderr: str, found: str | None) -> None:
    assert judge_output(code, stdout, stderr) == found
