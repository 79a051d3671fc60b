#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times Tandem's forward pass over sequences of different lengths, packed and in pages, beside its call for one length,
FlashAttention-2 and, where its module flash_attn_interface is installed, FlashAttention-3 on a Hopper GPU, all taking turns
in one process.

Batches of equal lengths (32k tokens, 512 to 16k each) say what variable lengths cost; mixes are drawn by --seeds. Causal,
bf16, hidden dimension 2048, random normal inputs. With --parts mixed: steps of an engine, prompts beside decoded tokens, in
one call and in two (varlen_steps.py). Sampled rows of every peer's output are checked once against float64. Rows are
written as they come; the run ends in a table.

Needs PyTorch with CUDA, libtandem (TANDEM_LIBRARY) and this repository's python/ on PYTHONPATH. The commit that is
written beside the results is $TANDEM_COMMIT.
"""

import argparse
import importlib.util
import itertools
import random
import sys

import torch

import tandem
from cases import HEAD_DIMS
from grid import add_peer_options, time_cases
from peers import standard_attention
from results import measure, timed_columns
from varlen_cases import VARLEN_COLUMNS, StepCase, equal_cases, mixed_cases, step_cases
from varlen_steps import run_step, step_table

SEED = 20261122
SEQLENS = (512, 1024, 2048, 4096, 16384)
CHECKED_ROWS = 16


class Inputs:
    """Packed q, k, v ~ N(0, 1), and where each sequence begins."""

    def __init__(self, case):
        self.case = case
        self.generator = torch.Generator("cuda").manual_seed(SEED)
        total = sum(case.lengths)
        self.q = self._normal(total, case.hq)
        self.k, self.v = self._normal(total, case.hk), self._normal(total, case.hk)
        self.ends = [0, *itertools.accumulate(case.lengths)]
        self.cu_seqlens = torch.tensor(self.ends, dtype=torch.int32, device="cuda")
        self.lengths = torch.tensor(case.lengths, dtype=torch.int32, device="cuda")
        self.longest = max(case.lengths)

    def _normal(self, tokens, heads):
        shape = tokens, heads, self.case.d
        return torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_(generator=self.generator)

    def paged(self, size):
        """(k, v, page_table): the same keys in a pool of shuffled pages; what is not in use is NaN."""
        counts = [-(-n // size) for n in self.case.lengths]
        order = torch.randperm(sum(counts), generator=self.generator, device="cuda").to(torch.int32)
        table = torch.zeros(len(counts), max(counts), dtype=torch.int32, device="cuda")
        pools = [torch.full((sum(counts), size, *x.shape[1:]), float("nan"), device="cuda", dtype=x.dtype)
                 for x in (self.k, self.v)]
        first = 0
        for i, count in enumerate(counts):
            own = order[first:first + count]
            table[i, :count] = own
            for pool, x in zip(pools, (self.k, self.v)):
                rows = x[self.ends[i]:self.ends[i + 1]]
                padded = rows.new_full((count * size, *rows.shape[1:]), float("nan"))
                padded[:len(rows)] = rows
                pool[own.long()] = padded.view(count, size, *rows.shape[1:])
            first += count
        return *pools, table


def _packed(inputs, make_plan):
    out = torch.full_like(inputs.q, float("nan"))
    tensors = inputs.q, inputs.k, inputs.v
    options = {"cu_seqlens_q": inputs.cu_seqlens, "cu_seqlens_k": inputs.cu_seqlens, "max_seqlen_q": inputs.longest,
               "max_seqlen_k": inputs.longest, "causal": inputs.case.causal}
    plan = make_plan(*tensors, **options)
    return lambda: tandem.forward_varlen(*tensors, **options, plan=plan, out=out)


def tandem_packed(inputs):
    return _packed(inputs, lambda *tensors, **options: None)


def tandem_planned(inputs):
    """One of the layers that share a plan, which is made beforehand."""
    return _packed(inputs, tandem.forward_varlen_plan)


def tandem_paged(size):
    def make(inputs):
        k, v, table = inputs.paged(size)
        out = torch.full_like(inputs.q, float("nan"))
        return lambda: tandem.forward_varlen(
            inputs.q, k, v, cu_seqlens_q=inputs.cu_seqlens, seqused_k=inputs.lengths, page_table=table,
            max_seqlen_q=inputs.longest, max_seqlen_k=inputs.longest, causal=inputs.case.causal, out=out)
    return make


def tandem_fixed(inputs):
    """Tandem's call for sequences of one length."""
    case = inputs.case
    q, k, v = (x.view(len(case.lengths), -1, *x.shape[1:]) for x in (inputs.q, inputs.k, inputs.v))
    out = torch.full_like(q, float("nan"))
    return lambda: tandem.forward(q, k, v, causal=case.causal, out=out).flatten(0, 1)


def fa2(inputs):
    forward = torch.ops.aten._flash_attention_forward
    return lambda: forward(inputs.q, inputs.k, inputs.v, inputs.cu_seqlens, inputs.cu_seqlens, inputs.longest,
                           inputs.longest, 0.0, inputs.case.causal, False)[0]


def fa3(inputs):
    from flash_attn_interface import flash_attn_varlen_func

    def call():
        out = flash_attn_varlen_func(inputs.q, inputs.k, inputs.v, inputs.cu_seqlens, inputs.cu_seqlens, inputs.longest,
                                     inputs.longest, causal=inputs.case.causal)
        return out[0] if isinstance(out, tuple) else out
    return call


def fa3_paged(size):
    def make(inputs):
        from flash_attn_interface import flash_attn_with_kvcache
        k, v, table = inputs.paged(size)
        k, v = (x.nan_to_num(0) for x in (k, v))  # it multiplies what is not in use by 0
        return lambda: flash_attn_with_kvcache(
            inputs.q, k, v, cache_seqlens=inputs.lengths, page_table=table, cu_seqlens_q=inputs.cu_seqlens,
            max_seqlen_q=inputs.longest, causal=inputs.case.causal, num_splits=1)
    return make


PEERS = {"tandem": tandem_packed, "planned": tandem_planned, "fixed": tandem_fixed, "pages 16": tandem_paged(16), "pages 64": tandem_paged(64),
         "pages 256": tandem_paged(256), "fa2": fa2}
if importlib.util.find_spec("flash_attn_interface"):
    PEERS |= {"fa3": fa3, "fa3 pages 64": fa3_paged(64), "fa3 pages 256": fa3_paged(256)}


def check(inputs, out):
    """"" if sampled rows of sampled sequences are attention within twice the error of a standard implementation."""
    case, draw = inputs.case, random.Random(SEED)
    if not torch.isfinite(out).all():
        return "the output is not finite everywhere"
    for i in draw.sample(range(len(case.lengths)), min(3, len(case.lengths))):
        begin, length = inputs.ends[i], case.lengths[i]
        rows = torch.tensor([0, length - 1, *(draw.randrange(length) for _ in range(CHECKED_ROWS))], device="cuda")
        visible = torch.arange(length, device="cuda")[None, :] <= rows[:, None]
        q = inputs.q[begin + rows].transpose(0, 1)
        k, v = (x[begin:begin + length].transpose(0, 1).repeat_interleave(case.hq // case.hk, 0)
                for x in (inputs.k, inputs.v))
        reference, standard = (
            standard_attention(q, k, v, visible, case.d ** -0.5, dtype=dtype, round_to=round_to)
            for dtype, round_to in ((torch.float64, torch.float64), (torch.float32, q.dtype)))
        allowed = 2 * (standard - reference).abs().max().item() + 1e-5
        error = (out[begin + rows].transpose(0, 1).double() - reference).abs().max().item()
        if error > allowed:
            return f"wrong: error {error:.1e}; allowed {allowed:.1e}"
    return ""


def usable_calls(inputs, peers, reason_of, results):
    """{name: call} of the peers, {name: inputs -> call}, that compute the case: reason_of(name, result) is "". Of the others the
    reason becomes a row."""
    case, calls = inputs.case, {}
    for name, make in peers.items():
        if name == "fixed" and case.kind != "equal":
            continue
        try:
            call = make(inputs)
            reason = reason_of(name, call())
        except (RuntimeError, ImportError) as error:  # TandemError is one, and so are PyTorch's refusals and CUDA errors
            reason = " ".join(str(error).split())
        if reason:
            print(f"{case}: {name}: {reason}", file=sys.stderr)
            results.add({**case.columns(), "peer": name, "note": reason[:200]})
        else:
            calls[name] = call
    return calls


def run_case(case, arguments, telemetry, results):
    inputs = Inputs(case)
    calls = usable_calls(inputs, {name: PEERS[name] for name in arguments.peers}, lambda _, out: check(inputs, out), results)
    times, meanwhile = measure(calls, arguments.seconds_per_case, telemetry)
    for name, samples in times.items():
        results.add({**case.columns(), "peer": name, **timed_columns(samples, case.tera_rate), **meanwhile})


def table(rows):
    """A line per case: TFLOP/s of each."""
    cells = {}
    for row in rows:
        name = f"{row['kind']} d{row['d']} {row['hq']}/{row['hk']} b{row['b']} longest {row['longest']}"
        cells.setdefault(name, {})[row["peer"]] = float(row["rate"] or "nan")
    names = [name for name in PEERS if any(name in peers for peers in cells.values())]
    lines = [f"{'case':36} " + " ".join(f"{name:>13}" for name in names)]
    for case, peers in cells.items():
        lines.append(f"{case:36} " + " ".join(f"{peers.get(name, float('nan')):13.1f}" for name in names))
    return "\n".join(lines)


def tables(rows):
    """Of batches, and of steps."""
    steps = [row for row in rows if row["kind"] == "step"]
    batches = [row for row in rows if row["kind"] != "step"]
    return "\n".join(make(some) for make, some in ((table, batches), (step_table, steps)) if some)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_peer_options(parser, PEERS, HEAD_DIMS, 240)
    parser.add_argument("--parts", nargs="+", choices=("lengths", "mixed"), default=["lengths"],
                        help="mixed: steps of an engine, prompts beside decoded tokens (default: lengths)")
    parser.add_argument("--seqlens", nargs="*", type=int, default=list(SEQLENS), help="of batches of equal lengths")
    parser.add_argument("--seeds", nargs="*", type=int, default=list(range(8)), help="of drawn mixes (default: 0 to 7)")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    cases = {"lengths": equal_cases(arguments.d, arguments.seqlens) + mixed_cases(arguments.d, arguments.seeds),
             "mixed": step_cases()}

    def run(case, telemetry, results):
        if isinstance(case, StepCase):
            run_step(case, arguments.seconds_per_case, telemetry, results)
        else:
            run_case(case, arguments, telemetry, results)
    return time_cases([case for part in arguments.parts for case in cases[part]], run, arguments, VARLEN_COLUMNS, tables)


if __name__ == "__main__":
    sys.exit(main())
