"""attnzoo: what does this attention cost, what does it buy, and is it correct?

Importing the package imports nothing heavy; each public name is loaded at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attnzoo.lazy import at_first_use

__version__ = "0.1.0"

_HOME = {
    "Attention": "contract",
    "Capabilities": "contract",
    "Options": "options",
    "ScoreBias": "contract",
    "Mask": "masks",
    "register": "components",
    "list_components": "components",
    "Component": "components",
    "Positions": "positions",
    "Task": "tasks",
    "Metric": "metrics",
    "Logger": "loggers",
    "Batch": "tasks",
    "IGNORE": "shapes",
    "Corpus": "corpora",
    "Tokenizer": "tokenizers",
    "Optimizer": "optimizers",
    "Schedule": "schedules",
    "list_backends": "registry",
    "why_not": "registry",
    "build": "registry",
    "AttnzooError": "errors",
    "RequestError": "errors",
    "Refused": "errors",
    "CausalLM": "model",
    "build_model": "model",
    "export": "model.export",
    "load": "training.saved",
    "export_llama": "model.llama",
    "from_llama": "model.llama",
    "leak_test": "checks",
    "check": "checks",
    "compose": "config",
    "train": "training",
    "compare": "comparison",
    "load_records": "report.frame",
    "to_frame": "report.frame",
    "to_curves": "report.frame",
}

__all__ = ["__version__", *sorted(_HOME)]

if TYPE_CHECKING:
    from attnzoo.checks import check, leak_test
    from attnzoo.comparison import compare
    from attnzoo.components import Component, list_components, register
    from attnzoo.config import compose
    from attnzoo.contract import Attention, Capabilities, ScoreBias
    from attnzoo.corpora import Corpus
    from attnzoo.errors import AttnzooError, Refused, RequestError
    from attnzoo.loggers import Logger
    from attnzoo.masks import Mask
    from attnzoo.metrics import Metric
    from attnzoo.model import CausalLM, build_model
    from attnzoo.model.export import export
    from attnzoo.model.llama import export_llama, from_llama
    from attnzoo.optimizers import Optimizer
    from attnzoo.options import Options
    from attnzoo.positions import Positions
    from attnzoo.registry import build, list_backends, why_not
    from attnzoo.report.frame import load_records, to_curves, to_frame
    from attnzoo.schedules import Schedule
    from attnzoo.shapes import IGNORE
    from attnzoo.tasks import Batch, Task
    from attnzoo.tokenizers import Tokenizer
    from attnzoo.training import train
    from attnzoo.training.saved import load
__getattr__ = at_first_use(__name__, _HOME)


def __dir__() -> list[str]:
    return __all__
