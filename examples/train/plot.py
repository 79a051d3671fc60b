#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the losses that train.py wrote, smoothed, a panel a file. Needs Matplotlib."""

import argparse
import csv
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

SMOOTHING = 0.9  # of what came before
STYLES = {"tandem": {"color": "#D55E00", "linewidth": 2.0}, "plain": {"color": "#0072B2", "linewidth": 1.2}}
NAMES = {("numpy", "tandem"): "Tandem", ("numpy", "plain"): "plain float32", ("torch", "tandem"): "Tandem",
         ("torch", "plain"): "PyTorch's own"}
PANELS = {"numpy": "NumPy on the CPU, float32", "torch": "PyTorch on an H200, bfloat16"}


def read_curves(path):
    """{(framework, attention, seed): losses}."""
    curves = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            curves.setdefault((row["framework"], row["attention"], row["seed"]), []).append(float(row["loss"]))
    return curves


def smoothed(losses):
    """An exponential mean that starts without bias."""
    means, total, weight = [], 0.0, 0.0
    for loss in losses:
        total, weight = SMOOTHING * total + loss, SMOOTHING * weight + 1
        means.append(total / weight)
    return means


def panel(axes, curves):
    for (framework, attention, seed), losses in curves.items():
        dashed = "-" if attention == "tandem" else "--"
        axes.plot(smoothed(losses), linestyle=dashed, alpha=1 if seed == min(s for _, _, s in curves) else 0.5,
                  label=f"{NAMES[framework, attention]}, seed {seed}", **STYLES[attention])
    axes.set_title(PANELS[framework], fontsize=10)
    axes.set_xlabel("step")
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("curves", nargs="+", type=Path, help="CSV files of train.py, a framework each")
    parser.add_argument("-o", "--output", type=Path,
                        default=Path(__file__).resolve().parents[2] / "docs/figures/training.svg")
    arguments = parser.parse_args()
    plt.rcParams.update({"svg.hashsalt": "tandem", "font.size": 9})
    figure, panels = plt.subplots(1, len(arguments.curves), figsize=(5.5 * len(arguments.curves), 4), sharey=True,
                                  squeeze=False, layout="constrained")
    for axes, path in zip(panels[0], arguments.curves):
        panel(axes, read_curves(path))
    panels[0][0].set_ylabel("loss, nats a byte")
    figure.savefig(arguments.output, metadata={"Date": None})
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    sys.exit(main())
