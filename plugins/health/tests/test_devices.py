"""The checks that use torch, as processes, on the CPU; and that the plugin imports nothing for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_core.plugins.entry_points import Catalogue
from elastic_health import matmul
from elastic_operate.plugin_list import inventory

QUIET = (
    "import sys; import elastic_health.plugin; print([name for name in sys.modules if name.startswith('elastic_h')])"
)


def ran(*command: str) -> tuple[int, object]:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def test_elastic_plugins_lists_the_plugin() -> None:
    rows = [row for row in inventory(Catalogue.read()) if row.distribution == "elastic-health"]
    hooks = ("elastic_before_join", "elastic_before_start", "elastic_configure", "elastic_run_starts")
    assert [(row.group, row.name, row.hooks, row.error) for row in rows] == [
        ("elastic.autoload", "health", hooks, None),
        ("elastic.flags", "health", ("elastic_flags",), None),
    ]


def test_the_plugin_imports_nothing_else_of_its_distribution() -> None:
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['elastic_health', 'elastic_health.plugin']"


def test_a_right_product_is_healthy() -> None:
    assert ran("-m", "elastic_health.matmul") == (0, {"fail_count": 0, "messages": []})


def test_a_wrong_product_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    right = torch.Tensor.__matmul__

    def wrong(left: object, other: object) -> object:
        product = right(left, other)
        if product.dtype is torch.float32:
            product[3, 5] += 1
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", wrong)
    assert matmul.findings() == ["cpu computes 1 of 262144 elements of a product wrong"]


def test_three_ranks_add_up_over_the_loopback_interface() -> None:
    assert ran("-m", "elastic_health.allreduce", "3") == (0, {"fail_count": 0, "messages": []})


def test_a_rank_that_dies_is_named_and_the_others_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "dies.py").write_text(
        "import os, signal, sys\nimport elastic_health.allreduce as check\nrun = check.run_rank\n"
        "def dies(rank, *rest):\n    if rank == 1:\n        os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    return run(rank, *rest)\n"
        "check.run_rank = dies\nif sys.argv[1:]:\n    sys.exit(check.main(sys.argv[1:]))\n"
        "raise SystemExit(check.answer(check.findings(3, (sys.executable, __file__))))\n"
    )
    code, answer = ran(str(tmp_path / "dies.py"))
    assert (code, answer) == (1, {"fail_count": 1, "messages": ["rank 1 of 3 was killed by SIGSEGV"]})


@pytest.mark.parametrize("check", ["matmul", "allreduce"])
def test_without_torch_the_check_says_so(tmp_path: Path, check: str) -> None:
    say = f"import sys; sys.modules['torch'] = None; import elastic_health.{check} as check; "
    say += "raise SystemExit(check.answer(check.findings(*[2][: check.__name__.endswith('allreduce')])))"
    code, answer = ran("-c", say)
    assert code == 1
    assert "torch cannot be imported here" in str(answer)
