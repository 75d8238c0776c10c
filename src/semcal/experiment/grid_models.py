"""The models of a grid in its settings, and what settings are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from semcal.engine.servers.settings import PREFIX, Endpoint, ServerSettings
from semcal.errors import UsageError, shown

__all__ = ["ASKED_WITH", "NOT_SERVED", "Model", "Positive", "Server", "SettingsGroup", "Size", "usable"]

Size = Annotated[int, Field(ge=1, lt=2**31)]
Positive = Annotated[float, Field(gt=0)]
#: The extras that need states, logits or beams, which servers do not give.
NOT_SERVED = ("beams", "transfer", "token_losses", "timing")


class SettingsGroup(BaseModel):
    """Settings that belong together; unknown keys are refused, and yes or no where a number belongs."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_number_is_a_bool(cls, value: Any, about: ValidationInfo) -> Any:
        """Refuse what pydantic would take as 1 or 0: `count: yes` is true in YAML."""
        wanted = cls.model_fields[str(about.field_name)].annotation
        if wanted is not bool and any(one is True or one is False for one in _inside(value)):
            raise ValueError(
                "expected a number or a text, not true or false (YAML reads yes, no, on and off so as well; "
                "put a text into quotes)"
            )
        return value


def _inside(value: Any) -> Iterator[Any]:
    """A value, or all that a list holds; the parts of a mapping check their own."""
    if isinstance(value, (list, tuple)):
        for one in value:
            yield from _inside(one)
    else:
        yield value


class Server(SettingsGroup):
    """How a server is asked: `semcal.engine.servers.settings.ServerSettings` without the API key."""

    tokenizer: str | None = None
    allow_truncation: bool = False
    concurrency: Size = 16
    retries: Annotated[int, Field(ge=0, lt=2**31)] = 5
    timeout: Positive = 120.0
    max_tokens_total: Size | None = None
    max_cost: Positive | None = None
    price_in: Annotated[float, Field(ge=0)] | None = None
    price_out: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _makes_sense(self) -> Server:
        usable(lambda: ServerSettings(**self.model_dump()))
        return self


#: The settings of a server on which results depend; the others may change from one session to the next.
ASKED_WITH = ("tokenizer", "allow_truncation")


class Model(SettingsGroup):
    """A language model: what it is called in tables, and its directory, hub id, embedded name or server."""

    name: str = Field(min_length=1)
    path: str
    revision: str | None = None
    dtype: str | None = None
    server: Server | None = None  # where `path` is openai:URL#NAME

    @property
    def is_server(self) -> bool:
        """Whether it is behind a server."""
        return self.path.startswith(PREFIX)

    @model_validator(mode="after")
    def _of_one_kind(self) -> Model:
        if self.is_server:
            usable(lambda: Endpoint.parse(self.path))
        given = ["revision", "dtype"] if self.is_server else ["server"]
        given = [name for name in given if getattr(self, name) is not None]
        if given:
            kind = "is behind a server" if self.is_server else "is no server (openai:URL#NAME)"
            raise ValueError(f"{shown(self.path)} {kind}; leave {' and '.join(given)} out")
        return self


def usable(make: Callable[[], object]) -> None:
    """Let pydantic report a UsageError with the place of the setting."""
    try:
        make()
    except UsageError as error:
        raise ValueError(str(error)) from error
