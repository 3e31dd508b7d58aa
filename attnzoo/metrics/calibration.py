"""Whether the model is as often right as it is sure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from attnzoo.components import register
from attnzoo.errors import RequestError
from attnzoo.metrics.base import Metric
from attnzoo.options import Options
from attnzoo.shapes import IGNORE

if TYPE_CHECKING:
    from torch import Tensor

    from attnzoo.tasks import Batch


@dataclass(frozen=True)
class CalibrationOptions(Options):
    """calibration_bins: bins of equal width that confidences from 0 to 1 are sorted into."""

    calibration_bins: int = 15

    def __post_init__(self) -> None:
        if self.calibration_bins < 1:
            raise RequestError(f"calibration_bins={self.calibration_bins}: must be at least 1")


@register("calibration")
class Calibration(Metric):
    """Expected calibration error: the scored tokens are sorted into bins by the probability of the likeliest token; mean over
    the tokens of the distance between a bin's mean probability and its share of right answers.

    0 is perfectly calibrated. A confident model that is wrong has up to 1.
    """

    source = "Guo et al., On Calibration of Modern Neural Networks, ICML 2017, arXiv:1706.04599"
    Options = CalibrationOptions
    options: CalibrationOptions
    title, better = "calib. err.", "low"

    def update(self, logits: Tensor, batch: Batch) -> None:
        import torch

        scored = batch.targets != IGNORE
        sure, likeliest = logits[scored].float().softmax(-1).max(-1)
        right, n_bins = (likeliest == batch.targets[scored]).double(), self.options.calibration_bins
        which = (sure * n_bins).long().clamp(max=n_bins - 1)
        zeros = torch.zeros(n_bins, dtype=torch.float64, device=logits.device)
        excess = zeros.index_add(0, which, sure.double() - right)
        self.add(excess=excess, scored=scored.sum())

    def value(self) -> float:
        return float(self.sums["excess"].abs().sum()) / max(self.total("scored"), 1) if self.sums else 0.0
