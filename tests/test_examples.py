"""The examples that users copy from run, are killed, and lose nothing."""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path

import pytest
from PIL import Image
from rig import EXAMPLES, WARM, WORKERS, Rig

TWO = ["--standalone", "--nproc_per_node=2", "--preload=torch._dynamo"]
"""torch imports that when an optimizer is made: two seconds of each life of each worker, else."""
HURT = [WORKERS / "hurt.py", "8"]
"""Has rank 1 killed in its eighth step."""


def test_the_minimal_script_trains_without_knowing_of_anything(rig: Rig) -> None:
    agent = rig.run(*TWO, EXAMPLES / "minimal" / "train.py", "--epochs=2", env=WARM)
    assert agent.exit_code() == 0, agent.output
    assert "trained for 20 steps" in agent.lines


def test_made_elastic_it_goes_on_where_it_was_killed(rig: Rig) -> None:
    script = EXAMPLES / "minimal" / "train_elastic.py"
    agent = rig.run(*TWO, "--max_restarts=1", *HURT, script, "--epochs=2", env=WARM)
    assert agent.exit_code() == 0, agent.output
    assert [line for line in agent.lines if "goes on" in line] == ["goes on after step 7"], agent.output
    assert "trained for 20 steps" in agent.lines


def test_the_minimal_readme_shows_what_makes_it_elastic() -> None:
    folder = EXAMPLES / "minimal"
    plain, elastic = ((folder / name).read_text().splitlines() for name in ("train.py", "train_elastic.py"))
    changed = list(difflib.unified_diff(plain, elastic, lineterm="", n=0))[2:]
    shown = re.findall(r"^```diff\n(.*?)^```$", (folder / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    (diff,) = (block.splitlines() for block in shown)
    assert [line for line in diff if line[:1] in ("+", "-")] == [line for line in changed if line[:1] in ("+", "-")]
    assert all(line[1:] in elastic for line in diff if line[:1] == " ")


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Sixteen images to train on and eight to validate on, of two classes that one look tells apart."""
    for part, count in (("train", 8), ("val", 4)):
        for name, colour in (("red", (200, 40, 40)), ("green", (40, 200, 40))):
            folder = tmp_path / "images" / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (40 + number, 48), colour).save(folder / f"{number}.png")
    return tmp_path / "images"


def test_a_resnet_that_saves_its_own_checkpoints_goes_on_from_the_newest(
    rig: Rig, tmp_path: Path, images: Path
) -> None:
    script = [EXAMPLES / "imagenet" / "main.py", images, f"--checkpoint={tmp_path / 'newest.pt'}", "--save-every=3"]
    small = ["--arch=resnet18", "--epochs=2", "--batch-size=4", "--image-size=32", "--lr=0.01", "--workers=0"]
    agent = rig.run(*TWO, "--max_restarts=1", *HURT, *script, *small, env=WARM)
    assert agent.exit_code() == 0, agent.output
    went_on = [line for line in agent.lines if line.startswith("2 workers: ")]
    assert went_on == ["2 workers: resnet18 begins", "2 workers: resnet18 goes on after step 6"], agent.output
    assert re.search(r"^epoch 2/2: accuracy \S+ after step 8$", agent.output, re.MULTILINE)
    assert sorted(path.name for path in tmp_path.glob("*.pt*")) == ["best.pt", "newest.pt"]


def instructions(dockerfile: Path, name: str) -> list[list[str]]:
    """Return the words of each instruction of that name, with the defaults of the arguments."""
    text = dockerfile.read_text().replace("\\\n", " ")
    for argument, default in re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE):
        text = text.replace(f"${{{argument}}}", default)
    return [line.split()[1:] for line in text.splitlines() if line.startswith(f"{name} ")]


def copied(dockerfile: Path) -> list[str]:
    return [source for *sources, _ in instructions(dockerfile, "COPY") for source in sources]


@pytest.mark.parametrize("folder", ["examples/imagenet", "deploy/kubernetes"])
def test_a_dockerfile_copies_and_installs_what_is_there(folder: str) -> None:
    root = EXAMPLES.parent
    dockerfile = root / folder / "Dockerfile"
    installed = [word for run in instructions(dockerfile, "RUN") for word in run if word.startswith("./")]
    assert installed
    assert [source for source in copied(dockerfile) if not (root / source).exists()] == []
    assert [source for source in installed if not (root / source / "pyproject.toml").exists()] == []


def test_the_image_of_imagenet_starts_its_script() -> None:
    dockerfile = EXAMPLES / "imagenet" / "Dockerfile"
    assert [json.loads(" ".join(words)) for words in instructions(dockerfile, "ENTRYPOINT")] == [["elastic", "run"]]
    (command,) = (json.loads(" ".join(words)) for words in instructions(dockerfile, "CMD"))
    assert f"examples/imagenet/{command[-2]}" in copied(dockerfile)


def test_the_image_for_kubernetes_runs_as_the_manifests_do(rig: Rig, tmp_path: Path) -> None:
    dockerfile = EXAMPLES.parent / "deploy" / "kubernetes" / "Dockerfile"
    job = (dockerfile.parent / "job.yaml").read_text()
    assert re.findall(r"runAsUser: (\d+)", job) == [user for (user,) in instructions(dockerfile, "USER")]
    (command,) = (json.loads(" ".join(words)) for words in instructions(dockerfile, "CMD"))
    assert command[-1] in job
    script = tmp_path / "train.py"
    script.write_text((EXAMPLES.parent / copied(dockerfile)[-1]).read_text())
    flags = [flag.replace("auto", "2") for flag in command[2:-1]]
    agent = rig.run(*flags, script, "--epochs=1", env=WARM)
    assert agent.exit_code() == 0, agent.output


def test_another_library_takes_elastic_torchs_place(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "elastic_torch.py").write_text("raise ImportError('this job does without')")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    env = {**WARM, "TORCH_SAVE_FILE": str(tmp_path / "train.pt"), "PYTHONPATH": path}
    script = EXAMPLES / "checkpointing" / "train.py"
    agent = rig.run(*TWO, "--max_restarts=1", "--plugin=torch-save", *HURT, script, env=env)
    assert agent.exit_code() == 0, agent.output
    # Rank 0 may have saved the step in which rank 1 was killed: its gradients were there.
    assert agent.wait_for(r"^elastic_torch_save\.state goes on after step [78]$")
    assert "trained for 20 steps" in agent.lines
