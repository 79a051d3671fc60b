# SPDX-License-Identifier: Apache-2.0
"""The transformer in NumPy, with its gradients written out. Attention is passed in: Tandem's, or a plain one.

An attention is a function (q, k, v) -> (out, gradients), all b, s, h, d, where gradients(dout) is (dq, dk, dv).
"""

import numpy as np

import tandem
from model import initial_parameters

EPSILON = 1e-5


def tandem_attention(q, k, v):
    out, lse = tandem.forward(q, k, v, causal=True, return_lse=True)
    return out, lambda dout: tandem.backward(q, k, v, out, lse, dout, causal=True)


def plain_attention(q, k, v):
    """The definition in float32, all scores at once."""
    scale = np.float32(q.shape[-1] ** -0.5)
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = scale * (q @ k.swapaxes(2, 3))
    scores[..., np.triu(np.ones(scores.shape[-2:], bool), 1)] = -np.inf
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)

    def gradients(dout):
        dout = dout.transpose(0, 2, 1, 3)
        dp = dout @ v.swapaxes(2, 3)
        ds = scale * p * (dp - (p * dp).sum(axis=-1, keepdims=True))
        return [x.transpose(0, 2, 1, 3) for x in (ds @ k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dout)]
    return (p @ v).transpose(0, 2, 1, 3), gradients


ATTENTIONS = {"tandem": tandem_attention, "plain": plain_attention}


def _rows(x):
    return x.reshape(-1, x.shape[-1])


class Model:
    """Layers push what their gradients need onto a stack of functions, which `gradients` runs from the top."""

    def __init__(self, shape, attention, seed):
        self.shape, self.attention = shape, attention
        self.parameters = initial_parameters(shape, seed)

    def _linear(self, x, name):
        weight = self.parameters[name]

        def gradient(dy):
            self.gradients[name] = _rows(x).T @ _rows(dy)
            return dy @ weight.T
        return x @ weight, gradient

    def _norm(self, x, name):
        """Root-mean-square normalisation."""
        gain = self.parameters[name]
        inverse = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(EPSILON))
        normal = x * inverse

        def gradient(dy):
            self.gradients[name] = _rows(dy * normal).sum(axis=0)
            dn = dy * gain
            return inverse * (dn - normal * (dn * normal).mean(axis=-1, keepdims=True))
        return normal * gain, gradient

    def _attend(self, x, i):
        b, s, width = x.shape
        normal, norm_gradient = self._norm(x, f"{i}.norm1")
        qkv, qkv_gradient = self._linear(normal, f"{i}.qkv")
        heads = qkv.reshape(b, s, 3, self.shape.heads, self.shape.head_dim)
        out, attention_gradient = self.attention(heads[:, :, 0], heads[:, :, 1], heads[:, :, 2])
        y, projection_gradient = self._linear(out.reshape(b, s, width), f"{i}.projection")

        def gradient(dy):
            dout = projection_gradient(dy).reshape(out.shape)
            dheads = np.stack(attention_gradient(dout), axis=2)
            return dy + norm_gradient(qkv_gradient(dheads.reshape(qkv.shape)))
        return x + y, gradient

    def _think(self, x, i):
        normal, norm_gradient = self._norm(x, f"{i}.norm2")
        up, up_gradient = self._linear(normal, f"{i}.up")
        y, down_gradient = self._linear(np.maximum(up, 0), f"{i}.down")
        return x + y, lambda dy: dy + norm_gradient(up_gradient(down_gradient(dy) * (up > 0)))

    def loss_and_gradients(self, tokens):
        """The mean loss of predicting tokens[:, 1:], b x (s + 1), in nats a byte, and {name: gradient}."""
        inputs, targets = tokens[:, :-1], tokens[:, 1:]
        self.gradients, stack = {}, []
        x = self.parameters["embedding"][inputs] + self.parameters["positions"][:inputs.shape[1]]
        steps = [step for i in range(self.shape.layers)
                 for step in (lambda x, i=i: self._attend(x, i), lambda x, i=i: self._think(x, i))]
        for step in [*steps, lambda x: self._norm(x, "norm"), lambda x: self._linear(x, "head")]:
            x, gradient = step(x)
            stack.append(gradient)
        x -= x.max(axis=-1, keepdims=True)
        log_p = x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
        loss = -np.take_along_axis(log_p, targets[..., None], -1).mean()

        dx = np.exp(log_p)
        np.put_along_axis(dx, targets[..., None], np.take_along_axis(dx, targets[..., None], -1) - 1, -1)
        dx /= targets.size
        while stack:
            dx = stack.pop()(dx)
        self.gradients["embedding"] = np.zeros_like(self.parameters["embedding"])
        np.add.at(self.gradients["embedding"], inputs, dx)
        self.gradients["positions"] = np.zeros_like(self.parameters["positions"])
        self.gradients["positions"][:inputs.shape[1]] = dx.sum(axis=0)
        return float(loss), self.gradients


class Adam:
    def __init__(self, model, rate):
        self.model, self.rate, self.step_number = model, rate, 0
        self.first, self.second = ({name: np.zeros_like(x) for name, x in model.parameters.items()} for _ in "mv")

    def step(self, tokens):
        """One step; returns the loss before it."""
        loss, gradients = self.model.loss_and_gradients(tokens)
        self.step_number += 1
        rate = self.rate * np.sqrt(1 - 0.99**self.step_number) / (1 - 0.9**self.step_number)
        for name, gradient in gradients.items():
            m, v = self.first[name], self.second[name]
            m += 0.1 * (gradient - m)
            v += 0.01 * (gradient * gradient - v)
            self.model.parameters[name] -= np.float32(rate) * m / (np.sqrt(v) + np.float32(1e-8))
        return loss


def trainer(shape, attention, seed, rate):
    """A function that takes a batch, makes a step and returns the loss before it."""
    return Adam(Model(shape, ATTENTIONS[attention], seed), rate).step
