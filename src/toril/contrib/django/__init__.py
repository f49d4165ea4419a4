"""Django's tasks on Toril.

::

    INSTALLED_APPS = [..., "toril.contrib.django"]
    TASKS = {"default": {"BACKEND": "toril.contrib.django.TorilBackend"}}

``manage.py toril_worker`` runs them.  Needs Django 6, or Django 5.2 with ``django-tasks``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toril.contrib.django.backend import TorilBackend

__all__ = ["TorilBackend"]


def __getattr__(name: str) -> Any:
    # Imported late: Django imports this package for INSTALLED_APPS before its settings are ready.
    if name == "TorilBackend":
        from toril.contrib.django.backend import TorilBackend

        return TorilBackend
    raise AttributeError(f"module 'toril.contrib.django' has no attribute {name!r}")
