"""Names that people give, made into names of directories."""

from __future__ import annotations

import unicodedata

LIMIT = 120  # bytes; leaves room for suffixes under the 255 that file systems allow


def directory_name(name: str) -> str:
    """Return a directory name for a run's name: readable, bounded in bytes, distinct for distinct names.

    Raises
    ------
    ValueError
        If the name is empty, ``.`` or ``..``, or has a slash or a NUL in it.
    """
    if not isinstance(name, str):
        raise TypeError(f"name must be a text, not {type(name).__name__}")
    if not name.strip() or name in {".", ".."}:
        raise ValueError(f"name={name!r} cannot name a directory; use a text such as 'digits-1'")
    if "/" in name or "\0" in name:
        raise ValueError(
            f"name={name!r} has a slash or a NUL in it; name one directory and put its parent in storage_path"
        )
    clean = "".join("_" if unicodedata.category(c).startswith("C") else c for c in name).strip()
    if clean == name and len(clean.encode()) <= LIMIT:
        return name
    import hashlib  # rarely needed, and its libraries would make the fork of every worker slower

    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{_cut(clean, LIMIT - 9)}-{digest}"


def stored_elsewhere(checkpoint: str) -> bool:
    """Whether a checkpoint's name is the path or URL of a place that somebody else than shoal chose."""
    return "/" in checkpoint


def _cut(text: str, limit: int) -> str:
    return text.encode("utf-8", "replace")[:limit].decode("utf-8", "ignore")
