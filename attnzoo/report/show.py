"""What `attnzoo show` draws: one backend's picture, and the heads of a trained model. Plain values in; no torch here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup
from rich import box
from rich.console import Console
from rich.table import Table

from attnzoo.report.groups import clean
from attnzoo.report.heat import caption, framed, panel, picture, pooled, read_blocks, shade_blocks
from attnzoo.report.page import render
from attnzoo.report.table import PIPE_WIDTH

PANEL = 256  # pixels
CELLS = 64  # most rows and columns of a drawn head
READ, SHADED = "read at all", "weights, over each row's largest"
NUMBERS = (
    ("keys read", "exp(entropy)"),
    ("entropy", "nats"),
    ("logits", ""),
    ("first token", "%"),
    ("row sum", "mean"),
)


def print_picture(shown: Mapping[str, Any], width: int) -> None:
    """One backend in the terminal, at most ``width`` columns: what is read at all, and how much of it."""
    small, k = pooled(shown["weights"], max((width - 6) // 2, 2))
    left, right = framed(read_blocks(small)), framed(shade_blocks(small))
    print(clean(headline(shown)))
    print(f"{READ:<{len(left[0])}}  {SHADED}")
    print("\n".join(f"{one}  {other}" for one, other in zip(left, right, strict=True)))
    print(clean("\n".join(notes(shown, k))))


def headline(shown: Mapping[str, Any]) -> str:
    """'sliding_window (window=4), 32 tokens, head 0 of 4'."""
    options = ", ".join(f"{key}={value}" for key, value in shown["options"].items())
    named = f"{shown['backend']} ({options})" if options else str(shown["backend"])
    return f"{named}, {shown['n_tokens']} tokens, head {shown['head']} of {shown['n_heads']}"


def notes(shown: Mapping[str, Any], pooling: int = 1) -> list[str]:
    """What a reader has to know about the picture."""
    weights = [weight for row in shown["weights"] for weight in row if weight]
    negative = sum(weight < 0 for weight in weights)
    lines = ["rows are queries, columns keys; each token is one of a few symbols; queries and keys of one symbol match"]
    if shown["cut"]:
        cut = ", ".join(f"{key} (default {value})" for key, value in shown["cut"].items())
        lines.append(f"cut down to fit: {cut}")
    if negative:
        lines.append(f"{negative / len(weights):.0%} of the weights are negative; shades show sizes")
    if pooling > 1:
        lines.append(f"each cell is the largest weight of {pooling} x {pooling}")
    return lines


def picture_svg(shown: Mapping[str, Any]) -> str:
    """One backend as a file of its own: both panels, with captions."""
    left = panel(shown["weights"], 10, 26, PANEL, f"{shown['backend']}: {READ}", shaded=False)
    right = panel(shown["weights"], PANEL + 30, 26, PANEL, f"{shown['backend']}: {SHADED}")
    words = caption(READ, 10, 18) + caption(SHADED, PANEL + 30, 18)
    return picture(words + left + right, 2 * PANEL + 40, PANEL + 36, headline(shown))


def print_heads(layers: Sequence[Mapping[str, Any]], console: Console | None = None) -> None:
    """A line a head of a trained model."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column("layer", justify="right")
    table.add_column("backend")
    table.add_column("head", justify="right")
    for title, unit in NUMBERS:
        table.add_column(f"{title}\n{unit}".rstrip(), justify="right", no_wrap=True)
    for layer in layers:
        for head in layer["heads"]:
            table.add_row(str(layer["layer"]), clean(layer["backend"]), str(head["head"]), *numbers(head))
    console = console or Console()
    if not console.is_terminal:
        console.width = max(console.width, PIPE_WIDTH)
    console.print(table, highlight=False)


def numbers(head: Mapping[str, Any]) -> list[str]:
    """The columns of `NUMBERS` as text."""
    low, high, sink = head["logit_min"], head["logit_max"], head["sink_share"]
    return [
        "–" if head["keys"] is None else f"{head['keys']:.1f}",
        "–" if head["entropy_nats"] is None else f"{head['entropy_nats']:.2f}",
        "–" if low is None else f"{low:.1f} to {high:.1f}",
        "–" if sink is None else f"{100 * sink:.1f}",
        f"{head['row_sum']:.2f}",
    ]


def heads_html(shown: Mapping[str, Any]) -> str:
    """The page of a trained model: the table, the map of every head, the text it read.

    Args:
        shown: ``title``, ``n_tokens``, ``text`` (None where there is none), ``layers``.
    """
    layers = [
        {
            "name": f"Layer {layer['layer']}",
            "backend": layer["backend"],
            "lines": [(head["head"], numbers(head)) for head in layer["heads"]],
            "maps": [(head["head"], _map(layer, head)) for head in layer["heads"]],
        }
        for layer in shown["layers"]
    ]
    return render(
        "heads.html.j2",
        title=shown["title"],
        n_tokens=shown["n_tokens"],
        text=None if shown["text"] is None else clean(shown["text"]),
        columns=NUMBERS,
        layers=layers,
        pooling=-(-shown["n_tokens"] // CELLS),
    )


def _map(layer: Mapping[str, Any], head: Mapping[str, Any]) -> Markup:
    name = f"layer {layer['layer']}, head {head['head']}"
    cells = pooled(head["weights"], CELLS)[0]
    return Markup(picture(panel(cells, 1, 1, PANEL, name), PANEL + 2, PANEL + 2, name))
