"""Components other than backends are held to properties of their kind: which those are, and how one is named."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attnzoo import components
from attnzoo.checks.compare import Failed, Skip
from attnzoo.checks.report import FAILED, PASSED, REFUSED, SKIPPED, CheckReport, Result
from attnzoo.components import KINDS
from attnzoo.errors import Refused, RequestError, nearest, unknown, unknown_backend
from attnzoo.terminal import one_line

Property = Callable[[Any], str]
"""Returns on what input it held; raises `Failed`, or `Skip` where it cannot be tried. Its docstring says what it demands."""

CHECKS = {
    kind: f"attnzoo.checks.{home}"
    for kind, home in {
        "task": "tasks", "positions": "positions", "projection": "projections", "metric": "metrics", "logger": "loggers",
        "optimizer": "optimizers", "schedule": "schedules", "corpus": "corpora", "tokenizer": "tokenizers",
    }.items()
}  # fmt: skip
"""Kind -> module. It has ``PROPERTIES``, tried in order on what its ``subject(cls, given, device)`` makes of a class and of
its options as plain values."""


def resolve(word: str) -> tuple[str, str]:
    """(kind, name) of ``NAME`` or ``KIND:NAME``. A name alone is the backend's where there is one.

    Raises:
        RequestError: no kind has it, or several that are no backends.
    """
    kind, colon, name = word.rpartition(":")
    if colon and kind not in KINDS:
        raise RequestError(unknown("kind", kind, KINDS))
    if colon:
        if name not in components.names(kind):
            raise RequestError(components.unknown_component(kind, name))
        return kind, name
    having = [kind for kind in KINDS if name in components.names(kind)]
    if "attention" in having or len(having) == 1:
        return having[0], name
    if having:
        raise RequestError(f"{name} is of several kinds: {', '.join(f'{kind}:{name}' for kind in having)}")
    elsewhere = {f"{kind}:{near}" for kind in KINDS if (near := nearest(name, components.names(kind)))}
    if not elsewhere or any(each.startswith("attention:") for each in elsewhere):
        raise RequestError(unknown_backend(name, components.names("attention")))
    raise RequestError(f"unknown component {name!r}; did you mean {' or '.join(sorted(elsewhere))}?")


def component(what: Any) -> Any:
    """The class of a component that is no backend, where ``what`` is one or names one; else what a backend is known by."""
    if isinstance(what, str) and ".py" not in what:
        kind, name = resolve(what)
        return name if kind == "attention" else components.get(kind, name)
    return what


def check_component(
    cls: Any, given: Mapping[str, Any], *, device: str = "cpu", quick: bool = False, only: Iterable[str] = ()
) -> CheckReport:
    """Hold a class to the properties of its kind, with these options.

    Raises:
        RequestError: an option or property that there is not; no properties are written down for the kind.
    """
    started, kind = time.perf_counter(), components.kind_of(cls)
    assert kind is not None
    name = cls.__name__ if cls.name == "unregistered" else cls.name
    if kind not in CHECKS:
        raise RequestError(
            f"{KINDS[kind].word} {name}: there are no checks of this kind; of {', '.join(CHECKS)} there are"
        )
    module = importlib.import_module(CHECKS[kind])
    properties: dict[str, Property] = {each.__name__: each for each in module.PROPERTIES}
    if wrong := [each for each in only if each not in properties]:
        raise RequestError("no such check", [unknown(f"check of a {kind}", each, properties) for each in wrong])
    faults = cls.definition_faults()
    if faults:
        raise RequestError(f"{kind}:{name} cannot be used", faults)
    subject = module.subject(cls, given, device)
    results = [attempt(each, subject) for key, each in properties.items() if not only or key in set(only)]
    return CheckReport(f"{kind}:{name}", device, (), quick, results, seconds=time.perf_counter() - started)


def attempt(prop: Property, subject: Any) -> Result:
    """Try a property."""
    name, about = prop.__name__, " ".join((prop.__doc__ or "").split())
    try:
        return Result(name, prop(subject), PASSED, about=about)
    except Failed as found:
        return Result(name, "random input", FAILED, found.expected, found.actual, found.where, found.detail, about)
    except Refused as refusal:
        return Result(name, "", REFUSED, detail=" ".join(str(refusal).split()), about=about)
    except Skip as why:
        return Result(name, "", why.status, detail=str(why), about=about)
    except Exception as error:  # whatever the code under check raises is a finding, and is reported whole
        return Result(name, "", FAILED, "a result", one_line(error), about=about)


def skipped(prop: Property, why: str) -> Result:
    return Result(prop.__name__, "", SKIPPED, detail=why, about=" ".join((prop.__doc__ or "").split()))
