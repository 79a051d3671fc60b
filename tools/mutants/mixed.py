# SPDX-License-Identifier: Apache-2.0
"""Of calls whose sequences of few queries run decode's body: the list of these, and what reads it."""

from mutation.located import Edit, Remove

from .mutant import Mutant

MUTANTS = [
    Mutant("mixed: one query fewer is few", "count", "SequencesOfWarp::tiles_of", Edit("s.q_len <=", "s.q_len <")),
    Mutant("mixed: few queries have tiles too", "count", "SequencesOfWarp::tiles_of",
           Edit("s.q_len <= args.few.most_queries", "s.q_len == 0")),
    Mutant("mixed: sequences without queries are listed", "count", "is_few", Edit("queries > 0 &&", "")),
    Mutant("mixed: one query more is few", "count", "is_few", Edit("queries <= few.most_queries", "queries <= few.most_queries + 1")),
    Mutant("mixed: tiles' blocks list sequences too", "index", "list_all", Edit("if (behind_tiles < 0)", "if (behind_tiles < 1)")),
    Mutant("mixed: every warp lists the first sequences", "index", "list_few", Edit("warp * hw::warp_size", "0")),
    Mutant("mixed: sequences before the warp's are not counted", "count", "list_few", Edit("few_before(varlen, few, first) +", "")),
    Mutant("mixed: those before are counted to the one behind", "count", "few_before", Edit("i < sequence", "i <= sequence")),
    Mutant("mixed: counters stay as they are", "counter", "list_few", Remove("store_global", 1)),
    Mutant("mixed: places begin at the second", "index", "list_few", Edit("past - 1", "past")),
    Mutant("mixed: any warp says how many there are", "count", "list_few", Edit("first + hw::warp_size >= sequences &&", "")),
    Mutant("mixed: any lane says how many there are", "count", "list_few", Edit("lane == hw::warp_size - 1", "true")),
    Mutant("mixed: sequences behind the last one are read", "index", "list_few", Edit("if (first + lane < sequences)", "")),
    Mutant("mixed: keys of the first entry", "index", "write_few", Edit("s.k_batch", "0")),
    Mutant("mixed: keys from the entry's first row on", "index", "write_few", Edit("s.k_begin", "0")),
    Mutant("mixed: queries of the first entry", "index", "write_few", Edit("s.q_batch", "0")),
    Mutant("mixed: queries of the first sequence", "index", "write_few", Edit("s.q_begin", "0")),
    Mutant("mixed: entries overlap", "index", "write_few", Edit("core::listed_sequence_words} * place", "4} * place")),
    Mutant("mixed: the lists are made before their inputs are", "wait", "list_all", Remove("wait_for_prior_grid")),
    Mutant("mixed: the first lane's sequence for all", "index", "SplitScheduler::listed_from_lane",
           Edit("from_lane(own.first_query, lane)", "from_lane(own.first_query, 0)")),
    Mutant("mixed: the first lane's keys for all", "index", "SplitScheduler::listed_from_lane",
           Edit("from_lane(own.key_entry, lane)", "from_lane(own.key_entry, 0)")),
    Mutant("mixed: the first lane's number of queries for all", "index", "SplitScheduler::listed_from_lane",
           Edit("from_lane(own.queries, lane)", "from_lane(own.queries, 0)")),
    Mutant("mixed: as many sequences as there may be", "count", "SplitScheduler::batch", Edit("own_listed_.batch", "args_.batch")),
    Mutant("mixed: rows of a query more", "count", "rows_of_tile", Edit("work.listed.queries :", "(work.listed.queries + 1) :")),
    Mutant("mixed: rows as the bound says", "count", "rows_of_tile", Edit("V.queries == Queries::listed ?", "false ?")),
    Mutant("mixed: masks of the bound's queries", "index", "Consumer::queries_of", Edit("V.lists_queries() ?", "false ?")),
    Mutant("mixed: rows of every sequence begin at the entry's first", "index", "row_of_query",
           Edit("work.listed.first_query + token", "token")),
    Mutant("mixed: pages of the place in the list", "index", "BoxPages::begin", Edit("work.listed.key_entry", "work.sequence")),
    Mutant("mixed: boxes begin at the entry's first row", "index", "Producer::load", Edit("origin.s += first_row", "(void)first_row")),
    Mutant("mixed: boxes begin at the row of the work before", "index", "decode/produce",
           Edit("if constexpr (V.lists_queries()) producer.first_row = work.listed.first_key;", "")),
    Mutant("mixed: values behind the last key are not cleared", "wait", "replace_rows", Edit("v = tile::Chunk{};", "")),
]
