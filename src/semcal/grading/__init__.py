"""Whether answers are right: by rules, by entailment, by a judge."""
