"""The Django app, so that Django finds ``manage.py toril_worker``."""

from __future__ import annotations

from django.apps import AppConfig


class TorilConfig(AppConfig):
    """Toril's tasks for Django."""

    name = "toril.contrib.django"
    label = "toril"
    verbose_name = "Toril"
