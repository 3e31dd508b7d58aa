"""What a check found: one `Result` a case, collected in a `CheckReport`."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field

from attnzoo.errors import LONGEST_LINE, shortened

PASSED, FAILED, REFUSED, SKIPPED = "passed", "failed", "refused", "skipped"


@dataclass(frozen=True)
class Result:
    """One case of one check.

    Args:
        check, case: which property, on which input (the smallest that still fails).
        status: passed; failed; refused (not declared, and indeed refused with reasons); skipped (cannot be tried here).
        expected, actual, where: the values that disagree, and their position.
        detail: the error and what was allowed, the reasons of a refusal or of a skip.
        about: what the check demands, in one line.
    """

    check: str
    case: str
    status: str
    expected: str = ""
    actual: str = ""
    where: str = ""
    detail: str = ""
    about: str = ""

    def __post_init__(self) -> None:
        for name in ("expected", "actual", "where", "detail"):  # an exception of others may hold a whole tensor
            object.__setattr__(self, name, shortened(getattr(self, name), LONGEST_LINE))

    @property
    def passed(self) -> bool:
        return self.status == PASSED

    @property
    def skipped(self) -> bool:
        return self.status == SKIPPED

    def __str__(self) -> str:
        if self.status != FAILED:
            return f"{self.status}: {self.check} [{self.case}] {self.detail}".rstrip()
        lines = [f"FAILED {self.check}: {self.about}", f"  on        {self.case}"]
        for label, text in (
            ("expected", self.expected),
            ("actual", self.actual),
            ("where", self.where),
            ("detail", self.detail),
        ):
            if text:
                lines.append(f"  {label:<9} {text}")
        return "\n".join([*lines, f"  read      docs/checks.md#{self.check.replace('_', '-')}"])


@dataclass
class CheckReport:
    """Everything one run of the suite found about one attention.

    ``passed`` needs at least one passed case and no failed one; an attention that cannot run here at all has ``refused``
    reasons and has neither passed nor failed.
    """

    subject: str
    device: str
    dtypes: tuple[str, ...]
    quick: bool
    results: list[Result] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def failures(self) -> list[Result]:
        return [r for r in self.results if r.status == FAILED]

    @property
    def passed(self) -> bool:
        return not self.failures and any(r.passed for r in self.results)

    def counts(self) -> dict[str, int]:
        """Cases by status, each status present."""
        seen = Counter(r.status for r in self.results)
        return {status: seen[status] for status in (PASSED, FAILED, REFUSED, SKIPPED)}

    def failed_checks(self) -> list[str]:
        """Names of the checks with a failed case, in the order of the suite."""
        return list(dict.fromkeys(r.check for r in self.failures))

    def to_dict(self) -> dict:
        """Plain data for JSON: the verdict, the counts, and a line a check under ``tests``."""
        tests = []
        for name in dict.fromkeys(r.check for r in self.results):
            cases = [r for r in self.results if r.check == name]
            seen, failed = Counter(r.status for r in cases), next((r for r in cases if r.status == FAILED), None)
            reasons = sorted({r.detail for r in cases if r.status in (REFUSED, SKIPPED)})
            row = {
                "name": name,
                "passed": failed is None,
                "cases": dict(seen),
                "detail": str(failed) if failed else "",
                "reasons": reasons,
            }
            tests.append(row | ({"failure": asdict(failed)} if failed else {}))
        return {
            "subject": self.subject,
            "device": self.device,
            "dtypes": list(self.dtypes),
            "quick": self.quick,
            "passed": self.passed,
            "refused": self.refused,
            "counts": self.counts(),
            "seconds": round(self.seconds, 3),
            "tests": tests,
        }

    def __str__(self) -> str:
        counts = ", ".join(f"{n} {status}" for status, n in self.counts().items() if n)
        verdict = (
            "passed"
            if self.passed
            else ("FAILED" if self.failures else "refused" if self.refused else "nothing could be tried")
        )
        lines = [f"{self.subject} on {self.device}: {verdict} ({counts or 'no case'}; {self.seconds:.1f} s)"]
        lines += [f"  - {reason}" for reason in self.refused]
        alike: dict[tuple[str, str], list[Result]] = {}
        for failure in self.failures:  # an error of the subject's own code would fill screens, once a check
            raised = failure.detail.startswith("raised in")
            alike.setdefault((failure.actual, failure.detail if raised else str(failure)), []).append(failure)
        for first, *others in alike.values():
            lines.append(str(first))
            if others:
                lines.append(f"FAILED in the same way: {', '.join(dict.fromkeys(r.check for r in others))}")
        skips = Counter((r.check, r.detail) for r in self.results if r.skipped and not self.refused)
        lines += [f"  skipped {check} ({n}): {why}" for (check, why), n in skips.items()]
        return "\n".join(lines)
