# SPDX-License-Identifier: Apache-2.0
"""Structs of the C interface packed in one call, where filling ctypes fields one by one would take longer than the work
that the call enqueues."""

import ctypes
import struct

CODES = {ctypes.c_size_t: "N", ctypes.c_int: "i", ctypes.c_int64: "q", ctypes.c_float: "f", ctypes.c_void_p: "P"}
CODES[ctypes.c_int32] = "i"


def _codes(kind):
    """struct's codes for a type of the C interface; pointers to structs are addresses."""
    if kind in CODES:
        return CODES[kind]
    if issubclass(kind, ctypes.Structure):
        return "".join(_codes(field) for _, field in kind._fields_)
    if issubclass(kind, ctypes.Array):
        return f"{kind._length_}{_codes(kind._type_)}"
    return "P"


class Packer:
    """Packs the fields of a struct up to `last`, after its struct_size, which says that the struct ends there: fields
    that later versions add are at their defaults then."""

    def __init__(self, kind, last):
        names = [name for name, _ in kind._fields_]
        fields = kind._fields_[1:names.index(last) + 1]
        packed = struct.Struct("@N" + "".join(_codes(field) for _, field in fields))
        self.size = getattr(kind, last).offset + getattr(kind, last).size
        assert packed.size == self.size, f"{kind.__name__} has padding that {packed.format} does not have"
        self._into = packed.pack_into

    def into(self, buffer, offset, *values):
        self._into(buffer, offset, self.size, *values)
