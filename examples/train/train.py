#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small byte-level transformer on the machine's licence texts, once with Tandem's attention, forward and
backward, and once with another: in NumPy on the CPU a plain float32 one, in PyTorch (on the GPU where there is one)
PyTorch's own. Both start from the same numbers and see the same batches.

Writes the loss of every step as CSV; plot.py draws it. --check asks that the losses agree: at each of the first steps
within rounding, and over the last ones within what another seed changes.

Needs NumPy, libtandem (TANDEM_LIBRARY) and this repository's python/ on PYTHONPATH; --framework torch PyTorch.
"""

import argparse
import csv
import importlib
import sys
import time
from pathlib import Path

try:
    import numpy as np
except ImportError:
    print("SKIPPED: this example needs NumPy (Debian: python3-numpy)")
    sys.exit(77)

from model import Shape
from text import batches, read_text

ATTENTIONS = ("tandem", "plain")
COLUMNS = ["framework", "attention", "seed", "step", "loss"]
EARLY_STEPS = 5


def losses_of(arguments, attention, seed):
    """The loss before each step, in nats a byte."""
    shape = Shape(arguments.layers, arguments.heads, arguments.head_dim, arguments.context)
    trainer = importlib.import_module(f"{arguments.framework}_model").trainer
    step = trainer(shape, attention, seed, arguments.rate)
    source = batches(read_text(), arguments.batch, shape.context, seed)
    begin = time.monotonic()
    losses = [step(next(source)) for _ in range(arguments.steps)]
    print(f"{arguments.framework} {attention} seed {seed}: {losses[0]:.4f} -> {late(losses):.4f} nats a byte, "
          f"{(time.monotonic() - begin) / arguments.steps * 1e3:.0f} ms a step", flush=True)
    return losses


def late(losses):
    """The mean over the last tenth."""
    return float(np.mean(losses[-max(len(losses) // 10, 1):]))


def complaints_of(curves, tolerance):
    """What contradicts that both attentions train alike. curves: {(attention, seed): losses}."""
    complaints = []
    seeds = sorted({seed for _, seed in curves})
    for seed in seeds:
        ours, other = (np.array(curves[attention, seed]) for attention in ATTENTIONS)
        if not np.isfinite(ours).all() or late(ours) > ours[0] - 0.5:
            complaints.append(f"seed {seed}: the loss did not fall")
        apart = np.abs(ours - other)[:EARLY_STEPS].max()
        if not apart <= tolerance:
            complaints.append(f"seed {seed}: losses of the first {EARLY_STEPS} steps are {apart:.1e} apart")
    noise = np.ptp([late(curves["plain", seed]) for seed in seeds])
    for seed in seeds if len(seeds) > 1 else ():
        apart = abs(late(curves["tandem", seed]) - late(curves["plain", seed]))
        if not apart <= noise:
            complaints.append(f"seed {seed}: final losses are {apart:.4f} apart, those of the seeds {noise:.4f}")
    return complaints


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=["numpy", "torch"], default="numpy", help="default: numpy")
    parser.add_argument("--steps", type=int, default=300, help="default: 300")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="default: 1 2")
    parser.add_argument("--batch", type=int, default=8, help="texts of a step (default: 8)")
    parser.add_argument("--context", type=int, default=64, help="bytes of a text (default: 64)")
    parser.add_argument("--layers", type=int, default=2, help="default: 2")
    parser.add_argument("--heads", type=int, default=4, help="default: 4")
    parser.add_argument("--head-dim", type=int, default=32, help="default: 32")
    parser.add_argument("--rate", type=float, default=3e-3, help="Adam's (default: 0.003)")
    parser.add_argument("--check", action="store_true", help="exit code 1 unless both attentions train alike")
    parser.add_argument("-o", "--output", type=Path, help="CSV file to write")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    curves = {(attention, seed): losses_of(arguments, attention, seed)
              for seed in arguments.seeds for attention in ATTENTIONS}
    if arguments.output:
        with arguments.output.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows([arguments.framework, attention, seed, i, f"{loss:.5f}"]
                             for (attention, seed), losses in curves.items() for i, loss in enumerate(losses))
    # float32 both on the CPU; bfloat16 on the GPU.
    complaints = complaints_of(curves, 1e-3 if arguments.framework == "numpy" else 2e-2) if arguments.check else []
    for complaint in complaints:
        print(complaint)
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
