#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the step times that engine wrote with --csv: one call beside two, over steps, and what a step had. Needs Matplotlib."""

import argparse
import csv
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

COLOURS = {"one_call_us": "#D55E00", "two_calls_us": "#0072B2", "prompt_tokens": "#999999", "decoded_tokens": "#009E73"}
NAMES = {"one_call_us": "one call", "two_calls_us": "prompts, then decoding", "prompt_tokens": "prompts' tokens",
         "decoded_tokens": "decoded and drafted tokens"}


def read_steps(path):
    """{column: numbers}, and the backend."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if not rows:
        raise SystemExit(f"{path} has no steps")
    return {name: [float(row[name]) for row in rows] for name in ("step", *NAMES)}, rows[0]["backend"]


def draw(steps, backend, output):
    """Times above, tokens below."""
    plt.rcParams.update({"svg.hashsalt": "tandem", "font.size": 9})
    figure, (times, tokens) = plt.subplots(2, 1, figsize=(8, 5), sharex=True, height_ratios=(2, 1), layout="constrained")
    for name in ("one_call_us", "two_calls_us"):
        times.plot(steps["step"], steps[name], color=COLOURS[name], label=NAMES[name])
    tokens.stackplot(steps["step"], steps["prompt_tokens"], steps["decoded_tokens"], labels=list(NAMES.values())[2:],
                     colors=[COLOURS["prompt_tokens"], COLOURS["decoded_tokens"]])
    times.set_title(f"Steps of examples/engine, backend {backend}", fontsize=10)
    times.set_ylabel("microseconds")
    times.set_ylim(bottom=0)
    tokens.set_ylabel("tokens")
    tokens.set_xlabel("step")
    for axes in (times, tokens):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    figure.savefig(output, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", type=Path, help="CSV file of engine --csv")
    parser.add_argument("-o", "--output", type=Path, default=Path("engine.svg"))
    arguments = parser.parse_args()
    draw(*read_steps(arguments.steps), arguments.output)


if __name__ == "__main__":
    main()
