"""Reading a loss without waiting for the device."""

from __future__ import annotations

import time

import pytest

from tests.integrations.launched import needs

pytestmark = [
    needs("torch"),
    pytest.mark.filterwarnings("ignore:Failed to initialize NumPy:UserWarning"),  # torch without numpy, at its import
]


def test_a_loss_on_the_cpu_is_a_number_at_once() -> None:
    import torch

    from resilience.integrations.torch import LossTap

    tap = LossTap()
    assert tap(torch.tensor(2.5, requires_grad=True)) == 2.5
    assert tap(torch.tensor([[3.0]])) == 3.0
    assert tap(4) == 4.0


def test_several_numbers_are_no_loss() -> None:
    import torch

    from resilience.integrations.torch import LossTap

    with pytest.raises(ValueError, match="reduce it to one number"):
        LossTap()(torch.ones(3))


def test_a_device_that_cannot_be_asked_without_waiting_is_not_read() -> None:
    import torch

    from resilience.integrations.torch import LossTap

    assert LossTap()(torch.empty((), device="meta")) is None


def test_a_loss_on_a_gpu_arrives_later_without_waiting() -> None:
    import torch

    from resilience.integrations.torch import LossTap

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    tap = LossTap()
    assert tap(torch.tensor(1.0, device="cuda", dtype=torch.bfloat16)) is None
    torch.cuda.synchronize()
    torch.cuda._sleep(2_000_000_000)  # the device is busy for about a second
    began = time.monotonic()
    assert tap(torch.tensor(7.0, device="cuda")) == 1.0  # copied before; the new one is queued after the sleep
    assert tap(torch.tensor(8.0, device="cuda")) is None
    assert time.monotonic() - began < 0.2
    torch.cuda.synchronize()
    assert tap(torch.tensor(9.0, device="cuda")) == 7.0
