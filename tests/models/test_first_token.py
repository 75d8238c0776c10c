"""The last layer of a classifier at the first token alone: the same logits, or the model as it is."""

import copy

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    RobertaConfig,
)

from semcal.models.nli import FirstTokenLayer, first_token_only

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "intermediate_size": 48,
    "num_labels": 3,
}
ALIKE = {
    "bert": BertConfig(**SIZES),
    "roberta": RobertaConfig(**SIZES, max_position_embeddings=64),
    "electra": ElectraConfig(**SIZES, embedding_size=16),
}
OTHERS = {
    "distilbert": DistilBertConfig(vocab_size=60, dim=32, n_heads=4, n_layers=2, hidden_dim=48),
    "deberta": DebertaV2Config(**SIZES, relative_attention=True, pos_att_type=["p2c", "c2p"]),
}


def classifier(config, attention: str = "eager"):
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config, attn_implementation=attention)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model.eval().requires_grad_(False)


def inputs(seed: int):
    """Eight inputs of 3 to 30 tokens, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, 60, (8, 30), generator=generator)
    lengths = torch.randint(3, 31, (8, 1), generator=generator)
    return {"input_ids": ids, "attention_mask": (torch.arange(30) < lengths).long()}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ALIKE)
def test_the_logits_are_those_of_the_whole_model(kind: str, attention: str) -> None:
    model = classifier(ALIKE[kind], attention)
    short = first_token_only(model)
    assert any(isinstance(part, FirstTokenLayer) for part in short.modules())
    for seed in range(5):
        given = inputs(seed)
        whole, found = model(**given).logits, short(**given).logits
        assert (whole - found).abs().max() <= 1e-5 * whole.abs().max()


def test_the_model_that_was_given_stays_what_it_was() -> None:
    model = classifier(ALIKE["bert"])
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    short = first_token_only(model)
    assert not any(isinstance(part, FirstTokenLayer) for part in model.modules())
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert {id(weight) for weight in short.parameters()} == {id(weight) for weight in model.parameters()}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_model_with_another_layout_runs_as_it_is(kind: str) -> None:
    model = classifier(OTHERS[kind])
    assert first_token_only(model) is model


def test_a_head_that_reads_other_tokens_is_noticed() -> None:
    model = classifier(ALIKE["roberta"])
    head = copy.copy(model.classifier)
    head.forward = lambda features: model.classifier.out_proj(features.mean(1))
    model.classifier = head
    assert first_token_only(model) is model
