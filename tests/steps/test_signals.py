"""Signals: what a model says of its answer, as features of a calibration."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import semcal
from semcal.calibration.calibration import Calibration, CalibrationConfig
from semcal.calibration.features import answered_rows, features_of
from semcal.calibration.learning import LearningOptions, calibrate_rows, draws_curve
from semcal.calibration.report import DrawsPoint, enough_samples
from semcal.calibration.samples import measure_samples, origin_of
from semcal.calibration.signals import SIGNALS, QuestionProbe, add_signals, learn_probe, parse_stated
from semcal.data.question import Question
from semcal.errors import InputError, QuestionError, SemcalWarning, UsageError
from semcal.inputs import as_sample_rows
from semcal.models.clustering import ClusterConfig
from semcal.models.distribution import Temperature
from semcal.models.equivalence import ExactMatch
from semcal.models.fakes import FakeEquivalence, FakeLanguageModel
from semcal.models.prompting import PromptConfig
from semcal.models.protocols import Capabilities, Generation, Prompt
from semcal.models.sample import Sampling, SamplingConfig, sample_runs
from semcal.rows import Row
from semcal.store import Store
from tests.cli.invoking import semcal as command
from tests.cli.invoking import write

#: Draws at one temperature.
OPTIONS: Any = {"equivalence": "exact", "progress": False, "temperatures": [1.0], "m": 10}
EXACT = ClusterConfig(ExactMatch())
#: Questions of which the answer "Ana" is right in every other one, whatever the draws say.
TABLE = {f"Who built mill {i}?": {"Ana.": 0.75, "Bo.": 0.25} for i in range(160)}
LABELLED = [{"question": text, "answers": "Ana" if i % 2 else "Cy"} for i, text in enumerate(TABLE)]


class AskedModel(FakeLanguageModel):
    """A model that also answers what it is asked of its answers: `belief` of an option, and a `reply`."""

    def __init__(
        self, belief: Callable[[str, str], float], reply: Callable[[str], str] = lambda _: "50"
    ) -> None:
        super().__init__(TABLE)
        self.belief, self.reply, self.asked = belief, reply, list[str]()

    def score(self, prompts: Sequence[Prompt], answers: Any, **options: Any) -> Any:
        if not prompts or "Reply with its letter alone" not in prompts[0].chat[-1].content:
            return super().score(prompts, answers, **options)
        scores = []
        for prompt, letters in zip(prompts, answers):
            text = prompt.chat[-1].content
            self.asked.append(text)
            listed = dict(re.findall(r"^([A-Z])\) (.*)$", text, re.MULTILINE))
            assert len(letters) == len(listed)
            # the first letter is twice as likely as it should be, which two orders even out
            weights = [self.belief(text, option) * (1 + (k == 0)) for k, option in enumerate(listed.values())]
            scores.append([(math.log(weight), -1.0 - k) for k, weight in enumerate(weights)])
        return scores

    def greedy(self, prompts: Sequence[Prompt], **options: Any) -> list[Generation]:
        if not prompts or "Reply with a whole number" not in prompts[0].chat[-1].content:
            return super().greedy(prompts, **options)
        return [Generation(self.reply(prompt.chat[-1].content), (), (), True) for prompt in prompts]


def knows(text: str, option: str) -> float:
    """The belief of a model that knows in which questions Ana is right."""
    right = numbered(text) % 2 == 1 and "Proposed answer: Bo" not in text
    sure = {"yes": right, "no": not right, "Ana": right, "Bo": False, "none of these": not right}[option]
    return 0.9 if sure else 0.1


def numbered(text: str) -> int:
    return int(re.findall(r"mill (\d+)", text)[0])


def rows_of(model: FakeLanguageModel, n: int = 6, **sampling: Any) -> Any:
    questions = [Question(str(i), text, ("Ana",)) for i, text in enumerate(list(TABLE)[:n])]
    ((sampled,),) = sample_runs(
        model, questions, Sampling((Temperature(1.0),), config=SamplingConfig(**sampling))
    )
    rows = [one.add_to(Row.of(question)) for question, one in zip(questions, sampled)]
    return measure_samples(rows, EXACT)


def test_p_true_is_the_mean_over_both_orders_of_the_options() -> None:
    model = AskedModel(lambda _, option: 0.75 if option == "yes" else 0.25)
    rows = add_signals(rows_of(model), ["p-true"], model, PromptConfig())
    first, second = 0.75 * 2 / (0.75 * 2 + 0.25), 0.75 / (0.75 + 0.25 * 2)
    for row in rows[None]:
        (item,) = row["signals"]
        assert item["p-true"] == pytest.approx((first + second) / 2)
    assert len(model.asked) == 12
    assert [text.index("A) yes") > 0 for text in model.asked[:6]] == [True] * 6
    assert all("A) no" in text for text in model.asked[6:])
    assert "Other answers that were given: Bo" in model.asked[0]


def test_self_assessment_has_every_meaning_and_none_of_them_as_options() -> None:
    model = AskedModel(lambda _, option: {"Ana": 0.5, "Bo": 0.3}.get(option, 0.2))
    rows = add_signals(rows_of(model), ["self-assessment"], model, PromptConfig())
    assert "A) Ana\nB) Bo\nC) none of these" in model.asked[0]
    assert "A) none of these\nB) Bo\nC) Ana" in model.asked[6]
    expected = (0.5 * 2 / 1.5 + 0.5 / 1.2) / 2
    assert rows[None][0].signals_of("Ana") == {"self-assessment": pytest.approx(expected)}
    assert rows[None][0].signals_of("Bo") == {}


def test_the_prompt_is_the_question_s_own_without_examples() -> None:
    """A system message and passages stay; the turn that asks goes on with the question about the answer."""
    model = AskedModel(knows)
    asking = PromptConfig((Question("f", "Who?", ("Di",)),))
    add_signals(rows_of(model, 1), ["verbalised"], model, asking)
    turns = asking.chat(Question("0", "Who built mill 0?"))
    prompt = Prompt("0", (), turns)
    assert len(prompt.chat) == 4

    class Kept(AskedModel):
        def greedy(self, prompts: Sequence[Prompt], **options: Any) -> list[Generation]:
            self.chats = [prompt.chat for prompt in prompts]
            return super().greedy(prompts, **options)

    kept = Kept(knows)
    add_signals(rows_of(kept, 1), ["verbalised"], kept, asking)
    ((system, user),) = kept.chats
    assert (system, user.role) == (turns[0], "user")
    assert user.content.startswith("Question: Who built mill 0?\n\nProposed answer: Ana\nHow likely")


@pytest.mark.parametrize(
    ("text", "probability"),
    [
        *(("85", 0.85), ("85%", 0.85), ("85.0", 0.85), ("85.", 0.85), ("100", 1.0), ("100.0", 1.0)),
        *(("1", 0.01), ("1.", 0.01), ("1%", 0.01), ("1.0%", 0.01), ("1.5", 0.015), ("0", 0.0)),
        *(("0.85", 0.85), (".9", 0.9), (" 0.85.\n", 0.85), ("1.0", 1.0), ("0.0", 0.0)),
        *(("0.85%", 0.0085), (".9 %", 0.009)),
        *((text, None) for text in ("", "high", "80 to 90", "101", "-5", "0.8 or so", "85/100", "1e2")),
        *((text, None) for text in ("٣", ".", "100.5")),
    ],
)
def test_a_stated_probability_is_one_number_in_percent_or_a_decimal_of_at_most_1(
    text: str, probability: float | None
) -> None:
    assert parse_stated(text) == pytest.approx(probability)


def test_a_signal_that_knows_is_chosen_and_then_asked_for() -> None:
    """Shares tell nothing here; the model's own word tells all, and another answer is never asked about."""
    model = AskedModel(knows)
    calibration = semcal.calibrate(model, LABELLED, **OPTIONS, signals=["p-true"])
    assert "p-true" in calibration.signals
    assert "p-true" in calibration.map.candidate.features
    assert calibration.report.calibrated["auroc"] > 0.99  # type: ignore[operator]
    uq = semcal.SemanticUQ(model, calibration=calibration)
    right, wrong = (uq.ask(f"Who built mill {i}?") for i in (1, 2))
    assert right.confidence > 0.8 > 0.2 > wrong.confidence  # type: ignore[operator]
    assert right.row.signals_of("Ana") == {"p-true": pytest.approx(0.9, abs=0.1)}
    assert right.record(Temperature(1.0))["signals"][0]["answer"] == "Ana"


def test_token_scores_at_hand_are_a_feature_without_being_requested() -> None:
    rows = as_sample_rows(scored_rows())
    calibration = calibrate_rows(measure_samples(rows, EXACT), ClusterConfig("exact"))
    assert calibration.signals == ("token-scores",)
    bare = [{key: value for key, value in row.items() if key != "token_scores"} for row in scored_rows()]
    without = calibrate_rows(measure_samples(as_sample_rows(bare), EXACT), ClusterConfig("exact"))
    assert without.signals == ()


def test_what_was_said_is_kept_and_read_again_without_the_model(tmp_path: Path) -> None:
    model = AskedModel(knows)
    calibration = semcal.calibrate(model, LABELLED, signals=["p-true"], **OPTIONS)
    calibration.save_pretrained(tmp_path)
    loaded = Calibration.from_pretrained(tmp_path)
    assert "p-true" in loaded.signals
    rows = as_sample_rows(tmp_path / "samples.jsonl")
    how = LearningOptions(origin=origin_of(rows, tmp_path / "samples.jsonl"))
    measured = measure_samples(rows, EXACT)
    again = calibrate_rows(measured, EXACT, CalibrationConfig(signals=("p-true",)), how)
    assert again.map == calibration.map
    with pytest.raises(UsageError, match="--model"):
        calibrate_rows(measured, EXACT, CalibrationConfig(signals=("verbalised",)), how)
    bare = {t: [row.without("signals") for row in part] for t, part in measured.items()}
    with pytest.raises(InputError, match="question '1' has no signal 'p-true' for its answer 'Ana'"):
        loaded.apply(bare)
    other = {
        t: [row.set(signals=[{"answer": "Bo", "p-true": 0.5}]) for row in part] for t, part in bare.items()
    }
    with pytest.raises(InputError, match="no signal 'p-true' for its answer 'Ana'"):
        loaded.apply(other)


def test_a_signal_that_fails_is_null_and_over_a_fifth_is_left_out() -> None:
    model = AskedModel(knows, lambda text: "no idea" if numbered(text) % 3 else "70")
    with (
        pytest.warns(SemcalWarning, match=r"answers have no 'verbalised'"),
        pytest.warns(SemcalWarning, match="6.% of the questions have no 'verbalised', which is left out"),
    ):
        calibration = semcal.calibrate(model, LABELLED, **OPTIONS, signals=["verbalised"])
    assert calibration.signals == ()
    first = json.loads((calibration.samples or "").splitlines()[1])
    assert first["signals"] == [{"answer": "Ana", "verbalised": None}]


def test_finished_blocks_are_not_asked_about_again(tmp_path: Path) -> None:
    model, rows = AskedModel(knows), rows_of(AskedModel(knows))
    first = add_signals(rows, ["p-true"], model, PromptConfig(), keep=Store(tmp_path))
    asked = len(model.asked)
    again = add_signals(rows, ["p-true"], model, PromptConfig(), keep=Store(tmp_path))
    assert (len(model.asked), again) == (asked, first)
    add_signals(rows, ["self-assessment"], model, PromptConfig(), keep=Store(tmp_path))
    assert len(model.asked) == 2 * asked


@pytest.mark.parametrize("name", ["p-true", "self-assessment", "verbalised"])
def test_a_prompt_that_is_too_long_has_no_value_and_the_others_have(name: str) -> None:
    class Short(AskedModel):
        def errors(self, prompts: Sequence[Prompt]) -> list[QuestionError]:
            return [
                QuestionError(prompt.question_id, "long") for prompt in prompts if prompt.question_id == "3"
            ]

        def invalid_prompts(self, prompts: Any, *_: object) -> list[QuestionError]:
            return self.errors(prompts)

        def invalid_prompts_for_sampling(self, request: Any, *_: object) -> list[QuestionError]:
            return self.errors(request.prompts)

    model = Short(lambda _, __: 0.5)
    with pytest.warns(SemcalWarning, match=f"1 of 6 answers have no '{name}'"):
        rows = add_signals(rows_of(AskedModel(knows)), [name], model, PromptConfig())
    known = [row["signals"][0][name] is not None for row in rows[None]]
    assert known == [True, True, True, False, True, True]


@pytest.mark.parametrize("name", ["p-true", "self-assessment"])
def test_a_server_without_log_probabilities_is_refused_by_name(name: str) -> None:
    model = AskedModel(knows)
    model.capabilities = Capabilities(states=False, next_tokens=False)  # type: ignore[misc]
    with pytest.raises(UsageError, match=f"^--signal {name}: .*log-probabilities.*--signal verbalised"):
        add_signals(rows_of(AskedModel(knows)), [name], model, PromptConfig())


def test_an_unknown_signal_and_a_column_of_a_signal_s_name_are_refused() -> None:
    with pytest.raises(UsageError, match="did you mean 'p-true'"):
        CalibrationConfig(signals=("ptrue",))
    with pytest.raises(UsageError, match="'p-true'"):
        semcal.calibrate(AskedModel(knows), LABELLED, features=["p-true"], signals=["p-true"])


def test_a_given_answer_is_asked_about_in_its_own_words() -> None:
    model = AskedModel(lambda text, option: 0.9 if (option == "yes") == ("answer: Cy" in text) else 0.1)
    labelled = [
        {"question": text, "answer": "Cy" if i % 2 else "Ana", "correct": bool(i % 2)}
        for i, text in enumerate(TABLE)
    ]
    calibration = semcal.calibrate(model, labelled, **OPTIONS, answer="given", signals=["p-true"])
    uq = semcal.SemanticUQ(model, calibration=calibration)
    cy = uq.check("Who built mill 1?", "Cy")
    assert cy.row.signals_of("Cy").keys() <= {"p-true"}
    assert cy.confidence > 0.7  # type: ignore[operator]


# ---- Token scores


@given(st.integers(2, 8))
def test_token_scores_are_the_smallest_and_the_mean_probability(m: int) -> None:
    model = FakeLanguageModel({"Who built mill 0?": {"Ana Velis": 0.5, "Ana Tarn": 0.2, "Bo": 0.3}})
    ((sampled,),) = sample_runs(
        model, [Question("0", "Who built mill 0?")], Sampling((Temperature(1.0),), config=SamplingConfig(m))
    )
    ((row),) = [one.add_to(Row({"id": "0"}), tokens=True) for one in sampled]
    for log_probs, (low, mean) in zip(row["token_log_probs"], row["token_scores"]):
        p = np.exp(log_probs)
        assert (low, mean) == (pytest.approx(p.min()), pytest.approx(p.mean()))
    assert Row(json.loads(json.dumps(row.to_json()))).token_scores == row["token_scores"]


def test_token_scores_are_features_of_the_likeliest_draw_of_the_answer() -> None:
    row = Row(
        {
            "id": "1",
            "question": "Who?",
            "answers": ["a"],
            "samples": ["a", "b", "a"],
            "log_likelihoods": [-2.0, -0.1, -1.0],
            "token_scores": [[0.1, 0.2], [0.8, 0.9], [0.3, 0.4]],
        }
    )
    rows = measure_samples([row], EXACT)
    values = features_of(rows, "modal", SIGNALS["token-scores"].features).values
    assert (values["smallest-token"], values["mean-token"]) == ([0.3], [0.4])


class StatesModel(FakeLanguageModel):
    """A model whose hidden states encode, among noise, whether it can answer a question."""

    def __init__(self) -> None:
        super().__init__(TABLE)

    def prompt_states(self, prompts: Sequence[Prompt], depth: float) -> list[list[float]]:
        assert depth == 2 / 3
        numbers = [numbered(prompt.chat[-1].content) for prompt in prompts]
        states = [np.random.default_rng(number).normal(size=48) for number in numbers]
        direction = np.random.default_rng(0).normal(size=48) / 4
        signs = (1 if number % 2 else -1 for number in numbers)
        return [(7 + state + sign * direction).tolist() for state, sign in zip(states, signs)]


def test_a_probe_reads_of_the_state_of_a_question_what_the_samples_do_not_say(tmp_path: Path) -> None:
    model = StatesModel()
    calibration = semcal.calibrate(model, LABELLED, **OPTIONS, signals=["question-probe"])
    assert "question-probe" in calibration.signals
    assert calibration.report.base["auroc"] < 0.6  # type: ignore[operator]
    assert calibration.report.calibrated["auroc"] > 0.75  # type: ignore[operator]
    calibration.save_pretrained(tmp_path)
    loaded = Calibration.from_pretrained(tmp_path)
    assert (loaded.probe, loaded.id) == (calibration.probe, calibration.id)
    uq = semcal.SemanticUQ(model, calibration=loaded)
    asked = [uq.ask(text).confidence for text in TABLE]
    assert np.mean(asked[1::2]) > np.mean(asked[::2]) + 0.3  # type: ignore[arg-type]
    stored = as_sample_rows(tmp_path / "samples.jsonl")
    applied = [
        [a.probability for a in one.apply(measure_samples(stored, EXACT))] for one in (loaded, calibration)
    ]
    assert applied[0] == applied[1]
    narrow = {
        t: [row.set(signals=[{"answer": "Ana", "question-probe": [1.0]}]) for row in part]
        for t, part in measure_samples(stored, EXACT).items()
    }
    with pytest.raises(InputError, match="'question-probe'"):
        loaded.apply(narrow)


def test_a_probe_is_out_of_fold_for_the_answers_that_it_learned_from() -> None:
    rng = np.random.default_rng(0)
    states, correct = rng.normal(size=(100, 400)), (rng.random(100) < 0.5).astype(float)
    assert semcal.metrics.auroc(QuestionProbe.fit(states, correct).predict(states), correct) > 0.8
    answered = answered_rows(rows_of(FakeLanguageModel(TABLE), 100), "modal")
    answered = [
        replace(one, row=one.row.add_signals(one.text, {"question-probe": state}))
        for one, state in zip(answered, states.tolist())
    ]
    bare = features_of(rows_of(FakeLanguageModel(TABLE), 100))
    fitted = np.arange(100) < 80
    probe, features = learn_probe(bare, answered, correct, fitted, None, 0)
    p = features.values["question-probe"]
    assert semcal.metrics.auroc(p[fitted], correct[fitted]) < 0.65
    assert np.allclose(p[~fitted], probe.predict(states[~fitted]))
    assert probe == QuestionProbe.fit(states[:80], correct[:80])
    assert learn_probe(bare, answered, correct, np.arange(100) < 4, None, 0) == (None, bare)


def test_a_probe_needs_a_local_model() -> None:
    model = StatesModel()
    model.capabilities = Capabilities(states=False)  # type: ignore[misc]
    with pytest.raises(UsageError, match="--signal question-probe"):
        semcal.calibrate(model, LABELLED, **OPTIONS, signals=["question-probe"])
    with pytest.raises(UsageError, match="'question-probe'"):
        semcal.Calibrator(signals=["question-probe"]).fit_rows(scored_rows(), cluster=EXACT)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        *(("question-probe", said) for said in (0.5, [], ["x"], [True], [math.inf])),
        *(("p-true", said) for said in ("x", True, 2.5, -1, 1e300, [0.5])),
    ],
)
def test_a_stored_signal_that_is_no_probability_or_no_state_is_a_bad_row(name: str, said: Any) -> None:
    row = Row({"id": "1", "signals": [{"answer": "Ana", name: said}]})
    with pytest.raises(InputError, match=f"'{name}'"):
        row.signals_of("Bo")
    with pytest.raises(InputError, match="'signals'"):
        Row({"id": "1", "signals": [1]}).signals_of("Bo")


@pytest.mark.parametrize(
    "scores", [[[0.5, 0.2]], [[0.1, 1.5]], [[-0.1, 0.5]], [[0.5]], [0.5], [["a", 0.5]], [[None, 0.5]]]
)
def test_token_scores_that_make_no_sense_are_named(scores: Any) -> None:
    row = Row({"id": "1", "samples": ["a"], "token_scores": scores})
    with pytest.raises(InputError, match="'token_scores'"):
        _ = row.token_scores


def scored_rows() -> list[dict[str, Any]]:
    """Rows whose tokens' probabilities tell right from wrong, and whose shares do not."""
    rng = np.random.default_rng(0)
    return [
        {
            "id": str(i),
            "question": f"Who built {i}?",
            "samples": ["Ana", "Ana", "Bo", "Cy"] if rng.random() < 0.5 else ["Ana", "Bo", "Cy", "Di"],
            "answers": ["Ana" if i % 2 else "Ed"],
            "log_likelihoods": [-1.0, -2.0, -2.0, -2.0],
            "token_scores": [[0.9, 0.95] if i % 2 else [0.1, 0.4]] * 4,
        }
        for i in range(100)
    ]


def test_samples_without_token_scores_are_refused_where_likelihoods_are_known() -> None:
    rows = scored_rows()
    results = semcal.score(rows, "exact")
    calibration = results.calibrate(signals=["token-scores"])
    assert calibration.signals == ("token-scores",)
    bare = [{key: value for key, value in row.items() if key != "token_scores"} for row in rows]
    with pytest.raises(InputError, match=r"no signal 'token-scores'.*`semcal sample`"):
        semcal.score(bare, "exact", calibration=calibration)
    unknown = [{**row, "log_likelihoods": None} for row in bare]
    assert len(semcal.score(unknown, "exact", calibration=calibration)) == 100
    with pytest.raises(UsageError, match=r"^signals: no row holds 'token-scores'"):
        semcal.score(bare, "exact").calibrate(signals=["token-scores"])


def test_the_command_learns_from_a_signal(tmp_path: Path) -> None:
    """Of stored samples only what they hold; the others name the model that must be asked."""
    out = tmp_path / "out"
    call = ("calibrate", write(tmp_path / "s.jsonl", scored_rows()), "--equivalence", "exact", "--out", out)
    code, (made,), _ = command(*call, "--signal", "token-scores")
    assert (code, "-token" in made["chosen"]) == (0, True)
    assert json.loads((out / "calibration.json").read_text())["signals"] == ["token-scores"]
    code, _, said = command(*call, "--overwrite", "--signal", "p-true")
    assert (code, "--model" in said) == (2, True)


# ---- Fewer draws


def drawn_rows(n: int = 150, m: int = 6) -> list[dict[str, Any]]:
    """Rows whose draws agree as often as the first is right, with likelihoods that say nothing."""
    rng = np.random.default_rng(3)
    rows = []
    for i in range(n):
        sure = rng.random() < 0.5
        samples = [
            "Ana" if rng.random() < (0.95 if sure else 0.4) else f"Bo {rng.integers(5)}" for _ in range(m)
        ]
        row = {
            "id": str(i),
            "question": f"Who built {i}?",
            "samples": samples,
            "answers": ["Ana" if sure else "Ed"],
        }
        rows.append({**row, "log_likelihoods": [-1.0] * m})
    return rows


def test_the_gain_by_draws_is_that_of_calibrations_of_the_first_draws() -> None:
    """Each point is the out-of-fold gain that `calibrate --m` reports of so many draws."""
    rows = drawn_rows()
    learning = CalibrationConfig()
    curve = draws_curve({None: list(map(Row, rows))}, EXACT, learning)
    assert [point.m for point in curve] == [1, 2, 3, 5, 6]
    assert (curve[-1].above, curve[-1].standard_error) == (0, 0)
    for point in curve[1::2]:
        measured = measure_samples(list(map(Row, rows)), EXACT, m=point.m)
        report = calibrate_rows(measured, ClusterConfig(ExactMatch()), config=learning).report
        assert report.calibrated["gain"] == pytest.approx(point.gain)
    assert curve[0].above < -2 * curve[0].standard_error  # one draw agrees with itself, whatever it says


def test_m_auto_learns_from_the_fewest_samples_that_lose_at_most_one_standard_error() -> None:
    rows, risks = drawn_rows(n=100, m=10), [0.3]
    for row in rows:  # so that few samples tell as much as many
        row["samples"] = ["Ana"] * 10 if row["answers"] == ["Ana"] else [f"Bo {k}" for k in range(10)]
    automatic = semcal.Calibrator(risks=risks, m_curve="auto").fit_rows(
        rows, cluster=ClusterConfig("exact"), progress=False
    )
    curve = automatic.report.draws_curve
    expected = next(p.m for p in curve if p.m > 1 and p.above >= -p.standard_error)
    assert automatic.m == expected < 10
    chosen = semcal.Calibrator(risks=risks).fit_rows(
        rows, cluster=ClusterConfig("exact"), m=expected, progress=False
    )
    assert automatic.map == chosen.map
    # The labels chose among as many orderings as the curve has points: the level is divided by their number.
    stricter = semcal.Calibrator(risks=risks, delta=0.05 / len(curve)).fit_rows(
        rows, cluster=ClusterConfig("exact"), m=expected, progress=False
    )
    assert automatic.threshold.threshold_score == stricter.threshold.threshold_score


@pytest.mark.parametrize("grouped", [False, True])
def test_where_no_question_has_an_answer_among_the_first_draws_the_gain_is_zero(grouped: bool) -> None:
    rows = [{**row, "samples": [None, None, *row["samples"][2:]]} for row in drawn_rows()]
    rows = [{**row, "log_likelihoods": None} for row in rows]
    if grouped:
        rows = [{**row, "group": str(number // 2)} for number, row in enumerate(rows)]
    one, two, *_, full = draws_curve({None: list(map(Row, rows))}, EXACT, CalibrationConfig())
    assert (one.m, one.gain, two.m, two.gain) == (1, 0, 2, 0)
    assert one.above == two.above == pytest.approx(-full.gain)
    assert full.gain > 0.1
    rows = [{**row, "samples": [None] * 6} for row in rows]
    curve = draws_curve({None: list(map(Row, rows))}, EXACT, CalibrationConfig())
    assert {(point.gain, point.above, point.standard_error) for point in curve} == {(0, 0, 0)}


def test_fewer_draws_are_clustered_anew_and_no_pair_is_asked_about_twice() -> None:
    """The draw that links two others may be among those that are left out."""
    linking = FakeEquivalence([{"ana", "bo"}, {"bo", "cy"}])
    row = {"question": "Who?", "answers": ["Ana"], "samples": ["Ana", "Cy", "Bo"]}
    rows = [Row({**row, "id": str(i), "question": f"Who built {i}?"}) for i in range(20)]
    draws_curve({None: rows}, ClusterConfig(linking), CalibrationConfig())
    assert len(linking.asked) == len(set(linking.asked)) > 0


@pytest.mark.parametrize("kind", ["greedy", "given"])
def test_an_answer_that_is_not_read_of_the_draws_is_compared_with_fewer_anew(kind: Any) -> None:
    """Among fewer draws its cluster has another number, or is not there."""
    drawn = dict.fromkeys(("Bo", "Cy", "Ed", "Flo", "Gus", "Ida", "Jo"), 0.1)
    table = {
        f"Who built mill {i}?": {**drawn, "Ana": 0.298 - 0.004 * i, "Di": 0.002 + 0.004 * i}
        for i in range(60)
    }
    labelled = [
        {"question": question, "answers": "Ana" if i % 3 else "Di"}
        | ({"answer": "Ana"} if kind == "given" else {})
        for i, question in enumerate(table)
    ]
    calibration = semcal.calibrate(
        FakeLanguageModel(table), labelled, answer=kind, equivalence="exact", m_curve=True
    )
    report = calibration.report
    assert [point.m for point in report.draws_curve] == [1, 2, 3, 5, 10]
    stored = [{**json.loads(line)} for line in calibration.samples.splitlines()]
    for point in report.draws_curve[1::2]:
        first = measure_samples(list(map(Row, stored)), EXACT, m=point.m, answer=kind)
        learning = CalibrationConfig(answer=kind, signals=("token-scores",))
        again = calibrate_rows(first, ClusterConfig(ExactMatch()), config=learning).report
        assert again.calibrated["gain"] == pytest.approx(point.gain)


@pytest.mark.filterwarnings("ignore:all 60 answers have the same share")
def test_results_of_stored_samples_know_the_same_curve_and_keep_clusters_that_were_stored() -> None:
    rows = drawn_rows(60)
    expected = draws_curve({None: list(map(Row, rows))}, EXACT, CalibrationConfig())
    results = semcal.score(rows, "exact")
    assert results.calibrate(m_curve=True).report.draws_curve == expected
    assert results.calibrate().report.draws_curve == ()
    alike = [{**row, "clusters": [list(range(6))]} for row in rows]
    kept = draws_curve({None: list(map(Row, alike))}, EXACT, CalibrationConfig())
    assert semcal.score(alike).calibrate(m_curve=True).report.draws_curve == kept != expected


def test_the_command_says_what_fewer_draws_would_gain(tmp_path: Path) -> None:
    file, out = write(tmp_path / "samples.jsonl", drawn_rows()), tmp_path / "out"
    code, (made,), _ = command(
        "calibrate", file, "--equivalence", "exact", "--config", "calibration.m_curve=true", "--out", out
    )
    assert (code, [point["m"] for point in made["draws_curve"]]) == (0, [1, 2, 3, 5, 6])
    automatic = ("--equivalence", "exact", "--m", "auto", "--out", tmp_path / "auto")
    code, (chosen,), _ = command("calibrate", file, *automatic)
    assert (code, chosen["m"]) == (0, 6)
    report = Calibration.from_pretrained(out).report
    assert enough_samples(report.draws_curve) == 6
    assert str(report.fewer_samples).startswith("With fewer than 6 samples")
    enough = (DrawsPoint(5, 0.326, -0.004, 0.01), report.draws_curve[-1])
    assert "(--m 5), the gain is 0.004 ± 0.010 lower" in str(
        replace(report, draws_curve=enough).fewer_samples
    )
    assert replace(report, draws_curve=()).fewer_samples is None
