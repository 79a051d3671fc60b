#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the figures of the FlashAttention-3 paper from result files, of the forward or with --backward of the backward
pass: TFLOP/s over sequence length, a panel a head dim, full attention above and causal below. Needs Matplotlib."""

import argparse
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

from cases import HEAD_DIMS, HIDDEN, RECORDED_PEERS, RESULTS, SEQLENS, TOKENS, by_mode, curve, read_rows

# Okabe and Ito's colours, which stay apart for colour-blind readers; markers and dashes tell them apart without colour.
STYLES = {
    "tandem": {"label": "Tandem", "color": "#D55E00", "marker": "o", "linewidth": 2.2, "zorder": 4},
    "tandem deterministic": {"label": "Tandem, deterministic", "color": "#E69F00", "marker": "D", "linestyle": "--"},
    "fa3": {"label": "FlashAttention-3", "color": "#0072B2", "marker": "s"},
    "cudnn": {"label": "cuDNN", "color": "#009E73", "marker": "^"},
    "fa2": {"label": "FlashAttention-2", "color": "#8A8A8A", "marker": "v"},
}


def panel(axes, rows, d, causal):
    for peer, style in STYLES.items():
        seqlens, rates = curve(rows, peer, d, causal)
        if rates:
            axes.plot([SEQLENS.index(s) for s in seqlens], rates, markersize=5, **style)
    axes.set_title(f"head dim {d}, {'causal' if causal else 'full'}", fontsize=10)
    axes.set_xticks(range(len(SEQLENS)), [f"{s // 1024}k" if s >= 1024 else str(s) for s in SEQLENS])
    axes.grid(axis="y", color="#DDDDDD", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def draw(rows, dtype, backward, card, output):
    kind, name = ("bwd", "backward") if backward else ("fwd", "forward")
    rows = by_mode([row for row in rows if row["kind"] == kind and row["dtype"] == dtype])
    plt.rcParams.update({"svg.hashsalt": "tandem", "font.size": 9})
    figure, grid = plt.subplots(2, len(HEAD_DIMS), figsize=(10, 6), sharex=True, sharey=True, layout="constrained")
    for causal, line in enumerate(grid):
        line[0].set_ylabel("TFLOP/s")
        for d, axes in zip(HEAD_DIMS, line):
            panel(axes, rows, d, causal)
    for axes in grid[-1]:
        axes.set_xlabel("sequence length")
    grid[0][0].set_ylim(bottom=0)  # the panels share their axes; set last, because it ends autoscaling
    figure.suptitle(f"Attention {name}, {dtype}, NVIDIA {card} (hidden dim {HIDDEN}, {TOKENS // 1024}k tokens)")
    drawn = {label: line for axes in grid.flat for line, label in zip(*axes.get_legend_handles_labels())}
    figure.legend(drawn.values(), drawn.keys(), loc="outside lower center", ncols=len(drawn), frameon=False)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="*", type=Path,
                        help="CSV files; of rows for the same point, the last counts (default: bench/results/h200)")
    parser.add_argument("--backward", action="store_true", help="the backward pass")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--card", default="H200", help="where the rows were measured (default: H200)")
    parser.add_argument("-o", "--output", type=Path, help="default: docs/figures/forward-h200.svg, by the pass and the card")
    arguments = parser.parse_args()
    name = "backward" if arguments.backward else "forward"
    output = arguments.output or Path(__file__).resolve().parent.parent / f"docs/figures/{name}-{arguments.card.lower()}.svg"
    results = arguments.results or [RECORDED_PEERS, RESULTS / f"{name}.csv"]
    draw(read_rows(*results), arguments.dtype, arguments.backward, arguments.card, output)
    print(f"wrote {output}")


if __name__ == "__main__":
    sys.exit(main())
