"""What the validation split is scored by: one file a metric, or a file for those that follow from the same sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnzoo.lazy import at_first_use

if TYPE_CHECKING:
    from attnzoo.metrics.base import Metric
    from attnzoo.metrics.build import build_metrics

_HOME = {"Metric": "base", "build_metrics": "build"}
__all__ = ["Metric", "build_metrics"]
__getattr__ = at_first_use(__name__, _HOME)
