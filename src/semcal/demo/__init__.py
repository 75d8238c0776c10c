"""The embedded world Atlas: questions as data, and small weights, both made by `tools/atlas`."""
