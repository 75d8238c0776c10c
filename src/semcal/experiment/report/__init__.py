"""Tables, figures and the self-contained page of a run."""
