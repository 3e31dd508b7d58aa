"""Runs fla's chunk kernels on CPU tensors in Triton's interpreter, forward and backward, against our scan. A test starts it."""

from __future__ import annotations

import builtins
import sys
import warnings

import torch
from torch.nn import functional as F
from triton.runtime.autotuner import Autotuner

from attnzoo.kernels import fla
from attnzoo.kernels.scan import scan

warnings.filterwarnings("ignore")
Autotuner._bench = lambda self, *_, **__: [1.0] * 3  # nothing to time: any configuration will do


class Counter(int):
    """A loop's number, which compiled is a tensor."""

    def to(self, *_):
        return self


def counted(*bounds):
    return (Counter(n) for n in builtins.range(*bounds))


def main() -> None:
    for decay, delta in ((0, False), (1, False), (16, False), (0, True), (1, True), (16, True)):
        dtype = torch.float16 if (decay, delta) == (0, True) else torch.float32  # this one takes 16 bits only
        torch.manual_seed(0)
        q, k, v = torch.randn(2, 2, 40, 16) * 0.3, torch.randn(2, 1, 40, 16), torch.randn(2, 1, 40, 9)
        q, k = (F.normalize(q, dim=-1), F.normalize(k, dim=-1)) if delta else (q, k)
        gates = {"state": torch.randn(2, 1, 16, 9)}
        gates |= {"decay": F.logsigmoid(torch.randn(2, 1, 40, decay) + 2)} if decay else {}
        gates |= {"beta": torch.rand(2, 1, 40)} if delta else {}
        starts = torch.zeros(2, 40, dtype=torch.bool)
        starts[0, 13] = starts[0, 20] = starts[1, 0] = True
        given = {"q": q, "k": k, "v": v, **gates}
        given = {name: t.to(dtype).float() for name, t in given.items()}
        ours = {name: t.double().requires_grad_() for name, t in given.items()}
        theirs = {name: t.clone().requires_grad_() for name, t in given.items()}
        fla.operation(decay, delta, False)
        for name, module in list(sys.modules.items()):
            if name.startswith("fla.ops") and hasattr(module, "tl"):
                module.range = counted
        right, last = scan(**ours, chunk=16, starts=starts)
        found, state, kernel = fla.scan(**theirs, dtype=dtype, starts=starts)
        weights = torch.randn_like(right), torch.randn_like(last)
        exact = torch.autograd.grad((right, last), list(ours.values()), weights)
        grads = torch.autograd.grad((found, state), list(theirs.values()), [w.float() for w in weights])
        pairs = [(found, right), (state, last), *zip(grads, exact, strict=True)]
        error = max(((a - b).abs().max() / b.abs().max().clamp(min=1e-9)).item() for a, b in pairs)
        # sums over 40 tokens of 16 channels, a few of them chained
        allowed = 40 * torch.finfo(dtype).eps
        assert error < allowed, f"{kernel}: {error} > {allowed}"
        print(f"{kernel} agrees: {error:.1e} of the largest value, {dtype}")


if __name__ == "__main__":
    main()
