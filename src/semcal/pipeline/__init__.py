"""One question or many: sample, cluster, measure, grade."""
