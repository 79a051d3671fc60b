# SPDX-License-Identifier: Apache-2.0
"""What both models are: their shape, and the numbers that they start from."""

from dataclasses import dataclass

import numpy as np

BYTES = 256


@dataclass(frozen=True)
class Shape:
    """A byte-level transformer: pre-normalised blocks of causal attention and a two-layer MLP."""
    layers: int = 2
    heads: int = 4
    head_dim: int = 32
    context: int = 64

    @property
    def width(self):
        return self.heads * self.head_dim


def initial_parameters(shape, seed):
    """{name: float32 array}, the same for NumPy and PyTorch. Matrices are inputs x outputs; gains of norms are 1."""
    random = np.random.default_rng(seed)
    width = shape.width

    def matrix(rows, columns, deviation):
        return (deviation * random.standard_normal((rows, columns))).astype(np.float32)

    residual = 0.02 / np.sqrt(2 * shape.layers)
    parameters = {"embedding": matrix(BYTES, width, 0.02), "positions": matrix(shape.context, width, 0.02)}
    for i in range(shape.layers):
        parameters |= {f"{i}.norm1": np.ones(width, np.float32), f"{i}.qkv": matrix(width, 3 * width, 0.02),
                       f"{i}.projection": matrix(width, width, residual), f"{i}.norm2": np.ones(width, np.float32),
                       f"{i}.up": matrix(width, 4 * width, 0.02), f"{i}.down": matrix(4 * width, width, residual)}
    return parameters | {"norm": np.ones(width, np.float32), "head": matrix(width, BYTES, 0.02)}
