"""Headless Chromium, for tests of pages."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--virtual-time-budget=20000",  # until promises that the page waits for are kept
    "--dump-dom",
]


def dump(page: Path, profile: Path) -> tuple[str, str]:
    """The document after its script ran, and what the browser said on its console."""
    done = subprocess.run(
        [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", page.as_uri()],
        capture_output=True,
        timeout=120,
        check=True,
    )
    said = done.stderr.decode(errors="replace").splitlines()
    return done.stdout.decode(), "\n".join(line for line in said if "CONSOLE" in line)


def driven(page: str, driver: str, folder: Path) -> dict[str, Any]:
    """What a script finds that runs in a page and leaves JSON in its title.

    The script is not the one that the page's content security policy allows, so it does without the policy.
    """
    text = re.sub(r"<meta http-equiv[^>]*>", "", page)
    path = folder / "page.html"
    path.write_text(text.replace("</body>", f"<script>{{{driver}}}</script></body>"), encoding="utf-8")
    dom, said = dump(path, folder / "profile")
    assert said == ""
    title = re.search(r"<title>outcome(.*?)</title>", dom, re.DOTALL)
    assert title is not None
    found: dict[str, Any] = json.loads(
        title[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    )
    return found
