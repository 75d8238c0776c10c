"""One question or many: sample, cluster, measure, grade; and the fit of a temperature."""
