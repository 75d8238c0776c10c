"""Options that are gone; for one release they say what to use instead (exit code 2)."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

#: (command, option) → what to use instead.
OPTIONS = {
    ("fit", "--learning-curve"): "semcal calibrate shows how many labels are enough",
    ("export", "--fold"): "every server takes a temperature, which --format writes",
}


class CommandWithRemovals(TyperCommand):
    """A command whose removed options say what has become of them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse as ever, unless an option is gone."""
        for name in (arg.partition("=")[0] for arg in args):
            if (self.name, name) in OPTIONS:
                ctx.fail(f"{name} is gone: {OPTIONS[self.name or '', name]}")
        return super().parse_args(ctx, args)
