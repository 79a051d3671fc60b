# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays and PyTorch tensors behind one small interface. Neither package is imported unless an array of it is
passed in."""

import contextlib
import ctypes
import sys

from ._library import DTYPES, Tensor, TandemError


def _invalid(message):
    return TandemError("TANDEM_INVALID_ARGUMENT", message)


class NumpyArrays:
    """bfloat16 and float8_e4m3fn are the dtypes of these names which the package ml_dtypes adds to NumPy."""

    def __init__(self, like):
        self._numpy = sys.modules["numpy"]
        self._like = like

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

    def bounds(self, x):
        """The least and the greatest element, None of no elements or where asking would wait for a device."""
        return (int(x.min()), int(x.max())) if x.size else None

    def strides(self, x):
        if any(stride % x.itemsize for stride in x.strides):
            raise _invalid(f"strides {x.strides} bytes are no multiples of the element size, {x.itemsize} bytes")
        return [stride // x.itemsize for stride in x.strides]

    def empty(self, shape, dtype=None):
        return self._numpy.empty(shape, self._like.dtype if dtype is None else dtype)

    def dtype(self, name):
        try:
            return self._numpy.dtype(name)
        except TypeError:
            raise _invalid(f"NumPy has no dtype {name}; import ml_dtypes, which adds it") from None

    def empty_float(self, shape):
        return self._numpy.empty(shape, self._numpy.float32)

    def workspace(self, size, zeroed=True):
        """size bytes from an address that is a multiple of 256."""
        room = (self._numpy.zeros if zeroed else self._numpy.empty)(size + 255, self._numpy.uint8)
        return room[-room.ctypes.data % 256:][:size]

    def stream(self):
        return contextlib.nullcontext(None)


class TorchTensors:
    def __init__(self, like):
        self._torch = sys.modules["torch"]
        self._like = like

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
        return str(x.dtype).removeprefix("torch.")

    def why_not_as_stored(self, x):
        if x.is_neg():
            return "has PyTorch's negative bit, which Tandem does not see; pass {0}.resolve_neg()"

    def bounds(self, x):
        return (int(x.min()), int(x.max())) if x.numel() and x.device.type == "cpu" else None

    def strides(self, x):
        return x.stride()

    def empty(self, shape, dtype=None):
        return self._torch.empty(shape, dtype=self._like.dtype if dtype is None else dtype, device=self._like.device)

    def dtype(self, name):
        return getattr(self._torch, name)

    def empty_float(self, shape):
        return self._torch.empty(shape, dtype=self._torch.float32, device=self._like.device)

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
    raise TypeError(f"{name} is a {type(x).__module__}.{type(x).__qualname__}; NumPy arrays and PyTorch tensors are allowed")


def _check_stored(arrays, name, x):
    if why := arrays.why_not_as_stored(x):
        raise _invalid(f"{name} {why.format(name)}")


def describe(arrays, name, x, dimensions="b, s, h, d"):
    """x as the C interface's tandem_tensor. Borrows x's memory: keep x alive as long as the result."""
    if x.ndim != 4:
        raise _invalid(f"{name} has {x.ndim} dimensions; 4 are needed ({dimensions})")
    dtype = arrays.dtype_name(x)
    if dtype not in DTYPES:
        raise _invalid(f"{name} is {dtype}; allowed are {', '.join(DTYPES)}")
    _check_stored(arrays, name, x)
    four = ctypes.c_int64 * 4
    return Tensor(arrays.pointer(x), DTYPES[dtype], four(*x.shape), four(*arrays.strides(x)))


def table(arrays, name, x, dtypes, dimensions):
    """The address of an array of one of `dtypes` and of len(dimensions) dimensions, the last of them contiguous, and
    its shape and strides. Borrows x's memory."""
    if x.ndim != len(dimensions):
        raise _invalid(f"{name} has {x.ndim} dimensions; {len(dimensions)} are needed ({', '.join(dimensions)})")
    dtype = arrays.dtype_name(x)
    if dtype not in dtypes:
        raise _invalid(f"{name} is {dtype}; allowed are {', '.join(dtypes)}")
    _check_stored(arrays, name, x)
    strides = arrays.strides(x)
    if x.shape[-1] > 1 and strides[-1] != 1:
        raise _invalid(f"{name} has strides {tuple(strides)}; the last one has to be 1")
    return arrays.pointer(x), tuple(x.shape), tuple(strides)
