import subprocess
import sys

import torch

from attnzoo.kernels.compiling import constant_result


def test_marks_a_function_as_torch_does():
    def ours(): ...

    def theirs(): ...

    assert vars(constant_result(ours)) == vars(torch.compiler.assume_constant_result(theirs)) != {}


def test_loading_the_backends_does_not_load_the_compiler():
    slow = {"torch._dynamo", "torch.nn.attention.flex_attention", "sympy", "transformers"}
    code = f'import sys; from attnzoo import components; components.load("attention"); print(*sorted({slow} & set(sys.modules)))'
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
