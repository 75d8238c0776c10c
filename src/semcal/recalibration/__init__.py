"""Recalibrators of token distributions: Base, SE, TS."""
