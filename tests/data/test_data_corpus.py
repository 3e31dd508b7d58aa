"""Split first, tokens second; nothing in both splits."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnzoo.data.config import DataConfig
from attnzoo.data.corpus import Splits, check_disjoint, conditional_entropy, load_corpus, shared_text, split
from attnzoo.errors import RequestError
from attnzoo.tokenizers import ByteTokenizer


@pytest.fixture(scope="module")
def moby_dick():
    return load_corpus(DataConfig())


def corpus_of(train: bytes, validation: bytes) -> Splits:
    tokens = [torch.from_numpy(np.frombuffer(text, np.uint8).copy()) for text in (train, validation)]
    return Splits(*tokens, ByteTokenizer(), len(train), len(validation), {})


def noise(n: int, seed: int) -> bytes:
    return np.random.default_rng(seed).integers(97, 123, n, dtype=np.uint8).tobytes()


@given(text=st.text(min_size=2), fraction=st.floats(0.01, 0.99))
def test_the_splits_are_the_text_cut_once_between_characters(text, fraction):
    raw = text.encode()
    train, validation = split(raw, fraction)
    assert train + validation == raw
    train.decode(), validation.decode()
    assert abs(len(validation) - fraction * len(raw)) <= 3.5  # rounding, and three more bytes of a character


def test_moby_dick_is_split_at_its_end(moby_dick):
    assert len(moby_dick.train) + len(moby_dick.validation) == 1_204_997
    assert len(moby_dick.validation) == moby_dick.n_bytes_validation == pytest.approx(120_500, abs=3)
    assert moby_dick.tokenizer.decode(moby_dick.validation.tolist()).endswith("five thousand years ago.\n")
    assert moby_dick.provenance["tokenizer"] == "bytes"


def test_the_entropies_of_moby_dick(moby_dick):
    """What a loss in bits per byte is compared with. Counted once by an independent script (collections.Counter)."""
    found = [conditional_entropy(moby_dick.validation, context) for context in range(4)]
    assert found == pytest.approx([4.559, 3.460, 2.724, 2.009], abs=6e-4)
    whole = torch.cat([moby_dick.train, moby_dick.validation])
    assert conditional_entropy(whole, 0) == pytest.approx(4.526, abs=6e-4)


def test_the_entropy_of_what_is_known():
    assert conditional_entropy(torch.arange(8, dtype=torch.uint8), 0) == pytest.approx(3.0)
    assert conditional_entropy(torch.tensor([0, 1] * 50, dtype=torch.uint8), 1) == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(RequestError):
        conditional_entropy(torch.zeros(9), 8)


def test_moby_dick_shares_nothing_between_its_splits(moby_dick):
    check_disjoint(moby_dick)
    check_disjoint(moby_dick, run_bytes=96)  # pieces of 48 bytes; the longest that recurs has 47


@given(start=st.integers(0, 3000 - 256), at=st.integers(0, 1000))
def test_a_copied_run_is_found_wherever_it_stands(start, at):
    train, validation = noise(3000, 1), noise(1000, 2)
    copied = validation[:at] + train[start : start + 256] + validation[at:]
    with pytest.raises(RequestError, match="share text"):
        check_disjoint(corpus_of(train, copied))


def test_a_run_of_less_than_half_is_no_copy():
    train = noise(3000, 1)
    corpus = corpus_of(train, noise(500, 2) + train[1000:1127] + noise(500, 3))
    assert shared_text(corpus) == []
    check_disjoint(corpus)


def test_a_text_that_stands_twice_in_the_files_is_found(tmp_path, moby_dick):
    """The embedded book's source package has this shape: the whole text, and its chapters again."""
    text = moby_dick.tokenizer.decode(moby_dick.train[:20_000].tolist())
    (tmp_path / "whole.txt").write_text(text, encoding="utf-8")
    (tmp_path / "chapter.txt").write_text(text[-4000:], encoding="utf-8")
    paths = [str(tmp_path / "whole.txt"), str(tmp_path / "chapter.txt")]
    with pytest.raises(RequestError, match=r"allow_shared_text"):
        check_disjoint(load_corpus(DataConfig(name="files", options={"paths": paths})))


def test_bpe_learns_from_the_training_split_alone(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "a.txt").write_text("ab cd " * 300 + "\n" + "zq " * 60)
    cfg = DataConfig(name="files", tokenizer="bpe", options={"paths": [str(tmp_path / "a.txt")], "bpe_vocab": 300})
    corpus = load_corpus(cfg)
    assert corpus.validation.dtype == corpus.train.dtype == torch.int32
    assert len(corpus.tokenizer.encode("ab")) == 1
    assert len(corpus.tokenizer.encode("zq")) == 2  # seen in validation only
    decoded = [corpus.tokenizer.decode(part.tolist()) for part in (corpus.train, corpus.validation)]
    assert "".join(decoded) == (tmp_path / "a.txt").read_text() + "\n"
