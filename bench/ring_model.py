#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much of the time the tiles of a causal backward pass compute, where they add to dQ in a fixed order: a model in plain
Python, event by event, of the blocks of the grid, of the order in which they take tiles, and of what a tile waits for
(docs/algorithms/3-backward.md, The ring of sums). No GPU is needed.

It prints the time without any wait over the time with them, for each order of tiles and length; hidden dim 2048, 16k tokens."""

import argparse
import heapq
from dataclasses import dataclass

TOKENS, HIDDEN, BLOCK, GRID = 16384, 2048, 128, 132
CACHED_BYTES = 32 << 20  # src/backward/plan.h
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


@dataclass
class Times:
    """In microseconds."""
    step: float  # of a tile, 128 keys by 128 queries, where nothing waits
    hop: float  # from the end of a tile's add to where the next tile's may start
    add: float = 0.6  # of which the part occupies its place in shared memory for half
    start: float = 1.0  # of a tile


def sections(tiles, heads, together):
    """As the kernels take them: the first tiles of so many heads, longest first, then their second ones."""
    return [(head, tile) for first in range(0, heads, together) for tile in range(tiles)
            for head in range(first, min(first + together, heads))]


def overlapping(tiles, heads, together):
    """Sections of half as many heads, each of which begins when the one before has given out half of its tiles."""
    own = max(1, together // 2)
    keyed = [(head // own * -(-tiles // 2) + tile, head, tile) for head in range(heads) for tile in range(tiles)]
    return [(head, tile) for _, head, tile in sorted(keyed)]


def mirrored(tiles, heads, together):
    """Shortest first, for tiles that begin at the diagonal."""
    return [(head, tiles - 1 - tile) for head, tile in sections(tiles, heads, together)]


@dataclass
class Call:
    tiles: int  # of keys, and blocks of queries
    heads: int  # of keys
    group: int  # heads of queries for each
    together: int  # heads in a section

    def steps(self):
        return self.heads * self.group * self.tiles * (self.tiles + 1) / 2


def visits(call, tile, from_diagonal, head_by_head):
    """What a tile visits, one after another: blocks, in each head of the group. Tile t sees blocks t to the last."""
    blocks = range(tile, call.tiles) if from_diagonal else range(call.tiles - 1, tile - 1, -1)
    if head_by_head:
        return [(block, head) for head in range(call.group) for block in blocks]
    return [(block, head) for block in blocks for head in range(call.group)]


ORDERS = {"sections": sections, "overlapping": overlapping, "mirrored": mirrored}


def duration(name, call, times, head_by_head):
    """Of all tiles in an order. A tile adds to a block when the tile before it in the order has."""
    free, done = [0.0] * GRID, {}
    for kv_head, tile in ORDERS[name](call.tiles, call.heads, call.together):
        now, emptied = heapq.heappop(free) + times.start, 0.0
        of_head = done.setdefault(kv_head, {})
        for visit in visits(call, tile, name == "mirrored", head_by_head):
            now = max(now + times.step, emptied)  # the part's place in shared memory
            begin = max(now, of_head[visit] + times.hop if visit in of_head else 0.0, emptied)
            emptied, of_head[visit] = begin + times.add / 2, begin + times.add
        heapq.heappush(free, max(now, emptied))
    return max(free)


def call_of(d, length, group, active):
    """active: heads that are worked on together, of those that L2 is trusted with."""
    heads = max(1, HIDDEN // d * (TOKENS // length) // group)
    return Call(length // BLOCK, heads, group, min(heads, max(1, active * CACHED_BYTES // (2 * length * d * 4 * group))))


def ideal(call, times):
    """Microseconds without waits."""
    return (call.steps() * times.step + call.heads * call.tiles * times.start) / GRID


def share(name, call, times, head_by_head):
    """Time without waits over time with them."""
    return ideal(call, times) / duration(name, call, times, head_by_head)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, default=64, help="head dim (default: 64)")
    parser.add_argument("--step", type=float, default=2.24, help="microseconds of a step (default: 2.24, d64 on an H100)")
    parser.add_argument("--hop", type=float, nargs="+", default=[0.7, 2.0], help="microseconds of a hop (default: 0.7 2.0)")
    parser.add_argument("--group", type=int, default=1, help="heads of queries for a head of keys (default: 1)")
    parser.add_argument("--head-by-head", action="store_true", help="a tile visits the blocks of one head after another's")
    arguments = parser.parse_args()
    print("| order, hop | " + " | ".join(map(str, LENGTHS)) + " |\n|---|" + "---|" * len(LENGTHS))
    for hop in arguments.hop:
        for name, active in (("sections", 1), ("sections", 2), ("overlapping", 1), ("mirrored", 1)):
            calls = (call_of(arguments.d, length, arguments.group, active) for length in LENGTHS)
            shares = (share(name, call, Times(arguments.step, hop), arguments.head_by_head) for call in calls)
            label = name + (" of twice as many heads" if active == 2 else "")
            print(f"| {label}, {hop} us | " + " | ".join(f"{x:.2f}" for x in shares) + " |", flush=True)


if __name__ == "__main__":
    main()
