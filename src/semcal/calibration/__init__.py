"""The probability that an answer is right, learnt from labelled questions (spec section 11)."""
