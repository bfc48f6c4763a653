from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import weights
from unisono.config import PRESETS, Config, MemberConfig, checked, preset, read_config, split_weight, weights_of
from unisono.errors import ConfigError, UnknownName

ONE = {"members": [{"model": "demo:smollm2-135m"}]}


def test_what_is_left_out_has_the_documented_default() -> None:
    config = checked(Config, ONE, "test.yaml")
    assert (config.rule, config.max_tokens, config.stop, config.chat) == ("linear", 256, [], False)
    [member] = config.members
    assert (member.weight, member.name, member.threads, member.n_ctx, member.ends) == (None, None, None, 4096, None)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({**ONE, "rulee": "linear"}, r"No key in test.yaml named 'rulee'\. Did you mean 'rule'\?"),
        ({"members": [{"model": "a", "wieght": 1}]}, r"No key in test.yaml named 'wieght'\. Did you mean 'weight'\?"),
    ],
)
def test_a_key_that_does_not_exist_is_named_with_the_nearest_that_does(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UnknownName, match=said):
        checked(Config, values, "test.yaml")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "test.yaml: members: field required"),
        ({"members": []}, r"test.yaml: members: list should have at least 1 item.*, not \[\]"),
        ({"members": [7]}, "test.yaml: members.0: .*, not 7"),
        ({"members": [{}]}, "test.yaml: members.0.model: field required"),
        ({"members": [{"model": ""}]}, "test.yaml: members.0.model: .*, not ''"),
        ({"members": [{"model": "a", "n_ctx": 0}]}, "test.yaml: members.0.n_ctx: .*greater than or equal to 8, not 0"),
        ({"members": [{"model": "a", "n_contexts": 257}]}, "less than or equal to 256, not 257"),
        ({"members": [{"model": "a", "weight": "heavy"}]}, "members.0.weight: .*valid number.*, not 'heavy'"),
        ({**ONE, "threads": 0}, "threads: .*greater than or equal to 1, not 0"),
        ({**ONE, "max_tokens": 0}, "max_tokens: .*greater than or equal to 1, not 0"),
        ({**ONE, "plausibility": 1.5}, "plausibility: .*less than or equal to 1, not 1.5"),
        ({**ONE, "top_union": 0}, "top_union: .*greater than or equal to 1, not 0"),
        ({**ONE, "stop": 7}, "stop: .*list.*, not 7"),
        ([1], r"test.yaml: the whole: .*, not \[1\]"),
    ],
)
def test_a_value_out_of_range_is_named_with_what_was_given(values: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        checked(Config, values, "test.yaml")


def test_no_limit_on_tokens_is_written_null() -> None:
    assert checked(Config, {**ONE, "max_tokens": None}, "test.yaml").max_tokens is None


# Files


def test_a_file_is_read_as_the_mapping_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "é.yaml"
    path.write_text("members:\n- model: demo:smollm2-135m\n  weight: 0.7\nstop: ['語']\n", encoding="utf-8")
    assert read_config(path) == {"members": [{"model": "demo:smollm2-135m", "weight": 0.7}], "stop": ["語"]}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"members: [", "is not valid YAML"),
        (b"\xff\xfe\x00", "is not valid YAML"),
        (b"a: !!python/object/apply:os.system ['true']", "is not valid YAML"),
        (b"", "must hold keys and values.*it holds nothing"),
        (b"- a\n- b\n", "must hold keys and values.*it holds list"),
        (b"members: [a.gguf]\nmax_tokens: 3\nmax_tokens: 5\n", "max_tokens stands twice, the second time in line 3"),
        (b"just text", "must hold keys and values.*it holds str"),
    ],
)
def test_a_file_that_holds_no_configuration_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "test.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as caught:
        read_config(path)
    assert str(path) in str(caught.value)


def test_a_file_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing.yaml cannot be read: No such file"):
        read_config(tmp_path / "missing.yaml")
    with pytest.raises(ConfigError, match=f"{tmp_path.name} cannot be read: Is a directory"):
        read_config(tmp_path)


# Weights


@given(st.integers(1, 5).flatmap(weights), st.floats(1e-200, 1e200))
def test_weights_keep_their_proportions_and_sum_to_1_at_any_scale(given_weights: list[float], scale: float) -> None:
    names = [str(n) for n in range(len(given_weights))]
    scaled = weights_of([w * scale for w in given_weights], names)
    total = math.fsum(given_weights)
    assert scaled.tolist() == pytest.approx([w / total for w in given_weights])
    assert scaled.sum() == pytest.approx(1)


@pytest.mark.parametrize("n", [1, 2, 7])
def test_without_weights_all_are_equal(n: int) -> None:
    assert weights_of([None] * n, [str(k) for k in range(n)]).tolist() == [1 / n] * n


@pytest.mark.parametrize(
    ("given_weights", "said"),
    [
        ([1.0], "1 weights for 2 members"),
        ([1.0, 2.0, 3.0], "3 weights for 2 members"),
        ([1.0, None], "two has no weight, but others have"),
        ([0.0, 1.0], "one's weight is 0.0: weights must be positive"),
        ([1.0, -2.0], "two's weight is -2.0: weights must be positive"),
        ([math.nan, 1.0], "one's weight is nan"),
        ([1.0, math.inf], "two's weight is inf"),
        ([1e-320, 1.0], "one's weight is next to nothing"),
        ([1e300, 1e-300], "two's weight is next to nothing"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(given_weights: list[float | None], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        weights_of(given_weights, ["one", "two"])


@given(st.lists(st.tuples(st.sampled_from([1, -1]), st.floats(1e-6, 1e6)), max_size=4), st.floats(1e-6, 1e6))
def test_weights_of_either_sign_are_taken_as_they_are(others: list[tuple[int, float]], positive: float) -> None:
    given_weights = [sign * size for sign, size in others] + [positive]
    names = [str(n) for n in range(len(given_weights))]
    assert weights_of(given_weights, names, signed=True).tolist() == given_weights


def test_without_weights_of_either_sign_all_are_equal_experts() -> None:
    assert weights_of([None, None], ["one", "two"], signed=True).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("given_weights", "said"),
    [
        ([1.0, 0.0], "two's weight is 0.0: with the rule contrastive it must be"),
        ([math.nan, 1.0], "one's weight is nan"),
        ([1.0, -math.inf], "two's weight is -inf"),
        ([1.0, -1e-7], "two's weight is -1e-07"),
        ([1e7, -1.0], "one's weight is 10000000.0"),
        ([-1.0, -2.0], "No member's weight is positive: the rule contrastive needs an expert"),
        ([1.0, None], "two has no weight"),
        ([1.0], "1 weights for 2 members"),
    ],
)
def test_weights_of_either_sign_that_do_not_fit_are_refused(given_weights: list[float | None], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        weights_of(given_weights, ["one", "two"], signed=True)


def test_a_negative_weight_elsewhere_says_which_rule_takes_one() -> None:
    with pytest.raises(ConfigError, match=r"two's weight is -1: .* Only the rule contrastive takes negative ones"):
        weights_of([1, -1], ["one", "two"])


def test_nobody_has_no_weights() -> None:
    with pytest.raises(ConfigError, match="at least one member"):
        weights_of([], [])


# Arguments


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("demo:smollm2-135m", ("demo:smollm2-135m", None)),
        ("demo:smollm2-135m=2", ("demo:smollm2-135m", 2.0)),
        ("gguf:a=b.gguf=0.5", ("gguf:a=b.gguf", 0.5)),
        ("a.gguf=-1", ("a.gguf", -1.0)),
        ("demo:smollm2-135m=-0.5", ("demo:smollm2-135m", -0.5)),
    ],
)
def test_a_weight_stands_behind_the_last_equals_sign(argument: str, expected: tuple[str, float | None]) -> None:
    assert split_weight(argument) == expected


def test_a_path_that_exists_is_a_path_whatever_it_holds(tmp_path: Path) -> None:
    path = tmp_path / "q=4"
    path.write_bytes(b"")
    assert split_weight(str(path)) == (str(path), None)
    assert split_weight(f"gguf:{path}") == (f"gguf:{path}", None)
    assert split_weight(f"{path}=0.5") == (str(path), 0.5)


def test_a_weight_that_is_no_number_is_an_error_that_shows_how_to_write_one() -> None:
    with pytest.raises(ConfigError, match=r"'heavy' in 'demo:a=heavy' is no weight: write demo:a=0.5"):
        split_weight("demo:a=heavy")


def test_a_preset_is_found_by_name_and_its_specs_are_sound() -> None:
    for name in PRESETS:
        assert [MemberConfig(model=spec).model for spec in preset(name)] == PRESETS[name]
    with pytest.raises(UnknownName, match=r"No preset named 'demos'. Did you mean 'demo'"):
        preset("demos")


@pytest.mark.parametrize("text", ["threads: 2024-02-30", "[" * 5000, "a: [", "\x00"])
def test_yaml_that_is_none_is_refused_with_the_files_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"bad\.yaml is not valid YAML") as caught:
        read_config(path)
    assert "<unicode string>" not in str(caught.value)


def test_a_member_may_be_just_its_spec() -> None:
    config = checked(Config, {"members": ["demo:a=0.25", {"model": "demo:b", "weight": 1}]}, "it")
    assert [(member.model, member.weight) for member in config.members] == [("demo:a", 0.25), ("demo:b", 1)]


def test_a_value_that_is_none_of_a_few_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'bytes'"):
        checked(Config, {"members": ["demo:a"], "vote": "byte"}, "it")


@pytest.mark.parametrize("given", ["on", "yes", "true"])
@pytest.mark.parametrize("key", ["max_tokens", "temperature", "top_k", "merge", "threshold"])
def test_a_switch_is_no_number(key: str, given: str, tmp_path: Path) -> None:
    path = tmp_path / "test.yaml"
    path.write_text(f"members: [a.gguf]\n{key}: {given}\n")
    with pytest.raises(ConfigError, match=f"{key}: should be a number, not True"):
        checked(Config, read_config(path), "test.yaml")
    assert checked(Config, {**ONE, "chat": True, "skip": False}, "test.yaml").chat


@pytest.mark.parametrize("key", ["n_cells", "n_ctx", "n_batch", "threads", "n_gpu_layers"])
def test_a_number_beyond_32_bits_is_refused(key: str) -> None:
    with pytest.raises(ConfigError, match=f"members.0.{key}: input should be less than"):
        checked(Config, {"members": [{"model": "a.gguf", key: 2**32 + 64}]}, "test.yaml")


def test_a_wrong_value_is_not_repeated_for_ever() -> None:
    with pytest.raises(ConfigError) as caught:
        checked(Config, {"members": {"a": ["b"] * 10_000}}, "test.yaml")
    assert len(str(caught.value)) < 500


def test_one_string_to_stop_at_may_stand_alone() -> None:
    assert checked(Config, {**ONE, "stop": "ab"}, "test.yaml").stop == ["ab"]


@pytest.mark.parametrize(
    ("key", "given"), [("logit_bias", {"a": True}), ("members", [{"model": "a.gguf", "ends": [True]}])], ids=str
)
def test_a_switch_among_numbers_is_none(key: str, given: Any) -> None:
    with pytest.raises(ConfigError, match="should hold no true or false"):
        checked(Config, {**ONE, key: given}, "test.yaml")


def test_what_a_merged_mapping_says_may_be_said_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "test.yaml"
    path.write_text("a: &a {n: 1, m: 3}\nb: {c: &c {<<: *a, n: 2}}\nd: {<<: *c, n: 4}\ne: {0: x, '0': y}\n")
    found = read_config(path)
    assert found["b"] == {"c": {"n": 2, "m": 3}}
    assert (found["d"]["n"], found["e"]) == (4, {0: "x", "0": "y"})
