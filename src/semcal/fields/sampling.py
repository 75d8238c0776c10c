"""Sampling of structured answers: the prompt and the step."""

from __future__ import annotations

from semcal.fields.schema import Schema
from semcal.files import dumps
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import AnyRecalibrator, Sampler
from semcal.models.sample import SampleStep, Sampling, SamplingConfig
from semcal.rows import AnswerKind

#: The system message for structured answers, and the usual limit of their tokens.
STRUCTURED = "Answer with one JSON object that is valid under the schema, and with nothing else."
STRUCTURED_TOKENS = 512


def system_message(model: Sampler, schema: Schema) -> str:
    """Return the usual system message; it has the schema for a local model, and a server gets it apart."""
    is_local = model.capabilities.answers_a_request is None
    return STRUCTURED + (f" The schema is:\n{dumps(dict(schema.json))}" if is_local else "")


def document_step(
    schema: Schema,
    config: SamplingConfig,
    kind: AnswerKind,
    recalibrator: AnyRecalibrator,
    prompt: PromptConfig,
) -> SampleStep:
    """Return the step that samples documents; a given answer stays in its row."""
    sampling = Sampling((recalibrator,), prompt, config, schema=schema.json)
    return SampleStep(sampling, full=True, answer="greedy" if kind == "greedy" else "modal")
