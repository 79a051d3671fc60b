# SPDX-License-Identifier: Apache-2.0
"""What tests over PyTorch begin with. Without PyTorch they end with exit code 77, which CTest shows as skipped."""

import os
import sys

try:
    import torch
except ImportError:
    print("SKIPPED: this test needs PyTorch 2.4 or newer")
    sys.exit(77)

import tandem
from torch.utils._python_dispatch import TorchDispatchMode

SEED = int(os.environ.get("TANDEM_SEED", torch.seed() % 2**32))
DEVICES = ["cpu"] + (["cuda"] if tandem.info()["hopper_usable"] and torch.cuda.is_available() else [])


class Names(TorchDispatchMode):
    """Of the operators that are called."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))
