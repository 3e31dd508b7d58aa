"""Bytes and BPE: lossless, deterministic, saved and read back."""

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnzoo.errors import RequestError
from attnzoo.tokenizers import BPETokenizer, ByteTokenizer, tokenizer_from_state

TEXT = "the whale — the white whale\n\nthe sea\tand the ship\r\n" * 40


@pytest.fixture(scope="module")
def bpe():
    pytest.importorskip("tokenizers")
    return BPETokenizer.train(TEXT.encode(), 280)


@given(text=st.text())
def test_bytes_are_lossless(text):
    tokenizer = ByteTokenizer()
    assert tokenizer.encode(text) == list(text.encode()) == tokenizer.encode_array(text.encode()).tolist()
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_half_a_character_decodes_to_a_replacement():
    assert ByteTokenizer().decode("é".encode()[:1]) == "\ufffd"


@given(text=st.text())
def test_bpe_is_lossless_on_text_it_never_saw_and_counts_bytes(bpe, text):
    ids = bpe.encode(text)
    assert bpe.decode(ids) == text
    assert bpe.byte_lengths()[ids].sum() == len(text.encode())


def test_bpe_merges_and_keeps_all_bytes(bpe):
    assert 256 < bpe.vocab_size <= 280
    assert sorted(bpe.byte_lengths())[:256] == [1] * 256
    assert len(bpe.encode(TEXT)) < len(TEXT.encode()) / 2


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_a_state_is_json_and_gives_the_same_tokenizer(kind, bpe):
    tokenizer = bpe if kind == "bpe" else ByteTokenizer()
    again = tokenizer_from_state(json.loads(json.dumps(tokenizer.state())))
    assert (again.name, again.vocab_size) == (tokenizer.name, tokenizer.vocab_size)
    assert again.encode(TEXT) == tokenizer.encode(TEXT)


def test_bpe_training_gives_the_same_in_another_process(bpe):
    code = (
        "import sys, json; from attnzoo.tokenizers import BPETokenizer\n"
        "print(json.dumps(BPETokenizer.train(sys.stdin.buffer.read(), 280).state()))"
    )
    out = subprocess.run([sys.executable, "-c", code], input=TEXT.encode(), capture_output=True, check=True).stdout
    assert json.loads(out) == bpe.state()


@pytest.mark.parametrize(
    "state", [None, 3, [], {}, {"name": ["bpe"]}, {"name": "bype"}, {"name": "bpe", "model": "{"}, {"name": "bpe"}]
)
def test_a_damaged_state_is_refused(state):
    with pytest.raises(RequestError, match="tokenizer"):
        tokenizer_from_state(state)


def holders(held):
    """Each mapping and list in it."""
    yield held
    for inner in held.values() if isinstance(held, dict) else held[:3]:
        if isinstance(inner, (dict, list)) and inner:
            yield from holders(inner)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-1, 300), st.just(2**60), st.floats(0, 1), st.text(max_size=3),
    st.just([]), st.just({}), st.just("gone"),
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_foreign_tokenizer_is_refused_or_loses_nothing(bpe, data):
    """Any field of the JSON as anything: one message, or text becomes ids that exist and comes back."""
    model = json.loads(bpe.state()["model"])
    for _ in range(data.draw(st.integers(1, 2))):
        holder = data.draw(st.sampled_from([*holders(model)]))
        key = data.draw(st.sampled_from([*holder] if isinstance(holder, dict) else range(len(holder))))
        if (value := data.draw(VALUES)) == "gone":
            del holder[key]
        else:
            holder[key] = value
    try:
        tokenizer = tokenizer_from_state({"name": "bpe", "model": json.dumps(model)})
    except RequestError:
        return
    text = "the whale — é\n中"
    ids = tokenizer.encode(text)
    assert ids == tokenizer.encode(text)
    assert max(ids) < tokenizer.vocab_size
    assert tokenizer.decode(ids) == text
    assert tokenizer.byte_lengths()[ids].sum() == len(text.encode())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": {"dropout": 0.5}}, "model.dropout: 0.5"),  # other ids each time
        ({"decoder": None}, "decoder: None"),
        ({"pre_tokenizer": None}, "pre_tokenizer: None"),
        ({"normalizer": {"type": "Lowercase"}}, "normalizer: {'type': 'Lowercase'}"),
        ({"truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}}, "truncation"),
        ({"model": {"vocab": {}, "merges": []}}, "256 of the 256 bytes are missing"),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 7}, "unk_token": "a"}}, "model.type: WordLevel"),
    ],
)  # fmt: skip
def test_another_kind_of_tokenizer_is_refused_with_what_it_is(bpe, change, reason):
    whole = json.loads(bpe.state()["model"])
    whole = whole | change | {"model": whole["model"] | change.get("model", {})}
    with pytest.raises(RequestError, match="no byte-level BPE as it is made here") as wrong:
        tokenizer_from_state({"name": "bpe", "model": json.dumps(whole)})
    assert any(reason in line for line in wrong.value.reasons)


def test_ids_without_a_piece_are_refused(bpe):
    model = json.loads(bpe.state()["model"])
    vocabulary = model["model"]["vocab"]
    vocabulary[max(vocabulary, key=vocabulary.get)] += 5
    with pytest.raises(RequestError) as wrong:
        tokenizer_from_state({"name": "bpe", "model": json.dumps(model)})
    assert wrong.value.reasons == ["model.vocab: its ids are not 0, 1, 2, …"]
