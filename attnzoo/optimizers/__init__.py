"""What steps the parameters, one file each. Loaded at first use."""

from __future__ import annotations

from attnzoo.lazy import at_first_use

_HOME = {"Optimizer": "base", "ParameterGroups": "base", "parameter_groups": "base"}

__all__ = sorted(_HOME)
__getattr__ = at_first_use(__name__, _HOME)
