"""A picture as PNG, by resvg (extra ``png``), which is a wheel and needs no library of the system."""

from __future__ import annotations

from attnzoo.errors import RequestError

MISSING = "a PNG needs the package resvg_py: pip install 'attnzoo[png]'; a browser opens the SVG"
ZOOM = 2  # pixels a unit of the SVG


def png(svg: str) -> bytes:
    """An SVG element on white, `ZOOM` pixels a unit. Text is drawn in the system's sans-serif, where it has any.

    Raises:
        RequestError: the library is not installed, or cannot read the element.
    """
    try:
        import resvg_py
    except ImportError:
        raise RequestError(MISSING) from None
    try:
        return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=ZOOM, background="#ffffff"))
    except ValueError as error:
        raise RequestError(f"this SVG cannot be drawn: {error}") from error
