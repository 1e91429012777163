"""What every test gets: torch.compile without what earlier tests compiled, and compile caches of this run's own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator

# Before torch is imported: what another run compiled must not decide what this one tests.
_CACHE = tempfile.mkdtemp(prefix="memopt-tests-")
os.environ["TORCHINDUCTOR_CACHE_DIR"] = _CACHE
os.environ.pop("COLUMNS", None)  # what workers are told about the terminal: tests read tables as wide as a file has them

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

# How long an example takes says how busy the machine is.
settings.register_profile("memopt", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("memopt")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "inductor: compiles with inductor, which takes seconds")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        parameters = getattr(item, "callspec", None)
        if parameters is not None and "inductor" in parameters.params.values():
            item.add_marker("inductor")


def pytest_unconfigure() -> None:
    shutil.rmtree(_CACHE, ignore_errors=True)


@pytest.fixture(autouse=True)
def _fresh_torch_compile() -> Iterator[None]:
    import sys

    yield
    if "torch._dynamo" in sys.modules:
        sys.modules["torch"]._dynamo.reset()  # type: ignore[attr-defined]
