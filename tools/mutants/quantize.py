# SPDX-License-Identifier: Apache-2.0
"""Of the quantiser."""

from mutation.located import Edit, Remove

from .mutant import Mutant

MUTANTS = [
    # The quantiser
    Mutant("quantise: no barrier before the largest magnitude", "quantise", "quantize_tile", Remove("sync_block")),
    Mutant("quantise: no barrier before columns go out", "quantise", "quantize_tile", Remove("sync_block", 2)),
    Mutant("quantise: signs of the first columns for all", "quantise", "chunk_signs", Edit("matrix.signs[column / 32]", "matrix.signs[0]")),
    Mutant("quantise: signs of the first panel for all", "quantise", "Rows::load",
           Edit("shared.signs[panel * lanes + lane]", "shared.signs[lane]"), 128),
    Mutant("quantise: signs of a chunk's first word for all", "quantise", "flip_packed_signs", Edit("spread << i", "spread")),
    Mutant("quantise: butterflies without the last lanes", "quantise", "transform_row",
           Edit("distance < lanes", "distance < lanes / 2")),
    Mutant("quantise: no butterflies between panels", "quantise", "transform_parts", Edit("distance < parts", "distance < parts / 2"), 128),
    Mutant("quantise: lower lanes have the difference", "quantise", "exchange_hadamard", Edit("? -1.f : 1.f", "? 1.f : -1.f")),
    Mutant("quantise: the stage's next tile is the one before it", "quantise", "quantize_tile",
           Edit("V.stages() * static_cast", "(V.stages() - 1) * static_cast")),
    Mutant("quantise: all tiles' magnitudes in one place", "quantise", "quantize_kernel", Edit("turn ^= 1", "turn ^= 0")),
    Mutant("quantise: the largest magnitude of half of the warps", "quantise", "QuantizeShared::largest",
           Edit("tile::warp_max<warps>", "tile::warp_max<warps / 2>")),
    Mutant("quantise: rows behind the last one are written", "quantise", "Rows::store_rows", Edit("if (at < args.length)", "")),
    Mutant("quantise: columns' tails are left as they were", "quantise", "store_columns",
           Edit("at >= args.padded", "at >= args.length - args.length % 16")),
    Mutant("quantise: tokens of a column as they come", "quantise", "store_columns", Edit("core::key_of_position(4 * four + i)", "4 * four + i")),
    Mutant("quantise: rows behind the last one have a shift", "quantise", "subtract_shift",
           Edit("exists ? own[c] : 0.f", "own[c]")),
    Mutant("quantise: a shift without the matrix's signs", "quantise", "visit_beside", Remove("flip_signs")),
    Mutant("quantise: products of half of a row's lanes", "quantise", "store_dots",
           Edit("warp_sum<lanes>", "warp_sum<lanes / 2>")),
    Mutant("quantise: begins before the grid ahead has ended", "quantise", "quantize_kernel", Remove("wait_for_prior_grid")),
    # By products
    Mutant("quantise: the matrix is not published to WGMMA", "quantise", "place_matrix", Remove("fence_async_proxy")),
    Mutant("quantise: a matrix without signs", "quantise", "place_matrix",
           Edit("tile::spread_signs(signs) ^ tile::chunk_signs(args.hadamard, column)", "tile::spread_signs(signs)")),
    Mutant("quantise: a matrix of columns as WGMMA has them", "quantise", "place_matrix", Edit("product_column(n) &", "n &")),
    Mutant("quantise: all rows of the matrix are a chunk's", "quantise", "place_matrix", Edit("(in_panel + c)", "c")),
    Mutant("quantise: the first panel's matrix for all", "quantise", "ProductRows::take",
           Edit("shared.matrix[panel]", "shared.matrix[0]"), 128),
    Mutant("quantise: both warpgroups multiply the first one's rows", "quantise", "ProductRows::take",
           Edit("/ hw::warpgroup_size * tile::warpgroup_rows", "/ hw::warpgroup_size")),
    Mutant("quantise: sums go on from the tile before", "quantise", "gemm/issue_scores",
           Edit("overwrite", "add")),
    Mutant("quantise: sums are read before they are there", "quantise", "ProductRows::take", Remove("wgmma_wait<0>")),
    Mutant("quantise: products' magnitudes without the root of d", "quantise", "ProductRows::largest", Edit(" * to_unit", "")),
    Mutant("quantise: products without the root of d", "quantise", "ProductRows::store_rows", Edit("inverse * to_unit", "inverse")),
    Mutant("quantise: products of rows behind the last one are written", "quantise", "ProductRows::store_rows",
           Edit("if (at < args.length)", "")),
    Mutant("quantise: lower rows' products one row down", "quantise", "ProductRows::store_rows", Edit("8 * i;", "i;")),
    Mutant("quantise: all lanes' products in the first columns", "quantise", "ProductRows::store_rows",
           Edit("* lane_columns", "* 0")),
]
