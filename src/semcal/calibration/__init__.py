"""The probability that an answer is correct, learned from labeled questions (spec section 11)."""
