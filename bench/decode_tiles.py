#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times the tiles that decode may choose between, on steps of many query rows a key/value head, or with --latent over latent
caches, on a Hopper GPU: what the prices in src/decode/cost.cpp are set from, and whether the choice is the best one.

Each shape's tiles take turns in one process, beside FlashAttention-3 and cuDNN where they can compute it, replayed from CUDA
graphs, with nothing of the cache in L2. Sampled rows are checked against float64. --summary reads a file of rows instead.
"""

import argparse
import csv
import statistics
import sys
import time
from pathlib import Path

from decode_cases import LATENT, LATENT_DIM, LATENT_HEADS, LATENT_SHAPES, DecodeCase
from drawn_cases import DRAWN_COLUMNS, DrawnCase

# Tiles of src/decode/table.h by head dim: rows, keys. 64 x 64 and 128 are of two warpgroups. Of 16 rows there are two
# kernels, of which the model takes one.
TILES = {64: ((16, 128), (32, 128), (64, 64), (128, 128)), 128: ((16, 0), (32, 64), (64, 128), (64, 64), (128, 128)),
         LATENT_DIM: ((16, 64), (32, 64), (64, 64))}
COLUMNS = [*DRAWN_COLUMNS[:DRAWN_COLUMNS.index("peer")], "tile", "us", "note", "commit"]
PEERS = ("fa3", "cudnn", "cudnn_packed")
# d, batch, key/value heads, group, queries, keys: first those that drawn shapes had behind FlashAttention-3 or cuDNN.
SHAPES = ((64, 59, 8, 16, 8, 113), (128, 8, 4, 8, 8, 4806), (128, 15, 8, 16, 4, 341), (128, 2, 4, 7, 8, 29628),
          (128, 5, 8, 16, 3, 11265), (128, 15, 4, 7, 8, 16927), (64, 52, 1, 32, 4, 7411), (128, 3, 1, 32, 1, 2880),
          (128, 25, 1, 32, 1, 4545), (128, 9, 8, 128, 1, 5611), (128, 5, 1, 128, 2, 8192), (128, 1, 8, 16, 4, 32768),
          (128, 64, 4, 8, 4, 512), (128, 64, 8, 16, 8, 1024), (64, 16, 8, 16, 8, 8192), (64, 64, 8, 8, 8, 200))


def cases():
    for d, batch, kv_heads, group, queries, keys in SHAPES:
        yield DrawnCase(seed=0, kind="decode", dtype="bf16", d=d, mask="causal" if queries > 1 else "full", b=batch,
                        hq=group * kv_heads, hk=kv_heads, sq=queries, sk=keys)


def latent_cases():
    """Those that decode.py measures, short ones first, and a few between."""
    for keys, batch in sorted({*((keys, batch) for batch, keys in LATENT_SHAPES), (2048, 8), (4096, 32)}):
        for heads in LATENT_HEADS:
            yield DecodeCase(LATENT, "bf16", (keys,) * batch, heads, d=LATENT_DIM, hk=1)


def tools_of(case):
    """(inputs, check, graph of a call's replays, how many replays it has, peers) for the case's kind."""
    if isinstance(case, DecodeCase):
        from decode_peers import DECODE_PEERS, Inputs, Replayed, check_step
        return Inputs, check_step, lambda call, inputs: Replayed(call, inputs.caches), "steps", DECODE_PEERS[LATENT]
    from drawn_peers import DRAWN_PEERS, Inputs, Replayed, check
    return Inputs, check, Replayed, "calls", DRAWN_PEERS


def calls_of(case, inputs, known_peers):
    """{tile or peer: call}."""
    import tandem

    def tile(study):
        options = {"scale": case.scale} if isinstance(case, DecodeCase) else {"causal": case.causal}
        out = inputs.q.new_empty((*inputs.q.shape[:3], inputs.caches[0][1].shape[-1]))
        workspace = tandem.DecodeWorkspace()
        return lambda k, v: tandem.decode(inputs.q, k, v, inputs.lengths, out=out, workspace=workspace, study=study, **options)
    calls = {"auto": tile(None)}
    for rows, keys in TILES[case.d]:
        calls[f"{rows}x{keys}" if keys else f"{rows}"] = tile({"block_m": rows, "block_n": keys})
    for peer in PEERS:
        if peer in known_peers:
            try:
                calls[peer] = known_peers[peer](inputs)
            except RuntimeError:  # has no such mask
                pass
    return calls


def measured(case, seconds):
    """({tile or peer: us}, {tile or peer: what is wrong})."""
    from timing import interleave
    make_inputs, check, replayed, count, known_peers = tools_of(case)
    inputs = make_inputs(case, 1)
    graphs, wrong = {}, {}
    for name, call in calls_of(case, inputs, known_peers).items():
        try:
            wrong[name] = check(inputs, call(*inputs.caches[0]), 1)
            if not wrong[name]:
                graphs[name] = replayed(call, inputs)
        except (RuntimeError, ValueError, TypeError) as error:
            wrong[name] = " ".join(str(error).split())[:160]
    times = interleave(graphs, seconds)
    return {name: 1e3 * statistics.median(of) / getattr(graphs[name], count) for name, of in times.items()}, wrong


def shape_of(row):
    rows = int(row["hq"]) // int(row["hk"]) * int(row["sq"])
    return f"d{row['d']} {row['b']} x {row['sk']} keys, {row['hk']} heads of {rows} rows"


def summary(rows):
    """A line for each shape: us of each tile and peer, the best tile, and auto's speed against the best peer and tile."""
    shapes = {}
    for row in rows:
        if row["us"]:
            shapes.setdefault(shape_of(row), {})[row["tile"]] = float(row["us"])
    lines = []
    for shape, us in shapes.items():
        tiles = {name: time for name, time in us.items() if name != "auto" and name not in PEERS}
        peers = {name: time for name, time in us.items() if name in PEERS}
        best = min(tiles, key=tiles.get)
        line = f"{shape:42} " + "  ".join(f"{name} {time:.1f}" for name, time in us.items()) + f" | best {best}"
        if "auto" in us:
            line += f", auto {us[best] / us['auto']:.2f} of it"
        if peers:
            line += f"; best against peers {min(peers.values()) / us[best]:.2f}"
        lines.append(line)
    return "\n".join([*lines, *(f"{shape_of(row)}, {row['tile']}: {row['note']}" for row in rows if row["note"])])


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=Path("decode-tiles.csv"), help="CSV file to write")
    parser.add_argument("--seconds-per-case", type=float, default=0.15, help="GPU time of a shape (default: 0.15)")
    parser.add_argument("--budget-seconds", type=float, default=None,
                        help="start no further shape after this long (default: 80; of latent ones 55)")
    parser.add_argument("--latent", action="store_true", help="steps over latent caches instead, d 576 and 512")
    parser.add_argument("--summary", type=Path)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    if arguments.summary:
        with arguments.summary.open(newline="") as file:
            print(summary(list(csv.DictReader(file))))
        return 0
    import torch
    from results import Results
    begin, results = time.monotonic(), Results(arguments.output, COLUMNS)
    budget = arguments.budget_seconds or (55 if arguments.latent else 80)
    for case in latent_cases() if arguments.latent else cases():
        if time.monotonic() - begin > budget:
            break
        us, wrong = measured(case, arguments.seconds_per_case)
        known = {name: value for name, value in case.columns().items() if name in COLUMNS}
        for name, note in wrong.items():
            results.add({**known, "tile": name, "us": f"{us[name]:.2f}" if name in us else "", "note": note})
        torch.cuda.empty_cache()
    print(summary(results.rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
