"""Where the tests find models and keep their caches, and how hypothesis draws."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from hf_models import CONFIGS, write_model
from unisono import cache
from unisono.demo import demo_path
from unisono.errors import DemoNotInstalled
from unisono.members.llamacpp import LlamaCppMember

signal.signal(signal.SIGINT, signal.default_int_handler)  # which is ignored where the tests run in the background
os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # as under the command line; see cli/main.py

SHARED = Path(__file__).resolve().parents[2] / "shared"
"""Data and models that lie beside the repository on some machines."""

N_THREADS = int(os.environ.get("UNISONO_TEST_THREADS", "2"))
"""Threads for real models; more than there are free cores makes them very much slower."""

QWEN = "qwen2.5-coder-0.5b-instruct-q4.gguf"
"""The third model, for tests only."""

settings.register_profile("unisono", derandomize="CI" in os.environ, deadline=None, max_examples=60)
settings.load_profile("unisono")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tables are cached in a folder of this run's own; the large model files stay in the user's."""
    models = cache.folder() / "models"
    own = tmp_path_factory.mktemp("cache")
    with contextlib.suppress(OSError):  # then models are joined anew
        models.mkdir(parents=True, exist_ok=True)
        (own / "models").symlink_to(models, target_is_directory=True)
    before = os.environ.get("UNISONO_CACHE")
    os.environ["UNISONO_CACHE"] = str(own)
    yield
    if before is None:
        del os.environ["UNISONO_CACHE"]
    else:
        os.environ["UNISONO_CACHE"] = before


@pytest.fixture(scope="session")
def model_file() -> Callable[[str], Path]:
    """The GGUF file of a model by name, or the test is skipped with the reason why it is not there."""

    def find(name: str) -> Path:
        pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
        if name == "qwen":
            return _qwen()
        try:
            return demo_path(name)
        except DemoNotInstalled as exc:
            pytest.skip(str(exc))

    return find


def _qwen() -> Path:
    if given := os.environ.get("UNISONO_TEST_QWEN"):
        return Path(given)
    places = [SHARED / "models" / QWEN, cache.folder() / "models" / QWEN]
    for place in places:
        if place.is_file():
            return place
    fetch = SHARED / "models" / "get-qwen.sh"
    if not fetch.is_file():
        pytest.skip(f"no {QWEN}: set UNISONO_TEST_QWEN to its path")
    if "CI" not in os.environ and os.environ.get("UNISONO_FETCH") != "1":
        pytest.skip(f"no {QWEN}: set UNISONO_FETCH=1 to fetch its 491 MB, or UNISONO_TEST_QWEN to its path")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        ["bash", str(fetch), str(places[-1].parent)],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    return places[-1]


@pytest.fixture(scope="session")
def hf_model(model_file: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder with a tiny Hugging Face model by name, or the GGUF file of a real one."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    made: dict[str, Path] = {}

    def find(name: str) -> Path:
        if name not in CONFIGS:
            return model_file(name)
        if name not in made:
            made[name] = write_model(name, tmp_path_factory.mktemp(name))
        return made[name]

    return find


@pytest.fixture(scope="session")
def load_model(model_file: Callable[[str], Path]) -> Callable[..., LlamaCppMember]:
    """Opens a model by name, small and with few threads; whoever calls it closes it."""

    def load(
        name: str, *, n_ctx: int = 512, n_batch: int = 128, n_contexts: int = 8, n_cells: int | None = None
    ) -> LlamaCppMember:
        return LlamaCppMember(
            model_file(name),
            name,
            n_threads=N_THREADS,
            n_ctx=n_ctx,
            n_batch=n_batch,
            n_contexts=n_contexts,
            n_cells=n_cells,
        )

    return load


@pytest.fixture
def open_model(load_model: Callable[..., LlamaCppMember]) -> Iterator[Callable[..., LlamaCppMember]]:
    """The same, closed after the test."""
    opened: list[LlamaCppMember] = []

    def open_it(name: str, **sizes: int) -> LlamaCppMember:
        opened.append(load_model(name, **sizes))
        return opened[-1]

    yield open_it
    for member in opened:
        member.close()
