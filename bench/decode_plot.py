#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the bandwidth of measured decoding steps over the bytes of their keys and values, a panel a number of query
heads. Needs Matplotlib."""

import argparse
import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from decode_cases import DECODE_RESULTS, HEADS
from plot import STYLES


def curve(rows, peer, hq):
    """Megabytes and GB/s of every point of the grid; "cudnn" is the better of its two forms."""
    points = {}
    for row in rows:
        if row["peer"].removesuffix("_packed") == peer and int(row["hq"]) == hq:
            megabytes = float(row["rate"]) * float(row["us"]) * 1e-3
            shape = int(row["b"]), int(row["sk"])
            points[shape] = max(points.get(shape, (0, 0)), (megabytes, float(row["rate"])), key=lambda point: point[1])
    return zip(*sorted(points.values())) if points else ((), ())


def draw(rows, dtype, output):
    rows = [row for row in rows if row["kind"] == "grid" and row["dtype"] == dtype]
    plt.rcParams.update({"svg.hashsalt": "tandem", "font.size": 9})
    figure, panels = plt.subplots(1, len(HEADS), figsize=(12, 3.6), sharey=True, layout="constrained")
    for hq, axes in zip(HEADS, panels):
        for peer, style in STYLES.items():
            megabytes, rates = curve(rows, peer, hq)
            if rates:
                axes.plot(megabytes, rates, markersize=4, **{**style, "linestyle": "none"})
        axes.set_title(f"{hq} query heads", fontsize=10)
        axes.set_xscale("log")
        axes.set_xlabel("keys and values, MB")
        axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("GB/s")
    panels[0].set_ylim(bottom=0)
    figure.suptitle(f"One decoding step, {dtype}, d128, 8 key/value heads, NVIDIA H200, cold L2")
    drawn = {label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(drawn.values(), drawn.keys(), loc="outside lower center", ncols=len(STYLES), frameon=False)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, default=DECODE_RESULTS)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("-o", "--output", type=Path,
                        default=Path(__file__).resolve().parent.parent / "docs/figures/decode-h200.svg")
    arguments = parser.parse_args()
    with open(arguments.results, newline="") as file:
        draw([row for row in csv.DictReader(file) if row["us"]], arguments.dtype, arguments.output)
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    sys.exit(main())
