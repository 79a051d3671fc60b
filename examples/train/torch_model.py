# SPDX-License-Identifier: Apache-2.0
"""The transformer in PyTorch, on the GPU where there is one, in bfloat16 there. Attention is Tandem's or PyTorch's own."""

import torch
import torch.nn.functional as functional

from model import initial_parameters
from tandem.torch import attention as tandem_attention

EPSILON = 1e-5


def _tandem(q, k, v):
    return tandem_attention(q, k, v, causal=True)


def _own(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


ATTENTIONS = {"tandem": _tandem, "plain": _own}


class Model(torch.nn.Module):
    def __init__(self, shape, attention, seed):
        super().__init__()
        self.shape, self.attention = shape, attention
        self.weights = torch.nn.ParameterDict({name.replace(".", "_"): torch.nn.Parameter(torch.from_numpy(x))
                                               for name, x in initial_parameters(shape, seed).items()})

    def _norm(self, x, name):
        return functional.rms_norm(x, (self.shape.width,), self.weights[name], EPSILON)

    def _attend(self, x, i):
        heads = (self._norm(x, f"{i}_norm1") @ self.weights[f"{i}_qkv"]).unflatten(-1, (3, self.shape.heads, -1))
        return x + self.attention(*heads.unbind(2)).flatten(2) @ self.weights[f"{i}_projection"]

    def _think(self, x, i):
        hidden = functional.relu(self._norm(x, f"{i}_norm2") @ self.weights[f"{i}_up"])
        return x + hidden @ self.weights[f"{i}_down"]

    def forward(self, tokens):
        """The mean loss of predicting tokens[:, 1:], b x (s + 1), in nats a byte."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        x = self.weights["embedding"][inputs] + self.weights["positions"][:inputs.shape[1]]
        for i in range(self.shape.layers):
            x = self._think(self._attend(x, i), i)
        logits = self._norm(x, "norm") @ self.weights["head"]
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def trainer(shape, attention, seed, rate):
    """A function that takes a batch, makes a step and returns the loss before it."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = Model(shape, ATTENTIONS[attention], seed).to(device)
    adam = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.9, 0.99))

    def step(tokens):
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = model(torch.from_numpy(tokens).to(device))
        adam.zero_grad()
        loss.backward()
        adam.step()
        return loss.item()
    return step
