"""An object store keeps the promises of a storage."""

from pathlib import Path

import pytest

from kassette_nb.storage import Storage
from kassette_nb.storage.objects import ObjectStorage
from kassette_nb.testing import StorageContract


class TestObjects(StorageContract):
    @pytest.fixture(autouse=True)
    def _url(self, bucket: str) -> None:
        self.url = bucket

    def make(self, tmp_path: Path) -> Storage:
        return ObjectStorage(self.url)
