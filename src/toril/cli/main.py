"""The entry point ``toril``: finds the command, and turns errors into one line and an exit code.

Exit codes: 0 done; 1 refused, failed or not confirmed; 2 wrong usage; 3 no server serves;
130 interrupted.  Nothing of a command is imported before the command is asked for.
"""

from __future__ import annotations

import io
import sys
import traceback
from collections.abc import Sequence
from io import TextIOWrapper
from types import TracebackType

from toril.errors import (
    EmbeddedServerError,
    InvalidInputError,
    ServerError,
    ServerOutOfMemoryError,
    TorilError,
)

try:
    import click
except ImportError:  # pragma: no cover (the extra is not installed)
    sys.exit('the command line needs click; install it with: pip install "toril[cli]"')

from toril.cli.catalogue import LazyGroup, NoCommand
from toril.cli.lifeline import hold_lifeline
from toril.cli.printing import echo, echo_lines, let_go, make_logs_visible
from toril.cli.server import server_options

DONE, REFUSED, USAGE, NO_SERVER, INTERRUPTED = 0, 1, 2, 3, 130


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 refused, failed or not confirmed, 2 wrong usage,"
    " 3 no server serves, 130 interrupted.",
)
@click.version_option(package_name="toril", message="toril %(version)s")
@server_options
def toril(**options: object) -> None:
    """Look into the job queues of a Redis or Valkey server, change them, and run workers.

    \b
    Examples:
      toril demo                      # a short show, on a server of its own
      toril queues                    # what queues there are, and how they are
      toril add payments charge '{"order": 123}'
      toril worker shop.jobs:router --queue payments
      toril job order-123             # all about one job, and why it does not run
      toril monitor                   # watch it all, full screen

    The server is --url, or TORIL_URL, or redis://127.0.0.1:6379; 'embedded:./directory' starts
    one.  Every command has --json for programs and -h for people.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit."""
    sys.excepthook = _show_trace
    make_logs_visible()
    hold_lifeline()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A name that the terminal's encoding lacks must not end the command.
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Ids that are no UTF-8, and terminals that cannot show every character.
            stream.reconfigure(errors="backslashreplace")
    try:
        result = toril.main(
            args=None if arguments is None else list(arguments),
            prog_name="toril",
            standalone_mode=False,
        )
        sys.stdout.flush()
    except NoCommand as error:
        # Help and no complaint; but a script whose word was empty learns that nothing was done.
        echo_lines(error.ctx.get_help())
        return USAGE
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "toril"
        return _say(f"{error.format_message()}  (see {path} --help)", USAGE)
    except click.ClickException as error:
        return _say(error.format_message(), error.exit_code)
    except click.Abort as error:
        # click says "from None", and only the context tells what was typed instead of an answer.
        if isinstance(error.__cause__ or error.__context__, (KeyboardInterrupt, EOFError)):
            echo(err=True)
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            return INTERRUPTED
        return _say(
            "nothing was done, because it was not confirmed; use --yes to skip the question",
            REFUSED,
        )
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has enough; Python would complain once more when it exits.
        let_go(sys.stdout)
        return DONE
    except TorilError as error:
        return _say(str(error), code_for(error))
    return result if isinstance(result, int) else DONE


def code_for(error: TorilError) -> int:
    """The exit code that an error stands for."""
    match error:
        case InvalidInputError():
            return USAGE
        case ServerOutOfMemoryError():
            return REFUSED
        case ServerError() | EmbeddedServerError():
            return NO_SERVER
        case _:
            return REFUSED


def _show_trace(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    echo_lines("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"), err=True)


def _say(message: str, code: int) -> int:
    echo(f"toril: {' '.join(message.split())}", err=True)
    return code


if __name__ == "__main__":
    main()
