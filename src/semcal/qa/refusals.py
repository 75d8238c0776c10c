"""Is an answer a refusal to answer? A short list of English phrases, for `semcal cluster --merge-refusals`.

A refusal opens with one of `PHRASES` and then names no answer: "I don't know who wrote it" refuses, "I'm not
sure, but probably Ana Velis" does not. Words that may be an answer themselves ("unknown", "nobody") refuse
nothing, and neither does a phrase that goes on as a title would ("I Don't Know How to Love Him").
"""

from __future__ import annotations

import re

__all__ = ["PHRASES", "is_refusal"]

_VERY = "really|actually|honestly|just|entirely|quite|completely|totally|absolutely|100"
_TELL = "answer|find|determine|provide|recall|remember|say|confirm|verify|identify|help|assist|give"
_SOME = "enough|any|sufficient|specific|more"
_FACTS = "information|context|details|knowledge|data"
_STATED = "known|clear|specified|mentioned|stated|provided|given|available"

#: What refusals open with, without articles and contractions; regular expressions.
PHRASES = (
    rf"(i )?(({_VERY}) )?do not (({_VERY}) )?(know|recall|remember)",
    rf"(i )?(am )?(({_VERY}) )?not (({_VERY}) )?(sure|certain|aware|familiar)",
    r"(i am )?(unsure|uncertain|unaware)",
    rf"(i )?(can not|could not|(am )?unable to|(am )?not able to) ({_TELL})",
    r"(i )?(have )?no (idea|clue|answer|knowledge)",
    rf"(i )?(do not have|have no|have not|need|would need|require) (access|(({_SOME}) )?({_FACTS}))",
    rf"(there (is|are) )?(no|not enough|insufficient) ({_FACTS})",
    r"((it|this|that|question|answer) )?(can not|could not) be (determined|answered|found|known)",
    rf"((it|this|that|question|answer) )?(is )?not ({_STATED})",
)

_WORDS = {
    "dont": "do not",
    "doesnt": "does not",
    "cant": "can not",
    "cannot": "can not",
    "couldnt": "could not",
    "isnt": "is not",
    "havent": "have not",
    "im": "i am",
    "a": "",
    "an": "",
    "the": "",
}
_COURTESY = (
    "(well|hmm|oh|but|however|unfortunately|honestly|sorry|apologies|i apologi[sz]e|i am (sorry|afraid)"
    "|as ai( language)?( model)?)"
)
_GOES_ON = (
    "who|whom|whose|what|when|where|which|whether|if|how (many|much|old|long|far|tall|big|often|exactly)"
    "|about|of|for|that|this|to|as|based|from|in|on|at|with|without|off|your|his|her|their|answer|question"
    "|enough|any|anything|much|exactly|specific|additional|definitive|accurate|exact|further|current"
)
_HEDGE = (
    "but|however|although|though|maybe|perhaps|probably|possibly"
    "|i think|i believe|i guess|i would (say|guess)|my (best )?guess"
)
_FILLER = (
    "i|think|believe|guess|would|say|it|is|was|be|may|might|could|that|answer|maybe|perhaps|probably|possibly"
)

_REFUSAL = re.compile(rf"({_COURTESY} )*({'|'.join(PHRASES)}) (?=$|({_GOES_ON}|{_HEDGE}) )")
_HEDGED = re.compile(rf"\b({_HEDGE}) (({_FILLER}) )*")


def is_refusal(text: str) -> bool:
    """Say whether an answer only says that it has none.

    Parameters
    ----------
    text : str
        An answer or its normal form.

    Examples
    --------
    >>> [is_refusal(text) for text in ("I don't know.", "i am not sure who wrote it", "Sorry, no idea")]
    [True, True, True]
    >>> [is_refusal(text) for text in ("I'm not sure, but I think Ana Velis", "Unknown", "")]
    [False, False, False]
    """
    return _is_refusal(_plain(text))


def _is_refusal(plain: str) -> bool:
    opened = _REFUSAL.match(plain)
    if not opened:
        return False
    hedged = _HEDGED.search(plain, opened.end())
    named = plain[hedged.end() :] if hedged else ""
    return not named or _is_refusal(named)


def _plain(text: str) -> str:
    """Lower-case words without contractions and articles, each followed by a blank."""
    words = re.findall(r"\w+", re.sub("['’`]", "", text.casefold()))
    return "".join(f"{word} " for word in (_WORDS.get(word, word) for word in words) if word)
