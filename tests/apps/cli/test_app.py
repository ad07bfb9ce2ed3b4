from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

from asyncgen import InvalidRequestError
from asyncgen_apps.cli import main
from asyncgen_apps.cli.app import app
from asyncgen_apps.cli.errors import UserError, describe, one_line_errors
from asyncgen_apps.cli.help import PANELS
from asyncgen_apps.cli.settings import SettingError
from tests.apps.cli.doubles import run_cli
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator


@for_each("command", [[], ["chat"], ["generate"], ["bench", "stream"], ["bench", "loop"]])
def test_help_is_there(command: list[str]) -> None:
    result = run_cli(*command, "--help")
    assert result.exit_code == 0
    assert "Usage" in result.stdout


def commands(group: TyperGroup, *above: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with its words, groups included."""
    yield above, group
    for name, one in group.commands.items():
        if isinstance(one, TyperGroup):
            yield from commands(one, *above, name)
        else:
            yield (*above, name), one


@pytest.mark.parametrize("width", [40, 80, 99, 100, 120])
def test_help_reads_at_any_width(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No name is cut, no word broken, and no line longer than the terminal."""
    monkeypatch.setenv("COLUMNS", str(width))
    whole = get_command(app)
    assert isinstance(whole, TyperGroup)
    for words, one in commands(whole):
        shown = run_cli(*words, "--help").stdout
        assert "…" not in shown, words
        assert max(map(len, shown.splitlines())) <= width, words
        context = one.make_context("x", [], resilient_parsing=True)
        known = set(re.sub(r"[│╭╮╰╯─,]", " ", shown).split())
        for each in one.get_params(context):
            options = {name for name in (*each.opts, *each.secondary_opts) if name[0] == "-"}
            assert options <= known, words
            assert set((getattr(each, "help", None) or "").replace(",", " ").split()) <= known, (
                words
            )


def test_a_folder_of_the_users_that_is_called_apps_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "apps").mkdir()
    (tmp_path / "apps" / "__init__.py").touch()
    path = os.pathsep.join([".", *sys.path])
    for start in (
        ["-m", "asyncgen_apps.cli"],
        ["-c", "from asyncgen_apps.cli import main; main()"],
    ):
        done = subprocess.run(
            [sys.executable, *start, "--version"],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            timeout=120,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("asyncgen")


def test_version() -> None:
    assert run_cli("--version").stdout.startswith("asyncgen")


def test_the_command_line_starts_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from asyncgen_apps.cli.app import app\n"
        "heavy = {'torch', 'transformers', 'matplotlib', 'prompt_toolkit', 'tokenizers'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


def test_a_model_that_is_not_there_is_refused_before_torch_is_imported() -> None:
    """Which takes a second. The command of each kind: a line, a conversation, a server."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from asyncgen_apps.cli.app import app\n"
        "for words in (['generate', 'x'], ['chat'], ['serve', '--port', '0'], ['serve-ws'],\n"
        "              ['gradio'], ['batch', 'in', '-o', 'out']):\n"
        "    try:\n"
        "        app([*words, '--model', '/nope'])\n"
        "    except SystemExit as ended:\n"
        "        assert ended.code == 1, words\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = done.stderr.splitlines()
    assert len(said) == 6 and all("/nope" in line and "error" in line for line in said), said


def test_bench_without_the_benchmarks_names_the_remedy() -> None:
    """As in a wheel, which leaves them out."""
    code = (
        "import importlib.util, sys\n"
        "find = importlib.util.find_spec\n"
        "absent = 'asyncgen_apps.bench'\n"
        "importlib.util.find_spec = lambda name: None if name == absent else find(name)\n"
        "from asyncgen_apps.cli import main\n"
        "main()\n"
    )
    for words in ([], ["stream", "--runs", "1"], ["--help"]):
        done = subprocess.run(
            [sys.executable, "-c", code, "bench", *words],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[3],
            timeout=120,
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("error: the benchmarks are part of the checkout")
        assert 'pip install -e ".[bench]"' in done.stderr and done.stderr.count("\n") == 1


@for_each(
    ("error", "said"),
    [
        (UserError("give a PROMPT"), "give a PROMPT"),
        (SettingError("unknown setting"), "unknown setting"),
        (InvalidRequestError("top_p", 2, "up to 1"), "`top_p` is 2: up to 1"),
        (KeyError("x"), "KeyError: 'x' (--debug shows the traceback)"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_errors_in_words(error: Exception, said: str) -> None:
    assert describe(error) == said


@pytest.mark.parametrize(
    ("error", "code"),
    [(UserError("x"), 1), (KeyboardInterrupt(), 130), (typer.Exit(5), 5), (OSError("x"), 1)],
)
def test_exit_codes(error: BaseException, code: int) -> None:
    with pytest.raises(typer.Exit) as caught, one_line_errors():
        raise error
    assert caught.value.exit_code == code


def test_debug_lets_errors_through() -> None:
    with pytest.raises(KeyError), one_line_errors(debug=True):
        raise KeyError


def test_the_module_is_the_command() -> None:
    command = [sys.executable, "-m", "asyncgen_apps.cli", "nonsense"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[3], timeout=120
    )
    assert done.returncode == 2
    assert "nonsense" in done.stderr


def test_the_entry_point_runs_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["asyncgen", "--version"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("asyncgen")


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_there_is_a_line_with_the_remedy(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None; from asyncgen_apps.cli import main; main()"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[3], timeout=120
    )
    assert done.returncode == 1
    assert done.stderr == f'error: {missing} is not installed: pip install "asyncgen[apps]"\n'


def test_each_command_shows_how_it_is_called() -> None:
    whole = get_command(app)
    assert isinstance(whole, TyperGroup)
    for names, command in commands(whole):
        if command.hidden or isinstance(command, TyperGroup):
            continue
        found = re.search(r"^Example: asyncgen (.+)$", command.help or "", re.MULTILINE)
        assert found is not None, names
        words = shlex.split(found[1])
        assert tuple(words[: len(names)]) == names
        command.make_context(names[-1], words[len(names) :])  # which parses them


def test_help_is_filled_to_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of a docstring are not those of the terminal."""
    monkeypatch.setenv("COLUMNS", "90")
    shown = [line.rstrip() for line in run_cli("batch", "--help").stdout.splitlines()]
    begun = next(line for line in shown if line.startswith("A line is a request"))
    assert shown[shown.index(begun) + 1].startswith("or `messages` and parameters.")


def test_a_switch_shows_no_type(monkeypatch: pytest.MonkeyPatch) -> None:
    for width in ("60", "120"):
        monkeypatch.setenv("COLUMNS", width)
        shown = run_cli("--help").stdout + run_cli("chat", "--help").stdout
        assert "--no-save" in shown and "--version" in shown and "bool" not in shown


@pytest.mark.parametrize("width", [60, 120])
def test_a_range_is_said_in_words(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = " ".join(run_cli("serve", "--help").stdout.split())
    assert "--port <int>" in shown and "[default: 8000; 0 to 65535]" in shown
    assert "--ping-seconds <float>" in shown and "[default: 5.0; 0.1 or more]" in shown
    assert "--api-key <str>" in shown and "[env var: ASYNCGEN_API_KEY]" in shown
    for word in (" range>", "x>=", "<=x", "list["):
        assert word not in shown


def test_many_options_stand_under_headings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    whole = get_command(app)
    assert isinstance(whole, TyperGroup)
    known = {each.name for _, one in commands(whole) for each in one.params}
    assert {name for names in PANELS.values() for name in names} <= known
    lines = run_cli("serve", "--help").stdout.splitlines()
    places = [lines.index(panel) for panel in ("Options", *PANELS)]
    ended = lines.index("", places[0])
    assert "--port" in " ".join(lines[places[0] : ended])
    assert "--max-body" not in " ".join(lines[places[0] : ended])
