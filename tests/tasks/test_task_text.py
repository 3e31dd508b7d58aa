"""Text as a task: labels shifted once, every validation token scored once, batches from (seed, step) alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnzoo.data.config import DataConfig
from attnzoo.data.corpus import Splits
from attnzoo.errors import RequestError
from attnzoo.shapes import IGNORE
from attnzoo.tasks import TextTask, build_task
from attnzoo.tasks.config import TaskConfig
from attnzoo.tasks.text import TextOptions
from attnzoo.tokenizers import BPETokenizer, ByteTokenizer


def task_of(train, validation, n_tokens: int, seed: int = 0, **settings) -> TextTask:
    corpus = Splits(train, validation, ByteTokenizer(), len(train), len(validation), {})
    return reading(corpus, n_tokens, seed, **settings)


def reading(corpus: Splits, n_tokens: int, seed: int = 0, **settings) -> TextTask:
    task = TextTask(TextOptions(**settings), n_tokens=n_tokens, seed=seed)
    task.take(corpus)
    return task


COUNT = torch.arange(200, dtype=torch.uint8)


def test_targets_are_shifted_once():
    (batch,) = task_of(COUNT, torch.tensor([1, 2, 3, 4], dtype=torch.uint8), 3).validation_batches(8)
    assert batch.tokens.tolist() == [[1, 2, 3]]
    assert batch.targets.tolist() == [[2, 3, 4]]


@given(
    n=st.integers(2, 200),
    n_tokens=st.integers(2, 40),
    batch_size=st.integers(1, 9),
    limit=st.none() | st.integers(2, 250),
)
def test_every_validation_token_but_the_first_is_scored_once_in_order(n, n_tokens, batch_size, limit):
    task = task_of(COUNT, COUNT[:n], n_tokens, validation_tokens=limit)
    batches = list(task.validation_batches(batch_size))
    tokens, targets = torch.cat([b.tokens for b in batches]), torch.cat([b.targets for b in batches])
    scored = targets != IGNORE
    expected = min(n - 1, limit or n)
    assert targets[scored].tolist() == list(range(1, expected + 1))
    assert torch.equal(tokens[scored] + 1, targets[scored])
    assert task.n_scored == expected
    assert all(len(b.tokens) == batch_size for b in batches[:-1])
    assert tokens.shape[1] == n_tokens
    assert tokens.dtype == targets.dtype == torch.int64


def test_a_batch_depends_on_seed_and_step_alone():
    task = task_of(COUNT, COUNT, 16)
    straight = [task.train_batch(step, 4) for step in range(5)]
    resumed = task_of(COUNT, COUNT, 16)
    assert torch.equal(resumed.train_batch(3, 4).tokens, straight[3].tokens)
    assert not torch.equal(straight[3].tokens, straight[4].tokens)
    assert not torch.equal(task_of(COUNT, COUNT, 16, seed=1).train_batch(3, 4).tokens, straight[3].tokens)


def test_the_order_is_the_same_everywhere():
    """Pinned: a record's seed must mean the same batches tomorrow and on another machine."""
    assert task_of(COUNT, COUNT, 4).train_batch(7, 6).tokens[:, 0].tolist() == [50, 110, 63, 143, 89, 146]


def test_training_windows_reach_both_ends_and_no_further():
    task = task_of(COUNT[:20], COUNT, 16)
    batch = task.train_batch(0, 200)
    assert set(batch.tokens[:, 0].tolist()) == {0, 1, 2, 3}  # 20 tokens hold four windows of 17
    assert torch.equal(batch.tokens + 1, batch.targets)


def test_training_windows_are_uniform():
    starts = torch.cat([task_of(COUNT, COUNT, 8).train_batch(step, 64).tokens[:, 0] for step in range(300)])
    counts = torch.bincount(starts, minlength=192).double()
    expected = len(starts) / 192
    chi2 = ((counts - expected) ** 2 / expected).sum()
    assert 191 - 5 * (2 * 191) ** 0.5 < chi2 < 191 + 5 * (2 * 191) ** 0.5  # five standard deviations


def test_bits_per_byte_are_those_of_the_scored_tokens():
    pytest.importorskip("tokenizers")
    text = "the whale and the sea\n" * 50
    bpe = BPETokenizer.train(text.encode(), 270)
    ids = torch.from_numpy(bpe.encode_array(text.encode()))
    task = reading(Splits(ids, ids, bpe, 0, 0, {}), 8, validation_tokens=17)
    assert task.bytes_per_token == len(bpe.decode(ids[1:18].tolist()).encode()) / 17
    assert task.bytes_per_token > 1
    assert task_of(COUNT, COUNT, 8).bytes_per_token == 1.0


def test_moby_dick_as_a_task():
    task = build_task(TaskConfig(n_tokens=256), DataConfig(), seed=0)
    assert (task.name, task.vocab_size, task.chance, task.bytes_per_token) == ("text", 256, None, 1.0)
    batch = task.train_batch(0, 8).to("cpu")
    assert batch.tokens.shape == batch.targets.shape == (8, 256)
    assert torch.equal(batch.tokens[:, 1:], batch.targets[:, :-1])
    scored = sum(int((b.targets != IGNORE).sum()) for b in task.validation_batches(64))
    assert scored == len(task.corpus.validation) - 1


def test_wrong_requests_are_refused_with_every_reason():
    with pytest.raises(RequestError) as caught:
        build_task(
            TaskConfig(n_tokens=0, options={"validation_tokens": 0}),
            DataConfig(name="moby", validation_fraction=2),
            seed=-1,
        )
    reasons = "\n".join(caught.value.reasons)
    for expected in (
        "task.n_tokens=0",
        "task.validation_tokens=0",
        "unknown corpus 'moby'",
        "validation_fraction",
        "seed=-1",
    ):
        assert expected in reasons


def test_an_unknown_task_names_the_nearest():
    with pytest.raises(RequestError, match=r"unknown task 'recal'; did you mean 'recall'\? valid: mqar, recall, text"):
        build_task(TaskConfig(name="recal"), DataConfig(), seed=0)


def test_a_text_shorter_than_a_window_names_both_splits(tmp_path):
    (tmp_path / "short.txt").write_text("Call me Ishmael.")
    cfg = DataConfig(name="files", options={"paths": [str(tmp_path / "short.txt")]})
    with pytest.raises(RequestError, match="too short") as caught:
        build_task(TaskConfig(n_tokens=16), cfg, seed=0)
    assert len(caught.value.reasons) == 2


def test_repeated_text_is_refused_unless_allowed(tmp_path):
    (tmp_path / "copies.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 200)
    cfg = DataConfig(name="files", options={"paths": [str(tmp_path / "copies.txt")]})
    with pytest.raises(RequestError, match="share text"):
        build_task(TaskConfig(n_tokens=16), cfg, seed=0)
    cfg.allow_shared_text = True
    assert build_task(TaskConfig(n_tokens=16), cfg, seed=0).n_scored > 0
