"""The verdicts that are kept on this computer."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from dataclasses import asdict, fields
from pathlib import Path

from labkit.course.claims.ledger import OPEN, Settled, all
from labkit.files import new_file
from labkit.models.forge import models_dir

SCHEMA = 1


def records_path() -> Path:
    """Where verdicts are kept: ``claims.json`` in $LABKIT_HOME, or in ~/.cache/labkit."""
    return models_dir().parent / "claims.json"


def record(settled: Iterable[Settled]) -> Path:
    """Keep verdicts; a newer one replaces an older, but ``open`` replaces nothing.

    Returns:
        The file.

    Raises:
        OSError: it cannot be written.
    """
    kept = recorded()
    for row in settled:
        if row.verdict != OPEN or row.id not in kept:
            kept[row.id] = row
    values = {"schema": SCHEMA, "claims": [asdict(kept[key]) for key in sorted(kept)]}
    with new_file(records_path()) as file:
        file.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
    return records_path()


def recorded() -> dict[str, Settled]:
    """The verdicts kept on this computer, by id. A damaged file is left out, with a warning."""
    path = records_path()
    known, ids = {item.name for item in fields(Settled)}, {claim.id for claim in all()}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        rows = [{key: value for key, value in row.items() if key in known} for row in values["claims"]]
        return {row["id"]: Settled(**row) for row in rows if row["id"] in ids}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, AttributeError):
        warnings.warn(f"{path} is damaged, so the verdicts in it are left out: settle the claims again.", stacklevel=2)
        return {}
