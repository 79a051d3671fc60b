# SPDX-License-Identifier: Apache-2.0
"""Where the disassembler is."""

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def find_cuobjdump(given=None):
    """The path of cuobjdump: the one given, $CUOBJDUMP, PATH, CUDA_HOME/bin, the package triton in .venv; else None."""
    home = os.environ.get("CUDA_HOME")
    candidates = [given, os.environ.get("CUOBJDUMP"), shutil.which("cuobjdump"), home and Path(home) / "bin/cuobjdump",
                  *ROOT.glob(".venv/lib/python*/site-packages/triton/backends/nvidia/bin/cuobjdump")]
    return next((str(path) for path in candidates if path and os.access(path, os.X_OK)), None)
