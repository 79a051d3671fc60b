#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of measured decoding steps in docs/decode.md from bench/results/h200/decode.csv, between its marks.

With --check it writes nothing and sees that the page already says so: exit code 1 if not, 77 if nothing was measured.
"""

import argparse
import csv
import sys
from pathlib import Path

from decode_cases import (BATCHES, CACHES, DECODE_RESULTS, DIM_HEADS, DIM_SHAPES, GROUPS, GROUP_SHAPES, HEAD_DIM, HEADS,
                          KERNELS, KV_HEADS, OTHER_DIMS)
from marks import update

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/decode.md"
MARKS = ("<!-- decode rates: written by bench/decode_table.py -->\n", "<!-- end of decode rates -->\n")
NOT_MEASURED = 77
PEERS = ("cudnn", "cudnn_packed", "fa2")
GRID_WORDS = """One token, d128, {dtype}, 8 key/value heads. Each cell: microseconds of Tandem, GB/s of the keys and
values, and how many times as fast as the best of cuDNN and FlashAttention-2, taking turns in the same process; replayed
from a CUDA graph, cold L2 ([every row](../bench/results/h200/decode.csv)).
"""
DIMS_WORDS = """The same for other head dims, {dtype}.
"""
PAGED_WORDS = """The same over pages, d128, {dtype}, 32 query heads: microseconds, and the cost against the contiguous
cache.
"""
RAGGED_WORDS = """Ragged batches, d128, {dtype}, 32 query heads: microseconds, with a plan, and of the same tokens spread
evenly.
"""
GROUP_WORDS = """Microseconds of each kernel, d128, {dtype}, 8 key/value heads; the fastest of a row in bold, and what
dispatch took.
"""


def read_rows(path):
    """{(kind, dtype, d, b, hq, sk, page, lengths, peer, kernel): row} of what has a time. The last row counts."""
    with open(path, newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["us"]]
    names = ("kind", "dtype", "d", "b", "hq", "sk", "page", "lengths", "peer", "kernel")
    return {tuple(row[name] for name in names): row for row in rows}


def lines_of(head, rows):
    return "".join("| " + " | ".join(map(str, line)) + " |\n" for line in [head, ["---"] * len(head), *rows])


def short(tokens):
    return f"{tokens // 1024}k" if tokens % 1024 == 0 else str(tokens)


def find(rows, kind, dtype, shape, *, d=HEAD_DIM, page=0, lengths="", peer="tandem", kernel="auto"):
    """Row of shape (b, hq, sk), or None."""
    b, hq, sk = map(str, shape)
    return rows.get((kind, dtype, str(d), b, hq, sk, str(page), lengths, peer, kernel))


def cell(rows, kind, dtype, shape, d=HEAD_DIM):
    own = find(rows, kind, dtype, shape, d=d)
    if not own:
        return ""
    others = [row for peer in PEERS if (row := find(rows, kind, dtype, shape, d=d, peer=peer, kernel=""))]
    best = min((float(row["us"]) for row in others), default=None)
    ratio = f", {best / float(own['us']):.2f}×" if best else ""
    return f"{float(own['us']):.1f} µs, {own['rate']}{ratio}"


def grid_table(rows, dtype):
    cells = [[f"{b} × {short(cache)}"] + [cell(rows, "grid", dtype, (b, hq, cache)) for hq in HEADS]
             for b in BATCHES for cache in CACHES]
    head = ["batch × cache"] + [f"{hq} heads" for hq in HEADS]
    return lines_of(head, [line for line in cells if any(line[1:])])


def dims_table(rows, dtype):
    lines = [[f"{b} × {short(cache)}"] + [cell(rows, "dims", dtype, (b, hq, cache), d) for d in OTHER_DIMS
                                          for hq in DIM_HEADS] for b, cache in sorted(DIM_SHAPES)]
    head = ["batch × cache"] + [f"d{d}, {hq} heads" for d in OTHER_DIMS for hq in DIM_HEADS]
    return lines_of(head, [line for line in lines if any(line[1:])])


def paged_table(rows, dtype):
    lines = []
    shapes = sorted({tuple(map(int, key[3:6])) for key in rows if key[:2] == ("paged", dtype)})
    for shape in shapes:
        times = [find(rows, "paged", dtype, shape, page=page) for page in (0, 64, 16)]
        if all(times):
            flat, *paged = (float(row["us"]) for row in times)
            lines.append([f"{shape[0]} × {short(shape[2])}", f"{flat:.1f}"] +
                         [f"{us:.1f} ({100 * (us / flat - 1):+.1f} %)" for us in paged])
    return lines_of(["batch × cache", "contiguous", "pages of 64", "pages of 16"], lines)


def ragged_table(rows, dtype):
    lines = []
    for (kind, own, _, b, hq, _, _, lengths, peer, kernel), row in rows.items():
        if (kind, own, peer, kernel) != ("ragged", dtype, "tandem", "auto") or not lengths:
            continue
        counts = [tuple(map(int, part.split("x"))) for part in lengths.split("+")]
        mean = sum(count * length for count, length in counts) // int(b)
        shape = (int(b), int(hq), int(row["sk"]))
        planned = find(rows, "ragged", dtype, shape, lengths=lengths, peer="tandem_planned")
        even = find(rows, "ragged", dtype, (int(b), int(hq), mean))
        us = [f"{float(x['us']):.1f}" if x else "" for x in (row, planned, even)]
        lines.append([lengths.replace("x", " × ").replace("+", " + "), *us])
    return lines_of(["lengths", "µs", "planned", "spread evenly"], lines)


def group_table(rows, dtype):
    lines = []
    for b, cache in GROUP_SHAPES:
        for group in GROUPS:
            shape = (b, group * KV_HEADS, cache)
            times = [find(rows, "groups", dtype, shape, kernel=kernel) for kernel in (*KERNELS, "auto")]
            if all(times):
                us = [float(row["us"]) for row in times]
                words = [f"**{x:.1f}**" if x == min(us[:-1]) else f"{x:.1f}" for x in us[:-1]]
                lines.append([f"{b} × {short(cache)}", group, *words, f"{us[-1]:.1f}"])
    return lines_of(["batch × cache", "group", *KERNELS, "dispatch"], lines)


def tables(rows):
    """All of them, for every dtype that was measured."""
    parts = (("grid", GRID_WORDS, grid_table), ("dims", DIMS_WORDS, dims_table), ("paged", PAGED_WORDS, paged_table),
             ("ragged", RAGGED_WORDS, ragged_table), ("groups", GROUP_WORDS, group_table))
    text = "\n"
    for kind, words, table in parts:
        for dtype in ("bf16", "fp16"):
            if any(key[:2] == (kind, dtype) for key in rows):
                text += words.format(dtype=dtype) + "\n" + table(rows, dtype) + "\n"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    if not DECODE_RESULTS.exists():
        print(f"nothing was measured: {DECODE_RESULTS.relative_to(ROOT)} is not there")
        return NOT_MEASURED
    return update(PAGE, MARKS, tables(read_rows(DECODE_RESULTS)), check)


if __name__ == "__main__":
    sys.exit(main())
