#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times Tandem's forward pass over 8 bits (e4m3) beside FlashAttention-3's, where its module flash_attn_interface is
installed, cuDNN's, where the package nvidia-cudnn-frontend is, and Tandem's own bf16, all taking turns in one process.

Runs the grid of the FlashAttention-3 paper (hidden dimension 2048, 16k tokens, s 512 to 16k, d 64, 128 and 256, full
and causal). Inputs are random normal numbers; Tandem quantises them by blocks with a Hadamard matrix on q and k, and takes
v by columns ("tandem fp8", whose scores fp16 holds; "tandem fp8 whole range", whose it may not hold; "tandem balanced"
with int8 q and k, "tandem accurate" with values of two terms besides) or by keys ("tandem fp8 by key"). "tandem flash"
is FlashAttention-3's function, which brings v into columns each time; it and peers have scales per tensor. All are
replayed from graphs. "quantise" is the time of Tandem's three quantisations of the case, with the bytes that they read
and write in TB/s as its rate, "quantise best scales" the same with the best scale of each token of q, and "copy" that of
PyTorch's copy of q. The column note has each output's RMSE against float64 attention over the 16-bit inputs.

Needs PyTorch with CUDA, libtandem (TANDEM_LIBRARY) and this repository's python/ on PYTHONPATH.
"""

import argparse
import functools
import importlib.util
import sys
import time
from pathlib import Path

import torch

import tandem
from cases import COLUMNS, HEAD_DIMS, SEQLENS, paper_grid
from forward import SEED
from peers import CHECKED_QUERIES, make_inputs, standard_attention
from results import Results, measure, timed_columns
from timing import Telemetry, replayed

E4M3 = torch.float8_e4m3fn
MOST = 448.0  # of e4m3
PEERS = ["tandem fp8", "tandem fp8 whole range", "tandem balanced", "tandem accurate", "tandem fp8 by key", "tandem flash",
         "tandem bf16", "fa3 fp8", "cudnn fp8"]


def quantised_by(q, k, v, of_qk, of_v, best_scale=False):
    """q, k and v in 8 bits by these options of tandem.quantize, and the scales that attention takes. best_scale: the best
    one of each token of q."""
    of_q = {**of_qk, "block": 1, "best_scale": True} if best_scale else of_qk
    tensors, scales = zip(*(tandem.quantize(x, **options) for x, options in ((q, of_q), (k, of_qk), (v, of_v))))
    return tensors, dict(zip(("q_descale", "k_descale", "v_descale"), scales))


def quantised(q, k, v, by_column, *finer):
    """finer: dtype of q and k, terms of v, whether e4m3 has its whole range, whether each token of q has its best scale."""
    dtype, terms, whole_range, best_scale = (*finer, *("float8_e4m3fn", 1, False, False)[len(finer):])
    amplitude = tandem.score_amplitude(q.shape[-1]) if by_column and dtype == "float8_e4m3fn" and not whole_range else 0.0
    tensors, scales = quantised_by(q, k, v, {"hadamard": 1, "dtype": dtype, "amplitude": amplitude},
                                   {"by_column": by_column, "terms": terms}, best_scale)
    return tensors, {**scales, "qk_amplitude": amplitude}


def tandem_call(by_column, *finer):
    """finer: as of quantised."""
    def make(case, q, k, v):
        tensors, scales = quantised(q, k, v, by_column, *finer)
        out = torch.full_like(q, float("nan"))
        return lambda: tandem.forward(*tensors, causal=case.causal, out=out, values_by_column=by_column, **scales)
    return make


def bf16_call(case, q, k, v):
    out = torch.full_like(q, float("nan"))
    return lambda: tandem.forward(q, k, v, causal=case.causal, out=out)


def per_tensor(x):
    scale = x.float().abs().max() / MOST
    return (x.float() / scale).to(E4M3), scale


def flash_call(function, case, q, k, v):
    """By the arguments of FlashAttention-3's function, v by key."""
    tensors, scales = zip(*(per_tensor(x) for x in (q, k, v)))
    descales = [scale.expand(case.b, case.hk).contiguous() for scale in scales]

    def call():
        out = function(*tensors, causal=case.causal, q_descale=descales[0], k_descale=descales[1],
                              v_descale=descales[2])
        return out[0] if isinstance(out, tuple) else out
    return call


def fa3_call(case, q, k, v):
    from flash_attn_interface import flash_attn_func
    return flash_call(flash_attn_func, case, q, k, v)


def tandem_flash_call(case, q, k, v):
    from tandem.flash_attn_interface import flash_attn_func
    return flash_call(flash_attn_func, case, q, k, v)


def cudnn_call(case, q, k, v):
    """cuDNN's sdpa_fp8; probabilities are scaled to e4m3's range. On Hopper its output is of 8 bits too."""
    import cudnn
    scaled = dict(zip("qkv", (per_tensor(x) for x in (q, k, v))))
    numbers = {f"descale_{name}": scale for name, (_, scale) in scaled.items()}
    numbers |= {"descale_s": torch.tensor(1 / MOST), "scale_s": torch.tensor(MOST), "scale_o": torch.tensor(1.0)}
    numbers = {name: x.to("cuda").float().reshape(1, 1, 1, 1) for name, x in numbers.items()}
    handle = cudnn.create_handle()
    graph = cudnn.pygraph(io_data_type=cudnn.data_type.FP8_E4M3, intermediate_data_type=cudnn.data_type.FLOAT,
                          compute_data_type=cudnn.data_type.FLOAT, handle=handle)

    def described(name, x, dtype):
        return graph.tensor(name=name, dim=list(x.shape), stride=list(x.stride()), data_type=dtype)
    inputs = {name: x.transpose(1, 2) for name, (x, _) in scaled.items()}
    described_inputs = {name: described(name, x, cudnn.data_type.FP8_E4M3) for name, x in inputs.items()}
    described_numbers = {name: described(name, x, cudnn.data_type.FLOAT) for name, x in numbers.items()}
    out = torch.empty(q.shape, dtype=E4M3, device="cuda")
    o, _, amax_s, amax_o = graph.sdpa_fp8(**described_inputs, **described_numbers, attn_scale=case.d ** -0.5,
                                          use_causal_mask=case.causal, generate_stats=False)
    view, amax = out.transpose(1, 2), torch.zeros(2, 1, 1, 1, 1, device="cuda")
    o.set_output(True).set_dim(list(view.shape)).set_stride(list(view.stride())).set_data_type(cudnn.data_type.FP8_E4M3)
    for x in (amax_s, amax_o):
        x.set_output(True).set_dim([1, 1, 1, 1]).set_stride([1, 1, 1, 1]).set_data_type(cudnn.data_type.FLOAT)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
    graph.check_support()
    graph.build_plans()
    workspace = torch.empty(max(graph.get_workspace_size(), 1), dtype=torch.uint8, device="cuda")
    pack = {described_inputs[name]: x for name, x in inputs.items()}
    pack |= {described_numbers[name]: x for name, x in numbers.items()}
    pack |= {o: view, amax_s: amax[0], amax_o: amax[1]}

    def call():
        cudnn.set_stream(handle=handle, stream=torch.cuda.current_stream().cuda_stream)
        graph.execute(pack, workspace, handle=handle)
        return out
    return call


CALLS = dict(zip(PEERS, (tandem_call(True), tandem_call(True, "float8_e4m3fn", 1, True),
                         tandem_call(True, "int8"), tandem_call(True, "int8", 2), tandem_call(False),
                         tandem_flash_call, bf16_call, fa3_call, cudnn_call)))
MODULES = {"fa3 fp8": "flash_attn_interface", "cudnn fp8": "cudnn"}
INSTALLED = [peer for peer in PEERS if peer not in MODULES or importlib.util.find_spec(MODULES[peer])]


def rmse(case, q, k, v, out):
    """Of sampled queries of all heads of an entry."""
    rows = torch.randint(case.s, (CHECKED_QUERIES,), generator=torch.Generator().manual_seed(SEED)).cuda()
    visible = torch.arange(case.sk, device="cuda")[None, :] <= (rows[:, None] if case.causal else case.sk)
    own = q[0, rows].transpose(0, 1), k[0].transpose(0, 1), v[0].transpose(0, 1)
    exact = standard_attention(*own, visible, case.d ** -0.5, dtype=torch.float64, round_to=torch.float64)
    return (out[0, rows].transpose(0, 1).double() - exact).square().mean().sqrt().item()


def run_case(case, arguments, telemetry, results):
    inputs = make_inputs(case, SEED)
    columns = {**case.columns(), "kind": "fp8"}
    calls, notes = {}, {}
    for peer in arguments.peers:
        try:
            call = CALLS[peer](case, *inputs)
            notes[peer] = f"rmse {rmse(case, *inputs, call()):.2e}"
            calls[peer] = replayed(call)
        except Exception as error:  # whatever keeps a peer from running is a row, not the end
            note = f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
            print(f"{case}: {peer}: {note}", file=sys.stderr)
            results.add({**columns, "peer": peer, "note": note})
    times, meanwhile = measure(calls, arguments.seconds_per_case, telemetry)
    for peer in calls:
        dtype = {"tandem bf16": "bf16", "tandem balanced": "int8", "tandem accurate": "int8"}.get(peer, "e4m3")
        results.add({**columns, "dtype": dtype, "peer": peer, "note": notes[peer],
                     **timed_columns(times[peer], case.tera_rate), **meanwhile})


def run_quantiser(case, arguments, telemetry, results):
    q, k, v = make_inputs(case, SEED)
    copy = torch.empty_like(q)
    elements = sum(x.numel() for x in (q, k, v))
    moved = {"copy": 4 * q.numel()}  # bytes
    calls = {"copy": lambda: copy.copy_(q)}
    for peer, *finer in (("quantise",), ("quantise best scales", "float8_e4m3fn", 1, False, True),
                         ("quantise balanced", "int8"), ("quantise accurate", "int8", 2)):
        moved[peer] = 3 * elements + (v.numel() if peer == "quantise accurate" else 0)
        call = functools.partial(quantised, q, k, v, True, *finer)
        call()
        calls[peer] = replayed(call)
    times, meanwhile = measure(calls, arguments.seconds_per_case, telemetry)
    for peer in calls:
        results.add({**case.columns(), "kind": "quantise", "peer": peer, **meanwhile,
                     **timed_columns(times[peer], lambda ms: moved[peer] / ms * 1e-9)})


def table(rows):
    lines, cases = [], {}
    for row in rows:
        if row["ms"] and row["kind"] == "fp8":
            cases.setdefault((row["d"], row["causal"], row["sq"]), {})[row["peer"]] = row
    for (d, causal, s), own in cases.items():
        best = max((float(own[peer]["rate"]) for peer in MODULES if peer in own), default=float("nan"))
        rates = "  ".join(f"{peer} {own[peer]['rate']:>6}" for peer in PEERS if peer in own)
        ratio = float(own["tandem fp8"]["rate"]) / best if "tandem fp8" in own else float("nan")
        lines.append(f"d{d} {'causal' if causal else 'full  '} s{s:<6} {rates}  /best {ratio:.3f}")
    lines += [f"{row['peer']} d{row['d']} s{row['sq']}: {row['rate']} TB/s" for row in rows if row["kind"] == "quantise"]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="CSV file to write")
    parser.add_argument("--d", nargs="+", type=int, default=list(HEAD_DIMS))
    parser.add_argument("--seqlens", nargs="+", type=int, default=list(SEQLENS))
    parser.add_argument("--masks", nargs="+", choices=["full", "causal"], default=["full", "causal"])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=INSTALLED, help="default: those that are installed")
    parser.add_argument("--seconds-per-case", type=float, default=1.5, help="GPU time of a case (default: 1.5)")
    parser.add_argument("--budget-seconds", type=float, default=240)
    arguments = parser.parse_args()
    begin = time.monotonic()
    telemetry, results = Telemetry(), Results(arguments.output, COLUMNS)
    grid = paper_grid("bf16", arguments.d, arguments.seqlens, [mask == "causal" for mask in arguments.masks])
    grid.sort(key=lambda case: -case.s)
    for case in grid:
        if time.monotonic() - begin < arguments.budget_seconds:
            run_case(case, arguments, telemetry, results)
            torch.cuda.empty_cache()
    for case in (case for case in grid if case.s in (512, 16384) and not case.causal):
        run_quantiser(case, arguments, telemetry, results)
    telemetry.close()
    print(table(results.rows))


if __name__ == "__main__":
    main()
