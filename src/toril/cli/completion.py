"""``toril completion``: what a shell needs to complete commands, options and queue names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from toril.cli.printing import echo_lines, print_json
from toril.cli.server import Server, with_server
from toril.cli.values import refuse_given

_HOW = {
    "bash": 'eval "$(toril completion bash)"      # in ~/.bashrc',
    "zsh": 'eval "$(toril completion zsh)"       # in ~/.zshrc',
    "fish": "toril completion fish > ~/.config/fish/completions/toril.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_HOW)))
@with_server
def completion(server: Server, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    Put this where your shell starts:
      eval "$(toril completion bash)"      # in ~/.bashrc
      eval "$(toril completion zsh)"       # in ~/.zshrc
      toril completion fish > ~/.config/fish/completions/toril.fish
    """
    refuse_given("url", "prefix", because="no server is asked")
    root = click.get_current_context().find_root()
    made = get_completion_class(shell)
    assert made is not None
    script = made(root.command, {}, "toril", "_TORIL_COMPLETE").source()
    if server.as_json:
        print_json({"shell": shell, "script": script})
        return
    echo_lines(script)
