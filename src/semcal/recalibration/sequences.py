"""Batches of whole sequences from stored states, and ATS over them (spec section 6).

Queries stand only at the positions that predict answer tokens; keys at every position, those of the shared
beginning once for the whole batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from semcal.errors import FitError
from semcal.recalibration.attentive import ATS
from semcal.recalibration.suffixes import Suffixes

__all__ = ["Sequences", "inverse_temperatures", "inverse_temperatures_of", "sequences", "tokens_of"]

#: Answers whose inverse temperatures are computed at once.
ANSWERS = 16


@dataclass(frozen=True)
class Sequences:
    """B answers with their questions' own prompts, padded on the right.

    Attributes
    ----------
    states : Tensor, shape (B, S, d)
        Of the own prompt and the answer but its last token; zeros after them.
    positions : Tensor, shape (B, S)
        In the whole sequence, shared beginning included.
    at : Tensor, shape (B, A)
        Which of the S states predict the answer's tokens; 0 where there is none.
    predicts : Tensor, shape (B, A), bool
        Where there is one.
    """

    states: Tensor
    positions: Tensor
    at: Tensor
    predicts: Tensor

    @property
    def visible(self) -> Tensor:
        """Which of the S states each predicting position sees, (B, A, S) bool."""
        return torch.arange(self.states.shape[1], device=self.at.device) <= self.at[..., None]


def tokens_of(suffixes: Suffixes, answers: Tensor) -> Tensor:
    """Return the indices into `targets` of the tokens of given answers, in their order."""
    start, stop = suffixes.target_start[answers], suffixes.target_start[answers + 1]
    return torch.cat([torch.arange(a, b) for a, b in zip(start.tolist(), stop.tolist())])


def _rows(suffixes: Suffixes, answer: int) -> Tensor:
    """Rows of `states` of an answer's whole own sequence."""
    prompt = suffixes.prompt_rows(int(suffixes.answer_question[answer]))
    return torch.cat([prompt, suffixes.predicting(answer)[1:]])


def sequences(suffixes: Suffixes, answers: Tensor, *, device: torch.device | None = None) -> Sequences:
    """Return the padded sequences of given answers (B,).

    Raises
    ------
    FitError
        If the set holds answer positions only.
    """
    if not suffixes.whole:
        raise FitError(
            "ATS reads the states of whole sequences, but only answer positions were kept; compute the "
            "features again with whole sequences"
        )
    rows = [_rows(suffixes, int(answer)) for answer in answers]
    counts = suffixes.target_start[answers + 1] - suffixes.target_start[answers]
    lengths = torch.tensor([len(row) for row in rows])
    width = suffixes.states.shape[1]
    states = torch.zeros(len(rows), int(lengths.max()), width, dtype=suffixes.states.dtype)
    for i, row in enumerate(rows):
        states[i, : len(row)] = suffixes.states[row]
    steps = torch.arange(int(counts.max()))
    predicts = steps < counts[:, None]
    at = ((lengths - counts)[:, None] + steps).masked_fill(~predicts, 0)
    positions = len(suffixes.prefix) + torch.arange(states.shape[1]).expand(len(rows), -1)
    return Sequences(*(t.to(device) for t in (states, positions, at, predicts)))


def inverse_temperatures_of(ats: ATS, batch: Sequences, prefix: Tensor) -> Tensor:
    """Return 1/T (n,) at the n predicting positions of a batch, answer after answer.

    Parameters
    ----------
    ats : ATS
        Fitted or not.
    batch : Sequences
        From `sequences`, on the device of `ats`.
    prefix : Tensor, shape (P, d)
        States of the shared beginning.
    """
    shared = None
    if len(prefix):
        places = torch.arange(len(prefix), device=batch.states.device)
        shared = ats.keys_values(prefix.to(batch.states.device)[None], places[None])
    keys, values = ats.keys_values(batch.states, batch.positions)
    row = torch.arange(len(batch.at), device=batch.at.device)[:, None]
    states, positions = batch.states[row, batch.at], batch.positions[row, batch.at]
    found = ats.inverse_temperature(states, positions, keys, values, batch.visible, shared=shared)
    return found[batch.predicts]


@torch.no_grad()
def inverse_temperatures(ats: ATS, suffixes: Suffixes) -> Tensor:
    """Return 1/T (N,) float32 of every token of a calibration set, in the order of its targets."""
    device = ats.readout.weight.device
    parts = [
        inverse_temperatures_of(ats, sequences(suffixes, some, device=device), suffixes.prefix).cpu()
        for some in torch.split(torch.arange(len(suffixes.answer_question)), ANSWERS)
    ]
    return torch.cat(parts)
