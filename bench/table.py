#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the README's figure and table of measured rates from bench/results/h200/forward.csv, between its two marks.

With --check it writes nothing and sees that the README already says so: exit code 1 if not, 77 if nothing was measured.
"""

import argparse
import sys
from pathlib import Path

from cases import HEAD_DIMS, RESULTS, SEQLENS, curve, read_rows
from marks import update

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- rates: written by bench/table.py -->\n", "<!-- end of rates -->\n"
SETTING = """Forward on one NVIDIA H200, bf16, TFLOP/s, in the setting of the FlashAttention-3 paper (hidden dim 2048, 16k tokens),
beside cuDNN taking turns in the same process ([every row, and how](bench/results/h200/README.md)):
"""
FIGURE = "![TFLOP/s over sequence length, a panel a head dim, full and causal](docs/figures/forward-h200.svg)\n"
DTYPE = "bf16"
NOT_MEASURED = 77


def cells(rows, d, causal):
    """'Tandem / cuDNN' for each length that both ran."""
    tandem, cudnn = (dict(zip(*curve(rows, peer, d, causal))) for peer in ("tandem", "cudnn"))
    return [f"{tandem[s]:.0f} / {cudnn[s]:.0f}" if s in tandem and s in cudnn else "" for s in SEQLENS]


def table(rows):
    rows = [row for row in rows if row["kind"] == "fwd" and row["dtype"] == DTYPE]
    head = ["Tandem / cuDNN"] + [f"{s // 1024}k" if s >= 1024 else str(s) for s in SEQLENS]
    lines = [head, ["---"] * len(head)]
    lines += [[f"d{d} {'causal' if causal else 'full'}"] + cells(rows, d, causal)
              for d in HEAD_DIMS for causal in (0, 1)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    results = RESULTS / "forward.csv"
    if not results.exists():
        print(f"nothing was measured: {results.relative_to(ROOT)} is not there")
        return NOT_MEASURED
    rates = f"\n{SETTING}\n{FIGURE}\n{table(read_rows(results))}\n"
    return update(README, (BEGIN, END), rates, check)


if __name__ == "__main__":
    sys.exit(main())
