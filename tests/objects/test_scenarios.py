"""What holds on a directory holds on an object store: the same scenarios, run over one."""

from __future__ import annotations

import pytest

from kassette_nb.storage.objects import ObjectStorage
from tests.unit.test_budgets import *  # noqa: F403
from tests.unit.test_parallel_blocks import *  # noqa: F403
from tests.unit.test_runs_of_a_workflow import *  # noqa: F403
from tests.unit.test_the_life_of_a_run import *  # noqa: F403
from tests.unit.test_the_panel import *  # noqa: F403
from tests.unit.test_three_rules import *  # noqa: F403
from tests.unit.test_tools import *  # noqa: F403
from tests.unit.test_waits import *  # noqa: F403
from tests.unit.test_options_of_a_step import *  # noqa: F403


@pytest.fixture
def storage(bucket: str) -> ObjectStorage:
    return ObjectStorage(bucket)
