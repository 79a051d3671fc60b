# SPDX-License-Identifier: Apache-2.0
"""Steps of an engine in one call: chunks of prompts beside decoded tokens, over keys in pages of 64. The part `mixed` of
bench/varlen.py. Each call is replayed from a CUDA graph."""

import importlib.util
import itertools
import random
import sys

import torch

import tandem
from peers import standard_attention
from results import measure, timed_columns
from timing import replayed
from varlen_cases import StepCase

SEED = 20261123
PAGE = 64
CHECKED = 4  # sequences
SPLIT_SIZE = 1024  # keys of a part, where a sequence's bits are to be the same in any batch


class StepInputs:
    """Queries of the prompts, then of decoded tokens; a pool of shuffled pages for all. What is not in use is NaN."""

    def __init__(self, case):
        self.case = case
        generator = torch.Generator("cuda").manual_seed(SEED)
        self.queries = [chunk for chunk, _ in case.prompts] + [1] * len(case.decodes)
        self.keys = [keys for _, keys in case.prompts] + list(case.decodes)
        counts = [-(-n // PAGE) for n in self.keys]
        order = torch.randperm(sum(counts), generator=generator, device="cuda").to(torch.int32)
        self.table = torch.zeros(len(counts), max(counts), dtype=torch.int32, device="cuda")
        shape = sum(counts), PAGE, case.hk, case.d
        self.k, self.v = (torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_(generator=generator)
                          for _ in range(2))
        for i, (first, count) in enumerate(zip([0, *itertools.accumulate(counts)], counts)):
            self.table[i, :count] = order[first:first + count]
            if self.keys[i] % PAGE:
                for pool in (self.k, self.v):
                    pool[self.table[i, count - 1].long(), self.keys[i] % PAGE:] = float("nan")
        shape = sum(self.queries), case.hq, case.d
        self.q = torch.empty(shape, device="cuda", dtype=torch.bfloat16).normal_(generator=generator)
        self.begins = [0, *itertools.accumulate(self.queries)]
        self.cu_seqlens = torch.tensor(self.begins, dtype=torch.int32, device="cuda")
        self.lengths = torch.tensor(self.keys, dtype=torch.int32, device="cuda")

    def fresh_out(self):
        return torch.full_like(self.q, float("nan"))


def _arguments(inputs, first, past, split_size=0):
    """Those of one call for variable lengths, of sequences `first` to `past`."""
    begin, end = inputs.begins[first], inputs.begins[past]
    return (inputs.q[begin:end], inputs.k, inputs.v), {
        "cu_seqlens_q": (inputs.cu_seqlens[first:past + 1] - begin).contiguous(),
        "seqused_k": inputs.lengths[first:past].contiguous(), "page_table": inputs.table[first:past].contiguous(),
        "max_seqlen_q": max(inputs.queries[first:past]), "max_seqlen_k": max(inputs.keys[first:past]), "causal": True,
        "split_size": split_size}


def _forward(inputs, first, past, out, split_size=0, planned=False):
    tensors, options = _arguments(inputs, first, past, split_size)
    plan = tandem.forward_varlen_plan(*tensors, **options) if planned else None
    out = out[inputs.begins[first]:inputs.begins[past]]
    return lambda: tandem.forward_varlen(*tensors, **options, plan=plan, out=out)


def one_call(inputs, split_size=0, planned=False):
    out = inputs.fresh_out()
    call = _forward(inputs, 0, len(inputs.queries), out, split_size, planned)
    return lambda: (call(), out)[1]


def planned(inputs):
    """One of the layers that share a plan, which is made beforehand."""
    return one_call(inputs, planned=True)


def plan_alone(inputs):
    """The making of the plan. Returns what a call with it gave."""
    tensors, options = _arguments(inputs, 0, len(inputs.queries))
    out = planned(inputs)()
    return lambda: (tandem.forward_varlen_plan(*tensors, **options), out)[1]


def same_bits(inputs):
    """One call whose bits of a sequence do not depend on the batch."""
    return one_call(inputs, SPLIT_SIZE)


def two_calls(inputs):
    """The prompts' call for variable lengths, and tandem.decode."""
    out, prompts = inputs.fresh_out(), len(inputs.case.prompts)
    forward = _forward(inputs, 0, prompts, out) if prompts else lambda: None
    begin = inputs.begins[prompts]
    lengths, table = inputs.lengths[prompts:].contiguous(), inputs.table[prompts:].contiguous()
    workspace = tandem.DecodeWorkspace()

    def call():
        forward()
        tandem.decode(inputs.q[begin:, None], inputs.k, inputs.v, lengths, page_table=table, causal=True,
                      out=out[begin:, None], workspace=workspace)
        return out
    return call


def fa3(inputs):
    from flash_attn_interface import flash_attn_with_kvcache
    k, v = (x.nan_to_num(0) for x in (inputs.k, inputs.v))  # it multiplies what is not in use by 0
    return lambda: flash_attn_with_kvcache(
        inputs.q, k, v, cache_seqlens=inputs.lengths, page_table=inputs.table, cu_seqlens_q=inputs.cu_seqlens,
        max_seqlen_q=max(inputs.queries), causal=True)


STEP_PEERS = {"tandem": one_call, "planned": planned, "plan": plan_alone, "same bits": same_bits, "two calls": two_calls}
if importlib.util.find_spec("flash_attn_interface"):
    STEP_PEERS |= {"fa3": fa3}


def check(inputs, out):
    """"" if the last rows of sampled sequences are attention within twice the error of a standard implementation."""
    if not torch.isfinite(out).all():
        return "the output is not finite everywhere"
    case, draw = inputs.case, random.Random(SEED)
    for i in draw.sample(range(len(inputs.keys)), min(CHECKED, len(inputs.keys))):
        row, length = inputs.begins[i + 1] - 1, inputs.keys[i]  # the last query sees all keys
        pages = inputs.table[i, :-(-length // PAGE)].long()
        q = inputs.q[row:row + 1].transpose(0, 1)
        k, v = (x[pages].flatten(0, 1)[:length].transpose(0, 1).repeat_interleave(case.hq // case.hk, 0)
                for x in (inputs.k, inputs.v))
        visible = torch.ones(1, length, dtype=torch.bool, device="cuda")
        reference, standard = (
            standard_attention(q, k, v, visible, case.d ** -0.5, dtype=dtype, round_to=round_to)
            for dtype, round_to in ((torch.float64, torch.float64), (torch.float32, q.dtype)))
        allowed = 2 * (standard - reference).abs().max().item() + 1e-5
        error = (out[row:row + 1].transpose(0, 1).double() - reference).abs().max().item()
        if error > allowed:
            return f"wrong: sequence {i}: error {error:.1e}; allowed {allowed:.1e}"
    return ""


def run_step(case: StepCase, seconds, telemetry, results):
    inputs, calls = StepInputs(case), {}
    for name, make in STEP_PEERS.items():
        try:
            call = make(inputs)
            reason = check(inputs, call())
        except RuntimeError as error:  # TandemError is one, and so are PyTorch's refusals and CUDA errors
            reason = " ".join(str(error).split())
        if reason:
            print(f"{case}: {name}: {reason}", file=sys.stderr)
            results.add({**case.columns(), "peer": name, "note": reason[:200]})
        else:
            calls[name] = replayed(call)
    times, meanwhile = measure(calls, seconds, telemetry)
    for name, samples in times.items():
        results.add({**case.columns(), "peer": name, **timed_columns(samples, case.tera_rate), **meanwhile})


def step_table(rows):
    """A line per case: microseconds of each peer."""
    cells = {}
    for row in rows:
        cells.setdefault(row["seed"], {})[row["peer"]] = 1e3 * float(row["ms"] or "nan")
    lines = [f"{'step':44} " + " ".join(f"{name:>10}" for name in STEP_PEERS)]
    for name, peers in cells.items():
        lines.append(f"{name:44} " + " ".join(f"{peers.get(peer, float('nan')):10.1f}" for peer in STEP_PEERS))
    return "\n".join(lines)
