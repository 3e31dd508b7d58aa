"""The size of the state that a card states is that of the cache which the backend makes."""

from __future__ import annotations

import math

import pytest
import torch

import attnzoo
from attnzoo import registry

T, H, G, D = 96, 4, 2, 8
EVERY_TOKEN = ("2·T·G·D", 2 * T * G * D)
STATE = ("G·D·Dv float32", G * D * D)
RATIO = ("G·D·(Dv+1) float32", G * D * (D + 1))
LEVELS, FEATURES = math.ceil(math.log2(T / 8)), round(D * math.log(D))  # of hierarchical with c = 8; m of performer

STATED = {
    **dict.fromkeys(
        ("block_sparse", "differential", "exact", "flex", "sdpa", "sigmoid", "softcap", "xformers"), EVERY_TOKEN
    ),
    **dict.fromkeys(("mla", "sink_logit"), EVERY_TOKEN),
    **dict.fromkeys(("deltanet", "gated_deltanet", "gla", "kda", "mamba2"), STATE),
    **dict.fromkeys(("linear", "retention"), RATIO),
    "gqa": ("2·T·G·D", 2 * T * 1 * D),
    "mqa": ("2·T·D", 2 * T * D),
    "sliding_window": ("2·W·G·D", 2 * 16 * G * D),
    "streaming": ("2·(s + W)·G·D", 2 * (4 + 16) * G * D),
    "dilated_window": ("2·W·r·G·D", 2 * 16 * 4 * G * D),
    "chunked_local": ("2·c·G·D", 2 * 16 * G * D),
    "forgetting": ("2·T·G·D, and log f in float32, T·H", 2 * T * G * D + T * H),
    "hierarchical": ("4·c·L·G·D and 2·c·L numbers of tokens", 4 * 8 * LEVELS * G * D + 2 * 8 * LEVELS),
    "moba": ("T/c·G·D mean keys in float64", 2 * T * G * D + 2 * T // 8 * G * D),
    "nsa": ("2·T/c·G·D summaries in float64", 2 * T * G * D + 2 * 2 * T // 8 * G * D),
    "performer": ("G·(m·(Dv+1) + 1) float32", G * (FEATURES * (D + 1) + 1)),
    "based": (
        "G·(1 + n + n(n+1)/2)·(Dv+1) float32 and a ring 2·W·G·D",
        G * (1 + 16 + 136) * (D + 1) + 2 * 16 * G * D,
    ),
}
"""What the card says, and what that comes to in float32 numbers (a float64 counts twice)."""

OPTIONS = {
    **{key: {"window": 16} for key in ("sliding_window", "streaming", "dilated_window", "based")},
    "chunked_local": {"chunk": 16},
    **{key: {"block": 8} for key in ("hierarchical", "moba", "nsa")},
}


def test_every_card_is_looked_at():
    assert set(STATED) == {name for name in registry.list_backends() if registry.origin(name) == "attnzoo"}


@pytest.mark.parametrize("name", STATED)
def test_the_state_that_a_card_states_is_that_of_its_cache(name):
    words, numbers = STATED[name]
    assert words in " ".join(registry.get(name).__doc__.split())
    heads = None if name in ("gqa", "mqa") else G
    module = attnzoo.build(name, n_heads=H, n_kv_heads=heads, head_dim=D, d_model=16, **OPTIONS.get(name, {}))
    assert module.new_cache(1, T, dtype=torch.float32).nbytes == 4 * numbers
    assert module.new_cache(3, T, dtype=torch.float32).nbytes == 3 * 4 * numbers
