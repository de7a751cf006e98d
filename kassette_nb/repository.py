"""A tree's own git repository, made again for a fork of it."""

from __future__ import annotations

import shutil
from pathlib import Path

from . import git, refs
from .errors import WorkspaceError


def clone(
    private: Path,
    origin: Path | None,
    directory: Path,
    head: str | None,
    branch: str | None,
    known: str | None,
) -> None:
    """Give a directory a repository of its own, at the same HEAD and branch.

    Args:
        private: The repository that keeps the commits HEAD was ever seen at.
        origin: The tree whose refs, tags, settings and hooks are taken; None where it is gone.
        directory: Has no ``.git`` yet.
        head: The commit that HEAD was at.
        branch: The branch; None for a detached HEAD.
        known: The refs, as `kassette_nb.refs.read` gave them; None: as they are now.
    """
    what = f"give {directory} its repository"
    made = directory / ".git"
    if origin is not None:
        git.call(
            "clone", "-q", "--mirror", "--local", "--template=", str(origin), str(made), what=what
        )
        common = git.common_directory(origin)
        # Its settings are those that the agent would have had; its remote is not the user's tree.
        for name in ("config", "hooks", "info"):
            _copy(common / name, made / name)
        # That of a submodule says where its files are, which is not here.
        settings = ("config", "--file", str(made / "config"))
        git.call(*settings, "--unset-all", "core.worktree", what=what, lenient=True)
        git.call(*settings, "core.bare", "false", what=what)
    else:
        git.call("init", "-q", "--template=", str(directory), what=what)
    point(private, directory, head, branch, known)


def point(
    private: Path, directory: Path, head: str | None, branch: str | None, known: str | None
) -> None:
    """Let HEAD, its branch, the other refs and the index be what they were."""
    what = f"bring back HEAD in {directory}"
    place = git.directory(directory)
    assert place is not None, "asked for trees with a repository"
    env = {"GIT_DIR": str(place), "GIT_WORK_TREE": str(directory)}
    if head is not None:
        try:
            git.call("cat-file", "-e", head, env=env, what=what)
        except WorkspaceError:
            fetch = ("-q", "--no-tags", "--update-shallow", "--no-write-fetch-head")
            git.call("fetch", *fetch, str(private), head, env=env, what=what)
    refs.write(place, directory, known, private)
    if branch is not None:
        git.call("symbolic-ref", "HEAD", f"refs/heads/{branch}", env=env, what=what)
        moved = [f"refs/heads/{branch}", head] if head else ["-d", f"refs/heads/{branch}"]
        git.call("update-ref", *moved, env=env, what=what)
    elif head is not None:
        git.call("update-ref", "--no-deref", "HEAD", head, env=env, what=what)
    if head is not None:
        git.call("read-tree", head, env=env, what=what)
        git.call("update-index", "-q", "--refresh", env=env, what=what, lenient=True)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)
    elif source.exists():
        shutil.copy2(source, target)
