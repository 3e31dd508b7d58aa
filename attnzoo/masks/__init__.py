"""Who may see whom: the one definition (`spec`) and its translations to other libraries' conventions (`translate`)."""

from attnzoo.masks.spec import FIELDS, Mask

__all__ = ["FIELDS", "Mask"]
