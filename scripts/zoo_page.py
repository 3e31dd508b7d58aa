"""Writes docs/zoo.md and docs/zoo/NAME.svg from the docstrings, options and capabilities of the backends. `--check` compares.

A docstring is its first line, the equation and what belongs to it, then what stands behind Cost:, State:, Gives up,
Departures: and Use:, in any order.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
LABELS = ("Cost", "State", "Gives up", "Departure", "Departures", "Use")
NEEDED = {"Cost", "State", "Use"}
MARKED = {"G < H": "grouped_heads", "bias": "bias", "dropout": "dropout", "Tq ≠ Tk": "cross", "Dv ≠ D": "value_dim",
          "scale": "scale", "mla": "products", "reads x": "needs_x"}  # fmt: skip
DTYPES = ("float64", "float32", "bfloat16", "float16")

HEAD = """# The zoo

Written by `scripts/zoo_page.py` from the docstrings, options and capabilities of the backends; do not edit. Letters: B batch,
H query heads, G key/value heads, T tokens, D head dim, Dv of values, C model width, W window ([shapes](../attnzoo/shapes.py)).

A picture is the matrix that multiplies the values, by the float64 definition, on 32 tokens of six symbols, each with one code
as query and key: left what is read at all, right how much, over each row's largest weight, orange where negative. Windows and
blocks are cut down to fit. `attnzoo show NAME KEY=VALUE` draws the same for other options and lengths.

A card is about a rule. What stands around it is the same layer for all, whatever a publication has: QK-norm (`model.qk_norm`, on
by default), no biases, values as wide as keys; off by default are the causal convolution (`model.short_conv`, no activation
behind it), the norm of each head's output (`model.head_norm`) and its gate (`model.output_gate`, a sigmoid). An MLP follows.

## What each can honour

What is not marked is refused, with the reason (scale: `model.scale`; mla: its latent keys, and `model.scale=log_n`). Positions
are those that `positions=auto` gives. Time and memory are of a training step, state is of decoding; each as it grows with T.
"""

ABNORMAL = """## Abnormal input

Found by running each on a CPU in float32, on 3 sequences of 9 tokens: in one pass, in a training step with its gradients
(trained) and token by token (decoded), named where they differ. refused: an error before any work; empty: a result without
rows; 0: rows that see nothing are 0, their gradients too. With NaN or ∞ in q, k or v of one token of the second sequence, how
far it goes: to rows that see the token at most (seen), or to earlier rows of its sequence too (sequence: a weight of 0 times
NaN is NaN). No backend carries it to another sequence. On some CPUs torch's fused kernel passes over a NaN in a query and gives
a finite row: look for NaN in the input, not in the output.
"""


def main() -> int:
    from attnzoo import registry
    from attnzoo.measure.maps import backend_map
    from attnzoo.report.show import picture_svg

    names = [name for name in registry.list_backends() if registry.origin(name) == "attnzoo"]
    files = {DOCS / "zoo" / f"{name}.svg": picture_svg(backend_map(name)) + "\n" for name in names}
    cards = [card(name, registry.get(name)) for name in names]
    table = [*matrix({name: registry.get(name) for name in names}), "", ABNORMAL, *abnormal(names), ""]
    files[DOCS / "zoo.md"] = "\n".join([HEAD, *table, *cards])
    there = {*(DOCS / "zoo").glob("*.svg"), DOCS / "zoo.md"}
    stale = [file for file, text in files.items() if not file.is_file() or file.read_text(encoding="utf-8") != text]
    stale += sorted(there - set(files))
    if "--check" in sys.argv:
        print("\n".join(f"stale: {file}" for file in stale), end="\n" if stale else "")
        return int(bool(stale))
    from attnzoo.files import write_text_atomic

    for file in stale:
        write_text_atomic(file, files[file]) if file in files else file.unlink()
    return 0


def matrix(classes: dict[str, type]) -> Iterator[str]:
    """The capability matrix, a row a backend."""
    from attnzoo.commands.list import growth
    from attnzoo.masks import FIELDS

    titles = [
        "backend",
        *sorted(FIELDS),
        *MARKED,
        "positions",
        "dtypes",
        "runs on",
        "trains on",
        "time",
        "memory",
        "state",
    ]
    yield f"| {' | '.join(title.replace('_', ' ') for title in titles)} |"
    yield f"|---|{':-:|' * (len(titles) - 1)}"
    for name, cls in classes.items():
        can = cls.capabilities
        cells = [name in can.masks for name in sorted(FIELDS)] + [getattr(can, key) for key in MARKED.values()]
        dtypes = [str(dtype).removeprefix("torch.") for dtype in can.dtypes]
        places = [dtypes if set(dtypes) != set(DTYPES) else ["all"], can.devices, can.training_devices]
        words = [*("✓" if cell else "" for cell in cells), can.positions, *map(", ".join, places)]
        words += [growth(exponent) for exponent in (can.time, can.memory, can.state)]
        yield f"| [{name}](#{name}) | {' | '.join(words)} |"


def abnormal(names: list[str]) -> Iterator[str]:
    """What each answers to abnormal input, a row a backend that runs here."""
    from attnzoo.checks.abnormal import COLUMNS, answers

    yield f"| backend | {' | '.join(COLUMNS)} |"
    yield f"|---|{'---|' * len(COLUMNS)}"
    for name in names:
        found = answers(name)
        yield f"| {name} | {' | '.join(found[column] for column in COLUMNS)} |"


def card(name: str, cls: type) -> str:
    """One backend."""
    parts = sections(cls)
    missing = NEEDED - set(parts)
    if missing:
        raise SystemExit(f"the docstring of {name} lacks {', '.join(sorted(missing))}")
    lines = [f"## {name}", parts["title"], f"![{name}: who reads whom, and how much](zoo/{name}.svg)", parts["body"]]
    points = {label: words for label, words in parts.items() if label in LABELS}
    points |= {"Memory at first": memory(cls), "Positions": positions(cls), "Refuses": refused(cls)}
    lines.append("\n".join(f"- **{label}**: {words}" for label, words in points.items() if words))
    lines.append(f"Source: {linked(cls.source)}.{kernels(cls)}")
    lines += ["\n".join(options(name, cls))]
    return "\n\n".join(line for line in lines if line) + "\n"


def sections(cls: type) -> dict[str, str]:
    """The docstring as Markdown: title, body, and each label's words."""
    title, _, rest = (cls.__doc__ or "").strip().partition("\n")
    pieces = re.split(
        rf"(?:(?<=[.\s])|^)({'|'.join(sorted(LABELS, reverse=True))})(?=:| every)", " ".join(rest.split())
    )
    found = {"title": markdown(title), "body": markdown(pieces[0].strip())}
    for label, words in zip(pieces[1::2], pieces[2::2], strict=True):
        found[label] = markdown(words.removeprefix(":").strip())
    return found


def memory(cls: type) -> str:
    """How long the gates remember before training, with the default options."""
    tokens = cls.initial_memory(cls.Options())
    if tokens is None:
        return ""
    return f"{f'{tokens:.1f}' if tokens < 10 else round(tokens)} tokens until 1/e is left, at the median of heads and channels."


def positions(cls: type) -> str:
    """What ``positions=auto`` gives it, where that is not rope."""
    return "" if cls.capabilities.positions == "rope" else f"{cls.capabilities.positions}, by `positions=auto`."


def refused(cls: type) -> str:
    """What it declares that it cannot honour."""
    from attnzoo.masks import FIELDS

    can = cls.capabilities
    absent = [key for key in MARKED if not getattr(can, MARKED[key]) and key != "reads x"]
    fields = f"the mask fields {', '.join(sorted(FIELDS - can.masks))}" if FIELDS - can.masks else ""
    return markdown("; ".join(filter(None, [fields, ", ".join(absent)])))


def kernels(cls: type) -> str:
    return f" Kernels: {', '.join(f'`{kernel}`' for kernel in cls.kernels)}." if len(cls.kernels) > 1 else ""


def options(name: str, cls: type) -> Iterator[str]:
    """A table of the backend's own options."""
    fields = [field for field in dataclasses.fields(cls.Options) if field.name != "kernel"]
    if not fields:
        return
    yield "| option | default | |"
    yield "|---|---|---|"
    for field in fields:
        home = next(
            base for base in reversed(cls.Options.__mro__) if field.name in vars(base).get("__annotations__", {})
        )
        meaning = meanings(home).get(field.name)
        if meaning is None:
            raise SystemExit(f"option {field.name} of {name} has no meaning in the docstring of {home.__name__}")
        default = (
            "null"
            if field.default is None
            else str(field.default).lower()
            if field.default in (True, False)
            else field.default
        )
        yield f"| `{field.name}` | {default} | {markdown(meaning)} |"


def meanings(cls: type) -> dict[str, str]:
    """What its docstring says behind 'name:' about each field."""
    names = "|".join(field.name for field in dataclasses.fields(cls))
    text = " ".join((cls.__doc__ or "").split())
    pieces = re.split(rf"(?:^|(?<=[\s.;]))({names}): ", text)
    return {key: words.strip().rstrip(".;") for key, words in zip(pieces[1::2], pieces[2::2], strict=True)}


def linked(source: str) -> str:
    return re.sub(r"(arXiv:)?(\d{4}\.\d{5})", r"[arXiv:\2](https://arxiv.org/abs/\2)", markdown(source))


def markdown(text: str) -> str:
    """Plain text with ``code`` as Markdown, nothing else taken for markup."""
    pieces = re.split(r"``(.+?)``|`(.+?)`", text)
    plain = [re.sub(r"([_*|<\[\]\\])", r"\\\1", piece) for piece in pieces[::3]]
    codes = [f"`{double or single}`" for double, single in zip(pieces[1::3], pieces[2::3], strict=True)]
    return "".join(one + other for one, other in zip(plain, [*codes, ""], strict=True))


if __name__ == "__main__":
    raise SystemExit(main())
