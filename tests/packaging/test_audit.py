"""`make check-audit`: what is vulnerable fails, and a service that does not answer is one sentence."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests import audit
from tests.audit import Audit

OSV = {
    "id": "GHSA-aaaa-bbbb-cccc",
    "aliases": ["CVE-2026-0001"],
    "summary": "reads what it should not",
    "affected": [
        {
            "package": {"name": "pillow", "ecosystem": "PyPI"},
            "ranges": [{"type": "ECOSYSTEM", "events": [{"introduced": "0"}, {"fixed": "99.1"}]}],
        }
    ],
}
NPM = {
    "id": 1,
    "url": "https://github.com/advisories/GHSA-dddd-eeee-ffff",
    "title": "runs what it should not",
    "severity": "high",
    "vulnerable_versions": "*",
    "cwe": [],
    "cvss": {"score": 7, "vectorString": None},
}


class Services(ThreadingHTTPServer):
    """OSV's and npm's service of advisories on loopback; `status` 405 is a mirror without them."""

    vulnerable = False
    status = 200

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Services

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        found: dict[str, Any] = {}
        if self.server.vulnerable:
            found = {"vulns": [OSV]} if self.path == "/v1/query" else {"typescript": [NPM]}
        self._reply(self.server.status, found)

    def do_GET(self) -> None:
        self._reply(404, {})

    def _reply(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        pass


@pytest.fixture
def services() -> Iterator[Services]:
    with Services(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def asked(services: Services, folder: Path) -> tuple[Audit, Audit]:
    pins = folder / "pins.txt"
    pins.write_text("# pinned\npillow==11.0.0\n")
    osv = ("--vulnerability-service", "osv", "--osv-url", f"{services.url}/v1/query")
    return audit.python_packages(pins, [osv]), audit.npm_packages("--registry", services.url)


def test_nothing_vulnerable_is_nothing(services: Services, tmp_path: Path) -> None:
    assert asked(services, tmp_path) == (Audit([]), Audit([]))


def test_what_is_vulnerable_is_named_unless_it_is_accepted(
    services: Services, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.vulnerable = True
    python, npm = asked(services, tmp_path)
    assert python == Audit(["pillow 11.0.0: CVE-2026-0001, mended in 99.1"])
    assert npm == Audit([f"typescript *: {NPM['url']}, runs what it should not (high)"])
    monkeypatch.setattr(audit, "ACCEPTED", {"GHSA-aaaa-bbbb-cccc": "not used", "GHSA-dddd-eeee-ffff": "not used"})
    assert asked(services, tmp_path) == (Audit([]), Audit([]))


def test_a_service_that_does_not_answer_is_a_sentence(services: Services, tmp_path: Path) -> None:
    services.status = 405
    for found in asked(services, tmp_path):
        assert found.vulnerable == []
        assert "405" in found.unchecked


@pytest.mark.parametrize(
    ("python", "npm", "status", "words"),
    [
        (Audit([]), Audit([], "no route"), 0, "npm packages: not checked: no route"),
        (
            Audit(["x 1: CVE-1, mended in 2"]),
            Audit([], "no route"),
            1,
            "1 known vulnerabilities\nx 1: CVE-1, mended in 2",
        ),
        (Audit([]), Audit(["y"]), 1, "Python packages: 0 known vulnerabilities"),
    ],
)
def test_vulnerable_packages_fail_and_unchecked_ones_do_not(
    python: Audit, npm: Audit, status: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.delenv("AUDIT", raising=False)  # CI only reports
    monkeypatch.setattr(audit, "python_packages", lambda: python)
    monkeypatch.setattr(audit, "npm_packages", lambda: npm)
    assert audit.main() == status
    assert words in capsys.readouterr().out
    monkeypatch.setenv("AUDIT", "report")
    assert audit.main() == 0
    assert words in capsys.readouterr().out
