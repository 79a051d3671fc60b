# SPDX-License-Identifier: Apache-2.0
"""The rows that a run of a benchmark writes, and the measurement that fills them."""

import csv
import os
import statistics
import time

from timing import interleave


class Results:
    """The rows of this run, in memory and in a CSV file that is complete after every row."""

    def __init__(self, path, columns):
        self.rows = []
        self._columns = columns
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("w", newline="")
        self._writer = csv.DictWriter(self._file, columns, lineterminator="\n")
        self._writer.writeheader()

    def add(self, columns):
        row = {**dict.fromkeys(self._columns, ""), "commit": os.environ.get("TANDEM_COMMIT", ""), **columns}
        self.rows.append(row)
        self._writer.writerow(row)
        self._file.flush()


def measure(calls, seconds, telemetry):
    """Times of each call, and the clock and power columns of the whole measurement."""
    start = time.monotonic()
    times = interleave(calls, seconds)
    return times, telemetry.between(start, time.monotonic())


def timed_columns(times, rate):
    """times: milliseconds of one call; rate: milliseconds -> TFLOP/s."""
    median = statistics.median(times)
    return {"ms": f"{median:.4f}", "ms_min": f"{min(times):.4f}", "rate": f"{rate(median):.1f}"}
