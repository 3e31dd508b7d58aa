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


MATRICES = """
import ctypes, json, torch
from attnzoo.measure.malloc import keep_freed_memory

class Info(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in
                "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

mallinfo2 = ctypes.CDLL(None).mallinfo2
mallinfo2.restype = Info
kept = keep_freed_memory()
matrices = [torch.empty(2**28) for _ in range(3)]  # a GiB each, of which no page is touched
apart = mallinfo2().hblkhd
del matrices
print(json.dumps([kept, apart, mallinfo2().arena]))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is the C library's of Linux")
def test_a_step_takes_the_pages_that_the_last_one_left():
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    before, kept, after = json.loads(done.stdout)
    if not kept:
        pytest.skip("this C library takes no such setting")
    assert after * 10 < before


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mallopt is the C library's of Linux")
def test_matrices_of_a_gibibyte_are_kept_too():
    done = subprocess.run([sys.executable, "-c", MATRICES], capture_output=True, text=True)
    if "mallinfo2" in done.stderr or not json.loads(done.stdout)[0]:
        pytest.skip("this C library takes no such setting, or does not say what it holds")
    _, apart, held = json.loads(done.stdout)
    assert apart < 2**30, "they went past the heap, and back to the system with every call"
    assert held >= 3 * 2**30, "what was freed went back"
