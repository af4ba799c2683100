"""A real browser without a screen, for pages: what it makes of a file, and what it asks the network for."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)
NOBODY = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"  # the browser itself stays off the network too
MISSING = f"needs a browser, and none of {', '.join(NAMES)} is on the path (Debian: apt-get install chromium)"


def _run(folder: Path, *options: str) -> str:
    assert BROWSER is not None
    # A profile of its own for each call: two browsers do not share one. Root may not use the sandbox.
    kept = folder / "profile"
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    command += [
        "--disable-background-networking",
        "--disable-component-update",
        NOBODY,
        f"--user-data-dir={kept}",
        *options,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    shutil.rmtree(kept, ignore_errors=True)
    return done.stdout


def dom(page: Path, folder: Path, *options: str) -> str:
    """The document as the browser has it after loading, scripts included."""
    return _run(folder, *options, "--virtual-time-budget=5000", "--dump-dom", page.as_uri())


def screenshot(page: Path, picture: Path, *, width: int, height: int, dark: bool = False) -> None:
    """What is seen of a page."""
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    size = f"--window-size={width},{height}"
    _run(picture.parent, scheme, size, "--hide-scrollbars", f"--screenshot={picture}", page.as_uri())


def requests(page: Path, folder: Path) -> list[str]:
    """Every address that a page asks for while it is opened; what the browser wants for itself has no origin."""
    log = folder / "net.json"
    _run(folder, f"--log-net-log={log}", "--dump-dom", page.as_uri())
    events = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    return sorted({one["url"] for one in events if one.get("initiator", "not an origin") != "not an origin"})
