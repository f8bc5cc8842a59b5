"""Write the pictures of docs/dashboard.md: `make screenshots`. The node in them is made up."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.browser import chromium
from tests.browser.made_up import MadeUp

VIEWS = {
    "dashboard-light": {"width": 1000, "height": 1640},
    "dashboard-dark": {"width": 1000, "height": 820, "dark": True},
    "dashboard-phone": {"width": 360, "height": 760, "dark": True},
}


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="chromium-") as profile, chromium.browser(Path(profile)) as page:
        for name, view in VIEWS.items():
            page.look(**view)
            with MadeUp.behind(page) as answers:
                answers.open()
                page.picture(directory / f"{name}.png")


if __name__ == "__main__":
    main()
