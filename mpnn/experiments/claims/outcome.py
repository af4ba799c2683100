"""The outcome of an experiment as data, and its files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpnn.data.files import write_text
from mpnn.experiments.claims.base import Claim, Record
from mpnn.experiments.claims.decide import UNDECIDED, Verdict, decide
from mpnn.experiments.claims.listed import CLAIMS


@dataclass(frozen=True)
class Outcome:
    """What was claimed, and the records by which it is decided: `parts` of them make it complete."""

    folder: Path
    claim: Claim
    config: dict[str, Any]
    about: dict[str, Any]
    records: Sequence[Record]
    parts: int

    @property
    def complete(self) -> bool:
        return len(self.records) == self.parts

    @property
    def verdict(self) -> Verdict:
        """Decided from all records or not at all: the first ones that were finished are no sample of them."""
        if not self.complete:
            return Verdict(UNDECIDED, (), f"{len(self.records)} of {self.parts} parts are finished")
        found = decide(self.claim.checks(self.records))
        if self.config["quick"]:
            return Verdict(UNDECIDED, found.checks, "a quick run is too short to decide")
        return found

    @property
    def note(self) -> str:
        """What the claim has to say of a whole run, such as what was missing."""
        return "" if self.config["quick"] or not self.complete else self.claim.note(self.records)

    @property
    def seconds(self) -> float:
        return sum(record["part_seconds"] for record in self.records)

    @property
    def cpu(self) -> float:
        """Seconds of processor time, which other work on the machine adds little to."""
        return sum(record["part_cpu"] for record in self.records)

    def as_dict(self) -> dict[str, Any]:
        return {
            "experiment": self.claim.name,
            "claim": self.claim.says,
            "verdict": self.verdict.as_dict(),
            "parts": self.parts,
            "seconds": round(self.seconds, 1),
            "config": self.config,
            "about": self.about,
            "records": list(self.records),
        }

    def save(self) -> None:
        """Write `results.json` (everything) and `results.csv` (a row for each part, what is no list)."""
        text = json.dumps(self.as_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        write_text(self.folder / "results.json", text + "\n")
        rows = [{k: v for k, v in one.items() if not isinstance(v, list | dict)} for one in self.records]
        table = io.StringIO()
        writer = csv.DictWriter(table, list({k: None for row in rows for k in row}), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.folder / "results.csv", table.getvalue())

    @classmethod
    def read(cls, folder: str | Path) -> Outcome:
        """Read what `save` wrote; the verdict is decided anew."""
        folder = Path(folder)
        file = json.loads((folder / "results.json").read_text(encoding="utf-8"))
        claim = CLAIMS[file["experiment"]]
        return cls(folder, claim, file["config"], file["about"], file["records"], file["parts"])
