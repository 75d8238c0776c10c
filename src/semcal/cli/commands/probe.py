"""`semcal probe`: what a server does, and what follows for semcal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from math import ceil
from typing import TYPE_CHECKING, Annotated

import typer

from semcal.cli import options as opt
from semcal.cli.console import info, show
from semcal.errors import ServerError
from semcal.files import dumps

if TYPE_CHECKING:
    from semcal.servers.protocol import ServerProfile

#: How servers stop to cut draws that every request asks for in full.
UNCUT = {
    "vLLM": "start vLLM with --generation-config vllm",
    "Ollama": "put PARAMETER top_k 1000000, top_p 1 and min_p 0 into the Modelfile",
}
#: An answer's samples, unless --m says otherwise.
DRAWS = 10

URLArgument = Annotated[
    str,
    typer.Argument(metavar="URL", help="http://127.0.0.1:8000/v1, #NAME for a model; else OPENAI_BASE_URL."),
]
FreshOption = Annotated[bool, typer.Option("--fresh", help="Ask again what was found out before.")]


def command(
    url: URLArgument = "openai:",
    fresh: FreshOption = False,
    api_key_file: opt.ApiKeyFileOption = None,
    timeout: opt.TimeoutOption = 120.0,
    json: opt.JsonOption = False,
) -> int:
    """Find out what a model server does, by some dozens of small requests.

    Prints what the server does and what follows: which measures and fits it allows, and what to change where
    something is missing. What is found is kept, and asked again when the server's version changes; after a
    change of its options, ask with --fresh. The API key is taken from SEMCAL_API_KEY or --api-key-file.
    """
    from semcal.servers.client import ServerClient
    from semcal.servers.probing import stored_profile
    from semcal.servers.settings import Endpoint, ServerSettings, read_api_key

    settings = ServerSettings(api_key=read_api_key(api_key_file), timeout=timeout)
    with ServerClient(Endpoint.parse(url), settings) as client:
        profile = stored_profile(client, fresh=fresh)
        info(f"probe: {client.usage.requests} requests")
    if not _for_people(json):
        show(dumps({**asdict(profile), "consequences": dict(_consequences(profile))}))
        return 0
    version = f" {profile.version}" if profile.version else ""
    show(f"{profile.model} behind {profile.server}{version} at {profile.url}\n")
    for rows in (_findings(profile), _consequences(profile)):
        for name, text in rows:
            show(f"{name:<30}{text}")
        show()
    return 0


def _for_people(json: bool) -> bool:
    return sys.stdout.isatty() and not json


def _findings(profile: ServerProfile) -> Iterator[tuple[str, str]]:
    """What the server does: a name and a text each."""
    length, most = profile.max_length, profile.max_n
    yield "prompt and answer", f"at most {length} tokens together" if length else "the limit is unknown"
    differ = ", which differ" if profile.choices_differ else ", which are all the same"
    yield "answers to a request (n)", f"up to {most}{differ}" if most > 1 else "one; n is ignored or refused"
    yield "seed", "gives the same answer again" if profile.seed else "does not give the same answer again"
    at = {
        "raw": "raw: at T = 1, whatever T is",
        "scaled": "at T",
        "masked": "at T, of what truncation leaves",
    }
    given = at[profile.log_probs] if profile.log_probs else "none"
    yield "log-probabilities of draws", given + ("; at T on request" if profile.scaled_on_request else "")
    listed = f"all {profile.vocabulary}" if profile.whole_vocabulary else f"up to {profile.top_log_probs}"
    yield "alternatives of a token", listed if profile.top_log_probs else "none"
    chosen = ["logprob_token_ids"] * profile.chosen_ids + ["logit_bias"] * profile.forced_raw
    yield "tokens that a request names", f"scored, by {' or '.join(chosen)}" if chosen else "not scored"
    yield (
        "tokens of the prompt",
        f"scored, by {profile.scores_prompt}" if profile.scores_prompt else "not scored",
    )
    yield "answers that were begun", "continued" if profile.continues else "not continued"
    yield "token ids as a prompt", "taken" if profile.token_ids_in else "not taken"
    yield "token ids of draws", "told" if profile.token_ids_out else "not told"
    yield "end of turn", "has a log-probability" if profile.end_included else "no log-probability was seen"
    cached = {True: "yes", False: "no", None: "unknown"}
    yield "prompts are cached", cached[profile.prefix_cached]
    tested = ", ".join(profile.truncation_tested)
    seen = f"none by {tested}" if tested else "could not be tested"
    yield "truncation of draws", f"found: {profile.truncated_to}" if profile.truncated_to else seen
    hottest = profile.max_temperature
    yield "temperature", "no limit up to 100" if hottest is None else f"at most {hottest:g}"
    stated = ", ".join(f"{name} {value:g}" for name, value in profile.neutral.items())
    yield "every request states", stated or "nothing: the server refuses what switches truncation off"


def _consequences(profile: ServerProfile) -> Iterator[tuple[str, str]]:
    """What follows for semcal, with the remedy for what is missing."""
    from semcal.servers.sampler import choose_route, reading_at, why_unknown

    if profile.truncated_to:
        remedy = UNCUT.get(profile.server, "switch truncation off at the server")
        yield "sampling", f"refused, for draws are cut; {remedy}, or record the cut with --allow-truncation"
    else:
        requests = ceil(DRAWS / profile.together)
        yield "sampling", f"{DRAWS} answers to a question take {requests} request{'s'[: requests > 1]}"
    at_one, at_others = (reading_at(profile, temperature) for temperature in (1.0, 2.0))
    cut = "; of answers that are cut with --tokenizer DIR" if at_one and profile.token_ids_in else ""
    if at_others:
        yield "measures", f"all at every T{cut}"
    elif at_one:
        at_one_alone = f"all at T = 1{cut}{';' if cut else ','} E-SC at others"
        yield "measures", f"{at_one_alone}: {why_unknown(profile, 2.0)}"
    else:
        yield "measures", f"E-SC: {why_unknown(profile, 1.0)}"
    samples = "semcal fit --method TS-grid, semcal calibrate"
    try:
        yield "fits", f"semcal fit --tokenizer DIR by {choose_route(profile)}, {samples}"
    except ServerError as error:
        yield "fits", f"{samples}: {error}"
