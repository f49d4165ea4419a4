"""Planted bugs that no world finds: a module for each script of groups, and one for all others.

``FOUND`` names the ordinary test that finds a bug: each was tried.  ``EQUIVALENT`` says why a bug
changes nothing that anybody can see.
"""

from __future__ import annotations

from tests.model.tested import (
    add_group,
    cancel_group,
    due_groups,
    endings,
    groups,
    members,
    outside,
    reconcile_groups,
    resolve_group,
    retreats,
    retry_compensation,
    retry_group,
    settle_member,
    stages,
)

_MODULES = (
    add_group,
    cancel_group,
    due_groups,
    endings,
    groups,
    members,
    outside,
    reconcile_groups,
    resolve_group,
    retreats,
    retry_compensation,
    retry_group,
    settle_member,
    stages,
)

TESTED: dict[str, str] = {name: test for module in _MODULES for name, test in module.FOUND.items()}
ARGUED: dict[str, str] = {
    name: why for module in _MODULES for name, why in module.EQUIVALENT.items()
}
