# SPDX-License-Identifier: Apache-2.0
"""Of steps whose sequences share prefixes: the list of these, and what reads it."""

from mutation.located import Edit, Remove

from .mutant import Mutant

MUTANTS = [
    Mutant("prefix: the list is made before its inputs are", "wait", "prefix_list_kernel", Remove("wait_for_prior_grid")),
    Mutant("prefix: shared keys before the groups are known", "barrier", "prefix_list_kernel", Remove("sync_block", 1)),
    Mutant("prefix: places before the shared keys are known", "barrier", "prefix_list_kernel", Remove("sync_block", 2)),
    Mutant("prefix: entries before their places are known", "barrier", "prefix_list_kernel", Remove("sync_block", 3)),
    Mutant("prefix: sequences behind the last group are not listed", "count", "prefix_list_kernel",
           Edit("group <= args.groups", "group < args.groups")),
    Mutant("prefix: the first block clears too", "index", "prefix_list_kernel", Edit("block > 0", "block > 1")),
    Mutant("prefix: rows without a prefix are not cleared", "index", "PrefixList::clear_lse", Edit("row < args_.rows", "row < 0")),
    Mutant("prefix: all but the first rows are cleared", "index", "PrefixList::clear_lse", Edit("row = index", "row = index + 1")),
    Mutant("prefix: groups may overlap", "index", "PrefixList::note_sequences", Edit("core::clamp(begin, least, end)", "core::clamp(begin, 0, end)")),
    Mutant("prefix: a window of groups forgets the one before", "index", "PrefixList::note_sequences", Edit("end > past ? end : past", "end")),
    Mutant("prefix: a group begins where the one before began", "index", "PrefixList::note_sequences", Edit("lane() - 1", "lane()")),
    Mutant("prefix: a sequence alone shares", "count", "PrefixList::note_shared", Edit("end - begin > 1", "end - begin > 0")),
    Mutant("prefix: only the first 32 sequences count", "count", "PrefixList::note_shared", Edit("i < end;", "i < begin + 32 && i < end;")),
    Mutant("prefix: the lane's own sequences count", "reduction", "PrefixList::note_shared", Edit("tile::warp_min(least)", "least")),
    Mutant("prefix: units that are begun are shared", "count", "PrefixList::note_shared", Edit("divide(least < 0 ? 0 : least)", "divide(least < 0 ? 0 : least + 63)")),
    Mutant("prefix: a window of groups begins at the first entry", "index", "PrefixList::note_places", Edit("past + sum - own", "sum - own")),
    Mutant("prefix: places behind the group's own entries", "index", "PrefixList::note_places", Edit("past + sum - own", "past + sum")),
    Mutant("prefix: one sequence fewer is listed", "count", "PrefixList::note_places", Edit("past + args_.batch", "past + args_.batch - 1")),
    Mutant("prefix: sequences between groups are not listed", "index", "PrefixList::list", Edit("noted(group - 1, 1)", "own.begin")),
    Mutant("prefix: sequences read their prefix too", "index", "PrefixList::list", Edit("i < own.begin ? 0 : own.shared", "0")),
    Mutant("prefix: sequences of no group skip a prefix", "index", "PrefixList::list", Edit("i < own.begin ? 0 : own.shared", "own.shared")),
    Mutant("prefix: the last entry has as many queries as others", "count", "PrefixList::list", Edit("left < args_.tile_queries ? left : args_.tile_queries", "args_.tile_queries")),
    Mutant("prefix: every entry has the group's first queries", "index", "PrefixList::list", Edit("own.begin * args_.units.q_len + before", "own.begin * args_.units.q_len")),
    Mutant("prefix: keys of the batch's first sequence", "index", "PrefixList::list", Edit("entry_of_sequence(own.begin)", "entry_of_sequence(0)")),
    Mutant("prefix: prefixes are parts of their sequences' own", "index", "PrefixList::list", Edit("core::ResultPart::prefix", "core::ResultPart::own")),
    Mutant("prefix: keys that the first query does not see are shared", "count", "PrefixList::sharable_of", Edit("seen < own.length ? seen : own.length", "own.length")),
    Mutant("prefix: an entry fewer than the queries need", "count", "PrefixList::entries_of",
           Edit("(queries + args_.tile_queries - 1) / args_.tile_queries", "queries / args_.tile_queries")),
    Mutant("prefix: the index of entries is not followed", "index", "PrefixList::entry_of_sequence", Edit("args_.batch_index == nullptr", "true")),
    Mutant("prefix: masks of a sequence over a prefix", "index", "Consumer::limits_of", Edit("work.listed.first_key == core::shared_prefix", "false")),
    Mutant("prefix: a sink counts in both parts", "index", "OutputRows::sink", Edit("work.listed.first_key == core::shared_prefix", "false")),
    Mutant("prefix: a prefix is cut as a sequence", "index", "SplitScheduler::units_of", Edit("lengths.first_key == core::shared_prefix", "false")),
    Mutant("prefix: a sequence's units begin at its first key", "index", "UnitRule::behind", Edit("first <= all.first_unit", "true")),
    Mutant("prefix: one unit fewer behind a prefix", "count", "UnitRule::behind", Edit("all.first_unit + all.units - first", "all.first_unit + all.units - first - 1")),
]
