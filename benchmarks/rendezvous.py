"""Rendezvous of many nodes: ours over each store beside torch's, with agents that are real but for their workers.

``make bench`` runs it after ``launchers``, and rewrites its tables in ``benchmarks/RESULTS.md``, which says how each
figure is taken. ``make bench-rendezvous ARGS="--sizes=64 --peers=torch,c10d"`` measures a part, and leaves the
page alone.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.meetings import (
    C10D,
    ETCD,
    EVENTS,
    FORM,
    PATIENCE,
    PEERS,
    REDIS,
    RESTART,
    TORCH,
    Sample,
    play,
    raise_descriptors,
)
from benchmarks.tables import NOTHING, cell, median, paragraphs, replaced, seconds, table
from benchmarks.targets import Target

PAGE = Path(__file__).with_name("RESULTS.md")
BEGIN, END = "<!-- rendezvous: written by benchmarks/rendezvous.py -->", "<!-- end of rendezvous -->"
SIZES = (16, 64, 256, 1024)
RUNS = 3
MINUTES = 25.0
NAMES = {TORCH: "torch, TCPStore", C10D: "elastic, `c10d`", REDIS: "elastic, Redis", ETCD: "elastic, etcd"}
AGENT_DESCRIPTORS = 9
"""The cost of a node to its process: four connections, two descriptors for each, and etcd's watch."""
CALM = {"RES_OPTIONS": "attempts:1 timeout:1", "OMP_NUM_THREADS": "1"}
"""For all processes: a resolver that drops questions is to cost a TCPStore's connection 1 s, not 5."""

Book = defaultdict[tuple[str, int, str], list[Sample]]
"""Samples by event, size and peer."""


def measure(
    peers: Sequence[str], sizes: Sequence[int], runs: int, deadline: float, patience: float, book: Book
) -> None:
    """Every peer at every size, in turn, ``runs`` times over. What would pass the deadline is left out."""
    took: dict[tuple[str, int], float] = {}
    for run in range(1, runs + 1):
        for size in sizes:
            for peer in peers:
                begin = time.monotonic()
                if hopeless(peer, size, book):
                    continue
                if begin + took.get((peer, size), 0.0) > deadline:
                    say(f"run {run}: no time is left for {NAMES[peer]} with {size} agents")
                    continue
                try:
                    for event, sample in play(peer, size, patience):
                        book[event, size, peer].append(sample)
                        say(line_of(peer, size, event, sample))
                except (OSError, RuntimeError) as exc:  # a connection that was not to be had, a process that starves
                    say(f"{NAMES[peer]} with {size} agents could not be measured: {exc}")
                took[peer, size] = time.monotonic() - begin
        say(f"run {run} of {runs} is over, at load {os.getloadavg()[0]:.1f}")


def hopeless(peer: str, size: int, book: Book) -> bool:
    """Return True if a job with as many agents, or with fewer, did not come to an end."""
    return any(
        other == peer and fewer <= size and samples and all(sample.seconds is None for sample in samples)
        for (_, fewer, other), samples in book.items()
    )


def line_of(peer: str, size: int, event: str, sample: Sample) -> str:
    """One sample in one line."""
    kinds = ", ".join(f"{name} {count:.1f}" for name, count in sorted(sample.kinds.items()))
    lasted, ordered = (seconds(math.inf if it is None else it) for it in (sample.seconds, sample.ordered))
    return (
        f"{NAMES[peer]}, {size} agents, {event}: {lasted} ({ordered} from the order); a node's requests: "
        f"{sample.requests:.1f} ({kinds}), the leader's: {sample.leader:.0f}; {sample.size / 1000:.1f} kB a node"
    )


def say(line: str) -> None:
    """Print at once."""
    print(line, flush=True)


def middle(samples: Collection[Sample], figure: Callable[[Sample], float]) -> float:
    """Return the median of one figure over those that came to an end."""
    return median([figure(sample) for sample in samples if sample.seconds is not None])


def cost(samples: Collection[Sample]) -> str:
    """Return what a node asks of the store, as ``5.0 requests (leader 17), 6.1 kB``."""
    if not any(sample.seconds is not None for sample in samples):
        return NOTHING
    leader = middle(samples, lambda sample: sample.leader)
    whose = "" if math.isnan(leader) else f" (leader {leader:.0f})"
    size = middle(samples, lambda sample: sample.size)
    return f"{middle(samples, lambda sample: sample.requests):.1f} requests{whose}, {size / 1000:.1f} kB"


def rows(
    book: Book, peers: Sequence[str], show: Callable[[list[Sample]], str], events: Sequence[str] = EVENTS
) -> list[list[str]]:
    """One for each of these events and each size, of which something was measured."""
    sizes = sorted({size for _, size, _ in book})
    return [
        [f"{event}, {size} agents", *(show(book.get((event, size, peer), [])) for peer in peers)]
        for event in events
        for size in sizes
        if any(book.get((event, size, peer)) for peer in peers)
    ]


def targets(book: Mapping[tuple[str, int, str], list[Sample]]) -> Iterator[Target]:
    """Yield the targets whose figures were measured."""

    def took(event: str, size: int, peer: str) -> float:
        return median([sample.seconds for sample in book.get((event, size, peer), [])])

    for event in (FORM, RESTART):
        if took(event, 64, C10D) < math.inf and book.get((event, 64, TORCH)):
            what = f"{event}, 64 agents, over `c10d`: 1/20 of torch's"
            yield Target(what, took(event, 64, C10D), took(event, 64, TORCH) / 20)
    for event, limit in ((FORM, 5.0), (RESTART, 1.0)):
        if book.get((event, 1024, REDIS)):
            yield Target(f"{event}, 1024 agents, over Redis", took(event, 1024, REDIS), limit)
    for peer in (C10D, REDIS, ETCD):
        for event in EVENTS:
            few, many = book.get((event, 16, peer)), book.get((event, 1024, peer))
            if few and many:
                low, high = (middle(samples, lambda sample: sample.requests) for samples in (few, many))
                what = f"{event}, {NAMES[peer]}: a node's requests at 1024 agents, beside those at 16"
                yield Target(what, high, 1.2 * low, "{:.1f}".format)


def section(book: Book, peers: Sequence[str], runs: int, load: Sequence[float], patience: float) -> list[str]:
    """Return the tables, with the machine that they were measured on."""
    machine = f"{os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}"
    names = [NAMES[peer] for peer in peers]
    reached = [[target.what, target.show(target.value), target.show(target.limit), "yes" if target.met else "no"]
               for target in targets(book)]  # fmt: skip
    return paragraphs(
        [
            f"Medians of {runs} runs, or of those that there was time for (of two the greater), with the least and the "
            f"greatest; *never* is not within {patience:.0f} s; - was not measured.",
            f"{machine}; load (all processes of the machine, these among them) {min(load):.1f} to {max(load):.1f}.",
        ],
        table(
            ["until all hold their rank", *names],
            rows(book, peers, lambda samples: cell([sample.seconds for sample in samples])),
        ),
        table(
            ["the same, from the start of all", *names],
            rows(book, peers, lambda samples: cell([sample.ordered for sample in samples]), [FORM]),
        ),
        table(["a node asks of its store", *names], rows(book, peers, cost)),
        table(["target", "measured", "at most", "met"], reached) if reached else [],
    )


def main() -> None:
    """Measure, say what was found, and write the page."""
    parser = argparse.ArgumentParser(description="Measure rendezvous of many simulated nodes.")
    parser.add_argument("--runs", type=int, default=RUNS, help=f"how often everything is measured [{RUNS}]")
    help = f"numbers of agents; the page stays as it is unless they are [{','.join(map(str, SIZES))}]"
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), metavar="N,N", help=help)
    help = f"only these of {','.join(PEERS)}; the page stays as it is"
    parser.add_argument("--peers", default=",".join(PEERS), metavar="NAME,NAME", help=help)
    help = f"no job is begun that would end later than this [{MINUTES:g}]"
    parser.add_argument("--minutes", type=float, default=MINUTES, help=help)
    help = f"seconds after which an event counts as never over [{PATIENCE:g}]"
    parser.add_argument("--patience", type=float, default=PATIENCE, help=help)
    parser.add_argument("--page", type=Path, help="write the tables into this page, whatever was measured")
    args = parser.parse_args()
    peers, sizes = args.peers.split(","), [int(size) for size in args.sizes.split(",")]
    if unknown := set(peers) - set(PEERS):
        parser.error(f"--peers: there is no {', '.join(sorted(unknown))}")

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # processes are ended on the way out
    os.environ.update(CALM)
    begin, load = time.monotonic(), [os.getloadavg()[0]]
    allowed, wanted = raise_descriptors(), AGENT_DESCRIPTORS * (max(sizes) + 1)
    if allowed < wanted:
        say(f"{max(sizes)} agents may need {wanted} descriptors in the store's process; the limit is {allowed}")
    book: Book = defaultdict(list)
    measure(peers, sizes, args.runs, begin + args.minutes * 60, args.patience, book)
    load.append(os.getloadavg()[0])
    written = section(book, peers, args.runs, load, args.patience)
    say("\n".join(["", *written, "", *map(str, targets(book)), f"\n{(time.monotonic() - begin) / 60:.1f} minutes"]))
    page = args.page or (PAGE if (peers, sizes) == (list(PEERS), list(SIZES)) else None)
    if page is not None:
        page.write_text(replaced(page.read_text(), BEGIN, END, written))


if __name__ == "__main__":
    main()
