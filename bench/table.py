#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tables of measured rates into the documents, between two marks each: from 2026-11-28/forward.csv and
2026-11-28/backward-2.csv of bench/results/h200 the README's figures and rates, from the files that overview.py names its
first table, from ablation.csv (kind ablation) and beyond.csv (kind beyond), where they are there, those of
docs/performance/forward.md.

With --check it writes nothing and sees that the documents already say so: exit code 1 if not, 77 if nothing was measured.
"""

import argparse
import sys
from pathlib import Path

from cases import HEAD_DIMS, RESULTS, SEQLENS, by_mode, case_name, curve, read_rows, row_key
from marks import update
from overview import lines as overview_lines

ROOT = Path(__file__).resolve().parent.parent
SETTING = """Forward on one NVIDIA H200, bf16, TFLOP/s, in the setting of the FlashAttention-3 paper (hidden dim 2048, 16k tokens),
beside its peers, all taking turns in the same process ([every row, and how](bench/results/h200/README.md)):
"""
FIGURE = "![TFLOP/s over sequence length, a panel a head dim, full and causal](docs/figures/forward-h200.svg)\n"
BACKWARD_SETTING = """Backward, in the same setting and the same way on one NVIDIA H200, with 2.5 times the forward's FLOPs, deterministic ([every
row](bench/results/h200/README.md)):
"""
BACKWARD_FIGURE = "![The same for the backward pass](docs/figures/backward-h200.svg)\n"
DTYPE = "bf16"
NOT_MEASURED = 77


def markdown(lines):
    """Lines of cells, the first of them the head."""
    return "".join("| " + " | ".join(line) + " |\n" for line in [lines[0], ["---"] * len(lines[0]), *lines[1:]])


def grid_of(rows, names):
    """A line for each head dim and mask, a column for each length, in each cell the rates of the peers `names`,
    {peer: what it is called}, that have rows; empty where Tandem or cuDNN has none."""
    present = [peer for peer in names if any(row["peer"] == peer for row in rows)]

    def cells(d, causal):
        rates = {peer: dict(zip(*curve(rows, peer, d, causal))) for peer in present}
        return [" / ".join(f"{rates[peer][s]:.0f}" for peer in present if s in rates[peer])
                if all(s in rates.get(peer, {}) for peer in ("tandem", "cudnn")) else "" for s in SEQLENS]

    head = [" / ".join(names[peer] for peer in present)] + [f"{s // 1024}k" if s >= 1024 else str(s) for s in SEQLENS]
    return markdown([head] + [[f"d{d} {'causal' if causal else 'full'}"] + cells(d, causal)
                              for d in HEAD_DIMS for causal in (0, 1)])


def rates(rows):
    rows = [row for row in rows if row["kind"] == "fwd" and row["dtype"] == DTYPE]
    return f"\n{SETTING}\n{FIGURE}\n" + grid_of(rows, {"tandem": "Tandem", "cudnn": "cuDNN", "fa3": "FA3"}) + "\n"


def backward_rates(rows):
    rows = by_mode([row for row in rows if row["kind"] == "bwd" and row["dtype"] == DTYPE])
    names = {"tandem": "Tandem", "cudnn": "cuDNN", "fa3": "FA3"}
    return f"\n{BACKWARD_SETTING}\n{BACKWARD_FIGURE}\n" + grid_of(rows, names) + "\n"


def ablation(rows):
    """A line for each case and peer of the ablation, in the order in which they were measured."""
    lines = [["case", "peer", "TFLOP/s", "ms"]]
    lines += [[case_name(row), row["peer"], f"{float(row['rate']):.0f}", f"{float(row['ms']):.3f}"]
              for row in rows if row["kind"] == "ablation"]
    return "\n" + markdown(lines) + "\n"


def beyond(rows):
    """A line for each case off the paper's grid: TFLOP/s of each peer, and Tandem's speed against the best other."""
    cases = {}
    for row in rows:
        if row["kind"] == "beyond":
            cases.setdefault(row_key(row), {})[row["peer"]] = row
    columns = {"tandem": "Tandem", "cudnn": "cuDNN", "fa2": "FlashAttention-2"}
    if any("fa3" in peers for peers in cases.values()):
        columns["fa3"] = "FlashAttention-3"
    lines = [["case", *columns.values(), "Tandem / best"]]
    for peers in cases.values():
        others = [float(row["ms"]) for peer, row in peers.items() if peer != "tandem"]
        ratio = f"{min(others) / float(peers['tandem']['ms']):.2f}" if others and "tandem" in peers else ""
        lines.append([case_name(next(iter(peers.values()))),
                      *(f"{float(peers[peer]['rate']):.0f}" if peer in peers else "" for peer in columns),
                      ratio])
    return "\n" + markdown(lines) + "\n"


def overview(_):
    """A line for each benchmark: how many shapes are ahead of the fastest peer, and by how much."""
    return "\n" + markdown(overview_lines()) + "\n"


# (what to write between the marks, document, file of results)
TABLES = [(overview, ROOT / "README.md", RESULTS / "2026-11-28/forward.csv"),
          (rates, ROOT / "README.md", RESULTS / "2026-11-28/forward.csv"),
          (backward_rates, ROOT / "README.md", RESULTS / "2026-11-28/backward-2.csv"),
          (ablation, ROOT / "docs/performance/forward.md", RESULTS / "ablation.csv"),
          (beyond, ROOT / "docs/performance/forward.md", RESULTS / "beyond.csv")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    measured = [(render, path, results) for render, path, results in TABLES if results.exists()]
    if not measured:
        print(f"nothing was measured: {RESULTS.parent.relative_to(ROOT)} has no results")
        return NOT_MEASURED
    stale = [update(page, (f"<!-- {render.__name__}: written by bench/table.py -->\n", f"<!-- end of {render.__name__} -->\n"),
                    render(read_rows(results)), check) for render, page, results in measured]
    return max(stale)


if __name__ == "__main__":
    sys.exit(main())
