"""What many tests share: monitored nodes, and the stand-ins for the driver's library, each compiled once."""

import pytest

from monitored_node import watching
from nvml_library import DEAF, build


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """Compile the stand-in for the driver's library."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def deaf_library(tmp_path_factory):
    """Compile one whose delays no signal cuts short."""
    return build(tmp_path_factory.mktemp("deaf"), DEAF)


@pytest.fixture
async def watch():
    """Make monitored nodes; what is in flight there ends after the test."""
    async with watching() as make:
        yield make
