"""Check the sdist, the wheel, and the command out of that wheel.

``python tests/wheel_check.py [--torch torch==2.13.0]`` builds both with ``python -m build``, looks
at what is in them, installs the wheel into a fresh environment, and runs it in folders where a
careless package would break: one that has a package ``apps`` of its own, as many projects do.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[1]
PACKAGES = {"asyncgen", "streamers", "asyncgen_apps"}


def run(
    *command: str | Path,
    folder: Path = ROOT,
    environment: Mapping[str, str] | None = None,
    fails: bool = False,
) -> str:
    """Run a command, and return its output; that of errors if it must fail."""
    # Where this script runs must not help what it starts.
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**own, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if bool(ended.returncode) != fails:
        raise SystemExit(f"{command} in {folder}:\n{ended.stdout}{ended.stderr}")
    return ended.stderr if fails else ended.stdout


def content(wheel: Path) -> dict[str, str]:
    """Digest of each file by its name; of compiled code and the list of files, the name alone."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: ""
            if name.endswith((".so", "/RECORD"))
            else hashlib.sha256(archive.read(name)).hexdigest()
            for name in archive.namelist()
        }


def build(folder: Path) -> Path:
    """Build the sdist and a wheel of it, and a wheel of the tree; the first of the two."""
    run(sys.executable, "-m", "build", "--outdir", folder / "both", ROOT)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder / "tree", ROOT)
    (of_sdist,) = (folder / "both").glob("*.whl")
    (of_tree,) = (folder / "tree").glob("*.whl")
    first, second = content(of_sdist), content(of_tree)
    assert first == second, f"the wheels differ in {first.items() ^ second.items()}"
    names = {name.split("/")[0] for name in first}
    others = {name for name in names if not name.endswith(".dist-info")}
    assert others == PACKAGES, f"the wheel installs {sorted(others)}"
    assert "asyncgen/__init__.pyi" in first, "the public names are read from it"
    for name in first:
        for part in ("demo_model/", "asyncgen_apps/bench/", "test"):
            assert part not in name, f"the wheel carries {name}"
    (sdist,) = (folder / "both").glob("*.tar.gz")
    print(f"{of_sdist.name}: {len(first)} files, {of_sdist.stat().st_size / 1e6:.1f} MB")  # noqa: T201
    print(f"{sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB")  # noqa: T201
    return of_sdist


def try_out(python: Path, folder: Path) -> None:
    """Run what is installed in a project that has a package ``apps``, and with it on the path."""
    project = folder / "project"
    (project / "apps").mkdir(parents=True)
    (project / "apps" / "__init__.py").write_text("raise ImportError('not yours')\n")
    command = python.with_name("asyncgen")
    for environment in ({}, {"PYTHONPATH": "."}):
        here = partial(run, folder=project, environment=environment)
        version = here(command, "--version")
        assert version.strip().startswith("asyncgen "), version
        module = here(python, "-m", "asyncgen_apps.cli", "--version")
        assert module == version
        here(python, "-c", "import asyncgen; asyncgen.AsyncLLM")
        for arguments in ([], ["stream", "--runs", "1"], ["--help"]):
            said = here(command, "bench", *arguments, fails=True)
            assert said.startswith("error: the benchmarks are part of the checkout"), said
            assert '".[bench]"' in said and said.count("\n") == 1, said
        answer = here(command, "chat", "Hi")
        assert len(answer.split()) > 3, answer
        print(f"{environment or 'plain'}: {version.strip()}: {' '.join(answer.split())[:60]}")  # noqa: T201


def main() -> None:
    """Do all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch", default="torch==2.13.0", help="what to install beside the wheel")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="asyncgen-wheel-") as name:
        folder = Path(name)
        wheel = build(folder)
        run(sys.executable, "-m", "venv", folder / "venv")
        python = folder / "venv" / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", given.torch, f"{wheel}[apps]")
        try_out(python, folder)


if __name__ == "__main__":
    main()
