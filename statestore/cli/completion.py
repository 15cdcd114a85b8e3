"""`statekeeper completion`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

INSTALLATION = {
    "bash": "echo 'eval \"$(statekeeper completion bash)\"' >> ~/.bashrc",
    "zsh": "echo 'eval \"$(statekeeper completion zsh)\"' >> ~/.zshrc",
    "fish": "statekeeper completion fish > ~/.config/fish/completions/statekeeper.fish",
}
"""The command that installs the completion, by shell."""


@click.command()
@click.argument("shell", type=click.Choice(list(INSTALLATION)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes verbs, options, codes and the roots of statekeeper.toml. It only reads.

    To install it, run the line of your shell once, and open a new shell. In zsh, ~/.zshrc must call compinit before.

    \b
        echo 'eval "$(statekeeper completion bash)"' >> ~/.bashrc
        echo 'eval "$(statekeeper completion zsh)"' >> ~/.zshrc
        statekeeper completion fish > ~/.config/fish/completions/statekeeper.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, shell
    # At the end: zsh reads the first line.
    script = kind(ctx.find_root().command, {}, "statekeeper", "_STATEKEEPER_COMPLETE").source()
    click.echo(f"{script.rstrip()}\n# To install this completion, run: {INSTALLATION[shell]}")
