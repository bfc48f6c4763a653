from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from unisono import demo
from unisono.config import MemberConfig
from unisono.demo import DEMOS, DemoModel, demo_path, open_demo
from unisono.errors import DemoNotInstalled, ModelFileError, UnknownName

PARTS = [b"GGUF, the first part, ", b"the second ", b"and the last."]
WHOLE = b"".join(PARTS)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages, with a demo model in one and another in three of them; and an empty cache."""
    for n, part in enumerate(PARTS):
        package = tmp_path / "site" / f"demo_part{n}" / "data"
        package.mkdir(parents=True)
        (package.parent / "__init__.py").write_text("raise RuntimeError('finding a package must not run it')")
        (package / f"model.part{n}").write_bytes(part)
    split = DemoModel(
        "demo-split",
        "demo-split==1",
        [(f"demo_part{n}", f"data/model.part{n}") for n in range(3)],
        hashlib.sha256(WHOLE).hexdigest(),
    )
    single = DemoModel("demo-single", "demo-single", [("demo_part0", "data/model.part0")], "")
    monkeypatch.setattr(demo, "DEMOS", {"split": split, "single": single})
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.setenv("UNISONO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "site"


def test_a_model_in_one_file_is_used_where_it_lies(site: Path) -> None:
    assert demo_path("single") == site / "demo_part0" / "data" / "model.part0"


def test_a_model_in_parts_is_joined_once_and_kept_in_the_cache(site: Path) -> None:
    path = demo_path("split")
    assert path.read_bytes() == WHOLE
    assert path.parent == site.parent / "cache" / "models"
    written = path.stat().st_mtime_ns
    assert demo_path("split") == path
    assert path.stat().st_mtime_ns == written
    assert list(path.parent.iterdir()) == [path]


def test_a_joined_file_of_another_length_is_joined_again(site: Path) -> None:
    path = demo_path("split")
    path.write_bytes(WHOLE[:-1])
    assert demo_path("split").read_bytes() == WHOLE


def test_parts_that_do_not_make_the_expected_file_are_refused_and_nothing_is_kept(site: Path) -> None:
    (site / "demo_part1" / "data" / "model.part1").write_bytes(b"the sec0nd ")
    with pytest.raises(ModelFileError, match=r"parts of demo-split .*pip install --force-reinstall demo-split==1"):
        demo_path("split")
    assert not (site.parent / "cache").exists()


def test_a_cache_that_cannot_be_written_is_an_error_that_says_what_to_do(site: Path) -> None:
    (site.parent / "cache").write_text("a file, where the folder should be")
    with pytest.raises(ModelFileError, match=r"cannot be written .*set UNISONO_CACHE"):
        demo_path("split")


@pytest.mark.parametrize("missing", ["demo_part1", "demo_part1/data/model.part1"])
def test_a_demo_of_which_a_part_is_missing_says_how_to_install_it(site: Path, missing: str) -> None:
    path = site / missing
    path.rename(site / "elsewhere")
    with pytest.raises(DemoNotInstalled, match="demo model split is not installed: pip install demo-split==1"):
        demo_path("split")


def test_a_demo_that_does_not_exist_is_named_with_the_nearest_that_does() -> None:
    with pytest.raises(UnknownName, match=r"No demo model named 'smollm-135m'. Did you mean 'smollm2-135m'"):
        demo_path("smollm-135m")


@pytest.mark.models
@pytest.mark.parametrize("name", DEMOS)
def test_a_demo_models_file_is_the_one_expected(model_file: Callable[[str], Path], name: str) -> None:
    digest = hashlib.sha256()
    with model_file(name).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    assert digest.hexdigest() == DEMOS[name].sha256


@pytest.mark.models
def test_a_demo_spec_opens_the_model_under_the_name_given(model_file: Callable[[str], Path]) -> None:
    model_file("smollm2-135m")
    member = open_demo("smollm2-135m", "small one", MemberConfig(model="demo:smollm2-135m", n_ctx=64, threads=1))
    try:
        assert (member.name, member.n_ctx, member.vocabulary.n_ids) == ("small one", 64, 49152)
        assert member.chat_template is not None
    finally:
        member.close()
