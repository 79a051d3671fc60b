# SPDX-License-Identifier: Apache-2.0
"""The list of mutants: one wait, fence, barrier, phase, count, index, swizzle or descriptor field changed each.

Told by construct (tools/mutation/located.py): where, a function; and what of it, the nth call of a verb or a few tokens.
"""

from . import backward, backward_varlen, block_list, decode, forward, mixed, modes, prefix, quantize, varlen
from .mutant import Mutant

MUTANTS = [*forward.MUTANTS, *block_list.MUTANTS, *decode.MUTANTS, *varlen.MUTANTS, *mixed.MUTANTS, *prefix.MUTANTS, *quantize.MUTANTS, *modes.MUTANTS, *backward.MUTANTS, *backward_varlen.MUTANTS]
