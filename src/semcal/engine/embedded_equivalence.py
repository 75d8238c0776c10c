"""The embedded equivalence, "default": a small cross-encoder for real text that needs no PyTorch.

MiniLM with six layers, trained on pairs of answers (`equivalence_model/README.md`), run by ONNX Runtime
in float32 from weights of 8 bits. It reads `[CLS] question [SEP] answer [SEP] other answer [SEP]` in both
orders and decides by the mean of the two logits, so that a pair has one verdict in either direction. A
batch holds pairs of one length: there is no padding, and with `CLOSE` no verdict depends on the company
of its pair.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semcal.engine.equivalence import DEFAULT, Triple
from semcal.errors import ModelError, SemcalWarning
from semcal.hub_names import NLI_MODEL, locate

#: A pair whose logit is this near to the threshold is run again by itself.
CLOSE = 1e-4
#: Tokens in a batch.
BATCH_TOKENS = 2048


def asked(question: str) -> str:
    """Return what the model reads of a question: no capitals, question marks or further blanks.

    >>> asked(" Who wrote  Hamlet? ")
    'who wrote hamlet'
    """
    return " ".join(question.lower().replace("?", " ").split())


class EmbeddedEquivalence:
    """Whether two answers mean the same, by the model that comes with the package; alike in both directions.

    `revision` is a hash of its files. ModelError if they are not there or damaged.
    """

    name = address = DEFAULT
    symmetric = True

    def __init__(self, folder: Path | None = None) -> None:
        opened = _opened(folder or Path(locate(DEFAULT, NLI_MODEL).source))
        self._session, self._tokenizer, self._threshold, self._longest, self.revision = opened
        self._start, self._end = self._tokenizer.encode("").ids  # [CLS] and [SEP]
        self._truncated = False

    def entails(self, triples: Sequence[Triple]) -> list[bool]:
        """Say for each (question, answer, other answer) whether the answers mean the same."""
        in_order = [(question, min(a, b), max(a, b)) for question, a, b in triples]
        pairs = list(dict.fromkeys(in_order))
        logits = self.logits(pairs)
        for index in np.flatnonzero(np.abs(logits - self._threshold) < CLOSE):
            logits[index] = self.logits([pairs[index]])[0]
        same = dict(zip(pairs, (logits > self._threshold).tolist()))
        return [same[triple] for triple in in_order]

    def logits(self, pairs: Sequence[Triple]) -> NDArray[np.float64]:
        """Return the mean logit (n,) of both orders of each (question, answer, other answer), in nats."""
        encoded = self._encode([*pairs, *((question, b, a) for question, a, b in pairs)])
        logits = np.zeros(len(encoded))
        for batch in _batches(encoded):
            ids = np.array([encoded[i][0] for i in batch], dtype=np.int64)
            heads = np.array([[encoded[i][1]] for i in batch])
            segments = (np.arange(ids.shape[1]) >= heads).astype(np.int64)
            (logits[batch],) = self._session.run(None, {"ids": ids, "segments": segments})
        means: NDArray[np.float64] = logits.reshape(2, -1).mean(axis=0)
        return means

    def _encode(self, pairs: Sequence[Triple]) -> list[tuple[list[int], int]]:
        """Return of each pair its tokens, and how many of them stand before the second answer.

        Of what is too long the question loses its beginning, then each answer its end.
        """
        texts = [text for question, a, b in pairs for text in (asked(question), a, b)]
        ids = [one.ids for one in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
        found = []
        room = self._longest - 4
        for question, first, second in zip(ids[::3], ids[1::3], ids[2::3]):
            if len(question) + len(first) + len(second) > room:
                self._warn()
                first, second = first[: (room - 1) // 2], second[: (room - 1) // 2]
                question = question[-max(1, room - len(first) - len(second)) :]
            head = [self._start, *question, self._end, *first, self._end]
            found.append(([*head, *second, self._end], len(head)))
        return found

    def _warn(self) -> None:
        if not self._truncated:
            self._truncated = True
            warnings.warn(
                f"the embedded equivalence model reads at most {self._longest} tokens of a question and two "
                "answers: of longer ones the beginning of the question and the ends of answers are cut",
                SemcalWarning,
                stacklevel=2,
            )


@cache
def _opened(folder: Path) -> tuple[Any, Any, float, int, str]:
    """Session, tokenizer, threshold, most tokens and revision, read once in a process."""
    import onnxruntime
    from tokenizers import Tokenizer

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS") or 0)  # 0: all processors
    options.add_session_config_entry("session.disable_quant_qdq", "1")  # weights are multiplied out at once
    try:
        files = [(folder / name).read_bytes() for name in ("model.onnx", "tokenizer.json", "config.json")]
        session = onnxruntime.InferenceSession(files[0], options, ["CPUExecutionProvider"])
        config = json.loads(files[2])
        threshold, longest = float(config["threshold"]), int(config["longest"])
        revision = hashlib.sha256(b"".join(files)).hexdigest()[:12]
        return session, Tokenizer.from_buffer(files[1]), threshold, longest, revision
    except Exception as error:  # each library has errors of its own
        raise ModelError(
            f"the embedded equivalence model in {folder} cannot be read ({error}); install semcal again, "
            "or group by normal forms with --equivalence exact"
        ) from error


def _batches(encoded: Sequence[tuple[list[int], int]]) -> Iterator[list[int]]:
    """Indices of pairs of one length, at most `BATCH_TOKENS` tokens together."""
    lengths = defaultdict(list)
    for index, (ids, _) in enumerate(encoded):
        lengths[len(ids)].append(index)
    for length, indices in lengths.items():
        size = max(1, BATCH_TOKENS // length)
        yield from (indices[start : start + size] for start in range(0, len(indices), size))
