"""The memory budget: sizes as people write them, and keys and values that stay within them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import tiny_models
from tiny_engine import flat, sample, token_ids

from semcal.data.question import chat
from semcal.errors import QuestionError, UsageError
from semcal.models.causal_lm import CausalLanguageModel
from semcal.models.engine.tree_cache import ThreeLevelCache
from semcal.models.load import load_model, parse_size
from semcal.models.protocols import Prompt
from semcal.recalibration import ATS, SE, Base


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GB", 2 * 10**9), ("2 gb", 2 * 10**9), ("2G", 2 * 10**9), ("1.5GiB", 1610612736),
        ("500MB", 5 * 10**8), ("1KiB", 1024), ("12345", 12345), (10**15, 10**15),
    ],
)  # fmt: skip
def test_sizes_are_read_as_people_write_them(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "2 apples", "1e9", "0", "9" * 40 + "GB", -5])
def test_what_is_no_size_is_refused(text: str | int) -> None:
    with pytest.raises(UsageError, match=re.escape(repr(text))):
        parse_size(text)


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return tiny_models.save(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of keys and values that a batch holds, the shared prefix apart, whenever its trees have grown.

    Those of recalibrators that read hidden states are among them.
    """
    found: list[int] = []
    extend = ThreeLevelCache.extend

    def counted(self, new):
        outputs = extend(self, new)
        prompts = [states for layer in self.layers.values() for states in layer.prompts]
        trees = self.slots * sum(layer.bytes_per_token for layer in self.layers.values())
        found.append(sum(states.numel() * states.element_size() for states in prompts) + trees)
        return outputs

    monkeypatch.setattr(ThreeLevelCache, "extend", counted)
    return found


def prompts(model, count: int = 24) -> list[Prompt]:
    return [Prompt(f"q{n}", model.encode(chat(f"Who built the mill{' of Tarn' * n}?"))) for n in range(count)]


@pytest.mark.parametrize(
    ("size", "method"), [("150kB", "temperatures"), ("2MB", "temperatures"), ("1MB", "ATS")]
)
def test_a_batch_holds_no_more_than_the_budget(
    size: str, method: str, directory: Path, held: list[int]
) -> None:
    """Five recalibrators of hidden states hold more of each token than the model's two layers."""
    model = load_model(directory, memory=size)
    asked = prompts(model)
    recalibrators = [attentive(model, seed) for seed in range(5)] if method == "ATS" else [Base(), SE()]
    how = {"m": 5, "max_new_tokens": 6}
    found = sample(model, recalibrators, asked, **how)
    answers = [[model.encode_answer(chat("Who?"), "Mira Talso."), (5, 6, 7)]] * len(asked)
    model.score(asked, answers, recalibrator=recalibrators[0])
    assert parse_size(size) // 20 < max(held) <= parse_size(size)
    assert token_ids(found) == token_ids(sample(load_model(directory), recalibrators, asked, **how))


def attentive(model: CausalLanguageModel, seed: int) -> ATS:
    """An ATS whose temperatures are not all 1."""
    found = ATS(model.block_shape, seed=seed).requires_grad_(False)
    found.readout.bias.fill_(0.1 * (seed + 1))
    return found


def test_a_question_over_the_budget_is_refused_only_if_one_was_given(directory: Path) -> None:
    model = load_model(directory, memory="24kB")
    (short, *_, long) = prompts(model)
    assert len(flat(sample(model, [Base()], [short], m=1, max_new_tokens=2))) == 1
    with pytest.raises(QuestionError, match=r"'q23': .*24000"):
        sample(model, [Base()], [short, long], m=1, max_new_tokens=2)
    roomier = load_model(directory, memory="60kB")
    many = [attentive(roomier, seed) for seed in range(9)]
    with pytest.raises(QuestionError, match="60000"):
        sample(roomier, many, [short], m=1, max_new_tokens=2)
    assert [e.question_id for e in model.invalid_prompts([short, long], [[(5, 6)], [(5, 6)]])] == ["q23"]
    assert load_model(directory).invalid_prompts([short, long], [[(5, 6)], [(5, 6)]]) == []
