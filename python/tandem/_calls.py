# SPDX-License-Identifier: Apache-2.0
"""What calls with a plan have in common: their options, the memory that they lend, and the plan that they take."""

import ctypes
import inspect

from ._arrays import table
from ._library import TandemTypeError, check, invalid


def options_of(call):
    """The names of the keyword arguments that a class of calls takes."""
    return [name for name, own in inspect.signature(call).parameters.items() if own.kind is own.KEYWORD_ONLY]


def check_options(function, options, allowed):
    for name in options:
        if name not in allowed:
            raise TandemTypeError(f"{function} has no argument {name}; allowed are {', '.join(allowed)}")


def run_with_memory(arrays, args, query, run, memory):
    """Runs `run` with as much memory as `query` asks for, from memory(size), which it returns; None where that is none."""
    with arrays.stream() as stream:
        size = ctypes.c_size_t()
        check(query(ctypes.byref(args), ctypes.byref(size)))
        lent = memory(size.value) if size.value else None
        check(run(ctypes.byref(args), None if lent is None else arrays.pointer(lent), size.value, stream))
    return lent


def plan_address(arrays, plan, query, args, made_by):
    """That of a plan which has all bytes that `query` asks for: a shorter one would be read beyond its end."""
    address, (given,), _ = table(arrays, "plan", plan, ("uint8",), ("bytes",))
    needed = ctypes.c_size_t()
    with arrays.stream():
        check(query(ctypes.byref(args), ctypes.byref(needed)))
    if given < needed.value:
        raise invalid(f"plan has {given} bytes; this call's has {needed.value} or more: make it by {made_by}")
    return address
