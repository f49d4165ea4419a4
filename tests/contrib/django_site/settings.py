"""A small site, on SQLite, on the PostgreSQL of the directory SITE_POSTGRES, or on the MariaDB of
the socket SITE_MARIADB."""

from __future__ import annotations

import os

import pymysql

pymysql.install_as_MySQLdb()  # Django asks for mysqlclient; PyMySQL takes its name

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
if "SITE_POSTGRES" in os.environ:
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": os.environ["SITE_POSTGRES"],
        "NAME": "postgres",
        "USER": "postgres",
    }
if "SITE_MARIADB" in os.environ:
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.mysql",
        "HOST": os.environ["SITE_MARIADB"],
        "NAME": "toril",
        "USER": "root",
    }
TASKS = {
    "default": {
        "BACKEND": "toril.contrib.django.TorilBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {
            "URL": os.environ.get("SITE_URL"),
            "PREFIX": os.environ.get("SITE_PREFIX", "site"),
            "JOB_OPTIONS": {"attempts": 2},
            "WORKER_OPTIONS": {"stalled_interval": 300},
        },
    }
}
