"""The legend of shapes, used in every docstring of the package.

=====  ==========================================================================
B      batch
H      query heads
G      key/value heads; H is a multiple of G, query head h reads key head h // (H/G)
T      tokens; Tq and Tk where queries and keys differ in number
D      head dim of queries and keys; Dv that of values
C      model width (d_model)
L      layers
V      vocabulary
W      window: W keys, the query's own included
N, c   blocks (or chunks) of c tokens each
=====  ==========================================================================

q is (B, H, Tq, D), k is (B, G, Tk, D), v is (B, G, Tk, Dv), the output is (B, H, Tq, Dv), the layer's input x is (B, Tq, C).
A boolean mask is True where a query may attend. With Tq ≠ Tk the last query is aligned with the last key.
"""

IGNORE = -100
"""A target that is not scored; what torch's cross entropy leaves out by default."""
