"""Calibration, discrimination and selective prediction on arrays."""
