#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the rates of the matrix units into docs/performance/decode.md, between its marks, from bench/results/h200/wgmma.csv, which
`tandem bench --wgmma --csv` writes.

With --check it writes nothing and sees that the page already says so: exit code 1 if not, 77 if nothing was measured.
"""

import argparse
import csv
import sys
from pathlib import Path

from cases import RESULTS
from marks import update

ROOT = Path(__file__).resolve().parent.parent
MARKS = "<!-- matrix rates: written by bench/matrix_table.py -->\n", "<!-- end of matrix rates -->\n"
NOT_MEASURED = 77
SIZES = (8, 16, 32, 64, 128, 256)
WARPGROUPS = (1, 2, 4)
COLUMNS = (("SS", "ss", "add"), ("SS, zero-init", "ss", "overwrite"), ("RS", "rs", "add"),
           ("RS, zero-init", "rs", "overwrite"))
# As the post quotes them, for an H800, by (form, sum) of an N.
QUOTED = {8: "SS 157.6", 16: "SS 283.5", 128: "SS 659.8, zero-init 728.5; RS 661.7"}
MMA = (("registers", "operands in registers", "490.7"), ("load_a", "A by `ldmatrix.x4` for each product", ""),
       ("load_ab", "A by `ldmatrix.x4` and B by `ldmatrix.x2` for each product", ""))
WGMMA_TEXT = """TFLOP/s of {instruction} with 1 / 2 / 4 warpgroups of each multiprocessor ({clock}; 4 only where registers allow):
"""
MMA_TEXT = "TFLOP/s of `mma.sync` m16n8k16, bf16, with 1 / 2 / 4 warpgroups of each multiprocessor:\n"


def cell(rates, *key):
    """'1 / 2 / 4' warpgroups, as far as they were measured."""
    return " / ".join(f"{rates[(*key, w)]:.0f}" for w in WARPGROUPS if (*key, w) in rates)


def table(lines):
    lines = [lines[0], ["---"] * len(lines[0])] + lines[1:]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def text(rows):
    rates = {(row["kind"], row["dtype"], row["shape"], row["form"], row["sum"], int(row["warpgroups"])):
             float(row["rate"]) for row in rows}
    clocks = sorted({row["clock"] for row in rows} - {""})
    clock = f"SM clock {', '.join(clocks)} MHz" if clocks else "SM clock not fixed"
    parts = []
    for dtype, k in (("bf16", 16), ("e4m3", 32)):
        quotes = dtype == "bf16"
        lines = [["N"] + [column[0] for column in COLUMNS] + ["quoted"] * quotes]
        for n in SIZES:
            cells = [cell(rates, "wgmma", dtype, f"m64n{n}k{k}", form, total) for _, form, total in COLUMNS]
            lines.append([str(n)] + cells + [QUOTED.get(n, "")] * quotes)
        parts += [WGMMA_TEXT.format(instruction=f"WGMMA m64nNk{k}, {dtype},", clock=clock), table(lines)]
    lines = [["mma.sync", "measured", "quoted"]]
    lines += [[what, cell(rates, "mma", "bf16", "m16n8k16", form, "add"), quoted] for form, what, quoted in MMA]
    return "\n" + "\n".join(parts + [MMA_TEXT, table(lines)]) + "\n"


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    results = RESULTS / "wgmma.csv"
    if not results.exists():
        print(f"nothing was measured: {results.relative_to(ROOT)} is not there")
        return NOT_MEASURED
    return update(ROOT / "docs/performance/decode.md", MARKS, text(read(results)), check)


if __name__ == "__main__":
    sys.exit(main())
