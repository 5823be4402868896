"""Fixtures and hypothesis profiles of the whole suite."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# "ci" is in force unless --hypothesis-profile says otherwise: the same examples each time.
# "long" searches: 2,000 runs of 100 steps for a state machine without settings of its own.
settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "long",
    settings.get_profile("ci"),
    derandomize=False,
    max_examples=2000,
    stateful_step_count=100,
)
settings.load_profile("ci")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of vectors and traces beside the repository; skips where there is none."""
    if not SHARED.is_dir():
        pytest.skip("not run: the folder `shared` is not beside the repository")
    return SHARED


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "shared" in getattr(item, "fixturenames", ()):
            item.add_marker("shared")
