# SPDX-License-Identifier: Apache-2.0
"""Timing on the GPU: calls that take turns within one process, and the clock and power meanwhile."""

import math
import random
import statistics
import sys
import threading
import time

import torch

SAMPLE_MS = 0.5  # a sample is at least this long, so that recording its two events does not show
WARM_UP_SECONDS = 0.1
MIN_ROUNDS, MAX_ROUNDS = 8, 100
MAX_CLOCK_HZ = 1.98e9


def replayed(call):
    """The call's graph: the host takes longer for short launches than the card."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return lambda: (graph.replay(), call)  # and all that the graph's kernels point to


def _sample(call, calls, pause=0):
    """Enqueues `calls` calls between two events, which it returns, behind a pause of so many clock cycles."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if pause:
        torch.cuda._sleep(pause)
    start.record()
    for _ in range(calls):
        call()
    end.record()
    return start, end


def _milliseconds(events, calls):
    return events[0].elapsed_time(events[1]) / calls


def _estimate(call):
    call()
    events = _sample(call, 3)
    torch.cuda.synchronize()
    return _milliseconds(events, 3)


def _pause_for_host(call, calls):
    """Clock cycles in which the host enqueues so many calls, and twice as many more: its times vary."""
    begin = time.perf_counter()
    for _ in range(3):
        call()
    seconds = (time.perf_counter() - begin) / 3
    torch.cuda.synchronize()
    return int(3 * MAX_CLOCK_HZ * seconds * calls)


def interleave(calls, seconds, pause_each=False):
    """Times {name: call} in turns for about `seconds`; returns {name: [milliseconds of one call]}.

    Every round has an order of its own: a call reads up to 4 % slower behind one neighbour than behind another.
    Everything is enqueued behind a pause on the GPU: the host stays ahead, and its overhead is not measured. pause_each:
    behind one for each sample, where the host takes longer than the GPU.
    """
    estimates = {name: _estimate(call) for name, call in calls.items()}
    per_sample = {name: math.ceil(SAMPLE_MS / ms) for name, ms in estimates.items()}
    round_seconds = sum(estimates[name] * per_sample[name] for name in calls) * 1e-3
    warm_up = math.ceil(WARM_UP_SECONDS / round_seconds)
    rounds = min(max(round(seconds / round_seconds), MIN_ROUNDS), MAX_ROUNDS)

    names = list(calls)
    pauses = {name: _pause_for_host(calls[name], per_sample[name]) if pause_each else 0 for name in names}
    events = {name: [] for name in names}
    order = random.Random(0)
    torch.cuda._sleep(5_000_000)  # clock cycles
    for i in range(-warm_up, rounds):
        for name in order.sample(names, len(names)):
            sample = _sample(calls[name], per_sample[name], pauses[name])
            if i >= 0:
                events[name].append(sample)
    torch.cuda.synchronize()
    return {name: [_milliseconds(pair, per_sample[name]) for pair in events[name]] for name in names}


class Telemetry:
    """Samples the SM clock (MHz) and the power (W) of PyTorch's GPU in the background, if NVML's package is there."""

    def __init__(self, interval=0.02):
        self._samples = []
        self._done = threading.Event()
        self._thread = None
        try:
            import pynvml
            pynvml.nvmlInit()
            # Not by index: NVML counts GPUs that CUDA_VISIBLE_DEVICES hides.
            device = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
        except Exception as error:  # the package or the driver's library may be absent; timing works without them
            print(f"no clocks and no power: {error}", file=sys.stderr)
            return
        self._thread = threading.Thread(target=self._run, args=(pynvml, device, interval), daemon=True)
        self._thread.start()

    def _run(self, nvml, device, interval):
        while not self._done.wait(interval):
            clock = nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM)
            field = nvml.nvmlDeviceGetFieldValues(device, [nvml.NVML_FI_DEV_POWER_INSTANT])[0]
            self._samples.append((time.monotonic(), clock, field.value.uiVal / 1000))

    def between(self, start, end):
        """Median clock and power between two time.monotonic() times, as columns; empty if there were no samples."""
        chosen = [sample for sample in self._samples if start <= sample[0] <= end]
        if not chosen:
            return {"clock_mhz": "", "power_w": ""}
        return {"clock_mhz": round(statistics.median(sample[1] for sample in chosen)),
                "power_w": round(statistics.median(sample[2] for sample in chosen))}

    def close(self):
        self._done.set()
        if self._thread:
            self._thread.join()
