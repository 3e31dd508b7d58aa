"""What backends share whose rule an optional library computes as well, chosen by ``kernel``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from torch import Tensor

from attnzoo.capabilities import Capabilities, Options, Request
from attnzoo.contract import Attention, ScoreBias
from attnzoo.kernels import fla, flash_attn, flash_attn_3, flex
from attnzoo.masks import Mask

LIBRARIES: dict[str, Any] = {"flex": flex, "fla": fla, "flash_attn": flash_attn, "flash_attn_3": flash_attn_3}
"""By the name of the kernel. Each gives ``refusals(request)`` and ``declared(capabilities, compiled)``."""


class WithLibraries(Attention):
    """A rule with a kernel of its own, which ``auto`` is, and others from libraries, held to the same definition.

    ``kernel`` names what computes a pass over several tokens. A single token that is decoded reads the cache as it lies,
    whatever the kernel, unless the library has a call for it (fla, flash_attn, flash_attn_3); ``attn.kernel`` says what ran.
    """

    @classmethod
    def declared(cls, options: Options, device: str = "cpu") -> Capabilities:
        library, own = cls._library(options), cls.own(options)
        if library is None:
            return own
        # what a library launches is left whole by torch.compile at best, and was not tried on a CPU
        return replace(library.declared(own, device == "cuda"), compiles=False)

    @classmethod
    def own(cls, options: Options) -> Capabilities:
        """``capabilities`` with these options where no library computes them; a class whose costs depend on them overrides it."""
        return cls.capabilities

    @classmethod
    def refusals(cls, request: Request) -> Iterable[str]:
        library = cls._library(request.options)
        return () if library is None else library.refusals(request)

    @classmethod
    def _library(cls, options: Options) -> Any:
        return LIBRARIES.get(options.kernel) if options.kernel in cls.kernels else None

    def by_flex(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Mask,
        bias: ScoreBias | None,
        *,
        pattern: flex.Pattern | None = None,
        change: Callable[[Tensor], Tensor] | None = None,
        key_positions: Tensor | None = None,
        lse: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Softmax over the mask and the own pattern by FlexAttention: output and, if ``lse``, log Σ exp of each row."""
        rule = (type(self), self.options)
        if pattern is None and type(self).pattern is not Attention.pattern:
            pattern = flex.Pattern(rule, self.pattern)
        out, total, kernel = flex.flex_softmax(
            q, k, v, mask, bias, scale=self.scale, compiled=q.device.type == "cuda", pattern=pattern, change=change,
            rule=rule, key_positions=key_positions, lse=lse,
        )  # fmt: skip
        self.ran(kernel)
        return out, total

    def by_flash_attn(self, q, k, v, mask: Mask, bias: ScoreBias | None, **how) -> Tensor:
        """The same by flash-attn or FlashAttention-3, which know a window and a soft cap."""
        how |= {"scale": self.scale, "dropout": self.dropout_now, "name": self.options.kernel}
        out, kernel = flash_attn.flash_softmax(q, k, v, mask, bias, **how)
        self.ran(kernel)
        return out
