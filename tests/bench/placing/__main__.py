"""Measure how well leases are placed, and write the report: minutes, and the same figures every time.

python -m tests.bench.placing
"""

from __future__ import annotations

from . import delivery, report, sharing

if __name__ == "__main__":
    report.write({"delivered": list(delivery.measure()), "shared": list(sharing.measure())})
