"""Names of folders and W&B runs: what differs has two names, on file systems that know no capital letters too."""

from __future__ import annotations

import itertools

import pytest

import attnzoo
from attnzoo.comparison.plan import plan
from attnzoo.comparison.sweep import expand, plan_sweep
from attnzoo.names import file_name, wandb_name
from attnzoo.training.config import to_yaml

ALIKE = [
    "a/b",
    "a-b",
    "a b",
    "a,b",
    "A-b",
    "a\\b",
    "a:b",
    "ä-b",
    "a.b",
    ".a-b",
    "a-b.",
    "-a-b",
    "a--b",
    "a-b\n",
    "x" * 400,
    "x" * 401,
]


def test_what_differs_has_two_names():
    texts = [*ALIKE, *map(file_name, ALIKE)]  # a name that looks as if it had a hash is not another's
    names = {text: file_name(text).lower() for text in texts}
    assert len(set(names.values())) == len(set(texts))
    for name in names.values():
        assert name.isascii()
        assert len(name) <= 128
        assert not set(name) & set("/\\: ,\n")
        assert name[0] not in ".-"


def test_a_plain_name_stays_as_it_is():
    assert file_name("attention=sdpa_seed=0") == "attention=sdpa_seed=0"
    assert file_name("Mine-seed0", keep_case=True) == "Mine-seed0"
    assert file_name("3xgla+sdpa-seed0") == "3xgla+sdpa-seed0"


def test_wandb_names_are_short_and_differ():
    assert wandb_name("x" * 128) == "x" * 128
    assert wandb_name(None) is None
    assert len({wandb_name("x" * n) for n in range(128, 200)}) == 72
    assert max(len(wandb_name("x" * n)) for n in range(300)) == 128


def test_swept_values_that_look_alike_have_folders_of_their_own():
    jobs = expand(["data.paths=['a/b.txt'],['a-b.txt'],['a b.txt'],['A-b.txt']"])
    assert len({job.name.lower() for job in jobs}) == 4
    long = expand([f"model.attention_pattern=[{'sdpa,' * 80}gla],[{'sdpa,' * 80}linear]"])
    assert len({job.name for job in long}) == 2
    assert max(len(job.name) for job in long) <= 128


def test_a_folder_of_before_is_found_by_its_old_name_where_it_is_the_same_run(tmp_path):
    asked = ["experiment=tiny", "logger.project=p", "task.n_tokens=8,16", "model.attention_pattern=[sdpa,gla],[sdpa,linear]",
             "model.n_layers=2", f"run_dir={tmp_path}"]  # fmt: skip
    first, *others = plan_sweep(asked).cells
    old = "model.attention_pattern=-sdpa-gla-_task.n_tokens=8"
    assert first.run != old
    (tmp_path / old).mkdir()
    (tmp_path / old / "config.yaml").write_text(to_yaml(first.cfg))
    again = plan_sweep(asked).cells
    assert again[0].run == old
    assert again[0].cfg.logger.name == old
    assert [cell.run for cell in again[1:]] == [cell.run for cell in others]
    (tmp_path / old / "config.yaml").write_text(to_yaml(others[0].cfg))  # another run's: not taken
    assert plan_sweep(asked).cells[0].run == first.run


def test_backends_that_differ_in_capital_letters(tmp_path):
    from dataclasses import replace

    cfg = attnzoo.compose("compare", ["experiment=tiny", "backends=[sdpa]", f"run_dir={tmp_path}"])
    both = plan(replace(cfg, backends=["Mine", "mine"])).cells
    assert [cell.run for cell in plan(replace(cfg, backends=["Mine"])).cells] == ["Mine-seed0"]
    assert both[1].run == "mine-seed0"
    assert both[0].run.startswith("Mine-seed0-")
    assert both[0].folder.name == both[0].cfg.logger.name == both[0].run


@pytest.mark.parametrize("name", ["../x", "a/b"])
def test_no_name_leads_out_of_its_folder(tmp_path, name):
    from dataclasses import replace

    from attnzoo.config import default_folder
    from attnzoo.training.config import AttentionConfig

    cfg = attnzoo.compose("compare", ["experiment=tiny", "backends=[sdpa]", f"run_dir={tmp_path}"])
    (cell,) = plan(replace(cfg, backends=[name])).cells
    assert cell.folder.resolve().parent == tmp_path.resolve()
    run = replace(attnzoo.compose("train", ["experiment=tiny"]), attention=AttentionConfig(name, {}))
    assert default_folder(run).count("/") == 1
    assert ".." not in default_folder(run)


def test_every_pair_of_short_texts():
    texts = ["".join(letters) for n in (1, 2, 3) for letters in itertools.product("aA/- .", repeat=n)]
    assert len({file_name(text).lower() for text in texts}) == len(texts)
