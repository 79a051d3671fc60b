#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times Tandem's forward pass over block lists beside its own kernels for the same work and PyTorch's FlexAttention on a
Hopper GPU, all taking turns in one process.

Kinds: "all" lists every block, so that what the list itself costs shows beside "plain", the call without one; "window" lists
what a window of 1024 keys meets, beside that window; "random 4" and "random 16" list a fourth and a sixteenth of each
head's blocks, and the diagonal. Causal, bf16, hidden dimension 2048, blocks of 128 x 128, random normal inputs. Sampled
rows of every peer's output are checked once against float64. Rows are written as they come; the run ends in a table.

Needs PyTorch with CUDA, libtandem (TANDEM_LIBRARY) and this repository's python/ on PYTHONPATH; FlexAttention is
compiled by Triton, which takes a minute. The commit that is written beside the results is $TANDEM_COMMIT.
"""

import argparse
import functools
import random
import sys
from dataclasses import dataclass

import torch

import tandem
from cases import HIDDEN
from grid import add_peer_options, time_cases
from peers import standard_attention
from results import measure, timed_columns

SEED = 20261123
BLOCK, WINDOW = 128, 1024
KINDS = ("all", "window", "random 4", "random 16")
CHECKED_ROWS = 16
# density: the part of the causal pairs of blocks that is listed. rate: TFLOP/s of the pairs that are seen.
COLUMNS = ["kind", "dtype", "d", "b", "heads", "s", "density", "peer", "ms", "ms_min", "rate", "note", "commit", "clock_mhz",
           "power_w"]


@dataclass(frozen=True)
class Case:
    kind: str
    d: int
    s: int
    tokens: int = 16384

    @property
    def b(self):
        return max(1, self.tokens // self.s)

    @property
    def heads(self):
        return HIDDEN // self.d

    def __str__(self):
        return f"{self.kind} d{self.d} s{self.s}"


class Inputs:
    """q, k, v ~ N(0, 1), b, s, h, d, and which blocks of keys each block of queries of a head sees."""

    def __init__(self, case, device="cuda"):
        self.case = case
        generator = torch.Generator(device).manual_seed(SEED)
        shape = case.b, case.s, case.heads, case.d
        self.q, self.k, self.v = (torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16) for _ in "qkv")
        n = -(-case.s // BLOCK)
        row, column = torch.arange(n, device=device)[:, None], torch.arange(n, device=device)[None, :]
        self.causal_blocks = column <= row
        if case.kind == "all":
            listed = self.causal_blocks.expand(1, 1, n, n)
        elif case.kind == "window":
            listed = (self.causal_blocks & ((row - column) * BLOCK < WINDOW + BLOCK - 1)).expand(1, 1, n, n)
        else:
            one_in = int(case.kind.split()[1])
            drawn = torch.rand((case.b, case.heads, n, n), generator=generator, device=device) < 1 / one_in
            listed = self.causal_blocks & (drawn | (row == column))
        self.listed = listed.contiguous()
        self.counts = listed.sum(-1).to(torch.int32).contiguous()
        # What is listed first, in ascending order.
        self.blocks = torch.argsort(self.listed.logical_not().to(torch.int8), dim=-1, stable=True).to(torch.int32).contiguous()

    @property
    def window(self):
        return (WINDOW - 1, 0) if self.case.kind == "window" else None

    @functools.cached_property
    def pairs(self):
        """Pairs of a query and a key that it sees, over all entries and heads."""
        positions = torch.arange(self.case.s, device=self.q.device)
        edge = positions % BLOCK + 1  # of the diagonal's block
        if self.window:
            return self.case.b * self.case.heads * int(torch.clamp(positions + 1, max=WINDOW).sum())
        before = (self.counts.long() - 1).repeat_interleave(BLOCK, -1)[..., :self.case.s] * BLOCK
        shared = self.case.b * self.case.heads // (self.counts.shape[0] * self.counts.shape[1])
        return shared * int((before + edge).sum())

    def density(self):
        return float(self.listed.sum()) / (self.listed.shape[0] * self.listed.shape[1] * float(self.causal_blocks.sum()))

    def visible(self, b, h, rows):
        """rows x s: the keys that some queries of a head see."""
        keys = torch.arange(self.case.s, device=rows.device)
        own = self.listed[b % self.listed.shape[0], h % self.listed.shape[1]]
        seen = own[rows // BLOCK][:, keys // BLOCK] & (keys <= rows[:, None])
        return seen & (keys > rows[:, None] - WINDOW) if self.window else seen


def tandem_listed(inputs):
    out = torch.full_like(inputs.q, float("nan"))
    listed = tandem.BlockList(inputs.counts, inputs.blocks, BLOCK, BLOCK)
    mask = {"window": inputs.window} if inputs.window else {"causal": True}
    return lambda: tandem.forward(inputs.q, inputs.k, inputs.v, out=out, block_list=listed, **mask)


def tandem_plain(inputs):
    """The same work without a list, where there is a mask for it."""
    if inputs.case.kind not in ("all", "window"):
        return None
    out = torch.full_like(inputs.q, float("nan"))
    mask = {"window": inputs.window} if inputs.window else {"causal": True}
    return lambda: tandem.forward(inputs.q, inputs.k, inputs.v, out=out, **mask)


def flex(inputs):
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    own, window = inputs.listed, inputs.window

    def seen(b, h, i, j):
        within = (j <= i) & own[b % own.shape[0], h % own.shape[1], i // BLOCK, j // BLOCK]
        return within & (j > i - WINDOW) if window else within

    case = inputs.case
    mask = create_block_mask(seen, case.b, case.heads, case.s, case.s, device=inputs.q.device, BLOCK_SIZE=BLOCK)
    call = torch.compile(flex_attention)
    q, k, v = (x.transpose(1, 2) for x in (inputs.q, inputs.k, inputs.v))
    return lambda: call(q, k, v, block_mask=mask).transpose(1, 2)


PEERS = {"tandem": tandem_listed, "plain": tandem_plain, "flex": flex}


def check(inputs, out):
    """"" if sampled rows of sampled heads are attention within twice the error of a standard implementation."""
    case, draw = inputs.case, random.Random(SEED)
    if not torch.isfinite(out).all():
        return "the output is not finite everywhere"
    for _ in range(3):
        b, h = draw.randrange(case.b), draw.randrange(case.heads)
        rows = torch.tensor([0, case.s - 1, *(draw.randrange(case.s) for _ in range(CHECKED_ROWS))], device=inputs.q.device)
        q, k, v = inputs.q[b, rows, h][None], inputs.k[b, :, h][None], inputs.v[b, :, h][None]
        reference, standard = (
            standard_attention(q, k, v, inputs.visible(b, h, rows), case.d ** -0.5, dtype=dtype, round_to=round_to)
            for dtype, round_to in ((torch.float64, torch.float64), (torch.float32, q.dtype)))
        allowed = 2 * (standard - reference).abs().max().item() + 1e-5
        error = (out[b, rows, h][None].double() - reference).abs().max().item()
        if error > allowed:
            return f"wrong: error {error:.1e}; allowed {allowed:.1e}"
    return ""


def run_case(case, arguments, telemetry, results):
    inputs, calls = Inputs(case), {}
    columns = {"kind": case.kind, "dtype": "bf16", "d": case.d, "b": case.b, "heads": case.heads, "s": case.s,
               "density": f"{inputs.density():.3f}"}
    for name in arguments.peers:
        try:
            call = PEERS[name](inputs)
            if call is None:
                continue
            reason = check(inputs, call())
        except RuntimeError as error:  # TandemError is one, and so are PyTorch's refusals and CUDA errors
            reason = " ".join(str(error).split())
        if reason:
            print(f"{case}: {name}: {reason}", file=sys.stderr)
            results.add({**columns, "peer": name, "note": reason[:200]})
        else:
            calls[name] = call
    times, meanwhile = measure(calls, arguments.seconds_per_case, telemetry)
    for name, samples in times.items():
        rate = timed_columns(samples, lambda milliseconds: 4 * case.d * inputs.pairs / milliseconds * 1e-9)
        results.add({**columns, "peer": name, **rate, **meanwhile})


def table(rows):
    """A line per case: TFLOP/s of each."""
    cells = {}
    for row in rows:
        name = f"{row['kind']} d{row['d']} s{row['s']} ({float(row['density']):.0%})"
        cells.setdefault(name, {})[row["peer"]] = float(row["rate"] or "nan")
    lines = [f"{'case':32} " + " ".join(f"{name:>8}" for name in PEERS)]
    for case, peers in cells.items():
        lines.append(f"{case:32} " + " ".join(f"{peers.get(name, float('nan')):8.1f}" for name in PEERS))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_peer_options(parser, PEERS, (64, 128, 256), 180)
    parser.add_argument("--seqlens", nargs="+", type=int, default=[2048, 16384], help="sequence lengths")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    arguments = parser.parse_args()
    cases = [Case(kind, d, s) for kind in arguments.kinds for d in arguments.d for s in arguments.seqlens]

    def run(case, telemetry, results):
        run_case(case, arguments, telemetry, results)
    return time_cases(cases, run, arguments, COLUMNS, table)


if __name__ == "__main__":
    sys.exit(main())
