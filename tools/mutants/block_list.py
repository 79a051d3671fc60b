# SPDX-License-Identifier: Apache-2.0
"""Of block lists."""

from mutation.located import Edit

from .mutant import Mutant

MUTANTS = [
    Mutant("lists: the first entry's for all", "index", "TileList::of", Edit("entry * args.batch_stride +", "")),
    Mutant("lists: the first head's for all", "index", "TileList::of", Edit("queries.pack * args.head_stride +", "")),
    Mutant("lists: the first block of queries' for all", "index", "TileList::of",
           Edit("args.q_tiles.divide(tile.m_block).quotient", "0")),
    Mutant("lists: tiles are taken for blocks of queries", "index", "TileList::of",
           Edit("args.q_tiles.divide(tile.m_block).quotient", "tile.m_block")),
    Mutant("lists: every slot is read", "count", "TileList::of", Edit("count < args.slots ? count : args.slots", "args.slots")),
    Mutant("lists: counts below 0 count", "count", "TileList::of", Edit("most < 0 ? 0 : most", "most")),
    Mutant("lists: counts above the slots count", "count", "TileList::of",
           Edit("count < args.slots ? count : args.slots", "count")),
    Mutant("lists: tiles that do not exist have rows", "index", "TileList::of", Edit("tile.exists() ? own : 0", "own")),
    Mutant("lists: one of the kernel's blocks in a listed one", "count", "TileList::of",
           Edit("* args.k_blocks.value()}", "}")),
    Mutant("lists: a listed block begins at its number", "index", "TileList::block",
           Edit("* args.k_blocks.value() + within", "+ within")),
    Mutant("lists: the first of the kernel's blocks for all", "index", "TileList::block", Edit("+ within", "")),
    Mutant("lists: bisection goes past its place", "count", "TileList::first_place_at", Edit("< block)", "<= block)")),
    Mutant("lists: bisection leaves the last place out", "count", "TileList::first_place_at", Edit("high = places", "high = places - 1")),
    Mutant("lists: the mask's first edge is full", "count", "TileList::places_of",
           Edit("int full_begin = begin, full_end = end;\n    while", "int full_begin = begin, full_end = end;\n    while (false) while")),
    Mutant("lists: the mask's last edge is full", "count", "TileList::places_of", Edit(">= ranges.full_end", "> ranges.full_end")),
    Mutant("lists: consumers take places for blocks", "index", "take_maximum",
           Edit("key_block<V>(state.args, state.loop, position)", "state.loop.block(position)")),
    Mutant("lists: the producer takes places for blocks", "index", "forward/producer/Producer::keys",
           Edit("key_block<V>(args, work.loop, i)", "work.loop.block(i)")),
    Mutant("lists: places in the tile list are taken for entries", "index", "TileList::of",
           Edit("listed_tile<V>(tile).sequence", "tile.batch")),
    Mutant("listed: entries of q are taken for sequences", "index", "TileList::of",
           Edit("listed_tile<V>(tile).sequence", "queries.q_batch")),
    Mutant("lists: heads are not looked up in the tile list", "index", "TileList::of",
           Edit("queries.pack * args", "tile.head * args")),
    Mutant("lists: slopes of full blocks count from the first key", "index", "take_maximum",
           Edit("V.knows_slopes() && state.args.slopes.data != nullptr", "false")),
    Mutant("lists: where lengths vary the producer takes places for blocks", "index", "varlen_producer/load_block",
           Edit("key_block<V>(args, work.loop, i)", "work.loop.block(i)")),
    Mutant("listed: places are taken for blocks whose tails are cleared", "wait", "clear_tails",
           Edit("key_block<V>(args, work.loop, i)", "work.loop.block(i)")),
    Mutant("listed: tails are not cleared", "wait", "has_tail", Edit("return (block + 1)", "return !V.block_sparse && (block + 1)")),
    Mutant("listed: blocks behind the last key are cleared ahead of the stage", "index", "clear_tails",
           Edit("core::clamp(first, 0, V.block_n)", "first")),
]
