"""Run the examples of the pages, and check their statements about the project."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import importlib.util
import inspect
import logging
import re
import sys
import tomllib
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast, get_args

import pytest
import torch

import asyncgen
import streamers
from asyncgen.generation.config.own_parameters import SAMPLERS
from asyncgen.generation.logits.base import processor_classes
from asyncgen.generation.logits.build import build_logits_processors
from asyncgen_apps.cli.app import app
from asyncgen_apps.openai_http.request_schema import (
    NEUTRAL,
    ChatCompletionRequest,
    CompletionRequest,
)
from asyncgen_apps.openai_http.settings import ServerSettings
from asyncgen_apps.websocket import messages
from asyncgen_apps.websocket.settings import StreamSettings
from tests.cases import for_each
from tests.pages import PAGES, ROOT, anchors, blocks, examples, links, prints, table

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from asyncgen.structured.grammar import Grammar
    from tests.pages import Example

EXAMPLES = [example for page in PAGES for example in examples(page)]
APPS = ROOT / "apps" / "asyncgen_apps"
DOCS = ROOT / "asyncgen" / "docs"
README = ROOT / "README.md"
MESSAGES = [
    value
    for value in vars(messages).values()
    if hasattr(value, "model_fields") and "type" in value.model_fields
]


def named(page: Path) -> set[str]:
    """Collect the texts in code marks anywhere on a page."""
    return set(re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8")))


def first_cells(page: Path) -> list[str]:
    """Names in the first column of a page's tables, one by one."""
    return [name for row in table(page) for name in re.findall(r"`(\w+)`", row[0])]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 20


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    """Restore the logging that an example sets up."""
    root, own = logging.getLogger(), logging.getLogger("asyncgen")
    handlers, levels = root.handlers[:], (root.level, own.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    own.setLevel(levels[1])


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_example_runs(
    example: Example, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in example.needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install -e '.[docs]'")
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT if example.awaits else 0
    code = "\n" * example.line + example.code
    compiled = compile(code, str(example.page), "exec", flags=flags, dont_inherit=True)
    module = ModuleType("documented")  # some frameworks look for names in the module
    monkeypatch.setitem(sys.modules, module.__name__, module)
    asyncgen.set_seed(1)  # what is drawn without a seed could be short
    if example.awaits:
        asyncio.run(_cell(compiled, vars(module)))
    else:
        exec(compiled, vars(module))
    printed = capsys.readouterr().out
    assert len(printed) > 30
    assert example.output is None or prints(example.output, printed), printed


async def _cell(code: Any, names: dict[str, Any]) -> None:
    """Run code as a notebook does."""
    waiting = eval(code, names)
    if inspect.isawaitable(waiting):
        await waiting


@for_each("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_displayed_python_blocks_compile(page: Path) -> None:
    for _, _, code in blocks(page, "py"):
        compile(code, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


@for_each("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_found_from_the_readme() -> None:
    found, unread = {README}, [README]
    while unread:
        page = unread.pop()
        targets = {(page.parent / link.partition("#")[0]).resolve() for link in links(page)}
        new = {target for target in targets if target in PAGES} - found
        found |= new
        unread += new
    assert set(PAGES) == found


def test_the_readme_is_read_in_one_sitting() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150
    first = next(blocks(README, "python"))
    assert first[0] < 40, "Python stands on the first screen"


@for_each("page", [README, DOCS / "tutorial.md"], ids=lambda page: page.name)
def test_every_program_of_the_first_pages_says_what_it_prints(page: Path) -> None:
    assert [str(each) for each in examples(page) if each.output is None or each.needs] == []


def test_the_first_pages_install_the_same() -> None:
    first = [
        re.sub(r" *#.*", "", next(blocks(page, "sh"))[2])
        for page in (README, DOCS / "tutorial.md", DOCS / "install.md")
    ]
    assert first[0] == first[1] == first[2]
    assert '-e ".[serve]"' in first[0]


def test_the_first_command_installs_what_the_first_pages_run() -> None:
    """The chat, both servers and their client, and answers in a shape."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found, unread = set(), ["asyncgen[serve]"]
    while unread:
        name, _, inside = re.split(r"[<>=;]", unread.pop())[0].partition("[")
        found.add(name.strip())
        for extra in inside.rstrip("] ").split(",") if name == "asyncgen" else []:
            unread += extras["optional-dependencies"][extra]
    assert found >= {"fastapi", "llguidance", "prompt-toolkit", "typer", "uvicorn", "websockets"}


INSTALLED = {
    "anyio",
    "asyncgen",
    "asyncgen_apps",
    "fastapi",
    "prometheus_client",
    "pydantic",
    "safetensors",
    "starlette",
    "streamers",
    "torch",
    "uvicorn",
}
"""What examples import of what the README's first command installs."""


@for_each("example", EXAMPLES, ids=str)
def test_an_example_says_what_it_needs(example: Example) -> None:
    found = set()
    for node in ast.walk(ast.parse(example.code)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    assert found <= INSTALLED | set(example.needs) | sys.stdlib_module_names


def test_every_extra_and_package_has_its_row() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = table(DOCS / "install.md")
    extras = [row[0].strip("`") for row in rows if len(row) == 3 and row[0].startswith("`")]
    assert sorted(extras) == sorted(project["optional-dependencies"])
    packages = {re.split(r"[<>=]", each)[0] for each in project["dependencies"]}
    assert packages <= {row[0] for row in rows if len(row) == 2}


def test_the_ratios_of_the_readme_are_those_of_the_benchmarks() -> None:
    shown = re.findall(r"\d+\.\d\d ×", README.read_text(encoding="utf-8"))
    rows = {row[0]: row for row in table(APPS / "bench" / "README.md")}
    one = rows["one stream, 135m bfloat16, tokens/s"]
    many = rows["32 streams, 135m bfloat16, tokens/s"]
    assert shown == [one[3], one[5], many[3]]
    assert "llama.cpp" in one[4]


def test_the_site_asks_first_what_runs() -> None:
    config = (ROOT / "apps/docs/mkdocs.yml").read_text(encoding="utf-8")
    nav = config.partition("nav:")[2]
    order = ["README.md", "docs/models.md", "docs/tutorial.md"]
    assert sorted(order, key=nav.index) == order
    kinds = ("Tutorial", "How to", "Reference", "Explanation")
    assert [kind for kind in re.findall(r"^  - ([\w ]+):", nav, re.M) if kind in kinds] == [*kinds]


@for_each("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=str)
def test_transformers_are_called_by_their_name(page: Path) -> None:
    assert not re.search(r"\b[Tt]he\s+reference\b", page.read_text(encoding="utf-8"))


def test_the_gate_runs_the_documented_commands() -> None:
    tests = next(command for _, _, command in blocks(README, "sh") if "pytest" in command)
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for part in ("torch==2.13.0", '-e ".[test]"'):
        assert part in tests
        assert part in gate
    assert "apps/docs/build_site.py" in gate


def test_every_installation_names_torch_and_what_there_is() -> None:
    extras = set(re.findall(r"^(\w+) = \[$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    for page in PAGES:
        for _, _, code in blocks(page, "sh"):
            for command in re.findall(r"pip install [^&\n]*-e [^&\n]*", code):
                assert "torch==2.13.0" in command, page
                for extra in re.findall(r"\[([\w,]+)\]", command):
                    assert set(extra.split(",")) <= extras, page


def test_every_parameter_is_in_the_table_once() -> None:
    # Names in prose and in other tables of the page are no entries.
    found = first_cells(DOCS / "parameters.md")
    idle = {"disable_compile", "is_assistant", "synced_gpus"}
    assert idle <= named(DOCS / "parameters.md")
    assert sorted(found) == sorted(asyncgen.StreamParams.__annotations__.keys() - idle)


def test_processors_run_in_the_documented_order() -> None:
    text = (DOCS / "parameters.md").read_text(encoding="utf-8")
    documented = re.findall(r"^\d+\. `(\w+)`: `(\w+)`$", text, re.MULTILINE)
    given: dict[str, Any] = {
        "bad_words_ids": [[5]],
        "begin_suppress_tokens": [6],
        "encoder_no_repeat_ngram_size": 3,
        "encoder_repetition_penalty": 1.5,
        "epsilon_cutoff": 0.1,
        "eta_cutoff": 0.1,
        "exponential_decay_length_penalty": (2, 1.5),
        "forced_bos_token_id": 7,
        "forced_eos_token_id": 8,
        "min_length": 2,
        "min_new_tokens": 2,
        "min_p": 0.1,
        "no_repeat_ngram_size": 2,
        "remove_invalid_values": True,
        "renormalize_logits": True,
        "repetition_penalty": 1.5,
        "sequence_bias": [[[9], 1.0]],
        "suppress_tokens": [6],
        "temperature": 0.5,
        "top_h": 0.5,
        "top_k": 5,
        "top_p": 0.5,
        "typical_p": 0.5,
        "watermarking_config": asyncgen.WatermarkingConfig(),
    }
    config = asyncgen.GenerationConfig(do_sample=True, max_length=9, **given)
    built = build_logits_processors(
        config,
        prompt_length=3,
        eos_token_ids=torch.tensor([2]),
        device="cpu",
        user_processors=[asyncgen.LogitsProcessorList()],
        encoder_input_ids=torch.tensor([[3, 4, 5]]),
        vocab_size=20,
        presence_penalty=1.0,
        frequency_penalty=1.0,
        prefix_allowed_tokens_fn=lambda row, ids: [1],
        grammar=cast("Grammar", object()),
    )
    run = [type(processor).__name__ for processor in built]
    models = {"guidance_scale", "diversity_penalty"}  # need a model, or groups of beams
    samplers = {each.name for each in SAMPLERS}
    assert run == [name for parameter, name in documented if parameter not in models | samplers]
    by_rank = [kind.__name__ for kind in processor_classes()]
    theirs = [name for parameter, name in documented if parameter in samplers]
    assert len(theirs) == 5
    documented_kinds = [name for _, name in documented if name in by_rank]
    assert documented_kinds == [name for name in by_rank if name in documented_kinds]
    own = {"logits_processor", "presence_penalty", "frequency_penalty", "prefix_allowed_tokens_fn"}
    own.add("json_schema")
    named_here = {parameter for parameter, _ in documented} - samplers
    assert named_here == given.keys() | models | own


def test_every_option_of_the_engine_has_its_default() -> None:
    documented = {row[0].strip("`"): row[1].strip("`") for row in table(DOCS / "options.md")}
    parameters = inspect.signature(asyncgen.AsyncLLM).parameters.values()
    for option in parameters:
        if option.kind is option.VAR_KEYWORD:
            continue  # unknown options, which are refused
        default = "" if option.default is option.empty else option.default
        shown = f'"{default}"' if isinstance(default, str) and default else str(default)
        assert documented[option.name] == shown, option.name


def test_every_error_has_its_row() -> None:
    raised = {
        name
        for name in asyncgen.__all__
        if isinstance(value := getattr(asyncgen, name), type) and issubclass(value, Exception)
    }
    errors = {name for name in raised if not issubclass(getattr(asyncgen, name), Warning)}
    assert set(first_cells(DOCS / "errors.md")) | {"AsyncgenError"} == raised
    tree = next(code for _, _, code in blocks(DOCS / "errors.md", "text"))
    assert set(re.findall(r"(\w+Error)\b(?=\n| \()", tree)) == errors


def test_every_figure_is_explained() -> None:
    fields = {field.name for field in dataclasses.fields(asyncgen.MetricsSnapshot)}
    assert fields <= set(first_cells(DOCS / "metrics.md"))


def test_every_logger_is_listed() -> None:
    used = {
        name
        for folder in ("asyncgen", "apps", "streamers")
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r'getLogger\("(asyncgen\.[\w.]+)"\)', path.read_text("utf-8"))
    }
    assert used - {"asyncgen.websocket.library"} <= named(DOCS / "metrics.md")


def test_every_field_of_the_api_is_listed() -> None:
    page = named(APPS / "openai_http" / "README.md")
    for model in (ChatCompletionRequest, CompletionRequest):
        assert set(model.model_fields) <= page
    assert set(NEUTRAL) <= page


@pytest.mark.parametrize(
    ("folder", "settings"), [("openai_http", ServerSettings), ("websocket", StreamSettings)]
)
def test_every_setting_of_a_server_is_listed(folder: str, settings: Any) -> None:
    fields = {field.name for field in dataclasses.fields(settings)}
    assert fields <= named(APPS / folder / "README.md")


def test_every_code_of_the_protocol_is_listed() -> None:
    page = (APPS / "websocket" / "README.md").read_text(encoding="utf-8")
    assert {code for code in get_args(messages.ErrorCode) if f"`{code}`" not in page} == set()
    kinds = {get_args(model.model_fields["type"].annotation)[0] for model in MESSAGES}
    assert kinds <= named(APPS / "websocket" / "README.md")


def test_every_command_is_described() -> None:
    page = (APPS / "cli" / "README.md").read_text(encoding="utf-8")
    for command in app.registered_commands:
        name = command.name or command.callback.__name__.replace("_", "-")  # type: ignore[union-attr]
        assert f"asyncgen {name}" in page
    bench = (APPS / "bench" / "README.md").read_text(encoding="utf-8")
    for group in app.registered_groups:
        for command in group.typer_instance.registered_commands:  # type: ignore[union-attr]
            name = command.name or command.callback.__name__  # type: ignore[union-attr]
            assert f"asyncgen bench {name}" in bench


def _site() -> Any:
    """The script that builds the site."""
    spec = importlib.util.spec_from_file_location("build_site", ROOT / "apps/docs/build_site.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_public_name_once() -> None:
    found = [name for names in _site().reference().values() for name in names]
    assert len(found) == len(set(found))
    for package in (asyncgen, streamers):
        prefix = f"{package.__name__}."
        ours = {name.removeprefix(prefix) for name in found if name.startswith(prefix)}
        elsewhere = set(asyncgen.__all__) if package is streamers else set()
        assert ours == set(package.__all__) - elsewhere
    assert "asyncgen_apps.websocket.connect" in found


def test_the_site_has_every_page_once(tmp_path: Path) -> None:
    site = _site()
    site.gather(tmp_path)
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.md"))
    config = (ROOT / "apps/docs/mkdocs.yml").read_text(encoding="utf-8")
    assert sorted(re.findall(r"\S+\.md\b", config)) == written
    assert (tmp_path / "apps/asyncgen_apps/gradio_chat/chat.png").exists()


def test_the_glossary_names_files_that_are_there() -> None:
    text = (DOCS / "glossary.md").read_text(encoding="utf-8")
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
    words = [row[1].strip() for row in rows]
    assert len(set(words)) == len(words) - (words.count("Word") - 1), "a word means one thing"
    owners = [name for row in rows for name in re.findall(r"`([^`]+)`", row[3])]
    assert len(owners) > 40
    roots = (DOCS.parent, ROOT / "apps" / "asyncgen_apps")
    missing = [name for name in owners if not any((root / name).exists() for root in roots)]
    assert not missing
