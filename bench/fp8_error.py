#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The error of attention in 8 bits on the FlashAttention-3 paper's distribution with outliers, N(0, 1) + N(0, 100) *
Bernoulli(0.001), 8192 tokens, head dim 128, and the bias of the output over 128k keys where V has a mean of 1.

RMSE is against float64 attention over the unquantised numbers, of all rows of all seeds together. Rows of the result:
how q, k and v were quantised, and by whom attention was computed; "paper" is the paper's arithmetic on the same numbers,
emulated: its published RMSE is of other seeds. Needs what bench/fp8.py needs.
"""

import argparse
import csv
import importlib.util
import os
from pathlib import Path

import torch

import tandem
from fp8 import quantised_by

E4M3, MOST = torch.float8_e4m3fn, 448.0
COLUMNS = ["data", "peer", "quantised", "seeds", "rmse", "rmse_least", "rmse_most", "bias", "lse_bias", "commit"]


def outliers(shape, generator):
    """The paper's: Table 3."""
    normal, wide, chosen = (torch.empty(shape, device="cuda") for _ in range(3))
    normal.normal_(generator=generator), wide.normal_(generator=generator), chosen.uniform_(generator=generator)
    return (normal + 10 * wide * (chosen < 0.001)).bfloat16()


def exact(q, k, v, rows=1024):
    """Float64 attention and log-sum-exp of b, s, h, d."""
    q, k, v = (x.transpose(1, 2).double() for x in (q, k, v))
    parts, sums = [], []
    for part in q.split(rows, dim=2):
        scores = part @ k.transpose(2, 3) * q.shape[-1] ** -0.5
        sums.append(scores.logsumexp(-1))
        parts.append(scores.softmax(-1) @ v)
    return torch.cat(parts, dim=2).transpose(1, 2), torch.cat(sums, dim=2).transpose(1, 2)


def per_tensor(x):
    scale = x.float().abs().max() / MOST
    return (x.float() / scale).to(E4M3), scale.reshape(1, 1)


def in_blocks(x, rows=128):
    """x as e4m3 codes with a scale for each head's so many rows have it."""
    blocks = x.double().unflatten(1, (-1, rows))
    scale = blocks.abs().amax((2, 4), keepdim=True) / MOST
    return ((blocks / scale).float().to(E4M3).double() * scale).flatten(1, 2)


def random_orthogonal(x, generator):
    """Random signs times a Hadamard matrix."""
    matrix = torch.ones((1, 1), device="cuda", dtype=torch.float64)
    while len(matrix) < x.shape[-1]:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = torch.randint(0, 2, (x.shape[-1],), device="cuda", generator=generator) * 2.0 - 1
    return signs[:, None] * matrix * x.shape[-1] ** -0.5


def paper(q, k, v, rows=1024):
    """Blocks, incoherent processing, and probabilities up to 2^8 as e4m3; all else in float64, but for the output."""
    matrix = random_orthogonal(q, torch.Generator("cuda").manual_seed(1))
    q, k = (in_blocks(x.double() @ matrix).transpose(1, 2) for x in (q, k))
    v, parts = in_blocks(v).transpose(1, 2), []
    for part in q.split(rows, dim=2):
        scores = part @ k.transpose(2, 3) * q.shape[-1] ** -0.5
        p = (scores - scores.amax(-1, keepdim=True)).exp() * 256
        parts.append(p.float().to(E4M3).double() @ v / p.sum(-1, keepdim=True))
    return torch.cat(parts, dim=2).transpose(1, 2).bfloat16(), None


def tandem_fp8(by_column, hadamard, dtype="float8_e4m3fn", terms=1, fp16_scores=False, best_scale=False):
    def call(q, k, v):
        amplitude = tandem.score_amplitude(q.shape[-1]) if fp16_scores else 0.0
        of_qk = {"hadamard": 1 if hadamard else None, "dtype": dtype, "amplitude": amplitude}
        tensors, scales = quantised_by(q, k, v, of_qk, {"by_column": by_column, "terms": terms}, best_scale)
        return tandem.forward(*tensors, values_by_column=by_column, qk_amplitude=amplitude, return_lse=True, **scales)
    return call


def tandem_per_tensor(q, k, v):
    (q8, qs), (k8, ks), (v8, vs) = (per_tensor(x) for x in (q, k, v))
    return tandem.forward(q8, k8, v8, q_descale=qs, k_descale=ks, v_descale=vs, return_lse=True)


def tandem_bf16(q, k, v):
    return tandem.forward(q, k, v, return_lse=True)


def fa3(q, k, v):
    from flash_attn_interface import flash_attn_func
    tensors, scales = zip(*(per_tensor(x) for x in (q, k, v)))
    descales = [scale.expand(q.shape[0], x.shape[2]).contiguous() for scale, x in zip(scales, (k, k, v))]
    out = flash_attn_func(*tensors, q_descale=descales[0], k_descale=descales[1], v_descale=descales[2])
    return (out[0] if isinstance(out, tuple) else out), None


PEERS = {("tandem", "blocks, Hadamard, v by column"): tandem_fp8(True, True),
         ("tandem", "blocks, Hadamard, v by column, scores in fp16"): tandem_fp8(True, True, fp16_scores=True),
         ("tandem", "fast: the same, the best scale of each row of q"): tandem_fp8(True, True, fp16_scores=True, best_scale=True),
         ("tandem", "balanced: int8 q and k"): tandem_fp8(True, True, "int8"),
         ("tandem", "accurate: and v of two terms"): tandem_fp8(True, True, "int8", 2),
         ("tandem", "blocks, Hadamard, v by key"): tandem_fp8(False, True),
         ("tandem", "blocks, v by column"): tandem_fp8(True, False),
         ("tandem", "per tensor"): tandem_per_tensor,
         ("tandem", "not: bf16"): tandem_bf16,
         ("paper", "blocks, Hadamard, emulated"): paper}
if importlib.util.find_spec("flash_attn_interface"):
    PEERS["fa3", "per tensor"] = fa3


def errors(inputs):
    """{peer: (squared errors' mean, mean error, mean error of lse)}."""
    reference, reference_lse = exact(*inputs)
    found = {}
    for peer, call in PEERS.items():
        out, lse = call(*inputs)
        error = out.double() - reference
        lse_bias = "" if lse is None else (lse.double() - reference_lse).mean().item()
        found[peer] = error.square().mean().item(), error.mean().item(), lse_bias
    return found


def rows_of(data, runs):
    for peer in PEERS:
        squares, biases, lse = zip(*(run[peer] for run in runs))
        mean = sum(squares) / len(runs)
        yield {"data": data, "peer": peer[0], "quantised": peer[1], "seeds": len(runs), "rmse": f"{mean**0.5:.3e}",
               "rmse_least": f"{min(squares)**0.5:.3e}", "rmse_most": f"{max(squares)**0.5:.3e}",
               "bias": f"{sum(biases) / len(runs):.2e}", "commit": os.environ.get("TANDEM_COMMIT", ""),
               "lse_bias": "" if lse[0] == "" else f"{sum(lse) / len(runs):.2e}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--long", type=int, default=131072, help="keys of the case in which V has a mean")
    arguments = parser.parse_args()
    with arguments.output.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        runs = []
        for seed in range(arguments.seeds):
            generator = torch.Generator("cuda").manual_seed(seed)
            runs.append(errors([outliers((1, arguments.tokens, 1, 128), generator) for _ in "qkv"]))
        kept = list(rows_of("outliers", runs))
        generator = torch.Generator("cuda").manual_seed(0)
        q, k, v = (torch.randn((1, s, 1, 128), device="cuda", generator=generator, dtype=torch.bfloat16)
                   for s in (1024, arguments.long, arguments.long))
        kept += rows_of("v has mean 1", [errors([q, k, v + 1])])
        writer.writerows(kept)
    for row in kept:
        print(f"{row['data']:14} {row['peer']:8} {row['quantised']:32} rmse {row['rmse']} ({row['rmse_least']} ... "
              f"{row['rmse_most']}) bias {row['bias']} lse {row['lse_bias']}")


if __name__ == "__main__":
    main()
