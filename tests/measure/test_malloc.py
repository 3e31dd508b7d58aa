"""Freed memory is kept: pages are counted, no clock is read."""

import json
import subprocess
import sys

import pytest

COUNT = """
import json, resource, sys, torch
from attnzoo.measure.malloc import keep_freed_memory

def work():
    kept = [torch.ones(2**21) for _ in range(20)]  # 160 MiB, as a step would hold them

def faults():
    work(), work()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(json.dumps([faults(), keep_freed_memory(), faults()]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is the C library's of Linux")
def test_a_step_takes_the_pages_that_the_last_one_left():
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    before, kept, after = json.loads(done.stdout)
    if not kept:
        pytest.skip("this C library takes no such setting")
    assert after * 10 < before
