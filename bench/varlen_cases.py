# SPDX-License-Identifier: Apache-2.0
"""Batches of sequences of different lengths: what bench/varlen.py measures, and its columns."""

import random
from dataclasses import dataclass

from cases import HIDDEN

# kind: equal (all of one length), mix (drawn) or step (an engine's, seed: what it consists of). b: sequences; tokens of all; longest of them. seed: of the draw. peer:
# "fixed" is Tandem's call for one length; "pages 64" that keys lie in shuffled pages of 64 tokens. rate: TFLOP/s.
VARLEN_COLUMNS = ["kind", "dtype", "d", "causal", "b", "hq", "hk", "tokens", "longest", "seed", "peer", "ms", "ms_min",
                  "rate", "note", "commit", "clock_mhz", "power_w"]
EQUAL_TOKENS = 32768
SHORTEST, LONGEST = 128, 32768


@dataclass(frozen=True)
class StepCase:
    """A step of an engine: prompts (queries of the chunk, keys with them), and the keys of decoded tokens."""
    prompts: tuple
    decodes: tuple
    d: int = 128
    hq: int = 32
    hk: int = 8

    def tera_rate(self, milliseconds):
        pairs = sum(n * keys - n * (n - 1) / 2 for n, keys in self.prompts) + sum(self.decodes)
        return 4 * self.hq * self.d * pairs / milliseconds * 1e-9

    def columns(self):
        keys = [n for _, n in self.prompts] + list(self.decodes)
        return {"kind": "step", "dtype": "bf16", "d": self.d, "causal": 1, "b": len(keys), "hq": self.hq, "hk": self.hk,
                "tokens": sum(keys), "longest": max(keys), "seed": str(self)}

    def __str__(self):
        prompts = " + ".join(f"{n} of {keys}" for n, keys in self.prompts)
        decodes = f"{len(self.decodes)} x {min(self.decodes)}..{max(self.decodes)}" if self.decodes else ""
        return " + ".join(part for part in (prompts, decodes) if part)


def step_cases():
    """Steps that decode alone, then with one and with four chunks of prompts beside."""
    draw = random.Random(1)
    drawn = [tuple(round(1024 * 32 ** draw.random()) for _ in range(count)) for count in (16, 64)]
    batches = [(1024,) * 16, (4096,) * 64, (32768,) * 16, *drawn, (131072,), (131072, *(1024,) * 31)]
    prompts = [((2048, 2048),), ((512, 4096),), ((512, 512), (1024, 3072), (2048, 2048), (777, 5000))]
    return ([StepCase((), batch) for batch in batches] +
            [StepCase(chunks, batch) for chunks in prompts for batch in (batches[0], batches[1], *drawn)])


@dataclass(frozen=True)
class VarlenCase:
    kind: str
    d: int
    hq: int
    hk: int
    lengths: tuple
    seed: str = ""
    causal: bool = True
    dtype: str = "bf16"

    def tera_rate(self, milliseconds):
        flops = sum(4 * self.hq * self.d * n * n / (2 if self.causal else 1) for n in self.lengths)
        return flops / milliseconds * 1e-9

    def columns(self):
        return {"kind": self.kind, "dtype": self.dtype, "d": self.d, "causal": int(self.causal), "b": len(self.lengths),
                "hq": self.hq, "hk": self.hk, "tokens": sum(self.lengths), "longest": max(self.lengths), "seed": self.seed}

    def __str__(self):
        lengths = f"s{self.lengths[0]}" if self.kind == "equal" else f"seed {self.seed}, {sum(self.lengths)} tokens"
        return f"{self.kind} d{self.d} {self.hq}/{self.hk} b{len(self.lengths)} {lengths}"


def equal_cases(head_dims, seqlens):
    """32k tokens in sequences of one length, hidden dimension 2048."""
    return [VarlenCase("equal", d, HIDDEN // d, HIDDEN // d, (s,) * (EQUAL_TOKENS // s))
            for s in seqlens for d in head_dims]


def mixed_cases(head_dims, seeds):
    """16 to 36 sequences of 128 to 32k tokens, drawn log-uniformly; every other seed has four queries heads a key head."""
    cases = []
    for seed in seeds:
        draw = random.Random(seed)
        while True:
            lengths = [round(SHORTEST * (LONGEST / SHORTEST) ** draw.random()) for _ in range(draw.randint(16, 36))]
            if sum(lengths) <= 6 * LONGEST:  # a card's run has an end
                break
        for d in head_dims:
            heads = HIDDEN // d
            cases.append(VarlenCase("mix", d, heads, heads // (4 if seed % 2 else 1), tuple(lengths), str(seed)))
    return cases
