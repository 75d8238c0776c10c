"""`semcal import`: rows for `semcal cluster` from what other programs recorded."""

from __future__ import annotations

from typing import Annotated

import typer

from semcal.cli import options as opt
from semcal.cli.console import info, warn
from semcal.cli.row_commands import checked, run_rows
from semcal.errors import InputError
from semcal.registry import check_name
from semcal.rows import Row
from semcal.steps import Block

FormatArgument = Annotated[str, typer.Argument(metavar="FORMAT", help="lm-eval, inspect or openai-batch.")]
FileArgument = Annotated[
    str, typer.Argument(metavar="FILE", help="samples_*.jsonl, an .eval or .json log, or a batch's output.")
]
RequestsOption = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="The requests of an OpenAI batch, which hold questions and settings."),
]
QuestionsOption = Annotated[
    str | None, typer.Option(metavar="FILE", help="Questions {id?, question, answers}, by id or text.")
]

#: From so many questions on, draws that are all alike are warned of.
FEWEST = 5


def command(
    format: FormatArgument,
    file: FileArgument,
    requests: RequestsOption = None,
    questions: QuestionsOption = None,
    limit: opt.LimitOption = None,
    out: opt.OutOption = None,
    overwrite: opt.OverwriteOption = False,
    json: opt.JsonOption = False,
) -> int:
    """Turn sampled answers that another program recorded into rows for semcal cluster.

    Writes {id, question, answers, generations, samples}; samples are first answers, as of semcal sample. Adds
    log_likelihoods only where the file says at which T and how they were computed.
    """
    from semcal.data.recorded import FORMATS, read_recorded
    from semcal.models.clustering import check_clusterable

    chosen = FORMATS[check_name(format, FORMATS, what="format")]
    without = several = alike = 0

    def note(block: Block) -> None:
        nonlocal without, several, alike
        without += sum(not row.has("log_likelihoods") for row in block.rows)
        texts = [row["generations"] for row in block.rows if len(row["generations"]) > 1]
        several += len(texts)
        alike += sum(len(set(generations)) == 1 for generations in texts)

    lines = read_recorded(file, format, requests=requests, questions=questions)
    read = (line if isinstance(line, InputError) else Row(line.data, line.line) for line in lines)
    code = run_rows(checked(read, check_clusterable), out, [], label="import", limit=limit, on_block=note)
    if without:
        rows = "row has" if without == 1 else "rows have"
        info(f"import: {without} {rows} no log-likelihoods (E-SC alone): {chosen.no_likelihoods}")
    if several == alike >= FEWEST:
        warn(
            f"import: all draws of each of {alike} questions are the same text, and every confidence is 1; "
            "were they drawn with one seed (lm-eval sends one, unless --model_args seed=-1), or at T = 0?"
        )
    return code
