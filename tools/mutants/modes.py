# SPDX-License-Identifier: Apache-2.0
"""Of int8 queries and keys, values of two terms, and what the quantiser writes of them."""

from mutation.located import Edit

from .mutant import Mutant

MUTANTS = [
    # Sums of integers
    Mutant("int8: sums start at nothing", "sums", "tile/gemm/begin_scores", Edit("score = base_of_sums", "score = 0.f")),
    Mutant("int8: sums start anew at the first step", "sums", "gemm/issue_scores",
           Edit("step == 0 && operand != hw::Operand::int8", "step == 0")),
    Mutant("int8: the line stays where floats' scores are", "sums", "bring_together",
           Edit("first[i] = hw::fma(slope[i], -base_of_sums, first[i])", "")),
    Mutant("int8: steep lines are moved as flat ones", "sums", "bring_together", Edit("if (!steep)", "")),
    Mutant("int8: steep lines' scores stay where they are", "sums", "bring_together",
           Edit("scores[j] -= top[row_of_accumulator(j)]", "")),
    Mutant("int8: both rows have the upper one's maximum at the top", "sums", "bring_together",
           Edit("top[row_of_accumulator(j)]", "top[0]")),
    Mutant("int8: weights by the offset before it was rounded", "sums", "block_softmax/exponentiate",
           Edit("offset[i] = on_line(offset[i], unit[i])", ""), 256),
    Mutant("int8: offsets by maxima with the base", "sums", "block_softmax/exponentiate",
           Edit("sums ? row_max[i] - base_of_sums : row_max[i]", "row_max[i]")),
    Mutant("int8: caps of sums with the base", "sums", "take_maximum", Edit("scores[j] - tile::base_of_sums", "scores[j]")),
    # Values of two terms
    Mutant("two terms: the second is the first", "terms", "load_8_bit_v", Edit("origin.s += args.value_dim", "")),
    Mutant("two terms: the second lies behind the kernel's columns", "terms", "load_8_bit_v",
           Edit("args.value_dim", "V.value_dim")),
    Mutant("two terms: bytes of one are expected", "terms", "load_8_bit_v", Edit("V.value_terms * (", "(")),
    Mutant("two terms: ones under both", "terms", "write_ones",
           Edit("shared.second.v[stage].chunk(first_row, column) = {}",
                "shared.second.v[stage].chunk(first_row, column) = shared.v[stage].chunk(first_row, column)")),
    Mutant("two terms: the second's product begins anew", "terms", "start_columns",
           Edit("columns + ones, hw::Accumulate::add", "columns + ones, hw::Accumulate::overwrite")),
    Mutant("two terms: the second of the first stage", "terms", "start_columns",
           Edit("state.shared.second.v[state.at.v.stage]", "state.shared.second.v[0]")),
    # The quantiser
    Mutant("quantise: integers by the scale of e4m3", "quantise", "find_scale", Edit("core::int8_scale_for", "core::scale_for")),
    Mutant("quantise: what the first term leaves, unscaled", "quantise", "Rows::subtract",
           Edit("x[4 * word + i], inverse, -term", "x[4 * word + i], 1.f, -term")),
    Mutant("quantise: the second term over the first", "quantise", "Rows::place_rows",
           Edit("own[ahead + sizeof(Packed) / sizeof(Pair)]", "own[ahead]")),
    Mutant("quantise: all blocks are turned by the first one's positions", "quantise", "Rows::take",
           Edit("first_position(args, place.batch) + place.first()", "first_position(args, place.batch)")),
    Mutant("quantise: all entries begin at the first one's position", "quantise", "quantize/rows/first_position",
           Edit("args.first_positions + batch", "args.first_positions")),
    Mutant("quantise: columns behind the rotation's are turned", "quantise", "Rows::load_turned",
           Edit("column(panel) < args.rotary.dim", "true")),
]
