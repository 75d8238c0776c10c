"""Another program on stored samples, in a separate process without modules of semcal.

A job is {tool, original, models, questions, samples, sides, timed}: `sides` are the texts that semcal passes
to the NLI model, `samples` the answers, which the tool combines with the question in its own way. The process
writes partitions, numbers of pairs, CPU seconds, and results for edge cases.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from time import process_time
from types import SimpleNamespace
from typing import Any

#: Lists of the numbers of the samples.
Partition = list[list[int]]
BATCH = 32
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "WANDB_MODE": "disabled",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "OPENAI_API_KEY": "unused",
    "PYTHONWARNINGS": "ignore",
}
ODD = {"question": "Who?", "samples": ["velis", "", "ana velis", ""]}


def ask(python: str, job: dict[str, Any]) -> dict[str, Any] | None:
    """Do a job in that Python and return the result, None if the tool is not installed there."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.json"
        file.write_text(json.dumps(job))
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | SETTINGS
        done = subprocess.run(
            [python, "-P", __file__, str(file)], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise SystemExit(f"{job['tool']} ended with exit code {done.returncode}: {lines[-1]}")
        found: dict[str, Any] | None = json.loads(file.with_suffix(".found").read_text())
        return found


class Uqlm:
    """One direction suffices; an answer joins every meaning whose first answer it is linked to."""

    package = "uqlm"

    def __init__(self, model: Any, tokenizer: Any, folder: str, _: str) -> None:
        from uqlm.nli.nli import NLI

        self.nli = NLI(device="cpu", nli_model_name=folder, batch_size=BATCH)
        self.nli.model, self.nli.tokenizer = model, tokenizer

    def partition(self, question: str | None, texts: list[str]) -> Partition:
        from uqlm.nli.cluster import SemanticClusterer

        return [list(c) for c in SemanticClusterer(self.nli).cluster_responses(texts, question)[1]]

    def entropy(self, samples: list[str], scores: list[float]) -> str:
        from uqlm.scorers import SemanticEntropy

        known = [[{"logprob": score}] for score in scores]
        data = (
            SemanticEntropy(nli=self.nli)
            .score(
                prompts=["Who?"],
                responses=samples[:1],
                sampled_responses=[samples[1:]],
                logprobs_results=known[:1],
                sampled_logprobs_results=[known[1:]],
                show_progress_bars=False,
            )
            .data
        )
        return (
            f"{data['tokenprob_entropy_values'][0]:.2f}; by counts {data['discrete_entropy_values'][0]:.2f}"
        )


class Polygraph:
    """All ordered pairs of distinct answers, including equal ones, without the question."""

    package = "lm-polygraph"

    def __init__(self, model: Any, tokenizer: Any, *_: str) -> None:
        self.nli = SimpleNamespace(
            deberta=model, deberta_tokenizer=tokenizer, batch_size=BATCH, device="cpu"
        )  # its own loader only supports DeBERTa

    def _classes(self, texts: list[str]) -> dict[str, Any]:
        from lm_polygraph.stat_calculators.semantic_classes import SemanticClassesCalculator
        from lm_polygraph.stat_calculators.semantic_matrix import SemanticMatrixCalculator

        known: dict[str, Any] = {"sample_texts": [texts]}
        known |= SemanticMatrixCalculator(self.nli)(known, [], None)
        return known | SemanticClassesCalculator()(known, [], None)

    def partition(self, _: str | None, texts: list[str]) -> Partition:
        found: Partition = self._classes(texts)["semantic_classes_entail"]["class_to_sample"][0]
        return found

    def entropy(self, samples: list[str], scores: list[float]) -> str:
        from lm_polygraph.estimators.semantic_entropy import SemanticEntropy

        known = {**self._classes(samples), "sample_log_probs": [scores]}
        by_counts = SemanticEntropy(class_probability_estimation="frequency")(known)[0]
        return f"{SemanticEntropy()(known)[0]:.2f}; by counts {by_counts:.2f}"

    def evaluated(self) -> str:
        from lm_polygraph.utils.manager import _delete_nans

        return f"{_delete_nans([math.nan], [0.0])[0][0]:g}, the surest answer"


class Sample(str):
    """A text that can be identified in a cluster."""


class TruthTorch:
    """Equivalent unless one of the two directions is a contradiction; one pair at a time."""

    package = "TruthTorchLM"

    def __init__(self, model: Any, tokenizer: Any, *_: str) -> None:
        self.model, self.tokenizer = model, tokenizer

    def _clusters(self, question: str, texts: list[Any]) -> list[list[Any]]:
        from TruthTorchLM.utils import bidirectional_entailment_clustering as cluster

        found: list[list[Any]] = cluster(self.model, self.tokenizer, question, texts)
        return found

    def partition(self, question: str | None, texts: list[str]) -> Partition:
        samples = [Sample(text) for text in texts]
        numbers = {id(sample): number for number, sample in enumerate(samples)}
        return [[numbers[id(one)] for one in c] for c in self._clusters(question or "", samples)]

    def entropy(self, samples: list[str], scores: list[float]) -> str:
        from TruthTorchLM.truth_methods.semantic_entropy import calculate_total_log

        clusters = self._clusters("Who?", samples)
        return f"{calculate_total_log(list(zip(samples, scores)), clusters):.2f}"

    def evaluated(self) -> str:
        from TruthTorchLM.utils.eval_utils import metric_score

        auroc = metric_score(["auroc"], [0, 1], [math.nan, 0.0], [0.5, 0.5])["auroc"]
        return {0.0: "the surest answer", 1.0: "the least sure answer"}[float(auroc)]


class Original:
    """Both directions must entail; a later answer's meaning takes over linked answers."""

    package = "semantic_uncertainty"

    def __init__(self, model: Any, tokenizer: Any, _: str, original: str) -> None:
        sys.path.insert(0, str(Path(original) / "semantic_uncertainty"))
        from uncertainty.uncertainty_measures import semantic_entropy

        self.code = semantic_entropy
        self.nli = semantic_entropy.EntailmentDeberta.__new__(semantic_entropy.EntailmentDeberta)
        self.nli.model, self.nli.tokenizer = model, tokenizer

    def _ids(self, question: str | None, texts: list[str]) -> list[int]:
        asked = [f"{question} {text}" for text in texts] if question else texts
        found: list[int] = self.code.get_semantic_ids(asked, self.nli, strict_entailment=True)
        return found

    def partition(self, question: str | None, texts: list[str]) -> Partition:
        ids = self._ids(question, texts)
        return [[number for number, own in enumerate(ids) if own == one] for one in sorted(set(ids))]

    def entropy(self, samples: list[str], scores: list[float]) -> str:
        ids = self._ids("Who?", samples)
        of_ids = self.code.logsumexp_by_id(ids, scores, agg="sum_normalized")
        by_counts = self.code.cluster_assignment_entropy(ids)
        return f"{self.code.predictive_entropy_rao(of_ids):.2f}; by counts {by_counts:.2f}"


TOOLS: dict[str, Any] = {
    "uqlm": Uqlm,
    "lm-polygraph": Polygraph,
    "TruthTorchLM": TruthTorch,
    "original code": Original,
}


def main(file: Path) -> None:
    """Run the process."""
    job = json.loads(file.read_text())
    file.with_suffix(".found").write_text(json.dumps(found(job)))


def found(job: dict[str, Any]) -> dict[str, Any] | None:
    """Return the result of a job."""
    kind = TOOLS[job["tool"]]
    there = bool(job["original"]) if kind is Original else find_spec(kind.package.replace("-", "_"))
    if not there:
        return None
    import torch

    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    models = {name: Counted(kind, folder, job["original"]) for name, folder in job["models"].items()}
    usual = models["usual"]
    own = usual.run(job["questions"], job["samples"])
    seconds = usual.seconds
    cases = {
        "own": own,
        "same": usual.run(None, job["sides"]),
        "reversed": models["usual"].run(None, [sides[::-1] for sides in job["sides"]]),
    }
    for name in ("entailment first", "small letters"):
        cases[name] = tried_out(lambda name=name: models[name].run(None, job["sides"]))  # type: ignore[misc]
    timed = job["timed"]
    wide = models["wide"]
    cases["wide"] = wide.run(*([job[key][i] for i in timed] for key in ("questions", "samples")))
    nan, one = (["velis", "velis", "tarn"], [-1.0, math.nan, -2.0]), (["velis"], [-1.0])
    tool = usual.tool
    return {
        "version": "" if kind is Original else version(kind.package),
        "cases": cases,
        "pairs": usual.pairs_of_first / len(job["samples"]),
        "CPU": seconds / len(job["samples"]),
        "CPU wide": wide.seconds / len(timed),
        "NaN": tried_out(lambda: tool.entropy(*nan)),
        "evaluated": tool.evaluated() if hasattr(tool, "evaluated") else None,
        "one": tried_out(lambda: tool.entropy(*one)),
        "empty": tried_out(lambda: tool.partition(ODD["question"], list(ODD["samples"]))),
    }


def tried_out(job: Callable[[], Any]) -> Any:
    """Return the result of a job, or its error."""
    try:
        return job()
    except Exception as error:  # noqa: BLE001 - the error is the finding
        return f"{type(error).__name__}: {error}"


class Counted:
    """A tool with an NLI model that counts its pairs."""

    def __init__(self, kind: Any, folder: str, original: str) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        model = AutoModelForSequenceClassification.from_pretrained(folder).eval().float()
        self.pairs, self.pairs_of_first, self.seconds = 0, 0, 0.0
        model.register_forward_pre_hook(self._count, with_kwargs=True)
        self.tool = kind(model, AutoTokenizer.from_pretrained(folder), folder, original)
        tried_out(lambda: self.tool.partition("Where?", ["toreth", "kelmon"]))  # work of the first run only

    def _count(self, _: Any, __: Any, words: dict[str, Any]) -> None:
        self.pairs += len(words["input_ids"])

    def run(self, questions: Sequence[str] | None, texts: Sequence[Sequence[str]]) -> list[Partition]:
        """Return the partitions of all questions; record pairs and seconds of the first run."""
        before, start = self.pairs, process_time()
        done = [
            self.tool.partition(question, list(of_question))
            for question, of_question in zip(questions or [None] * len(texts), texts)
        ]
        if not self.seconds:
            self.seconds, self.pairs_of_first = process_time() - start, self.pairs - before
        return done


if __name__ == "__main__":
    main(Path(sys.argv[1]))
