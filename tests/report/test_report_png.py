"""A PNG is the SVG's picture: its size, white ground, cells in their colours, captions in theirs."""

from __future__ import annotations

import io
import sys

import pytest

from attnzoo.errors import RequestError
from attnzoo.report.heat import NEGATIVE, POSITIVE
from attnzoo.report.png import NO_FONT, ZOOM, png
from attnzoo.report.show import PANEL, picture_svg

SHOWN = {"backend": "toy", "n_tokens": 2, "head": 0, "n_heads": 4, "options": {}, "cut": {}, "symbols": [0, 1],
         "weights": [[1.0, 0.0], [-1.0, 1.0]]}  # fmt: skip


def opened(data: bytes):
    return pytest.importorskip("PIL.Image").open(io.BytesIO(data)).convert("RGB")


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def drawn_or_skipped(svg: str) -> bytes:
    try:
        return png(svg)
    except RequestError as error:
        if error.message == NO_FONT:
            pytest.skip(NO_FONT)
        raise


def test_cells_and_captions_are_where_the_svg_has_them():
    pytest.importorskip("resvg_py")
    image = opened(drawn_or_skipped(picture_svg(SHOWN)))
    assert image.size == (ZOOM * (2 * PANEL + 40), ZOOM * (PANEL + 36))
    quarter, half = PANEL / 4, PANEL / 2

    def cell(row: int, column: int) -> tuple[int, ...]:  # of the right panel, which is shaded
        return image.getpixel(
            (int(ZOOM * (PANEL + 30 + quarter + half * column)), int(ZOOM * (26 + quarter + half * row)))
        )

    assert [cell(0, 0), cell(0, 1), cell(1, 0), cell(1, 1)] == [
        rgb(POSITIVE), (255, 255, 255), rgb(NEGATIVE), rgb(POSITIVE)
    ]  # fmt: skip
    words = image.crop((0, 0, ZOOM * PANEL, ZOOM * 22))  # above the left panel
    assert words.getpixel((0, 0)) == (255, 255, 255)
    assert min(low for low, _ in words.getextrema()) < 170, "no caption was drawn"


def test_a_picture_without_its_captions_is_refused(monkeypatch):
    monkeypatch.setattr("attnzoo.report.png.FAMILIES", ("No Such Family",))
    if _has_arial():
        pytest.skip("this system has the font that resvg falls back to")
    with pytest.raises(RequestError, match="needs a font"):
        png(picture_svg(SHOWN))
    plain = '<svg xmlns="http://www.w3.org/2000/svg" width="12" height="12"><rect width="9" height="9"/></svg>'
    assert opened(png(plain)).size == (12 * ZOOM, 12 * ZOOM)


def _has_arial() -> bool:
    resvg = pytest.importorskip("resvg_py")
    square = '<svg xmlns="http://www.w3.org/2000/svg" width="12" height="12">{}</svg>'
    text, nothing = (resvg.svg_to_bytes(svg_string=square.format(s)) for s in ('<text y="9">x</text>', ""))
    return bytes(text) != bytes(nothing)


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(RequestError, match=r"pip install 'attnzoo\[png\]'"):
        png(picture_svg(SHOWN))


def test_what_is_no_svg_is_said():
    pytest.importorskip("resvg_py")
    with pytest.raises(RequestError, match="cannot be drawn"):
        png("<p>")
