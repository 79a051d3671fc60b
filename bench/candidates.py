#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times every forward kernel that dispatch may choose between on drawn shapes, on a Hopper GPU: what the cost model's
constants are fitted to, and how far its choice is from the best one.

Each shape's candidates take turns in one process, replayed from CUDA graphs. Ends in the share of shapes whose choice is
more than 2 % behind the best candidate, and those shapes. --summary reads a file of rows instead.
"""

import argparse
import csv
import statistics
import sys
import time
from pathlib import Path

from drawn import described
from drawn_cases import DRAWN_COLUMNS, draw

# Tiles of src/forward/recipes.h by head dim: rows, keys, turns.
TILES = {64: ((192, 128, "auto"), (192, 112, "auto"), (128, 128, "auto"), (64, 64, "auto")),
         96: ((192, 96, "auto"), (128, 128, "auto"), (64, 64, "auto")),
         128: ((128, 128, "auto"), (128, 160, "auto"), (64, 64, "auto")),
         192: ((128, 96, "auto"), (64, 48, "auto")),
         256: ((128, 64, "pingpong"), (128, 64, "free"), (128, 80, "auto"), (64, 32, "auto"))}
COLUMNS = [*DRAWN_COLUMNS[:DRAWN_COLUMNS.index("peer")], "candidate", "us", "commit"]


def candidates(d):
    return TILES[next(size for size in sorted(TILES) if size >= d)]


def graphs_of(case):
    import tandem
    import torch
    from drawn_peers import Inputs, Replayed
    inputs = Inputs(case, case.seed)
    window = (case.window - 1, 0) if case.window else None
    out = torch.empty_like(inputs.q)
    options = {"causal": case.causal and not window, "window": window, "out": out}
    graphs = {"auto": Replayed(lambda k, v: tandem.forward(inputs.q, k, v, **options), inputs)}
    for block_m, block_n, turn in candidates(case.d):
        study = {"block_m": block_m, "block_n": block_n, "turn": turn}

        def call(k, v, study=study):
            return tandem.forward(inputs.q, k, v, study=study, **options)
        try:
            call(*inputs.caches[0])
            graphs[f"{block_m}x{block_n} {turn}"] = Replayed(call, inputs)
        except tandem.TandemError as error:
            if not any(reason in str(error) for reason in ("no Hopper kernel", "lacks")):
                raise
    return graphs


def summary(rows):
    shapes = {}
    for row in rows:
        key = tuple(str(row[name]) for name in COLUMNS[:COLUMNS.index("candidate")])
        shapes.setdefault(key, (row, {}))[1][row["candidate"]] = float(row["us"])
    lines, wrong = [], 0
    for row, us in shapes.values():
        best = min(us, key=us.get)
        if us["auto"] > 1.02 * us[best]:
            wrong += 1
            lines.append(f"{us['auto'] / us[best]:.3f} {described(row):60} auto {us['auto']:.1f} " +
                         "  ".join(f"{name} {time:.1f}" for name, time in us.items() if name != "auto"))
    lines.sort(reverse=True)
    return "\n".join([*lines, f"{wrong} of {len(shapes)} shapes: more than 2 % behind the best candidate"])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="CSV file to write")
    parser.add_argument("--seed", type=int, default=100)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--budget-seconds", type=float, default=60)
    parser.add_argument("--summary", type=Path)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    if arguments.summary:
        with arguments.summary.open(newline="") as file:
            print(summary(list(csv.DictReader(file))))
        return 0
    import torch
    from results import Results
    from timing import interleave
    begin, results = time.monotonic(), Results(arguments.output, COLUMNS)
    for case in draw(arguments.seed, arguments.count, ("forward",)):
        if time.monotonic() - begin > arguments.budget_seconds:
            break
        graphs = graphs_of(case)
        known = {name: value for name, value in case.columns().items() if name in COLUMNS}
        for name, times in interleave(graphs, 0.05).items():
            results.add({**known, "candidate": name, "us": f"{1e3 * statistics.median(times) / graphs[name].calls:.2f}"})
        del graphs
        torch.cuda.empty_cache()
    print(summary(results.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
