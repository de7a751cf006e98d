"""Executes the notebooks and saves them with their outputs, clean of the machine they ran on."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def refresh(path: Path) -> None:
    """Execute one notebook in its folder and write it back."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, record_timing=False, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    # Saved widget states would be shown instead of the twins, and need a kernel.
    notebook.metadata = nbformat.from_dict(METADATA)
    nbformat.write(notebook, path)
    shutil.rmtree(path.parent / "demo", ignore_errors=True)


if __name__ == "__main__":
    for given in sys.argv[1:] or sorted(map(str, NOTEBOOKS.glob("*.ipynb"))):
        refresh(Path(given))
