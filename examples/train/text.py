# SPDX-License-Identifier: Apache-2.0
"""Licence texts as training data: bytes, and batches of them that follow from a seed."""

from pathlib import Path

import numpy as np

# Debian keeps the texts of its licences here; elsewhere this repository's own has to do.
LICENCES = Path("/usr/share/common-licenses")
OWN_LICENCE = Path(__file__).resolve().parents[2] / "LICENSE"


def read_text():
    """All licence texts of this machine, each once, one after another."""
    files = sorted({path.resolve() for path in LICENCES.glob("*") if path.is_file()}) or [OWN_LICENCE]
    return np.frombuffer(b"\n".join(file.read_bytes() for file in files), np.uint8)


def batches(text, batch, length, seed):
    """Endless arrays of batch x (length + 1) bytes: places in the text that follow from the seed alone."""
    random = np.random.default_rng(seed)
    while True:
        starts = random.integers(0, len(text) - length - 1, batch)
        yield np.stack([text[start:start + length + 1] for start in starts]).astype(np.int64)
