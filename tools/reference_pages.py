"""Generate pages from the program: command line, settings, glossary, and two pages for language models.

docs/llms.txt lists commands, names and pages for readers of the site. AGENTS.md tells coding agents how to
use semcal and how to work on it.

python -m tools.reference_pages            # writes the pages
python -m tools.reference_pages --check    # fails if a page is out of date
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import typer
from typer.models import OptionInfo

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
#: Placeholders of values by type.
VALUES = {
    "<int range>": "N",
    "<int>": "N",
    "<float range>": "X",
    "<float>": "X",
    "<str>": "TEXT",
    "<path>": "PATH",
}
WRITTEN = "<!-- Written by `python -m tools.reference_pages`; do not change it by hand. -->"
#: Terms of the glossary that the report explains, in its words.
REPORT_TERMS = ("ACE", "AUROC", "Brier", "CORP", "E-SC", "ECE", "MCB", "T", "gain")
#: The other terms of the glossary.
TERMS = {
    "abstain": "To give no answer because the confidence is below the {term}`threshold`.",
    "accuracy": "The share of answers that are correct.",
    "ATS": "Attentive temperature scaling: a small network computes a temperature for each token.",
    "Base": "The model without changes, at temperature 1.",
    "calibrated": "A confidence is calibrated if a share p of the answers with confidence p is correct.",
    "Calibrated": "The answers of {term}`Base`, each with the probability that it is correct, which `semcal "
    "calibrate` has learned from labels.",
    "calibration": "The result of `semcal calibrate`: a map from samples to the probability that an answer "
    "is correct, and possibly a {term}`threshold`. It is valid for one model and one prompt.",
    "closed book": "A question without a passage. The model answers from memory.",
    "coverage": "The share of questions that get an answer because their confidence reaches the threshold.",
    "equivalence": "The rule that decides whether two answers have the same {term}`meaning`: rules on the "
    "text, an {term}`NLI` model, or a language model.",
    "held-out": "Held-out questions are labeled questions that were not used to learn the probability.",
    "likelihood": "The exponential of the mean log-probability of the tokens of an answer.",
    "meaning": "A set of answers to one question that say the same. In code it is called a cluster.",
    "mean confidence": "The average of the confidences. A calibrated model has a mean confidence near its "
    "accuracy.",
    "NLI": "Natural language inference: to decide whether one text entails or contradicts another one.",
    "noise floor": "The expected {term}`ACE` (or other error) of a calibrated model on the same number of "
    "questions. It is above 0 because of chance. Its 95th percentile is the limit for a test.",
    "normal form": "The text of an answer without irrelevant differences: case, articles, and the spelling "
    "of numbers and dates.",
    "open book": "A question with a passage that contains the answer.",
    "Platt": "Platt scaling: a weight and a bias for the logit of each token of the vocabulary.",
    "recalibrator": "A change of the model's token probabilities: {term}`SE`, {term}`TS`, {term}`ATS` or "
    "{term}`Platt`.",
    "reference answer": "A correct answer to a question, written by people.",
    "sample": "One sampled answer. `m` is the number of samples per question.",
    "SE": "Sampling at temperature 0.5, as in the first work on semantic entropy.",
    "selective risk": "The share of wrong answers among the answers that are given. The risk of a "
    "calibration is the promised upper limit.",
    "semantic entropy": "The entropy of the distribution over the meanings of a question, in nats. It is 0 "
    "if all samples have one meaning.",
    "share of samples": "The number of samples with a meaning, divided by the number of all samples: "
    "{term}`E-SC`.",
    "threshold": "The smallest confidence with which an answer is given. If all labels tested it, the "
    "{term}`share of samples` decides, and the threshold is the smallest probability of a labeled answer "
    "that is given.",
    "TS": "Temperature scaling: one temperature, fitted on questions with reference answers.",
}
#: The text before the tables of the page of settings.
SETTINGS = """\
Every command accepts `--config FILE`, and all commands share one form of the file. The file holds two kinds
of keys: rare settings, which are not options of the command line, and options that you use often.

```yaml
model: {name: models/llama, dtype: bfloat16}
prompt: {few_shot: examples.jsonl}
sampling: {m: 5, temperatures: [1, 0.5]}
server: {retries: 2, concurrency: 32}
serve: {port: 9000, log: replies.sqlite}
plugins: [my_measures]
```

Set a single key on the command line with `--config server.retries=0`. `--config` may be repeated.

- The command line overrides the file. If several `--config` have a key, the last one counts. For `semcal
  serve`, the environment overrides the file: `SEMCAL_SERVE_PORT=9000` sets `port`.
- A command reads the keys that name it in the tables below, and ignores the other keys. It also ignores
  settings that its model does not need, such as those of `server` for a model that runs here.
- A calibration sets sampling, prompt and equivalence itself: `ask --calibration` and `calibrate --add` ignore
  these keys of the file, and reject them on the command line.
- An unknown section or key is an error that names the nearest known one. A value of the wrong type is an
  error, too.
- `plugins` names your own modules, which are imported first and [register](../python.md) measures, metrics or
  methods.
"""
#: The part of AGENTS.md on using semcal, before its commands.
USE = """\
# For coding agents

## To use semcal in a program

semcal answers questions with a language model. It adds to each answer the probability that it is right, and
the decision to give the answer or to abstain. The probability comes from a calibration. `semcal calibrate
LABELED.jsonl --model MODEL --risk 0.1 --out DIR` learns the calibration from a few hundred questions with
reference answers. A calibration holds only for its model and prompt.

- `MODEL` is a directory, a GGUF file, a hub id, `openai:URL#NAME`, or `atlas`, the small model in the
  package, which needs no download.
- Rows are JSON Lines: `{"id", "question", "answers"}` to calibrate, `{"question"}` or `{"messages"}` to ask,
  `{"question", "samples"}` for answers that another program sampled. Results go to stdout, one JSON object
  per line, and messages to stderr; `--json` prints JSON on a terminal.
- Set rare settings with `--config FILE` ([all settings](docs/reference/config.md)) or
  `--config server.retries=0`.
- Exit codes: 0 done; 1 failed, or some rows were bad (the others are processed); 2 wrong usage. Messages name
  the remedy.
- Do not use the share of samples (`E-SC`) as a probability, do not reuse a calibration with another model
  or prompt, and do not set a threshold by hand. The key `abstained` is the decision that keeps the promised
  risk.
- To try it, run `semcal ask "Who wrote The Amber Gate?" --json`. It needs no other file.
"""
#: The part of AGENTS.md on working on semcal.
WORK = """\
## To work on semcal

`make demo` creates `.venv` and runs the main job, `make test` runs the tests, and `make check` runs ruff,
mypy and import-linter. [CONTRIBUTING.md](CONTRIBUTING.md) lists the places of new measures, metrics, models
and commands, and the rules for imports. [docs/architecture.md](docs/architecture.md) follows a question
through the code. After a change of options, docstrings or first sentences of pages, run `python -m
tools.reference_pages`.
"""


def commands() -> dict[str, Any]:
    """Return all commands by name."""
    from semcal.cli.app import app

    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def command_line() -> str:
    """Return the page of all commands with their options."""
    head = [
        "# Command line",
        "",
        WRITTEN,
        "",
        "See also [Rules of all commands](../commands.md), [Settings](config.md) and [Rows](../rows.md).",
        "",
    ]
    return "\n".join([*head, *(_command(name, command) for name, command in commands().items())])


def _command(name: str, command: Any) -> str:
    context = typer.Context(command)
    shown = [one for one in command.params if one.name != "help"]
    rows = [_row(*record) for one in shown if (record := one.get_help_record(context))]
    text = inspect.cleandoc(command.help or "")
    table = ["| option | description |", "| --- | --- |", *rows]
    places = ", ".join(f"`{place}`" for place in _settings(name))
    further = [f"\nFurther [settings](config.md): {places}."] if places else []
    return "\n".join([f"## {name}\n", f"{text}\n", *table, *further, ""])


def _settings(command: str) -> list[str]:
    """Return the places of the settings that a command reads, but has no options for."""
    from semcal.cli.app import COMMANDS
    from semcal.cli.config_file import PLUGINS, FileSetting, keys_by_option
    from semcal.cli.options import parameters_of

    function = resolve_name(f"semcal.cli.{COMMANDS[command][0]}")
    found = (o for o, one in parameters_of(function).items() if isinstance(one.default, FileSetting))
    return [place for option in found if (place := keys_by_option()[option]) != PLUGINS]


def _row(names: str, what: str) -> str:
    """Return an option or argument as a row of the table."""
    for kind, value in VALUES.items():
        names = names.replace(kind, value)
    text = " ".join(what.split()).replace("|", "\\|")
    return f"| `{' '.join(names.split())}` | {text} |"


def config() -> str:
    """Return the page of the settings file: for each section its keys, and the commands that read them."""
    from semcal.cli.config_file import SECTIONS

    tables = [_section(section, keys) for section, keys in SECTIONS.items()]
    return "\n".join(["# Settings", "", WRITTEN, "", SETTINGS, *tables])


def _section(section: str, keys: Sequence[str]) -> str:
    rows = [_key(section, key) for key in keys]
    head = ["| key | option | description | commands |", "| --- | --- | --- | --- |"]
    return "\n".join([f"## {section}\n", *head, *rows, ""])


def _key(section: str, key: str) -> str:
    """Return a key as a row of the table, with the help of the first command that reads it."""
    from semcal.cli.app import COMMANDS
    from semcal.cli.config_file import FileSetting, is_read, option_of
    from semcal.cli.options import parameters_of
    from semcal.registry import option_name

    option = option_of(section, key)
    functions = {name: resolve_name(f"semcal.cli.{address}") for name, (address, _) in COMMANDS.items()}
    parameters = {name: parameters_of(command).get(option) for name, command in functions.items()}
    readers = {
        name: one.default
        for name, one in parameters.items()
        if one and isinstance(one.default, OptionInfo) and is_read(section, key, name)
    }
    first = next(iter(readers.values()))
    text, usual = (first.help or "").replace("|", "\\|"), first.default
    if "default" not in text and isinstance(usual, int | float | str) and not isinstance(usual, bool):
        text += f" [default: {usual}]"
    with_option = [name for name, one in readers.items() if not isinstance(one, FileSetting)]
    some = f" of {', '.join(with_option)}" if len(with_option) < len(readers) else ""
    named = f"`{option_name(option)}`{some}" if with_option else ""
    return f"| `{key}` | {named} | {text} | {', '.join(readers)} |"


def glossary() -> str:
    """Return the page of the terms that pages link to, in alphabetical order."""
    from semcal.experiment.report import build

    report = {code: text for codes in build.glossary().values() for code, text in codes.items()}
    found = TERMS | {code: report[code] for code in REPORT_TERMS}
    entries = (
        f"{term}\n  {text}\n" for term, text in sorted(found.items(), key=lambda one: one[0].casefold())
    )
    opening = (
        "This page explains the terms of the documentation. Other pages link here at the first use of a term."
    )
    return "\n".join(["# Glossary", "", WRITTEN, "", opening, "", "```{glossary}", *entries, "```", ""])


def llms() -> str:
    """Return the text of llms.txt: commands, names and pages, each with its first sentence."""
    pages = {page.name: _opening(page) for page in sorted(DOCS.glob("*.md"))}
    return "\n".join(
        [
            "# semcal\n",
            f"> {pages.pop('index.md')[1]}\n",
            "## Pages\n",
            *(f"- [{title}](_sources/{name}.txt): {text}" for name, (title, text) in pages.items()),
            "\n## Commands\n",
            *(f"- [semcal {name}](_sources/reference/cli.md.txt): {text}" for name, text in _commands()),
            "\n## Python\n",
            *(f"- [semcal.{name}](_sources/reference/api.md.txt): {text}" for name, text in _names()),
            "",
        ]
    )


def agents() -> str:
    """Return the text of AGENTS.md."""
    parts = [
        "Commands ([all options](docs/reference/cli.md)):\n",
        *(f"- `semcal {name}`: {text}" for name, text in _commands()),
        "\nIn Python ([docs/python.md](docs/python.md)):\n",
        *(f"- `semcal.{name}`: {text}" for name, text in _names()),
    ]
    return "\n".join([USE, *parts, "", WORK])


def _commands() -> Iterator[tuple[str, str]]:
    return ((name, _sentence(command.help or "")) for name, command in commands().items())


def _names() -> Iterator[tuple[str, str]]:
    import semcal

    for name in semcal.__all__:
        value = getattr(semcal, name)
        if callable(value) or inspect.ismodule(value):
            yield name, _sentence(inspect.getdoc(value) or "")


def _opening(page: Path) -> tuple[str, str]:
    """Return the title of a page, and the first sentence of its first paragraph."""
    title, *blocks = re.split(r"\n{2,}", page.read_text(encoding="utf-8"))
    prose = (block for block in blocks if re.match(r"(?!```)[\w\"`*]", block))
    return title.removeprefix("# "), _sentence(next(prose))


def _sentence(text: str) -> str:
    """Return the first sentence of a text, on one line, without links."""
    line = re.sub(
        r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())
    )
    return re.split(r"(?<=\.)\s", line, maxsplit=1)[0].rstrip(":")


PAGES = {
    DOCS / "reference" / "cli.md": command_line,
    DOCS / "reference" / "config.md": config,
    DOCS / "reference" / "glossary.md": glossary,
    DOCS / "llms.txt": llms,
    ROOT / "AGENTS.md": agents,
}


def stale() -> list[str]:
    """Return the pages that are out of date."""
    return [
        str(page.relative_to(ROOT))
        for page, written in PAGES.items()
        if not page.is_file() or page.read_text(encoding="utf-8") != written()
    ]


def main() -> int:
    """Write or check the pages, and return the exit code."""
    if "--check" in sys.argv[1:]:
        if found := stale():
            print(f"{', '.join(found)}: stale; run python -m tools.reference_pages", file=sys.stderr)
        return 1 if found else 0
    for page, written in PAGES.items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(written(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
