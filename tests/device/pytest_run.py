"""The tests that need a device, where there is a runner for them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from tests.device.context import Finding, Skipped

if TYPE_CHECKING:
    from tests.device.context import Context
    from tests.device.plan import Item

__all__ = ["run"]

ROOT = Path(__file__).parents[2]
MARGIN = 5
"""Seconds by which they end before this process would be."""

NAMED = 6
"""Failures that the line names."""


def run(context: Context, item: Item) -> Finding:
    """Run them in a process of their own, without what the project's settings ask for beside."""
    if context.device == "cpu":
        raise Skipped("these tests need a CUDA device")
    if importlib.util.find_spec("pytest") is None:
        raise Skipped("pytest is not installed")
    report = context.folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-q", "--tb=line"]
    # The settings name plugins that may not be here.
    command += ["-c", "/dev/null", "--rootdir", str(ROOT), "-p", "no:cacheprovider"]
    command += [f"--junitxml={report}", *_files()]
    # It must not outlive this process, which is ended when its time is up.
    left = max(context.seconds_left - MARGIN, 1)
    options: dict[str, Any] = {"cwd": ROOT, "timeout": left, "check": False}
    ended = subprocess.run(command, capture_output=True, text=True, **options)
    if not report.exists():
        lines = (ended.stdout + ended.stderr).strip().splitlines()
        raise RuntimeError(lines[-1] if lines else f"pytest ended with {ended.returncode}")
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or _error(case)]
    skipped = [case for case in cases if case.find("skipped") is not None]
    passed = len(cases) - len(failed) - len(skipped)
    names = [f"{case.get('classname')}::{case.get('name')}" for case in failed]
    said = f"{passed} passed, {len(failed)} failed, {len(skipped)} left out"
    said += f": {', '.join(names[:NAMED])}" if names else ""
    figures = {
        "passed": passed,
        "failed": {name: _message(case) for name, case in zip(names, failed, strict=True)},
        "skipped": sorted({_message(case) for case in skipped}),
    }
    return Finding(not failed and passed > 0, said, figures)


def _files() -> list[str]:
    """Those that have such a test; others may import what is not installed."""
    found = ROOT.joinpath("tests").rglob("test_*.py")
    marked = [path for path in found if "mark.cuda" in path.read_text(encoding="utf-8")]
    return sorted(str(path.relative_to(ROOT)) for path in marked)


def _error(case: ElementTree.Element) -> bool:
    return case.find("error") is not None


def _message(case: ElementTree.Element) -> str:
    for kind in ("failure", "error", "skipped"):
        found = case.find(kind)
        if found is not None:
            return (found.get("message") or "")[:400]
    return ""
