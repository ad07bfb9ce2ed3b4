"""Settings of packed checkpoints: each key decides what it says, or is refused by its name."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import asyncgen
from asyncgen.checkpoints.packed import schemes
from asyncgen.checkpoints.packed.file_expressions import FileExpressions
from asyncgen.checkpoints.packed.grouped_weight import packed_weight
from asyncgen.checkpoints.packed.module_rules import ModuleRules
from asyncgen.checkpoints.packed.quantized_checkpoint import quantisation_method
from asyncgen.checkpoints.packed.stated_settings import Settings, UnknownSettingError
from asyncgen.errors import ModelLoadError
from tests.cases import for_each
from tests.checkpoints.packed.test_quantized_checkpoint import (
    compressed,
    float8,
    gptq,
    integers,
    words_of_four,
    write,
    write_each,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

IDS = torch.arange(2, 12).view(1, 10)


def logits(folder: Path) -> Tensor:
    """Of a checkpoint in float32."""
    model = asyncgen.load_model(folder, dtype="float32")
    found: Tensor = model(input_ids=IDS, return_dict=True).logits
    return found


def restate(folder: Path, **settings: Any) -> None:
    """Set keys of a ``quantization_config``."""
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= settings
    (folder / "config.json").write_text(json.dumps(config))


def refused(folder: Path, named: str, **settings: Any) -> None:
    """Check that the settings are refused by name, and leave the file as it was."""
    before = (folder / "config.json").read_text()
    restate(folder, **settings)
    with pytest.raises(ModelLoadError, match=named):
        asyncgen.load_model(folder)
    (folder / "config.json").write_text(before)


@for_each(
    "rows, columns, block",
    [
        (80, 80, (32, 32)),
        (96, 160, (64, 64)),
        (192, 192, (96, 96)),
        (80, 96, (32, 64)),
        (7, 130, (128, 128)),
        (70, 80, (1, 32)),
        (300, 40, (128, 128)),
    ],
)
def test_float8_is_scaled_by_the_stated_block(
    rows: int, columns: int, block: tuple[int, int]
) -> None:
    weight = torch.randn(rows, columns).to(torch.float8_e4m3fn)
    scales = torch.rand(-(-rows // block[0]), -(-columns // block[1]))
    row, column = torch.arange(rows)[:, None], torch.arange(columns)
    right = weight.float() * scales[row // block[0], column // block[1]]
    parts = {"weight": weight, "s": scales}
    assert torch.equal(schemes.float8(parts, scale="s", blocks=[block]), right)
    stacked = {name: torch.stack((part, part)) for name, part in parts.items()}
    found = schemes.float8(stacked, scale="s", blocks=[block])
    assert torch.equal(found, torch.stack((right, right)))


@for_each(
    "shape, blocks",
    [
        ((3, 3), [(64, 64)]),
        ((2, 2), [None]),
        ((80,), [(32, 32)]),
        ((1, 1), [(32, 32)]),
        ((2, 3), [None, (128, 128)]),
    ],
)
def test_scales_that_the_block_does_not_explain_are_refused(
    shape: tuple[int, ...], blocks: list[tuple[int, int] | None]
) -> None:
    parts = {"weight": torch.zeros(80, 80), "s": torch.ones(shape)}
    with pytest.raises(ValueError, match="do not fit blocks"):
        schemes.float8(parts, scale="s", blocks=blocks)


def test_a_model_of_float8_uses_its_block(tmp_path: Path) -> None:
    settings = {"quant_method": "fp8", "weight_block_size": [32, 32], "scale_fmt": "float"}
    write_each(
        tmp_path,
        lambda name, outputs, inputs: float8(outputs, inputs, block=32, name="weight_scale_inv"),
        settings,
        intermediate_size=80,
    )
    assert torch.equal(logits(tmp_path), logits(tmp_path / "plain"))
    refused(
        tmp_path,
        r"`.*` cannot be unpacked: \[2, 3\] scales for \[64, 80\]",
        weight_block_size=[64, 32],
    )
    refused(tmp_path, "scales for .* do not fit blocks of .'rows'", weight_block_size=None)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    scales = {name: one for name, one in tensors.items() if name.endswith("_inv")}
    powers = {name: one.to(torch.float8_e8m0fnu) for name, one in scales.items()}
    save_file({**tensors, **{name: one.float() for name, one in powers.items()}}, file)
    rounded = logits(tmp_path)
    save_file({**tensors, **powers}, file)
    restate(tmp_path, scale_fmt="ue8m0")
    assert torch.equal(logits(tmp_path), rounded)
    save_file({**tensors, **{name: one.view(torch.uint8) for name, one in powers.items()}}, file)
    refused(tmp_path, "weight_scale_inv` is U8, and should be F16 or")


@for_each(
    "size, columns",
    [(32, 80), (64, 96), (128, 160)],
)
def test_float8_groups_have_the_stated_size(size: int, columns: int) -> None:
    weight = torch.randn(6, columns).to(torch.float8_e4m3fn)
    scales = torch.rand(6, -(-columns // size))
    right = weight.float() * scales[:, torch.arange(columns) // size]
    parts = {"weight": weight, "s": scales}
    assert torch.equal(schemes.float8(parts, scale="s", blocks=[(1, size)]), right)


def test_integers_of_groups_of_another_size_are_refused(tmp_path: Path) -> None:
    numbers = torch.randint(0, 16, (4, 512), dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"\[4, 4\] scales, for groups of 256 \[4, 2\]"):
        packed_weight(numbers, torch.ones(4, 4), 256, bits=4)
    parts, _ = gptq(8, 128, mixes=False)
    with pytest.raises(ValueError, match="groups of other sizes than 32"):
        schemes.gptq({**parts, "g_idx": torch.arange(128) // 33}, bits=4, size=32, is_second=False)
    write(tmp_path, "gptq")
    refused(tmp_path, "cannot be unpacked", group_size=64)
    refused(tmp_path, "`group_size` is 0", group_size=0)


WRITTEN: dict[str, list[dict[str, Any]]] = {
    "gptq": [
        {
            "damp_percent": 0.1,
            "static_groups": False,
            "sym": True,
            "true_sequential": True,
            "model_name_or_path": None,
            "model_file_base_name": "model",
            "use_exllama": True,
            "exllama_config": {"version": 1},
            "cache_block_outputs": True,
            "modules_in_block_to_quantize": [["self_attn.q_proj"]],
        },
        {
            "checkpoint_format": "gptq",
            "format": "gptq",
            "pack_dtype": "int32",
            "dynamic": None,
            "lm_head": False,
            "meta": {"quantizer": ["gptqmodel:1.7.4"], "mse": 0.0},
        },
        {"autoround_version": "0.4", "iters": 200, "lr": 0.005, "seqlen": 2048, "data_type": "int"},
    ],
    "awq": [
        {"modules_to_not_convert": ["mlp.gate"], "zero_point": True, "do_fuse": False},
        {"version": "GEMM", "backend": "autoawq", "exllama_config": None, "sym": False},
    ],
    "nf4": [
        {
            "_load_in_4bit": True,
            "_load_in_8bit": False,
            "bnb_4bit_compute_dtype": "bfloat16",
            "bnb_4bit_quant_storage": "uint8",
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_use_double_quant": True,
            "llm_int8_enable_fp32_cpu_offload": False,
            "llm_int8_has_fp16_weight": False,
            "llm_int8_skip_modules": ["lm_head"],
            "llm_int8_threshold": 6.0,
            "load_in_8bit": False,
        }
    ],
    "float8 rows": [
        {
            "global_compression_ratio": 1.5,
            "ignore": ["lm_head"],
            "kv_cache_scheme": None,
            "quantization_status": "frozen",
            "sparsity_config": {"format": "dense"},
            "transform_config": {},
            "version": "0.11.0",
        }
    ],
    "float8 blocks": [
        {"activation_scheme": "dynamic", "fmt": "e4m3", "modules_to_not_convert": ["lm_head"]},
        {"activation_scheme": "static", "dequantize": False, "ignored_layers": ["lm_head"]},
    ],
}
"""Settings that programs write, which change no number."""


def test_notes_of_the_programs_that_pack_are_accepted(tmp_path: Path) -> None:
    for number, (scheme, written) in enumerate(WRITTEN.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        write(folder, scheme)
        before = logits(folder)
        for settings in written:
            restate(folder, **settings)
            assert torch.equal(logits(folder), before)
        refused(folder, "`new_key` is 1; its meaning is not known", new_key=1)


def weights(**changes: Any) -> dict[str, Any]:
    """Groups of compressed-tensors whose weights have other settings."""
    groups: dict[str, Any] = compressed("int-quantized", 8, "channel")["config_groups"]
    groups["group_0"]["weights"] |= changes
    return {"config_groups": groups}


@for_each(
    "scheme, settings, named",
    [
        ("gptq", {"adapter": {"name": "lora"}}, "`adapter` is"),
        ("gptq", {"rotation": "hadamard"}, "`rotation` is 'hadamard'"),
        ("gptq", {"pack_dtype": "int16"}, "`pack_dtype` is 'int16'"),
        ("gptq", {"format": "gptq_v2", "checkpoint_format": "gptq"}, "`format` is 'gptq_v2'"),
        ("gptq", {"is_marlin_format": True}, "`is_marlin_format` is True"),
        ("gptq", {"extra_config": {"lm_head": {"bits": 8}}}, "`extra_config` is"),
        ("awq", {"zero_point": False}, "`zero_point` is False"),
        ("awq", {"backend": "llm-awq"}, "`backend` is 'llm-awq'"),
        ("awq", {"w_bit": 8}, "`w_bit` is 8; `bits` is 4"),
        ("nf4", {"load_in_8bit": True}, "`load_in_4bit` is True; one of it and"),
        ("nf4", {"bnb_4bit_quant_type": "int4"}, "`bnb_4bit_quant_type` is 'int4'"),
        ("nf4", {"bnb_4bit_quant_storage": "int16"}, "`bnb_4bit_quant_storage` is 'int16'"),
        ("float8 blocks", {"weight_block_size": [0, 16]}, "`weight_block_size` is .0, 16."),
        ("float8 blocks", {"weight_block_size": 16}, "`weight_block_size` is 16"),
        ("float8 blocks", {"weight_block_size": [0, 0]}, "`weight_block_size` is .0, 0."),
        ("float8 blocks", {"weight_block_size": ["16", "16"]}, "`weight_block_size` is .'16'"),
        ("float8 blocks", {"weight_block_size": [-16, 16]}, "`weight_block_size` is .-16"),
        ("float8 blocks", {"weight_block_size": [True, 16]}, "`weight_block_size` is .True"),
        ("float8 blocks", {"weight_block_size": [16.0, 16]}, "`weight_block_size` is .16.0"),
        ("float8 blocks", {"weight_block_size": [16]}, "`weight_block_size` is .16."),
        ("float8 blocks", {"expert_dtype": "fp4"}, "`expert_dtype` is 'fp4'"),
        ("float8 blocks", {"scale_fmt": "e5m3"}, "`scale_fmt` is 'e5m3'"),
        ("int8 rows", {"transform_config": {"R1": {}}}, "`transform_config` is"),
        ("int8 rows", {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config.form"),
        ("int8 rows", {"config_groups": {}}, "`config_groups` is {}; there must be one"),
        ("int8 rows", {"config_groups": {"a": {"weights": None}}}, "without weights"),
        ("int8 rows", {"config_groups": {"a": {"weights": {}, "targets": 1}}}, "targets` is 1"),
        ("int8 rows", {"config_groups": {"a": {"weights": {}, "targets": [5]}}}, "targets` is "),
        ("int8 rows", {"config_groups": {"a": {"weights": {}, "targets": {}}}}, "targets` is "),
        ("int8 rows", {"config_groups": {"a": {"weights": {}, "targets": "x"}}}, "targets` is "),
        (
            "int8 rows",
            {"config_groups": {"a": {"weights": {}, "format": "dense"}}},
            "format` is 'd",
        ),
        ("int8 rows", weights(num_bits=4), "numbers of more than 4 bits"),
        ("int8 rows", weights(dynamic=True), "weights.dynamic` is True"),
        ("int8 rows", weights(strategy="block"), "weights.strategy` is 'block'"),
        ("int8 rows", weights(zero_bits=3), "weights.zero_bits` is 3; its meaning"),
        ("int8 rows", weights(symmetric=False), "weight_zero_point' is missing"),
        ("int8 rows", weights(actorder="group"), "weight_g_idx' is missing"),
        ("int8 rows", weights(type="float"), "proj.weight` is I8, and should be F8_E4M3"),
        ("float8 rows", weights(type="int"), "proj.weight` is F8_E4M3, and should be I8"),
        ("float8 rows", weights(type="float", strategy="block"), "block_structure` is None"),
    ],
)
def test_settings_that_change_numbers_are_refused_by_name(
    scheme: str, settings: dict[str, Any], named: str, made: dict[str, Path]
) -> None:
    refused(made[scheme], named, **settings)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each of a few schemes."""
    found: dict[str, Path] = {}
    for scheme in ("gptq", "awq", "nf4", "float8 blocks", "float8 rows", "int8 rows"):
        found[scheme] = tmp_path_factory.mktemp("packed")
        write(found[scheme], scheme)
    return found


ODD: list[Any] = [
    None,
    True,
    0,
    -1,
    3,
    32,
    1.5,
    float("inf"),
    "",
    "gptq",
    [],
    [16, 16],
    [[]],
    {},
    {"a": 1},
]


def keys_of(settings: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all keys."""
    for key, value in settings.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from keys_of(value, (*above, key))


@pytest.mark.gate
def test_odd_values_change_nothing_or_are_refused(made: dict[str, Path]) -> None:
    for scheme, folder in made.items():
        config = json.loads((folder / "config.json").read_text())
        right = logits(folder)
        for path in [*keys_of(config["quantization_config"]), ("dynamic",), ("an_unknown_key",)]:
            for value in ODD:
                changed = copy.deepcopy(config)
                part = changed["quantization_config"]
                for key in path[:-1]:
                    part = part[key]
                part[path[-1]] = value
                (folder / "config.json").write_text(json.dumps(changed))
                with contextlib.suppress(ModelLoadError):
                    assert torch.equal(logits(folder), right), (scheme, path, value)
        (folder / "config.json").write_text(json.dumps(config))


@for_each(
    "state",
    [{"blocksize": 0}, {"shape": [64]}, {"shape": None}, {"quant_type": "int4"}, {"bias": 1}],
)
def test_broken_states_of_bitsandbytes_are_refused(state: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "-".join(state) / str(*state.values())
    folder.mkdir(parents=True)
    write(folder, "nf4")
    file = folder / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.0.mlp.up_proj.weight.quant_state.bitsandbytes__nf4"
    changed = {**json.loads(bytes(tensors[name].tolist())), **state}
    coded = torch.tensor(list(json.dumps(changed).encode()), dtype=torch.uint8)
    save_file({**tensors, name: coded}, file)
    with pytest.raises(ModelLoadError, match=r"up_proj` cannot be unpacked|up_proj.weight is"):
        asyncgen.load_model(folder)


def test_numbers_that_are_stored_as_floats_are_not_taken_for_integers(tmp_path: Path) -> None:
    write(tmp_path, "int8 rows")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.0.mlp.up_proj.weight"
    save_file({**tensors, name: tensors[name].bfloat16()}, file)
    refused(tmp_path, "up_proj.weight` is BF16, and should be I8", quantization_status="frozen")
    stem = name.removesuffix("weight")
    save_file({**tensors, f"{stem}weight_global_scale": torch.ones(1)}, file)
    refused(tmp_path, "up_proj.weight_global_scale` is not known")


def test_mxfp4_has_no_other_settings() -> None:
    from asyncgen.checkpoints.packed.methods import check_mxfp4

    known = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"], "dequantize": True}
    check_mxfp4(Settings(known))
    with pytest.raises(UnknownSettingError, match="`block_size` is 16"):
        check_mxfp4(Settings({**known, "block_size": 16}))


@for_each("scheme", ["nf4", "nf4 nested"])
def test_four_bits_are_the_same_bytes_in_any_storage(scheme: str, tmp_path: Path) -> None:
    folder = tmp_path / scheme
    folder.mkdir()
    write(folder, scheme)
    right, file = logits(folder), folder / "model.safetensors"
    tensors = load_file(file)
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    for dtype in (torch.float64,) if scheme == "nf4 nested" else dtypes:
        viewed = {
            name: one.view(-1).view(dtype).view(-1, 1) if one.shape[-1:] == (1,) else one
            for name, one in tensors.items()
        }
        assert any(one.dtype is dtype for one in viewed.values())
        save_file(viewed, file)
        restate(folder, bnb_4bit_quant_storage=str(dtype).removeprefix("torch."))
        assert torch.equal(logits(folder), right)


def test_early_files_of_bitsandbytes_do_not_name_their_method(tmp_path: Path) -> None:
    write(tmp_path, "nf4")
    right = logits(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]["quant_method"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert torch.equal(logits(tmp_path), right)


def test_method_in_the_part_of_the_text_model_is_found() -> None:
    assert (
        quantisation_method({"text_config": {"quantization_config": {"quant_method": "x"}}}) == "x"
    )
    assert quantisation_method({"text_config": {}}) is None


def test_eight_bits_that_do_not_lie_by_rows_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "int8 of bitsandbytes")
    right, file = logits(tmp_path), tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "model.layers.1.self_attn.k_proj.weight_format"
    save_file({**tensors, name: torch.tensor(0, dtype=torch.uint8)}, file)
    assert torch.equal(logits(tmp_path), right)
    save_file({**tensors, name: torch.tensor(2, dtype=torch.uint8)}, file)
    refused(tmp_path, "k_proj.weight_format` is not 0")


RULES = {
    r"+:.*\.1\..*(?:gate|up)_proj.*": {"bits": 8, "group_size": 64},
    r".*\.k_proj": {"bits": 8, "sym": False, "mse": 2.4},
    r"-:.*\.0\.mlp\.down_proj": {},
    r"+:.*down_proj": {"group_size": 64, "desc_act": False},
}


def test_modules_follow_the_rules_of_dynamic(tmp_path: Path) -> None:
    """Rules behind ``-:`` come first, then the first that matches."""

    def one(name: str, outputs: int, inputs: int) -> tuple[dict[str, Tensor], Tensor]:
        if name.endswith("0.mlp.down_proj"):
            weight = torch.randn(outputs, inputs)
            return {"weight": weight}, weight
        is_fine = name.endswith(("1.mlp.gate_proj", "1.mlp.up_proj"))
        bits = 8 if is_fine or name.endswith("k_proj") else 4
        size = 64 if is_fine or name.endswith("down_proj") else 32
        return gptq(outputs, inputs, bits=bits, size=size)

    settings = {"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": RULES}
    write_each(tmp_path, one, settings)
    model = asyncgen.load_model(tmp_path, dtype="float32")
    model.save_pretrained(tmp_path / "saved")
    found = load_file(tmp_path / "saved" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "plain" / "model.safetensors").items():
        assert torch.equal(found[name], tensor), name
    torch.testing.assert_close(logits(tmp_path), logits(tmp_path / "plain"), atol=2e-3, rtol=2e-3)
    for rules, named in (
        ({"-:.*q_proj": {}}, "`dynamic` says by '-:.*q_proj' that `.*q_proj` is not quantised"),
        ({**RULES, "+:.*q_proj": {"bits": 3}}, r"`dynamic\['\+:.\*q_proj'\].bits` is 3"),
        ({**RULES, "nobody": {"adapter": {"rank": 4}}}, r"`dynamic\['nobody'\].adapter` is"),
        ({"+:(": {}}, "`dynamic` has .*, which is invalid"),
        ({"+:(a+)+$": {}}, "`dynamic` has .*, a group that repeats"),
        ({"+:.*": 8}, "`dynamic` has 8 for"),
        ([RULES], "`dynamic` is .* must hold rules"),
    ):
        refused(tmp_path, named, dynamic=rules)


@for_each(
    "text",
    [
        r"(?x)(?:[a-z._0-9]+) +!",
        "(?x)([a-z]+) # a remark\n+",
        r"(?:(?:a|ab){2}b){2,}",
        r"((a)(b)?)*",
        r"(?:a+(?:b)?)+?",
    ],
)
def test_groups_that_repeat_are_found_however_they_are_written(text: str) -> None:
    with pytest.raises(UnknownSettingError, match="a group that repeats"):
        FileExpressions([text], "dynamic")


def test_a_comparison_takes_no_time() -> None:
    name = "model.layers.31.self_attn.q_proj"
    usual = (
        r".*\.mlp\.(?:gate|up|down)_proj.*",
        r"model\.layers\.(\d+)\.(self_attn|mlp)\..*_proj$",
    )
    expressions = FileExpressions([*usual, ".*.*.*.*.*.*.*.*x"], "dynamic")
    assert [expressions.match(each, name) for each in usual] == [False, True]
    with pytest.raises(UnknownSettingError, match="too long to compare"):
        expressions.match(".*.*.*.*.*.*.*.*x", name)


MIXED = {
    "a": {"targets": ["re:.*self_attn.*"], "format": "int-quantized"},
    "b": {"targets": ["Linear"], "format": "pack-quantized"},
    "c": {"targets": ["model.layers.1.mlp.down_proj"], "format": "float-quantized"},
}


def test_modules_follow_the_targets_of_groups(tmp_path: Path) -> None:
    """A name comes before an expression, and that before the class."""

    def one(name: str, outputs: int, inputs: int) -> tuple[dict[str, Tensor], Tensor]:
        if name.endswith("1.mlp.down_proj"):
            return float8(outputs, inputs, block=32)
        return (integers if "self_attn" in name else words_of_four)(outputs, inputs)

    kinds = {
        "a": {"num_bits": 8, "strategy": "channel"},
        "b": {"num_bits": 4, "group_size": 32},
        "c": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 32]},
    }
    groups = {name: {**group, "weights": kinds[name]} for name, group in MIXED.items()}
    settings = {"quant_method": "compressed-tensors", "format": "mixed-precision"}
    write_each(tmp_path, one, {**settings, "config_groups": groups})
    asyncgen.load_model(tmp_path, dtype="float32").save_pretrained(tmp_path / "saved")
    found = load_file(tmp_path / "saved" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "plain" / "model.safetensors").items():
        assert torch.equal(found[name], tensor), name
    for target, named in (
        ("nothing", "`config_groups` has no target for `model.layers.0.mlp.down_proj`"),
        ("re:(.*)+", "`targets` has '...*..', a group that repeats"),
        ("re:.*q_proj", r"`config_groups` has .'a', 'b'. for `.*q_proj`"),
    ):
        other = {**groups["b"], "targets": [target, *(["Linear"] if "q_proj" in target else [])]}
        refused(tmp_path, named, config_groups={**groups, "b": other})
    refused(tmp_path, "`config_groups.a.format` is 'int-quantized'", format="pack-quantized")


def test_first_rule_that_matches_the_beginning_decides() -> None:
    rules = ModuleRules({"a.b": {"bits": 8}, "a": {}, "-:b": {}, "+:b": {"bits": 8}})
    assert [rules.of(name) for name in ("a.b.c", "ab", "c.a.b")] == ["a.b", "a", None]
    with pytest.raises(UnknownSettingError, match="'-:b'"):
        rules.of("b.c")


def test_biases_of_zeros_are_left_out_where_the_model_has_none(tmp_path: Path) -> None:
    """AutoGPTQ stores a bias for every matrix."""
    write(tmp_path, "gptq")
    right, file = logits(tmp_path), tmp_path / "model.safetensors"
    tensors = load_file(file)
    stems = [name.removesuffix("qweight") for name in tensors if name.endswith("qweight")]
    biases = {f"{stem}bias": torch.zeros_like(tensors[f"{stem}scales"][0]) for stem in stems}
    save_file({**tensors, **biases}, file)
    assert torch.equal(logits(tmp_path), right)
    biases[f"{stems[3]}bias"][2] = 0.5
    save_file({**tensors, **biases}, file)
    refused(tmp_path, f"1 unexpected: {stems[3]}bias")
