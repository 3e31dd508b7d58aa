"""Bytes and BPE: lossless, deterministic, saved and read back."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnzoo.data.tokenizer import BPETokenizer, ByteTokenizer, tokenizer_from_state
from attnzoo.errors import RequestError

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
        "import sys, json; from attnzoo.data.tokenizer import BPETokenizer\n"
        "print(json.dumps(BPETokenizer.train(sys.stdin.buffer.read(), 280).state()))"
    )
    out = subprocess.run([sys.executable, "-c", code], input=TEXT.encode(), capture_output=True, check=True).stdout
    assert json.loads(out) == bpe.state()


@pytest.mark.parametrize("state", [{}, {"name": "bype"}, {"name": "bpe", "model": "{"}, {"name": "bpe"}])
def test_a_damaged_state_is_refused(state):
    with pytest.raises(RequestError, match="tokenizer"):
        tokenizer_from_state(state)
