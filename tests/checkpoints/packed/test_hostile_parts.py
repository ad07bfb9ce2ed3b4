"""Parts of packed matrices that strangers made: bombs, and numbers that would be wrong in silence.

Each case is refused by the name of the file and of the part, before memory is taken; or its numbers
are those of the format's formula.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.checkpoints.checkpoint import open_checkpoint
from asyncgen.checkpoints.packed.bits_and_bytes import BitsAndBytesConfig
from asyncgen.checkpoints.packed.quantized_checkpoint import join_packed, without_spare_biases
from asyncgen.errors import InvalidRequestError, ModelLoadError
from tests.cases import for_each
from tests.checkpoints.packed.one_matrix import (
    COLUMNS,
    EVERY,
    FILE,
    ROWS,
    STEM,
    Bounded,
    make,
    replaced,
    values,
    write,
    write_sparse,
)

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


def refused(folder: Path, named: str) -> None:
    """Check that a folder is refused by name, in a short text, with little memory."""
    with (
        Bounded(named),
        pytest.raises(ModelLoadError, match=named) as caught,
    ):
        values(folder)
    assert len(str(caught.value)) < 1500
    assert FILE in str(caught.value) or "config.json" in str(caught.value)


def test_every_scheme_is_read_right(tmp_path: Path) -> None:
    for scheme, (_, _, tolerance) in EVERY.items():
        parts, dense, settings = make(scheme)
        found = values(write(tmp_path, parts, settings))
        torch.testing.assert_close(found, dense, rtol=1e-6, atol=tolerance)


STATE = "weight.quant_state.bitsandbytes__nf4"
MILLIONS = 30_000_000


@for_each(
    "scheme, name, kind, shape, named",
    [
        ("gptq", "g_idx", "I32", [MILLIONS], rf"`g_idx` is \[{MILLIONS}\] and must be \[128\]"),
        ("gptq", "qzeros", "I32", [MILLIONS, 2], r"`qzeros` is .* and must be \[4, 2\]"),
        ("gptq 8", "scales", "F16", [4, MILLIONS], r"`scales` is .* and must be \[4, 16\]"),
        ("awq", "scales", "F16", [MILLIONS, 16], r"`scales` is .* and must be \[4, 16\]"),
        ("awq", "qzeros", "I32", [MILLIONS], r"`qzeros` is .* and must be \[4, 2\]"),
        ("int4", "weight_shape", "I64", [5_000_000], r"`weight_shape` is .* and must be \[2\]"),
        ("int4", "weight_shape", "I64", [1 << 20, 2], r"`weight_shape` is .* and must be \[2\]"),
        ("int4", "weight_scale", "F16", [16, MILLIONS], "`weight_scale` is"),
        ("int4 zeros", "weight_zero_point", "I32", [MILLIONS, 4], r"point` is .* must be \[2, 4\]"),
        ("int8 rows", "weight_scale", "F32", [MILLIONS], "`weight_scale` is .*30000000"),
        ("int8 groups", "weight_g_idx", "I64", [MILLIONS], r"`weight_g_idx` is .* be \[128\]"),
        ("nf4", "weight.quant_map", "F32", [MILLIONS], r"`quant_map` is \[30000000\] and must be"),
        ("nf4", "weight.absmax", "F32", [MILLIONS], r"`absmax` is .* and must be \[32\]"),
        ("nf4", STATE, "U8", [MILLIONS], "`quant_state` has 30000000 bytes, 4096 are allowed"),
        ("nf4", "weight", "U8", [MILLIONS, 1], "`weight` has 30000000 bytes"),
        ("nf4 nested", "weight.nested_absmax", "F32", [MILLIONS], r"nested_absmax` is .* be \[8\]"),
        ("nf4 nested", "weight.nested_quant_map", "F32", [MILLIONS], r"map` is .* be \[256\]"),
        ("int8 of bitsandbytes", "SCB", "F32", [MILLIONS], r"`SCB` is .* and must be \[16\]"),
        ("int8 of bitsandbytes", "weight_format", "U8", [MILLIONS], "`weight_format` is"),
        ("float8 rows", "weight_scale", "F32", [MILLIONS], r"\[30000000\] scales for \[16, 128\]"),
        ("float8 blocks", "weight_scale_inv", "F32", [1, MILLIONS], r"\[1, 30000000\] scales for"),
        ("bitnet", "weight_scale", "F32", [MILLIONS], "`weight_scale` is"),
        ("gptq", "scales", "F16", [1] * 2000, r"`scales` is \[1, 1.*…"),
        ("gptq", "qweight", "I32", [0, 16], r"`qweight` is \[0, 16\] and must have two sides"),
        ("awq", "qweight", "I32", [4], r"`qweight` is \[4\] and must have two sides"),
        ("float8 rows", "weight", "I8", [16, 128], "weight` is I8, and should be F8_E4M3"),
    ],
)
def test_parts_of_other_shapes_are_refused_unread(
    scheme: str, name: str, kind: str, shape: list[int], named: str, tmp_path: Path
) -> None:
    parts, _, settings = make(scheme)
    large = {f"{STEM}.{name}": (kind, shape)}
    refused(write_sparse(tmp_path, parts, settings, large), named)


GROUP = ("config_groups", "group_0", "weights")


@for_each(
    "scheme, path, value",
    [
        ("gptq", ("group_size",), 10**18),
        ("awq", ("group_size",), 10**30),
        ("int4", (*GROUP, "group_size"), 10**18),
        ("int8 groups", (*GROUP, "group_size"), 10**9),
        ("float8 blocks", ("weight_block_size",), [16, 10**18]),
    ],
)
def test_a_size_beyond_the_matrix_needs_as_few_scales(
    scheme: str, path: tuple[str, ...], value: Any, tmp_path: Path
) -> None:
    parts, _, settings = make(scheme)
    refused(write(tmp_path, parts, replaced(settings, path, value)), "must be|do not fit")


@for_each("block", [[10**8, 16], [16, 10**9], [10**18, 10**30], [8, 10**18]])
def test_a_block_beyond_the_matrix_takes_no_memory(block: list[int], tmp_path: Path) -> None:
    for scheme, path, scale in (
        ("float8 blocks", ("weight_block_size",), "weight_scale_inv"),
        ("float8 of compressed blocks", (*GROUP, "block_structure"), "weight_scale"),
    ):
        parts, _, settings = make(scheme)
        sides = [min(size, side) for size, side in zip(block, (ROWS, COLUMNS), strict=True)]
        scales = torch.rand(ROWS // sides[0], COLUMNS // sides[1])
        folder = write(
            tmp_path, {**parts, f"{STEM}.{scale}": scales}, replaced(settings, path, block)
        )
        with Bounded(block):
            found = values(folder)
        wide = scales.repeat_interleave(sides[0], 0).repeat_interleave(sides[1], 1)
        assert torch.equal(found, parts[f"{STEM}.weight"].float() * wide)


def changed_state(parts: dict[str, Tensor], **changes: Any) -> dict[str, Tensor]:
    """Parts of bitsandbytes with other values in their state."""
    (name,) = (name for name in parts if "quant_state" in name)
    state = json.loads(bytes(parts[name].tolist())) | changes
    text = json.dumps({key: value for key, value in state.items() if value != "gone"})
    return {**parts, name: torch.tensor(list(text.encode()), dtype=torch.uint8)}


def test_factors_of_scales_may_be_shared_by_all(tmp_path: Path) -> None:
    """A ``nested_blocksize`` far beyond the scales takes no memory, and the numbers are right."""
    parts, _, settings = make("nf4 nested")
    factor = f"{STEM}.weight.nested_absmax"
    one = {**parts, factor: parts[factor][:1].clone()}
    for size in (64, 10**8, 10**18):
        with Bounded(size):
            found = values(write(tmp_path, changed_state(one, nested_blocksize=size), settings))
        every = {**parts, factor: parts[factor][:1].expand(8).contiguous()}
        assert torch.equal(found, values(write(tmp_path, every, settings)))
    refused(
        write(tmp_path, changed_state(parts, nested_blocksize=10**8), settings),
        r"`nested_absmax` is \[8\] and must be \[1\]",
    )


@for_each(
    "changes, named",
    [
        ({"nested_blocksize": 0}, "`quant_state.nested_blocksize` is 0; it must be a positive"),
        ({"nested_blocksize": -1}, "nested_blocksize` is -1; it must be a positive"),
        ({"nested_blocksize": 4.0}, "nested_blocksize` is 4.0"),
        ({"nested_blocksize": "gone"}, "`quant_state.nested_offset` is 0.05; its meaning"),
        ({"nested_offset": None}, "nested_offset` is None; it must be a number"),
        ({"nested_offset": "0"}, "nested_offset` is '0'"),
        ({"nested_offset": 10**400}, "nested_offset` is 10{9}.*…; it must be"),
        ({"nested_offset": float("nan")}, "nested_offset` is nan"),
        ({"nested_dtype": ["float32"]}, r"nested_dtype` is \['float32'\]; supported"),
        ({"dtype": ["float16"]}, r"`quant_state.dtype` is \['float16'\]; supported are"),
        ({"dtype": "int4"}, "`quant_state.dtype` is 'int4'; supported are"),
        ({"dtype": 7}, "`quant_state.dtype` is 7; supported are"),
        ({"shape": [16, 128.0]}, r"`quant_state.shape` is \[16, 128.0\]"),
        ({"shape": [True, 2048]}, "`quant_state.shape` is .True, 2048."),
        ({"shape": ["16", "128"]}, "`quant_state.shape` is"),
        ({"shape": [2**62, 2**62]}, "`weight` has 1024 bytes, and 4 bits for each of"),
        ({"shape": "16x128"}, "`quant_state.shape` is '16x128'"),
        ({"blocksize": 48}, "`quant_state.blocksize` is 48; it must be a multiple of 32"),
        ({"blocksize": 256}, "`quant_state.blocksize` is 256; a row of 128 numbers"),
        ({"blocksize": 64.0}, "`quant_state.blocksize` is 64.0"),
        ({"blocksize": "gone"}, "`quant_state.blocksize` is None; it must be there"),
        ({"quant_type": {"nf4": 1}}, "`quant_state.quant_type` is"),
        ({"quant_type": "gone"}, "`quant_state.quant_type` is None; it must be there"),
        ({"unknown": "x" * 3000}, "`quant_state.unknown` is 'xxx.*…; its meaning is not known"),
    ],
)
def test_states_are_read_key_by_key(changes: dict[str, Any], named: str, tmp_path: Path) -> None:
    parts, _, settings = make("nf4 nested")
    refused(write(tmp_path, changed_state(parts, **changes), settings), named)


@for_each(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"[" * 4000,
        b"[16, 128]",
        b"null",
        b"{",
        b'{"shape": ' + b"9" * 4000 + b"}",
    ],
)
def test_a_state_that_is_no_object_is_refused(text: bytes, tmp_path: Path) -> None:
    parts, _, settings = make("nf4")
    state = torch.tensor(list(text), dtype=torch.uint8)
    refused(write(tmp_path, {**parts, f"{STEM}.{STATE}": state}, settings), "`quant_state")


@for_each(
    "changes, named",
    [
        ({"absmax": torch.ones(32)}, "`absmax` is F32, the state has a `nested_blocksize`"),
        ({"nested_absmax": None}, "`nested_blocksize`, and the parts 1 of"),
        ({"nested_quant_map": None}, "`nested_blocksize`, and the parts 1 of"),
        ({"nested_quant_map": torch.ones(16, 16)}, r"map` is \[16, 16\] and must be \[256\]"),
        ({"quant_map": torch.linspace(-2, 2, 16)}, "`quant_map` holds -2.0, which is no number"),
        ({"quant_map": torch.full((16,), torch.nan)}, "`quant_map` holds nan"),
        ({"quant_map": torch.full((16,), torch.inf)}, "`quant_map` holds inf"),
    ],
)
def test_scales_of_bitsandbytes_are_packed_or_floats(
    changes: dict[str, Tensor | None], named: str, tmp_path: Path
) -> None:
    parts, _, settings = make("nf4 nested")
    others = {f"{STEM}.weight.{name}": one for name, one in changes.items()}
    whole = {name: one for name, one in {**parts, **others}.items() if one is not None}
    refused(write(tmp_path, whole, settings), named)


def test_bytes_are_not_taken_for_scales(tmp_path: Path) -> None:
    parts, _, settings = make("nf4")
    scales = torch.full((32,), 3, dtype=torch.uint8)
    refused(
        write(tmp_path, {**parts, f"{STEM}.weight.absmax": scales}, settings),
        "`absmax` is U8, the state has no `nested_blocksize`",
    )
    fp4, _, settings = make("fp4")
    table = torch.linspace(-1, 1, 16)  # no multiples of 1 / 192
    refused(
        write(tmp_path, {**fp4, f"{STEM}.weight.quant_map": table}, settings),
        "`quant_map` holds .*, which is no number of fp4",
    )
    twice = {**parts, f"{STEM}.weight.quant_state.bitsandbytes__fp4": parts[f"{STEM}.{STATE}"] + 0}
    refused(write(tmp_path, twice, settings), "up_proj.quant_state` is there twice")


def even() -> Tensor:
    """Groups of 32 columns."""
    return torch.arange(COLUMNS) // 32


@for_each(
    "groups, named",
    [
        (torch.full((COLUMNS,), 300_000_000), "`g_idx` holds 300000000; .* are from 0 to 3"),
        (torch.full((COLUMNS,), 2**62), "`g_idx` holds 4611686018427387904"),
        (even() + 1, "`g_idx` holds 4; groups of 128 inputs are from 0 to 3"),
        (even() * 2, "`g_idx` holds 6"),
        (torch.full((COLUMNS,), -1), "`g_idx` holds -1"),
        (even() - 1, "`g_idx` holds -1"),
        (torch.full((COLUMNS,), -(2**62)), "`g_idx` holds -4611686018427387904"),
        (torch.zeros(COLUMNS), "`g_idx` has groups of other sizes than 32"),
        (torch.full((COLUMNS,), 3), "`g_idx` has groups of other sizes"),
        ((torch.arange(COLUMNS) // 33), "`g_idx` has groups of other sizes"),
        ((torch.arange(COLUMNS) > 5).long(), "`g_idx` has groups of other sizes"),
        (even().flip(0).clamp(max=2), "`g_idx` has groups of other sizes"),
    ],
)
def test_groups_of_gptq_are_honoured_or_refused(groups: Tensor, named: str, tmp_path: Path) -> None:
    parts, _, settings = make("gptq")
    for dtype in (torch.int32, torch.int64):
        if int(groups.abs().max()) <= torch.iinfo(dtype).max:
            stated = {**parts, f"{STEM}.g_idx": groups.to(dtype)}
            refused(write(tmp_path, stated, settings), named)


def test_groups_in_any_order_are_the_reference_s(tmp_path: Path) -> None:
    """Optimum and GPTQModel unpack ``scales[g_idx] * (weight - zeros[g_idx])``."""
    parts, _, settings = make("gptq")
    scales = parts[f"{STEM}.scales"].float()
    for bits in (4, 8):
        parts, _, settings = make("gptq" if bits == 4 else "gptq 8")
        shifts = torch.arange(0, 32, bits)
        scales = parts[f"{STEM}.scales"].float()
        zeros = (parts[f"{STEM}.qzeros"][:, :, None] >> shifts).flatten(1) & (1 << bits) - 1
        zeros = zeros + (1 if bits == 4 else 0) & (1 << bits) - 1
        weight = (parts[f"{STEM}.qweight"][:, None] >> shifts[:, None]) & (1 << bits) - 1
        weight = weight.flatten(0, 1)  # [in, out]
        orders = [
            even(),
            even().flip(0),
            even()[torch.randperm(COLUMNS)],
            torch.arange(COLUMNS) % 4,
        ]
        for groups in orders:
            stated = {**parts, f"{STEM}.g_idx": groups.int()}
            right = scales[groups] * (weight - zeros[groups])
            for asked in ({}, {"desc_act": True}, {"desc_act": False}):
                found = values(write(tmp_path, stated, {**settings, **asked}))
                assert torch.equal(found, right.T)


def test_one_group_a_row_needs_no_groups_but_zeros(tmp_path: Path) -> None:
    parts, _, settings = make("gptq")
    for name in ("scales", "qzeros"):
        parts[f"{STEM}.{name}"] = parts[f"{STEM}.{name}"][:1]
    without = {name: one for name, one in parts.items() if not name.endswith("g_idx")}
    for size in (-1, 128, 4096):
        stated = {**settings, "group_size": size}
        right = values(write(tmp_path, without, stated))
        zeros = {**parts, f"{STEM}.g_idx": torch.zeros(COLUMNS, dtype=torch.int32)}
        assert torch.equal(values(write(tmp_path, zeros, stated)), right)
        refused(write(tmp_path, parts, stated), "`g_idx` holds 3")


def test_columns_of_compressed_tensors_are_unset_all_or_none(tmp_path: Path) -> None:
    parts, dense, settings = make("int4")
    unset = torch.full((COLUMNS,), -1, dtype=torch.int32)
    name = f"{STEM}.weight_g_idx"
    assert torch.equal(values(write(tmp_path, {**parts, name: unset}, settings)), dense)
    for groups, named in (
        (torch.where(torch.arange(COLUMNS) < 5, unset, even().int()), "`weight_g_idx` holds -1"),
        (unset - 1, "`weight_g_idx` holds -2"),
        (even().int() + 7, "`weight_g_idx` holds 10"),
        (even().int() // 2, "`weight_g_idx` has groups of other sizes"),
    ):
        refused(write(tmp_path, {**parts, name: groups}, settings), named)


@for_each(
    "scheme, name, change, named",
    [
        ("gptq", "qweight", lambda one: one.view(torch.float32), "qweight` is F32, and should be"),
        ("gptq", "qweight", lambda one: one.long(), "qweight` is I64, and should be I32"),
        ("gptq", "scales", lambda one: one.int(), "scales` is I32, and should be F16"),
        ("gptq", "scales", lambda one: torch.cat((one, one)), r"`scales` is \[8, 16\] and must"),
        ("gptq", "qzeros", lambda one: torch.cat((one, one)), r"`qzeros` is \[8, 2\] and must"),
        ("gptq", "g_idx", lambda one: one.float(), "g_idx` is F32, and should be I32 or I64"),
        ("gptq", "g_idx", lambda one: one.to(torch.int16), "g_idx` is I16"),
        ("awq", "qweight", lambda one: one.view(torch.float32), "qweight` is F32, and should be"),
        ("awq", "qzeros", lambda one: one.long(), "qzeros` is I64, and should be I32"),
        ("awq", "qzeros", lambda one: one.float(), "qzeros` is F32, and should be I32"),
        ("awq", "scales", lambda one: one[:2], r"`scales` is \[2, 16\] and must be \[4, 16\]"),
        ("int4", "weight_packed", lambda one: one.float(), "weight_packed` is F32, and should"),
        ("int4", "weight_packed", lambda one: one[:, :8], "`weight_packed` is .*`weight_shape` "),
        ("int4", "weight_shape", lambda one: one.float(), "weight_shape` is F32, and should"),
        ("int4", "weight_shape", lambda one: one.flip(0), "`weight_packed` is .*`weight_shape` "),
        ("int4", "weight_shape", lambda one: -one, r"`weight_shape` holds \[-16, -128\]"),
        ("int4", "weight_shape", lambda one: one * 10**15, "`weight_packed` is .*`weight_shape` "),
        ("int4", "weight_scale", lambda one: one[:1], r"`weight_scale` is \[1, 4\] and must be"),
        ("int4 zeros", "weight_zero_point", lambda one: one[:, :1], r"point` is \[2, 1\] and must"),
        ("int8 rows", "weight_scale", lambda one: one[:7], r"`weight_scale` is \[7, 1\]"),
        ("int8 groups", "weight_scale", lambda one: one[:, :1], r"`weight_scale` is \[16, 1\]"),
        ("int8 of bitsandbytes", "SCB", lambda one: one[:1], r"`SCB` is \[1\] and must be \[16\]"),
        ("int8 of bitsandbytes", "weight", lambda one: one.float(), "weight` is F32, and should"),
        ("float8 rows", "weight_scale", lambda one: torch.ones(3, 5), r"\[3, 5\] scales for"),
        ("float8 rows", "weight_scale", lambda one: torch.ones(128), r"\[128\] scales for"),
        ("float8 blocks", "weight_scale_inv", lambda one: torch.ones(8, 1), r"\[8, 1\] scales"),
        ("float8 of fbgemm", "weight_scale", lambda one: torch.ones(2, 8, 1), "scales for"),
        ("float8 of fbgemm", "weight", lambda one: one.float(), "weight` is F32, and should"),
        ("bitnet", "weight", lambda one: one.to(torch.int8), "weight` is I8, and should be U8"),
        ("bitnet", "weight_scale", lambda one: torch.ones(4), r"`weight_scale` is \[4\]"),
    ],
)
def test_parts_that_are_no_such_numbers_are_refused(
    scheme: str, name: str, change: Any, named: str, tmp_path: Path
) -> None:
    parts, _, settings = make(scheme)
    whole = {**parts, f"{STEM}.{name}": change(parts[f"{STEM}.{name}"]).contiguous()}
    refused(write(tmp_path, whole, settings), named)


@for_each(
    "expression",
    [
        ".?" * 20 + ".*.*.*.*x",
        ".*" * 14 + "x",
        "(?:.|l|a|y|e|r|s)?" * 12 + "x",
        "(m|m)(o|o)(d|d)(e|e)(l|l)(.|.)(l|l)(a|a)(y|y)(e|e)(r|r)(s|s)x",
        r"\w*?" * 15 + "!",
        ".{0,30}" * 12 + "x",
        "a" * 1_000_000,
    ],
)
def test_expressions_that_take_for_ever_are_refused(expression: str, tmp_path: Path) -> None:
    parts, _, settings = make("gptq")
    refused(write(tmp_path, parts, {**settings, "dynamic": {expression: {}}}), "`dynamic` has ")
    parts, _, settings = make("int4")
    group = settings["config_groups"]["group_0"]
    groups = {"a": group, "b": {**group, "targets": [f"re:{expression}"]}}
    refused(write(tmp_path, parts, {**settings, "config_groups": groups}), "`targets` has ")


@for_each(
    "expression",
    [
        r".*\.layers\.(?:[0-9]|1[0-9])\.(self_attn|mlp)\.(q|k|v|up)_proj.*",
        r"model\.layers\.\d+\.mlp\..*_proj$",
        r"model.*layers.*mlp.*up.*",
        r"(?!lm_head).*up_proj",
        "model.layers.0.mlp.up_proj",
    ],
)
def test_expressions_of_programs_are_compared(expression: str, tmp_path: Path) -> None:
    parts, dense, settings = make("gptq")
    rules = {expression: {"bits": 4, "group_size": 32}}
    folder = write(tmp_path, parts, {**settings, "bits": 8, "dynamic": rules})
    assert torch.equal(values(folder), dense)


def test_rules_are_as_many_as_can_be_compared(tmp_path: Path) -> None:
    parts, dense, settings = make("gptq")
    many = {f"+:nothing.{number}": {"bits": 8} for number in range(5000)}
    with Bounded():
        assert torch.equal(values(write(tmp_path, parts, {**settings, "dynamic": many})), dense)
    more = {f"+:{number}": {"bits": 8} for number in range(11_000)}
    refused(write(tmp_path, parts, {**settings, "dynamic": more}), "`dynamic` has 11000 expr")


@for_each(
    "shape, dtype",
    [((17,), torch.float32), ((16, 1), torch.float16), ((), torch.bfloat16), ((128,), torch.int8)],
)
def test_a_bias_of_zeros_is_spare_if_it_is_one_a_row(
    shape: tuple[int, ...], dtype: torch.dtype, tmp_path: Path
) -> None:
    parts, _, settings = make("gptq")
    name = f"{STEM}.bias"
    for each, is_left in ((shape, True), ((ROWS,), False)):
        zeros = torch.zeros(each, dtype=dtype)
        write(tmp_path, {**parts, name: zeros}, settings)
        raw = json.loads((tmp_path / "config.json").read_text())
        joined = join_packed(open_checkpoint(tmp_path), raw)
        assert (name in without_spare_biases(joined, set()).tensors) == is_left


@for_each(
    "changes",
    [
        {"llm_int8_skip_modules": ["(" * 50_000]},
        {"llm_int8_skip_modules": ["a{99999999999}"]},
        {"llm_int8_skip_modules": [[]]},
        {"load_in_8bit": 1},
        {"_load_in_8bit": [0] * 100_000},
        {"bnb_4bit_quant_type": ["nf4"]},
        {"bnb_4bit_compute_dtype": {}},
        {"llm_int8_threshold": "6"},
        {"a" * 100_000: 1},
    ],
)
def test_odd_values_of_a_request_are_refused_by_name(changes: dict[str, Any]) -> None:
    with Bounded(), pytest.raises(InvalidRequestError) as caught:
        BitsAndBytesConfig.from_dict({"load_in_8bit": True, **changes})
    assert len(str(caught.value)) < 1000
