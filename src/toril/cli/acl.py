"""``toril acl``: the smallest rights of a user, as the server takes them."""

from __future__ import annotations

import click

from toril.cli.printing import echo, print_json
from toril.cli.server import Server, with_server
from toril.cli.values import refuse_given
from toril.protocol.keys import check_prefix
from toril.protocol.rights import ROLES, acl_rules


@click.command("acl")
@click.argument("role", type=click.Choice(list(ROLES)))
@click.option("--user", metavar="NAME", help="The user's name.  [default: the role]")
@with_server
def acl(server: Server, role: str, user: str | None) -> None:
    """Print the ACL rules that a producer, a worker or an operator needs.

    Nothing is sent: run the printed line on your server, with a password in place of SECRET.

    \b
    Examples:
      toril acl worker --user mail-worker
      toril acl producer --prefix shop
    """
    refuse_given("url", because="no server is asked")
    check_prefix(server.prefix)
    rules = acl_rules(role, server.prefix)
    if server.as_json:
        print_json({"role": role, "user": user or role, "rules": rules})
        return
    echo(f"ACL SETUSER {user or role} on >SECRET {' '.join(rules)}")
