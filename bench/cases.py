# SPDX-License-Identifier: Apache-2.0
"""What is measured, in which units, and the columns of a result."""

import csv
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results/h200"
RECORDED_PEERS = RESULTS / "peers-2026-11-21.csv"

# rate: TFLOP/s. ms, ms_min: median and least time of one call. clock_mhz, power_w: medians over the whole case, in
# which all its peers took turns. window: how many keys a query sees at most, its own position's and those before;
# empty: all. dv: columns of v and o; empty: d.
COLUMNS = ["kind", "dtype", "d", "causal", "b", "hq", "hk", "sq", "sk", "window", "dv", "peer", "ms", "ms_min", "rate", "note",
           "commit", "clock_mhz", "power_w"]

# mode: how gradients are summed, free (in any order) or deterministic.
BACKWARD_COLUMNS = [*COLUMNS[:COLUMNS.index("peer") + 1], "mode", *COLUMNS[COLUMNS.index("peer") + 1:]]

# The paper's setting: hidden dimension 2048, 16k tokens in total.
HIDDEN, TOKENS = 2048, 16384
SEQLENS = (512, 1024, 2048, 4096, 8192, 16384)
HEAD_DIMS = (64, 128, 256)
# The paper's Table 2, and Algorithm 4 beside it: overlaps and turns.
ABLATION = [(overlap, turn) for overlap in ("serial", "two-stage", "three-stage") for turn in ("free", "pingpong")]
# Keys of a block of the kernels for values narrower than keys, and of those that pad them.
NARROW_VALUE_BLOCKS = {"128x128": 128, "128x112": 112, "padded": 96}


@dataclass(frozen=True)
class ForwardCase:
    dtype: str  # bf16 or fp16
    d: int
    causal: bool
    b: int
    heads: int
    s: int  # queries
    kv_heads: int = 0  # 0: as many as heads
    keys: int = 0  # 0: as many as queries
    window: int = 0  # causal, and at most so many keys a query; 0: no limit
    kind: str = "fwd"
    value_dim: int = 0  # columns of v and o; 0: d

    @property
    def dv(self):
        return self.value_dim or self.d

    @property
    def hk(self):
        return self.kv_heads or self.heads

    @property
    def sk(self):
        return self.keys or self.s

    @property
    def flops(self):
        """2 b h (d + dv) for each query-key pair. The diagonal's own half is not counted where causal, as in the paper."""
        pairs = self.s * self.sk
        if self.window:
            pairs = self.s * self.window - self.window * (self.window - 1) // 2
        elif self.causal:
            pairs //= 2
        return 2 * self.b * self.heads * (self.d + self.dv) * pairs

    def tera_rate(self, milliseconds):
        return self.flops / milliseconds * 1e-9

    def columns(self):
        return {"kind": self.kind, "dtype": self.dtype, "d": self.d, "causal": int(self.causal), "b": self.b,
                "hq": self.heads, "hk": self.hk, "sq": self.s, "sk": self.sk, "window": self.window or "",
                "dv": self.value_dim or ""}

    def __str__(self):
        return case_name({name: str(value) for name, value in self.columns().items()})


class BackwardCase(ForwardCase):
    @property
    def flops(self):
        """Five products where the forward has two."""
        return 2.5 * super().flops


def case_name(row):
    """For example "bf16 d192/128 causal b2 h32/8 s4096x8192 window 1024"; what is the same as before is left out."""
    dims = f"{row['d']}/{row['dv']}" if row.get("dv") else row["d"]
    mask = "causal" if row["causal"] == "1" else "full"
    heads = row["hq"] if row["hq"] == row["hk"] else f"{row['hq']}/{row['hk']}"
    lengths = row["sq"] if row["sq"] == row["sk"] else f"{row['sq']}x{row['sk']}"
    window = f" window {row['window']}" if row.get("window") else ""
    return f"{row['dtype']} d{dims} {mask} b{row['b']} h{heads} s{lengths}{window}"


def ablation_case(dtype):
    """The shape of the paper's ablation."""
    return ForwardCase(dtype, 128, False, 4, 16, 8448)


def paper_grid(dtype, head_dims=HEAD_DIMS, seqlens=SEQLENS, masks=(False, True)):
    return [ForwardCase(dtype, d, causal, TOKENS // s, HIDDEN // d, s)
            for d in head_dims for causal in masks for s in seqlens]


def beyond_grid(dtype):
    """What the paper's grid leaves out: ragged lengths, grouped heads, few queries on a long cache, a window, head dims
    in between. As there, about 16k tokens."""
    def cases(d, b, heads, s, masks=(False, True), **more):
        return [ForwardCase(dtype, d, causal, b, heads, s, kind="beyond", **more) for causal in masks]

    grid = []
    for d in HEAD_DIMS:
        grid += cases(d, 5, HIDDEN // d, 3001)
    for heads in (32, 64):
        for s in (4096, 8192):
            grid += cases(128, TOKENS // s, heads, s, kv_heads=8)
    grid += cases(128, 8, 32, 131, (False,), kv_heads=8, keys=8192)
    for d in (64, 128):
        grid += cases(d, 1, HIDDEN // d, TOKENS, (True,), window=1024)
    for d, heads in ((80, 24), (96, 20), (192, 10)):  # hidden dims around 2048
        for s in (1024, 4096, TOKENS):
            grid += cases(d, TOKENS // s, heads, s)
    return grid


def narrow_value_grid(dtype, seqlens=SEQLENS, masks=(False, True)):
    """Values that are narrower than keys, as in the prompts of DeepSeek's models: 192 and 128, 16 of 128 heads, and all of
    them. As in the paper, about 16k tokens."""
    def cases(b, heads, s, masks=masks, **more):
        return [ForwardCase(dtype, 192, causal, b, heads, s, kind="narrow", value_dim=128, **more) for causal in masks]

    grid = [case for s in seqlens for case in cases(TOKENS // s, 16, s)]
    return grid + cases(5, 16, 3001) + cases(1, 128, 4096) + cases(8, 16, 131, (False,), keys=8192)


def backward_cases(grid, dtype, head_dims=HEAD_DIMS, seqlens=SEQLENS, masks=(False, True)):
    """The same grids for the backward pass."""
    if grid == "paper":
        return [BackwardCase(**{**asdict(case), "kind": "bwd"}) for case in paper_grid(dtype, head_dims, seqlens, masks)]
    return [BackwardCase(**{**asdict(case), "kind": "bwd-beyond"}) for case in beyond_grid(dtype)]


def read_rows(*paths):
    """The measured rows of several result files; rows without a time (a peer that could not run) are left out."""
    rows = []
    for path in paths:
        with open(path, newline="") as file:
            rows += [row for row in csv.DictReader(file) if row["ms"]]
    return rows


def by_mode(rows):
    """Rows of the backward pass as if Tandem's deterministic mode were a peer of its own, without other peers'. Rows of
    the forward have no mode and stay as they are."""
    kept = [row for row in rows if row.get("mode") != "deterministic" or row["peer"] == "tandem"]
    return [{**row, "peer": "tandem deterministic"} if row.get("mode") == "deterministic" else row for row in kept]


def curve(rows, peer, d, causal):
    """Sequence lengths and rates of one curve, in the paper's setting only. The last row of a point counts."""
    points = {int(row["sq"]): float(row["rate"]) for row in rows
              if row["peer"] == peer and int(row["d"]) == d and int(row["causal"]) == causal
              and int(row["b"]) * int(row["sq"]) == TOKENS and int(row["hq"]) * d == HIDDEN and row["sq"] == row["sk"]}
    return sorted(points), [points[s] for s in sorted(points)]


def row_key(row):
    """What was measured, without who was measured and how it went; the same for every peer."""
    return tuple(str(row.get(name) or "") for name in COLUMNS[:COLUMNS.index("peer")])
