import torch

from attnzoo.kernels.constants import constant


def test_a_table_is_made_once_a_device_and_serves_training_after_an_evaluation():
    with torch.inference_mode():
        first = constant((0.25, 0.0625), torch.device("cpu"))
    assert first.tolist() == [0.25, 0.0625]
    assert constant((0.25, 0.0625), torch.device("cpu")) is first
    assert constant((0, 3), torch.device("cpu")).dtype == torch.int64
    weight = torch.ones(2, requires_grad=True)
    (weight * first).sum().backward()  # an inference tensor could not be saved for it
    assert weight.grad.tolist() == [0.25, 0.0625]
