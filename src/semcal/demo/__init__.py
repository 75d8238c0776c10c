"""The embedded world, Atlas: its questions as data and its small weights, both made by `tools/atlas`."""
