from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch._inductor.config as inductor_config

pytest.register_assert_rewrite("harness")


@pytest.fixture(autouse=True)
def _same_random_numbers_as_eager() -> Iterator[None]:
    with inductor_config.patch(fallback_random=True):
        torch.manual_seed(0)
        yield
