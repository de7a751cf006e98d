"""The rest of the scenarios over an object store."""

from __future__ import annotations

import pytest

from kassette_nb.storage.objects import ObjectStorage
from tests.unit.test_budgets import *  # noqa: F403
from tests.unit.test_options_of_a_step import *  # noqa: F403
from tests.unit.test_tools import *  # noqa: F403

pytestmark = pytest.mark.slow


@pytest.fixture  # type: ignore[no-redef]  # that is the point
def storage(bucket: str) -> ObjectStorage:
    return ObjectStorage(bucket)
