#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel without the kernels, installs it into a fresh virtual environment and uses it there.

wheel.py SOURCE STAGE VERSION [CMAKE-ARGUMENT...]. Skipped, and says so, where pip can't bring the tools.
"""
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

SKIPPED = 77
USE = """
import sys
from pathlib import Path
import numpy as np
import tandem
from tandem import _library
q, k = np.zeros((1, 3, 2, 16), np.float32), np.zeros((1, 5, 2, 16), np.float32)
v = np.broadcast_to(np.arange(5, dtype=np.float32)[None, :, None, None], k.shape).copy()
assert (abs(tandem.forward(q, k, v, causal=True)[0, :, 0, 0] - [1, 1.5, 2]) < 1e-6).all()
assert Path(_library.library_path()).parent == Path(tandem.__file__).parent, _library.library_path()
assert Path(tandem.__file__).with_name("libtandem_python.so").exists()
assert Path(tandem.__file__).with_name("py.typed").exists()
assert "torch" not in sys.modules
print(tandem.version())
"""


def run(*command, **options):
    """Output of a command; prints it and raises CalledProcessError where the command fails."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          **options)
    if done.returncode:
        print(done.stdout)
        done.check_returncode()
    return done.stdout


def environment(folder):
    """A fresh virtual environment; its Python."""
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin" / "python"


def main(source, stage, version, *cmake_arguments):
    stage = Path(stage)
    shutil.rmtree(stage, ignore_errors=True)
    try:
        builder, user = environment(stage / "builder"), environment(stage / "user")
        run(builder, "-m", "pip", "install", "-q", "scikit-build-core>=0.10")
        run(builder, "-m", "pip", "download", "-q", "numpy", "-d", stage / "wheels")
    except subprocess.CalledProcessError:
        print("SKIPPED: the test of the wheel needs python3-venv and pip's access to a package index")
        sys.exit(SKIPPED)
    settings = " ".join(["-DTANDEM_HOPPER=OFF", *cmake_arguments])
    run(builder, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", stage / "wheels", source,
        env={**os.environ, "CMAKE_ARGS": settings})
    start = time.monotonic()
    run(user, "-m", "pip", "install", "--no-index", "--find-links", stage / "wheels", "tandem")
    seconds = time.monotonic() - start
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TANDEM"))}
    used = run(user, "-c", USE, env=clean, cwd=stage).strip()
    assert used == version, f"the wheel's library has version {used}, the header {version}"
    assert f"tandem-{version}-py3-none-" in next((stage / "wheels").glob("tandem-*.whl")).name
    print(f"installed in {seconds:.1f} s, as version {used}")
    assert seconds < 60
    shutil.rmtree(stage)


if __name__ == "__main__":
    main(*sys.argv[1:])
