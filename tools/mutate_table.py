#!/usr/bin/env python3
"""Writes the mutation scores of docs/simulator.md, between its two marks, from the tables that tools/mutate.py and
tools/mutate_gpu.py made: docs/simulator-mutants.csv and docs/simulator-mutants-h200.csv. The latter has the forward
kernels' mutants only, of its day, and only those are compared.

With --check it writes nothing and sees that the page already says so. Exit codes: 0 done; 1 with --check, it does not
say so; 2 a table has a mutant that tools/mutants has no more. Those that were never run are counted apart.
"""

import argparse
import collections
import csv
import sys

from mutants import MUTANTS
from mutate import ROOT
from mutate_gpu import KERNEL, TOOLS, UNMUTATED

PAGE = ROOT / "docs/simulator.md"
SIMULATOR, GPU = ROOT / "docs/simulator-mutants.csv", ROOT / "docs/simulator-mutants-h200.csv"
BEGIN, END = "<!-- scores: written by tools/mutate_table.py -->\n", "<!-- end of scores -->\n"
NOT_MEASURED = "not measured yet"
OTHERS = {"backward": "The backward", "varlen": "Variable lengths (chunks, slopes, trees, appending, the producer)",
          "mixed": "Sequences of few queries", "prefix": "Shared prefixes",
          "plans": "Plans, and the cost model of decode, in plain C++", "quantize": "Quantising"}


def read(path):
    """{mutant: row}; empty if the file is not there."""
    if not path.exists():
        return {}
    with open(path, newline="") as file:
        return {row["mutant"]: row for row in csv.DictReader(file) if row["kind"] != UNMUTATED}


def of_kernel(kernel):
    return [m for m in MUTANTS if m.kernel == kernel]


def unknown(path, rows, mutants):
    """What a table has too much, one line each."""
    names = [m.name for m in mutants]
    return [f"{path.name} has {name!r}, which is no mutant" for name in rows if name not in names]


def reported(row):
    return any(row[tool].startswith("reports") for tool in TOOLS)


def echoed(row):
    """All that is reported is the CUDA error that a plain run returns too."""
    return reported(row) and all(row[tool].startswith("reports: Program hit ") for tool in TOOLS
                                 if row[tool].startswith("reports"))


def shown(row):
    """A plain run on the chip goes wrong."""
    return row["plain"].startswith(("wrong result", "CUDA error", "hang", "failed"))


def caught(row):
    return row["outcome"] == "caught"


def table(mutants, columns):
    """Mutants of each kind, and in each column (a title, the rows, and what counts) how many count."""
    def line(title, own):
        counted_own = (sum(counts(rows[m.name]) for m in own) if rows else "" for _, rows, counts in columns)
        return [title, len(own), *counted_own]

    head = ["Kind", "Mutants", *(title for title, *_ in columns)]
    lines = [line(kind, [m for m in mutants if m.kind == kind]) for kind in dict.fromkeys(m.kind for m in mutants)]
    lines.append([f"**{cell}**" if cell != "" else "" for cell in line("all", mutants)])
    return "".join("| " + " | ".join(map(str, cells)) + " |\n" for cells in [head, ["---"] * len(head), *lines])


def counted(counts):
    return ", ".join(f"{name} {count}" for name, count in counts.most_common())


def simulator_summary(rows):
    found = [row for row in rows if caught(row)]
    by_result = sum(row["by"] == "wrong result" for row in found)
    return (f"The simulator catches **{len(found)} of {len(rows)}**: {len(found) - by_result} by a named fault, "
            f"{by_result} by a wrong result.\n")


def gpu_summary(rows):
    """The GPU's columns in words, and what they do not tell."""
    if not rows:
        return f"compute-sanitizer and the plain run: {NOT_MEASURED}.\n"
    by_tool = ", ".join(f"{tool} {sum(row[tool].startswith('reports') for row in rows)}" for tool in TOOLS)
    text = (f"compute-sanitizer reports **{sum(map(reported, rows))} of {len(rows)}** ({by_tool}), "
            f"{sum(map(echoed, rows))} of them only by\nrepeating the CUDA error that the program gets.\n"
            f"A plain run shows {sum(map(shown, rows))}"
            f" ({counted(collections.Counter(row['plain'].partition(':')[0] for row in rows))}),\n"
            f"of which compute-sanitizer reports {sum(reported(row) and shown(row) for row in rows)}; "
            f"of the {sum(not shown(row) for row in rows)} others it reports "
            f"{sum(reported(row) and not shown(row) for row in rows)}.\n"
            f"Neither shows {sum(not reported(row) and not shown(row) for row in rows)}.\n")
    silent = [f"{tool} on {count}" for tool in TOOLS if (count := sum(row[tool] == "unusable" for row in rows))]
    if silent:
        text += f"(Unusable, as it reports the unmutated kernels too: {', '.join(silent)}.)\n"
    return text


def others(kernel, title, simulator):
    """The score of a kernel without a table of its own; nothing where none of its mutants was run."""
    rows = [simulator[m.name] for m in of_kernel(kernel) if m.name in simulator]
    return f"- {title}: {simulator_summary(rows)}" if rows else ""


def scores(simulator, gpu):
    """All that stands between the marks."""
    never = collections.Counter(m.kernel for m in MUTANTS if m.name not in simulator)
    decode, known = ([m for m in of_kernel(kernel) if m.name in simulator] for kernel in ("decode", KERNEL))
    forward = [m for m in known if not gpu or m.name in gpu]
    newer = [m for m in known if m not in forward]
    columns = [("Simulator", simulator, caught), ("compute-sanitizer", gpu, reported),
               ("A plain run on the H200", gpu, shown)]
    return ("\nThe forward kernels' mutants:\n\n" + table(forward, columns) + "\n" +
            simulator_summary([simulator[m.name] for m in forward]) + gpu_summary(list(gpu.values())) +
            (f"\n{len(newer)} more of the forward, made since and run on no GPU: " +
             simulator_summary([simulator[m.name] for m in newer]) if newer else "") +
            "\nThe decode kernels' mutants, which no GPU has run (`tools/mutate_gpu.py` is for the forward's):\n\n" +
            table(decode, columns[:1]) + "\n" + simulator_summary([simulator[m.name] for m in decode]) +
            "\n" + "".join(others(kernel, title, simulator) for kernel, title in OTHERS.items()) +
            (f"\nMade since, and not run yet: {never.total()} ({counted(never)}).\n" if never else "") +
            f"\nEvery row: [{SIMULATOR.name}]({SIMULATOR.name}); [{GPU.name}]({GPU.name}), with the first line of each "
            "report.\n\n")


def with_scores(page, text):
    """The page with `text` between its marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        sys.exit(f"{PAGE.name} has no marks {BEGIN.strip()} and {END.strip()}")
    return before + begin + text + end + after


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    simulator, gpu = read(SIMULATOR), read(GPU)
    if wrong := unknown(SIMULATOR, simulator, MUTANTS) + unknown(GPU, gpu, of_kernel(KERNEL)):
        print("\n".join(wrong), file=sys.stderr)
        return 2
    old = PAGE.read_text()
    new = with_scores(old, scores(simulator, gpu))
    if check and new != old:
        print("docs/simulator.md does not say what the tables of mutants say; run tools/mutate_table.py")
        return 1
    if not check:
        PAGE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
