"""Options and commands that are gone; for one release they say what to use instead (exit code 2)."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup

IN_PROCESSES = "semcal run CONFIG --workers N works in N processes, --ray ADDRESS on a cluster"
#: (command, option) → what to use instead.
OPTIONS = {
    ("run", "--shard"): IN_PROCESSES,
    ("fit", "--learning-curve"): "semcal calibrate shows how many labels are enough",
    ("export", "--fold"): "every server takes a temperature, which --format writes",
}
#: Command → what to use instead.
COMMANDS = {
    "merge": f"there are no shards any more; {IN_PROCESSES}",
}


class CommandWithRemovals(TyperCommand):
    """A command whose options that are gone say what has become of them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse arguments, unless one is an option that is gone."""
        for argument in args[: args.index("--")] if "--" in args else args:
            name = argument.partition("=")[0]
            if (self.name, name) in OPTIONS:
                ctx.fail(f"{name} is gone: {OPTIONS[self.name or '', name]}")
        return super().parse_args(ctx, args)


class GroupWithRemovals(TyperGroup):
    """Commands of which those that are gone say what has become of them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command, unless it is gone."""
        if args[0] in COMMANDS:
            ctx.fail(f"{args[0]} is gone: {COMMANDS[args[0]]}")
        return super().resolve_command(ctx, args)
