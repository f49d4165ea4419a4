"""The doctor: looks at a running system and at its configuration, and says what will hurt.

Everything is read-only.  ``examine`` returns a ``Report`` of ``Finding`` values; the command line
prints it, and ``report.exit_code`` is for CI.
"""

from toril.doctor.examining import examine
from toril.doctor.finding import Finding, Report, Severity

__all__ = ["Finding", "Report", "Severity", "examine"]
