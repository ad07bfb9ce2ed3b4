"""Ways to decode: greedy, drawn, by beams, with drafts, and what comes back beside the tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2LMHeadModel,
    GPT2Tokenizer,
    LlamaForCausalLM,
    set_seed,
)

if TYPE_CHECKING:
    from pathlib import Path


def first_words(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer("The quick brown fox", return_tensors="pt").to(model.device)
    generated = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    return generated, tokenizer.decode(generated[0], skip_special_tokens=True)


def no_length_given(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    model_inputs = tokenizer(["A list of colors: red, blue"], return_tensors="pt")
    generated_output = model.generate(**model_inputs)
    return tokenizer.batch_decode(generated_output, skip_special_tokens=True)


def ids_by_position(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(str(hub / "llama"))
    model = LlamaForCausalLM.from_pretrained(str(hub / "llama"), torch_dtype=torch.float32)
    model.eval()
    input_ids = tokenizer.encode("Hello world", return_tensors="pt")
    with torch.no_grad():
        output = model.generate(input_ids, max_length=input_ids.shape[1] + 9, num_beams=1)
    return output, tokenizer.decode(output[0][input_ids.shape[-1] :])


def nothing_given(hub: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(hub / "llama").to("cpu")
    return model.generate(max_new_tokens=7, do_sample=False)


def drawn_after_set_seed(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer("Once upon a time", return_tensors="pt")
    set_seed(42)
    first = model.generate(
        **inputs, do_sample=True, max_new_tokens=15, temperature=0.7, top_k=50, top_p=0.95
    )
    set_seed(42)
    again = model.generate(
        **inputs, do_sample=True, max_new_tokens=15, temperature=0.7, top_k=50, top_p=0.95
    )
    return first, torch.equal(first, again)


def drawn_after_manual_seed(hub: Path) -> Any:
    tokenizer = GPT2Tokenizer.from_pretrained(hub / "gpt2")
    model = GPT2LMHeadModel.from_pretrained(hub / "gpt2", pad_token_id=tokenizer.eos_token_id)
    encoded = tokenizer("don't worry", return_tensors="pt")
    torch.manual_seed(0)
    samples = model.generate(
        **encoded, do_sample=True, top_k=0, max_length=20, num_return_sequences=3
    )
    return [tokenizer.decode(sample, skip_special_tokens=True) for sample in samples]


def drawn_by_other_cutoffs(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer(["1, 2, 3"], return_tensors="pt")
    results = []
    for options in (
        {"min_p": 0.05},
        {"typical_p": 0.6},
        {"epsilon_cutoff": 3e-3},
        {"eta_cutoff": 3e-3},
        {"top_h": 0.5},
        {"temperature": 1.3, "top_k": 7},
    ):
        set_seed(1)
        results.append(model.generate(**inputs, do_sample=True, max_new_tokens=8, **options))
    return results


def beams(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "gpt2")
    tokenizer.pad_token = tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(hub / "gpt2")
    input_ids = tokenizer("Hello world, how are", return_tensors="pt").input_ids
    found = model.generate(
        input_ids,
        max_new_tokens=14,
        num_beams=5,
        no_repeat_ngram_size=2,
        num_return_sequences=5,
        length_penalty=0.6,
        early_stopping=True,
        pad_token_id=tokenizer.pad_token_id,
    )
    return found, tokenizer.batch_decode(found, skip_special_tokens=True)


def beams_that_draw(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    set_seed(0)
    inputs = tokenizer("translate: naïve café", return_tensors="pt")
    return model.generate(**inputs, num_beams=4, do_sample=True, max_new_tokens=9)


def scores_of_greedy(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "gpt2")
    model = AutoModelForCausalLM.from_pretrained(hub / "gpt2")
    tokenizer.pad_token_id = tokenizer.eos_token_id
    inputs = tokenizer(["Hello"], return_tensors="pt")
    outputs = model.generate(
        **inputs, max_new_tokens=5, return_dict_in_generate=True, output_scores=True
    )
    transition = model.compute_transition_scores(
        outputs.sequences, outputs.scores, normalize_logits=True
    )
    length = 1 if model.config.is_encoder_decoder else inputs.input_ids.shape[1]
    table = [
        (int(token), tokenizer.decode(token), f"{np.exp(score.numpy()):.2%}")
        for token, score in zip(outputs.sequences[0, length:], transition[0], strict=True)
    ]
    return table, transition


def scores_of_beams(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "gpt2")
    model = AutoModelForCausalLM.from_pretrained(hub / "gpt2")
    model.generation_config.pad_token_id = tokenizer.eos_token_id
    inputs = tokenizer(["Today is"], return_tensors="pt")
    outputs = model.generate(
        **inputs,
        max_new_tokens=5,
        num_beams=4,
        num_return_sequences=4,
        return_dict_in_generate=True,
        output_scores=True,
    )
    transition = model.compute_transition_scores(
        outputs.sequences, outputs.scores, outputs.beam_indices, normalize_logits=False
    )
    lengths = inputs.input_ids.shape[1] + np.sum(transition.numpy() < 0, axis=1)
    rebuilt = transition.sum(axis=1) / (lengths**1.0)
    return outputs.sequences, outputs.sequences_scores, outputs.beam_indices, rebuilt


def all_that_can_be_returned(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama", attn_implementation="eager")
    out = model.generate(
        **tokenizer("lazy dog", return_tensors="pt"),
        max_new_tokens=4,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        output_attentions=True,
        output_hidden_states=True,
    )
    last_hidden = torch.cat([step[-1][:, -1:] for step in out.hidden_states], dim=1)
    shapes = [layer.shape for step in out.attentions for layer in step]
    return out["sequences"], out.scores, out.logits, last_hidden, shapes, sorted(out.keys())


def with_an_assistant(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    assistant = AutoModelForCausalLM.from_pretrained(hub / "draft")
    inputs = tokenizer("def f(x):", return_tensors="pt")
    return model.generate(**inputs, assistant_model=assistant, max_new_tokens=16, do_sample=False)


def with_an_assistant_that_draws(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    assistant = AutoModelForCausalLM.from_pretrained(hub / "draft")
    assistant.generation_config.num_assistant_tokens = 4
    assistant.generation_config.num_assistant_tokens_schedule = "heuristic"
    assistant.generation_config.assistant_confidence_threshold = 0.0
    inputs = tokenizer("def f(x):", return_tensors="pt")
    set_seed(3)
    return model.generate(
        **inputs, assistant_model=assistant, max_new_tokens=16, do_sample=True, temperature=0.5
    )


def with_an_assistant_of_another_vocabulary(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    assistant_tokenizer = AutoTokenizer.from_pretrained(hub / "foreign-draft")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    assistant_model = AutoModelForCausalLM.from_pretrained(hub / "foreign-draft")
    inputs = tokenizer("The lazy dog", return_tensors="pt")
    outputs = model.generate(
        **inputs,
        assistant_model=assistant_model,
        tokenizer=tokenizer,
        assistant_tokenizer=assistant_tokenizer,
        max_new_tokens=10,
        do_sample=False,
    )
    return tokenizer.batch_decode(outputs, skip_special_tokens=True)


def with_the_prompt_for_a_draft(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer("one two three one two", return_tensors="pt")
    return model.generate(**inputs, prompt_lookup_num_tokens=3, max_new_tokens=12)


def a_decoding_of_ones_own(hub: Path) -> Any:
    def every_other_guess(model: Any, input_ids: Any, generation_config: Any, **kwargs: Any) -> Any:
        """Take the second guess at every step."""
        for _ in range(generation_config.max_new_tokens):
            logits = model(input_ids).logits[:, -1, :]
            second = torch.topk(logits, k=2, dim=-1).indices[:, 1:]
            input_ids = torch.cat((input_ids, second), dim=-1)
        return input_ids

    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    inputs = tokenizer(["jumps over"], return_tensors="pt")
    return model.generate(**inputs, custom_generate=every_other_guess, max_new_tokens=6)


def a_loop_of_ones_own(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "gpt2")
    model = AutoModelForCausalLM.from_pretrained(hub / "gpt2").eval()
    ids = tokenizer.encode("Hello world", return_tensors="pt")
    generator = torch.Generator().manual_seed(5)
    with torch.inference_mode():
        for _ in range(8):
            outputs = model(ids)
            logits = outputs.logits[:, -1, :] / 0.8
            kept, where = torch.topk(logits, 20)
            drawn = torch.multinomial(kept.softmax(-1), 1, generator=generator)
            ids = torch.cat([ids, where.gather(-1, drawn)], dim=-1)
    return ids


def perplexity(hub: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(hub / "llama")
    model = AutoModelForCausalLM.from_pretrained(hub / "llama")
    encodings = tokenizer("The quick brown fox jumps over the lazy dog.", return_tensors="pt")
    with torch.no_grad():
        logits = model(**encodings).logits
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], encodings.input_ids[0, 1:])
    return torch.exp(loss)
