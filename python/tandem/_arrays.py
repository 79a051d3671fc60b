# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays and PyTorch tensors behind one small interface. Neither package is imported unless an array of it is
passed in."""

import contextlib
import ctypes
import sys

from ._library import DTYPES, Tensor, TandemTypeError, invalid


class _Arrays:
    def __init__(self, like):
        self._like = like

    def is_beside(self, x):
        """Whether x is of the kind, and lies in the place, of the array that this was made for."""
        return self.owns(x) and self.place(x) == self.place(self._like)

    def strides(self, x):
        """In elements. Of an array that has none they mean nothing, and frameworks differ: those of a contiguous one."""
        return contiguous_strides(x.shape) if 0 in x.shape else self._own_strides(x)


def contiguous_strides(shape):
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(size, 1))
    return strides[:len(shape)]


def are_contiguous(shape, strides):
    """Whether elements lie behind one another; a dimension of one may have any stride."""
    return all(size == 1 or own == wanted for size, own, wanted in zip(shape, strides, contiguous_strides(shape)))


class NumpyArrays(_Arrays):
    """bfloat16 and float8_e4m3fn are the dtypes of these names which the package ml_dtypes adds to NumPy."""

    def __init__(self, like):
        super().__init__(like)
        self._numpy = sys.modules["numpy"]

    def owns(self, x):
        return isinstance(x, self._numpy.ndarray)

    def place(self, x):
        return "host memory"

    def needs_gradient(self, x):
        return False

    def is_writeable(self, x):
        return x.flags.writeable

    def pointer(self, x):
        return x.ctypes.data

    def dtype_name(self, x):
        return x.dtype.name

    def why_not_as_stored(self, x):
        """Why the bytes of x are not its values; None where they are."""
        if not x.dtype.isnative:
            return "is of foreign byte order; pass {0}.astype({0}.dtype.newbyteorder('='))"
        if isinstance(x, self._numpy.ma.MaskedArray):
            return "has a mask, which Tandem does not see; pass {0}.filled(value)"

    def bounds(self, x):
        """The least and the greatest element, None of no elements or where asking would wait for a device."""
        return (int(x.min()), int(x.max())) if x.size else None

    def _own_strides(self, x):
        if any(stride % x.itemsize for stride in x.strides):
            raise invalid(f"strides {x.strides} bytes are no multiples of the element size, {x.itemsize} bytes")
        return [stride // x.itemsize for stride in x.strides]

    def empty(self, shape, dtype=None):
        return self._numpy.empty(shape, self._like.dtype if dtype is None else dtype)

    def name_of_dtype(self, dtype):
        """The name of a dtype, or of what NumPy takes for one; None of anything else."""
        try:
            return None if dtype is None else self._numpy.dtype(dtype).name
        except (TypeError, ValueError):
            return None

    def dtype(self, name):
        try:
            return self._numpy.dtype(name)
        except TypeError:
            raise invalid(f"NumPy has no dtype {name}; import ml_dtypes, which adds it") from None

    def empty_float(self, shape):
        return self._numpy.empty(shape, self._numpy.float32)

    def zeros(self, shape):
        return self._numpy.zeros(shape, self._like.dtype)

    def workspace(self, size, zeroed=True):
        """size bytes from an address that is a multiple of 256."""
        room = (self._numpy.zeros if zeroed else self._numpy.empty)(size + 255, self._numpy.uint8)
        return room[-room.ctypes.data % 256:][:size]

    def stream(self):
        return contextlib.nullcontext(None)


def torch_name(dtype):
    return str(dtype).removeprefix("torch.")


class TorchTensors(_Arrays):
    def __init__(self, like):
        super().__init__(like)
        self._torch = sys.modules["torch"]

    def owns(self, x):
        return isinstance(x, self._torch.Tensor)

    def place(self, x):
        return str(x.device)

    def needs_gradient(self, x):
        return x.requires_grad and self._torch.is_grad_enabled()

    def is_writeable(self, x):
        return True

    def pointer(self, x):
        return x.data_ptr()

    def dtype_name(self, x):
        return torch_name(x.dtype)

    def why_not_as_stored(self, x):
        if x.is_neg():
            return "has PyTorch's negative bit, which Tandem does not see; pass {0}.resolve_neg()"

    def bounds(self, x):
        return (int(x.min()), int(x.max())) if x.numel() and x.device.type == "cpu" else None

    def _own_strides(self, x):
        return x.stride()

    def empty(self, shape, dtype=None):
        return self._torch.empty(shape, dtype=self._like.dtype if dtype is None else dtype, device=self._like.device)

    @staticmethod
    def name_of_dtype(dtype):
        return torch_name(dtype) if isinstance(dtype, sys.modules["torch"].dtype) else None

    def dtype(self, name):
        return getattr(self._torch, name)

    def empty_float(self, shape):
        return self._torch.empty(shape, dtype=self._torch.float32, device=self._like.device)

    def zeros(self, shape):
        return self._torch.zeros(shape, dtype=self._like.dtype, device=self._like.device)

    def workspace(self, size, zeroed=True):
        """size bytes from an address that is a multiple of 256."""
        room = (self._torch.zeros if zeroed else self._torch.empty)(size + 255, dtype=self._torch.uint8, device=self._like.device)
        return room[-room.data_ptr() % 256:][:size]

    @contextlib.contextmanager
    def stream(self):
        """Makes the tensors' device current and gives the address of its current stream, None on the CPU."""
        if self._like.device.type != "cuda":
            yield None
            return
        with self._torch.cuda.device(self._like.device):
            yield self._torch.cuda.current_stream().cuda_stream


def arrays_of(x, name="q"):
    """The interface to arrays of x's kind."""
    for module, kind in (("torch", TorchTensors), ("numpy", NumpyArrays)):
        if module in sys.modules and kind(x).owns(x):
            return kind(x)
    raise TandemTypeError(f"{name} is a {_kind_of(x)}; NumPy arrays and PyTorch tensors are allowed")


def _kind_of(x):
    return f"{type(x).__module__}.{type(x).__qualname__}"


def shown(value):
    """What a caller passed, for a message: short, so of large things the kind."""
    words = repr(value)
    return words if len(words) <= 60 else f"a {_kind_of(value)}"


def chosen_dtype(name_of, value, allowed, name="dtype"):
    """The one of the names `allowed` that an argument is, as a word or as a dtype. name_of: gives a dtype's name."""
    chosen = value if isinstance(value, str) and value in allowed else name_of(value)
    if chosen not in allowed:
        raise invalid(f"{name} is {shown(value)}; allowed are {', '.join(allowed)}, by name or as the arrays' dtypes")
    return chosen


def check_kinds(arrays, tensors):
    """All of {name: array} are arrays of the first one's kind, whose `arrays` are."""
    first = next(iter(tensors))
    for name, x in tensors.items():
        if not arrays.owns(x):
            raise TandemTypeError(f"{first} and {name} are arrays of different kinds: {type(tensors[first])}, {type(x)}")


def check_ranks(tensors, allowed=(4,), dimensions="b, s, h, d"):
    """All of {name: array} have one of the numbers of dimensions."""
    for name, x in tensors.items():
        if x.ndim not in allowed:
            raise invalid(f"{name} has {x.ndim} dimensions; {' or '.join(map(str, allowed))} are needed ({dimensions})")


def _check_elements(arrays, name, x, dtypes):
    """They are of one of the dtypes, by name, and their bytes are their values. The name of it."""
    dtype = arrays.dtype_name(x)
    if dtype not in dtypes:
        raise invalid(f"{name} is {dtype}; allowed are {', '.join(dtypes)}")
    if why := arrays.why_not_as_stored(x):
        raise invalid(f"{name} {why.format(name)}")
    return dtype


def describe(arrays, name, x, dimensions="b, s, h, d", dtypes=tuple(DTYPES)):
    """x as the C interface's tandem_tensor. Borrows x's memory: keep x alive as long as the result."""
    check_ranks({name: x}, dimensions=dimensions)
    dtype = _check_elements(arrays, name, x, dtypes)
    four = ctypes.c_int64 * 4
    return Tensor(arrays.pointer(x), DTYPES[dtype], four(*x.shape), four(*arrays.strides(x)))


def table(arrays, name, x, dtypes, dimensions):
    """The address of an array of one of `dtypes` and of len(dimensions) dimensions, the last of them contiguous, and
    its shape and strides. Borrows x's memory."""
    check_ranks({name: x}, (len(dimensions),), ", ".join(dimensions))
    _check_elements(arrays, name, x, dtypes)
    strides = arrays.strides(x)
    if x.shape[-1] > 1 and strides[-1] != 1:
        raise invalid(f"{name} has strides {tuple(strides)}; the last one has to be 1")
    return arrays.pointer(x), tuple(x.shape), tuple(strides)
