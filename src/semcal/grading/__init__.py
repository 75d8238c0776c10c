"""Graders, which decide whether answers are correct: by rules, by entailment, by a judge."""
