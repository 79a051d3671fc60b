#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws how fast Tandem is beside the best peer on drawn shapes, over how long a call takes: a panel a kind. Needs
Matplotlib."""

import argparse
import csv
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from drawn import LEVEL, shapes
from drawn_cases import DRAWN_RESULTS, KINDS

COLORS = {"cudnn": "#009E73", "cudnn_packed": "#56B4E9", "fa2": "#8A8A8A", "fa3": "#0072B2"}
LABELS = {"cudnn": "cuDNN", "cudnn_packed": "cuDNN, heads packed", "fa2": "FlashAttention-2", "fa3": "FlashAttention-3"}


def panel(axes, found, kind):
    for peer, color in COLORS.items():
        points = [(us["tandem"], ratio) for row, us, best, ratio in found if row["kind"] == kind and best == peer]
        if points:
            axes.scatter(*zip(*points), s=12, color=color, label=LABELS[peer], alpha=0.8)
    axes.axhline(1, color="#444444", linewidth=0.8)
    axes.set(xscale="log", yscale="log", title=kind)
    axes.set_yticks([0.5, 0.7, 1, 1.5, 2, 3], ["0.5", "0.7", "1", "1.5", "2", "3"], minor=False)
    axes.minorticks_off()
    axes.set_ylim(0.4, 4)
    axes.grid(color="#DDDDDD", linewidth=0.6)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, default=DRAWN_RESULTS, help="CSV file (default: the recorded one)")
    parser.add_argument("-o", "--output", type=Path, required=True, help="SVG file to write")
    arguments = parser.parse_args()
    with arguments.results.open(newline="") as file:
        found = shapes(list(csv.DictReader(file)))
    plt.rcParams.update({"svg.hashsalt": "tandem", "font.size": 9})
    figure, grid = plt.subplots(2, 2, figsize=(10, 7), sharey=True, layout="constrained")
    for kind, axes in zip(KINDS, grid.flat):
        panel(axes, found, kind)
    for axes in grid[-1]:
        axes.set_xlabel("microseconds of Tandem")
    for line in grid:
        line[0].set_ylabel("speed beside the best peer")
    behind = sum(ratio < LEVEL for *_, ratio in found) / max(1, len(found))
    figure.suptitle(f"{len(found)} drawn shapes, NVIDIA H200; behind the best peer: {behind:.0%}")
    drawn = {label: line for axes in grid.flat for line, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(drawn.values(), drawn.keys(), loc="outside lower center", ncols=len(drawn), frameon=False,
                  title="each shape in the colour of its best peer")
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.output, metadata={"Date": None})


if __name__ == "__main__":
    main()
