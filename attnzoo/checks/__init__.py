"""The conformance suite: is this attention right, causal, differentiable, and the same in training and decoding?

`check` holds an attention to it, `leak_test` holds any language model to causality; `attnzoo.checks.pytest` brings the suite
into the test run of a plug-in.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "check": "suite",
    "all_checks": "suite",
    "CheckReport": "report",
    "Result": "report",
    "Subject": "subject",
    "leak_test": "leak",
    "LeakReport": "leak",
}

__all__ = ["CheckReport", "LeakReport", "Result", "Subject", "all_checks", "check", "leak_test"]

if TYPE_CHECKING:
    from attnzoo.checks.leak import LeakReport, leak_test
    from attnzoo.checks.report import CheckReport, Result
    from attnzoo.checks.subject import Subject
    from attnzoo.checks.suite import all_checks, check


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'attnzoo.checks' has no attribute {name!r}")
    return getattr(importlib.import_module(f"attnzoo.checks.{_HOME[name]}"), name)
