# SPDX-License-Identifier: Apache-2.0
"""Block-sparse attention: which blocks of keys each block of queries sees."""

from dataclasses import dataclass
from typing import Any

from ._arrays import are_contiguous, shown, table
from ._library import BlockListStruct, TandemTypeError, invalid
from ._options import as_int64, sized


@dataclass(frozen=True)
class BlockList:
    """For block_list of forward and forward_varlen, where b is the number of sequences. Of the keys that the mask lets it see, a
    query sees those in the listed blocks only.

    counts: int32, b or 1, q_heads or 1, blocks of queries: how many key blocks are listed. blocks: int32, the same and slots:
    their numbers, ascending, each once; what stands behind the count is not read. Both contiguous, of q's kind and place.
    (PyTorch's FlexAttention calls them kv_num_blocks and kv_indices.) q_block, k_block: tokens of a block, the last one of
    either may have fewer; on Hopper multiples of 128.
    """
    counts: Any
    blocks: Any
    q_block: int = 128
    k_block: int = 128


def arrays_of_list(block_list):
    """The arrays of a list by their names, none from None."""
    if not isinstance(block_list, (BlockList, type(None))):
        raise TandemTypeError(f"block_list is {shown(block_list)}; it has to be a tandem.BlockList, or None")
    return {} if block_list is None else {"block_list.counts": block_list.counts, "block_list.blocks": block_list.blocks}


def as_block_list(arrays, block_list, q_shape):
    """The C interface's struct, None from None. q_shape: b, sq, q_heads, of which the first are sequences, and as many queries
    as one may have, where lengths vary."""
    if block_list is None:
        return None
    sizes = {name: as_int64(f"block_list.{name}", getattr(block_list, name)) for name in ("q_block", "k_block")}
    if sizes["q_block"] < 1:
        raise invalid(f"block_list.q_block is {sizes['q_block']}; it has to be 1 or more")
    dimensions = ("b", "q_heads", "blocks of queries", "slots")
    addresses, shapes = {}, {}
    for name, rank in (("counts", 3), ("blocks", 4)):
        address, shape, strides = table(arrays, f"block_list.{name}", getattr(block_list, name), ("int32",), dimensions[:rank])
        if not are_contiguous(shape, strides):
            raise invalid(f"block_list.{name} has strides {strides}; it has to be contiguous")
        addresses[name], shapes[name] = address, shape
    (batch, heads, rows), slots = shapes["counts"], shapes["blocks"][3]
    wanted = (q_shape[0], q_shape[2], -(-q_shape[1] // sizes["q_block"]))
    if batch not in (1, wanted[0]) or heads not in (1, wanted[1]) or rows != wanted[2]:
        raise invalid(f"block_list.counts has shape {shapes['counts']}; {wanted} is needed, and "
                      "the first two may be 1")
    if shapes["blocks"][:3] != shapes["counts"]:
        raise invalid(f"block_list.blocks has shape {shapes['blocks']}; {(*shapes['counts'], slots)} "
                      "is needed, as counts and slots")
    return sized(BlockListStruct, slots=slots, batch_stride=heads * rows if batch > 1 else 0,
                 head_stride=rows if heads > 1 else 0, **addresses, **sizes)
