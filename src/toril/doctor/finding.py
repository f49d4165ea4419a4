"""What the doctor found: values, for people and for programs."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """Jobs are or will be lost, stuck or run twice."""
    WARNING = "warning"
    """It will hurt under load, after a failure or with time."""
    INFO = "info"
    """Worth knowing."""


_ORDER = list(Severity)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong: what, why it hurts, and what to do."""

    code: str
    severity: Severity
    subject: str
    """What it is about: the server, a queue, a worker, a relay."""
    problem: str
    harm: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"{self.severity.value:7} {self.code} {self.subject}: {self.problem}\n"
            f"        {self.harm}\n"
            f"        → {self.remedy}"
        )


class Report(msgspec.Struct, frozen=True):
    """Everything that was found, the worst first."""

    findings: list[Finding]

    @classmethod
    def of(cls, findings: list[Finding]) -> Report:
        return cls(sorted(findings, key=lambda one: (_ORDER.index(one.severity), one.code)))

    def count(self, severity: Severity) -> int:
        return sum(one.severity is severity for one in self.findings)

    @property
    def is_healthy(self) -> bool:
        """Is there no error?"""
        return self.count(Severity.ERROR) == 0

    @property
    def exit_code(self) -> int:
        """For CI: 0 without errors and warnings, 1 with warnings, 2 with errors."""
        if not self.is_healthy:
            return 2
        return 1 if self.count(Severity.WARNING) else 0

    def to_json(self) -> str:
        """The findings and their counts as JSON."""
        counts = {severity.value: self.count(severity) for severity in Severity}
        return msgspec.json.encode({"findings": self.findings, "counts": counts}).decode()

    def __str__(self) -> str:
        lines = [str(one) for one in self.findings]
        counts = ", ".join(f"{self.count(severity)} {severity.value}s" for severity in Severity)
        return "\n".join([*lines, counts])
