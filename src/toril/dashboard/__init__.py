"""The dashboard: what people open when something is wrong.

    app.mount("/toril", dashboard(connection=URL, authenticate=current_admin))

``dashboard`` makes an ASGI app; ``toril dashboard`` serves it.  Its pages are rendered here, and
everything they show comes through the same API that programs use.
"""

try:
    import jinja2  # noqa: F401
    import starlette  # noqa: F401
except ImportError as error:  # pragma: no cover (the extra is not installed)
    raise ImportError(
        "the dashboard needs Starlette and Jinja2; install them with:"
        ' pip install "toril[dashboard]"'
    ) from error

from toril.dashboard.app import dashboard
from toril.dashboard.security import Role, User

__all__ = ["Role", "User", "dashboard"]
