"""What is generated of the API for threads is up to date, and has nothing of asyncio left."""

from __future__ import annotations

import re
import runpy

from server import ROOT

GENERATOR = ROOT / "clients/python/generate.py"


def test_the_generated_half_is_that_of_asyncio() -> None:
    texts = runpy.run_path(str(GENERATOR))["generated"]()
    assert texts
    for file, text in texts.items():
        assert file.read_text() == text, f"run {GENERATOR}: {file.name} differs"
        assert not re.search(r"async|await|coroutine|event loop|\btask", text), file
