#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small Llama of Transformers from the same weights on the same data with Tandem's attention and with PyTorch's,
in bfloat16 autocast, and with eager attention in float32: 200 steps, the losses side by side.

    bench/llama.py CSV [--steps N]

The data: tokens that mostly follow from the token before by a table, and whose second half repeats the first, so that
there is something to learn for attention. Needs PyTorch, Transformers, and tandem on the path.
"""

import argparse
import contextlib
import csv
import time

import torch
import transformers

from tandem.integrations import transformers as tandem_transformers

LENGTH, BATCH, VOCABULARY, WARM_UP = 256, 8, 256, 20
RUNS = {"tandem": "tandem", "sdpa": "sdpa", "eager": "eager", "eager float32": "eager"}


def data(steps, device):
    """steps batches of tokens."""
    generator = torch.Generator().manual_seed(1)
    follows = torch.randint(0, VOCABULARY, (VOCABULARY,), generator=generator)
    x = torch.randint(0, VOCABULARY, (steps, BATCH, LENGTH), generator=generator)
    for i in range(1, LENGTH):
        if i % 8:
            x[..., i] = follows[x[..., i - 1]]
    x[..., LENGTH // 2:] = x[..., :LENGTH // 2]
    return x.to(device)


def train(attention, batches, precision):
    """The loss of each step."""
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
                                      num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                                      max_position_embeddings=2 * LENGTH)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
    model = model.to(batches.device).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / WARM_UP))
    losses = []
    for x in batches:
        with precision():
            loss = model(x, labels=x).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        optimiser.zero_grad()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("csv")
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args()
    tandem_transformers.register()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    batches, curves = data(arguments.steps, device), {}
    for name, attention in RUNS.items():
        start = time.monotonic()
        half = lambda: torch.autocast(device, dtype=torch.bfloat16)
        curves[name] = train(attention, batches, contextlib.nullcontext if name.endswith("float32") else half)
        print(f"{name}: {curves[name][0]:.4f} -> {curves[name][-1]:.4f} in {time.monotonic() - start:.1f} s", flush=True)
    with open(arguments.csv, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", *curves])
        writer.writerows([i + 1, *(f"{loss:.5f}" for loss in row)] for i, row in enumerate(zip(*curves.values())))
    for name in ("tandem", "sdpa", "eager"):
        apart = [abs(a - b) for a, b in zip(curves[name], curves["eager float32"])]
        print(f"{name}: at most {max(apart):.4f} from float32, {sum(apart) / len(apart):.4f} on average")


if __name__ == "__main__":
    main()
