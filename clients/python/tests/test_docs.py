"""The Python of the documentation runs as it is printed, and its types are right."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import List, Tuple

import pytest

import lockkit
from server import PATIENCE, ROOT, Server

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PRINTED = "http://127.0.0.1:7411"
SOURCE = Path(lockkit.__file__).parents[1]


def blocks() -> List[Tuple[str, str]]:
    pages = [*sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("*.md"))]
    # Parts of files that the tests of the recipes run, and compare with the pages.
    pages = [page for page in pages if page.parent.name != "recipes"]
    pages.append(ROOT / "clients/python/README.md")
    return [
        (f"{page.relative_to(ROOT)}:{text[: found.start()].count(chr(10)) + 2}", found[1])
        for page in pages
        for text in [page.read_text()]
        for found in BLOCK.finditer(text)
    ]


BLOCKS = blocks()


def test_the_pages_have_python() -> None:
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize("code", [it[1] for it in BLOCKS], ids=[it[0] for it in BLOCKS])
def test_what_is_printed_runs(server: Server, code: str) -> None:
    assert PRINTED in code
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", code.replace(PRINTED, server.url)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (process.returncode, process.stderr) == (0, "")
    assert lockkit.connect(server.url).list() == []


PYRIGHT = {"include": ["."], "extraPaths": [str(SOURCE)], "typeCheckingMode": "strict"}


@pytest.mark.parametrize(
    "words",
    [
        ["mypy", "--strict", "--cache-dir", os.devnull, "."],
        pytest.param(
            ["basedpyright"],
            marks=pytest.mark.skipif(
                importlib.util.find_spec("basedpyright") is None, reason="it is not installed"
            ),
        ),
    ],
    ids=["mypy", "basedpyright"],
)
def test_the_types_of_what_is_printed_are_right(tmp_path: Path, words: List[str]) -> None:
    for number, (_, code) in enumerate(BLOCKS):
        (tmp_path / f"block_{number}.py").write_text(code)
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    checked = subprocess.run(
        [sys.executable, "-m", *words],
        env={**os.environ, "MYPYPATH": str(SOURCE)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
