# SPDX-License-Identifier: Apache-2.0
"""The README's first table: of each benchmark in which shapes Tandem is ahead of the fastest peer, and by how much, computed
from its rows. bench/table.py writes it."""

import csv
import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"
PEERS = {"cudnn": "cuDNN", "fa2": "FA2", "fa3": "FA3"}
LEVEL = 0.99  # of the fastest peer's speed
HEAD = ["workload", "card", "commit, day", "beside", "shapes", "ahead", "at 0.99 or better", "mean", "worst"]


@dataclass(frozen=True)
class Benchmark:
    workload: str
    file: str  # under bench/results; the first folder names the card, the second the day
    chosen: dict = field(default_factory=dict)  # columns of the rows that count
    own: str = "tandem"  # Tandem's name among the peers
    others: tuple = ("cudnn", "cudnn_packed", "fa2", "fa3")
    commit: str = ""  # of files whose rows name none


GRID = "forward, bf16, the paper's grid"
BACKWARD_GRID = "backward, bf16, the same grid"
STEPS = "decoding steps, bf16, d128, 1k to 128k keys"
BENCHMARKS = [
    Benchmark(GRID, "h200/2026-11-28/forward.csv", {"kind": "fwd", "dtype": "bf16"}),
    Benchmark(GRID, "h100/2026-11-26/forward.csv", {"kind": "fwd", "dtype": "bf16"}),
    Benchmark(BACKWARD_GRID, "h200/2026-11-28/backward-2.csv", {"kind": "bwd", "dtype": "bf16"}),
    Benchmark(BACKWARD_GRID, "h100/2026-11-26/backward.csv", {"kind": "bwd", "dtype": "bf16"}),
    Benchmark("forward, 8 bits, the same grid", "h200/2026-11-26/fp8.csv", {"kind": "fp8"}, own="tandem fp8",
              others=("cudnn fp8", "fa3 fp8")),
    Benchmark(STEPS, "h200/2026-11-28/decode-grid.csv", {"kind": "grid", "dtype": "bf16"}, commit="5240f85"),
    Benchmark(STEPS, "h100/2026-11-27/decode-3.csv", {"kind": "grid", "dtype": "bf16"}, commit="ea89374"),
    Benchmark("random shapes, forward and decode, fresh seeds", "h100/2026-11-27/drawn-9601.csv", commit="ea89374"),
    Benchmark("the same, seeds drawn before on an H200", "h100/2026-11-27/drawn-9701.csv", commit="ea89374"),
    Benchmark("forward and few queries, seeds drawn before", "h100/2026-11-28/drawn-9901.csv", commit="3958792"),
    Benchmark("random shapes, forward and decode, other fresh seeds", "h100/2026-11-28/drawn-12001.csv", commit="3958792"),
    Benchmark("the same", "h200/2026-11-28/drawn-16001.csv", commit="1bf3750"),
    Benchmark("the same", "h200/2026-11-28/drawn-17001.csv", commit="9519bf5"),
    Benchmark("the same", "h200/2026-11-28/drawn-18001.csv", commit="36e8752"),
    Benchmark("the same", "h200/2026-11-28/drawn-19001.csv", commit="2021d36"),
    Benchmark("the same", "h200/2026-11-28/drawn-20001.csv", commit="e480b17"),
    Benchmark("the same", "h200/2026-11-29/drawn-21001.csv", commit="151c419"),
    Benchmark("the same", "h200/2026-11-29/drawn-23001.csv", commit="993329c"),
    Benchmark("the same", "h200/2026-11-29/drawn-24001.csv", commit="588b599"),
    Benchmark("the same", "h200/2026-11-29/drawn-27001.csv", commit="6acf50a"),
    Benchmark("the same", "h200/2026-11-29/drawn-33001.csv", commit="6acf50a"),
    Benchmark("the same", "h200/2026-11-29/drawn-45001.csv", commit="efbf994"),
    Benchmark("the same", "h200/2026-12-01/drawn-52001.csv", commit="b26f89a"),
    Benchmark("variable lengths, bf16, packed keys: equal lengths and mixes", "h200/2026-11-29/varlen.csv", others=("fa3",)),
    Benchmark("the same, keys in pages of 64", "h200/2026-11-29/varlen.csv", own="pages 64", others=("fa3 pages 64",)),
    Benchmark("few queries on long keys, fresh seeds", "h200/2026-11-28/drawn-few-13001.csv", commit="69803b8"),
    Benchmark("the same", "h200/2026-11-28/drawn-few-17101.csv", commit="9519bf5"),
    Benchmark("the same", "h200/2026-11-28/drawn-few-18101.csv", commit="36e8752"),
    Benchmark("the same", "h200/2026-11-29/drawn-few-23101.csv", commit="993329c"),
    Benchmark("the same", "h200/2026-11-29/drawn-few-95001.csv", commit="549349b"),
    Benchmark("random decoding steps, fresh seeds", "h100/2026-11-28/drawn-decode-9811.csv", commit="daee7c4"),
    Benchmark("the same", "h200/2026-11-28/drawn-decode-17201.csv", commit="9519bf5"),
    Benchmark("the same", "h200/2026-11-28/drawn-decode-18201.csv", commit="36e8752"),
    Benchmark("the same", "h200/2026-11-28/drawn-decode-19201.csv", commit="2021d36"),
    Benchmark("the same", "h200/2026-11-29/drawn-decode-23201.csv", commit="993329c"),
    Benchmark("random shapes, backward, fresh seeds", "h200/2026-11-26/drawn-backward-2003.csv"),
    Benchmark("the same", "h100/2026-11-28/drawn-backward-3101.csv", commit="560f2e1"),
    Benchmark("the same", "h100/2026-11-28/drawn-backward-3301.csv", commit="3958792"),
    Benchmark("the same", "h200/2026-11-28/drawn-backward-15001.csv", commit="1bf3750"),
    Benchmark("the same", "h200/2026-11-28/drawn-backward-18001.csv", commit="e9d9ef4"),
]


def ratios(rows, benchmark):
    """Tandem's speed over the fastest peer's, of each shape that both have."""
    times = {}
    for row in rows:
        time = row.get("us") or row.get("ms")
        if time and all(row[name] == value for name, value in benchmark.chosen.items()):
            columns = list(row)  # those before the peer say which shape it is, but for the kernel that Tandem took
            shape = tuple(row[name] for name in columns[:columns.index("peer")] if name != "kernel")
            times.setdefault(shape, {})[row["peer"]] = float(time)
    found = []
    for of_shape in times.values():
        others = [time for peer, time in of_shape.items() if peer in benchmark.others]
        if benchmark.own in of_shape and others:
            found.append(min(others) / of_shape[benchmark.own])
    return found


def peers_of(rows, benchmark):
    names = {row["peer"].split()[0].split("_")[0] for row in rows
             if row["peer"] in benchmark.others and (row.get("us") or row.get("ms"))}
    return ", ".join(PEERS[name] for name in PEERS if name in names)


def line(benchmark):
    """The cells of a benchmark, from its rows."""
    with open(RESULTS / benchmark.file, newline="") as file:
        rows = list(csv.DictReader(file))
    commits = {row["commit"][:7] for row in rows if row.get("commit") and row["peer"] == benchmark.own}
    commit = benchmark.commit or " ".join(sorted(commits))
    card, *folders, _ = benchmark.file.split("/")
    all_ratios = ratios(rows, benchmark)
    mean = math.exp(statistics.fmean(math.log(ratio) for ratio in all_ratios))
    return [f"[{benchmark.workload}](bench/results/{benchmark.file})", card.upper(), f"{commit}, {folders[0]}",
            peers_of(rows, benchmark), str(len(all_ratios)), str(sum(ratio >= 1 for ratio in all_ratios)),
            str(sum(ratio >= LEVEL for ratio in all_ratios)), f"{mean:.3f}", f"{min(all_ratios):.3f}"]


def lines():
    return [HEAD] + [line(benchmark) for benchmark in BENCHMARKS if (RESULTS / benchmark.file).exists()]
