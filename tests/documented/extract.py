"""Takes the documented names, parameters and defaults out of the reference documents, once.

    python -m tests.documented.extract FOLDER

writes ``documented.json``, and ``blocks.json`` with the code blocks. The folder holds the Markdown
pages of the reference; what they say of TensorFlow and Flax is left out, but for the names. One
page has lost its headings: there the names stand here, in the order of its descriptions.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TypedDict

from tests.documented.blocks import BLOCKS, read_page

__all__ = ["DOCUMENTED", "Parameter", "Entry", "extract"]

DOCUMENTED = Path(__file__).with_name("documented.json")

METHOD = re.compile(r"\s*- (\w+)")
GOES_ON = re.compile(r"\s+(Args|Parameters|Attributes|Examples?|Raises|See \[the paper).*")


class Parameter(TypedDict):
    """One documented parameter; ``default`` as it is written, None where there is none."""

    name: str
    default: str | None


class Entry(TypedDict):
    """One documented class."""

    family: str
    parameters: list[Parameter]
    methods: dict[str, list[Parameter]]


# Page of utilities: heading, family, and the classes under it in the order of the page.
SECTIONS = (
    (
        "LogitsProcessor",
        "Logits processors",
        """AlternatingCodebooksLogitsProcessor ClassifierFreeGuidanceLogitsProcessor
        EncoderNoRepeatNGramLogitsProcessor EncoderRepetitionPenaltyLogitsProcessor
        EpsilonLogitsWarper EtaLogitsWarper ExponentialDecayLengthPenalty
        ForcedBOSTokenLogitsProcessor ForcedEOSTokenLogitsProcessor HammingDiversityLogitsProcessor
        InfNanRemoveLogitsProcessor LogitNormalization LogitsProcessor LogitsProcessorList
        MinLengthLogitsProcessor MinNewTokensLengthLogitsProcessor MinPLogitsWarper
        NoBadWordsLogitsProcessor NoRepeatNGramLogitsProcessor PrefixConstrainedLogitsProcessor
        RepetitionPenaltyLogitsProcessor SequenceBiasLogitsProcessor
        SuppressTokensAtBeginLogitsProcessor SuppressTokensLogitsProcessor
        SynthIDTextWatermarkLogitsProcessor TemperatureLogitsWarper TopKLogitsWarper
        TopPLogitsWarper TypicalLogitsWarper UnbatchedClassifierFreeGuidanceLogitsProcessor
        WhisperTimeStampLogitsProcessor WatermarkLogitsProcessor""",
    ),
    (
        "StoppingCriteria",
        "Stopping",
        """StoppingCriteria StoppingCriteriaList MaxLengthCriteria MaxTimeCriteria
        StopStringCriteria EosTokenCriteria""",
    ),
    (
        "Constraints",
        "Constraints",
        "Constraint PhrasalConstraint DisjunctiveConstraint ConstraintListState",
    ),
    ("BeamSearch", "Beams", "BeamScorer BeamSearchScorer ConstrainedBeamSearchScorer"),
    ("Streamers", "Streamers", "TextStreamer TextIteratorStreamer AsyncTextIteratorStreamer"),
    (
        "Caches",
        "Caches",
        """Cache CacheConfig QuantizedCacheConfig DynamicCache QuantizedCache QuantoQuantizedCache
        HQQQuantizedCache SinkCache OffloadedCache StaticCache OffloadedStaticCache HybridCache
        SlidingWindowCache EncoderDecoderCache MambaCache""",
    ),
    (
        "Watermark Utils",
        "Watermarking",
        """WatermarkingConfig WatermarkDetector BayesianDetectorConfig BayesianDetectorModel
        SynthIDTextWatermarkingConfig SynthIDTextWatermarkDetector""",
    ),
    ("Compile Utils", "Config", "CompileConfig"),
)
FAMILIES = {
    "GenerationConfig": "Config",
    "GenerationMixin": "Generation",
    "ContinuousMixin": "Continuous batching",
    "ContinuousBatchingManager": "Continuous batching",
    "Scheduler": "Continuous batching",
    "FIFOScheduler": "Continuous batching",
    "PrefillFirstScheduler": "Continuous batching",
}
OTHER_KEYWORDS = {"left_padding", "return_timestamps"}
"""Keywords of calls in examples that belong to the example's own recipe, or to speech models."""


def extract(folder: Path) -> dict[str, object]:
    """Read all pages.

    Args:
        folder: Where they lie.

    Returns:
        ``classes`` by name, ``imports`` of the examples that are no documented class,
        ``keywords`` that the examples give to `generate`, ``paths`` of names in modules of the
        reference, and names for other ``frameworks`` than torch.
    """
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}
    classes = {
        **_utilities(texts["generation_utilities.md"]),
        **_interface(texts["text_generation_api.md"]),
    }
    whole = "\n".join(texts.values())
    imports = {
        name
        for listed in re.findall(
            r"from transformers import (?:\(\s*(?:\.\.\.)?([^)]*)\)|(.*))", whole
        )
        for name in re.findall(r"\w+", " ".join(listed))
    }
    keywords = {
        name
        for call in re.findall(r"model\.generate\(((?:[^()]|\([^()]*\))*)\)", whole)
        for name in re.findall(r"(?<![\w.])(\w+)=", re.sub(r"\([^()]*\)", "", call))
    }
    return {
        "classes": classes,
        "imports": sorted(imports - {*classes}),
        "keywords": sorted(keywords - OTHER_KEYWORDS),
        "paths": sorted(_paths(whole)),
        "frameworks": sorted(
            set(re.findall(r"autodoc\]\] (?:generation\.)?((?:TF|Flax)\w+)", whole))
        ),
    }


def _paths(text: str) -> set[str]:
    """Find the dotted names in modules of the reference, without its own name before them."""
    found = re.findall(r"transformers\.([a-z]\w*(?:\.[A-Za-z]\w*)+)", text)
    found += re.findall(r"autodoc\]\] (generation\.(?!TF|Flax)\w+)", text)
    return {path.removesuffix("https") for path in found}


def _utilities(page: str) -> dict[str, Entry]:
    """Read the page of utilities, with its outputs."""
    pytorch = page.partition("### TensorFlow")[0]
    classes = {
        name: Entry(family="Outputs", parameters=[], methods={})
        for name in re.findall(r"^\[\[autodoc\]\] generation\.(\w+)$", pytorch, re.MULTILINE)
    }
    for heading, family, names in SECTIONS:
        section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
        blocks = _blocks(section.partition("### TensorFlow")[0].rpartition("### PyTorch")[2])
        for name, block in zip(names.split(), blocks, strict=True):
            methods = re.findall(r"^\s*- (\w+)$", block, re.MULTILINE)
            classes[name] = Entry(
                family=family, parameters=_described(block), methods={key: [] for key in methods}
            )
    return classes


def _blocks(section: str) -> list[str]:
    """Split a section into the descriptions of its classes."""
    section = re.sub(r"^ *```.*?```$", "    (example)", section, flags=re.MULTILINE | re.DOTALL)
    section = re.sub(r"\A\s*A \[`.*$", "", section, flags=re.MULTILINE)
    blocks: list[list[str]] = []
    empty, listed = 2, False
    for line in section.split("\n"):
        if not line.strip():
            empty += 1
            continue
        begins = (empty >= 2 or listed) and not METHOD.fullmatch(line) and not GOES_ON.match(line)
        if begins:
            blocks.append([])
        empty, listed = 0, bool(METHOD.fullmatch(line))
        blocks[-1].append(line)
    return ["\n".join(block) for block in blocks]


def _described(block: str) -> list[Parameter]:
    """Read the parameters that a description lists."""
    begin = re.search(
        r"^    (Args|Parameters|Arguments|Accepts the following keys|Attributes):$",
        block,
        re.MULTILINE,
    )
    if begin is None:
        return []
    found: list[Parameter] = []
    for line in block[begin.end() :].split("\n")[1:]:
        if re.match(r" {0,7}\S", line):
            break
        # Eight columns in: a parameter. Deeper: its description.
        named = re.match(r" {8}(?:- )?(\w+) ?\((.*?)\)?:", line) or re.match(
            r" {8}(?:- )?(\w+) ?(\(\[`.*\]\)):", line
        )
        if named:
            found.append(Parameter(name=named[1], default=_default(named[2])))
        elif (late := re.search(r"Defaults to ([\w.]+?)(\.? |\.?$)", line)) and "keys" in begin[1]:
            found[-1]["default"] = late[1]
        elif "(default)" in line:
            found[-1]["default"] = line.split()[1]
    return found


def _default(kind: str) -> str | None:
    """Read the default out of what stands between the parentheses."""
    given = re.search(r"defaults to `?([^`]+?)`?$", kind.rstrip(")"))
    if given:
        return given[1] + ")" * (given[1].count("(") - given[1].count(")"))
    return "None" if "optional" in kind else None


def _interface(page: str) -> dict[str, Entry]:
    """Read the page of `generate`, which has headings and signatures."""
    classes: dict[str, Entry] = {}
    for name, body in re.findall(
        r"^## (\w+)\[\[.*?\]\]$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL
    ):
        signatures = re.findall(
            r"^(\w+)transformers\.[\w.]+https://\S+?#L\d+(\[\{.*?\}\])", body, re.MULTILINE
        )
        methods = {key: _signature(json.loads(listing)) for key, listing in signatures}
        for key, text in re.findall(
            r"^#### (\w+)\[\[.*?\]\]$(.*?)(?=^#### |\Z)", body, re.MULTILINE | re.DOTALL
        ):
            listed = text.partition("**Parameters:**")[2].partition("**Returns:**")[0]
            methods[key] = [
                Parameter(name=parameter, default=_default(kind.rstrip(")")) if kind else None)
                for parameter, kind in re.findall(r"^(\w+)(?: \((.*?)\))? : ", listed, re.MULTILINE)
                if parameter != "kwargs"
            ]
        classes[name] = Entry(family=FAMILIES[name], parameters=[], methods=methods)
    return classes


def _signature(listing: list[dict[str, str]]) -> list[Parameter]:
    """Read a signature, less its further keywords."""
    return [
        Parameter(name=one["name"], default=one["val"].partition(" = ")[2] or None)
        for one in listing
        if not one["name"].startswith("*")
    ]


if __name__ == "__main__":
    source = Path(sys.argv[1])
    found = [asdict(block) for path in sorted(source.glob("*.md")) for block in read_page(path)]
    for file, content in ((DOCUMENTED, extract(source)), (BLOCKS, found)):
        file.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
