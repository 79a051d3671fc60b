# SPDX-License-Identifier: Apache-2.0
"""Of the quantiser."""

from mutation.located import Edit, Remove

from .mutant import Mutant

MUTANTS = [
    # The quantiser
    Mutant("quantise: no barrier before the largest magnitude", "quantise", "Rows::largest", Remove("sync_block")),
    Mutant("quantise: no barrier before columns go out", "quantise", "store_term", Remove("sync_block")),
    Mutant("quantise: what stands behind the last token", "quantise", "Rows::load", Edit("at < args.length", "true")),
    Mutant("quantise: signs of the first columns for all", "quantise", "begin_hadamard", Edit("matrix.signs[column / 32]", "matrix.signs[0]")),
    Mutant("quantise: butterflies without the last lanes", "quantise", "multiply_by_hadamard",
           Edit("distance < lanes", "distance < lanes / 2")),
    Mutant("quantise: rows behind the last one are written", "quantise", "store_rows", Edit("if (at < args.length)", "")),
    Mutant("quantise: columns' tails are left as they were", "quantise", "store_term",
           Edit("at < args.padded", "at < args.length - args.length % 16")),
]
