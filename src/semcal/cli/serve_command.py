"""`semcal serve`: answers with calibrated probabilities behind the interface of OpenAI's chat completions."""
