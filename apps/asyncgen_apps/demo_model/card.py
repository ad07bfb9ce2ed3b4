"""The model card: ``python -m asyncgen_apps.demo_model.card DIR --figures evaluation.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from asyncgen_apps.demo_model.export import TEMPERATURE, TOP_P
from asyncgen_apps.demo_model.world import (
    ANIMALS,
    BOYS,
    CREATURES,
    GIRLS,
    HELD_OUT_ONE_IN,
    OBJECTS,
    PLACES,
    WORKERS,
)

HEAD = """---
language: en
license: apache-2.0
library_name: transformers
pipeline_tag: text-generation
tags: [llama, tiny, stories, chat]
---

# asyncgen demo model

A very small chat model in the Llama architecture that tells short stories. It is bundled with
asyncgen so that the library can be tried, tested and measured with a real model, without any
download.

![Losses over the run](loss.png)

## What it is

"""
LIMITS = """
## What it is not

- It is **not a general assistant**. It has only ever read text that a small grammar made up:
  stories about a few hundred characters and objects, questions about them, small sums, days and
  months, colours, opposites, lists, a few foreign words and a few fixed code snippets.
- It knows **nothing about the real world**. Asked for more, it was taught to say that it does
  not know; it does not always say so.
- Its stories follow **six plots** whose sentences are recombined. They repeat themselves soon.
- Its sums are remembered rather than worked out, and **often wrong**; do not rely on them, nor on
  anything else that it says.
- It may **mix up who did what**, and it often takes a boy's name for a girl's and the other way
  round. Objects that it does not know may come back misspelt.
- Its answers grow worse the further a conversation leaves what it was trained on.
- It understands English only.
"""


def _share(score: dict[str, int], key: str) -> str:
    return f"{score[key]} of {score['prompts']}"


def _facts(config: dict[str, Any], training: dict[str, Any], size: int) -> str:
    rows = {
        "Parameters": f"{training['parameters']:,}",
        "Layout": (
            f"{config['num_hidden_layers']} layers, width {config['hidden_size']}, "
            f"{config['num_attention_heads']} query and {config['num_key_value_heads']} key-value "
            f"heads, feed-forward {config['intermediate_size']}, tied embeddings"
        ),
        "Vocabulary": f"{config['vocab_size']:,} tokens, byte-level (any text can be written)",
        "Context": f"{config['max_position_embeddings']:,} tokens",
        "Weights": f"{config['dtype']}, {size / 1e6:.1f} MB",
        "Trained on": f"{training['tokens']:,} tokens ({training['steps']:,} steps), one CPU core",
        "Held-out loss": f"{training['held_out'][-1][1]:.3f} nats per token",
    }
    return "| | |\n| --- | --- |\n" + "\n".join(f"| {key} | {rows[key]} |" for key in rows) + "\n"


def _figures(figures: dict[str, Any]) -> str:
    drawn, greedy = figures["held_out_drawn"], figures["held_out_greedy"]
    invented, after = figures["invented_names_drawn"], figures["follow_ups"]
    quiz = figures["quiz"]
    right = "\n".join(f"  - {subject}: {number}" for subject, number in quiz["right"].items())
    people = len(GIRLS) + len(BOYS) + len(ANIMALS) + len(CREATURES) + len(WORKERS)
    return f"""
## Measured

The corpus combines {people} known characters, {len(OBJECTS)} objects and {len(PLACES)} places,
and names that are made up as it goes. One (character, object) pair in {HELD_OUT_ONE_IN} is held
out: no training document mentions both. The first figure asks for {drawn["prompts"]} stories about
held-out pairs, each in a place drawn by chance, and counts how many name both.

| | Drawn (temperature {TEMPERATURE}, top-p {TOP_P}) | Greedy |
| --- | --- | --- |
| Character **and** object in the story | **{_share(drawn, "both")}** | {_share(greedy, "both")} |
| Character in the story | {_share(drawn, "character")} | {_share(greedy, "character")} |
| Object in the story | {_share(drawn, "thing")} | {_share(greedy, "thing")} |
| Place in the story | {_share(drawn, "place")} | {_share(greedy, "place")} |
| Ended by itself | {_share(drawn, "ended")} | {_share(greedy, "ended")} |

- Stories about {invented["prompts"]} made-up names: {_share(invented, "both")} name both the
  character and the object.
- Second turn, "What did … find?" after a story: {after["right"]} of {after["asked"]} answers name
  the object.
- Small questions, right answers of {quiz["asked"]} (greedy):
{right}
- The held-out loss is the mean cross-entropy over the answers in documents that were drawn from
  another seed, with the network in float32. The training line of the plot is over each step's own
  mixture: exercises first, more small questions later.
"""


def _quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def _samples(conversations: list[list[dict[str, str]]]) -> str:
    parts = [f"\n## {len(conversations)} samples, unedited\n"]
    parts.append(f"Drawn once, at temperature {TEMPERATURE} and top-p {TOP_P}.\n")
    for number, messages in enumerate(conversations, 1):
        parts.append(f"### {number}\n")
        for message in messages:
            if message["role"] == "user":
                parts.append(f"**{message['content']}**\n")
            else:
                parts.append(_quote(message["content"]) + "\n")
    return "\n".join(parts)


def _reproduction(training: dict[str, Any]) -> str:
    return f"""
## How it was made

Everything is in `apps/asyncgen_apps/demo_model/` of the repository, and all that is drawn is
drawn from the seed: the corpus (`world.py`, `stories.py`, `chat.py`, `facts.py`, `dialogues.py`,
`copying.py`, `corpus.py`), the tokenizer (`tokenizer.py`) and the training (`network.py`,
`train.py`). There is no other data. The first {training["drills"]} steps only drill copying words
from the prompt; from step {training["late_from"]:,} on, small questions are more frequent and
weigh more.

```bash
{training["command"]}
python -m asyncgen_apps.demo_model.evaluate DIR/model --out evaluation.json
python -m asyncgen_apps.demo_model.card DIR/model --figures evaluation.json
```

The weights were made with torch {training["torch"]}; another version or processor rounds
differently and gives weights that are alike, not equal. `training.json` holds the settings and the
held-out losses over the run.

## Chat format

`<|bos|><|system|>…<|end|><|user|>…<|end|><|assistant|>…<|end|>`, as the chat template in
`tokenizer_config.json` writes it. A plain prompt such as "Once upon a time" works as well. Both
end with `<|end|>`.
"""


def card(folder: Path, figures: dict[str, Any]) -> str:
    """Compose the model card.

    Args:
        folder: The checkpoint folder.
        figures: Figures of evaluate.

    Returns:
        The card in Markdown.
    """
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    training = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    size = (folder / "model.safetensors").stat().st_size
    return "".join(
        (
            HEAD,
            _facts(config, training, size),
            LIMITS,
            _figures(figures),
            _samples(figures["samples"]),
            _reproduction(training),
        )
    )


def main(
    folder: Annotated[Path, typer.Argument(help="Checkpoint folder.")],
    figures: Annotated[Path, typer.Option(help="File that evaluate wrote.")] = Path(
        "evaluation.json"
    ),
) -> None:
    """Write README.md into the checkpoint folder.

    Args:
        folder: Checkpoint folder.
        figures: File that evaluate wrote.
    """
    text = card(folder, json.loads(figures.read_text(encoding="utf-8")))
    (folder / "README.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    typer.run(main)
