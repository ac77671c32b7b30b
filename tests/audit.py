"""Known vulnerabilities of the packages that are pinned here: `make check-audit` asks where that can be asked.

pip-audit asks PyPI, or else OSV, about `tests/constraints.txt`; `npm audit` asks about `package-lock.json`, whose
packages are bundled. A service that does not answer is one sentence and no failure: a mirror has no advisories,
and a machine without a network has none either. What is vulnerable fails, unless `ACCEPTED` says why it may stay, or
with AUDIT=report: an advisory of today is not to hold up a change that has nothing to do with it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from kernel_monitor.text import line

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "tests" / "constraints.txt"
ACCEPTED: dict[str, str] = {}
"""Advisories that concern nothing here: the id (PYSEC-…, GHSA-…, CVE-…), and why."""
SERVICES = (("--vulnerability-service", "pypi"), ("--vulnerability-service", "osv"))
_LANES = 4  # pip-audit asks one question after the other
_LONGEST_S = 90.0


class Audit(NamedTuple):
    """What is known of some packages: sentences about vulnerable ones; `unchecked` says why nothing could be asked."""

    vulnerable: list[str]
    unchecked: str = ""


class NoAnswerError(Exception):
    """A service does not answer; the text says why."""


def python_packages(constraints: Path = CONSTRAINTS, services: Sequence[Sequence[str]] = SERVICES) -> Audit:
    """Ask about every pinned package, the first of these services that knows any."""
    pins = [pin for pin in constraints.read_text().splitlines() if "==" in pin and not pin.startswith("#")]
    causes = []
    for service in services:
        try:
            _pip_audit([next(pin for pin in pins if ";" not in pin)], service)
            with ThreadPoolExecutor(_LANES) as lanes:
                parts = [lanes.submit(_pip_audit, part, service) for n in range(_LANES) if (part := pins[n::_LANES])]
            return Audit(sorted(found for part in parts for found in part.result()))
        except NoAnswerError as error:
            causes.append(line(str(error), 120))
    return Audit([], "; ".join(causes))


def _pip_audit(pins: Sequence[str], service: Sequence[str]) -> list[str]:
    """Return a sentence for each vulnerable package; NoAnswerError if the service knows none of them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pins.txt"
        file.write_text("\n".join(pins))
        command = ["-m", "pip_audit", "--requirement", str(file), "--no-deps", "--disable-pip", "--format", "json"]
        answer, said = _asked([sys.executable, *command, "--progress-spinner", "off", "--timeout", "10", *service])
    packages = answer.get("dependencies")
    if packages is None:
        raise NoAnswerError(said)
    skipped = [package["skip_reason"] for package in packages if "skip_reason" in package]
    if packages and len(skipped) == len(packages):
        raise NoAnswerError(skipped[0])
    return [
        f"{package['name']} {package['version']}: {advisory['id']}, mended in "
        f"{', '.join(advisory['fix_versions']) or 'no version'}"
        for package in packages
        for advisory in package.get("vulns", ())
        if not {advisory["id"], *advisory["aliases"]} & {*ACCEPTED}
    ]


def npm_packages(*options: str) -> Audit:
    """Ask about every package of the lock file; options are npm's."""
    limits = ("--fetch-retries=0", "--fetch-timeout=20000")
    answer, said = _asked(["npm", "audit", "--json", "--package-lock-only", *limits, *options])
    if "vulnerabilities" not in answer:
        return Audit([], line(str(answer.get("message") or said), 120))
    found = {
        f"{advisory['name']} {advisory['range']}: {advisory['url']}, {advisory['title']} ({advisory['severity']})"
        for package in answer["vulnerabilities"].values()
        for advisory in package["via"]
        if isinstance(advisory, dict) and advisory["url"].rpartition("/")[2] not in ACCEPTED
    }
    return Audit(sorted(found))


def _asked(command: list[str]) -> tuple[dict[str, Any], str]:
    """Return a program's JSON, empty if it wrote none, and the last error that it wrote beside it."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", timeout=_LONGEST_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return {}, str(error)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {}
    lines = done.stderr.strip().splitlines() or ["it says nothing"]
    # Of a traceback the last cause that has words.
    return answer, next((said for said in reversed(lines) if "Error: " in said), lines[-1])


def main() -> int:
    """Print what is vulnerable, or why nothing could be asked; return 1 if something is vulnerable."""
    with ThreadPoolExecutor() as both:
        audits = {"Python packages": both.submit(python_packages), "npm packages": both.submit(npm_packages)}
    failed = False
    for what, asked in audits.items():
        audit = asked.result()
        failed = failed or bool(audit.vulnerable)
        if audit.unchecked:
            print(f"{what}: not checked: {audit.unchecked}")
        else:
            print("\n".join([f"{what}: {len(audit.vulnerable)} known vulnerabilities", *audit.vulnerable]))
    return int(failed and os.environ.get("AUDIT") != "report")


if __name__ == "__main__":
    sys.exit(main())
