"""The claim ledger: what articles say about memory and large models, and what this computer shows about it.

settled = claims.settle("C001", "C002", using=runs)
claims.record(settled)
claims.report(settled)
"""

from labkit.course.claims.bench import Bench
from labkit.course.claims.commands import command, settle_lab
from labkit.course.claims.ledger import SYMBOLS, Claim, Settled, all, get
from labkit.course.claims.records import record, recorded, records_path
from labkit.course.claims.rules import rule
from labkit.course.claims.settling import settle
from labkit.course.claims.tables import Report, report

__all__ = [
    "SYMBOLS",
    "Bench",
    "Claim",
    "Report",
    "Settled",
    "all",
    "command",
    "get",
    "record",
    "recorded",
    "records_path",
    "report",
    "rule",
    "settle",
    "settle_lab",
]
