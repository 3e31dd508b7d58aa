"""Names: taken ones, unknown ones, incomplete classes, options by name and type, reasons all at once."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import attnzoo
from attnzoo import Attention, Capabilities, Mask, Options, components, register, registry
from attnzoo.errors import Refused, RequestError


def make(**body):
    """A class that lacks nothing but what ``body`` takes away or changes."""
    whole = {"__doc__": "A rule.", "source": "a paper", "capabilities": Capabilities(), "attend": lambda self, *a: a[0]}
    return type("Mine", (Attention,), {k: v for k, v in (whole | body).items() if v is not None})


@pytest.fixture(autouse=True)
def _leave_no_trace():
    components.load("attention")
    before = dict(components._classes["attention"]), dict(components._origin)
    yield
    components._classes["attention"].clear()
    components._classes["attention"].update(before[0])
    components._origin.clear()
    components._origin.update(before[1])


def test_a_registered_class_is_listed_built_and_named():
    register("mine")(make())
    assert "mine" in attnzoo.list_backends()
    assert attnzoo.list_backends() == sorted(attnzoo.list_backends())
    assert attnzoo.build("mine", n_heads=2, head_dim=4).name == "mine"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"__doc__": None}, "no docstring"),
        ({"source": None}, "no source"),
        ({"source": ""}, "no source"),
        ({"capabilities": None}, "no capabilities"),
        ({"Options": dict}, "not a dataclass"),
    ],
)
def test_what_a_class_must_have(body, said):
    with pytest.raises(RequestError, match=said):
        register("mine")(make(**body))
    assert "mine" not in attnzoo.list_backends()


def test_everything_missing_is_said_at_once():
    with pytest.raises(RequestError) as caught:
        register("mine")(make(__doc__=None, source=None, capabilities=None))
    assert len(caught.value.reasons) >= 3


def test_a_taken_name_is_an_error_that_says_by_whom():
    with pytest.raises(RequestError, match=r"taken by attnzoo\.backends\.exact"):
        register("exact")(make())
    assert registry.get("exact").__module__ == "attnzoo.backends.exact"


def test_unknown_names_get_the_nearest():
    with pytest.raises(RequestError, match="did you mean 'sliding_window'"):
        attnzoo.build("slidingwindow", n_heads=2, head_dim=4)


@dataclass(frozen=True)
class Settings(Options):
    width: int = 3
    rate: float = 0.5
    on: bool = True
    word: str | None = None
    sizes: tuple = ()


def test_options_by_name_and_type():
    register("mine")(make(Options=Settings))
    options = attnzoo.build("mine", n_heads=1, head_dim=2, width=4, rate=1, on=False, word="a", sizes=[1, 2]).options
    assert options == Settings(width=4, rate=1.0, on=False, word="a", sizes=(1, 2))
    assert attnzoo.build("mine", n_heads=1, head_dim=2, word=None).options.word is None


@pytest.mark.parametrize(
    "wrong", [{"width": 2.5}, {"width": True}, {"rate": "fast"}, {"on": 1}, {"word": True}, {"sizes": 4}], ids=str
)
def test_options_of_the_wrong_type(wrong):
    register("mine")(make(Options=Settings))
    with pytest.raises(RequestError, match=next(iter(wrong))):
        attnzoo.build("mine", n_heads=1, head_dim=2, **wrong)


def test_every_wrong_option_at_once_with_the_nearest_name():
    register("mine")(make(Options=Settings))
    with pytest.raises(RequestError) as caught:
        attnzoo.build("mine", n_heads=1, head_dim=2, widht=3, rate="x")
    assert "did you mean 'width'" in str(caught.value)
    assert len(caught.value.reasons) == 2


@pytest.mark.parametrize(
    "sizes", [{"n_heads": 0}, {"head_dim": 0}, {"n_kv_heads": 0}, {"dropout": 1.0}, {"dropout": -0.1}], ids=str
)
def test_sizes_that_make_no_sense(sizes):
    with pytest.raises(RequestError):
        attnzoo.build("exact", **({"n_heads": 2, "head_dim": 4} | sizes))


def test_heads_that_do_not_divide():
    with pytest.raises(Refused, match="multiple"):
        attnzoo.build("exact", n_heads=4, n_kv_heads=3, head_dim=4)


def test_unknown_kernel():
    with pytest.raises(RequestError, match="did you mean 'flash'"):
        attnzoo.build("sdpa", n_heads=2, head_dim=4, kernel="flesh")


def test_why_not_gives_every_reason_and_nothing_when_it_runs():
    assert attnzoo.why_not("exact") == []
    reasons = attnzoo.why_not(
        "linear", mask=Mask(window=3, prefix=2), n_heads=4, n_kv_heads=3, dtype=torch.float32, bias=True, dropout=0.1
    )
    for word in ("window", "prefix", "multiple", "bias", "drop"):
        assert any(word in reason for reason in reasons), word


def test_why_not_agrees_with_what_happens():
    for name in attnzoo.list_backends():
        if "xformers" in name or attnzoo.why_not(name, n_heads=2, head_dim=8, training=False):
            continue
        cls = registry.get(name)
        attn = attnzoo.build(name, n_heads=2, head_dim=8, d_model=16)
        q = torch.randn(1, 2, 3, 8)
        k = torch.randn(1, attn.n_kv_heads, 3, 8)
        for mask in (Mask(), Mask(window=2), Mask(prefix=2), Mask(causal=False)):
            why = attnzoo.why_not(name, mask=mask, n_heads=2, head_dim=8, training=False)
            x = torch.randn(1, 3, 16) if cls.capabilities.needs_x else None
            with torch.no_grad():
                if why:
                    with pytest.raises(Refused):
                        attn(q, k, k, mask, x=x)
                else:
                    assert attn(q, k, k, mask, x=x).shape == q.shape


@pytest.mark.parametrize("mask", [torch.ones(3, 3, dtype=torch.bool), "causal", None])
def test_a_mask_of_another_library_is_named(mask):
    attn, q = attnzoo.build("sdpa", n_heads=2, head_dim=8), torch.randn(1, 2, 3, 8)
    for call in (lambda: attn(q, q, q, mask), lambda: attn.reference(q, q, q, mask)):
        with pytest.raises(RequestError, match=r"an attnzoo\.Mask, whose fields"):
            call()
