"""A picture as PNG, by resvg (extra ``png``), which is a wheel and needs no library of the system."""

from __future__ import annotations

from attnzoo.errors import RequestError

MISSING = "a PNG needs the package resvg_py: pip install 'attnzoo[png]'; a browser opens the SVG"
FAMILIES = ("DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial", "Helvetica", "Segoe UI", "Roboto")
NO_FONT = f"a PNG needs a font for its captions, one of {', '.join(FAMILIES)}; the SVG needs none"
ZOOM = 2  # pixels a unit of the SVG


def png(svg: str) -> bytes:
    """An SVG element on white, `ZOOM` pixels a unit. Text is drawn in the first of `FAMILIES` that the system has.

    Raises:
        RequestError: the library is not installed, cannot read the element, or finds none of the fonts.
    """
    try:
        import resvg_py
    except ImportError:
        raise RequestError(MISSING) from None

    # resvg takes "sans-serif" for Arial, and where that is missing draws no text and says nothing
    style = f"text {{ font-family: {', '.join(repr(family) for family in FAMILIES)}, sans-serif }}"

    def drawn(element: str) -> bytes:
        return bytes(resvg_py.svg_to_bytes(svg_string=element, zoom=ZOOM, background="#ffffff", style_sheet=style))

    try:
        if "<text" in svg and drawn(_square("<text y='9'>x</text>")) == drawn(_square("")):
            raise RequestError(NO_FONT)
        return drawn(svg)
    except ValueError as error:
        raise RequestError(f"this SVG cannot be drawn: {error}") from error


def _square(inside: str) -> str:
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="12" height="12">{inside}</svg>'
