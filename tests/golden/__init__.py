"""What the commands write on the embedded models, stored, and what a difference from it looks like."""
