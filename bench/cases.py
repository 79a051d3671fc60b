# SPDX-License-Identifier: Apache-2.0
"""What is measured, in which units, and the columns of a result."""

import csv
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results/h200"
RECORDED_PEERS = RESULTS / "peers-2026-11-21.csv"

# rate: TFLOP/s. ms, ms_min: median and least time of one call. clock_mhz, power_w: medians over the whole case, in
# which all its peers took turns.
COLUMNS = ["kind", "dtype", "d", "causal", "b", "hq", "hk", "sq", "sk", "peer", "ms", "ms_min", "rate", "note", "commit",
           "clock_mhz", "power_w"]

# The paper's setting: hidden dimension 2048, 16k tokens in total.
HIDDEN, TOKENS = 2048, 16384
SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)
HEAD_DIMS = (64, 128, 256)


@dataclass(frozen=True)
class ForwardCase:
    dtype: str  # bf16 or fp16
    d: int
    causal: bool
    b: int
    heads: int
    s: int

    @property
    def flops(self):
        """4 b h sq sk d, halved when causal."""
        return 4 * self.b * self.heads * self.s * self.s * self.d // (2 if self.causal else 1)

    def tera_rate(self, milliseconds):
        return self.flops / milliseconds * 1e-9

    def columns(self):
        return {"kind": "fwd", "dtype": self.dtype, "d": self.d, "causal": int(self.causal), "b": self.b,
                "hq": self.heads, "hk": self.heads, "sq": self.s, "sk": self.s}

    def __str__(self):
        mask = "causal" if self.causal else "full"
        return f"{self.dtype} d{self.d} {mask:6} b{self.b} h{self.heads} s{self.s}"


def ablation_case(dtype):
    """The shape of the paper's ablation."""
    return ForwardCase(dtype, 128, False, 4, 16, 8448)


def paper_grid(dtype, head_dims=HEAD_DIMS, seqlens=SEQLENS, masks=(False, True)):
    return [ForwardCase(dtype, d, causal, TOKENS // s, HIDDEN // d, s)
            for d in head_dims for causal in masks for s in seqlens]


def read_rows(*paths):
    """The measured rows of several result files; rows without a time (a peer that could not run) are left out."""
    rows = []
    for path in paths:
        with open(path, newline="") as file:
            rows += [row for row in csv.DictReader(file) if row["ms"]]
    return rows


def curve(rows, peer, d, causal):
    """Sequence lengths and rates of one curve, in the paper's setting only. The last row of a point counts."""
    points = {int(row["sq"]): float(row["rate"]) for row in rows
              if row["peer"] == peer and int(row["d"]) == d and int(row["causal"]) == causal
              and int(row["b"]) * int(row["sq"]) == TOKENS and int(row["hq"]) * d == HIDDEN and row["sq"] == row["sk"]}
    return sorted(points), [points[s] for s in sorted(points)]


def row_key(row):
    """What was measured, without who was measured and how it went; the same for every peer."""
    return tuple(str(row[name]) for name in COLUMNS[:COLUMNS.index("peer")])
