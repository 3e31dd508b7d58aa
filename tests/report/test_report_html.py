"""The page is complete, escaped, needs nothing from elsewhere, and works in a browser."""

import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from attnzoo.errors import RequestError
from attnzoo.report import write_report


@pytest.fixture
def page(folder):
    path = write_report(folder)
    return path, path.read_text(encoding="utf-8")


def test_both_files_and_nothing_half_written(folder):
    before = {path.name for path in folder.iterdir()}
    assert write_report(folder) == folder / "report.html"
    assert {path.name for path in folder.iterdir()} - before == {"report.html", "summary.csv"}


def test_everything_is_on_the_page(page, parse):
    found = parse(page[1])
    assert not found.stack  # every element is closed
    assert "9 attention backends compared, 2 refused" in found.text
    for word in (
        "Example CPU @ 2.60GHz", "0123456789ab", "2 threads", "2026-03-01 10:00", "no CUDA device", "speed withheld",
        "seed 3 interrupted", "auto: bf16 matmul is slower here", "Call me sdpa", "fail at 63", "skipped",
        "attnzoo compare 'backends=[exact,sdpa,<b>]' 'seeds=[0,1,2]'", "taking turns",
    ):  # fmt: skip
        assert word in found.text, word
    backends = [row[0] for row in found.rows]
    for name in ("exact", "sliding_window", "xformers", "flex"):
        assert any(cell.startswith(name) for cell in backends), name
    assert sum(tag == "svg" and "chart" in attrs.get("class", "") for tag, attrs in found.tags) == 7


def test_nothing_comes_from_elsewhere(page, parse):
    text = page[1].replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not re.search(r"https?://|//cdn|@import|url\(", text)
    for tag, attrs in parse(page[1]).tags:
        assert tag not in ("link", "img", "iframe", "object", "base", "form"), tag
        assert not {"src", "href", "action"} & attrs.keys()
        assert not any(name.startswith("on") for name in attrs)  # handlers in attributes


def test_a_record_cannot_write_html(page, parse):
    found = parse(page[1])
    assert sum(tag == "script" for tag, _ in found.tags) == 1  # our own
    assert "<script>alert('x')</script> & \"quoted\" ]]>" in found.text  # shown as it is
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", page[1])


def test_nasty_names_are_escaped_everywhere(folder, records, parse):
    name = "<img src=x onerror=alert(1)>'\"&"
    for path in folder.glob("exact-*/record.json"):
        record = json.loads(path.read_text())
        record.update(attention=name, kernel_resolved=name, positions=name)
        record["quality"]["task_accuracy"][name] = 0.5
        record["leak"]["tests"][0]["name"] = name
        record["environment"][name] = name
        record["cost"]["train_step_ms"]["ratio"]["to"] = name
        path.write_text(json.dumps(record))
    found = parse(write_report(folder).read_text(encoding="utf-8"))
    assert not any(tag == "img" for tag, _ in found.tags)
    assert found.text.count(name) > 8


def test_svg_is_xml(page):
    charts = re.findall(r"<svg.*?</svg>", page[1], re.S)
    assert len(charts) > 7
    for chart in charts:
        ElementTree.fromstring(chart)


def test_best_only_where_it_belongs(page):
    cells = re.findall(r'<td class="num best"[^>]*>([^<]*)', page[1])
    assert "2.341" in cells
    assert "1.05" not in cells


def test_a_single_run_and_a_folder_with_refused_cells_only(folder):
    assert "sdpa: what it costs" in write_report(folder / "sdpa-s0").read_text()
    assert "refused" in write_report(folder / "flex-s0").read_text()


def test_a_wrong_folder_leaves_nothing(tmp_path):
    with pytest.raises(RequestError):
        write_report(tmp_path)
    assert not list(tmp_path.iterdir())


SORT = """
<script>
addEventListener("error", event => document.title = "ERROR " + event.message);
addEventListener("load", () => {
  const button = [...document.querySelectorAll("#rows thead button")].find(b => b.textContent.includes("bits/byte"));
  const names = () => [...document.querySelectorAll("#rows tbody th .who")].map(c => c.textContent.trim()).join(",");
  button.click(); const up = names();
  button.click(); document.body.dataset.sorted = up + " | " + names();
});
</script>
"""


def test_sorting_in_a_browser(page, tmp_path, browse):
    """The page as it is reports no error; a copy without its policy carries a script that clicks."""
    path, text = page
    plain = browse(path, "--dump-dom")
    assert 'id="rows"' in plain.stdout
    assert "CONSOLE" not in plain.stderr  # neither errors nor violations of the page's own policy
    clicking = tmp_path / "clicking.html"
    clicking.write_text(re.sub(r"<meta http-equiv=[^>]*>", "", text).replace("</body>", SORT + "</body>"))
    dom = browse(clicking, "--dump-dom").stdout
    assert "ERROR" not in re.search(r"<title>(.*?)</title>", dom).group(1)
    up, down = re.search(r'data-sorted="(.*?)"', dom).group(1).split(" | ")
    assert up.split(",")[0] == "sliding_window"  # 2.341, the lowest
    assert down.split(",")[0] == "linear (incorrect)"
    assert up.split(",")[-2:] == down.split(",")[-2:] == ["xformers", "flex"]  # nothing to sort by: last


def test_the_policy_lets_no_other_script_run(page, tmp_path, browse):
    """Even if an escape were forgotten, a script that is not ours does not run."""
    text = page[1]
    smuggled = tmp_path / "smuggled.html"
    smuggled.write_text(text.replace("</main>", "<script>document.title = 'owned'</script></main>"))
    found = browse(smuggled, "--dump-dom")
    assert "<title>owned" not in found.stdout
    assert "Content Security Policy" in found.stderr


def test_neither_torch_nor_lightning_is_imported(folder):
    code = (
        "import sys; from attnzoo.report import write_report, print_table; write_report(sys.argv[1]); "
        "print(sorted({'torch', 'lightning', 'matplotlib', 'wandb', 'hydra'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
