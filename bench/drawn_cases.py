# SPDX-License-Identifier: Apache-2.0
"""Shapes that nobody listed: drawn log-uniformly, the same ones from the same seed."""

import math
import random
from dataclasses import dataclass

from cases import RESULTS

DRAWN_RESULTS = RESULTS / "drawn.csv"

# kind: forward, few (a few queries on long keys), decode, ragged. mask: full, causal or window (causal, and at most
# `window` keys a query). lengths: of each sequence where they differ. us, us_min: median and least microseconds of one
# call. tflop: of one call, the diagonal's own half counted. mbytes: of q, k, v and o, each once.
DRAWN_COLUMNS = ["seed", "kind", "dtype", "d", "mask", "b", "hq", "hk", "sq", "sk", "window", "lengths", "peer", "us",
                 "us_min", "tflop", "mbytes", "note", "commit", "clock_mhz", "power_w"]

HEADS = ((8, 8), (12, 12), (16, 16), (20, 20), (24, 24), (32, 32), (8, 1), (16, 2), (32, 1), (16, 8), (28, 4), (32, 4),
         (32, 8), (40, 8), (64, 8), (48, 8), (128, 8))
FORWARD_DIMS = (40, 64, 64, 64, 72, 80, 96, 112, 128, 128, 128, 128, 160, 192, 256, 256)
DECODE_DIMS = (64, 128, 128, 256)
TILES = (64, 80, 96, 128, 160, 176, 192)
MOST_TFLOP, MOST_BYTES = 12.0, 6e9  # so that a call stays below some 20 ms


@dataclass(frozen=True)
class DrawnCase:
    seed: int
    kind: str
    dtype: str
    d: int
    mask: str
    b: int
    hq: int
    hk: int
    sq: int
    sk: int
    window: int = 0
    lengths: tuple = ()  # of ragged decoding; empty: all have sk keys

    @property
    def causal(self):
        return self.mask != "full"

    @property
    def cached(self):
        """Whether keys are a cache, of which L2 has nothing."""
        return self.kind in ("decode", "ragged")

    @property
    def sequence_lengths(self):
        return self.lengths or (self.sk,) * self.b

    @property
    def pairs(self):
        """Query-key pairs of all sequences, the last query at the last key."""
        total = 0
        for keys in self.sequence_lengths:
            if not self.causal:
                total += self.sq * keys
                continue
            first = max(0, self.sq - keys)  # queries before it see nothing
            for_all = (self.sq - first) * (2 * (keys - self.sq + first) + self.sq - first + 1) // 2
            total += min(for_all, self.sq * self.window) if self.window else for_all
        return total

    @property
    def tflop(self):
        return 4e-12 * self.hq * self.d * self.pairs

    @property
    def bytes(self):
        return 2 * self.d * (2 * self.b * self.sq * self.hq + 2 * self.hk * sum(self.sequence_lengths))

    def columns(self):
        return {"seed": self.seed, "kind": self.kind, "dtype": self.dtype, "d": self.d, "mask": self.mask, "b": self.b,
                "hq": self.hq, "hk": self.hk, "sq": self.sq, "sk": self.sk, "window": self.window or "",
                "lengths": " ".join(map(str, self.lengths)), "tflop": f"{self.tflop:.5f}",
                "mbytes": f"{self.bytes / 1e6:.3f}"}

    def __str__(self):
        heads = self.hq if self.hq == self.hk else f"{self.hq}/{self.hk}"
        window = f" window {self.window}" if self.window else ""
        ragged = f" from {min(self.lengths)}" if self.lengths else ""
        return f"{self.kind} {self.dtype} d{self.d} {self.mask} b{self.b} h{heads} {self.sq}x{self.sk}{ragged}{window}"


def log_uniform(random_numbers, least, most):
    return round(math.exp(random_numbers.uniform(math.log(least), math.log(most))))


def draw_length(r, least, most):
    """A third are multiples of a tile, or one above or below."""
    length = log_uniform(r, least, most)
    if r.random() < 0.67:
        return length
    tile = r.choice(TILES)
    return max(1, min(most, max(1, round(length / tile)) * tile + r.choice((-1, 0, 1))))


def _forward(r, seed):
    mask = r.choice(("full", "full", "causal", "causal", "causal", "window"))
    sq = draw_length(r, 16, 131072)
    sk = sq if mask != "full" or r.random() < 0.75 else draw_length(r, 16, 131072)
    window = log_uniform(r, 64, max(65, sk)) if mask == "window" else 0
    hq, hk = r.choice(HEADS)
    return DrawnCase(seed, "forward", r.choice(("bf16", "bf16", "fp16")), r.choice(FORWARD_DIMS), mask,
                     log_uniform(r, 1, 128), hq, hk, sq, sk, min(window, sk))


def _few(r, seed):
    hq, hk = r.choice(HEADS)
    return DrawnCase(seed, "few", "bf16", r.choice(FORWARD_DIMS), r.choice(("full", "causal")), log_uniform(r, 1, 32), hq,
                     hk, log_uniform(r, 1, 256), draw_length(r, 512, 131072))


def _decode(r, seed):
    hq, hk = r.choice(HEADS)
    sq = r.choice((1, 1, 1, 1, 2, 3, 4, 8))
    return DrawnCase(seed, "decode", "bf16", r.choice(DECODE_DIMS), "causal" if sq > 1 else "full",
                     log_uniform(r, 1, 128), hq, hk, sq, draw_length(r, 64, 131072))


def _ragged(r, seed):
    case = _decode(r, seed)
    lengths = tuple(log_uniform(r, max(1, case.sk // 32), case.sk) for _ in range(max(2, case.b)))
    return DrawnCase(seed, "ragged", case.dtype, case.d, case.mask, len(lengths), case.hq, case.hk, case.sq, max(lengths),
                     0, lengths)


KINDS = {"forward": (_forward, 10), "few": (_few, 3), "decode": (_decode, 5), "ragged": (_ragged, 2)}


def _fits(case):
    most = 2e9 if case.cached else MOST_BYTES
    return case.tflop < MOST_TFLOP and case.bytes < most and case.pairs > 0 and case.sk >= min(case.sq, 8)


def draw(seed, count, kinds=tuple(KINDS)):
    """`count` cases, kinds by their weights."""
    r = random.Random(seed)
    cases = []
    weights = [KINDS[kind][1] for kind in kinds]
    while len(cases) < count:
        kind = r.choices(kinds, weights)[0]
        case = KINDS[kind][0](r, seed)
        if _fits(case):
            cases.append(case)
    return cases
