"""Every storage keeps the same promises, and the local one keeps its files private."""

import os
import stat
from pathlib import Path

import pytest

from kassette_nb.errors import StorageError
from kassette_nb.storage import LocalStorage, MemoryStorage, Storage, open_storage
from kassette_nb.testing import FaultyStorage, StorageContract


class TestMemory(StorageContract):
    def make(self, tmp_path: Path) -> Storage:
        return MemoryStorage()


class TestLocal(StorageContract):
    def make(self, tmp_path: Path) -> Storage:
        return LocalStorage(tmp_path / "runs")

    def test_files_are_for_their_owner_only(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        storage.create("a", b"one\n")
        assert stat.S_IMODE(os.stat(tmp_path / "runs").st_mode) == 0o700
        assert stat.S_IMODE(os.stat(tmp_path / "runs" / "a.jsonl").st_mode) == 0o600

    def test_looking_creates_nothing(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        assert list(storage.list()) == []
        assert storage.holder("a") is None
        assert not (tmp_path / "runs").exists()

    def test_nothing_is_left_beside_the_journal(self, tmp_path: Path) -> None:
        self.make(tmp_path).create("a", b"one\n")
        assert [p.name for p in (tmp_path / "runs").iterdir()] == ["a.jsonl"]

    def test_what_was_left_half_made_goes_and_what_another_run_is_making_stays(
        self, tmp_path: Path
    ) -> None:
        storage = self.make(tmp_path)
        storage.create("first", b"one\n")
        for name in (".a.0123abcd.tmp", ".a.2.deadbeef.tmp", ".a.0123abcd.deadbeef.tmp"):
            (tmp_path / "runs" / name).write_text("half")
        storage.create("a", b"one\n")
        left = {p.name for p in (tmp_path / "runs").glob(".*.tmp")}
        assert left == {".a.2.deadbeef.tmp", ".a.0123abcd.deadbeef.tmp"}

    def test_a_file_system_without_links_still_never_overwrites(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def no_links(*_: object) -> None:
            raise OSError(1, "Operation not permitted")

        monkeypatch.setattr(os, "link", no_links)
        self.test_a_journal_is_created_once(tmp_path)

    def test_a_replaced_file_is_noticed(self, tmp_path: Path) -> None:
        storage = self.make(tmp_path)
        token = storage.create("a", b"one\n")
        path = tmp_path / "runs" / "a.jsonl"
        path.rename(tmp_path / "old")
        path.write_bytes(b"two\n")
        with pytest.raises(Exception, match="has changed"):
            storage.append("a", b"three\n", token)
        assert path.read_bytes() == b"two\n"

    def test_a_moved_working_directory_does_not_lose_the_runs(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        storage = LocalStorage("runs")
        storage.create("a", b"one\n")
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert list(storage.list()) == ["a"]


class TestFaulty(StorageContract):
    def make(self, tmp_path: Path) -> Storage:
        return FaultyStorage(MemoryStorage())


def test_a_url_opens_its_storage(tmp_path: Path) -> None:
    assert open_storage("memory:x") is open_storage("memory:x")
    assert open_storage(f"file:{tmp_path}").place == str(tmp_path)
    assert open_storage(tmp_path).place == str(tmp_path)
    with pytest.raises(StorageError, match="unknown scheme 'ftp'"):
        open_storage("ftp://host/x")


def test_the_environment_names_the_default_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KASSETTE_STORAGE", "memory:env")
    assert open_storage() is open_storage("memory:env")
    monkeypatch.delenv("KASSETTE_STORAGE")
    assert open_storage().url == "file:.kassette"
