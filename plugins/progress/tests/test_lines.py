"""Progress out of lines: the patterns against lines that real jobs have printed, and against what is none."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from elastic_core.progress import Checkpoint, Progress
from elastic_progress.lines import (
    LINE_MAX_BYTES,
    LINES_AT_ONCE,
    MATCHES_TO_CHOOSE,
    LineReader,
    Recognizer,
    Scanner,
)
from elastic_progress.patterns import PATTERNS, Expressions, compile_expressions

NAMES = [pattern.name for pattern in PATTERNS]
HF, LIGHTNING, TITAN, MEGATRON, COMPOSER, OLMO, VERL, DDP, DEEPSPEED, STEP_LINES, EPOCH_LINES, RICH, TQDM = NAMES


def hf(loss: float, epoch: float) -> str:
    """Make a line as in huggingface/transformers#29659, with blanks over the rest of the bar."""
    return (
        f"{{'loss': {loss}, 'grad_norm': 1.5078125, 'learning_rate': 0.00011470588235294115, 'epoch': {epoch}}}"
        + " " * 36
    )


def titan(step: int, loss: str) -> str:
    """Make a line as in pytorch/torchtitan#3393."""
    return (
        f"[rank0]:[titan] 2026-05-18 16:04:46,338 - root - INFO - step: {step}  loss:  {loss}  grad_norm:  0.8319  "
        "memory:  9.46GiB(64.99%)  tps: 7,282  tflops: 0.52  mfu: 0.17%"
    )


def megatron(step: int, samples: int, loss: str) -> str:
    """Make a line as in epfLLM/Megatron-LLM#11."""
    return (
        f" iteration      {step}/  250000 | consumed samples:       {samples} | elapsed time per iteration (ms): "
        f"139113.4 | learning rate: 1.507E-05 | global batch size:  1024 | lm loss: {loss} | loss scale: 1.0 | "
        "grad norm: 0.811 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


LINES: Sequence[tuple[str, Sequence[str], Progress]] = [
    (HF, [hf(2.1488, 0.62), hf(2.5139, 0.63), hf(2.2037, 0.64)], Progress(loss=2.2037, epoch=0.64)),
    (
        HF,  # transformers 5 writes its values as texts
        [f"{{'loss': '2.{n}', 'grad_norm': '1.2', 'learning_rate': '2e-05', 'epoch': '0.{n}'}}" for n in (1, 2, 3)],
        Progress(loss=2.3, epoch=0.3),
    ),
    (
        LIGHTNING,  # Lightning-AI/pytorch-lightning#4225
        [f"Epoch 0:  22%|██▏       | {n}/18 [00:17<01:02,  4.47s/it, loss=9.9{n}, v_num=193315]" for n in (4, 5, 6)],
        Progress(step=6, loss=9.96, epoch=0.0),
    ),
    (
        LIGHTNING,  # kuleshov-group/caduceus#47, without a bar
        [f"Epoch 2:  34% {n}/3000 [01:04<02:05, 15.73it/s, loss=1.2, v_num=1024]" for n in (1020, 1021, 1022)],
        Progress(step=7022, loss=1.2, epoch=2.0),
    ),
    (
        LIGHTNING,  # ecmwf/anemoi-core#614
        [
            f"Epoch 0:   2%|▏         | {n}/150000 [3:12:36<125:24:04,  0.32it/s, v_num=35a4, ...]           "
            for n in (3744, 3745, 3746)
        ],
        Progress(step=3746, epoch=0.0),
    ),
    (
        LIGHTNING,
        [f"Epoch 3:  45%|████▍     | {n}/27 [00:00<00:00, 21.0it/s, v_num=0, train_loss=0.25]" for n in (10, 11, 12)],
        Progress(step=93, loss=0.25, epoch=3.0),
    ),
    (TITAN, [titan(14, "3.24405"), titan(15, "3.10680"), titan(16, "3.05047")], Progress(step=16, loss=3.05047)),
    (
        TITAN,  # without a norm, as in pytorch/torchtitan#1287
        [
            f"[titan] - root - INFO - step: {n}  loss:  9.9493  memory: 49.66GiB(52.28%)  tps: 2,397"
            for n in (10, 20, 30)
        ],
        Progress(step=30, loss=9.9493),
    ),
    (
        TITAN,  # a fork that shows the share
        [
            f"[rank0]:2025-04-01 - root - INFO - step: {n}/644 = 99.3789%  loss:  6.2116  memory: 87.04GiB"
            for n in (1, 2, 3)
        ],
        Progress(step=3, loss=6.2116),
    ),
    (
        MEGATRON,
        [megatron(201, 205824, "2.373574E+00"), megatron(202, 206848, "2.413736E+00"), megatron(203, 207872, "nan")],
        Progress(step=203, samples=207872, loss=math.nan),
    ),
    (
        MEGATRON,  # deepspeedai/DeepSpeed#3742, GPT-NeoX
        [
            f" samples/sec: 7.799 | iteration       {n}/   10000 | elapsed time per iteration (ms): 4103.1 | learning "
            "rate: 2.111E-06 | approx flops per GPU: 112.9TFLOPS | lm_loss: 1.118665E+01 |"
            for n in (34, 35, 36)
        ],
        Progress(step=36, loss=11.18665),
    ),
    (
        DEEPSPEED,  # deepspeedai/DeepSpeed#1825
        [
            f"[2022-03-11 02:06:58,985] [INFO] [logging.py:69:log_dist] [Rank 0] step={n}, skipped=2, lr=[5e-05], "
            "mom=[[0.9, 0.999]]"
            for n in (40, 50, 60)
        ],
        Progress(step=60),
    ),
    (
        TQDM,  # huggingface/transformers#14531
        [f"  8%|█████████████          | {n}/24128 [1:52:09<20:27:23,  3.33s/it]" for n in (1997, 1998, 1999)],
        Progress(step=1999),
    ),
    (
        TQDM,  # NVIDIA/DeepLearningExamples#1107
        [
            f"DLL 2022-04-05 05:14:11.900077 - Training Epoch: 0 Training Iteration: 2351  step_loss : 0.288  "
            f"    Iteration:  87%|██████▍     | {n}/2771 [05:05<00:46,  8.00it/s]"
            for n in (2350, 2400, 2450)
        ],
        Progress(step=2450, epoch=0.0),
    ),
    (
        TQDM,  # the scripts of diffusers
        [f"Steps:   1%|▏         | {n}/1000 [00:10<13:05,  1.26it/s, lr=1e-5, step_loss=0.123]" for n in (10, 11, 12)],
        Progress(step=12, loss=0.123),
    ),
]


def grown(text: str, *numbers: int) -> list[str]:
    """Return lines in which # is a number that grows."""
    return [text.replace("#", str(number)) for number in numbers or (11, 12, 13)]


OTHER_LINES: Sequence[tuple[str, Sequence[str], Progress]] = [
    (STEP_LINES, grown("iter #: loss 2.3456, time 120.34ms, mfu 23.40%"), Progress(step=13, loss=2.3456)),  # nanoGPT
    (STEP_LINES, grown("step #: train loss 1.7648, val loss 1.8857"), Progress(step=13, loss=1.7648)),
    (STEP_LINES, grown("step: # loss: nan"), Progress(step=13, loss=math.nan)),  # not torchtitan's
    (STEP_LINES, grown("global_step=#, loss=0.25, lr=0.1"), Progress(step=13, loss=0.25)),
    (STEP_LINES, grown("Epoch [1/5], Step [#/600], Loss: 0.2143"), Progress(step=13, loss=0.2143)),
    (STEP_LINES, grown("step # loss 0.167"), Progress(step=13, loss=0.167)),
    (
        EPOCH_LINES,  # examples/mnist
        grown("Train Epoch: 2 [#/60000 (12%)]\tLoss: 2.300921"),
        Progress(step=120013, loss=2.300921, epoch=2.0),
    ),
    (
        EPOCH_LINES,  # examples/imagenet
        grown("Epoch: [1][  #/5005]\tTime  0.512 (  1.1)\tData  0.0 (  0.2)\tLoss 6.9e+00 (6.9e+00)\tAcc@1   0.00"),
        Progress(step=5018, loss=6.9, epoch=1.0),
    ),
    (
        EPOCH_LINES,  # torchvision, references/classification
        grown("Epoch: [0]  [  #/5005]  eta: 0:12:34  lr: 0.1  img/s: 123.4  loss: 6.9314 (7.0000)  acc1: 0.0000"),
        Progress(step=13, loss=6.9314, epoch=0.0),
    ),
    (
        EPOCH_LINES,  # timm, train.py
        grown("Train: 3 [  #/1251 (  4%)]  Loss: 6.931 (6.93)  Time: 0.512s,  500.1/s  LR: 1.000e-05"),
        Progress(step=13, loss=6.931),
    ),
    (
        TQDM,  # MosaicML Composer's ProgressBarLogger
        grown("train          Epoch   1:  50%|█████▌| #/62 [00:01<00:00, 40.05ba/s, loss/train/total=2.3]"),
        Progress(step=75, loss=2.3, epoch=1.0),
    ),
    (
        STEP_LINES,  # NeMo 2
        grown("Training epoch 0, iteration #/99 | lr: 1e-07 | global_step: # | reduced_train_loss: 10.41 | x: 64.35"),
        Progress(step=13, loss=10.41),
    ),
    (
        STEP_LINES,  # detectron2
        grown("[06/01 d2.utils.events]:  eta: 1:23:45  iter: #  total_loss: 2.345  loss_cls: 0.9  lr: 0.001"),
        Progress(step=13, loss=2.345),
    ),
    (
        STEP_LINES,  # fairseq
        grown("2021-01-01 | INFO | train_inner | epoch 001:  # / 1234 loss=15.2, ppl=3456, num_updates=#, lr=1e-05"),
        Progress(step=13, loss=15.2),
    ),
    (
        STEP_LINES,  # fairseq --log-format json
        grown('[train_inner][INFO] - {"epoch": 1, "update": 0.1, "loss": "15.2", "num_updates": "#"}'),
        Progress(step=13, loss=15.2),
    ),
    (STEP_LINES, grown('{"step": #, "loss": 0.25}'), Progress(step=13, loss=0.25)),
    (
        STEP_LINES,  # LitGPT
        grown("Epoch 1 | iter # step 3 | loss train: 2.345, val: n/a | iter time: 123.45 ms (step)"),
        Progress(step=13, loss=2.345),
    ),
    (
        STEP_LINES,  # nanotron
        grown("[INFO|DP=0|PP=0|TP=0]: iteration: # / 15 | consumed_tokens: 4.19M | lm_loss: 10.6 | lr: 0.0003"),
        Progress(step=13, loss=10.6),
    ),
    (
        EPOCH_LINES,  # DINOv2
        grown("helpers.py:102] Training  [    #/125000]  eta: 1 day, 0:00:00  total_loss: 12.3 (12.3)  time: 0.5"),
        Progress(step=13, loss=12.3),
    ),
    (EPOCH_LINES, grown("loss: 2.303494  [   #/60000]"), Progress(step=13, loss=2.303494)),  # torch's quickstart
    (COMPOSER, grown("\t Train time/batch: #"), Progress(step=13)),
    (OLMO, grown("olmo.train:967 INFO [step=#/739328,epoch=0]"), Progress(step=13, epoch=0.0)),
    (OLMO, grown("console_logger:INFO [step=#/1000,epoch=1,eta=1h]"), Progress(step=13, epoch=1.0)),
    (
        VERL,
        grown("step:# - global_seqlen/min:123 - actor/pg_loss:0.01 - critic/score/mean:0.2"),
        Progress(step=13, loss=0.01),
    ),
    (DDP, grown("[GPU0] Epoch # | Batchsize: 32 | Steps: 64"), Progress(epoch=13.0)),
    (
        TQDM,  # kohya
        grown("steps:   1%|▏         | #/1600 [00:30<1:07:20,  2.54s/it, avr_loss=0.123]"),
        Progress(step=13, loss=0.123),
    ),
    (TQDM, grown("#it [00:05,  2.31it/s]"), Progress(step=13)),  # without a total
    (TQDM, grown("#batch [00:05,  2.31batch/s]"), Progress(step=13)),
    (TQDM, grown("  2%|▏         | #.0k/50.0k [00:00<00:00, 33.3Mit/s]"), Progress(step=13000)),  # unit_scale
    (
        LIGHTNING,  # on an IterableDataset
        grown("Epoch 0: |          | #/? [00:01<00:00,  9.10it/s, v_num=0, train_loss=0.5]"),
        Progress(step=13, loss=0.5, epoch=0.0),
    ),
    (
        RICH,  # Lightning 2.6
        grown("Epoch 1/1 ━━━━━━━━━━━━━━━━━━━━━━━ #/50 0:00:27 • 0:00:03 7.04it/s train_loss: 0.135"),
        Progress(step=63, loss=0.135, epoch=1.0),
    ),
    (
        RICH,  # Ultralytics 8.4
        grown("    1/5           0G       1.17        3.2        1.3      35    640: 14% ━╸────────── #/27 6.3it/s"),
        Progress(step=13),
    ),
]
LINES = [*LINES, *OTHER_LINES]


def reader(expressions: Expressions | None = None) -> LineReader:
    return LineReader(Recognizer(expressions or Expressions()))


@pytest.mark.parametrize(("name", "lines", "progress"), LINES)
def test_lines_of_frameworks_are_recognized_with_the_third_line(
    name: str, lines: Sequence[str], progress: Progress
) -> None:
    read = reader()
    assert [read.read(line) for line in lines[:-1]] == [None] * (MATCHES_TO_CHOOSE - 1)
    assert str(read.read(lines[-1])) == str(progress)  # nan is not equal to itself
    assert read.recognizer.chosen is not None
    assert read.recognizer.chosen.name == name


@pytest.mark.parametrize(("name", "lines", "progress"), LINES)
def test_each_line_has_the_texts_that_are_searched_for_first(
    name: str, lines: Sequence[str], progress: Progress
) -> None:
    needles = Recognizer().needles
    assert needles is not None
    assert all(any(needle in line.encode() for needle in needles) for line in lines)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "step",
        "loss: 0.5",
        "step: loss:",
        "model.safetensors:  45%|████      | 200M/440M [00:02<00:02, 98.1MB/s]",
        "Map:  10%|█         | 1000/10000 [00:01<00:09, 981.21 examples/s]",
        "Validation DataLoader 1: 100% 1000/1000 [00:18<00:00, 55.55it/s]",
        "Loading checkpoint shards:  50%|█████     | 1/2 [00:01<00:01,  1.01s/it]",
        "Sanity Checking DataLoader 0:  50%|█████     | 1/2 [00:00<00:00, 10.0it/s]",
        "12/10 [00:03<00:00, 3.1it/s]",
        "0/0 [00:00<?, ?it/s]",
        "{'eval_loss': 0.69, 'eval_runtime': 1.2, 'epoch': 1.0}",
        "\0\ufffd" * 100,
        "9" * 3000 + "/" + "9" * 3000 + " [00:00<00:00, 1.0it/s]",
    ],
)
def test_other_lines_are_no_progress(line: str) -> None:
    read = reader()
    assert [read.read(line) for _ in range(5)] == [None] * 5
    assert read.recognizer.chosen is None


@pytest.mark.parametrize(
    "line",
    [
        "Test: [ #/196]\tTime  0.512 (  1.1)\tLoss 6.9e+00 (6.9e+00)",
        "eval step # loss 0.25",
        "Test loss: 0.5  [   #/60000]",
        "[Eval batch=#/20] Eval on eval data",
        "\t Eval metrics/eval/LanguageCrossEntropy: 0.#",
        "[GPU0] Epoch # | Training snapshot saved",
        "validation: iter # loss 0.25",
        "the model said: iteration #/ 20 | and no more",
        "Step #: look at the loss of the whole batch",
        "time per step: # loss 3",
        "step #% loss 3",
        "model.bin:  10%|█         | #.0M/50.0M [00:00<00:00, 912MB/s]",
        "config.json:  10%|█         | #/570 [00:00<00:00, 1.2kB/s]",
        "Generating train split: # examples [00:00, 981.2 examples/s]",
        "   ━━━━━━━━━━━━━━━━━━━━━━━━ #/50 MB 7.04 MB/s eta 0:00:01",
        "   ━━━━━━━━━━━━━━━━━━━━━━━━ #.1/50.2 MB 7.04 MB/s eta 0:00:01",
        "Validation ━━━━━━━━━━━━━━━━━━━━━━━━ #/50 0:00:27 • 0:00:03 7.04it/s",
        "                 Class     Images  Instances      Box(P          R      mAP50): 40% ━━━━──── #/25 6.3it/s",
        "Capturing CUDA graphs:  91%|█████████▏| #/67 [00:05<00:00, 11.2it/s]",
    ],
)
def test_growing_numbers_that_are_no_steps(line: str) -> None:
    read = reader()
    assert steps(read, grown(line, 11, 12, 13, 14, 15)) == [None] * 5
    assert read.recognizer.chosen is None


def test_steps_that_do_not_grow_are_none() -> None:
    read = reader()
    assert [read.read(titan(3, "1.0")) for _ in range(5)] == [None] * 5
    assert read.read(titan(2, "1.0")) is None


UP = "\x1b[A"  # after each frame of a bar below one that is not closed (tqdm, std.py, moveto)


def bar(n: int, total: int, title: str = "") -> str:
    return f"{title}{': ' if title else ''}{100 * n // total:3d}%|███   | {n}/{total} [00:01<00:09,  8.00it/s]"


def steps(read: LineReader, lines: Sequence[str]) -> list[int | None]:
    return [None if found is None else found.step for found in map(read.read, lines)]


def test_a_bar_that_begins_again_in_each_epoch_is_counted_on() -> None:
    read = reader()
    steps(read, [bar(n, 4) for n in range(5)])
    assert steps(read, [bar(n, 4) for n in range(5)] + [bar(1, 4)]) == [4, 5, 6, 7, 8, 9]


def test_a_bar_whose_title_is_an_epoch_is_counted_by_that() -> None:
    read = reader()
    steps(read, [bar(n, 10, "Epoch 5/9") for n in (1, 2, 3)])
    assert read.read(bar(4, 10, "Epoch 5/9")) == Progress(step=54, epoch=5.0)
    assert read.read(bar(0, 10, "Epoch 6/9")) == Progress(step=60, epoch=6.0)


def test_bars_of_an_evaluation_do_not_take_the_place_of_the_trainings() -> None:
    read = reader()
    steps(read, [bar(n, 100) for n in (1, 2, 50)])
    assert steps(read, [bar(n, 63) + UP for n in range(5)]) == [None] * 5, "the training's bar is not closed"
    assert read.read(bar(5, 63) + UP) == Progress(), "it moves all the same"
    assert read.read(bar(3, 63, "Evaluating")) == Progress()
    assert steps(read, [bar(51, 100)]) == [51]


def test_a_full_bar_gives_its_place_to_the_next() -> None:
    read = reader()
    steps(read, [bar(n, 10000, "Stage A") for n in (9000, 9500, 10000)])
    assert steps(read, [bar(n, 500) for n in (1, 2, 3, 4)]) == [None, None, 3, 4]


def test_a_bar_that_ends_early_gives_its_place_to_the_next() -> None:
    read = reader()
    steps(read, [bar(n, 67) for n in range(62)])
    assert steps(read, [bar(n, 500) for n in range(5)])[-2:] == [3, 4]


def test_the_last_evaluation_of_trainer_is_no_training() -> None:
    read = reader()
    steps(read, [bar(n, 40) for n in range(41)])
    assert steps(read, [bar(n, 16) + UP for n in range(17)]) == [None] * 17


def test_a_title_with_numbers_of_any_width_is_one_bar() -> None:
    """As in Ultralytics, whose bars show the losses and the number of instances."""
    read, lines = reader(), []
    for n in range(2 * 27):
        title = f"{n // 27 + 1:>5}/5         0G {1.0 / (n + 1):10.4g} {8 + 9 * (n % 27):10}        640"
        lines.append(bar(n % 27 + 1, 27, title))
    assert steps(read, lines)[2:] == list(range(3, 2 * 27 + 1))


def test_trainers_logs_take_over_from_its_bar_and_both_are_read() -> None:
    read = reader()
    assert steps(read, [bar(n, 500) for n in (1, 2, 3)])[-1] == 3
    assert read.recognizer.chosen is PATTERNS[-1]
    found = [read.read(hf(0.5, epoch)) for epoch in (0.1, 0.2, 0.3)]
    assert found[-1] == Progress(loss=0.5, epoch=0.3)
    assert read.recognizer.chosen is PATTERNS[0]
    assert steps(read, [bar(4, 500)]) == [4]


def test_the_page_has_all_patterns() -> None:
    page = (Path(__file__).parents[3] / "docs" / "progress.md").read_text()
    assert re.findall(r"^\| ([A-Za-z][^|`]*) \| `", page, re.MULTILINE) == [pattern.name for pattern in PATTERNS]


def test_a_loss_on_a_line_of_its_own_is_read_once_the_pattern_is_chosen() -> None:
    """As Composer and OLMo print it."""
    read = reader()
    assert read.read("\t Train loss/train/total: 12.0000") is None
    assert steps(read, grown("\t Train time/batch: #"))[-1] == 13
    assert read.read("\t Train loss/train/total: 11.9000") == Progress(loss=11.9, counts_on=True)


def test_one_choice_holds_for_all_workers_of_a_node() -> None:
    first = reader()
    second = LineReader(first.recognizer)
    steps(first, [titan(n, "1") for n in (1, 2, 3)])
    assert second.read(titan(1, "1")) == Progress(step=1, loss=1.0)


# Checkpoints ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "  successfully saved checkpoint from iteration     845 to /ckpt/run1",
            Checkpoint(845, "/ckpt/run1"),
        ),
        (
            "[rank0]:2025-04-01 00:25:59,616 - root - INFO - Finished saving the checkpoint (or staging if async is "
            "enabled)in 5.53 seconds.",
            Checkpoint(),
        ),
        ("[titan] - INFO - Finished saving the checkpoint in 0.60 seconds.", Checkpoint()),
        ("Saving model checkpoint to out/checkpoint-500", None),
        ("no", None),
    ],
)
def test_lines_that_say_that_a_checkpoint_was_saved(line: str, found: Checkpoint | None) -> None:
    assert reader().read_checkpoint(line) == found


@pytest.mark.parametrize(
    ("expression", "line", "found"),
    [
        (r"saved (?P<path>\S+)", "saved out/checkpoint-500/model.pt", Checkpoint(500, "out/checkpoint-500/model.pt")),
        (r"saved (?P<path>\S+) at (?P<step>\d+)", "saved a-step-3 at 7", Checkpoint(7, "a-step-3")),
        (r"saved", "it is saved", Checkpoint()),
        (r"saved", "no", None),
    ],
)
def test_checkpoints_by_an_own_expression(expression: str, line: str, found: Checkpoint | None) -> None:
    assert reader(compile_expressions(checkpoint_pattern=expression)).read_checkpoint(line) == found


# Expressions of users ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "line", "progress"),
    [
        (r"step (?P<step>\d+) loss (?P<loss>\S+)", "step 12 loss 0.5", Progress(step=12, loss=0.5)),
        (r"(?P<step>[\d,]+) of", "1,234 of 9", Progress(step=1234)),
        (r"loss=(?P<loss>[^,]+)", "loss=NaN, x", Progress(loss=math.nan)),
        (r"loss=(?P<loss>\S+)", "loss=-inf", Progress(loss=-math.inf)),
        (r"n=(?P<samples>\S+) e=(?P<epoch>\S+)", "n=3e3 e=1.5", Progress(samples=3000, epoch=1.5)),
        (r"(?P<step>\w+)", "word", Progress()),
        (r"(?P<step>-?\d+)", "-3", Progress()),
        (r"(?P<step>\d+)$", "1" * 5000, Progress()),  # out of range
        (r"a(?P<step>\d)?", "a", Progress()),
        (r"^(?P<step>\d+)", "x 3", None),
        (r".*step (?P<step>\d+)", "a step 1 step 2", Progress(step=2)),
    ],
)
def test_an_own_expression_is_read(expression: str, line: str, progress: Progress | None) -> None:
    found = reader(compile_expressions(expression)).read(line)
    assert str(found) == str(progress)


def test_an_own_expression_is_compared_with_the_end_of_a_long_line() -> None:
    read = reader(compile_expressions(r"step (?P<step>\d+)"))
    assert read.read("step 1" + " " * 1000) is None
    assert read.read("x" * 10**6 + " step 2") == Progress(step=2)


# Streams -------------------------------------------------------------------------------------------------------------


def scan(*chunks: bytes, needles: tuple[bytes, ...] | None = None) -> list[str]:
    """Return what one stream shows that comes in these chunks, a second apart."""
    scanner = Scanner()
    return [line for at, chunk in enumerate(chunks) for line in scanner.feed(chunk, needles, at * 1.0)]


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"one\ntwo\n"], ["one", "two"]),
        ([b"on", b"e\nt", b"wo\n"], ["one", "two"]),
        ([b"dos\r\nline\r\n"], ["dos", "line"]),
        ([b"\r 1/9 [x]", b"\r 2/9 [x]"], ["1/9 [x]", "2/9 [x]"]),  # not twice
        ([b"\r 1/9 [x]\r 2/9 [x]\r 3/", b"9 [x]\n"], ["1/9 [x]", "2/9 [x]", "3/9 [x]"]),
        ([b"\rstep 1", b"2\n"], ["step 12"]),  # no bracket: it may go on
        ([b"\x1b[1mbold\x1b[0m\x1b[A\n"], ["bold\x1b[A"]),  # the cursor goes back to another bar
        ([b"\xff\0\n"], ["\ufffd\0"]),
        ([b"caf\xc3", b"\xa9\n"], ["café"]),
        ([b"\n\n \n"], []),
        ([b"x" * 10**6, b"y\n"], ["x" * (LINE_MAX_BYTES - 1) + "y"]),
    ],
)
def test_lines_of_a_stream(chunks: list[bytes], lines: list[str]) -> None:
    assert scan(*chunks) == lines


def test_only_lines_with_one_of_the_texts_are_returned() -> None:
    assert scan(b"a 1\nb 2\nc 3\n", needles=(b"a", b"c")) == ["a 1", "c 3"]
    assert scan(b"st", b"ep 1\n", b"x\n", needles=(b"step",)) == ["step 1"]
    assert scan(b"\rstep [1]", b"\rstep [2]", needles=(b"step",)) == ["step [1]", "step [2]"]


def test_of_a_flood_the_newest_lines_are_returned_and_a_limited_number_a_second() -> None:
    scanner = Scanner()
    limit = int(LINES_AT_ONCE)
    flood = b"".join(b"%d\n" % n for n in range(1000))
    assert scanner.feed(flood, None, 0.0) == [str(n) for n in range(1000 - limit, 1000)]
    assert scanner.feed(b"1000\n", None, 0.0) == []
    assert scanner.feed(b"1001\n", None, 0.01) == []
    assert scanner.take_waiting() == (["1001"], 0.01), "the newest is not lost"
    assert scanner.take_waiting() == ([], 0.0)
    assert scanner.feed(b"1002\n", None, 0.02) == []
    assert scanner.feed(b"1003\n", None, 1.0) == ["1003"]
    assert scanner.take_waiting() == ([], 0.0), "a newer one was read"


@pytest.mark.parametrize("rate", [24, 50, 100, 500])
@pytest.mark.parametrize("chunk", [1, 10], ids=["line by line", "ten lines at once"])
def test_no_line_of_a_checkpoint_is_lost_in_a_flood_of_steps(rate: int, chunk: int) -> None:
    scanner, needles, found, flood = Scanner(), Recognizer().needles, 0, []
    for n in range(10 * rate):
        flood.append(titan(n, "3.2"))
        flood += ["Finished saving the checkpoint in 0.60 seconds."] if n % rate == rate // 2 else []
    for at in range(0, len(flood), chunk):
        data = "".join(f"{line}\n" for line in flood[at : at + chunk]).encode()
        lines = scanner.feed(data, needles, at / rate)
        found += sum("checkpoint" in line for line in lines)
    assert found == 10


def test_of_many_lines_at_once_the_one_of_a_checkpoint_is_read() -> None:
    flood = [titan(n, "3.2") for n in range(200)]
    flood[3] = "Finished saving the checkpoint in 0.60 seconds."
    lines = Scanner().feed("\n".join([*flood, ""]).encode(), Recognizer().needles, 0.0)
    assert (lines[0], lines[-1], len(lines)) == (flood[3], flood[-1], LINES_AT_ONCE + 1)


def test_a_traceback_after_a_flood_of_bars_hides_none() -> None:
    scanner, needles = Scanner(), Recognizer().needles
    flood = "\r".join(bar(n, 1000) for n in range(900)).encode()
    trace = (
        b'\nTraceback (most recent call last):\n  File "train.py", line 6, in <module>\n    raise ValueError("<>")\n'
    )
    scanner.feed(flood, needles, 0.0)
    assert scanner.feed(flood + trace, needles, 0.04)[-1:] == [bar(899, 1000).strip()]


def test_the_end_of_a_stream_is_a_line() -> None:
    scanner = Scanner()
    assert scanner.feed(b"step 1", None, 0.0) == []
    assert scanner.finish(None) == ["step 1"]
    assert scanner.finish(None) == []


@pytest.mark.parametrize(
    ("lines", "counts_on"),
    [
        (["0/40 [00:00<?, ?it/s]", "9/40 [00:01<00:04,  7.70it/s]"], False),
        (["20/40 [00:00<?, ?it/s]", "29/40 [00:01<00:04,  7.70it/s]"], True),
        (["20/40 [00:00<?, ?it/s]", "0/40 [00:00<?, ?it/s]", "9/40 [00:01<00:04,  7.70it/s]"], False),
        (["29/40 [00:01<00:04,  7.70it/s]"], False),
        (["Epoch 3: 20%|█ | 9/40 [00:01<00:04,  7.70it/s]"], True),
    ],
    ids=["began at 0", "resumed", "began again", "its first frame was not read", "with an epoch"],
)
def test_the_step_of_a_bar_that_begins_at_0_does_not_count_on_over_rounds(lines: list[str], counts_on: bool) -> None:
    """It can be of one epoch, and each round can train another one."""
    recognizer = Recognizer()
    recognizer.choose(PATTERNS[-1])
    reader = LineReader(recognizer)
    steps = [reader.read(line) for line in lines]
    assert steps[-1] is not None
    assert steps[-1].counts_on is counts_on


def test_where_a_bar_began_is_remembered_from_before_its_pattern_is_chosen() -> None:
    reader = LineReader(Recognizer())
    lines = ("20/40 [00:00<?, ?it/s]", *(f"{n}/40 [00:01<00:04,  7.70it/s]" for n in range(21, 26)))
    *_, last = [reader.read(line) for line in lines]
    assert last is not None
    assert last.counts_on


@pytest.mark.parametrize(
    ("line", "counts_on"),
    [("step: 38 loss: 0.5", True), ("epochs step: 38 loss: 0.5", False), (hf(0.5, 1.25), True)],
)
def test_a_step_beside_an_epoch_that_is_not_read_does_not_count_on(line: str, counts_on: bool) -> None:
    recognizer = Recognizer()
    recognizer.choose(PATTERNS[0] if "'loss'" in line else PATTERNS[NAMES.index(STEP_LINES)])
    reader = LineReader(recognizer)
    found = reader.read(line)
    assert found is not None
    assert found.counts_on is counts_on
