"""The folder of a run: a record of each part, its output and figures, and the page that sums them up."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .parts import PARTS, Part
from .promises import Figures, judge

MET, MISSED, FAILED, STOPPED, NOT_RUN = "met", "MISSED", "FAILED", "STOPPED", "not run"
DONE = (MET, MISSED)  # what is not run again
OUTDATED = "only with other sources or versions"


@dataclass
class Record:
    """What became of one part.

    Attributes:
        result: `met`, `MISSED` (it ran to its end, and a bar was missed or a test failed), `FAILED`, `STOPPED` at its
            limit, or `not run`.
        detail: the reason, a sentence; empty where there is none.
        seconds: how long it took.
        fingerprint: of what the result depends on.
        at: when it began, UTC.
    """

    result: str
    detail: str = ""
    seconds: float = 0.0
    fingerprint: str = ""
    at: str = ""


class Results:
    """A folder of results. Each part that ends is written at once.

    Attributes:
        fingerprints: of what each part's result would depend on now, by its name.
    """

    def __init__(self, folder: Path, fingerprints: dict[str, str]) -> None:
        self.folder = folder
        self.fingerprints = fingerprints
        self.records: dict[str, Record] = {}
        if (kept := self._read("run.json")) is not None:
            self.records = {name: Record(**record) for name, record in kept.items()}

    def output(self, part: Part) -> Path:
        return self.folder / f"{part.name}.txt"

    def json(self, part: Part) -> Path:
        return self.folder / f"{part.name}.json"

    def record(self, part: Part) -> Record:
        """What became of a part; one that was run with other sources or versions counts as not run."""
        record = self.records.get(part.name, Record(NOT_RUN, "not asked for"))
        if record.result in DONE and record.fingerprint != self.fingerprints[part.name]:
            return Record(NOT_RUN, f"{OUTDATED}, {record.at}: {record.result}")
        return record

    def done(self, part: Part) -> bool:
        """Whether the part was run to its end, and nothing that it depends on has changed."""
        return self.record(part).result in DONE and self._read(self.json(part).name) is not None

    def keep(self, part: Part, record: Record) -> None:
        self.records[part.name] = record
        text = json.dumps({name: asdict(record) for name, record in self.records.items()}, indent=1)
        beside = self.folder / "run.json.new"  # a run that is cut off leaves the old one or the new one
        beside.write_text(text + "\n", "utf-8")
        beside.replace(self.folder / "run.json")

    def figures(self) -> dict[str, dict[str, Any]]:
        """Of every part that is done."""
        read = {part.name: self._read(self.json(part).name) for part in PARTS if self.record(part).result in DONE}
        return {name: figures for name, figures in read.items() if figures is not None}

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.folder / name).read_text("utf-8"))
        except (FileNotFoundError, ValueError):
            return None  # cut off while it was written: as if it were not there
        return found


def lines(figures: Mapping[str, Figures]) -> list[str]:
    """What became of each promise, a line each."""
    found = []
    for promise, decision in judge(figures):
        word = "undecided" if decision is None else "confirmed" if decision[0] else "REFUTED"
        silent = f"`{promise.part}` {'does not tell' if promise.part in figures else 'was not run'}"
        figure = silent if decision is None else decision[1]
        found.append(f"{word:10} {promise.page}: “{promise.words}”: {figure}")
    return found


def flat(text: str) -> str:
    """In one line."""
    return re.sub(r"\s+", " ", text)


def page(results: Results, checks: dict[str, Any], date: str) -> str:
    """The README of the folder."""
    figures = results.figures()
    found, lacking = checks["found"], checks["lacking"]
    title = found.get("GPU", "no GPU")
    text = [f"# {title}, {date}", "", "Written by `python -m benchmarks.gpu`.", "", f"- machine: {checks['machine']}"]
    text += [f"- {name}: {flat(value)}" for name, value in found.items()]
    text += [f"- {name} is **missing**: {flat(value)}" for name, value in lacking.items()]
    text += ["", "## Parts", "", "| part | what | result | time | bars met | counted |", "|---|---|---|---|---|---|"]
    details = []
    for part in PARTS:
        record = results.record(part)
        read = figures.get(part.name, {})
        met = [met_bar(bar) for bar in read.get("bars", ())]
        counts = ", ".join(f"{count:,} {name}" for name, count in read.get("counts", {}).items())
        seconds = f"{record.seconds:.0f} s" if record.seconds else ""
        bars = f"{sum(met)} of {len(met)}" if met else ""
        text.append(f"| `{part.name}` | {part.title} | {record.result} | {seconds} | {bars} | {counts} |")
        if record.detail:
            details.append(f"- `{part.name}` {record.result}: {flat(record.detail)}")
    text += ["", *details] if details else []
    text += ["", "Each part's output is in a text file of its name, its figures in a JSON file.", "", "## Promises", ""]
    text += [f"- {flat(line)}" for line in lines(figures)]
    return "\n".join(text) + "\n"


def met_bar(bar: dict[str, Any]) -> bool:
    return bool(bar["value"] <= bar["limit"] if bar["at_most"] else bar["value"] >= bar["limit"])
