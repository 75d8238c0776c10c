"""The language model and the NLI model: sampling, likelihoods, equivalence."""
