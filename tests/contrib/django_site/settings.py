"""A small site, on SQLite."""

from __future__ import annotations

import os

SECRET_KEY = "not secret"
USE_TZ = True
INSTALLED_APPS = ["toril.contrib.django"]
try:
    import django.tasks  # noqa: F401
except ImportError:
    INSTALLED_APPS.append("django_tasks")
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SITE_DATABASE", ":memory:"),
        "OPTIONS": {"timeout": 20},
    }
}
TASKS = {
    "default": {
        "BACKEND": "toril.contrib.django.TorilBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {
            "URL": os.environ.get("SITE_URL"),
            "PREFIX": os.environ.get("SITE_PREFIX", "site"),
            "JOB_OPTIONS": {"attempts": 2},
            "WORKER_OPTIONS": {"lock_duration": 1000, "stalled_interval": 300},
        },
    }
}
