"""What holds on a directory holds on an object store: the same scenarios, run over one."""

from __future__ import annotations

import pytest

from kassette_nb.storage.objects import ObjectStorage
from tests.unit.test_parallel_blocks import *  # noqa: F403
from tests.unit.test_runs_of_a_workflow import *  # noqa: F403
from tests.unit.test_the_life_of_a_run import *  # noqa: F403
from tests.unit.test_the_panel import *  # noqa: F403
from tests.unit.test_three_rules import *  # noqa: F403
from tests.unit.test_waits import *  # noqa: F403

# These strike within milliseconds of a start, when over a network nothing has begun yet, or set
# how fast a local file is followed; what they promise is tested here by other means.
del test_clean_up_at_the_end_of_the_loop_does_not_act  # noqa: F821
del test_the_panel_follows_another_writer_while_somebody_looks  # noqa: F821


@pytest.fixture  # type: ignore[no-redef]  # that is the point
def storage(bucket: str) -> ObjectStorage:
    return ObjectStorage(bucket)
