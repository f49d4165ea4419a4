"""Integrations with other libraries; each needs the extra with its name."""
