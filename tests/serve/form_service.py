"""A service of structured answers: forms whose number is often misread."""

from __future__ import annotations

import json
import warnings
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from semcal.calibration.fields import FieldCalibration, calibrate_fields
from semcal.errors import SemcalWarning
from semcal.fields.schema import parse_schema
from semcal.models.clustering import ClusterConfig
from semcal.models.distribution import Base
from semcal.models.equivalence import ExactMatch
from semcal.models.fakes import FakeLanguageModel
from semcal.models.prompting import PromptConfig
from semcal.models.sample import SampleStep, Sampling, SamplingConfig
from semcal.rows import Row
from semcal.serve.documents import DocumentSource
from semcal.steps import WorkerState


class Form(BaseModel):
    """A form."""

    model_config = ConfigDict(title="A form of the town")
    name: str = Field(description="Who filled it in")
    n: int
    note: str | None = None


SCHEMA = json.loads(json.dumps(Form.model_json_schema()))
RIGHT, WRONG = '{"name": "Mirna", "n": 7}', '{"name": "Mirna", "n": 9}'
REFERENCE = {"name": "Mirna", "n": 7}
#: Even forms are read well; one text holds no document, and one a name that looks like markup.
FORMS = [f"Read form {number}." for number in range(160)]
SURE, UNSURE, NOTHING, MARKED = FORMS[0], FORMS[1], "Read nothing.", "Read the page."
MARKUP = "<img src=x onerror=window.ran=1>"
TABLE = {
    text: {RIGHT: 0.999, WRONG: 0.001} if number % 2 == 0 else {RIGHT: 0.45, WRONG: 0.55}
    for number, text in enumerate(FORMS)
} | {NOTHING: {"I cannot read it.": 1.0}, MARKED: {json.dumps({"name": MARKUP, "n": 7}): 1.0}}
RESPONSE_FORMAT = {"type": "json_schema", "json_schema": {"name": "form", "schema": SCHEMA}}


def sampling(**asking: Any) -> Sampling:
    config = SamplingConfig(6, 0, 1.0, 64, answer_format="whole")
    return Sampling((Base(),), PromptConfig(system="Read the form.", **asking), config, schema=SCHEMA)


@lru_cache
def calibration(answer: Any = "modal") -> FieldCalibration:
    """Learned from sampled forms; 9 is always wrong."""
    model = FakeLanguageModel(TABLE)
    asked = [Row({"id": text, "question": text, "answers": REFERENCE}) for text in FORMS]
    rows = SampleStep(sampling(), full=True)(asked, WorkerState(model), lambda _: None)
    if answer == "given":
        rows = [row.set(answer=json.loads(row.samples[0])) for row in rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SemcalWarning)
        return calibrate_fields(
            rows,
            ClusterConfig(ExactMatch()),
            parse_schema(SCHEMA),
            answer=answer,
            risks=[0.2],
            document_risks=[0.3],
        )


def source(answer: Any = "modal", **asking: Any) -> DocumentSource:
    """The service's model with its calibration."""
    return DocumentSource(FakeLanguageModel(TABLE), ExactMatch(), calibration(answer), sampling(**asking))
