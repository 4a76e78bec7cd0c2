"""Finds files in folders that jobs write to and remove from meanwhile, which pathlib's search cannot bear."""

import glob
from pathlib import Path


def present(folder: Path, pattern: str) -> list[Path]:
    """What fits a pattern (`**` for any depth); a folder that goes meanwhile has nothing, where `Path.glob` raises."""
    return [folder / name for name in glob.glob(pattern, root_dir=folder, recursive=True, include_hidden=True)]
