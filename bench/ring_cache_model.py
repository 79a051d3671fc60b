#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What L2 makes of the order of tiles of a causal backward pass whose key/value heads serve several query heads: a model in
plain Python, event by event (docs/performance/backward.md, Sections where heads are grouped). No GPU is needed.

As ring_model.py, and beside it: a visit reads Q and dO of its block, and adds to its sums of dQ. What L2 has not, comes from
memory and, for the sums, goes there again, all multiprocessors one behind another. It prints microseconds, and the share of
visits that L2 had nothing for, for each order."""

import argparse
import heapq
from collections import OrderedDict

from ring_model import BLOCK, GRID, Call, Times, ideal, sections

STEPS = {64: Times(step=2.3, hop=2.0, start=1.5), 96: Times(step=3.5, hop=1.2, start=1.5),
         128: Times(step=4.24, hop=1.2, start=1.5)}  # of 128 queries
L2_BYTES = 40e6


def order(call, together, last_tiles=0):
    """Sections of so many heads; the last one has so many tiles or more."""
    full = call.heads // together
    while full > 0 and (call.heads - full * together) * call.tiles < last_tiles:
        full -= 1
    first, rest = full * together, call.heads - full * together
    at_the_end = sections(call.tiles, rest, rest) if rest else []
    return sections(call.tiles, first, together) + [(first + head, tile) for head, tile in at_the_end]


class Memory:
    """Of a visit's bytes: L2 keeps those used last, and all others wait for one another."""

    def __init__(self, d, bytes_per_us):
        self.known, self.places = OrderedDict(), int(L2_BYTES / (BLOCK * d * 8))
        self.read_us, self.sums_us = (BLOCK * d * n / bytes_per_us for n in (4, 8))  # Q and dO; dQ there and back
        self.free_at, self.visits, self.missed = 0.0, 0, 0

    def arrival(self, key, asked_at):
        self.visits += 1
        if key in self.known:
            self.known.move_to_end(key)
            return asked_at
        self.missed += 1
        self.known[key] = None
        if len(self.known) > self.places:
            self.known.popitem(last=False)
        self.free_at = max(self.free_at, asked_at) + self.read_us + self.sums_us
        return self.free_at


class Grid:
    """Blocks of the grid that take tiles in an order. A tile t visits blocks of queries from the last one to number t, each in
    all heads of the group, and adds to each when tile t - 1 has."""

    def __init__(self, call, order, times, memory):
        self.call, self.order, self.times, self.memory = call, iter(order), times, memory
        self.events = [(0.0, sm) for sm in range(GRID)]
        self.visit = [None] * GRID  # (head, tile, block, member) that is computed
        self.place_free = [0.0] * GRID  # the part's place in shared memory
        self.added, self.waiting = {}, {}  # (head, block, member): (tiles, when the last one had); (its tile, sm, since when)

    def run(self):
        now = 0.0
        while self.events:
            now, sm = heapq.heappop(self.events)
            if self.visit[sm] is None:
                self.take(sm, now)
            else:
                self.add(sm, now)
        return now

    def take(self, sm, now):
        head, tile = next(self.order, (None, None))
        if head is not None:
            self.compute(sm, (head, tile, self.call.tiles - 1, 0), now + self.times.start)

    def compute(self, sm, visit, now):
        head, _, block, member = self.visit[sm] = visit
        begin = max(now, self.memory.arrival((head, block, member), now - self.times.step))
        heapq.heappush(self.events, (begin + self.times.step, sm))

    def add(self, sm, now):
        ready = [(sm, now)]
        while ready:
            sm, now = ready.pop()
            head, tile, block, member = self.visit[sm]
            key = head, block, member
            count, since = self.added.get(key, (0, 0.0))
            if count != tile:
                self.waiting.setdefault(key, {})[tile] = sm, now
                continue
            begin = max(now, since + self.times.hop if count else 0.0, self.place_free[sm])
            self.added[key] = tile + 1, begin + self.times.add
            self.place_free[sm] = begin + self.times.add / 2
            if (others := self.waiting.get(key)) and tile + 1 in others:
                ready.append(others.pop(tile + 1))
            member, block = (member + 1, block) if member + 1 < self.call.group else (0, block - 1)
            if block < tile:
                self.visit[sm] = None
                heapq.heappush(self.events, (max(begin, self.place_free[sm]), sm))
            else:
                self.compute(sm, (head, tile, block, member), begin)


def orders(call, together):
    two_rounds = min(call.heads, max(1, 2 * GRID // call.tiles))
    return {"all heads take turns": order(call, call.heads), "of two rounds of the grid": order(call, two_rounds),
            **{f"of {heads} heads": order(call, heads) for heads in together},
            "head by head": order(call, 1), "head by head, half a round at the end": order(call, 1, GRID // 2)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--d", type=int, choices=sorted(STEPS), default=128, help="head dim (default: 128)")
    parser.add_argument("--length", type=int, default=3706, help="tokens of a sequence (default: 3706)")
    parser.add_argument("--heads", type=int, default=56, help="key/value heads of all sequences (default: 56)")
    parser.add_argument("--group", type=int, nargs="+", default=[1, 2, 4, 8], help="query heads for each (default: 1 2 4 8)")
    parser.add_argument("--together", type=int, nargs="*", default=[], help="sections of so many heads, too")
    parser.add_argument("--bandwidth", type=float, default=2.9, help="of memory, TB/s (default: 2.9, an H100's; H200: 4.3)")
    arguments = parser.parse_args()
    times, tiles = STEPS[arguments.d], -(-arguments.length // BLOCK)
    for group in arguments.group:
        call = Call(tiles, arguments.heads, group, together=0)
        print(f"groups of {group}: {ideal(call, times):.0f} us without waits and with all in L2")
        for name, tiles_in_order in orders(call, arguments.together).items():
            memory = Memory(arguments.d, arguments.bandwidth * 1e6)
            us = Grid(call, tiles_in_order, times, memory).run()
            print(f"  {name:40} {us:6.0f} us, {memory.missed / memory.visits:4.0%} missed", flush=True)


if __name__ == "__main__":
    main()
