"""Where things are: position schemes, one file each. A causal mask says what may be seen; neither replaces the other.

A scheme acts at one of three places: on the embeddings (learned, sinusoidal), on queries and keys (rope), or on the scores
(alibi, relative). Position numbers are integers and phases float32, whatever the model's dtype: in bfloat16, 256 and 257 are
one number. Shapes: see `attnzoo.shapes`; P is (B or 1, T), the position of each token.
"""

from attnzoo.positions.base import Positions
from attnzoo.positions.build import build_positions
from attnzoo.positions.rotation import rotate

__all__ = ["Positions", "build_positions", "rotate"]
