"""Whether answers are right: by rules, by entailment, by a judge."""

from semcal.grading.rules import Grade, Grader, RuleGrader

__all__ = ["Grade", "Grader", "RuleGrader"]
